//! The service function forwarder (RFC 7665) of a chain whose functions stand in network namespaces of their own
//! (CALVIN's distributed mapping).
//!
//! Each function has a link, a veth pair: the *near* end is in the plane's namespace, the *inner* end in the function's. A
//! small program in the chain's first slot redirects packets over the first link; a function in the kernel is a program at
//! the inner end that sends them back where they came from (`XDP_TX`), one in user space has an AF_XDP socket there; the
//! forwarder at the near end sends what comes back over the next link, or out of the chain. A link belongs to one position
//! of one chain, so every way is a constant of its program.
//!
//! The metadata area survives redirects and `XDP_TX`, not AF_XDP transmit: a worker puts it into an NSH header.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use myelin_spec::{FunctionInstance, OnFailure};

use crate::attach::{Attachment, Place, XdpMode};
use crate::blocks::Block;
use crate::chain::{ChainConfig, Entry, LoadedChain, Parts};
use crate::chain::{check_numbers, egress_line, function_line};
use crate::instance::{self, Hop, Instance, Way};
use crate::object::SFF;
use crate::plane::Shared;
use crate::port::Sockets;
use crate::segment::LoadedSegment;
use crate::sojourn::Sojourn;
use crate::{Error, Flows, Hook, flows, pins};

/// A chain of functions in namespaces of their own. Its packets are taken at the XDP hook.
#[derive(Clone, Debug)]
pub struct DistributedConfig {
    /// Service path identifier: 24 bits, one for each chain of the plane.
    pub spi: u32,
    /// Another one for each live change of the chain.
    pub generation: u16,
    /// What the front door does with a packet when the chain's first program is gone. One that is under way to a function
    /// that is gone is dropped.
    pub on_failure: OnFailure,
    /// The functions in order.
    pub functions: Vec<DistributedFunction>,
    /// Index of the interface where packets come in: there leaves what a function in user space sends back to their sender.
    pub ingress: u32,
    /// Index of the interface where packets leave the chain.
    pub egress: u32,
}

/// A function at the end of a link.
#[derive(Clone, Debug)]
pub struct DistributedFunction {
    /// Index of the near end of its link, in the plane's namespace.
    pub near: u32,
    /// The kernel function; `None` for one in user space.
    pub kernel: Option<FunctionInstance>,
}

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
}

/// `enum carrier`.
#[derive(Clone, Copy)]
enum Carrier {
    Metadata = 1,
    Nsh = 2,
}

/// The programs at both ends of a function's link.
///
/// Dropping it detaches them, unless the plane is pinned: then they stay until [`FunctionLink::detach`].
#[derive(Debug)]
pub struct FunctionLink {
    near: End,
    inner: End,
    sockets: Option<Sockets>,
}

/// One end of a link.
#[derive(Debug)]
struct End {
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
    let positions = config.functions.len() as u8;
    let lines = Arc::new(shared.counters.take(u32::from(positions) + 2)?);
    let sojourn = Sojourn::new(shared.cpus)?;
    let loader = Loader {
        shared,
        config,
        lines: &lines,
        sojourn: &sojourn,
    };
    let links = (0..positions)
        .zip(&config.functions)
        .map(|(position, function)| loader.link(position, function))
        .collect::<Result<_, _>>()?;
    let entry = loader.forwarder(0, Carrier::Metadata, loader.way_to(0), None)?;
    let segments = vec![LoadedSegment::entry(shared, Hook::Xdp, entry)?];
    let chain = ChainConfig {
        spi: config.spi,
        generation: config.generation,
        hook: Hook::Xdp,
        on_failure: config.on_failure,
        positions,
        entry: Entry::Kernel,
        segments: Vec::new(),
    };
    let parts = Parts {
        lines,
        sojourn: Some(sojourn),
        segments,
    };
    Ok((LoadedChain::assemble(shared, &chain, parts)?, links))
}

/// What the programs of a chain have in common.
struct Loader<'a> {
    shared: &'a Arc<Shared>,
    config: &'a DistributedConfig,
    lines: &'a Block,
    sojourn: &'a Sojourn,
}

impl Loader<'_> {
    fn link(&self, position: u8, function: &DistributedFunction) -> Result<FunctionLink, Error> {
        let (inner, sockets, carrier) = if let Some(function) = &function.kernel {
            let hop = self.hop(position, Way::Bounce);
            let maps = self.maps(None);
            let states = &self.shared.states;
            let program = instance::load(Hook::Xdp, position, function, hop, &maps, states)?;
            (program, None, Carrier::Metadata)
        } else {
            let sockets = Sockets::new(self.shared)?;
            let way = Way::User { position };
            let program = self.forwarder(position, Carrier::Metadata, way, Some(&sockets))?;
            (program, Some(sockets), Carrier::Nsh)
        };
        let near = self.forwarder(position, carrier, self.way_to(position + 1), None)?;
        let end = |program, name| End {
            attachment: None,
            program,
            pin: self.shared.pin_dir.as_deref().map(|dir| {
                let Self { config, .. } = self;
                let chain = format!("{}-{}", config.spi, config.generation);
                dir.join(format!("{}sff-{chain}-{position}-{name}", pins::LINK))
            }),
        };
        Ok(FunctionLink {
            near: end(near, "near"),
            inner: end(inner, "inner"),
            sockets,
        })
    }

    /// A program that sends on what is of this chain, and drops the rest on the account of the function at `position`.
    fn forwarder(
        &self,
        position: u8,
        carrier: Carrier,
        way: Way,
        sockets: Option<&Sockets>,
    ) -> Result<Instance, Error> {
        let instance = Forwarder {
            hop: self.hop(position, way),
            carrier: carrier as u32,
            spi: self.config.spi,
            generation: self.config.generation,
            position: u16::from(position) + 1,
            ingress: self.config.ingress,
        };
        let program = SFF.load(
            Hook::Xdp,
            bytemuck::bytes_of(&instance),
            &self.maps(sockets),
        )?;
        Ok(program.into())
    }

    /// The way to the function at `position`, or out of the chain behind the last one.
    fn way_to(&self, position: u8) -> Way {
        let functions = &self.config.functions;
        functions.get(usize::from(position)).map_or(
            Way::Out {
                ifindex: self.config.egress,
                peer: false,
                line: egress_line(self.lines, functions.len() as u8),
            },
            |next| Way::Link { ifindex: next.near },
        )
    }

    fn hop(&self, position: u8, way: Way) -> Hop {
        let line = function_line(self.lines, position);
        Hop::new(self.shared.counters.lines(), line, way, Hook::Xdp.drop())
    }

    fn maps<'m>(&'m self, sockets: Option<&'m Sockets>) -> Vec<(&'static str, BorrowedFd<'m>)> {
        let sockets = sockets.map(|sockets| ("sockets", sockets.0.as_fd()));
        let mut maps: Vec<_> = sockets.into_iter().collect();
        maps.push(("sojourn", self.sojourn.as_fd()));
        maps.extend(self.shared.maps(Hook::Xdp));
        maps
    }
}

impl FunctionLink {
    /// Attaches the forwarder to the near end of the link.
    pub fn attach_near(&mut self, name: &str, ifindex: u32) -> Result<(), Error> {
        self.near.attach(name, ifindex)
    }

    /// Attaches the function, or the way to its sockets, to the inner end of the link. To be called by a thread that is in
    /// the function's namespace.
    pub fn attach_inner(&mut self, name: &str, ifindex: u32) -> Result<(), Error> {
        self.inner.attach(name, ifindex)
    }

    /// Hands the packets of a receive queue of the inner end to this AF_XDP socket. A kernel function has no use for it.
    pub fn set_socket(&self, queue: u32, socket: BorrowedFd<'_>) -> Result<(), Error> {
        self.sockets
            .as_ref()
            .map_or(Ok(()), |sockets| sockets.set(queue, socket))
    }

    /// The flows that the function knows; `None` for one that keeps none, or is in user space.
    pub fn flows(&self) -> Result<Option<Flows>, Error> {
        let state = self.inner.program.state.as_deref();
        state.map_or(Ok(None), flows::read)
    }

    /// The forwarder, for test runs.
    pub fn near_program(&self) -> BorrowedFd<'_> {
        self.near.program.fd.as_fd()
    }

    /// The program at the inner end, for test runs.
    pub fn inner_program(&self) -> BorrowedFd<'_> {
        self.inner.program.fd.as_fd()
    }

    /// Detaches both programs, pinned or not.
    pub fn detach(self) -> Result<(), Error> {
        let results =
            [self.near, self.inner].map(|end| end.attachment.map_or(Ok(()), Attachment::detach));
        results.into_iter().collect()
    }
}

impl End {
    fn attach(&mut self, name: &str, ifindex: u32) -> Result<(), Error> {
        let place = Place {
            interface: name.to_owned(),
            ifindex,
        };
        self.attachment = Some(Attachment::xdp_pinned_at(
            self.program.fd.as_fd(),
            &place,
            XdpMode::Native,
            self.pin.clone(),
        )?);
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
                ingress
            }
        );
    }
}
