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
    /// Set if Myelin made the interface promiscuous.
    _promiscuous: Option<ResourceGuard>,
}

impl Port {
    /// Makes the interface a port. `opposite` gets the unmatched traffic of an interface that
    /// Myelin made. An interface without `opposite` becomes promiscuous, because a chain's frames
    /// are addressed to the next hop, not to this machine.
    pub(crate) fn open(
        plane: &Plane,
        link: &Link,
        opposite: Option<Opposite>,
        journal: &Journal,
    ) -> Result<Self, ApiError> {
        let queues = read_receive_queues(link);
        let config = PortConfig {
            name: link.name.clone(),
            ifindex: link.index,
            opposite,
            single_queue: queues == Some(1),
        };
        let needs_promiscuous = opposite.is_none() && !link.promiscuous;
        let promiscuous = needs_promiscuous.then(|| make_promiscuous(link, journal));
        let port = Self {
            door: plane.add_port(config).map_err(ApiError::failed)?,
            name: link.name.clone(),
            ifindex: link.index,
            queues: queues.unwrap_or(1),
            xdp_users: Mutex::default(),
            queue_user: Mutex::default(),
            _promiscuous: promiscuous.transpose().map_err(ApiError::failed)?,
        };
        port.door.attach_tcx().map_err(ApiError::failed)?;
        Ok(port)
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
        if let Err(error) = self.door.detach() {
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

fn make_promiscuous(link: &Link, journal: &Journal) -> myelin_linux::Result<ResourceGuard> {
    let name = link.name.clone();
    let made = journal.guard(Resource::Promiscuous { name })?;
    Netlink::open()?.apply([link::set_promiscuous(&link.id(), true)])?;
    Ok(made)
}

/// Reads the number of receive queues, if the driver reports it.
pub(crate) fn read_receive_queues(link: &Link) -> Option<u32> {
    let queues = Ethtool::open().and_then(|ethtool| ethtool.receive_queues(&link.name));
    queues.ok().flatten()
}
