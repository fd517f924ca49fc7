//! Frames in memory that another library owns.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{io, os::fd::AsFd};

use super::{Borrower, FrameMemory, OWNER, memory};
use crate::error::Error;
use crate::shm::{Mapping, SharedAtomics, anonymous_file};

/// Alignment of frames, bytes: a cache line. Distances between frames may differ.
const ALIGNMENT: u64 = 64;
/// Ledger entry of a cache line where no frame begins. No port can return such a frame.
const NO_FRAME: u8 = u8::MAX;

impl Borrower {
    /// The library that owns the memory of [`FrameMemory::over_external_memory`].
    pub const LIBRARY: Self = Self(1);
}

impl FrameMemory {
    /// Makes a frame of `room` bytes at each byte offset of `starts` from `start`. At
    /// first all are lent to [`Borrower::LIBRARY`]. A frame's number is its distance in cache
    /// lines.
    ///
    /// # Errors
    /// A frame is not aligned to 64 bytes, lies outside `len` bytes, or overlaps another, or no
    /// memory is left for the ledger.
    ///
    /// # Safety
    /// The `len` bytes from `start` on are mapped and writable for as long as the result lives. No
    /// other code touches a frame that was taken back from [`Borrower::LIBRARY`].
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
        let apart = sorted
            .windows(2)
            .all(|two| two[1] - two[0] >= u64::from(room));
        let units = u32::try_from(units)
            .ok()
            .filter(|_| fits && apart && room > 0)
            .ok_or_else(|| memory(len as usize)(io::ErrorKind::InvalidInput.into()))?;
        let ledger = anonymous_file("myelin-ledger", units as usize)
            .and_then(|file| Mapping::new(file.as_fd(), 0, units as usize, true))
            .map(Arc::new)
            .map_err(memory(units as usize))?;
        let ledger = SharedAtomics::new(&ledger, 0, units as usize)
            .ok_or_else(|| memory(units as usize)(io::ErrorKind::UnexpectedEof.into()))?;
        let this = Self {
            start,
            ledger,
            holder: OWNER,
            // The library holds all frames.
            handed_out: AtomicBool::new(true),
            frames: units,
            shift: ALIGNMENT.trailing_zeros(),
            room,
        };
        for state in this.ledger.iter() {
            state.store(NO_FRAME, Ordering::Relaxed);
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

    fn over(starts: &[u64], room: u32) -> Result<FrameMemory, Error> {
        let bytes = Box::leak(vec![0_u8; 4096].into_boxed_slice());
        let start = NonNull::from(bytes).cast();
        // SAFETY: the bytes are leaked, so they stay, and no other code uses them.
        unsafe { FrameMemory::over_external_memory(start, 4096, room, starts) }
    }

    #[test]
    fn frames_need_not_be_equally_far_apart() {
        let owner = Borrower::LIBRARY;
        let memory = over(&[2048, 64, 640], 500).unwrap();
        assert_eq!(memory.held_frames().count(), 0, "the library has all");
        let mut frames: Vec<_> = [64, 640, 2048]
            .map(|at| memory.take_back(at, owner).unwrap().0)
            .into();
        assert_eq!(memory.take_back(640, owner), None, "taken back twice");
        assert_eq!(memory.take_back(128, owner), None, "no frame begins there");
        for (value, frame) in (1..).zip(&mut frames) {
            memory.bytes_mut(frame).fill(value);
        }
        for (value, frame) in (1..).zip(&mut frames) {
            assert_eq!(memory.bytes_mut(frame), [value; 500]);
        }
        let third = frames.pop().unwrap();
        assert_eq!(memory.lend(third, 0, owner), 2048);
        assert_eq!(memory.lent_to(owner), 1);
    }

    #[test]
    fn overlapping_or_outside_frames_are_refused() {
        for (starts, room) in [
            (&[0_u64, 64][..], 65),
            (&[4032], 65),
            (&[32], 64),
            (&[0], 0),
        ] {
            assert!(over(starts, room).is_err(), "{starts:?} {room}");
        }
    }
}
