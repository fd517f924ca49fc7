//! System calls without a safe wrapper elsewhere: kicks of AF_XDP sockets, socket options, `poll`
//! over a reused array, futexes, and passing descriptors over a Unix socket.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, UnixAddr, recvmsg, sendmsg};
use rustix::fs::Timespec;
use rustix::thread::futex;

/// Most descriptors of one message (the kernel's limit, `SCM_MAX_FD`, is 253).
pub(crate) const MAX_FDS: usize = 253;

/// Calls `setsockopt` with a number.
pub(crate) fn set_option(fd: BorrowedFd<'_>, level: i32, name: i32, value: u32) -> io::Result<()> {
    let len = size_of::<u32>() as libc::socklen_t;
    // SAFETY: `value` outlives the call, and `len` is its size.
    let rc =
        unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), len) };
    check(rc).map(drop)
}

/// Binds a packet socket to an interface. Protocol 0 receives nothing.
pub(crate) fn bind_packet(fd: BorrowedFd<'_>, ifindex: u32, protocol: u16) -> io::Result<()> {
    // SAFETY: the structure is plain data, for which zero is a valid value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as _;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = ifindex.cast_signed();
    let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: `address` outlives the call, and `len` is its size.
    let rc = unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) };
    check(rc).map(drop)
}

/// Returns the number of packets that a packet socket dropped since the last call, because its
/// buffer was full (`PACKET_STATISTICS`).
pub(crate) fn take_packet_drops(fd: BorrowedFd<'_>) -> io::Result<u32> {
    const PACKET_STATISTICS: i32 = 6;
    // struct tpacket_stats: packets, drops.
    let mut counts = [0_u32; 2];
    let mut len = size_of_val(&counts) as libc::socklen_t;
    // SAFETY: `counts` is writable for `len` bytes, and both outlive the call.
    let rc = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_PACKET,
            PACKET_STATISTICS,
            counts.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    check(rc).map(|_| counts[1])
}

/// Returns the network namespace of a socket (`SIOCGSKNS`, linux/sockios.h). Requires
/// CAP_NET_ADMIN.
pub(crate) fn netns_of(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    const SIOCGSKNS: libc::c_ulong = 0x894c;
    // SAFETY: the call passes no pointer.
    let fd = check(unsafe { libc::ioctl(socket.as_raw_fd(), SIOCGSKNS) })?;
    // SAFETY: the kernel has just returned this descriptor, so it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Calls `f` in a network namespace, on a new thread.
pub(crate) fn in_netns<T: Send>(
    netns: BorrowedFd<'_>,
    f: impl FnOnce() -> T + Send,
) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            nix::sched::setns(netns, nix::sched::CloneFlags::CLONE_NEWNET)?;
            Ok(f())
        });
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Tells the kernel that descriptors wait in the TX ring. In copy mode the kernel transmits the
/// frames before this function returns.
#[inline]
pub(crate) fn kick_transmit(fd: RawFd) -> io::Result<()> {
    const NONE: usize = 0;
    // The C library's `sendto` is a cancellation point. In a process with several threads it costs
    // two more atomic operations.
    // SAFETY: the call passes a null buffer of length zero and no address.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_sendto,
            fd,
            NONE,
            NONE,
            libc::MSG_DONTWAIT,
            NONE,
            NONE,
        )
    };
    if rc < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Tells the driver that the fill ring has frames again. With busy polling it also runs the
/// device's NAPI poll in this thread.
#[inline]
pub(crate) fn kick_receive(fd: RawFd) {
    // Ignore errors: a link that is down shows in the rings and in `poll`.
    // SAFETY: the call passes a null buffer of length zero and no address.
    unsafe {
        libc::recvfrom(
            fd,
            ptr::null_mut(),
            0,
            libc::MSG_DONTWAIT,
            ptr::null_mut(),
            ptr::null_mut(),
        );
    }
}

/// Waits until another process changes `word` from `seen` and wakes the waiters, at most for
/// `longest`. May return early.
pub(crate) fn wait_for_change(word: &AtomicU32, seen: u32, longest: Duration) {
    let longest = Timespec {
        tv_sec: longest.as_secs().cast_signed(),
        tv_nsec: longest.subsec_nanos().into(),
    };
    // Another value, a signal and the end of the time have the same consequence: look again.
    let _ = futex::wait(word, futex::Flags::empty(), seen, Some(&longest));
}

/// Wakes a process that waits for a change of `word`.
pub(crate) fn wake_waiter(word: &AtomicU32) {
    // The call fails only for a word that is not in memory.
    let _ = futex::wake(word, futex::Flags::empty(), 1);
}

/// Calls `ppoll(2)`. After an interruption it returns 0. Without a timeout it waits forever.
pub(crate) fn poll(fds: &mut [libc::pollfd], timeout: Option<Duration>) -> io::Result<usize> {
    let timeout = timeout.map(|timeout| libc::timespec {
        tv_sec: timeout.as_secs().cast_signed(),
        tv_nsec: timeout.subsec_nanos().into(),
    });
    let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: `fds` is writable for its length, the timeout is null or outlives the call, and the
    // signal mask is null.
    let rc = unsafe {
        let count = fds.len() as libc::nfds_t;
        libc::ppoll(fds.as_mut_ptr(), count, timeout, ptr::null())
    };
    match check(rc) {
        Ok(ready) => Ok(ready as usize),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
        Err(error) => Err(error),
    }
}

/// Sends one record with descriptors over a Unix `SOCK_SEQPACKET` socket.
pub(crate) fn send_with_fds(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let raw: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let control = [ControlMessage::ScmRights(&raw)];
    let control = if raw.is_empty() {
        &control[..0]
    } else {
        &control[..]
    };
    let sent = loop {
        match sendmsg::<UnixAddr>(
            socket.as_raw_fd(),
            &[IoSlice::new(bytes)],
            control,
            MsgFlags::MSG_NOSIGNAL,
            None,
        ) {
            Err(Errno::EINTR) => {}
            sent => break sent?,
        }
    };
    if sent == bytes.len() {
        Ok(())
    } else {
        Err(io::ErrorKind::WriteZero.into())
    }
}

/// Receives one record and its descriptors. `Ok((0, _))` means that the peer has closed its end.
pub(crate) fn receive_with_fds(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = nix::cmsg_space!([RawFd; MAX_FDS]);
    let mut slices = [IoSliceMut::new(bytes)];
    let message = loop {
        match recvmsg::<UnixAddr>(
            socket.as_raw_fd(),
            &mut slices,
            Some(&mut space),
            MsgFlags::MSG_CMSG_CLOEXEC,
        ) {
            // With a receive timeout the kernel does not restart the call after a signal or a stop.
            Err(Errno::EINTR) => {}
            message => break message?,
        }
    };
    let mut fds = Vec::new();
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(raw) = control {
            for fd in raw {
                // SAFETY: the kernel installed this descriptor in this process's table for this
                // message, so it has no other owner.
                fds.push(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
    }
    if message
        .flags
        .intersects(MsgFlags::MSG_TRUNC | MsgFlags::MSG_CTRUNC)
    {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the record or its control message was truncated",
        ));
    }
    Ok((message.bytes, fds))
}

fn check(rc: i32) -> io::Result<i32> {
    if rc < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(rc)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::thread::JoinHandleExt;
    use std::time::Duration;

    use nix::sys::memfd::{MFdFlags, memfd_create};
    use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, setsockopt, socketpair, sockopt};
    use nix::sys::time::TimeVal;

    use super::*;

    #[test]
    fn records_and_descriptors_arrive_complete() {
        let (a, b) = socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC,
        )
        .unwrap();
        let file = memfd_create("myelin-test", MFdFlags::MFD_CLOEXEC).unwrap();
        send_with_fds(a.as_fd(), b"first", &[file.as_fd(), file.as_fd()]).unwrap();
        send_with_fds(a.as_fd(), b"second", &[]).unwrap();
        let mut buffer = [0; 32];
        let (len, fds) = receive_with_fds(b.as_fd(), &mut buffer).unwrap();
        assert_eq!((&buffer[..len], fds.len()), (&b"first"[..], 2));
        let (len, fds) = receive_with_fds(b.as_fd(), &mut buffer).unwrap();
        assert_eq!((&buffer[..len], fds.len()), (&b"second"[..], 0));
        send_with_fds(a.as_fd(), b"too long for four bytes", &[]).unwrap();
        let error = receive_with_fds(b.as_fd(), &mut buffer[..4]).unwrap_err();
        assert!(error.to_string().contains("truncated"), "{error}");
        drop(a);
        assert_eq!(receive_with_fds(b.as_fd(), &mut buffer).unwrap().0, 0);
    }

    #[test]
    fn a_signal_does_not_interrupt_the_wait_for_a_record() {
        extern "C" fn nothing(_: libc::c_int) {}
        let (a, b) = socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC,
        )
        .unwrap();
        setsockopt(&b, sockopt::ReceiveTimeout, &TimeVal::new(10, 0)).unwrap();
        let handler = SigHandler::Handler(nothing);
        let action = SigAction::new(handler, SaFlags::SA_RESTART, SigSet::empty());
        // SAFETY: the handler does nothing, and no other test uses this signal.
        unsafe { sigaction(Signal::SIGUSR1, &action) }.unwrap();
        let reader = std::thread::spawn(move || receive_with_fds(b.as_fd(), &mut [0; 8]));
        for _ in 0..5 {
            std::thread::sleep(Duration::from_millis(5));
            // SAFETY: the thread is joined below, so its identifier is valid.
            unsafe { libc::pthread_kill(reader.as_pthread_t(), libc::SIGUSR1) };
        }
        send_with_fds(a.as_fd(), b"x", &[]).unwrap();
        assert_eq!(reader.join().unwrap().unwrap().0, 1);
    }

    #[test]
    fn poll_sees_a_readable_descriptor_and_times_out_on_a_quiet_one() {
        let (a, b) = socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC,
        )
        .unwrap();
        let mut fds = [libc::pollfd {
            fd: b.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        }];
        assert_eq!(poll(&mut fds, Some(Duration::ZERO)).unwrap(), 0);
        send_with_fds(a.as_fd(), b"x", &[]).unwrap();
        assert_eq!(poll(&mut fds, Some(Duration::ZERO)).unwrap(), 1);
    }
}
