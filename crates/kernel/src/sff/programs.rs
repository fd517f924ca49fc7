//! The programs of a distributed chain: forwarders at the ends of the links, and kernel functions.

use std::os::fd::{AsFd, BorrowedFd};
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
use crate::instance::{self, Instance};
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
    /// The near ends by position, then the egress.
    pub(super) devices: &'a MapHandle,
    pub(super) lines: &'a NumberRange,
    /// One for each section.
    pub(super) sojourns: &'a [Sojourn],
}

/// The source of a forwarder's packets.
#[derive(Clone, Copy)]
pub(super) struct PacketSource {
    carrier: Carrier,
    /// Counts the packets from a black box.
    out_line: u32,
    /// Number of black boxes between the previous function and this point.
    passed: usize,
}

impl PacketSource {
    pub(super) const METADATA: Self = Self::of(Carrier::Metadata);

    pub(super) const fn of(carrier: Carrier) -> Self {
        Self {
            carrier,
            out_line: 0,
            passed: 0,
        }
    }
}

impl Loader<'_> {
    pub(super) fn link(
        &self,
        position: u8,
        function: &DistributedFunction,
    ) -> Result<FunctionLink, Error> {
        match &function.runtime {
            FunctionRuntime::Kernel(kernel) if self.config.hook == Hook::Tcx => {
                self.called_function(position, function.inner, kernel)
            }
            FunctionRuntime::Kernel(function) => self.kernel_function(position, function),
            FunctionRuntime::Worker => self.worker(position, None),
            FunctionRuntime::LastWorker { peer } => self.worker(position, Some(*peer)),
            FunctionRuntime::BlackBox => self.black_box(position),
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
        // Only packets of the namespace itself arrive here.
        let near = self.forwarder(position, PacketSource::METADATA, way, None)?;
        Ok(self.function_link(position, near, (inner, INNER)))
    }

    /// Loads a kernel function at tcx. `inner`: index of the link's end in its namespace.
    fn called_function(
        &self,
        position: u8,
        inner: u32,
        function: &FunctionInstance,
    ) -> Result<FunctionLink, Error> {
        let back = self.hop(position, HopExit::Link { ifindex: inner });
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
        let tagged = PacketSource::of(Carrier::Tag);
        let way = HopExit::Next {
            slot: called.slots().start(),
        };
        let inner = self.forwarder(position, tagged, way, None)?;
        let near = self.forwarder(position, tagged, self.way_to(position + 1), None)?;
        Ok(FunctionLink {
            called: Some(called),
            ..self.function_link(position, near, (inner, INNER))
        })
    }

    /// `last`, for the last function: whether packets go directly to the far end of the egress.
    fn worker(&self, position: u8, last: Option<bool>) -> Result<FunctionLink, Error> {
        let sockets = self.shared.sockets()?;
        let way = HopExit::User { position };
        let inner = self.forwarder(position, PacketSource::METADATA, way, Some(&sockets))?;
        let near = if let Some(peer) = last {
            self.leave(position, peer)?
        } else {
            let way = self.way_to(position + 1);
            self.forwarder(position, PacketSource::of(Carrier::Nsh), way, None)?
        };
        let mut link = self.function_link(position, near, (inner, INNER));
        if last.is_some() {
            link.near.hook = Hook::Tcx;
        }
        link.sockets = Some(sockets);
        Ok(link)
    }

    fn black_box(&self, position: u8) -> Result<FunctionLink, Error> {
        let functions = &self.config.functions;
        let behind = egress_line(self.lines, functions.len() as u8) + 1;
        let out = behind + 2 * self.section(position) as u32;
        let slots = BlackBoxSlots { out, back: out + 1 };
        let source = |out_line, passed| PacketSource {
            carrier: Carrier::Link,
            out_line,
            passed,
        };
        let way = self.way_to(position + 1);
        let near = self.forwarder(position, source(slots.out, 1), way, None)?;
        let way = HopExit::Link {
            ifindex: self.config.ingress,
        };
        let back = self.forwarder(position, source(slots.back, 0), way, None)?;
        Ok(FunctionLink {
            black_box: Some(slots),
            ..self.function_link(position, near, (back, "back"))
        })
    }

    /// Combines the programs at the near end and at the other end. `far` includes the name of the
    /// other end.
    fn function_link(&self, position: u8, near: Instance, far: (Instance, &str)) -> FunctionLink {
        FunctionLink {
            near: self.end(position, near, "near"),
            far: self.end(position, far.0, far.1),
            called: None,
            sockets: None,
            black_box: None,
        }
    }

    fn end(&self, position: u8, program: Instance, name: &str) -> LinkEnd {
        let Self { shared, config, .. } = self;
        let pin = shared.pin_dir.as_deref().map(|dir| {
            let chain = format!("{}-{}", config.spi, config.generation);
            dir.join(format!("{}sff-{chain}-{position}-{name}", pins::LINK))
        });
        LinkEnd {
            hook: self.config.hook,
            elsewhere: name == INNER,
            attachment: Mutex::default(),
            program,
            pin,
        }
    }

    /// Loads the program after a last function in user space.
    fn leave(&self, position: u8, peer: bool) -> Result<Instance, Error> {
        let way = HopExit::Out {
            ifindex: self.config.egress,
            peer,
            line: egress_line(self.lines, position + 1),
        };
        let hop = self.hop(position, way);
        let maps = self.shared.maps(Hook::Tcx);
        let program = LEAVE.load(Hook::Tcx, bytemuck::bytes_of(&hop), &maps)?;
        Ok(program.into())
    }

    /// Returns the section of the function at `position`, or the section that a black box there
    /// ends.
    fn section(&self, position: u8) -> usize {
        boxes_in(&self.config.functions[..usize::from(position)])
    }

    /// Loads a program that forwards the chain's packets. It drops all others, and counts them for
    /// the function at `position`.
    pub(super) fn forwarder(
        &self,
        position: u8,
        source: PacketSource,
        way: HopExit,
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

    /// Returns the exit to the function at `position`, or out of the chain after the last one. The
    /// entry of a black box also counts as an egress, so it counts the packets.
    pub(super) fn way_to(&self, position: u8) -> HopExit {
        let functions = &self.config.functions;
        let out = |ifindex, line| HopExit::Out {
            ifindex,
            peer: self.config.peer && self.config.hook == Hook::Tcx,
            line,
        };
        match functions.get(usize::from(position)) {
            None => out(
                self.config.egress,
                egress_line(self.lines, functions.len() as u8),
            ),
            Some(next) if matches!(next.runtime, FunctionRuntime::BlackBox) => {
                out(next.near, function_line(self.lines, position))
            }
            Some(next) => HopExit::Link { ifindex: next.near },
        }
    }

    fn hop(&self, position: u8, way: HopExit) -> Hop {
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

/// Returns the tag in `skb->priority` between the chain's first and last program; never 0.
fn tag(config: &DistributedConfig) -> u32 {
    config.spi | (0x80 | u32::from(config.generation) & 0x7f) << 24
}

pub(super) fn boxes_in(functions: &[DistributedFunction]) -> usize {
    let is_box =
        |function: &&DistributedFunction| matches!(function.runtime, FunctionRuntime::BlackBox);
    functions.iter().filter(is_box).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::assert_twins;

    #[test]
    fn forwarders_match_their_c_layout() {
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
