//! The service function forwarder (RFC 7665) of a chain whose functions stand in network namespaces of their own
//! (CALVIN's distributed mapping).
//!
//! Each function has a link, a veth pair: the *near* end is in the plane's namespace, the *inner* end in the function's. A
//! small program in the chain's first slot redirects packets over the first link; a function in the kernel is a program at
//! the inner end that redirects them over the next link itself, or out of the chain, by a map of interfaces of the plane's
//! namespace: so a function costs one passage of a link. One in user space has an AF_XDP socket at the inner end; the
//! forwarder at the near end sends what comes back over the next link, or out of the chain. A link belongs to one position
//! of one chain, so every way is a constant of its program.
//!
//! The metadata area survives redirects, not AF_XDP transmit: a worker puts it into an NSH header. Behind the
//! last function it does not: that worker records the sojourn, and a program at tc hands its packets on as they are.
//!
//! That is so at the XDP hook, where packets wait at each link until the batch of receive work that brought them is done. A chain whose
//! functions are all in the kernel may stand at tcx instead: there each redirect leads to the other end of a link at once
//! (`bpf_redirect_peer`), so a packet goes through all functions and out before the next one is looked at, whatever else comes
//! in with it. The function's own redirect ends at the near end, whose forwarder goes on. Stamp and offsets travel in `skb->cb`; a tag
//! in `skb->priority`, which a veth clears, tells such packets from what is sent over the link. A forwarder checks it at either end; at the inner
//! one it calls the function, in a slot.
//!
//! Through a *black box*, a program that nothing is known of, nothing survives. It has two links: packets go in over the
//! first and come out over the second, whose near end stamps them anew. So the chain falls into sections, each with a
//! sojourn histogram of its own; the way into the box ends one of them. What the box sends back over the first link goes
//! to the sender, out of the chain's ingress.

mod programs;

use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use myelin_packet::Flows;
use myelin_spec::{FunctionInstance, OnFailure};

use self::programs::{Carrier, Loader, Source, boxes_in};
use crate::attach::{Attachment, Place, XdpMode};
use crate::chain::{ChainConfig, Entry, LoadedChain, Parts, check_numbers};
use crate::instance::Instance;
use crate::policer::Policer;
use crate::segment::LoadedSegment;
use crate::shared::{Shared, devices};
use crate::sockets::Sockets;
use crate::sojourn::Sojourn;
use crate::{Error, Hook, flows, lock};

/// A chain of functions in namespaces of their own.
#[derive(Clone, Debug)]
pub struct DistributedConfig {
    /// Where its packets are taken; tcx only where all functions are in the kernel.
    pub hook: Hook,
    /// Service path identifier: 24 bits, one for each chain of the plane.
    pub spi: u32,
    /// Another one for each live change of the chain.
    pub generation: u16,
    /// What holds its packets to their profile at the front door.
    pub policer: Option<Arc<Policer>>,
    /// What the front door does with a packet when the chain's first program is gone. One that is under way to a function
    /// that is gone is dropped.
    pub on_failure: OnFailure,
    /// The functions in order.
    pub functions: Vec<DistributedFunction>,
    /// Index of the interface where packets come in: there leaves what a function in user space sends back to their sender.
    pub ingress: u32,
    /// Index of the interface where packets leave the chain.
    pub egress: u32,
    /// At tcx: the egress is a veth whose far end is in another namespace, and packets go straight there.
    pub peer: bool,
}

/// A function at the end of a link.
#[derive(Clone, Debug)]
pub struct DistributedFunction {
    /// Index of the near end of the link that leads to it, in the plane's namespace.
    pub near: u32,
    /// Index of its inner end, in the function's namespace; a black box's does not matter.
    pub inner: u32,
    /// What stands there.
    pub occupant: Occupant,
}

/// What stands at the end of a function's link.
#[derive(Clone, Debug)]
pub enum Occupant {
    /// A kernel function.
    Kernel(FunctionInstance),
    /// A worker's AF_XDP socket. What it transmits comes back behind an NSH header.
    Worker,
    /// A worker's AF_XDP socket behind the last function. What it transmits leaves the chain as it is, and the worker has
    /// recorded that.
    LastWorker {
        /// The egress is a veth whose far end is in another namespace, and packets go straight there.
        peer: bool,
    },
    /// A program that nothing is known of, between two links.
    BlackBox,
}

/// The programs at the ends of a function's link, or at the near ends of a black box's two links.
///
/// Dropping it detaches them, unless the plane is pinned: then they stay until [`FunctionLink::detach`].
#[derive(Debug)]
pub struct FunctionLink {
    near: End,
    /// Of a black box, the near end of the link that leads to it.
    far: End,
    /// At tcx, the function that the inner end calls.
    called: Option<LoadedSegment>,
    sockets: Option<Sockets>,
    black_box: Option<BlackBoxSlots>,
}

/// Slots of what a black box sent, for [`Counters::read`](crate::Counters::read). What went into it counts as the packets of its
/// function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlackBoxSlots {
    /// Of what came out and went on.
    pub out: u32,
    /// Of what it sent back to the senders.
    pub back: u32,
}

/// One end of a link.
#[derive(Debug)]
struct End {
    hook: Hook,
    /// In the function's namespace.
    elsewhere: bool,
    attachment: Mutex<Option<Attachment>>,
    program: Instance,
    pin: Option<PathBuf>,
}

/// Loads the chain, and for each function the programs of its link.
pub(crate) fn load(
    shared: &Arc<Shared>,
    config: &DistributedConfig,
) -> Result<(LoadedChain, Vec<FunctionLink>), Error> {
    check_numbers(config.spi, config.functions.len())?;
    if config.hook == Hook::Tcx
        && let Some(position) = config
            .functions
            .iter()
            .position(|function| !matches!(function.occupant, Occupant::Kernel(_)))
    {
        return Err(Error::function(
            "function",
            position as u8,
            "in a namespace of its own, what is not in the kernel is reached at the XDP hook only",
        ));
    }
    let positions = config.functions.len() as u8;
    let black_boxes = boxes_in(&config.functions);
    let lines = u32::from(positions) + 2 + 2 * black_boxes as u32;
    let lines = Arc::new(shared.counters.take(lines)?);
    let sojourns = (0..=black_boxes)
        .map(|_| Sojourn::new(shared.counters.cpus()))
        .collect::<Result<Vec<_>, _>>()?;
    let near = config.functions.iter().map(|function| function.near);
    let devices = devices(&near.chain([config.egress]).collect::<Vec<_>>())?;
    let loader = Loader {
        shared,
        config,
        devices: &devices,
        lines: &lines,
        sojourns: &sojourns,
    };
    let links = (0..positions)
        .zip(&config.functions)
        .map(|(position, function)| loader.link(position, function))
        .collect::<Result<_, _>>()?;
    let source = match config.hook {
        Hook::Xdp => Source::METADATA,
        Hook::Tcx => Source::of(Carrier::Door),
    };
    let entry = loader.forwarder(0, source, loader.way_to(0), None)?;
    let segments = vec![LoadedSegment::entry(shared, config.hook, entry)?];
    let chain = ChainConfig {
        spi: config.spi,
        generation: config.generation,
        hook: config.hook,
        on_failure: config.on_failure,
        policer: config.policer.clone(),
        positions,
        entry: Entry::Kernel,
        segments: Vec::new(),
    };
    let parts = Parts {
        lines,
        sojourns,
        segments,
    };
    Ok((LoadedChain::assemble(shared, &chain, parts)?, links))
}

impl FunctionLink {
    /// Attaches the forwarder to the near end of the link, of a black box to that of its egress link.
    pub fn attach_near(&self, name: &str, ifindex: u32) -> Result<(), Error> {
        self.near.attach(name, ifindex)
    }

    /// Attaches the function, or the way to its sockets, to the inner end of the link: to be called by a thread that is in
    /// the function's namespace. Of a black box it is the forwarder at the near end of the ingress link.
    pub fn attach_inner(&self, name: &str, ifindex: u32) -> Result<(), Error> {
        self.far.attach(name, ifindex)
    }

    /// Counters of what a black box sent; `None` for any other function.
    pub fn black_box(&self) -> Option<BlackBoxSlots> {
        self.black_box
    }

    /// The AF_XDP sockets of the inner end; a kernel function has none.
    pub fn sockets(&self) -> Option<Sockets> {
        self.sockets.clone()
    }

    /// The flows that the function knows; `None` for one that keeps none, or is in user space.
    pub fn flows(&self) -> Result<Option<Flows>, Error> {
        let state = match &self.called {
            Some(called) => called.state(0),
            None => self.far.program.state.as_deref(),
        };
        state.map_or(Ok(None), flows::read)
    }

    /// The forwarder, for test runs.
    pub fn near_program(&self) -> BorrowedFd<'_> {
        self.near.program.fd.as_fd()
    }

    /// The program at the inner end, of a black box at the near end of its ingress link, for test runs.
    pub fn inner_program(&self) -> BorrowedFd<'_> {
        self.far.program.fd.as_fd()
    }

    /// The function that the inner end calls at tcx, for test runs.
    pub fn called_program(&self) -> Option<BorrowedFd<'_>> {
        self.called.as_ref()?.program(0)
    }

    /// Detaches both programs, pinned or not.
    pub fn detach(&self) -> Result<(), Error> {
        let results = [&self.near, &self.far].map(|end| {
            let attachment = lock(&end.attachment).take();
            attachment.map_or(Ok(()), Attachment::detach)
        });
        results.into_iter().collect()
    }
}

impl End {
    fn attach(&self, name: &str, ifindex: u32) -> Result<(), Error> {
        let place = Place {
            interface: name.to_owned(),
            ifindex,
        };
        let program = self.program.fd.as_fd();
        let attachment = match self.hook {
            Hook::Xdp => Attachment::xdp(program, &place, XdpMode::Native, self.pin.clone()),
            Hook::Tcx if self.elsewhere => {
                Attachment::tc_elsewhere(program, &place, self.pin.clone())
            }
            // The near ends are all in one namespace, so the interface's index names the pin.
            Hook::Tcx => {
                let dir = self.pin.as_deref().and_then(Path::parent);
                Attachment::tc(program, &place, dir)
            }
        };
        *lock(&self.attachment) = Some(attachment?);
        Ok(())
    }
}
