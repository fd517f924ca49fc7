//! Memory-mapped eBPF arrays: reads counters and writes tables without a system call.

use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, ProtFlags, mmap};

use crate::Error;

/// The elements of an array map with `BPF_F_MMAPABLE`, in memory shared with the kernel. An element
/// is a sequence of 64-bit words, because the kernel pads elements to a multiple of eight bytes.
#[derive(Debug)]
pub(crate) struct MappedArray {
    start: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: all code accesses the memory, which is shared with the kernel, through atomics only.
unsafe impl Send for MappedArray {}
// SAFETY: as for `Send`.
unsafe impl Sync for MappedArray {}

impl MappedArray {
    /// Maps the first `bytes` bytes of `map`.
    pub(crate) fn new(
        map: BorrowedFd<'_>,
        name: &'static str,
        bytes: usize,
    ) -> Result<Self, Error> {
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let length = NonZeroUsize::new(bytes).ok_or(Errno::EINVAL);
        // SAFETY: the kernel chooses the address of the new mapping, which overlaps no memory of
        // this process.
        let start = length
            .and_then(|length| unsafe { mmap(None, length, access, MapFlags::MAP_SHARED, map, 0) })
            .map_err(|errno| Error::Map {
                map: name,
                action: "map into memory",
                cause: errno.into(),
            })?;
        Ok(Self {
            start: start.cast(),
            words: bytes / size_of::<u64>(),
        })
    }

    /// Returns all words.
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is page-aligned, has `words` words, and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }

    /// Copies `bytes` to byte offset `at`, a multiple of eight, word by word.
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        let words = &self.words()[at / 8..];
        let (whole, rest) = bytes.as_chunks::<8>();
        for (word, value) in words.iter().zip(whole) {
            word.store(u64::from_ne_bytes(*value), Ordering::Relaxed);
        }
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            words[whole.len()].store(u64::from_ne_bytes(last), Ordering::Relaxed);
        }
    }
}

impl Drop for MappedArray {
    fn drop(&mut self) {
        // SAFETY: start and length are those of the mapping, and no reference into the mapping
        // outlives `self`.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.words * size_of::<u64>()) };
    }
}
