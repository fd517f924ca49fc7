//! Ports: interfaces with a front door, shared by all chains that enter or leave there.

use std::sync::Mutex;

use myelin_kernel::{Opposite, Plane, Port as Door, PortConfig, XdpMode};
use myelin_linux::ethtool::Ethtool;
use myelin_linux::journal::{Journal, Resource, ResourceGuard};
use myelin_linux::link::{self, Link};
use myelin_linux::netlink::Netlink;

use crate::api::ApiError;
use crate::node::workers::Key;
use crate::pool::{Lease, lock};

/// A user's lease on a port, by interface index.
pub(crate) type PortLease = Lease<u32, Port>;

/// An interface with a front door. Dropping it detaches the door.
pub(crate) struct Port {
    door: Door,
    pub(crate) name: String,
    pub(crate) ifindex: u32,
    /// Number of receive queues.
    pub(crate) queues: u32,
    /// Chains that enter here by the XDP hook.
    xdp_users: Mutex<u32>,
    /// The worker whose sockets are bound here, with the number of generations: a queue has one
    /// packet memory with one owner.
    bound: Mutex<Option<(Key, u32)>>,
    /// Set if Myelin made the interface promiscuous.
    _promiscuous: Option<ResourceGuard>,
}

impl Port {
    /// Makes the interface a port. `opposite` gets the unmatched traffic of an interface that
    /// Myelin made. Without it the interface is foreign and becomes promiscuous: a chain's frames
    /// are addressed to the next hop, not to this machine.
    pub(crate) fn open(
        plane: &Plane,
        link: &Link,
        opposite: Option<Opposite>,
        journal: &Journal,
    ) -> Result<Self, ApiError> {
        let queues = receive_queues(link);
        let config = PortConfig {
            name: link.name.clone(),
            ifindex: link.index,
            opposite,
            single_queue: queues == Some(1),
        };
        let is_foreign = opposite.is_none() && !link.promiscuous;
        let promiscuous = is_foreign.then(|| make_promiscuous(link, journal));
        let port = Self {
            door: plane.add_port(config).map_err(ApiError::failed)?,
            name: link.name.clone(),
            ifindex: link.index,
            queues: queues.unwrap_or(1),
            xdp_users: Mutex::default(),
            bound: Mutex::default(),
            _promiscuous: promiscuous.transpose().map_err(ApiError::failed)?,
        };
        port.door.attach_tcx().map_err(ApiError::failed)?;
        Ok(port)
    }

    /// The front door.
    pub(crate) fn door(&self) -> &Door {
        &self.door
    }

    /// The owner whose worker has the queues.
    pub(crate) fn queue_owner(&self) -> Option<String> {
        let bound = lock(&self.bound);
        bound.as_ref().map(|(worker, _)| worker.owner.clone())
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        // Pinned programs outlive a killed agent, so detach them explicitly.
        if let Err(error) = self.door.detach() {
            tracing::warn!(interface = self.name, %error, "cannot detach a front door");
        }
    }
}

/// A chain's use of the XDP hook of a port. The last one detaches the front door from that hook.
pub(crate) struct XdpAttachment(PortLease);

impl XdpAttachment {
    /// Attaches the front door at XDP for the first chain that enters there.
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
    /// Another owner's worker has them.
    pub(crate) fn claim(port: PortLease, worker: &Key) -> Result<Self, ApiError> {
        let mut bound = lock(&port.bound);
        match bound.as_mut() {
            Some((other, _)) if other != worker => {
                return Err(ApiError::failed(format!(
                    "interface {}: its queues are bound to the worker of owner `{}`, and owner `{}` may not share packet \
                     memory with it: give the chains the same namespace, other interfaces, or kernel functions only",
                    port.name, other.owner, worker.owner
                )));
            }
            Some((_, users)) => *users += 1,
            None => *bound = Some((worker.clone(), 1)),
        }
        drop(bound);
        Ok(Self(port))
    }
}

impl Drop for QueueClaim {
    fn drop(&mut self) {
        let mut bound = lock(&self.0.bound);
        if let Some((_, users)) = bound.as_mut() {
            *users -= 1;
            if *users == 0 {
                *bound = None;
            }
        }
    }
}

fn make_promiscuous(link: &Link, journal: &Journal) -> myelin_linux::Result<ResourceGuard> {
    let name = link.name.clone();
    let made = journal.guard(Resource::Promiscuous { name })?;
    Netlink::open()?.apply([link::set_promiscuous(&link.id(), true)])?;
    Ok(made)
}

/// Number of receive queues, if the driver reports it.
pub(crate) fn receive_queues(link: &Link) -> Option<u32> {
    let queues = Ethtool::open().and_then(|ethtool| ethtool.receive_queues(&link.name));
    queues.ok().flatten()
}
