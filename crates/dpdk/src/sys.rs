//! The interface to C: the shim's functions and structures, and safe types for them. Only this
//! module contains `unsafe`.
//!
//! The types are safe for these reasons. A process has one environment and one pool, made once and
//! never freed. A buffer belongs either to the pool ([`FrameMemory`] lists it as lent) or to a
//! [`Frame`](myelin_dataplane::umem::Frame) token.

use std::ffi::{CStr, CString, c_char, c_int};
use std::io;
use std::ptr::NonNull;

use myelin_dataplane::port::Buffer;
use myelin_dataplane::umem::{Borrower, Frame, FrameMemory};

/// Maximum number of packets in one burst, as in the shim.
pub(crate) const MAX_BURST: usize = 256;
/// Maximum number of bytes of DPDK's log in an error message.
const LOG_BYTES: usize = 2048;

/// A packet in a buffer of the pool.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Descriptor {
    /// Offset of the buffer from the lowest buffer of the pool, bytes.
    buffer: u64,
    /// Offset of the packet in the buffer, bytes.
    offset: u32,
    /// Length of the packet, bytes.
    len: u32,
}

#[repr(C)]
struct PoolInfo {
    start: *mut u8,
    len: u64,
    buffer_bytes: u32,
    count: u32,
}

/// Properties of an open port.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct PortInfo {
    port: u16,
    receive_ring: u16,
}

/// The functions that the shim exports.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Shim {
    start: unsafe extern "C" fn(c_int, *mut *mut c_char, *mut c_char, usize) -> c_int,
    stop: unsafe extern "C" fn(),
    make_pool: unsafe extern "C" fn(u32, u32, u32, *mut PoolInfo) -> c_int,
    list_buffers: unsafe extern "C" fn(*mut u64, u32),
    probe: unsafe extern "C" fn(*const c_char, *mut c_char, usize) -> c_int,
    open_port: unsafe extern "C" fn(*const c_char, u16, *mut PortInfo, *mut c_char, usize) -> c_int,
    close_port: unsafe extern "C" fn(u16),
    receive: unsafe extern "C" fn(u16, *mut Descriptor, u16, *mut u64) -> u16,
    transmit: unsafe extern "C" fn(u16, *const Descriptor, u16) -> u16,
    take_buffers: unsafe extern "C" fn(*mut u64, u16) -> bool,
    free_buffers: unsafe extern "C" fn(*const u64, u16),
    count_received: unsafe extern "C" fn(u16, u32) -> u32,
    version: unsafe extern "C" fn() -> *const c_char,
}

/// The error of a step that DPDK refused, with the last lines of DPDK's log.
#[derive(Debug)]
pub(crate) struct ShimError {
    pub(crate) cause: io::Error,
    pub(crate) log: String,
}

impl Shim {
    /// Loads the shim at `path`, and DPDK with it. Never unloads the shim, because DPDK's threads
    /// run its code. Returns the loader's error.
    pub(crate) fn load(path: &CStr) -> Result<&'static Self, String> {
        let failed = || {
            // SAFETY: `dlerror` returns a string or null. The string is valid until this thread
            // calls a `dl` function again; the block copies it before that.
            let text = unsafe {
                let text = libc::dlerror();
                (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
            };
            text.unwrap_or_else(|| "the loader reported no reason".into())
        };
        // SAFETY: `path` is a terminated string. The object is Myelin's shim; its only initialisers
        // are those of DPDK's libraries.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(failed());
        }
        // SAFETY: the handle is open, and the name is a terminated string.
        let symbol = unsafe { libc::dlsym(handle, c"myelin_dpdk".as_ptr()) };
        // SAFETY: `symbol` is null or the address of the shim's constant. The build script compiles
        // that constant with this crate, in this layout. The handle is never closed.
        unsafe { symbol.cast::<Self>().as_ref() }.ok_or_else(failed)
    }

    /// Returns DPDK's version string.
    pub(crate) fn version(&self) -> String {
        // SAFETY: `rte_version` returns a terminated string that is never freed.
        unsafe { CStr::from_ptr((self.version)()) }
            .to_string_lossy()
            .into_owned()
    }

    /// Starts the environment. Call this method once per process.
    pub(crate) fn start(&self, arguments: &[CString]) -> Result<(), ShimError> {
        let mut pointers: Vec<*mut c_char> = arguments
            .iter()
            .map(|argument| argument.as_ptr().cast_mut())
            .collect();
        let count = c_int::try_from(pointers.len()).unwrap_or(c_int::MAX);
        pointers.push(std::ptr::null_mut());
        let mut log = vec![0_u8; LOG_BYTES];
        // SAFETY: `pointers` is a null-terminated list of `count` terminated strings. DPDK reorders
        // the list and does not write to the strings. `log` has `LOG_BYTES` bytes.
        let result = unsafe {
            (self.start)(
                count,
                pointers.as_mut_ptr(),
                log.as_mut_ptr().cast(),
                LOG_BYTES,
            )
        };
        check(result, &log)
    }

    /// Stops the environment. Call no other function of the shim afterwards.
    pub(crate) fn stop(&self) {
        // SAFETY: the environment runs, and the caller has closed all ports.
        unsafe { (self.stop)() }
    }

    /// Makes the pool of buffers. Returns the buffers as frames, all lent to the pool. Call this
    /// method once per process.
    pub(crate) fn make_pool(
        &self,
        count: u32,
        cache: u32,
        buffer_bytes: u32,
    ) -> Result<Result<FrameMemory, myelin_dataplane::Error>, ShimError> {
        let mut info = PoolInfo {
            start: std::ptr::null_mut(),
            len: 0,
            buffer_bytes: 0,
            count: 0,
        };
        // SAFETY: the environment runs. `info` has the layout that the shim writes, and outlives
        // the call.
        let result = unsafe { (self.make_pool)(count, cache, buffer_bytes, &raw mut info) };
        check(result, &[])?;
        let start = NonNull::new(info.start).ok_or_else(|| ShimError {
            cause: io::ErrorKind::InvalidData.into(),
            log: "the pool contains no buffer".into(),
        })?;
        let mut buffers = vec![0_u64; info.count as usize];
        // SAFETY: the pool exists, and the array has room for `info.count` numbers.
        unsafe { (self.list_buffers)(buffers.as_mut_ptr(), info.count) };
        let (len, room) = (info.len, info.buffer_bytes);
        // SAFETY: the `len` bytes from the lowest buffer to the end of the highest one stay mapped
        // until the process ends. DPDK does not touch a buffer that `take_buffers` or `receive`
        // returned, until `free_buffers` or `transmit` gets it back.
        Ok(unsafe { FrameMemory::over_external_memory(start, len, room, &buffers) })
    }

    /// Makes DPDK find a device and start its driver.
    pub(crate) fn probe(&self, device: &CStr) -> Result<(), ShimError> {
        let mut log = vec![0_u8; LOG_BYTES];
        // SAFETY: `device` is a terminated string, and `log` has `LOG_BYTES` bytes.
        let result = unsafe { (self.probe)(device.as_ptr(), log.as_mut_ptr().cast(), LOG_BYTES) };
        check(result, &log)
    }

    /// Opens the device of that name with one queue per direction.
    pub(crate) fn open_port(&'static self, name: &CStr, ring: u16) -> Result<Device, ShimError> {
        let mut log = vec![0_u8; LOG_BYTES];
        let mut info = PortInfo {
            port: 0,
            receive_ring: 0,
        };
        // SAFETY: `name` is a terminated string, `info` has the layout that the shim writes, and
        // `log` has `LOG_BYTES` bytes. The pool exists.
        let result = unsafe {
            (self.open_port)(
                name.as_ptr(),
                ring,
                &raw mut info,
                log.as_mut_ptr().cast(),
                LOG_BYTES,
            )
        };
        check(result, &log)?;
        Ok(Device {
            shim: self,
            info,
            oversized: 0,
        })
    }

    /// Takes `count` free frames from the pool, at most [`MAX_BURST`]. Takes none if the pool has
    /// fewer.
    pub(crate) fn take_frames(
        &self,
        memory: &FrameMemory,
        count: usize,
        mut each: impl FnMut(Frame),
    ) {
        let mut buffers = [0_u64; MAX_BURST];
        let count = count.min(MAX_BURST);
        // SAFETY: the pool exists, and the array has room for `count` numbers.
        let is_taken = unsafe { (self.take_buffers)(buffers.as_mut_ptr(), count as u16) };
        if is_taken {
            buffers[..count]
                .iter()
                .filter_map(|&buffer| memory.take_back(buffer, Borrower::LIBRARY))
                .for_each(|(frame, _)| each(frame));
        }
    }

    /// Returns a frame to the pool. `memory` is the pool's memory, because a process with DPDK
    /// ports has no other memory.
    pub(crate) fn free_frame(&self, memory: &FrameMemory, frame: Frame) {
        let buffer = memory.lend(frame, 0, Borrower::LIBRARY);
        // SAFETY: `lend` has consumed the frame token, so no other code accesses the buffer.
        unsafe { (self.free_buffers)(&raw const buffer, 1) };
    }
}

fn check(result: c_int, log: &[u8]) -> Result<(), ShimError> {
    if result >= 0 {
        return Ok(());
    }
    let log = CStr::from_bytes_until_nul(log).unwrap_or_default();
    Err(ShimError {
        cause: io::Error::from_raw_os_error(-result),
        log: log.to_string_lossy().into_owned(),
    })
}

/// An open DPDK port. Dropping it closes the port.
#[derive(Debug)]
pub(crate) struct Device {
    shim: &'static Shim,
    info: PortInfo,
    oversized: u64,
}

impl Device {
    /// Receives packets into `into`, at most as many as fit. Returns the number of packets. Claim
    /// each packet with [`Descriptor::claim`].
    #[inline]
    pub(crate) fn receive(&mut self, into: &mut [Descriptor]) -> usize {
        let limit = into.len().min(MAX_BURST) as u16;
        // SAFETY: the port is open. `into` has room for `limit` descriptors. Only one thread drives
        // a port.
        unsafe {
            (self.shim.receive)(
                self.info.port,
                into.as_mut_ptr(),
                limit,
                &raw mut self.oversized,
            )
        }
        .into()
    }

    /// Returns the number of packets so far that did not fit into one buffer.
    pub(crate) fn count_oversized(&self) -> u64 {
        self.oversized
    }

    /// Returns the number of packets in the receive ring, or the ring's size if the driver does not
    /// report it.
    pub(crate) fn count_received(&self) -> u32 {
        // SAFETY: the port is open.
        unsafe { (self.shim.count_received)(self.info.port, self.info.receive_ring.into()) }
    }

    /// Makes a queue of at most `capacity` packets for transmission at this port.
    pub(crate) fn transmit_queue(&self, capacity: usize) -> TransmitQueue {
        TransmitQueue {
            shim: self.shim,
            port: self.info.port,
            packets: Vec::with_capacity(capacity),
            capacity,
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: the port is open, and no thread drives it any more.
        unsafe { (self.shim.close_port)(self.info.port) }
    }
}

impl Descriptor {
    /// Takes the packet's frame back from DPDK and returns the packet. Returns `None` if the frame
    /// is not lent to DPDK, so that no frame has two holders.
    #[inline]
    pub(crate) fn claim(self, memory: &FrameMemory) -> Option<Buffer> {
        let (frame, _) = memory.take_back(self.buffer, Borrower::LIBRARY)?;
        Some(Buffer {
            frame,
            offset: self.offset,
            len: self.len,
        })
    }
}

/// Packets that wait for transmission at a port.
#[derive(Debug)]
pub(crate) struct TransmitQueue {
    shim: &'static Shim,
    port: u16,
    packets: Vec<Descriptor>,
    capacity: usize,
}

impl TransmitQueue {
    /// Queues a packet. Returns the packet if the queue is full. `memory` is the pool's memory,
    /// because a process with DPDK ports has no other memory.
    #[inline]
    pub(crate) fn push(&mut self, memory: &FrameMemory, buffer: Buffer) -> Result<(), Buffer> {
        if self.packets.len() == self.capacity {
            return Err(buffer);
        }
        self.packets.push(Descriptor {
            buffer: memory.lend(buffer.frame, 0, Borrower::LIBRARY),
            offset: buffer.offset,
            len: buffer.len,
        });
        Ok(())
    }

    /// Transmits as many packets as the port accepts. Returns the number of remaining packets.
    #[inline]
    pub(crate) fn send(&mut self) -> usize {
        let mut sent = 0;
        while sent < self.packets.len() {
            let rest = &self.packets[sent..];
            let burst = rest.len().min(MAX_BURST) as u16;
            // SAFETY: `push` consumed the frame token of each of the `burst` descriptors. So no
            // other code accesses the buffer, and the packet lies in it.
            let taken = unsafe { (self.shim.transmit)(self.port, rest.as_ptr(), burst) };
            sent += usize::from(taken);
            if taken < burst {
                break;
            }
        }
        if sent == self.packets.len() {
            self.packets.clear();
        } else {
            self.packets.drain(..sent);
        }
        self.packets.len()
    }

    /// Returns the buffers of the waiting packets to the pool.
    pub(crate) fn discard(&mut self) {
        for packet in self.packets.drain(..) {
            // SAFETY: `push` consumed the frame token, so no other code accesses the buffer.
            // `drain` removes the descriptor, so the buffer is freed once.
            unsafe { (self.shim.free_buffers)(&raw const packet.buffer, 1) };
        }
    }
}
