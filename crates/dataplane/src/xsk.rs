//! AF_XDP sockets: opened and bound by the agent, driven by the worker.
//!
//! A socket never loads an XDP program; the front door's program redirects into it through a socket map. The first socket of a
//! [`Umem`] registers the memory; later ones, on other queues and devices, share it (`XDP_SHARED_UMEM`) and bring their own fill and
//! completion rings. Sharing imposes the first socket's copy or zero-copy mode; where the second device cannot follow, its
//! socket registers the same memory a second time and finds its own mode.
//!
//! Rings are mapped by the worker. Since Linux 6.4 that may come after binding, so a worker that is started anew goes on with the
//! sockets and rings of the one that died. Before, a bound socket's rings cannot be mapped any more: there the agent binds
//! when the worker has mapped them, and a new worker gets new sockets ([`Successor`]); what lay in the old rings is lost.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::sys;
use crate::umem::Umem;

mod rings;
mod statistics;

pub(crate) use rings::Rings;
pub use statistics::XskStatistics;

/// Entries of each ring unless said otherwise.
pub const RING_SIZE: u32 = 1024;

/// How many frames one `sendto` transmits at most in copy mode, unless the socket is told otherwise.
const TRANSMIT_BUDGET: u32 = 32;
/// Linux 6.17; older kernels keep their budget of 32 and are kicked more often.
const XDP_MAX_TX_SKB_BUDGET: i32 = 9;
/// How long a queue may stay busy after its socket is closed.
const QUEUE_RELEASE: Duration = Duration::from_secs(2);
const SO_PREFER_BUSY_POLL: i32 = 69;
const SO_BUSY_POLL_BUDGET: i32 = 70;

/// What a socket is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// Receives, and may transmit: the port's queue, or the far end of an internal link.
    Ingress,
    /// Only transmits.
    Egress,
}

/// Who copies the packet between the driver and the UMEM.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CopyMode {
    /// Zero-copy where the driver can, else copy.
    #[default]
    Auto,
    /// The kernel copies; works on every driver.
    Copy,
    /// The driver writes into the UMEM; an error where it cannot.
    ZeroCopy,
}

/// Busy polling: the worker's own system calls run the device's receive poll, instead of an interrupt
/// (`Documentation/networking/napi.rst`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BusyPoll {
    /// How long a system call may poll (`SO_BUSY_POLL`, whole microseconds).
    pub time: Duration,
    /// Packets a poll may take (`SO_BUSY_POLL_BUDGET`).
    pub budget: u16,
}

/// How a socket is opened.
#[derive(Debug, Clone)]
pub struct XskConfig {
    /// The interface's name, for messages.
    pub interface: String,
    /// The interface's index.
    pub ifindex: u32,
    /// The queue of the interface, from 0.
    pub queue: u32,
    /// What the socket is for.
    pub role: Role,
    /// Entries of each of its rings, a power of two.
    pub ring_size: u32,
    /// Copy or zero-copy.
    pub mode: CopyMode,
    /// Busy polling, if wanted.
    pub busy_poll: Option<BusyPoll>,
    /// Bind when the worker has mapped the rings, as it must be before Linux 6.4, on every kernel.
    pub bind_late: bool,
}

impl XskConfig {
    /// A socket with the usual ring size, mode by the driver, no busy polling.
    pub fn new(interface: impl Into<String>, ifindex: u32, queue: u32, role: Role) -> Self {
        Self {
            interface: interface.into(),
            ifindex,
            queue,
            role,
            ring_size: RING_SIZE,
            mode: CopyMode::Auto,
            busy_poll: None,
            bind_late: false,
        }
    }
}

/// What the worker must know of a socket besides its descriptor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct XskInfo {
    pub(crate) interface: String,
    pub(crate) queue: u32,
    pub(crate) role: Role,
    pub(crate) ring_size: u32,
    pub(crate) busy_poll: bool,
    pub(crate) zero_copy: bool,
}

/// Puts a socket where packets are led to it: into a socket map.
pub type Lead = Arc<dyn Fn(BorrowedFd<'_>) -> Result<(), String> + Send + Sync>;

/// An AF_XDP socket, bound, or to be bound when its worker has mapped its rings.
pub struct Xsk {
    /// Shared with whoever reads what the kernel counts.
    fd: Arc<OwnedFd>,
    info: XskInfo,
    config: XskConfig,
    /// Shares the packet memory of another socket.
    shares: bool,
    /// The network namespace it was opened in, where its rings cannot be mapped again: a new worker needs a successor, from there.
    netns: Option<OwnedFd>,
    unbound: Option<Unbound>,
    lead: Option<Lead>,
}

/// What binding needs that comes later.
#[derive(Debug)]
struct Unbound {
    address: libc::sockaddr_xdp,
    /// The socket that `address` names; it must be there still.
    _shared: Option<OwnedFd>,
}

/// What is needed to open a socket like one that was closed.
pub(crate) struct Successor {
    config: XskConfig,
    shares: bool,
    zero_copy: bool,
    netns: OwnedFd,
    lead: Option<Lead>,
}

impl Xsk {
    /// Opens a socket on one queue of an interface and binds it, now or where the worker must map its rings before, then.
    /// `shared` is an earlier socket of the same [`Umem`], if there is one.
    pub fn bind(umem: &Umem, config: &XskConfig, shared: Option<&Xsk>) -> Result<Self, Error> {
        if !config.ring_size.is_power_of_two() {
            return Err(Error::Parameter {
                what: "ring size",
                value: config.ring_size.into(),
                expected: "a power of two",
            });
        }
        let socket = Self::bind_now(umem, config, shared)?;
        if !config.bind_late && rings_outlive_binding(&socket)? {
            return Ok(socket);
        }
        // It has told which memory and which mode the device takes.
        let (shares, zero_copy) = (socket.shares, socket.info.zero_copy);
        drop(socket);
        Self::open(config, Memory::of(umem, shared, shares), Some(zero_copy))
    }

    /// With rings that the agent can map, for tests that play the worker in the same process.
    fn bind_now(umem: &Umem, config: &XskConfig, shared: Option<&Self>) -> Result<Self, Error> {
        if let Some(first) = shared
            && config.mode == CopyMode::Auto
            && let Ok(socket) = Self::open(config, Memory::Shared(first), None)
        {
            return Ok(socket);
        }
        Self::open(config, Memory::Registered(umem), None)
    }

    /// With `later`, to be bound later, in that mode: zero-copy or not.
    fn open(config: &XskConfig, memory: Memory<'_>, later: Option<bool>) -> Result<Self, Error> {
        let failed = |step| Self::failed(config, step);
        let fd = sys::xdp_socket().map_err(failed("open"))?;
        let xdp_option =
            |name, value: u32| sys::set_option(fd.as_fd(), libc::SOL_XDP, name, &value);
        if let Memory::Registered(umem) = memory {
            register(fd.as_fd(), umem, failed("register packet memory"))?;
        }
        for (name, step, wanted) in [
            (libc::XDP_UMEM_FILL_RING, "make the fill ring", true),
            (
                libc::XDP_UMEM_COMPLETION_RING,
                "make the completion ring",
                true,
            ),
            (libc::XDP_TX_RING, "make the TX ring", true),
            (
                libc::XDP_RX_RING,
                "make the RX ring",
                config.role == Role::Ingress,
            ),
        ] {
            if wanted {
                xdp_option(name, config.ring_size).map_err(failed(step))?;
            }
        }
        if config.ring_size > TRANSMIT_BUDGET {
            // One kick a batch, whatever the batch. Refused by older kernels, which then take several.
            let _ = xdp_option(XDP_MAX_TX_SKB_BUDGET, config.ring_size);
        }
        if let Some(busy_poll) = config.busy_poll {
            set_busy_poll(fd.as_fd(), busy_poll).map_err(failed("set busy polling"))?;
        }
        let mut address = address(config, &memory);
        let mut shared = None;
        if let Memory::Shared(first) = memory {
            let kept = first.fd.try_clone().map_err(failed("keep the shared"))?;
            address.sxdp_shared_umem_fd = kept.as_raw_fd() as u32;
            shared = Some(kept);
        } else if let Some(zero_copy) = later {
            address.sxdp_flags = libc::XDP_USE_NEED_WAKEUP
                | if zero_copy {
                    libc::XDP_ZEROCOPY
                } else {
                    libc::XDP_COPY
                };
        }
        let netns = later
            .map(|_| sys::netns_of(fd.as_fd()))
            .transpose()
            .map_err(failed("find the network namespace of"))?;
        let mut socket = Self {
            fd: Arc::new(fd),
            info: XskInfo {
                interface: config.interface.clone(),
                queue: config.queue,
                role: config.role,
                ring_size: config.ring_size,
                busy_poll: config.busy_poll.is_some(),
                zero_copy: later.unwrap_or_default(),
            },
            config: config.clone(),
            shares: matches!(memory, Memory::Shared(_)),
            netns,
            unbound: Some(Unbound {
                address,
                _shared: shared,
            }),
            lead: None,
        };
        if later.is_none() {
            socket.complete()?;
        }
        Ok(socket)
    }

    fn failed(config: &XskConfig, step: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::Socket {
            interface: config.interface.clone(),
            queue: config.queue,
            step,
            source,
        }
    }

    /// Binds it, if it is not bound yet. To be called when its rings are mapped.
    pub(crate) fn complete(&mut self) -> Result<(), Error> {
        let Some(Unbound { address, .. }) = &self.unbound else {
            return Ok(());
        };
        bind_patiently(self.fd.as_fd(), address).map_err(Self::failed(&self.config, "bind"))?;
        self.unbound = None;
        let options: libc::xdp_options =
            sys::get_option(self.fd.as_fd(), libc::SOL_XDP, libc::XDP_OPTIONS)
                .map_err(Self::failed(&self.config, "read the options"))?;
        self.info.zero_copy = options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0;
        Ok(())
    }

    /// The socket, with the way by which packets are led to it; it is taken when a worker has the socket, and again for each successor.
    #[must_use]
    pub fn led_by(mut self, lead: Lead) -> Self {
        self.lead = Some(lead);
        self
    }

    /// Leads packets to it, if it is to receive any.
    pub(crate) fn lead(&self) -> Result<(), Error> {
        let Some(lead) = &self.lead else {
            return Ok(());
        };
        lead(self.fd()).map_err(|words| {
            Self::failed(&self.config, "lead packets to it")(io::Error::other(words))
        })
    }

    /// Whether its rings cannot be mapped again.
    pub(crate) fn is_late(&self) -> bool {
        self.netns.is_some()
    }

    /// Closes it, and gives what a new one needs where its rings cannot be mapped again.
    pub(crate) fn into_successor(self) -> Option<Successor> {
        Some(Successor {
            config: self.config,
            shares: self.shares,
            zero_copy: self.info.zero_copy,
            netns: self.netns?,
            lead: self.lead,
        })
    }

    /// The socket's descriptor, for a socket map.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The same, for [`WorkerFacts`](crate::WorkerFacts).
    pub(crate) fn shared_fd(&self) -> &Arc<OwnedFd> {
        &self.fd
    }

    /// Whether the driver reads and writes the UMEM itself; otherwise the kernel copies.
    pub fn is_zero_copy(&self) -> bool {
        self.info.zero_copy
    }

    pub(crate) fn info(&self) -> &XskInfo {
        &self.info
    }

    /// What the kernel counted at this socket.
    pub fn statistics(&self) -> Result<XskStatistics, Error> {
        XskStatistics::read(self.fd()).map_err(Self::failed(&self.config, "read the statistics"))
    }

    /// Addresses of all frames that lie in this socket's rings now. Complete only while nobody moves them.
    pub fn frames_in_rings(&self) -> Result<Vec<u64>, Error> {
        let rings = Rings::map(self.fd(), &self.info)?;
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
    /// Opens the socket, to be bound when its worker has mapped its rings.
    pub(crate) fn open(&self, umem: &Umem, shared: Option<&Xsk>) -> Result<Xsk, Error> {
        let memory = Memory::of(umem, shared, self.shares);
        let open = || Xsk::open(&self.config, memory, Some(self.zero_copy));
        let socket = sys::in_netns(self.netns.as_fd(), open)
            .map_err(Xsk::failed(&self.config, "enter the network namespace of"))??;
        Ok(Xsk {
            lead: self.lead.clone(),
            ..socket
        })
    }
}

impl std::fmt::Debug for Successor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Successor")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// Whether the rings of a bound socket can be mapped: Linux 6.4. Found out with the first socket there is.
fn rings_outlive_binding(socket: &Xsk) -> Result<bool, Error> {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    if let Some(known) = KNOWN.get() {
        return Ok(*known);
    }
    let outlive = match Rings::map(socket.fd(), &socket.info) {
        Ok(_) => true,
        Err(Error::Socket { source, .. }) if source.kind() == io::ErrorKind::ResourceBusy => false,
        Err(error) => return Err(error),
    };
    Ok(*KNOWN.get_or_init(|| outlive))
}

/// Where a socket's packet memory comes from.
#[derive(Clone, Copy)]
enum Memory<'a> {
    Registered(&'a Umem),
    Shared(&'a Xsk),
}

impl<'a> Memory<'a> {
    fn of(umem: &'a Umem, shared: Option<&'a Xsk>, shares: bool) -> Self {
        match shared {
            Some(first) if shares => Self::Shared(first),
            _ => Self::Registered(umem),
        }
    }
}

fn register(
    fd: BorrowedFd<'_>,
    umem: &Umem,
    failed: impl FnOnce(io::Error) -> Error,
) -> Result<(), Error> {
    // The kernel pins the pages; the mapping is not needed beyond this call.
    let mapping = umem.map_frames()?;
    let registration = libc::xdp_umem_reg {
        addr: mapping.start().addr().get() as u64,
        len: mapping.len() as u64,
        chunk_size: umem.frame_size(),
        headroom: 0,
        flags: 0,
        tx_metadata_len: 0,
    };
    sys::set_option(fd, libc::SOL_XDP, libc::XDP_UMEM_REG, &registration).map_err(failed)
}

fn address(config: &XskConfig, memory: &Memory<'_>) -> libc::sockaddr_xdp {
    let (flags, shared_umem_fd) = match memory {
        // Flags are those of the socket that registered the memory.
        Memory::Shared(first) => (libc::XDP_SHARED_UMEM, first.fd.as_raw_fd() as u32),
        Memory::Registered(_) => {
            let mode = match config.mode {
                CopyMode::Auto => 0,
                CopyMode::Copy => libc::XDP_COPY,
                CopyMode::ZeroCopy => libc::XDP_ZEROCOPY,
            };
            (libc::XDP_USE_NEED_WAKEUP | mode, 0)
        }
    };
    libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: flags,
        sxdp_ifindex: config.ifindex,
        sxdp_queue_id: config.queue,
        sxdp_shared_umem_fd: shared_umem_fd,
    }
}

/// The kernel frees a queue in the background after the last descriptor of its socket is closed, so a busy queue is asked again for a while.
fn bind_patiently(fd: BorrowedFd<'_>, address: &libc::sockaddr_xdp) -> io::Result<()> {
    let deadline = Instant::now() + QUEUE_RELEASE;
    loop {
        match sys::bind_xdp(fd, address) {
            Err(error)
                if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < deadline =>
            {
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
        sys::set_option(fd, libc::SOL_SOCKET, name, &value)?;
    }
    Ok(())
}
