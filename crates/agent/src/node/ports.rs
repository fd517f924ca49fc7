//! Ports: interfaces with a front door, shared by all chains that enter or leave there.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use myelin_emulator::Host;
use myelin_kernel::{BehindLink, Opposite, Plane, Port as Door, PortConfig, XdpMode};
use myelin_linux::ethtool::Ethtool;
use myelin_linux::journal::{ForeignLink, Journal, Resource, ResourceGuard};
use myelin_linux::link::{self, Link};
use myelin_linux::netlink::Netlink;

use crate::api::ApiError;
use crate::node::Parts;
use crate::node::entry_link::{EntryLink, InternalVeth};
use crate::node::wire::WireExits;
use crate::node::wire_size::Sender;
use crate::node::workers::Key;
use crate::pool::{Lease, Pool, lock};

/// Identifies a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PortKey {
    /// The interface with this index.
    Interface(u32),
    /// The far end of the entry link of the interface with this index.
    BehindLink(u32),
    /// The far end of the interface's entry link for super-packets.
    BehindSuperPacketLink(u32),
    /// The far end of the internal link over which a part's frames arrive from another node: path
    /// and service index.
    FromWire(u32, u8),
    /// The near end of the internal link over which packets leave to the part with this path and
    /// service index.
    ToWire(u32, u8),
}

/// All ports.
pub(crate) type Ports = Pool<PortKey, Port>;
/// A user's lease on a port.
pub(crate) type PortLease = Lease<PortKey, Port>;

/// An interface with a front door. Dropping the port detaches the door.
pub(crate) struct Port {
    door: Door,
    pub(crate) name: String,
    pub(crate) ifindex: u32,
    /// Number of receive queues.
    pub(crate) queues: u32,
    /// Number of chains that enter here by the XDP hook.
    xdp_users: Mutex<u32>,
    /// The worker whose sockets are bound here, and the number of claims on the queues. A queue has
    /// one UMEM, and a UMEM has one owner.
    queue_user: Mutex<Option<(Key, u32)>>,
    /// Longest IP packet, bytes.
    pub(crate) mtu: u32,
    /// Packets that the interface had lost at transmission when it became a port.
    losses_before: u64,
    /// Whether the interface is no network card, so its far end may lack NAPI.
    pub(crate) is_virtual: bool,
    /// Whether the interface has had a carrier since it became a port.
    had_carrier: AtomicBool,
    /// Whether the kernel has reported the removal of the interface. Its index may be in use again.
    was_removed: AtomicBool,
    /// Set if Myelin made the interface promiscuous.
    _promiscuous: Option<ResourceGuard>,
    /// The link whose far end is this port.
    entry_link: Option<EntryLink>,
    /// The programs behind this port that send packets to another node.
    pub(crate) wire_exits: Option<WireExits>,
    /// The end host behind the port, if Myelin made it.
    pub(crate) sender: Option<Arc<Sender>>,
}

impl Port {
    /// Makes the interface a port. If Myelin made the end host behind the interface, `made` has the
    /// interface that gets the unmatched traffic, and the host. Any other interface becomes
    /// promiscuous, because a chain's frames are addressed to the next hop, not to this machine.
    pub(crate) fn open(
        plane: &Plane,
        link: &Link,
        made: Option<(Opposite, &Host)>,
        journal: &Journal,
    ) -> Result<Self, ApiError> {
        let needs_promiscuous = made.is_none() && !link.promiscuous;
        let promiscuous = needs_promiscuous.then(|| make_promiscuous(link, journal));
        let promiscuous = promiscuous.transpose().map_err(ApiError::failed)?;
        let sender = made.map(|(_, host)| Sender::on(host)).transpose();
        let opposite = made.map(|(opposite, _)| opposite);
        let config = door_config(link, opposite, BehindLink::No);
        let mut port = Self::attach_door(plane, link, config, (promiscuous, None))?;
        port.sender = sender.map_err(ApiError::failed)?.map(Arc::new);
        Ok(port)
    }

    /// Makes the entry link of the interface with this index, and a port at the link's far end.
    pub(crate) fn open_behind_link(
        parts: &Parts,
        ifindex: u32,
        super_packets: bool,
    ) -> Result<Self, ApiError> {
        let mut netlink = Netlink::open().map_err(ApiError::failed)?;
        let ingress = netlink.link_by_index(ifindex).map_err(ApiError::failed)?;
        let (entry_link, far) = EntryLink::make(&ingress, super_packets, parts)?;
        let config = PortConfig {
            discards: super_packets,
            ..door_config(&far, None, BehindLink::Entry)
        };
        Self::attach_door(&parts.plane, &far, config, (None, Some(entry_link)))
    }

    /// Makes a port of the far end of an internal link, over which frames of another node arrive.
    /// `mtu` is the longest IP packet in such a frame.
    pub(crate) fn open_behind_wire(
        parts: &Parts,
        made: InternalVeth,
        mtu: u32,
    ) -> Result<Self, ApiError> {
        let (link, far) = EntryLink::from_wire(made);
        let config = door_config(&far, None, BehindLink::Wire);
        let mut port = Self::attach_door(&parts.plane, &far, config, (None, Some(link)))?;
        let attached = port.door.attach_xdp(XdpMode::Native);
        attached.map_err(ApiError::failed)?;
        // The door at XDP removes the headers, so it stays.
        port.xdp_users = Mutex::new(1);
        (port.mtu, port.is_virtual) = (mtu, false);
        Ok(port)
    }

    /// Makes a port of the near end of an internal link, over which packets leave to another node.
    /// `mtu` is the longest IP packet that leaves.
    pub(crate) fn open_before_wire(
        plane: &Plane,
        near: &Link,
        exits: WireExits,
        mtu: u32,
    ) -> Result<Self, ApiError> {
        let config = door_config(near, None, BehindLink::No);
        // No frame arrives at the near end, so the door needs no program.
        let mut port = Self::make(plane, near, config, (None, None))?;
        (port.mtu, port.is_virtual) = (mtu, false);
        port.wire_exits = Some(exits);
        Ok(port)
    }

    fn attach_door(
        plane: &Plane,
        link: &Link,
        config: PortConfig,
        owned: (Option<ResourceGuard>, Option<EntryLink>),
    ) -> Result<Self, ApiError> {
        let port = Self::make(plane, link, config, owned)?;
        port.door.attach_tcx().map_err(ApiError::failed)?;
        Ok(port)
    }

    /// Makes a port whose front door is not attached.
    fn make(
        plane: &Plane,
        link: &Link,
        config: PortConfig,
        (promiscuous, entry_link): (Option<ResourceGuard>, Option<EntryLink>),
    ) -> Result<Self, ApiError> {
        Ok(Self {
            door: plane.add_port(config).map_err(ApiError::failed)?,
            name: link.name.clone(),
            ifindex: link.index,
            queues: read_receive_queues(link).unwrap_or(1),
            xdp_users: Mutex::default(),
            queue_user: Mutex::default(),
            mtu: link.mtu,
            losses_before: Netlink::open()
                .and_then(|mut netlink| netlink.transmit_losses(link.index))
                .map_err(ApiError::failed)?,
            is_virtual: !link.kind.is_empty(),
            had_carrier: AtomicBool::new(link.carrier),
            was_removed: AtomicBool::new(false),
            _promiscuous: promiscuous,
            entry_link,
            wire_exits: None,
            sender: None,
        })
    }

    /// Reads the packets that the interface has lost at transmission since it became a port, with
    /// those that its way to another node has lost.
    pub(crate) fn read_losses(&self, netlink: &mut Netlink) -> myelin_linux::Result<u64> {
        let losses = netlink.transmit_losses(self.ifindex)?;
        let counters = self.wire_exits.as_ref().map(WireExits::counters);
        let on_wire = counters.map_or(0, |counters| {
            counters.too_long.packets + counters.unresolved.packets
        });
        Ok(losses.saturating_sub(self.losses_before) + on_wire)
    }

    /// Records whether the interface has a carrier now. Returns whether it has had one.
    pub(crate) fn record_carrier(&self, has_carrier: bool) -> bool {
        self.had_carrier.fetch_or(has_carrier, Ordering::Relaxed) || has_carrier
    }

    /// Records that the kernel has reported the removal of the interface.
    pub(crate) fn mark_removed(&self) {
        self.was_removed.store(true, Ordering::Relaxed);
    }

    /// Whether the interface was removed.
    pub(crate) fn was_removed(&self) -> bool {
        self.was_removed.load(Ordering::Relaxed)
    }

    /// The entry link whose far end is this port.
    pub(crate) fn entry_link(&self) -> Option<&EntryLink> {
        self.entry_link.as_ref()
    }

    /// The front door.
    pub(crate) fn door(&self) -> &Door {
        &self.door
    }

    /// The owner whose worker binds the queues.
    pub(crate) fn queue_owner(&self) -> Option<String> {
        let queue_user = lock(&self.queue_user);
        queue_user.as_ref().map(|(worker, _)| worker.owner.clone())
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        // Pinned programs outlive a killed agent, so detach them explicitly.
        let exit = self.wire_exits.as_ref().map_or(Ok(()), WireExits::detach);
        if let Err(error) = self.door.detach().and(exit) {
            tracing::warn!(interface = self.name, %error, "cannot detach a front door");
        }
    }
}

/// A chain's use of the XDP hook of a port. Dropping the last use detaches the front door from the
/// hook.
pub(crate) struct XdpAttachment(PortLease);

impl XdpAttachment {
    /// Adds a chain. For the first chain, attaches the front door at XDP.
    pub(crate) fn attach(port: PortLease) -> Result<Self, ApiError> {
        let mut users = lock(&port.xdp_users);
        if *users == 0 {
            let attached = port.door.attach_xdp(XdpMode::Native);
            attached.map_err(ApiError::failed)?;
        }
        *users += 1;
        drop(users);
        Ok(Self(port))
    }

    /// Whether the attachment is at this port.
    pub(crate) fn is_at(&self, port: &Port) -> bool {
        self.0.ifindex == port.ifindex
    }
}

impl Drop for XdpAttachment {
    fn drop(&mut self) {
        let mut users = lock(&self.0.xdp_users);
        *users -= 1;
        if *users == 0
            && let Err(error) = self.0.door.detach_xdp()
        {
            tracing::warn!(interface = self.0.name, %error, "cannot detach a front door from XDP");
        }
    }
}

/// A worker's claim on the queues of a port.
pub(crate) struct QueueClaim(PortLease);

impl QueueClaim {
    /// Claims the queues for this worker.
    ///
    /// # Errors
    /// Another owner's worker has the queues.
    pub(crate) fn claim(port: PortLease, worker: &Key) -> Result<Self, ApiError> {
        let mut queue_user = lock(&port.queue_user);
        match queue_user.as_mut() {
            Some((other, _)) if other != worker => {
                return Err(ApiError::failed(format!(
                    "interface {}: the queues are bound to the worker of owner `{}`, and owner `{}` may not share that \
                    worker's UMEM: give the chains the same namespace, other interfaces, or kernel functions only",
                    port.name, other.owner, worker.owner
                )));
            }
            Some((_, users)) => *users += 1,
            None => *queue_user = Some((worker.clone(), 1)),
        }
        drop(queue_user);
        Ok(Self(port))
    }
}

impl Drop for QueueClaim {
    fn drop(&mut self) {
        let mut queue_user = lock(&self.0.queue_user);
        if let Some((_, users)) = queue_user.as_mut() {
            *users -= 1;
            if *users == 0 {
                *queue_user = None;
            }
        }
    }
}

/// The front door of an interface.
fn door_config(link: &Link, opposite: Option<Opposite>, behind_link: BehindLink) -> PortConfig {
    PortConfig {
        name: link.name.clone(),
        ifindex: link.index,
        opposite,
        single_queue: read_receive_queues(link) == Some(1),
        behind_link,
        discards: false,
    }
}

fn make_promiscuous(link: &Link, journal: &Journal) -> myelin_linux::Result<ResourceGuard> {
    let mut netlink = Netlink::open()?;
    let recorded = ForeignLink::new(&netlink, link)?;
    let made = journal.guard(Resource::Promiscuous(recorded))?;
    netlink.apply([link::set_promiscuous(&link.id(), true)])?;
    Ok(made)
}

/// Reads the number of receive queues, if the driver reports it.
pub(crate) fn read_receive_queues(link: &Link) -> Option<u32> {
    let queues = Ethtool::open().and_then(|ethtool| ethtool.receive_queues(&link.name));
    queues.ok().flatten()
}
