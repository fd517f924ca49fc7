//! AF_XDP sockets. The agent opens and binds them; the worker receives and transmits.
//!
//! A socket loads no XDP program. The front door's program redirects packets into the socket
//! through a socket map. The first socket of a [`Umem`] registers the memory. Later sockets, on
//! other queues and devices, share it (`XDP_SHARED_UMEM`) and have separate fill and completion
//! rings. All sharing sockets use the first socket's mode, copy or zero-copy. If the second device
//! does not support that mode, its socket registers the same memory again, with another mode.
//!
//! The worker maps the rings. Since Linux 6.4 it can map the rings of a bound socket. So a
//! restarted worker continues with the sockets and rings of its predecessor. Before Linux 6.4 the
//! agent binds after the worker has mapped the rings, and a restarted worker gets new sockets
//! ([`Successor`]). Packets in the old rings are then lost.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::{
    set_xdp_rx_ring_size, set_xdp_tx_ring_size, set_xdp_umem_completion_ring_size,
    set_xdp_umem_fill_ring_size, set_xdp_umem_reg, xdp_options,
};
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags as Flags, SocketAddrXdpWithSharedUmem, XdpOptionsFlags,
    XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::sys;
use crate::umem::Umem;

mod rings;

pub(crate) use rings::{ReceiveObserver, Rings};

/// Default number of entries of each ring.
pub const RING_SIZE: u32 = 1024;

/// Most frames that one `sendto` transmits in copy mode by default.
const TRANSMIT_BUDGET: u32 = 32;
/// Exists since Linux 6.17. Older kernels keep their budget of 32 and need more kicks.
const XDP_MAX_TX_SKB_BUDGET: i32 = 9;
/// Longest time that a queue stays busy after its socket is closed.
const QUEUE_RELEASE: Duration = Duration::from_secs(2);
const SO_PREFER_BUSY_POLL: i32 = 69;
const SO_BUSY_POLL_BUDGET: i32 = 70;

/// The role of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// Receives, and may transmit: a queue of a port, or the far end of an internal link.
    Ingress,
    /// Only transmits.
    Egress,
}

/// Busy polling: the worker's system calls poll the device's receive queue, so that no interrupt is
/// needed (`Documentation/networking/napi.rst`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BusyPoll {
    /// Longest poll in a system call (`SO_BUSY_POLL`, whole microseconds).
    pub time: Duration,
    /// Most packets of a poll (`SO_BUSY_POLL_BUDGET`).
    pub budget: u16,
}

/// The configuration of a socket. The socket uses zero-copy if the driver supports it. Otherwise
/// the kernel copies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct XskConfig {
    /// The interface's name, for messages.
    pub interface: String,
    /// The interface's index.
    pub ifindex: u32,
    /// The queue of the interface, from 0.
    pub queue: u32,
    /// The role of the socket.
    pub role: Role,
    /// Number of entries of each ring, a power of two.
    pub ring_size: u32,
    /// Busy polling, if enabled.
    pub busy_poll: Option<BusyPoll>,
    /// Binds after the worker has mapped the rings, as required before Linux 6.4.
    pub bind_late: bool,
}

impl XskConfig {
    /// Returns a configuration with the default ring size and without busy polling.
    pub fn new(interface: impl Into<String>, ifindex: u32, queue: u32, role: Role) -> Self {
        Self {
            interface: interface.into(),
            ifindex,
            queue,
            role,
            ring_size: RING_SIZE,
            busy_poll: None,
            bind_late: false,
        }
    }

    /// Returns the error of a step of opening the socket.
    fn failed<E: Into<io::Error>>(&self, step: &'static str) -> impl FnOnce(E) -> Error {
        move |source| Error::Socket {
            interface: self.interface.clone(),
            queue: self.queue,
            step,
            source: source.into(),
        }
    }
}

/// The information about a socket that the worker needs besides its descriptor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct XskInfo {
    pub(crate) config: XskConfig,
    /// Whether the driver accesses the UMEM directly. Otherwise the kernel copies.
    pub(crate) zero_copy: bool,
}

/// Redirects packets to a socket: puts the socket into a socket map.
pub type SocketRedirect = Arc<dyn Fn(BorrowedFd<'_>) -> Result<(), String> + Send + Sync>;

/// An AF_XDP socket. The agent has bound it, or binds it after the worker has mapped its rings.
pub struct Xsk {
    /// Shared with [`WorkerFacts`](crate::WorkerFacts), which reads the kernel's counters.
    fd: Arc<OwnedFd>,
    info: XskInfo,
    /// Whether the socket shares the UMEM of another socket.
    shares_umem: bool,
    /// The socket's network namespace, if the socket's rings cannot be mapped again. A restarted
    /// worker then needs a successor in that namespace.
    netns: Option<OwnedFd>,
    pending_bind: Option<PendingBind>,
    redirect: Option<SocketRedirect>,
}

/// The arguments of a later bind.
#[derive(Debug)]
struct PendingBind {
    address: SocketAddrXdp,
    /// The socket whose UMEM the new socket shares.
    shared: Option<Arc<OwnedFd>>,
}

/// The settings of a closed socket, to open a socket that replaces it.
pub(crate) struct Successor {
    info: XskInfo,
    shares_umem: bool,
    netns: OwnedFd,
    redirect: Option<SocketRedirect>,
}

impl Xsk {
    /// Opens a socket on one queue of an interface. Binds it now or, if the kernel requires that,
    /// after the worker has mapped its rings. `shared` is an earlier socket of the same [`Umem`].
    pub fn bind(umem: &Umem, config: &XskConfig, shared: Option<&Xsk>) -> Result<Self, Error> {
        if !config.ring_size.is_power_of_two() {
            return Err(Error::Parameter {
                what: "ring size",
                value: config.ring_size.into(),
                expected: "a power of two",
            });
        }
        let socket = Self::bind_now(umem, config, shared)?;
        if !config.bind_late && can_map_bound_rings(&socket)? {
            return Ok(socket);
        }
        // The bound socket shows whether the device can share memory, and which mode it supports.
        let (shares_umem, zero_copy) = (socket.shares_umem, socket.info.zero_copy);
        drop(socket);
        Self::open(
            config,
            UmemSource::of(umem, shared, shares_umem),
            Some(zero_copy),
        )
    }

    /// Opens a socket and binds it at once.
    fn bind_now(umem: &Umem, config: &XskConfig, shared: Option<&Self>) -> Result<Self, Error> {
        if let Some(first) = shared
            && let Ok(socket) = Self::open(config, UmemSource::Shared(first), None)
        {
            return Ok(socket);
        }
        Self::open(config, UmemSource::Registered(umem), None)
    }

    /// Opens a socket. `later` postpones the bind and selects the mode: `Some(true)` for zero-copy.
    fn open(
        config: &XskConfig,
        memory: UmemSource<'_>,
        later: Option<bool>,
    ) -> Result<Self, Error> {
        let failed = |step| config.failed(step);
        let (cloexec, size) = (SocketFlags::CLOEXEC, config.ring_size);
        let fd = socket_with(AddressFamily::XDP, SocketType::RAW, cloexec, None);
        let fd = fd.map_err(failed("open"))?;
        if let UmemSource::Registered(umem) = memory {
            register(&fd, umem, failed("register the UMEM"))?;
        }
        set_xdp_umem_fill_ring_size(&fd, size).map_err(failed("make the fill ring"))?;
        set_xdp_umem_completion_ring_size(&fd, size).map_err(failed("make the completion ring"))?;
        set_xdp_tx_ring_size(&fd, size).map_err(failed("make the TX ring"))?;
        if config.role == Role::Ingress {
            set_xdp_rx_ring_size(&fd, size).map_err(failed("make the RX ring"))?;
        }
        if size > TRANSMIT_BUDGET {
            // With this option one kick sends a batch. Older kernels refuse it and need several
            // kicks.
            let _ = sys::set_option(fd.as_fd(), libc::SOL_XDP, XDP_MAX_TX_SKB_BUDGET, size);
        }
        if let Some(busy_poll) = config.busy_poll {
            set_busy_poll(fd.as_fd(), busy_poll).map_err(config.failed("set busy polling"))?;
        }
        let (flags, shared) = match (memory, later) {
            // The socket that registered the memory has set the other flags.
            (UmemSource::Shared(first), _) => (Flags::XDP_SHARED_UMEM, Some(Arc::clone(&first.fd))),
            (_, None) => (Flags::XDP_USE_NEED_WAKEUP, None),
            (_, Some(true)) => (Flags::XDP_USE_NEED_WAKEUP | Flags::XDP_ZEROCOPY, None),
            (_, Some(false)) => (Flags::XDP_USE_NEED_WAKEUP | Flags::XDP_COPY, None),
        };
        let netns = later
            .map(|_| sys::netns_of(fd.as_fd()))
            .transpose()
            .map_err(config.failed("find the network namespace of"))?;
        let mut socket = Self {
            fd: Arc::new(fd),
            info: XskInfo {
                config: config.clone(),
                zero_copy: later.unwrap_or_default(),
            },
            shares_umem: shared.is_some(),
            netns,
            pending_bind: Some(PendingBind {
                address: SocketAddrXdp::new(flags, config.ifindex, config.queue),
                shared,
            }),
            redirect: None,
        };
        if later.is_none() {
            socket.bind_if_unbound()?;
        }
        Ok(socket)
    }

    /// Binds the socket if it is not bound. Call this method after the rings are mapped.
    pub(crate) fn bind_if_unbound(&mut self) -> Result<(), Error> {
        let Some(pending_bind) = &self.pending_bind else {
            return Ok(());
        };
        let config = &self.info.config;
        bind_with_retries(&self.fd, pending_bind).map_err(config.failed("bind"))?;
        self.pending_bind = None;
        let options = xdp_options(&self.fd).map_err(config.failed("read the options"))?;
        self.info.zero_copy = options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY);
        Ok(())
    }

    /// Sets the function that redirects packets to the socket. The handle calls it when the worker
    /// has the socket, and again for each successor.
    #[must_use]
    pub fn with_redirect(mut self, redirect: SocketRedirect) -> Self {
        self.redirect = Some(redirect);
        self
    }

    /// Redirects packets to the socket, if it has a redirect.
    pub(crate) fn redirect(&self) -> Result<(), Error> {
        let Some(redirect) = &self.redirect else {
            return Ok(());
        };
        let failed = self.info.config.failed("redirect packets to it");
        redirect(self.fd()).map_err(|message| failed(io::Error::other(message)))
    }

    /// Returns whether the socket's rings cannot be mapped again.
    pub(crate) fn needs_successor(&self) -> bool {
        self.netns.is_some()
    }

    /// Closes the socket. Returns the settings of a successor if its rings cannot be mapped again.
    pub(crate) fn into_successor(self) -> Option<Successor> {
        Some(Successor {
            info: self.info,
            shares_umem: self.shares_umem,
            netns: self.netns?,
            redirect: self.redirect,
        })
    }

    /// Returns the socket's descriptor, for a socket map.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Returns the shared descriptor, for [`WorkerFacts`](crate::WorkerFacts).
    pub(crate) fn shared_fd(&self) -> &Arc<OwnedFd> {
        &self.fd
    }

    pub(crate) fn info(&self) -> &XskInfo {
        &self.info
    }

    /// Returns the addresses of all frames in this socket's rings. The list is complete only while
    /// no packets move.
    pub fn frames_in_rings(&self) -> Result<Vec<u64>, Error> {
        let rings = Rings::map(self.fd(), &self.info.config)?;
        let mut addresses: Vec<u64> = rings.transmit.entries().map(|d| d.address).collect();
        addresses.extend(rings.completion.entries());
        if let Some((fill, receive)) = &rings.receive {
            addresses.extend(fill.entries());
            addresses.extend(receive.entries().map(|d| d.address));
        }
        Ok(addresses)
    }
}

impl std::fmt::Debug for Xsk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Xsk")
            .field("fd", &self.fd)
            .field("info", &self.info)
            .finish_non_exhaustive()
    }
}

impl Successor {
    /// Opens the socket. Bind it after its worker has mapped its rings.
    pub(crate) fn open(&self, umem: &Umem, shared: Option<&Xsk>) -> Result<Xsk, Error> {
        let memory = UmemSource::of(umem, shared, self.shares_umem);
        let XskInfo { config, zero_copy } = &self.info;
        let open = || Xsk::open(config, memory, Some(*zero_copy));
        let socket = sys::in_netns(self.netns.as_fd(), open)
            .map_err(config.failed("enter the network namespace of"))??;
        Ok(Xsk {
            redirect: self.redirect.clone(),
            ..socket
        })
    }
}

impl std::fmt::Debug for Successor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Successor")
            .field("info", &self.info)
            .finish_non_exhaustive()
    }
}

/// Returns whether the kernel can map the rings of a bound socket (since Linux 6.4). Tests this
/// with the first socket.
fn can_map_bound_rings(socket: &Xsk) -> Result<bool, Error> {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    if let Some(known) = KNOWN.get() {
        return Ok(*known);
    }
    let can_map = match Rings::map(socket.fd(), &socket.info.config) {
        Ok(_) => true,
        Err(Error::Socket { source, .. }) if source.kind() == io::ErrorKind::ResourceBusy => false,
        Err(error) => return Err(error),
    };
    Ok(*KNOWN.get_or_init(|| can_map))
}

/// The source of a socket's UMEM.
#[derive(Clone, Copy)]
enum UmemSource<'a> {
    Registered(&'a Umem),
    Shared(&'a Xsk),
}

impl<'a> UmemSource<'a> {
    fn of(umem: &'a Umem, shared: Option<&'a Xsk>, shares_umem: bool) -> Self {
        match shared {
            Some(first) if shares_umem => Self::Shared(first),
            _ => Self::Registered(umem),
        }
    }
}

fn register(fd: &OwnedFd, umem: &Umem, failed: impl FnOnce(Errno) -> Error) -> Result<(), Error> {
    // The kernel pins the pages, so the mapping may end after this call.
    let mapping = umem.map_frames()?;
    let registration = XdpUmemReg {
        addr: mapping.start().addr().get() as u64,
        len: mapping.len() as u64,
        chunk_size: umem.frame_size(),
        headroom: 0,
        flags: XdpUmemRegFlags::empty(),
        tx_metadata_len: 0,
    };
    set_xdp_umem_reg(fd, registration).map_err(failed)
}

/// Binds a socket. Retries while the queue is busy: the kernel frees a queue in the background
/// after the last descriptor of its socket is closed.
fn bind_with_retries(
    fd: &OwnedFd,
    PendingBind { address, shared }: &PendingBind,
) -> rustix::io::Result<()> {
    let deadline = Instant::now() + QUEUE_RELEASE;
    loop {
        let bound = match shared {
            Some(shared) => {
                let (addr, shared_umem_fd) = (address.clone(), shared.as_fd());
                let address = SocketAddrXdpWithSharedUmem {
                    addr,
                    shared_umem_fd,
                };
                bind(fd, &address)
            }
            None => bind(fd, address),
        };
        match bound {
            Err(Errno::BUSY) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            result => return result,
        }
    }
}

fn set_busy_poll(fd: BorrowedFd<'_>, busy_poll: BusyPoll) -> io::Result<()> {
    let microseconds = u32::try_from(busy_poll.time.as_micros()).unwrap_or(u32::MAX);
    for (name, value) in [
        (SO_PREFER_BUSY_POLL, 1),
        (libc::SO_BUSY_POLL, microseconds),
        (SO_BUSY_POLL_BUDGET, u32::from(busy_poll.budget)),
    ] {
        sys::set_option(fd, libc::SOL_SOCKET, name, value)?;
    }
    Ok(())
}
