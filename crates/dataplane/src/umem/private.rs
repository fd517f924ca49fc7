//! Frames in memory of one process, of any size.

use std::io;

use super::{FrameMemory, Umem, memory};
use crate::error::Error;
use crate::shm::anonymous_file;

impl FrameMemory {
    /// Makes frames that this process alone uses. Ends with the process.
    ///
    /// # Errors
    /// The size is no power of two, or the kernel has no memory.
    pub(crate) fn private(frames: u32, frame_size: u32) -> Result<Self, Error> {
        let len = frames as usize * (frame_size as usize + 1);
        if !frame_size.is_power_of_two() || frames == 0 {
            return Err(memory(len)(io::ErrorKind::InvalidInput.into()));
        }
        let file = anonymous_file("myelin-frames", len).map_err(memory(len))?;
        Self::map(&Umem {
            file: file.into(),
            frames,
            frame_size,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_frames_may_be_larger_than_a_page() {
        let memory = FrameMemory::private(3, 1 << 17).unwrap();
        let mut frames: Vec<_> = memory.held_frames().collect();
        assert_eq!(frames.len(), 3);
        assert_eq!(memory.bytes_mut(&mut frames[2]).len(), 1 << 17);
        assert!(FrameMemory::private(3, 100_000).is_err());
        assert!(FrameMemory::private(0, 4096).is_err());
    }
}
