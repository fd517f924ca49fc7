//! The wires of a part: where its frames arrive from the previous node, and where they leave to the
//! next one. `docs/internals/nodes.md` has the way of a packet.

mod exits;

use std::sync::Arc;

use myelin_kernel::{
    Neighbour, PartArrival, PartFrames, PartTtl, UserPort, WireDoor, WireDrops, WireExitCounters,
};
use myelin_linux::journal::ResourceGuard;
use myelin_linux::link::Link;
use myelin_linux::netlink::Netlink;
use myelin_packet::wire::{LARGEST_MTU, Tunnel, remaining_mtu};
use myelin_spec::{PartSpec, PeerSpec, ServiceChain, VxlanSpec, Way};

use crate::api::ApiError;
use crate::node::Parts;
use crate::node::entry_link::InternalVeth;
use crate::node::ports::{Port, PortKey, PortLease};
use crate::pool::{Lease, Pool};

pub(crate) use self::exits::{WireExits, refresh_exits};

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
    _exit_links: Vec<ResourceGuard>,
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
        let branches = find_branch_links(part)?;
        let mut interfaces = vec![WiredInterface::acquire(parts, ingress)?];
        for link in std::iter::once(egress).chain(&branches) {
            if interfaces.iter().all(|known| known.ifindex != link.index) {
                interfaces.push(WiredInterface::acquire(parts, link)?);
            }
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
        let (egress, exit_links) = match &part.to {
            Some(to) => {
                let end = part.end(chain.functions.len()) as u8;
                let links = (egress, &*branches);
                let opened = exits::open(parts, part, (to, u8::MAX - end), (links, ttl.as_ref()));
                opened.map_err(|error| in_part(chain, error))?
            }
            None => (open_port(parts, egress)?, Vec::new()),
        };
        let wires = Self {
            arrival,
            exit: part.to.is_some().then(|| egress.clone()),
            _exit_links: exit_links,
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
        let exits = self.exit.as_ref()?.wire_exits.as_ref()?;
        Some(exits.counters())
    }

    /// Name and index of each interface.
    pub(crate) fn interfaces(&self) -> impl Iterator<Item = (&str, u32)> {
        let interfaces = self.interfaces.iter();
        interfaces.map(|interface| (&*interface.name, interface.ifindex))
    }
}

/// Finds the interfaces that lead to the branches of a part.
fn find_branch_links(part: &PartSpec) -> Result<Vec<Link>, ApiError> {
    let mut netlink = Netlink::open().map_err(ApiError::failed)?;
    let links = part.split.iter().map(|branch| {
        let link = netlink.link(&branch.peer.interface);
        link.map_err(ApiError::failed)
    });
    links.collect()
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
            Way::Vxlan(VxlanSpec {
                local, remote, vni, ..
            }) => Neighbour::Vxlan(Tunnel { local, remote, vni }),
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

/// Adds the place of the part to an error.
fn in_part(chain: &ServiceChain, mut error: ApiError) -> ApiError {
    let (place, name) = (&chain.places.part, &chain.name);
    error.message = format!("{place}: chain `{name}`: spec.part: {}", error.message);
    error
}
