//! Frames in memory that a library owns.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{io, os::fd::AsFd};

use super::{Borrower, FrameMemory, OWNER, memory};
use crate::error::Error;
use crate::shm::{Mapping, SharedAtomics, anonymous_file};

/// Alignment of frames, bytes: a cache line. The distances between frames may differ.
const ALIGNMENT: u64 = 64;
/// Table entry of a cache line where no frame begins. No port can return such a frame.
const NO_FRAME: u8 = u8::MAX;

impl Borrower {
    /// The library that owns the memory of [`FrameMemory::over_external_memory`].
    pub const LIBRARY: Self = Self(1);
}

impl FrameMemory {
    /// Makes a frame of `room` bytes at each of the byte offsets `starts` from `start`. At first
    /// all frames are lent to [`Borrower::LIBRARY`]. A frame's number is its offset in cache lines.
    ///
    /// # Errors
    /// A frame is not aligned to 64 bytes, lies outside `len` bytes, or overlaps another frame. Or
    /// the kernel has no memory for the holder table.
    ///
    /// # Safety
    /// The `len` bytes from `start` on are mapped and writable for as long as the result lives.
    /// While a frame is not lent to [`Borrower::LIBRARY`], no other code accesses its bytes.
    pub unsafe fn over_external_memory(
        start: NonNull<u8>,
        len: u64,
        room: u32,
        starts: &[u64],
    ) -> Result<Self, Error> {
        let units = len.div_ceil(ALIGNMENT);
        let mut sorted = starts.to_vec();
        sorted.sort_unstable();
        let fits = sorted
            .iter()
            .all(|first| first.is_multiple_of(ALIGNMENT) && first + u64::from(room) <= len);
        let is_disjoint = sorted
            .windows(2)
            .all(|two| two[1] - two[0] >= u64::from(room));
        let units = u32::try_from(units)
            .ok()
            .filter(|_| fits && is_disjoint && room > 0)
            .ok_or_else(|| memory(len as usize)(io::ErrorKind::InvalidInput.into()))?;
        let table = anonymous_file("myelin-holders", units as usize)
            .and_then(|file| Mapping::new(file.as_fd(), 0, units as usize, true))
            .map(Arc::new)
            .map_err(memory(units as usize))?;
        let holders = SharedAtomics::new(&table, 0, units as usize)
            .ok_or_else(|| memory(units as usize)(io::ErrorKind::UnexpectedEof.into()))?;
        let this = Self {
            start,
            holders,
            holder: OWNER,
            // The library holds all frames.
            is_handed_out: AtomicBool::new(true),
            frames: starts.len() as u32,
            shift: ALIGNMENT.trailing_zeros(),
            room,
        };
        for holder in this.holders.iter() {
            holder.store(NO_FRAME, Ordering::Relaxed);
        }
        for &first in starts {
            this.mark_lent(first, Borrower::LIBRARY);
        }
        Ok(this)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make_memory(starts: &[u64], room: u32) -> Result<FrameMemory, Error> {
        let bytes = Box::leak(vec![0_u8; 4096].into_boxed_slice());
        let start = NonNull::from(bytes).cast();
        // SAFETY: the leaked bytes stay valid for ever, and no other code has a pointer to them.
        unsafe { FrameMemory::over_external_memory(start, 4096, room, starts) }
    }

    #[test]
    fn distances_between_frames_may_differ() {
        let library = Borrower::LIBRARY;
        let memory = make_memory(&[2048, 64, 640], 500).unwrap();
        assert_eq!(memory.frames(), 3, "cache lines are no frames");
        assert_eq!(
            memory.held_frames().count(),
            0,
            "the library holds all frames"
        );
        let mut frames: Vec<_> = [64, 640, 2048]
            .map(|at| memory.take_back(at, library).unwrap().0)
            .into();
        assert_eq!(memory.take_back(640, library), None, "taken back twice");
        assert_eq!(
            memory.take_back(128, library),
            None,
            "no frame begins there"
        );
        for (value, frame) in (1..).zip(&mut frames) {
            memory.bytes_mut(frame).fill(value);
        }
        for (value, frame) in (1..).zip(&mut frames) {
            assert_eq!(memory.bytes_mut(frame), [value; 500]);
        }
        let third = frames.pop().unwrap();
        assert_eq!(memory.lend(third, 0, library), 2048);
        assert_eq!(memory.lent_to(library), 1);
    }

    #[test]
    fn overlapping_or_outside_frames_are_refused() {
        for (starts, room) in [
            (&[0_u64, 64][..], 65),
            (&[4032], 65),
            (&[32], 64),
            (&[0], 0),
        ] {
            assert!(make_memory(starts, room).is_err(), "{starts:?} {room}");
        }
    }
}
