//! Frames in memory that another library made and keeps.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{io, os::fd::AsFd};

use super::{Borrower, FrameMemory, HELD, memory};
use crate::error::Error;
use crate::shm::{Cells, Mapping, anonymous_file};

/// Frames begin at multiples of this many bytes: a cache line. So they need not be equally far apart.
const GRAIN: u64 = 64;
/// To whom the ledger says that what is no frame is lent: nobody ever gives it back.
const NOBODY: u8 = u8::MAX;

impl Borrower {
    /// The library whose memory [`FrameMemory::over`] shows.
    pub const LIBRARY: Self = Self(1);
}

impl FrameMemory {
    /// Frames of `room` bytes, one at each of `starts`, which are distances from `start`, bytes. All are lent to [`Borrower::LIBRARY`] at first;
    /// their numbers are those distances in cache lines.
    ///
    /// # Errors
    /// A frame does not begin at a multiple of 64 bytes, does not lie within `len`, or overlaps another; no memory for the ledger.
    ///
    /// # Safety
    /// The `len` bytes from `start` on are mapped and writable for as long as the result lives, and nobody else touches the bytes of a frame that
    /// was taken back from [`Borrower::LIBRARY`].
    pub unsafe fn over(
        start: NonNull<u8>,
        len: u64,
        room: u32,
        starts: &[u64],
    ) -> Result<Self, Error> {
        let grains = len.div_ceil(GRAIN);
        let mut sorted = starts.to_vec();
        sorted.sort_unstable();
        let fits = sorted
            .iter()
            .all(|first| first.is_multiple_of(GRAIN) && first + u64::from(room) <= len);
        let apart = sorted
            .windows(2)
            .all(|two| two[1] - two[0] >= u64::from(room));
        let grains = u32::try_from(grains)
            .ok()
            .filter(|_| fits && apart && room > 0)
            .ok_or_else(|| memory(len as usize)(io::ErrorKind::InvalidInput.into()))?;
        let ledger = anonymous_file("myelin-ledger", grains as usize)
            .and_then(|file| Mapping::new(file.as_fd(), 0, grains as usize, true))
            .map(Arc::new)
            .map_err(memory(grains as usize))?;
        let ledger = Cells::new(&ledger, 0, grains as usize)
            .ok_or_else(|| memory(grains as usize)(io::ErrorKind::UnexpectedEof.into()))?;
        let this = Self {
            start,
            ledger,
            holder: HELD,
            // The library has them all.
            handed_out: AtomicBool::new(true),
            frames: grains,
            shift: GRAIN.trailing_zeros(),
            room,
        };
        for state in this.ledger.iter() {
            state.store(NOBODY, Ordering::Relaxed);
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
        // SAFETY: the bytes are leaked, so they stay, and nobody else knows them.
        unsafe { FrameMemory::over(start, 4096, room, starts) }
    }

    #[test]
    fn frames_need_not_be_equally_far_apart() {
        let owner = Borrower::LIBRARY;
        let memory = over(&[2048, 64, 640], 500).unwrap();
        assert_eq!(memory.held_frames().count(), 0, "all are the owner's");
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
    fn frames_that_overlap_or_lie_outside_are_refused() {
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
