//! The service function forwarder (RFC 7665) of a chain whose functions run in their own network
//! namespaces (CALVIN's distributed mapping).
//!
//! Each function has a link, a veth pair. The *near* end is in the plane's namespace, the *inner*
//! end in the function's namespace. A small program in the chain's first slot redirects packets
//! over the first link. A kernel function is a program at the inner end. This program redirects
//! packets over the next link, or out of the chain, by a map of interfaces of the plane's
//! namespace. So a function costs one link. A function in user space has an AF_XDP socket at the
//! inner end. The forwarder at the near end sends the worker's packets over the next link, or out
//! of the chain. A link belongs to one position of one chain, so every exit is a constant of its
//! program.
//!
//! The metadata area survives redirects, but not AF_XDP transmit. So a worker writes the metadata
//! into an NSH header. The worker of the last function writes no header. This worker records the
//! sojourn, and a program at tc forwards the worker's packets unchanged.
//!
//! At the XDP hook packets wait at each link until the NAPI batch is done. A chain with all
//! functions in the kernel may run at tcx instead. There each redirect (`bpf_redirect_peer`)
//! processes the packet at the other end of the link at once. A packet passes all functions before
//! the next packet starts. The function's redirect ends at the near end, where the forwarder
//! continues. Stamp and offsets travel in `skb->cb`. A tag in `skb->priority`, which a veth clears,
//! separates these packets from others on the link. A forwarder at each end checks the tag. The
//! forwarder at the inner end calls the function in a slot.
//!
//! A *black box* is an unknown program that preserves no metadata. A black box has two links.
//! Packets enter over the first link and leave over the second. The near end of the second link
//! stamps the packets again. So the chain has several sections, each with its own sojourn
//! histogram. The entry of a black box ends a section. Packets that the box sends back over the
//! first link return to the sender through the chain's ingress.

mod programs;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use myelin_packet::Flows;
use myelin_spec::{FunctionInstance, OnFailure};

use self::programs::{Carrier, Loader, PacketSource, count_black_boxes};
use crate::attach::{AttachTarget, Attachment, XdpMode};
use crate::chain::{ChainConfig, EntrySpace, LoadedChain, LoadedParts, check_numbers};
use crate::instance::LoadedFunction;
use crate::policer::Policer;
use crate::resources::{PlaneResources, create_device_map};
use crate::segment::LoadedSegment;
use crate::sockets::Sockets;
use crate::sojourn::Sojourn;
use crate::{Error, Hook, flows, lock, reentry};

/// The configuration of a chain with functions in their own namespaces.
#[derive(Clone, Debug)]
pub struct DistributedConfig {
    /// The hook of the chain. Tcx requires that all functions are in the kernel.
    pub hook: Hook,
    /// Service path identifier: 24 bits, unique in the plane.
    pub spi: u32,
    /// Number of the generation. Each live change of the chain makes a new generation.
    pub generation: u16,
    /// Polices the packets at the front door.
    pub policer: Option<Arc<Policer>>,
    /// Treatment of packets at the front door if the chain's first program is missing. Packets on a
    /// link to a missing function are dropped.
    pub on_failure: OnFailure,
    /// The functions in order.
    pub functions: Vec<DistributedFunction>,
    /// Index of the ingress interface, which also sends a user-space function's replies to the
    /// sender.
    pub ingress: u32,
    /// Index of the egress interface.
    pub egress: u32,
    /// At tcx: the egress is a veth whose far end is in another namespace. Packets go directly to
    /// that end.
    pub peer: bool,
    /// At XDP: packets leave by the stack's transmit path, at the egress and, as replies, at the
    /// ingress. An XDP redirect into a veth needs NAPI at the far end.
    pub by_stack: bool,
}

/// A function at the end of a link.
#[derive(Clone, Debug)]
pub struct DistributedFunction {
    /// Interface index of the link's near end, in the plane's namespace.
    pub near: u32,
    /// Interface index of the link's inner end, in the function's namespace. Unused for a black
    /// box.
    pub inner: u32,
    /// The place in which the function runs.
    pub runtime: FunctionRuntime,
}

/// The place in which the function at the end of a link runs.
#[derive(Clone, Debug)]
pub enum FunctionRuntime {
    /// A kernel function.
    Kernel(FunctionInstance),
    /// A worker's AF_XDP socket. The worker transmits packets behind an NSH header.
    Worker,
    /// The AF_XDP socket of the last function's worker. Packets leave the chain unchanged; the
    /// worker has recorded their sojourn.
    LastWorker {
        /// The egress is a veth whose far end is in another namespace. Packets go directly to that
        /// end.
        peer: bool,
    },
    /// An unknown program between two links.
    BlackBox,
}

/// The programs at the ends of a function's link, or at the near ends of a black box's two links.
///
/// The drop detaches the programs. If the plane is pinned, the programs stay until
/// [`FunctionLink::detach`].
#[derive(Debug)]
pub struct FunctionLink {
    near: LinkEnd,
    /// For a black box: the near end of its ingress link.
    far: LinkEnd,
    /// At tcx: the function that the inner end calls.
    called: Option<LoadedSegment>,
    sockets: Option<Sockets>,
    black_box: Option<BlackBoxSlots>,
}

/// Counter slots of packets from a black box, for [`Counters::read`](crate::Counters::read). The
/// counters of the function count the packets that enter the box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlackBoxSlots {
    /// Packets that left the box and continue.
    pub out: u32,
    /// Packets that the box sent back to the senders.
    pub back: u32,
}

/// One end of a link.
#[derive(Debug)]
struct LinkEnd {
    hook: Hook,
    /// Whether this end is in the function's namespace.
    is_inner: bool,
    attachments: Mutex<Vec<Attachment>>,
    program: LoadedFunction,
    /// Transmits packets of [`DistributedConfig::by_stack`].
    leave: Option<Arc<OwnedFd>>,
    pin: Option<PathBuf>,
}

/// Loads the chain, and the programs of each function's link.
pub(crate) fn load(
    shared: &Arc<PlaneResources>,
    config: &DistributedConfig,
) -> Result<(LoadedChain, Vec<FunctionLink>), Error> {
    check_numbers(config.spi, config.functions.len())?;
    if config.hook == Hook::Tcx
        && let Some(position) = config
            .functions
            .iter()
            .position(|function| !matches!(function.runtime, FunctionRuntime::Kernel(_)))
    {
        return Err(Error::function(
            "function",
            position as u8,
            "a distributed chain reaches user functions and black boxes at the XDP hook only: \
             write `hook: xdp` or `hook: auto`",
        ));
    }
    let positions = config.functions.len() as u8;
    let black_boxes = count_black_boxes(&config.functions);
    let lines = u32::from(positions) + 2 + 2 * black_boxes as u32;
    let lines = Arc::new(shared.counters.allocate(lines)?);
    let sojourns = (0..=black_boxes)
        .map(|_| Sojourn::new(shared.counters.cpus()))
        .collect::<Result<Vec<_>, _>>()?;
    let near = config.functions.iter().map(|function| function.near);
    let devices = create_device_map(&near.chain([config.egress]).collect::<Vec<_>>())?;
    let by_stack = config.by_stack && config.hook == Hook::Xdp;
    let leave = by_stack
        .then(|| reentry::load_leave(shared, 0))
        .transpose()?;
    let loader = Loader {
        leave: leave.map(Arc::new),
        shared,
        config,
        devices: &devices,
        lines: &lines,
        sojourns: &sojourns,
    };
    let links = (0..positions)
        .zip(&config.functions)
        .map(|(position, function)| loader.load_link(position, function))
        .collect::<Result<_, _>>()?;
    let source = match config.hook {
        Hook::Xdp => PacketSource::METADATA,
        Hook::Tcx => PacketSource::from_carrier(Carrier::Door),
    };
    let entry = loader.load_forwarder(0, source, loader.exit_to(0), None)?;
    let segments = vec![LoadedSegment::load_entry(shared, config.hook, entry)?];
    let chain = ChainConfig {
        spi: config.spi,
        generation: config.generation,
        hook: config.hook,
        on_failure: config.on_failure,
        policer: config.policer.clone(),
        positions,
        entry: EntrySpace::Kernel,
        segments: Vec::new(),
    };
    let parts = LoadedParts {
        lines,
        sojourns,
        segments,
    };
    Ok((LoadedChain::assemble(shared, &chain, parts)?, links))
}

impl FunctionLink {
    /// Attaches the forwarder to the near end of the link. For a black box, the link is the box's
    /// egress link.
    pub fn attach_near(&self, name: &str, ifindex: u32) -> Result<(), Error> {
        self.near.attach(name, ifindex)
    }

    /// Attaches the function, or the redirect to its sockets, to the inner end of the link. Call
    /// this method from a thread in the function's namespace. For a black box, attaches the
    /// forwarder to the near end of the ingress link.
    pub fn attach_inner(&self, name: &str, ifindex: u32) -> Result<(), Error> {
        self.far.attach(name, ifindex)
    }

    /// Returns the counter slots of packets from a black box; `None` for any other function.
    pub fn black_box(&self) -> Option<BlackBoxSlots> {
        self.black_box
    }

    /// Returns the AF_XDP sockets of the inner end; `None` for a kernel function.
    pub fn sockets(&self) -> Option<Sockets> {
        self.sockets.clone()
    }

    /// Returns the flows of the function; `None` if the function keeps no flows or is in user
    /// space.
    pub fn flows(&self) -> Result<Option<Flows>, Error> {
        let state = match &self.called {
            Some(called) => called.state(0),
            None => self.far.program.state.as_deref(),
        };
        state.map_or(Ok(None), flows::read)
    }

    /// Returns the forwarder, for test runs.
    pub fn near_program(&self) -> BorrowedFd<'_> {
        self.near.program.fd.as_fd()
    }

    /// Returns the program at the inner end, for test runs. For a black box, returns the program at
    /// the near end of the ingress link.
    pub fn inner_program(&self) -> BorrowedFd<'_> {
        self.far.program.fd.as_fd()
    }

    /// Returns the function that the inner end calls at tcx, for test runs.
    pub fn called_program(&self) -> Option<BorrowedFd<'_>> {
        self.called.as_ref()?.program(0)
    }

    /// Detaches both programs, pinned or not.
    pub fn detach(&self) -> Result<(), Error> {
        let results = [&self.near, &self.far].map(|end| {
            let attachments = std::mem::take(&mut *lock(&end.attachments));
            let results = attachments.into_iter().map(Attachment::detach);
            results.fold(Ok(()), Result::and)
        });
        results.into_iter().collect()
    }
}

impl LinkEnd {
    /// The near ends share one namespace, so the interface index names a pin at tc.
    fn near_pin_dir(&self) -> Option<&Path> {
        self.pin.as_deref().and_then(Path::parent)
    }

    fn attach(&self, name: &str, ifindex: u32) -> Result<(), Error> {
        let target = AttachTarget {
            interface: name.to_owned(),
            ifindex,
        };
        let program = self.program.fd.as_fd();
        let attachment = match self.hook {
            Hook::Xdp => {
                Attachment::attach_xdp(program, &target, XdpMode::Native, self.pin.clone())
            }
            Hook::Tcx if self.is_inner => {
                Attachment::attach_tc_in_other_namespace(program, &target, self.pin.clone())
            }
            Hook::Tcx => Attachment::attach_tc(program, &target, self.near_pin_dir()),
        };
        let mut attachments = lock(&self.attachments);
        attachments.push(attachment?);
        if let Some(leave) = &self.leave {
            let attached = Attachment::attach_tc(leave.as_fd(), &target, self.near_pin_dir());
            attachments.push(attached?);
        }
        Ok(())
    }
}
