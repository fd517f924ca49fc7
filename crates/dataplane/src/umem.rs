//! The UMEM: frames of equal size in a shared file, and a table of their holders.
//!
//! ```text
//! frame 0 | frame 1 | ... | frame n-1 | holder table: one byte per frame
//! ```
//!
//! The worker holds a frame as a [`Frame`], or lends it to a port through a fill or TX ring. The
//! holder table then names the port. The table lies in the shared file, so a successor of the
//! worker can read which frames it may take. The rings alone do not suffice: a frame that a driver
//! holds (zero-copy receive, a transmission in progress) is in no ring.
//!
//! The table alone does not suffice either. A worker may die between writing a ring's index and
//! writing the table. So the successor also reads the rings of its ports, and marks their frames as
//! lent (`FrameMemory::mark_lent`).

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use crate::chain::SocketId;
use crate::error::Error;
use crate::shm::{Mapping, SharedAtomics, anonymous_file, file_len};

mod external;
mod packets;
mod private;

/// Bytes that the kernel leaves free before every received packet (`XDP_PACKET_HEADROOM`).
pub const HEADROOM: u32 = 256;

/// Most frames of one UMEM: 2 GiB of 2 KiB frames.
pub const MAX_FRAMES: u32 = 1 << 20;

/// Table entry of a frame that the creator of the UMEM holds and that no port borrows.
const OWNER: u8 = 0;

/// The borrower of a frame: a port of the worker, or another process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Borrower(u8);

impl Borrower {
    /// Maximum number of borrowers of one UMEM.
    pub const MAX: usize = 255;

    /// Returns the borrower for a port index; `None` from [`Self::MAX`] on.
    pub fn new(port: usize) -> Option<Self> {
        u8::try_from(port + 1).ok().map(Self)
    }

    /// Returns the borrower for a number of a socket, ring or process.
    pub(crate) fn of(id: SocketId) -> Result<Self, String> {
        Self::new(id.0.into()).ok_or_else(|| format!("socket number {} is too large", id.0))
    }
}

/// A UMEM: memory for packets that the kernel, the agent and workers share. Consists of the file,
/// and the number and size of its frames. Only processes that handle packets map the file, so the
/// file does not count as resident memory of the agent.
#[derive(Debug)]
pub struct Umem {
    file: File,
    frames: u32,
    frame_size: u32,
}

impl Umem {
    /// Creates a UMEM of `frames` frames of `frame_size` bytes. The kernel requires 2048 or 4096
    /// bytes. A received packet cannot use the first [`HEADROOM`] bytes of a frame.
    pub fn create(frames: u32, frame_size: u32) -> Result<Self, Error> {
        let len = file_len_of(frames, frame_size)?;
        let fd = anonymous_file("myelin-umem", len).map_err(memory(len))?;
        Self::open(fd, frames, frame_size)
    }

    /// Opens a UMEM that another process created with the same numbers.
    pub(crate) fn open(fd: OwnedFd, frames: u32, frame_size: u32) -> Result<Self, Error> {
        let len = file_len_of(frames, frame_size)?;
        let found = file_len(fd.as_fd()).map_err(memory(len))?;
        if found < len {
            return Err(memory(len)(io::ErrorKind::UnexpectedEof.into()));
        }
        Ok(Self {
            file: fd.into(),
            frames,
            frame_size,
        })
    }

    /// Returns the number of frames.
    pub fn frames(&self) -> u32 {
        self.frames
    }

    /// Returns the size of a frame, bytes.
    pub fn frame_size(&self) -> u32 {
        self.frame_size
    }

    /// Returns the shared file.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Returns the number of lent frames, from the holder table.
    pub fn lent(&self) -> Result<usize, Error> {
        let mut holders = vec![OWNER; self.frames as usize];
        self.file
            .read_exact_at(&mut holders, self.frames_len() as u64)
            .map_err(memory(holders.len()))?;
        Ok(holders.iter().filter(|&&holder| holder != OWNER).count())
    }

    /// Returns the size of all frames, bytes.
    fn frames_len(&self) -> usize {
        self.frames as usize * self.frame_size as usize
    }

    /// Maps the frames, to register them with the kernel. The kernel keeps the pages after the
    /// mapping is removed.
    pub(crate) fn map_frames(&self) -> Result<Mapping, Error> {
        let len = self.frames_len();
        Mapping::new(self.fd(), 0, len, false).map_err(memory(len))
    }
}

/// Ownership of one frame and its bytes. No two values have the same number.
#[derive(Debug, PartialEq, Eq)]
pub struct Frame(u32);

/// The frames of a [`Umem`], mapped in a worker.
#[derive(Debug)]
pub struct FrameMemory {
    /// Start of the mapping, which `holders` keeps alive.
    start: NonNull<u8>,
    /// The holder table.
    holders: SharedAtomics<AtomicU8>,
    /// Table entry of frames that this process holds.
    holder: u8,
    /// Whether [`Self::held_frames`] has returned the frames of this process.
    is_handed_out: AtomicBool,
    /// Number of frames.
    frames: u32,
    /// Binary logarithm of the distance between two frames, bytes.
    shift: u32,
    /// Size of a frame, bytes. Equals that distance, unless a library owns the frames.
    room: u32,
}

// SAFETY: the mapping belongs to the process, not to a thread.
unsafe impl Send for FrameMemory {}
// SAFETY: only the one `Frame` token gives access to a frame's bytes. The holder table consists of
// atomic integers.
unsafe impl Sync for FrameMemory {}

impl FrameMemory {
    /// Maps the whole UMEM. Populates all pages, so that no packet waits for a page fault.
    pub fn map(umem: &Umem) -> Result<Self, Error> {
        Self::map_for(umem, OWNER)
    }

    /// Like [`Self::map`], in a process that is itself a borrower.
    pub(crate) fn map_as(umem: &Umem, holder: Borrower) -> Result<Self, Error> {
        Self::map_for(umem, holder.0)
    }

    fn map_for(umem: &Umem, holder: u8) -> Result<Self, Error> {
        let frames_len = umem.frames_len();
        let len = frames_len + umem.frames as usize;
        let mapping = Arc::new(Mapping::new(umem.fd(), 0, len, true).map_err(memory(len))?);
        let holders = SharedAtomics::new(&mapping, frames_len, umem.frames as usize)
            .ok_or_else(|| memory(len)(io::ErrorKind::UnexpectedEof.into()))?;
        Ok(Self {
            start: mapping.start(),
            holders,
            holder,
            is_handed_out: AtomicBool::new(false),
            frames: umem.frames,
            shift: umem.frame_size.trailing_zeros(),
            room: umem.frame_size,
        })
    }

    /// Returns the size of a frame, bytes.
    #[inline]
    pub fn frame_size(&self) -> u32 {
        self.room
    }

    /// Returns the number of frames.
    pub fn frames(&self) -> u32 {
        self.frames
    }

    /// Returns the numbers that frames may have: one for each table entry. With frames of a
    /// library, there are more numbers than frames.
    fn numbers(&self) -> Range<u32> {
        0..self.holders.len() as u32
    }

    /// Returns every frame that this process holds. A second call returns none, because no frame
    /// may exist twice.
    pub(crate) fn held_frames(&self) -> impl Iterator<Item = Frame> + '_ {
        let frames = if self.is_handed_out.swap(true, Ordering::Relaxed) {
            0..0
        } else {
            self.numbers()
        };
        frames
            .filter(|&frame| self.holders[frame as usize].load(Ordering::Relaxed) == self.holder)
            .map(Frame)
    }

    /// Writes into the holder table that `port` holds the frame at `address`.
    #[inline]
    pub(crate) fn mark_lent(&self, address: u64, port: Borrower) {
        if let Some(state) = self.holders.get((address >> self.shift) as usize) {
            state.store(port.0, Ordering::Relaxed);
        }
    }

    /// Returns the number of frames that a port holds.
    pub(crate) fn lent_to(&self, port: Borrower) -> usize {
        self.holders
            .iter()
            .filter(|state| state.load(Ordering::Relaxed) == port.0)
            .count()
    }

    /// Consumes a frame. Returns the address of byte `offset` in the frame, for a descriptor. Mark
    /// the frame as lent when you publish the descriptor.
    #[inline]
    #[expect(clippy::needless_pass_by_value, reason = "consumes the ownership")]
    pub(crate) fn address(&self, frame: Frame, offset: u32) -> u64 {
        debug_assert!(offset < self.frame_size());
        (u64::from(frame.0) << self.shift) + u64::from(offset)
    }

    /// Lends a frame to a port. Returns the address of byte `offset` in the frame, for a
    /// descriptor.
    #[inline]
    pub fn lend(&self, frame: Frame, offset: u32, port: Borrower) -> u64 {
        let address = self.address(frame, offset);
        self.mark_lent(address, port);
        address
    }

    /// Takes the frame of a descriptor back from a port. Returns the frame and the offset of the
    /// address in it. Returns `None` for an address outside the UMEM or a frame that this port has
    /// not borrowed. So a frame never has two holders.
    #[inline]
    pub fn take_back(&self, address: u64, port: Borrower) -> Option<(Frame, u32)> {
        let number = address >> self.shift;
        let state = self.holders.get(usize::try_from(number).ok()?)?;
        if state.load(Ordering::Relaxed) != port.0 {
            return None;
        }
        state.store(self.holder, Ordering::Relaxed);
        let offset = address as u32 & ((1 << self.shift) - 1);
        Some((Frame(number as u32), offset))
    }

    /// Takes back every frame that a port holds. Call this method only after the kernel has
    /// released the port's socket.
    pub(crate) fn take_all_back(&self, port: Borrower) -> impl Iterator<Item = Frame> + '_ {
        self.numbers().filter_map(move |frame| {
            let state = &self.holders[frame as usize];
            (state.load(Ordering::Relaxed) == port.0).then(|| {
                state.store(self.holder, Ordering::Relaxed);
                Frame(frame)
            })
        })
    }

    /// Returns whether `port` holds the frame at `address`.
    pub(crate) fn is_lent_to(&self, address: u64, port: Borrower) -> bool {
        let state = self.holders.get((address >> self.shift) as usize);
        state.is_some_and(|state| state.load(Ordering::Relaxed) == port.0)
    }

    /// Takes back the frames of `port`, except those at these addresses. Returns no [`Frame`]: call
    /// it before [`Self::held_frames`].
    pub(crate) fn take_back_all_but(&self, port: Borrower, addresses: impl Iterator<Item = u64>) {
        let kept: HashSet<u64> = addresses.map(|address| address >> self.shift).collect();
        for (frame, state) in (0..).zip(self.holders.iter()) {
            if state.load(Ordering::Relaxed) == port.0 && !kept.contains(&frame) {
                state.store(self.holder, Ordering::Relaxed);
            }
        }
    }

    /// Grants a frame to the process `holder`, which takes the frame when it starts.
    pub(crate) fn grant(&self, frame: Frame, holder: Borrower) {
        self.lend(frame, 0, holder);
    }

    /// Returns a frame's number: the index of its entry in the holder table.
    #[inline]
    pub fn frame_number(&self, frame: &Frame) -> u32 {
        frame.0
    }

    /// Returns a frame's bytes.
    #[inline]
    pub fn bytes_mut<'a>(&'a self, frame: &'a mut Frame) -> &'a mut [u8] {
        self.consume_frame(Frame(frame.0))
    }

    /// Consumes a frame. Returns its bytes. The reference lives as long as `self`.
    #[inline]
    #[expect(
        clippy::mut_from_ref,
        clippy::needless_pass_by_value,
        reason = "a frame gives exclusive access to its bytes"
    )]
    fn consume_frame(&self, frame: Frame) -> &mut [u8] {
        let at = (frame.0 as usize) << self.shift;
        // SAFETY: frames come only from `held_frames`, `take_back`, `take_all_back` and
        // `recover_buffer`. So the number has a table entry, and the range lies in the
        // mapping, which lives as long as `self`. The frame exists once, and the caller has just
        // consumed it or borrows it mutably. Neither the kernel nor the agent accesses a frame that
        // is not lent.
        unsafe {
            std::slice::from_raw_parts_mut(self.start.add(at).as_ptr(), self.frame_size() as usize)
        }
    }
}

/// Returns the length of the shared file, bytes.
fn file_len_of(frames: u32, frame_size: u32) -> Result<usize, Error> {
    if !matches!(frame_size, 2048 | 4096) {
        return Err(Error::Parameter {
            what: "frame size",
            value: frame_size.into(),
            expected: "2048 or 4096 bytes",
        });
    }
    if frames == 0 || frames > MAX_FRAMES {
        return Err(Error::Parameter {
            what: "number of frames",
            value: frames.into(),
            expected: "1 to 1048576",
        });
    }
    Ok(frames as usize * (frame_size as usize + 1))
}

fn memory(bytes: usize) -> impl Fn(io::Error) -> Error {
    move |source| Error::Memory {
        what: "UMEM",
        bytes,
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_has_one_holder_at_a_time() {
        let umem = Umem::create(4, 2048).unwrap();
        let memory = FrameMemory::map(&umem).unwrap();
        let [port, other] = [7, 8].map(|port| Borrower::new(port).unwrap());
        let mut held: Vec<Frame> = memory.held_frames().collect();
        assert_eq!(held.len(), 4);
        assert_eq!(
            memory.held_frames().count(),
            0,
            "a second call returns no frame"
        );
        let address = memory.lend(held.pop().unwrap(), 256, port);
        assert_eq!((address, umem.lent().unwrap()), (3 * 2048 + 256, 1));
        assert_eq!(memory.take_back(address, other), None, "lent to another");
        assert_eq!(memory.take_back(address + 10, port), Some((Frame(3), 266)));
        assert_eq!(memory.take_back(address, port), None, "taken back twice");
        assert_eq!(memory.take_back(4 * 2048, port), None, "outside");
        assert_eq!(memory.take_back(u64::MAX, port), None, "outside");
        assert_eq!(memory.take_back(0, port), None, "never lent");
        assert_eq!(umem.lent().unwrap(), 0);
        memory.lend(held.pop().unwrap(), 0, port);
        memory.lend(held.pop().unwrap(), 0, other);
        assert_eq!(memory.take_all_back(port).collect::<Vec<_>>(), [Frame(2)]);
        assert_eq!(umem.lent().unwrap(), 1);
        assert_eq!(Borrower::new(Borrower::MAX), None);
    }

    #[test]
    fn the_holder_table_outlives_its_process() {
        let agent = Umem::create(8, 4096).unwrap();
        let open = || Umem::open(agent.fd().try_clone_to_owned().unwrap(), 8, 4096).unwrap();
        let worker = FrameMemory::map(&open()).unwrap();
        let mut frames: Vec<Frame> = worker.held_frames().collect();
        worker.bytes_mut(&mut frames[5])[4095] = 0xa5;
        let port = Borrower::new(0).unwrap();
        worker.lend(frames.remove(5), 0, port);
        worker.lend(frames.remove(0), 0, port);
        assert_eq!(agent.lent().unwrap(), 2);
        drop((worker, frames));
        let successor = FrameMemory::map(&open()).unwrap();
        successor.mark_lent(2 * 4096 + 300, port);
        successor.mark_lent(u64::MAX, port);
        let held: Vec<u32> = successor.held_frames().map(|frame| frame.0).collect();
        assert_eq!(held, [1, 3, 4, 6, 7]);
        let (mut frame, _) = successor.take_back(5 * 4096, port).unwrap();
        assert_eq!(successor.bytes_mut(&mut frame)[4095], 0xa5);
    }

    #[test]
    fn invalid_sizes_are_refused() {
        for (frames, size, word) in [
            (0, 2048, "frames"),
            (MAX_FRAMES + 1, 2048, "frames"),
            (4, 1024, "frame size"),
            (4, 3000, "frame size"),
        ] {
            let error = Umem::create(frames, size).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        let small = Umem::create(4, 2048).unwrap();
        let error = Umem::open(small.fd().try_clone_to_owned().unwrap(), 400, 2048).unwrap_err();
        assert!(error.to_string().contains("UMEM"), "{error}");
    }
}
