//! The ports of this node: interfaces with a front door, shared by all chains that enter or leave there.

use std::collections::BTreeMap;

use myelin_kernel::{Opposite, Plane, Port, PortConfig, XdpMode};
use myelin_linux::ethtool::Ethtool;
use myelin_linux::journal::{Journal, Resource};
use myelin_linux::link::{self, Link};
use myelin_linux::netlink::Netlink;

use crate::api::ApiError;
use crate::workers::Key;

/// A port, and who needs it.
pub(crate) struct Entry {
    pub(crate) door: Port,
    pub(crate) name: String,
    users: u32,
    /// Chains that enter here by the XDP hook.
    xdp_users: u32,
    /// Receive queues.
    pub(crate) queues: u32,
    /// The worker whose sockets are bound here: a queue has one packet memory, and that has one owner.
    bound: Option<Key>,
    /// That the port was made promiscuous here, and must stop being so.
    promiscuous: Option<Resource>,
}

impl Entry {
    /// The owner whose worker has the sockets of its queues.
    pub(crate) fn bound_to(&self) -> Option<&str> {
        self.bound.as_ref().map(|worker| worker.owner.as_str())
    }
}

/// All ports, by interface index.
#[derive(Default)]
pub(crate) struct Ports(BTreeMap<u32, Entry>);

impl Ports {
    /// Makes the interface a port, or counts one more user of it. `opposite` is the port where unmatched
    /// traffic goes, for an end that Myelin made; without it the interface is somebody else's and is made
    /// promiscuous, because the frames of a chain are addressed to the next hop and not to this machine.
    pub(crate) fn acquire(
        &mut self,
        plane: &Plane,
        link: &Link,
        opposite: Option<Opposite>,
        journal: &mut Journal,
    ) -> Result<(), ApiError> {
        if let Some(entry) = self.0.get_mut(&link.index) {
            entry.users += 1;
            return Ok(());
        }
        let door = plane
            .add_port(PortConfig {
                name: link.name.clone(),
                ifindex: link.index,
                opposite,
                single_queue: told_queues(link) == Some(1),
            })
            .map_err(ApiError::failed)?;
        let promiscuous =
            (opposite.is_none() && !link.promiscuous).then(|| Resource::Promiscuous {
                name: link.name.clone(),
            });
        let attached = door.attach_tcx().map_err(ApiError::failed).and_then(|()| {
            promiscuous
                .as_ref()
                .map_or(Ok(()), |resource| make_promiscuous(link, resource, journal))
        });
        if let Err(error) = attached {
            let _ = door.detach();
            return Err(error);
        }
        let entry = Entry {
            door,
            name: link.name.clone(),
            users: 1,
            xdp_users: 0,
            queues: receive_queues(link),
            bound: None,
            promiscuous,
        };
        self.0.insert(link.index, entry);
        Ok(())
    }

    /// Counts one user less; with the last one the front door goes.
    pub(crate) fn release(&mut self, ifindex: u32, journal: &mut Journal) {
        let Some(entry) = self.0.get_mut(&ifindex) else {
            return;
        };
        entry.users -= 1;
        if entry.users > 0 {
            return;
        }
        if let Some(entry) = self.0.remove(&ifindex) {
            // The programs are pinned, so that they outlive a killed agent; here they are to go.
            if let Err(error) = entry.door.detach() {
                tracing::warn!(interface = entry.name, %error, "a front door stays");
            }
            if let Some(resource) = entry.promiscuous {
                let restored = myelin_linux::journal::remove(&resource)
                    .and_then(|()| journal.removed(&resource));
                if let Err(error) = restored {
                    tracing::warn!(interface = entry.name, %error, "promiscuous mode stays on");
                }
            }
        }
    }

    /// The port of that interface.
    pub(crate) fn get(&self, ifindex: u32) -> Result<&Entry, ApiError> {
        self.0
            .get(&ifindex)
            .ok_or_else(|| ApiError::failed(format!("interface {ifindex} is no port")))
    }

    /// The port of that interface, for the sockets of this worker.
    ///
    /// # Errors
    /// Another worker has bound its sockets.
    pub(crate) fn bind(&mut self, ifindex: u32, worker: &Key) -> Result<&Entry, ApiError> {
        let entry = self.get_mut(ifindex)?;
        match &entry.bound {
            Some(bound) if bound != worker => Err(ApiError::failed(format!(
                "interface {}: its queues are bound to the worker of owner `{}`, and owner `{}` may not share packet \
                 memory with it: give the chains the same namespace, other interfaces, or kernel functions only",
                entry.name, bound.owner, worker.owner
            ))),
            _ => {
                entry.bound = Some(worker.clone());
                Ok(entry)
            }
        }
    }

    /// The sockets of this worker are gone.
    pub(crate) fn unbind(&mut self, ifindex: u32, worker: &Key) {
        if let Some(entry) = self.0.get_mut(&ifindex)
            && entry.bound.as_ref() == Some(worker)
        {
            entry.bound = None;
        }
    }

    /// The port of that interface, to change its classifier.
    fn get_mut(&mut self, ifindex: u32) -> Result<&mut Entry, ApiError> {
        self.0
            .get_mut(&ifindex)
            .ok_or_else(|| ApiError::failed(format!("interface {ifindex} is no port")))
    }

    /// One more chain enters here by XDP; the first one attaches the front door there.
    pub(crate) fn acquire_xdp(&mut self, ifindex: u32) -> Result<(), ApiError> {
        let entry = self.get_mut(ifindex)?;
        if entry.xdp_users == 0 {
            entry
                .door
                .attach_xdp(XdpMode::Native)
                .map_err(ApiError::failed)?;
        }
        entry.xdp_users += 1;
        Ok(())
    }

    /// One chain less enters here by XDP; with the last one the front door leaves that hook.
    pub(crate) fn release_xdp(&mut self, ifindex: u32) {
        if let Ok(entry) = self.get_mut(ifindex) {
            entry.xdp_users -= 1;
            if entry.xdp_users == 0
                && let Err(error) = entry.door.detach_xdp()
            {
                tracing::warn!(interface = entry.name, %error, "a front door stays at XDP");
            }
        }
    }
}

fn make_promiscuous(
    link: &Link,
    resource: &Resource,
    journal: &mut Journal,
) -> Result<(), ApiError> {
    journal
        .intend(resource)
        .and_then(|()| Netlink::open())
        .and_then(|mut netlink| netlink.apply([link::promiscuous(&link.id(), true)]))
        .map_err(ApiError::failed)
}

/// Queues that the interface receives on: what its driver says, else one.
fn receive_queues(link: &Link) -> u32 {
    told_queues(link).unwrap_or(1)
}

/// The same where the driver tells.
fn told_queues(link: &Link) -> Option<u32> {
    let channels = Ethtool::open()
        .and_then(|ethtool| ethtool.channels(&link.name))
        .ok()
        .flatten()?;
    Some((channels.combined + channels.receive).max(1))
}
