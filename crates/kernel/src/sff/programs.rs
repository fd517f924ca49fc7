//! The programs of a distributed chain: forwarders at the ends of the links, and kernel functions.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::Mutex;

use bytemuck::{Pod, Zeroable};
use libbpf_rs::MapHandle;
use myelin_spec::FunctionInstance;

use super::{
    BlackBoxSlots, DistributedConfig, DistributedFunction, FunctionLink, FunctionRuntime, LinkEnd,
};
use crate::chain::{egress_line, function_line};
use crate::hop::{Hop, HopExit};
use crate::instance::{self, LoadedFunction};
use crate::numbers::NumberRange;
use crate::object::{LEAVE, SFF};
use crate::resources::PlaneResources;
use crate::segment::LoadedSegment;
use crate::sockets::Sockets;
use crate::sojourn::{SOJOURN, Sojourn};
use crate::{Error, Hook, pins};

/// Name of the link's end in the function's namespace.
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
    by_stack: u32,
    out_line: u32,
    tag: u32,
}

/// `enum carrier`.
#[derive(Clone, Copy)]
pub(super) enum Carrier {
    Metadata = 1,
    Nsh = 2,
    Link = 3,
    Tag = 4,
    Door = 5,
}

/// The common context of a chain's programs.
pub(super) struct Loader<'a> {
    pub(super) shared: &'a Arc<PlaneResources>,
    pub(super) config: &'a DistributedConfig,
    /// Interfaces: the near end of each position's link, then the egress.
    pub(super) devices: &'a MapHandle,
    pub(super) lines: &'a NumberRange,
    /// The sojourn histogram of each section.
    pub(super) sojourns: &'a [Sojourn],
    /// The program at tc that transmits packets at virtual interfaces; `None` if packets leave by a
    /// redirect.
    pub(super) leave: Option<Arc<OwnedFd>>,
}

/// The source of a forwarder's packets.
#[derive(Clone, Copy)]
pub(super) struct PacketSource {
    carrier: Carrier,
    /// Counter line for packets from a black box.
    out_line: u32,
    /// Number of black boxes between the previous function and this point.
    passed: usize,
    /// Whether replies to senders come from here.
    replies: bool,
}

impl PacketSource {
    pub(super) const METADATA: Self = Self::from_carrier(Carrier::Metadata);

    pub(super) const fn from_carrier(carrier: Carrier) -> Self {
        Self {
            carrier,
            out_line: 0,
            passed: 0,
            replies: matches!(carrier, Carrier::Nsh),
        }
    }
}

impl Loader<'_> {
    pub(super) fn load_link(
        &self,
        position: u8,
        function: &DistributedFunction,
    ) -> Result<FunctionLink, Error> {
        match &function.runtime {
            FunctionRuntime::Kernel(kernel) if self.config.hook == Hook::Tcx => {
                self.load_called_function(position, function.inner, kernel)
            }
            FunctionRuntime::Kernel(kernel) => {
                self.load_kernel_function(position, function.inner, kernel)
            }
            FunctionRuntime::Worker => self.load_worker_link(position, None),
            FunctionRuntime::LastWorker { peer } => self.load_worker_link(position, Some(*peer)),
            FunctionRuntime::BlackBox => self.load_black_box_links(position),
        }
    }

    fn load_kernel_function(
        &self,
        position: u8,
        inner: u32,
        function: &FunctionInstance,
    ) -> Result<FunctionLink, Error> {
        let exit = self.exit_to(position + 1);
        let hop_exit = match exit {
            // Back over the link: the stack of the plane's namespace transmits.
            HopExit::Stack { .. } => HopExit::Link { ifindex: inner },
            exit => exit.for_other_namespace(u32::from(position) + 1),
        };
        let hop = self.hop(position, hop_exit);
        let mut maps = self.maps(self.section(position), None);
        maps.insert(0, ("devices", self.devices.as_fd()));
        let states = &self.shared.states;
        let inner = instance::load(Hook::Xdp, position, function, hop, &maps, states)?;
        // Without a way out by the stack, only packets of the namespace's own stack arrive here.
        let near = self.load_forwarder(position, PacketSource::METADATA, exit, None)?;
        Ok(self.make_link(position, near, (inner, INNER)))
    }

    /// Loads a kernel function at tcx. `inner` is the interface index of the link's inner end.
    fn load_called_function(
        &self,
        position: u8,
        inner: u32,
        function: &FunctionInstance,
    ) -> Result<FunctionLink, Error> {
        let hop_back = self.hop(position, HopExit::Link { ifindex: inner });
        let maps = self.maps(self.section(position), None);
        let program = instance::load(
            Hook::Tcx,
            position,
            function,
            hop_back,
            &maps,
            &self.shared.states,
        )?;
        let called = LoadedSegment::load_entry(self.shared, Hook::Tcx, program)?;
        let tagged = PacketSource::from_carrier(Carrier::Tag);
        let exit = HopExit::Next {
            slot: called.slots().start(),
        };
        let inner = self.load_forwarder(position, tagged, exit, None)?;
        let near = self.load_forwarder(position, tagged, self.exit_to(position + 1), None)?;
        Ok(FunctionLink {
            called: Some(called),
            ..self.make_link(position, near, (inner, INNER))
        })
    }

    /// Loads the programs of a worker. `last_peer` is set for the last function only: whether
    /// packets go directly to the far end of the egress.
    fn load_worker_link(
        &self,
        position: u8,
        last_peer: Option<bool>,
    ) -> Result<FunctionLink, Error> {
        let sockets = self.shared.create_sockets()?;
        let exit = HopExit::User { position };
        let inner = self.load_forwarder(position, PacketSource::METADATA, exit, Some(&sockets))?;
        let near = if let Some(peer) = last_peer {
            self.load_leave(position, peer)?
        } else {
            let exit = self.exit_to(position + 1);
            self.load_forwarder(
                position,
                PacketSource::from_carrier(Carrier::Nsh),
                exit,
                None,
            )?
        };
        let mut link = self.make_link(position, near, (inner, INNER));
        if last_peer.is_some() {
            link.near.hook = Hook::Tcx;
            link.near.leave = None;
        }
        link.sockets = Some(sockets);
        Ok(link)
    }

    fn load_black_box_links(&self, position: u8) -> Result<FunctionLink, Error> {
        let functions = &self.config.functions;
        let first = egress_line(self.lines, functions.len() as u8) + 1;
        let out = first + 2 * self.section(position) as u32;
        let slots = BlackBoxSlots { out, back: out + 1 };
        let source = |out_line, passed, replies| PacketSource {
            carrier: Carrier::Link,
            out_line,
            passed,
            replies,
        };
        let exit = self.exit_to(position + 1);
        let near = self.load_forwarder(position, source(slots.out, 1, false), exit, None)?;
        let exit = HopExit::Link {
            ifindex: self.config.ingress,
        };
        let back = self.load_forwarder(position, source(slots.back, 0, true), exit, None)?;
        Ok(FunctionLink {
            black_box: Some(slots),
            ..self.make_link(position, near, (back, "back"))
        })
    }

    /// Combines the programs at the near end and at the far end. `far` includes the name of the far
    /// end.
    fn make_link(
        &self,
        position: u8,
        near: LoadedFunction,
        far: (LoadedFunction, &str),
    ) -> FunctionLink {
        FunctionLink {
            near: self.make_end(position, near, "near"),
            far: self.make_end(position, far.0, far.1),
            called: None,
            sockets: None,
            black_box: None,
        }
    }

    fn make_end(&self, position: u8, program: LoadedFunction, name: &str) -> LinkEnd {
        let Self { shared, config, .. } = self;
        let pin = shared.pin_dir.as_deref().map(|dir| {
            let chain = format!("{}-{}", config.spi, config.generation);
            dir.join(format!("{}sff-{chain}-{position}-{name}", pins::LINK))
        });
        LinkEnd {
            hook: self.config.hook,
            is_inner: name == INNER,
            attachments: Mutex::default(),
            program,
            leave: self.leave.clone().filter(|_| name != INNER),
            pin,
        }
    }

    /// Loads the program behind the last function, which is in user space.
    fn load_leave(&self, position: u8, peer: bool) -> Result<LoadedFunction, Error> {
        let exit = HopExit::Out {
            ifindex: self.config.egress,
            peer,
            line: egress_line(self.lines, position + 1),
        };
        let hop = self.hop(position, exit);
        let maps = self.shared.maps(Hook::Tcx);
        let program = LEAVE.load(Hook::Tcx, bytemuck::bytes_of(&hop), &maps)?;
        Ok(program.into())
    }

    /// Returns the section of the function at `position`. A black box at `position` ends the
    /// section.
    fn section(&self, position: u8) -> usize {
        count_black_boxes(&self.config.functions[..usize::from(position)])
    }

    /// Loads a program that forwards the chain's packets. The program drops all other packets, and
    /// counts the drops for the function at `position`.
    pub(super) fn load_forwarder(
        &self,
        position: u8,
        source: PacketSource,
        exit: HopExit,
        sockets: Option<&Sockets>,
    ) -> Result<LoadedFunction, Error> {
        let instance = Forwarder {
            hop: self.hop(position, exit),
            carrier: source.carrier as u32,
            spi: self.config.spi,
            generation: self.config.generation,
            position: u16::from(position) + 1,
            ingress: self.config.ingress,
            by_stack: u32::from(source.replies && self.leave.is_some()),
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

    /// Returns the exit to the function at `position`, or the exit out of the chain after the last
    /// function. The entry of a black box is also an exit out of the chain, because such an exit
    /// counts packets.
    pub(super) fn exit_to(&self, position: u8) -> HopExit {
        let functions = &self.config.functions;
        let out = |ifindex, line| HopExit::Out {
            ifindex,
            peer: self.config.peer && self.config.hook == Hook::Tcx,
            line,
        };
        match functions.get(usize::from(position)) {
            None => {
                let line = egress_line(self.lines, functions.len() as u8);
                let (ifindex, config) = (self.config.egress, self.config);
                let way = (config.peer, self.leave.is_some());
                HopExit::at_egress(config.hook, ifindex, way, line)
            }
            Some(next) if matches!(next.runtime, FunctionRuntime::BlackBox) => {
                out(next.near, function_line(self.lines, position))
            }
            Some(next) => HopExit::Link { ifindex: next.near },
        }
    }

    fn hop(&self, position: u8, exit: HopExit) -> Hop {
        let line = function_line(self.lines, position);
        Hop::new(
            self.shared.counters.counting(),
            line,
            exit,
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

/// Returns the tag in `skb->priority` between the chain's first and last program; never 0.
fn tag(config: &DistributedConfig) -> u32 {
    config.spi | (0x80 | u32::from(config.generation) & 0x7f) << 24
}

pub(super) fn count_black_boxes(functions: &[DistributedFunction]) -> usize {
    let is_box =
        |function: &&DistributedFunction| matches!(function.runtime, FunctionRuntime::BlackBox);
    functions.iter().filter(is_box).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::assert_same_layout;

    #[test]
    fn forwarders_match_their_c_layout() {
        assert_same_layout!(
            SFF,
            "sff",
            Forwarder {
                hop,
                carrier,
                spi,
                generation,
                position,
                ingress,
                by_stack,
                out_line,
                tag
            }
        );
    }
}
