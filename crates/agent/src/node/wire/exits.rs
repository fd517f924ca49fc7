//! Where a part's packets leave to the next node, or each flow to one of several next nodes.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use myelin_kernel::{PartTtl, WireExit, WireExitConfig, WireExitCounters, WireSplit};
use myelin_linux::journal::ResourceGuard;
use myelin_linux::link::{Link, LinkId};
use myelin_linux::neighbour;
use myelin_linux::netlink::Netlink;
use myelin_packet::MacAddr;
use myelin_packet::wire::{LARGEST_MTU, WireHeader, remaining_mtu};
use myelin_spec::{PartSpec, PeerSpec, VxlanSpec, Way};

use crate::api::ApiError;
use crate::node::Parts;
use crate::node::entry_link::InternalVeth;
use crate::node::ports::{Port, PortKey, PortLease};
use crate::pool::lock;

/// Longest wait for the neighbour's Ethernet address while a part comes up. The neighbour may come
/// up later, so this is no error.
const RESOLUTION: Duration = Duration::from_millis(500);

/// The exits of a part: one, or one for each branch.
pub(crate) struct WireExits {
    /// The program that chooses the branch of each flow.
    split: Option<WireSplit>,
    ways: Vec<WireWay>,
}

impl WireExits {
    /// Returns the counters of all exits.
    pub(crate) fn counters(&self) -> WireExitCounters {
        let counters = self.ways.iter().map(|way| way.exit.counters());
        counters.fold(WireExitCounters::default(), WireExitCounters::plus)
    }

    /// Detaches all programs, pinned or not.
    pub(crate) fn detach(&self) -> Result<(), myelin_kernel::Error> {
        let split = self.split.as_ref().map_or(Ok(()), WireSplit::detach);
        let ways = self.ways.iter().map(|way| way.exit.detach());
        ways.fold(split, Result::and)
    }

    fn refresh(&self, netlink: &mut Netlink) -> Result<(), ApiError> {
        self.ways.iter().try_for_each(|way| way.refresh(netlink))
    }
}

/// Refreshes the headers of all exits. `control::links` calls this often enough for the kernel's
/// neighbour table.
pub(crate) fn refresh_exits(parts: &Parts, netlink: &mut Netlink) {
    for (_, port) in parts.ports.members() {
        let refreshed = port.wire_exits.as_ref().map(|exits| exits.refresh(netlink));
        if let Some(Err(error)) = refreshed {
            tracing::debug!(interface = port.name, %error, "cannot refresh the headers to the next node");
        }
    }
}

/// Opens the exits of a part behind a port. `links` are the interface that leads to the next node,
/// and those that lead to the branches.
pub(super) fn open(
    parts: &Parts,
    part: &PartSpec,
    (to, index): (&PeerSpec, u8),
    ((link, branches), ttl): ((&Link, &[Link]), Option<&Arc<PartTtl>>),
) -> Result<(PortLease, Vec<ResourceGuard>), ApiError> {
    let (near, mtu, exits, guards) = if part.split.is_empty() {
        let (way, near, guard) = open_way(parts, (part.path, index), to, (link, ttl))?;
        let mtu = remaining_mtu(link.mtu.min(LARGEST_MTU), to.tunnel().as_ref());
        let exits = WireExits {
            split: None,
            ways: vec![way],
        };
        (near, mtu, exits, vec![guard])
    } else {
        open_split(parts, part, index, (branches, ttl))?
    };
    let open = || Port::open_before_wire(&parts.plane, &near, exits, mtu);
    let port = parts
        .ports
        .acquire(&PortKey::ToWire(part.path, index), open)?;
    Ok((port, guards))
}

/// Opens an exit for each branch, and the link whose far end splits the flows. Returns the near end
/// of that link, and the longest IP packet that passes all exits.
fn open_split(
    parts: &Parts,
    part: &PartSpec,
    index: u8,
    (links, ttl): (&[Link], Option<&Arc<PartTtl>>),
) -> Result<(Link, u32, WireExits, Vec<ResourceGuard>), ApiError> {
    let (mut ways, mut guards, mut targets) = (Vec::new(), Vec::new(), Vec::new());
    let (mut longest, mut mtu) = (LARGEST_MTU, LARGEST_MTU);
    for (branch, link) in part.split.iter().zip(links) {
        let frames = (branch.path, index);
        let (way, near, guard) = open_way(parts, frames, &branch.peer, (link, ttl))?;
        targets.push((&*branch.name, near.index));
        ways.push(way);
        guards.push(guard);
        mtu = mtu.min(link.mtu);
        let tunnel = branch.peer.tunnel();
        longest = longest.min(remaining_mtu(link.mtu.min(LARGEST_MTU), tunnel.as_ref()));
    }
    let name = format!("split {} {index}", part.path);
    let InternalVeth { near, far, guard } = InternalVeth::make(parts, &name, mtu, false)?;
    let split = parts.plane.add_wire_split((&far.name, far.index), &targets);
    let split = split.map_err(ApiError::failed)?;
    split.attach().map_err(ApiError::failed)?;
    guards.push(guard);
    let exits = WireExits {
        split: Some(split),
        ways,
    };
    Ok((near, longest, exits, guards))
}

/// Opens the exit to a neighbour. Returns the near end of its link.
fn open_way(
    parts: &Parts,
    (path, index): (u32, u8),
    to: &PeerSpec,
    (link, ttl): (&Link, Option<&Arc<PartTtl>>),
) -> Result<(WireWay, Link, ResourceGuard), ApiError> {
    let mtu = link.mtu.min(LARGEST_MTU);
    let name = format!("wire to {path} {index}");
    let InternalVeth { near, far, guard } = InternalVeth::make(parts, &name, mtu, false)?;
    let config = WireExitConfig {
        far: (&far.name, far.index),
        interface: (link.index, mtu),
        tunnel: to.tunnel(),
        ttl,
    };
    let exit = parts.plane.add_wire_exit(&config);
    let way = WireWay {
        exit: exit.map_err(ApiError::failed)?,
        to: to.clone(),
        frames: (path, index),
        ifindex: link.index,
        header: Mutex::default(),
    };
    let mut netlink = Netlink::open().map_err(ApiError::failed)?;
    way.refresh(&mut netlink)?;
    let asked = Instant::now();
    while !way.is_resolved() && asked.elapsed() < RESOLUTION {
        std::thread::sleep(RESOLUTION / 50);
        way.refresh(&mut netlink)?;
    }
    way.exit.attach().map_err(ApiError::failed)?;
    Ok((way, near, guard))
}

/// The way of a part's packets to the next node.
struct WireWay {
    exit: WireExit,
    to: PeerSpec,
    /// Path and service index.
    frames: (u32, u8),
    /// Index of the interface that leads to the neighbour.
    ifindex: u32,
    /// The present headers; `None` while the neighbour's Ethernet address is unknown.
    header: Mutex<Option<WireHeader>>,
}

impl WireWay {
    /// Whether the neighbour's Ethernet address is known.
    fn is_resolved(&self) -> bool {
        lock(&self.header).is_some()
    }

    /// Reads the addresses of the interface and of the next hop, and sets the headers if they
    /// changed. Asks the kernel to resolve an unknown next hop.
    fn refresh(&self, netlink: &mut Netlink) -> Result<(), ApiError> {
        let link = netlink.link_by_index(self.ifindex);
        let link = link.map_err(ApiError::failed)?;
        let next_hop = match self.to.way {
            Way::Ethernet(mac) => Some(mac),
            Way::Vxlan(VxlanSpec { remote, .. }) => find_next_hop(netlink, &link.id(), remote)?,
        };
        let source = link.mac.map(|mac| MacAddr(mac.0));
        let (path, index) = self.frames;
        let header = source.zip(next_hop).map(|(source, next_hop)| WireHeader {
            source,
            next_hop,
            path,
            index,
            tunnel: self.to.tunnel(),
            destination: self.to.destination(),
        });
        let mut present = lock(&self.header);
        if *present != header {
            let set = self.exit.set_header(header.as_ref());
            set.map_err(ApiError::failed)?;
            *present = header;
        }
        Ok(())
    }
}

/// Returns the Ethernet address of the next hop to `remote`. If the kernel does not know it, or has
/// not confirmed it lately, asks the kernel to find it out.
fn find_next_hop(
    netlink: &mut Netlink,
    link: &LinkId,
    remote: IpAddr,
) -> Result<Option<MacAddr>, ApiError> {
    let next_hop = netlink.next_hop(link, remote).map_err(ApiError::failed)?;
    let found = netlink.neighbour(link, next_hop);
    let found = found.map_err(ApiError::failed)?;
    if !found.is_some_and(|neighbour| neighbour.is_confirmed) {
        let asked = netlink.apply([neighbour::resolve(link, next_hop)]);
        asked.map_err(ApiError::failed)?;
    }
    Ok(found.map(|neighbour| MacAddr(neighbour.mac.0)))
}
