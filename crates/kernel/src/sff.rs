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

use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use libbpf_rs::MapHandle;
use myelin_spec::{FunctionInstance, OnFailure};

use crate::attach::{Attachment, Place, XdpMode};
use crate::blocks::Block;
use crate::chain::{ChainConfig, Entry, LoadedChain, Parts};
use crate::chain::{check_numbers, egress_line, function_line};
use crate::instance::{self, Hop, Instance, Way};
use crate::object::{LEAVE, SFF};
use crate::plane::{Shared, devices};
use crate::policer::Policer;
use crate::port::Sockets;
use crate::segment::LoadedSegment;
use crate::sojourn::{SOJOURN, Sojourn};
use crate::{Error, Flows, Hook, flows, pins};

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

/// What the end of a link in its function's namespace is called.
const INNER: &str = "inner";

/// `struct sff`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Forwarder {
    hop: Hop,
    carrier: u32,
    spi: u32,
    generation: u16,
    position: u16,
    ingress: u32,
    out_line: u32,
    tag: u32,
}

/// `enum carrier`.
#[derive(Clone, Copy)]
enum Carrier {
    Metadata = 1,
    Nsh = 2,
    Link = 3,
    Tag = 4,
    Door = 5,
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
    attachment: Option<Attachment>,
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
        return Err(Error::XdpOnly {
            position: position as u8,
        });
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

/// What a chain's packets have in `skb->priority` between its first program and its last one; not 0.
fn tag(config: &DistributedConfig) -> u32 {
    config.spi | (0x80 | u32::from(config.generation) & 0x7f) << 24
}

fn boxes_in(functions: &[DistributedFunction]) -> usize {
    let is_box = |function: &&DistributedFunction| matches!(function.occupant, Occupant::BlackBox);
    functions.iter().filter(is_box).count()
}

/// What the programs of a chain have in common.
struct Loader<'a> {
    shared: &'a Arc<Shared>,
    config: &'a DistributedConfig,
    /// The near ends by position, and the egress.
    devices: &'a MapHandle,
    lines: &'a Block,
    /// One for each section.
    sojourns: &'a [Sojourn],
}

/// Where a forwarder's packets come from.
#[derive(Clone, Copy)]
struct Source {
    carrier: Carrier,
    /// Of a black box's packets.
    out_line: u32,
    /// Black boxes that they have passed behind the function before.
    passed: usize,
}

impl Source {
    const METADATA: Self = Self::of(Carrier::Metadata);

    const fn of(carrier: Carrier) -> Self {
        Self {
            carrier,
            out_line: 0,
            passed: 0,
        }
    }
}

impl Loader<'_> {
    fn link(&self, position: u8, function: &DistributedFunction) -> Result<FunctionLink, Error> {
        match &function.occupant {
            Occupant::Kernel(kernel) if self.config.hook == Hook::Tcx => {
                self.called_function(position, function.inner, kernel)
            }
            Occupant::Kernel(function) => self.kernel_function(position, function),
            Occupant::Worker => self.worker(position, None),
            Occupant::LastWorker { peer } => self.worker(position, Some(*peer)),
            Occupant::BlackBox => self.black_box(position),
        }
    }

    fn kernel_function(
        &self,
        position: u8,
        function: &FunctionInstance,
    ) -> Result<FunctionLink, Error> {
        let way = self.way_to(position + 1);
        let hop = self.hop(position, way.across(u32::from(position) + 1));
        let mut maps = self.maps(self.section(position), None);
        maps.insert(0, ("devices", self.devices.as_fd()));
        let states = &self.shared.states;
        let inner = instance::load(Hook::Xdp, position, function, hop, &maps, states)?;
        // Nothing comes back here but what the namespace itself sends.
        let near = self.forwarder(position, Source::METADATA, way, None)?;
        Ok(FunctionLink {
            near: self.end(position, near, "near"),
            far: self.end(position, inner, INNER),
            called: None,
            sockets: None,
            black_box: None,
        })
    }

    /// A kernel function at tcx; `inner`: index of the link's end in its namespace.
    fn called_function(
        &self,
        position: u8,
        inner: u32,
        function: &FunctionInstance,
    ) -> Result<FunctionLink, Error> {
        let back = self.hop(position, Way::Link { ifindex: inner });
        let maps = self.maps(self.section(position), None);
        let program = instance::load(
            Hook::Tcx,
            position,
            function,
            back,
            &maps,
            &self.shared.states,
        )?;
        let called = LoadedSegment::entry(self.shared, Hook::Tcx, program)?;
        let tagged = Source::of(Carrier::Tag);
        let way = Way::Next {
            slot: called.slots().start(),
        };
        let inner = self.forwarder(position, tagged, way, None)?;
        let near = self.forwarder(position, tagged, self.way_to(position + 1), None)?;
        Ok(FunctionLink {
            near: self.end(position, near, "near"),
            far: self.end(position, inner, INNER),
            called: Some(called),
            sockets: None,
            black_box: None,
        })
    }

    /// `last` of a chain's last function: whether packets go straight to the far end of the egress.
    fn worker(&self, position: u8, last: Option<bool>) -> Result<FunctionLink, Error> {
        let sockets = Sockets::new(self.shared)?;
        let way = Way::User { position };
        let inner = self.forwarder(position, Source::METADATA, way, Some(&sockets))?;
        let near = if let Some(peer) = last {
            let near = self.leave(position, peer)?;
            End {
                hook: Hook::Tcx,
                ..self.end(position, near, "near")
            }
        } else {
            let way = self.way_to(position + 1);
            let near = self.forwarder(position, Source::of(Carrier::Nsh), way, None)?;
            self.end(position, near, "near")
        };
        Ok(FunctionLink {
            near,
            far: self.end(position, inner, INNER),
            called: None,
            sockets: Some(sockets),
            black_box: None,
        })
    }

    fn black_box(&self, position: u8) -> Result<FunctionLink, Error> {
        let functions = &self.config.functions;
        let behind = egress_line(self.lines, functions.len() as u8) + 1;
        let out = behind + 2 * self.section(position) as u32;
        let slots = BlackBoxSlots { out, back: out + 1 };
        let source = |out_line, passed| Source {
            carrier: Carrier::Link,
            out_line,
            passed,
        };
        let way = self.way_to(position + 1);
        let near = self.forwarder(position, source(slots.out, 1), way, None)?;
        let way = Way::Link {
            ifindex: self.config.ingress,
        };
        let back = self.forwarder(position, source(slots.back, 0), way, None)?;
        Ok(FunctionLink {
            near: self.end(position, near, "near"),
            far: self.end(position, back, "back"),
            called: None,
            sockets: None,
            black_box: Some(slots),
        })
    }

    fn end(&self, position: u8, program: Instance, name: &str) -> End {
        let Self { shared, config, .. } = self;
        let pin = shared.pin_dir.as_deref().map(|dir| {
            let chain = format!("{}-{}", config.spi, config.generation);
            dir.join(format!("{}sff-{chain}-{position}-{name}", pins::LINK))
        });
        End {
            hook: self.config.hook,
            elsewhere: name == INNER,
            attachment: None,
            program,
            pin,
        }
    }

    /// The program behind a last function that is in user space.
    fn leave(&self, position: u8, peer: bool) -> Result<Instance, Error> {
        let way = Way::Out {
            ifindex: self.config.egress,
            peer,
            line: egress_line(self.lines, position + 1),
        };
        let hop = self.hop(position, way);
        let maps = self.shared.maps(Hook::Tcx);
        let program = LEAVE.load(Hook::Tcx, bytemuck::bytes_of(&hop), &maps)?;
        Ok(program.into())
    }

    /// The section that the function at `position` is in, or that a black box there ends.
    fn section(&self, position: u8) -> usize {
        boxes_in(&self.config.functions[..usize::from(position)])
    }

    /// A program that sends on what is of this chain, and drops the rest on the account of the function at `position`.
    fn forwarder(
        &self,
        position: u8,
        source: Source,
        way: Way,
        sockets: Option<&Sockets>,
    ) -> Result<Instance, Error> {
        let instance = Forwarder {
            hop: self.hop(position, way),
            carrier: source.carrier as u32,
            spi: self.config.spi,
            generation: self.config.generation,
            position: u16::from(position) + 1,
            ingress: self.config.ingress,
            out_line: source.out_line,
            tag: tag(self.config),
        };
        let section = self.section(position) + source.passed;
        let program = SFF.load(
            self.config.hook,
            bytemuck::bytes_of(&instance),
            &self.maps(section, sockets),
        )?;
        Ok(program.into())
    }

    /// The way to the function at `position`, or out of the chain behind the last one. Out is also the way into a black box,
    /// which counts what goes in.
    fn way_to(&self, position: u8) -> Way {
        let functions = &self.config.functions;
        let out = |ifindex, line| Way::Out {
            ifindex,
            peer: self.config.peer && self.config.hook == Hook::Tcx,
            line,
        };
        match functions.get(usize::from(position)) {
            None => out(
                self.config.egress,
                egress_line(self.lines, functions.len() as u8),
            ),
            Some(next) if matches!(next.occupant, Occupant::BlackBox) => {
                out(next.near, function_line(self.lines, position))
            }
            Some(next) => Way::Link { ifindex: next.near },
        }
    }

    fn hop(&self, position: u8, way: Way) -> Hop {
        let line = function_line(self.lines, position);
        Hop::new(
            self.shared.counters.counting(),
            line,
            way,
            self.config.hook.drop(),
        )
    }

    fn maps<'m>(
        &'m self,
        section: usize,
        sockets: Option<&'m Sockets>,
    ) -> Vec<(&'static str, BorrowedFd<'m>)> {
        let sockets = sockets.map(|sockets| ("sockets", sockets.0.as_fd()));
        let mut maps: Vec<_> = sockets.into_iter().collect();
        maps.push((SOJOURN, self.sojourns[section].as_fd()));
        maps.extend(self.shared.maps(self.config.hook));
        maps
    }
}

impl FunctionLink {
    /// Attaches the forwarder to the near end of the link, of a black box to that of its egress link.
    pub fn attach_near(&mut self, name: &str, ifindex: u32) -> Result<(), Error> {
        self.near.attach(name, ifindex)
    }

    /// Attaches the function, or the way to its sockets, to the inner end of the link: to be called by a thread that is in
    /// the function's namespace. Of a black box it is the forwarder at the near end of the ingress link.
    pub fn attach_inner(&mut self, name: &str, ifindex: u32) -> Result<(), Error> {
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
    pub fn detach(self) -> Result<(), Error> {
        let results =
            [self.near, self.far].map(|end| end.attachment.map_or(Ok(()), Attachment::detach));
        results.into_iter().collect()
    }
}

impl End {
    fn attach(&mut self, name: &str, ifindex: u32) -> Result<(), Error> {
        let place = Place {
            interface: name.to_owned(),
            ifindex,
        };
        let program = self.program.fd.as_fd();
        let attachment = match self.hook {
            Hook::Xdp => {
                Attachment::xdp_pinned_at(program, &place, XdpMode::Native, self.pin.clone())
            }
            Hook::Tcx if self.elsewhere => {
                Attachment::tc_elsewhere(program, &place, self.pin.clone())
            }
            // The near ends are all in one namespace, so the interface's index names the pin.
            Hook::Tcx => {
                let dir = self.pin.as_deref().and_then(Path::parent);
                Attachment::tc(program, &place, dir)
            }
        };
        self.attachment = Some(attachment?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::twin::assert_twins;

    #[test]
    fn forwarders_lie_as_in_c() {
        assert_twins!(
            SFF,
            "sff",
            Forwarder {
                hop,
                carrier,
                spi,
                generation,
                position,
                ingress,
                out_line,
                tag
            }
        );
    }
}
