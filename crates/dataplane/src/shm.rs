//! Shared memory: anonymous files (`memfd`) and their mappings, as atomic integers or raw bytes.

use std::io;
use std::num::NonZeroUsize;
use std::ops::Deref;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap};
use nix::sys::stat::fstat;
use nix::unistd::ftruncate;

/// Makes an anonymous file of `len` zero bytes. Untouched pages use no memory.
pub(crate) fn anonymous_file(name: &str, len: usize) -> io::Result<OwnedFd> {
    let fd = memfd_create(name, MFdFlags::MFD_CLOEXEC)?;
    ftruncate(&fd, len.cast_signed() as i64)?;
    Ok(fd)
}

/// Returns the length of a file, bytes.
pub(crate) fn file_len(fd: BorrowedFd<'_>) -> io::Result<usize> {
    Ok(usize::try_from(fstat(fd)?.st_size).unwrap_or(0))
}

/// A shared, writable mapping, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread. Users of the raw pointer state why
// their accesses are sound.
unsafe impl Send for Mapping {}
// SAFETY: `&Mapping` gives access to a raw pointer and a length only, and never to the bytes.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of `fd` from `offset`. `populate` maps the pages now, so that the first
    /// access does not fault.
    pub(crate) fn new(
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        populate: bool,
    ) -> io::Result<Self> {
        let mut flags = MapFlags::MAP_SHARED;
        flags.set(MapFlags::MAP_POPULATE, populate);
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let length = NonZeroUsize::new(len).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: the call passes no address and no MAP_FIXED. So the kernel chooses an unused
        // range and replaces no existing mapping.
        let start = unsafe { mmap(None, length, access, flags, fd, offset.cast_signed()) }?;
        Ok(Self {
            start: start.cast(),
            len,
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is the range that `mmap` returned, and no reference into it outlives `self`.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// An atomic integer that may lie in shared memory.
///
/// # Safety
/// The type is exactly one atomic integer, for which zero bytes are a valid value.
pub(crate) unsafe trait SharedAtomic {}

// SAFETY: the type is one atomic integer.
unsafe impl SharedAtomic for AtomicU8 {}
// SAFETY: the type is one atomic integer.
unsafe impl SharedAtomic for AtomicU32 {}
// SAFETY: the type is one atomic integer.
unsafe impl SharedAtomic for AtomicU64 {}

/// An array of atomic integers in a shared mapping, which it keeps alive.
#[derive(Debug)]
pub(crate) struct SharedAtomics<T: SharedAtomic> {
    mapping: Arc<Mapping>,
    first: NonNull<T>,
    len: usize,
}

// SAFETY: the value keeps its mapping alive, which is Send and Sync. The content is atomic
// integers.
unsafe impl<T: SharedAtomic> Send for SharedAtomics<T> {}
// SAFETY: threads that share the value access only atomic integers.
unsafe impl<T: SharedAtomic> Sync for SharedAtomics<T> {}

impl<T: SharedAtomic> SharedAtomics<T> {
    /// Returns `len` integers from byte `offset`; `None` if they are misaligned or outside the
    /// mapping.
    pub(crate) fn new(mapping: &Arc<Mapping>, offset: usize, len: usize) -> Option<Self> {
        let end = len
            .checked_mul(size_of::<T>())
            .and_then(|bytes| offset.checked_add(bytes))?;
        let fits = end <= mapping.len && offset.is_multiple_of(align_of::<T>());
        fits.then(|| Self {
            mapping: Arc::clone(mapping),
            // SAFETY: `offset` lies in the mapping, as checked above.
            first: unsafe { mapping.start.add(offset) }.cast(),
            len,
        })
    }

    /// Maps the pages of these integers, so that no access faults later. Without kernel support the
    /// first access to a page faults.
    pub(crate) fn populate(&self) {
        const PAGE: usize = 4096;
        let start = self.first.addr().get() & !(PAGE - 1);
        let end = self.first.addr().get() + self.len * size_of::<T>();
        debug_assert!(start >= self.mapping.start.addr().get());
        // SAFETY: the range lies in the pages of `mapping`, which starts on a page. The call does
        // not change their content.
        unsafe {
            libc::madvise(
                self.first.as_ptr().with_addr(start).cast(),
                end - start,
                libc::MADV_POPULATE_WRITE,
            )
        };
    }
}

impl<T: SharedAtomic> Deref for SharedAtomics<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `new` has checked that the range is aligned and lies in the mapping, which `self`
        // keeps alive.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.len) }
    }
}

/// Prefetches the cache line of `cell`. A prefetch for writing also takes the line from all other
/// cores.
#[inline]
pub(crate) fn prefetch<T: SharedAtomic>(cell: &T, for_writing: bool) {
    #[cfg(target_arch = "x86_64")]
    {
        let at = std::ptr::from_ref(cell);
        if for_writing {
            // The intrinsic becomes a prefetch for reading, unless the compiler targets a newer
            // processor.
            // SAFETY: a prefetch changes no register and no memory. Every x86-64 processor decodes
            // this instruction; older ones execute it as a no-op.
            unsafe {
                std::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
            }
        } else {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: a prefetch changes no register and no memory, and never faults.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (cell, for_writing);
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn two_mappings_of_a_file_share_its_content() {
        let fd = anonymous_file("myelin-test", 8192).unwrap();
        let first = Arc::new(Mapping::new(fd.as_fd(), 0, 8192, false).unwrap());
        let second = Arc::new(Mapping::new(fd.as_fd(), 0, 8192, true).unwrap());
        let writer = SharedAtomics::<AtomicU64>::new(&first, 4096, 2).unwrap();
        let reader = SharedAtomics::<AtomicU64>::new(&second, 4096, 2).unwrap();
        writer.populate();
        writer[1].store(7, Relaxed);
        assert_eq!((reader[0].load(Relaxed), reader[1].load(Relaxed)), (0, 7));
        drop(first);
        assert_eq!(writer[1].load(Relaxed), 7, "cells keep their mapping alive");
    }

    #[test]
    fn ranges_outside_the_mapping_are_refused() {
        let fd = anonymous_file("myelin-test", 4096).unwrap();
        assert_eq!(file_len(fd.as_fd()).unwrap(), 4096);
        let mapping = Arc::new(Mapping::new(fd.as_fd(), 0, 4096, false).unwrap());
        assert!(SharedAtomics::<AtomicU64>::new(&mapping, 4088, 1).is_some());
        assert!(SharedAtomics::<AtomicU64>::new(&mapping, 4088, 2).is_none());
        assert!(
            SharedAtomics::<AtomicU64>::new(&mapping, 4, 1).is_none(),
            "misaligned"
        );
        assert!(SharedAtomics::<AtomicU64>::new(&mapping, 0, usize::MAX).is_none());
        assert!(SharedAtomics::<AtomicU8>::new(&mapping, 4095, 1).is_some());
        assert!(SharedAtomics::<AtomicU8>::new(&mapping, 4096, 1).is_none());
        assert!(SharedAtomics::<AtomicU8>::new(&mapping, usize::MAX, 2).is_none());
    }
}
