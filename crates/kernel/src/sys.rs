//! System calls that libbpf-rs does not wrap safely.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Attaches a program to an interface by a link. The kernel detaches the program after the last
/// reference to the link is closed. `attach_type` and `flags` are the kernel's numbers.
pub fn link_create(
    program: BorrowedFd<'_>,
    ifindex: u32,
    attach_type: libbpf_sys::bpf_attach_type,
    flags: u32,
) -> io::Result<OwnedFd> {
    let ifindex = i32::try_from(ifindex).map_err(|_| io::Error::from_raw_os_error(libc::ENODEV))?;
    let options = libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_sys::bpf_link_create_opts>() as _,
        flags,
        ..Default::default()
    };
    // SAFETY: the options are valid for the call and hold no pointers.
    let fd = unsafe {
        libbpf_sys::bpf_link_create(
            program.as_raw_fd(),
            ifindex,
            attach_type,
            &raw const options,
        )
    };
    own_fd(fd)
}

/// Replaces the program of a link atomically.
pub(crate) fn link_update(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: both descriptors are open for the call, which passes no options.
    check_result(unsafe {
        libbpf_sys::bpf_link_update(link.as_raw_fd(), program.as_raw_fd(), std::ptr::null())
    })
}

/// Detaches a link at once, because a pinned link outlives its descriptors.
pub(crate) fn link_detach(link: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the descriptor is open for the call.
    check_result(unsafe { libbpf_sys::bpf_link_detach(link.as_raw_fd()) })
}

/// Pins a map, program or link at a path of a bpffs.
pub(crate) fn pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    // SAFETY: the path is a C string that lives through the call.
    let result = unsafe { libbpf_sys::bpf_obj_pin(object.as_raw_fd(), path.as_ptr()) };
    check_result(result)
}

/// Opens the pinned object at a path.
pub(crate) fn open_pinned(path: &Path) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    // SAFETY: the path is a C string that lives through the call.
    own_fd(unsafe { libbpf_sys::bpf_obj_get(path.as_ptr()) })
}

/// Returns a number that identifies the clock of this agent: a hash (FNV-1a) of the kernel's boot,
/// because nodes of one kernel share its clock, and of the clock's `name`. 0 if the kernel tells no
/// boot.
pub(crate) fn clock_identity(name: Option<&str>) -> u32 {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    if boot.is_empty() {
        return 0;
    }
    let named = boot.iter().chain(name.unwrap_or_default().as_bytes());
    let hash = named.fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    });
    hash.max(1)
}

/// Returns the name of an interface of this network namespace.
pub(crate) fn interface_name(ifindex: u32) -> io::Result<String> {
    let mut name = [0_u8; libc::IF_NAMESIZE];
    // SAFETY: the buffer has the IF_NAMESIZE bytes that the call may write.
    if unsafe { libc::if_indextoname(ifindex, name.as_mut_ptr().cast()) }.is_null() {
        return Err(io::Error::last_os_error());
    }
    let end = name
        .iter()
        .position(|&byte| byte == 0)
        .unwrap_or(name.len());
    Ok(String::from_utf8_lossy(&name[..end]).into_owned())
}

/// Opens and closes an AF_XDP socket, to test the kernel.
pub(crate) fn test_af_xdp() -> io::Result<()> {
    // SAFETY: the call opens a descriptor and accesses no memory.
    own_fd(unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) }).map(drop)
}

/// Waits for an RCU grace period: all programs that run at the call have ended.
pub(crate) fn wait_for_grace_period() -> io::Result<()> {
    /// `MEMBARRIER_CMD_GLOBAL` of `linux/membarrier.h`: the only command that waits for a grace
    /// period.
    const GLOBAL: libc::c_int = 1;
    // SAFETY: the call takes three numbers and touches no memory.
    check_result(unsafe { libc::syscall(libc::SYS_membarrier, GLOBAL, 0, 0) } as i32)
}

/// Input and output of `BPF_PROG_TEST_RUN`.
pub(crate) struct RunBuffers<'a> {
    pub(crate) data_in: &'a [u8],
    /// The call truncates this buffer to the program's output.
    pub(crate) data_out: Option<&'a mut Vec<u8>>,
    pub(crate) context_in: &'a [u8],
    /// The call truncates this buffer to the kernel's output.
    pub(crate) context_out: &'a mut Vec<u8>,
    pub(crate) repeat: u32,
}

/// Runs a program on data. Returns its return value and the mean time of a run, ns.
pub(crate) fn test_run(program: BorrowedFd<'_>, buffers: RunBuffers<'_>) -> io::Result<(u32, u32)> {
    let RunBuffers {
        data_in,
        data_out,
        context_in,
        context_out,
        repeat,
    } = buffers;
    let mut options = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as _,
        data_in: data_in.as_ptr().cast(),
        data_size_in: data_in.len() as u32,
        ctx_in: context_in.as_ptr().cast(),
        ctx_size_in: context_in.len() as u32,
        ctx_out: context_out.as_mut_ptr().cast(),
        ctx_size_out: context_out.len() as u32,
        repeat: i32::try_from(repeat).unwrap_or(i32::MAX),
        ..Default::default()
    };
    if let Some(out) = &data_out {
        options.data_out = out.as_ptr().cast_mut().cast();
        options.data_size_out = out.len() as u32;
    }
    // SAFETY: every pointer comes from a slice or vector that outlives the call, and each length is
    // that of its slice or vector. Both output vectors are borrowed mutably.
    check_result(unsafe {
        libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options)
    })?;
    context_out.truncate(options.ctx_size_out as usize);
    if let Some(out) = data_out {
        out.truncate(options.data_size_out as usize);
    }
    Ok((options.retval, options.duration))
}

/// Reads the next elements of a hash map, at most `max_count`, into `keys` and `values`. Returns
/// the number of elements, and whether more may follow. `cursor` is `None` for the first call.
///
/// # Panics
/// The buffers hold fewer than `max_count` elements.
pub(crate) fn lookup_batch(
    map: BorrowedFd<'_>,
    cursor: &mut Option<[u8; 64]>,
    (max_count, key_size, value_size): (usize, usize, usize),
    keys: &mut [u8],
    values: &mut [u8],
) -> io::Result<(usize, bool)> {
    assert!(keys.len() >= max_count * key_size && values.len() >= max_count * value_size);
    let options = libbpf_sys::bpf_map_batch_opts {
        sz: size_of::<libbpf_sys::bpf_map_batch_opts>() as _,
        ..Default::default()
    };
    let mut next = [0; 64];
    let mut count = u32::try_from(max_count).unwrap_or(u32::MAX);
    let start = cursor
        .as_mut()
        .map_or(std::ptr::null_mut(), |cursor| cursor.as_mut_ptr().cast());
    // SAFETY: the kernel writes at most `max_count` keys and values. The assertion above checks
    // that the buffers have room. Into `next` the kernel writes a number of four bytes, or at most
    // a key.
    let result = unsafe {
        libbpf_sys::bpf_map_lookup_batch(
            map.as_raw_fd(),
            start,
            next.as_mut_ptr().cast(),
            keys.as_mut_ptr().cast(),
            values.as_mut_ptr().cast(),
            &raw mut count,
            &raw const options,
        )
    };
    match check_result(result) {
        Ok(()) => {
            *cursor = Some(next);
            Ok((count as usize, true))
        }
        // The end of the map. The elements read by this call are valid.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok((count as usize, false)),
        Err(error) => Err(error),
    }
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

fn check_result(result: i32) -> io::Result<()> {
    // libbpf returns the negative error number, libc -1; both set errno.
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

fn own_fd(fd: i32) -> io::Result<OwnedFd> {
    check_result(fd)?;
    // SAFETY: the caller has just opened the descriptor, and no other code closes it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
