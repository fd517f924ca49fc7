//! The wires of a part: where its frames arrive from the previous node, and where they leave to the
//! next one. `docs/internals/nodes.md` has the way of a packet.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use myelin_kernel::{
    Neighbour, PartArrival, PartFrames, PartTtl, UserPort, WireDoor, WireDrops, WireExit,
    WireExitConfig, WireExitCounters,
};
use myelin_linux::journal::ResourceGuard;
use myelin_linux::link::{Link, LinkId};
use myelin_linux::neighbour;
use myelin_linux::netlink::Netlink;
use myelin_packet::MacAddr;
use myelin_packet::wire::{LARGEST_MTU, Tunnel, WireHeader, remaining_mtu};
use myelin_spec::{PartSpec, PeerSpec, ServiceChain, VxlanSpec, Way};

use crate::api::ApiError;
use crate::node::Parts;
use crate::node::entry_link::InternalVeth;
use crate::node::ports::{Port, PortKey, PortLease};
use crate::pool::{Lease, Pool, lock};

/// Longest wait for the neighbour's Ethernet address while a part comes up. The neighbour may come
/// up later, so this is no error.
const RESOLUTION: Duration = Duration::from_millis(500);

/// The interfaces of this node that take or drop frames with NSH, by index.
pub(crate) type WiredInterfaces = Pool<u32, WiredInterface>;

/// An interface at which frames of other nodes may arrive. Drops all frames with NSH that belong to
/// no part. Dropping the value detaches its program.
pub(crate) struct WiredInterface {
    door: WireDoor,
    pub(crate) name: String,
    pub(crate) ifindex: u32,
}

impl WiredInterface {
    fn acquire(parts: &Parts, link: &Link) -> Result<Lease<u32, Self>, ApiError> {
        parts.wired.acquire(&link.index, || {
            let door = parts.plane.add_wire_door((&link.name, link.index));
            let door = door.map_err(ApiError::failed)?;
            door.attach().map_err(ApiError::failed)?;
            Ok(Self {
                door,
                name: link.name.clone(),
                ifindex: link.index,
            })
        })
    }
}

impl Drop for WiredInterface {
    fn drop(&mut self) {
        // A pinned program outlives a killed agent, so detach it explicitly.
        if let Err(error) = self.door.detach() {
            tracing::warn!(interface = self.name, %error, "cannot detach the program that takes frames of other nodes");
        }
    }
}

/// The wires of a part. Dropping the value ends them.
pub(crate) struct Wires {
    // Fields drop in this order.
    arrival: Option<PartArrival>,
    /// The port to the next node.
    exit: Option<PortLease>,
    _exit_link: Option<ResourceGuard>,
    /// Keeps frames with NSH away from the ports of users.
    _user_ports: Vec<UserPort>,
    /// The part's interfaces.
    interfaces: Vec<Lease<u32, WiredInterface>>,
}

impl Wires {
    /// Opens the wires of a part between two interfaces. Returns the ports of the part too.
    pub(crate) fn open(
        chain: &ServiceChain,
        part: &PartSpec,
        [ingress, egress]: [&Link; 2],
        parts: &Parts,
    ) -> Result<(PortLease, PortLease, Self), ApiError> {
        let mut interfaces = vec![WiredInterface::acquire(parts, ingress)?];
        if egress.index != ingress.index {
            interfaces.push(WiredInterface::acquire(parts, egress)?);
        }
        let ends = [(&part.from, ingress.index), (&part.to, egress.index)];
        let of_users = ends.iter().filter(|(peer, _)| peer.is_none());
        let of_users = of_users.filter_map(|(_, index)| {
            let mut interfaces = interfaces.iter();
            interfaces.find(|interface| interface.ifindex == *index)
        });
        let user_ports = of_users.map(|interface| interface.door.add_user_port());
        let user_ports: Result<Vec<_>, _> = user_ports.collect();
        let user_ports = user_ports.map_err(ApiError::failed)?;
        let first = u8::MAX - part.first;
        let (ingress, arrival, ttl) = match &part.from {
            Some(from) => {
                let frames = (part.path, first);
                let opened = open_arrival(parts, frames, from, (ingress, &interfaces[0]));
                let (port, arrival, ttl) = opened.map_err(|error| in_part(chain, error))?;
                (port, Some(arrival), Some(ttl))
            }
            None => (open_port(parts, ingress)?, None, None),
        };
        let (egress, exit_link) = match &part.to {
            Some(to) => {
                let end = part.end(chain.functions.len()) as u8;
                let frames = (part.path, u8::MAX - end);
                let opened = open_exit(parts, frames, to, (egress, ttl.as_ref()));
                let (port, link) = opened.map_err(|error| in_part(chain, error))?;
                (port, Some(link))
            }
            None => (open_port(parts, egress)?, None),
        };
        let wires = Self {
            arrival,
            exit: exit_link.is_some().then(|| egress.clone()),
            _exit_link: exit_link,
            _user_ports: user_ports,
            interfaces,
        };
        Ok((ingress, egress, wires))
    }

    /// The frames with NSH that the part's interfaces dropped, of all parts there.
    pub(crate) fn drops(&self) -> Vec<WireDrops> {
        let doors = self.interfaces.iter();
        doors.map(|interface| interface.door.drops()).collect()
    }

    /// The frames that arrived from the previous node.
    pub(crate) fn arrival(&self) -> Option<&PartArrival> {
        self.arrival.as_ref()
    }

    /// The packets that left to the next node.
    pub(crate) fn exit(&self) -> Option<WireExitCounters> {
        let exit = self.exit.as_ref()?.wire_exit.as_ref()?;
        Some(exit.counters())
    }

    /// Name and index of each interface.
    pub(crate) fn interfaces(&self) -> impl Iterator<Item = (&str, u32)> {
        let interfaces = self.interfaces.iter();
        interfaces.map(|interface| (&*interface.name, interface.ifindex))
    }
}

fn open_port(parts: &Parts, link: &Link) -> Result<PortLease, ApiError> {
    let key = PortKey::Interface(link.index);
    let open = || Port::open(&parts.plane, link, None, &parts.journal);
    parts.ports.acquire(&key, open)
}

/// Opens the way of a part's frames from an interface to the part's front door.
fn open_arrival(
    parts: &Parts,
    (path, index): (u32, u8),
    from: &PeerSpec,
    (link, interface): (&Link, &WiredInterface),
) -> Result<(PortLease, PartArrival, Arc<PartTtl>), ApiError> {
    let name = format!("wire from {path} {index}");
    let open = || {
        let mtu = link.mtu.min(LARGEST_MTU);
        let made = InternalVeth::make(parts, &name, mtu, false)?;
        Port::open_behind_wire(parts, made, remaining_mtu(mtu, from.tunnel().as_ref()))
    };
    let port = parts.ports.acquire(&PortKey::FromWire(path, index), open)?;
    let ttl = parts.plane.add_part_ttl().map_err(ApiError::failed)?;
    let frames = PartFrames {
        path,
        index,
        neighbour: match from.way {
            Way::Ethernet(mac) => Neighbour::Ethernet(mac),
            Way::Vxlan(VxlanSpec { local, remote, vni }) => {
                Neighbour::Vxlan(Tunnel { local, remote, vni })
            }
        },
        near: port.entry_link().map_or(0, |link| link.near),
    };
    let arrival = interface.door.insert(&frames, &ttl).map_err(|error| {
        let (name, position) = (&interface.name, u8::MAX - index);
        ApiError::failed(format!(
            "{error}: another chain may take the frames of path {path} at position {position} from {name}: `myelin ps` lists \
             the chains"
        ))
    });
    Ok((port, arrival?, ttl))
}

/// Opens the way of a part's packets to the next node.
fn open_exit(
    parts: &Parts,
    (path, index): (u32, u8),
    to: &PeerSpec,
    (link, ttl): (&Link, Option<&Arc<PartTtl>>),
) -> Result<(PortLease, ResourceGuard), ApiError> {
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
    let open = || {
        Port::open_before_wire(
            &parts.plane,
            &near,
            way,
            remaining_mtu(mtu, to.tunnel().as_ref()),
        )
    };
    let port = parts.ports.acquire(&PortKey::ToWire(path, index), open)?;
    Ok((port, guard))
}

/// The way of a part's packets to the next node.
pub(crate) struct WireWay {
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
    pub(crate) fn counters(&self) -> WireExitCounters {
        self.exit.counters()
    }

    pub(crate) fn detach(&self) -> Result<(), myelin_kernel::Error> {
        self.exit.detach()
    }

    /// Whether the neighbour's Ethernet address is known.
    fn is_resolved(&self) -> bool {
        lock(&self.header).is_some()
    }

    /// Reads the addresses of the interface and of the next hop, and sets the headers if they
    /// changed. Asks the kernel to resolve an unknown next hop.
    pub(crate) fn refresh(&self, netlink: &mut Netlink) -> Result<(), ApiError> {
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

/// Refreshes the headers of all exits. `control::links` calls this often enough for the kernel's
/// neighbour table.
pub(crate) fn refresh_exits(parts: &Parts, netlink: &mut Netlink) {
    for (_, port) in parts.ports.members() {
        let refreshed = port.wire_exit.as_ref().map(|way| way.refresh(netlink));
        if let Some(Err(error)) = refreshed {
            tracing::debug!(interface = port.name, %error, "cannot refresh the headers to the next node");
        }
    }
}

/// Adds the place of the part to an error.
fn in_part(chain: &ServiceChain, mut error: ApiError) -> ApiError {
    let (place, name) = (&chain.places.part, &chain.name);
    error.message = format!("{place}: chain `{name}`: spec.part: {}", error.message);
    error
}
