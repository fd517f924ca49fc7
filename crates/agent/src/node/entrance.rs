//! The way of a chain's packets from its ingress port to its front door: directly, or over the
//! port's entry link. The front door of a chain on super-packets is in its worker.

use myelin_kernel::{CounterLine, LoadedChain, Relay};
use myelin_packet::Match;
use myelin_planner::Plan;

use crate::api::ApiError;
use crate::node::Parts;
use crate::node::ports::{Port, PortKey, PortLease};
use crate::node::wire_size::WireSize;

/// The entrance of a generation.
pub(crate) struct Entrance {
    // Fields drop in this order: a sender gets its offloads back before its port closes.
    /// Set if the chain needs packets of wire size, and the front door is at a port with a sender.
    _wire_size: Option<WireSize>,
    /// The port where packets arrive.
    ingress: PortLease,
    /// The port with the front door: the ingress port, or the far end of its entry link.
    pub(crate) door: PortLease,
    /// Sends packets over the entry link; `None` if the front door is at the ingress port.
    relay: Option<Relay>,
    /// Whether the front door is in the kernel, at the port `door`.
    is_in_kernel: bool,
}

impl Entrance {
    /// Opens the entrance of a chain, as planned. Makes the entry link of the ingress port if the
    /// chain is the first one that uses the link.
    pub(crate) fn open(
        parts: &Parts,
        ingress: &PortLease,
        plan: &Plan,
        spi: u32,
    ) -> Result<Self, ApiError> {
        if !plan.entry_link {
            let sender = ingress.sender.clone().filter(|_| plan.wire_size);
            return Ok(Self {
                _wire_size: sender.map(WireSize::demand).transpose()?,
                ingress: ingress.clone(),
                door: ingress.clone(),
                relay: None,
                is_in_kernel: true,
            });
        }
        let super_packets = plan.super_packets;
        let key = if super_packets {
            PortKey::BehindSuperPacketLink(ingress.ifindex)
        } else {
            PortKey::BehindLink(ingress.ifindex)
        };
        let open = || Port::open_behind_link(parts, ingress.ifindex, super_packets);
        let door = parts.ports.acquire(&key, open)?;
        let near = door.entry_link().map_or(0, |link| link.near);
        let relay = parts.plane.add_relay(spi, near).map_err(ApiError::failed)?;
        Ok(Self {
            _wire_size: None,
            ingress: ingress.clone(),
            door,
            relay: Some(relay),
            is_in_kernel: !super_packets,
        })
    }

    /// Redirects the packets of `rule` to a chain. A match of an earlier generation changes
    /// atomically. `is_new`: the front door has no such match yet.
    pub(crate) fn redirect(
        &self,
        rule: &Match,
        loaded: &LoadedChain,
        is_new: bool,
    ) -> Result<(), myelin_kernel::Error> {
        self.door.door().redirect(rule, loaded)?;
        let Some(relay) = &self.relay else {
            return Ok(());
        };
        let relayed = self.ingress.door().redirect_to_relay(rule, relay);
        if relayed.is_err() && is_new {
            // The caller gets the first error.
            let _ = self.door.door().remove(rule);
        }
        relayed
    }

    /// Redirects the packets of `rule` over the entry link to a worker.
    pub(crate) fn redirect_to_worker(&self, rule: &Match) -> Result<(), myelin_kernel::Error> {
        match &self.relay {
            Some(relay) => self.ingress.door().redirect_to_relay(rule, relay),
            None => Ok(()),
        }
    }

    /// Removes a match, first at the ingress port.
    pub(crate) fn remove(&self, rule: &Match) -> Result<(), myelin_kernel::Error> {
        self.remove_at_ingress(rule)?;
        self.remove_behind_link(rule)
    }

    /// Removes a match at the ingress port. Packets on an entry link still reach the front door.
    pub(crate) fn remove_at_ingress(&self, rule: &Match) -> Result<(), myelin_kernel::Error> {
        self.ingress.door().remove(rule).map(drop)
    }

    /// Removes a match behind the entry link. Does nothing without an entry link.
    pub(crate) fn remove_behind_link(&self, rule: &Match) -> Result<(), myelin_kernel::Error> {
        if self.relay.is_some() && self.is_in_kernel {
            self.door.door().remove(rule)?;
        }
        Ok(())
    }

    /// Whether packets come over an entry link.
    pub(crate) fn is_over_link(&self) -> bool {
        self.relay.is_some()
    }

    /// The packets that arrived at the ingress port. `None` if the front door counts them.
    pub(crate) fn arrived(&self) -> Option<CounterLine> {
        self.relay.as_ref().map(Relay::counters)
    }

    /// The fragments of any chain that the front doors dropped.
    pub(crate) fn dropped_fragments(&self) -> u64 {
        let dropped = |port: &PortLease| port.door().counters().fragments.packets;
        let behind_link = self.relay.as_ref().map_or(0, |_| dropped(&self.door));
        dropped(&self.ingress) + behind_link
    }

    /// Index of the near end of the entry link.
    pub(crate) fn near(&self) -> Option<u32> {
        self.door.entry_link().map(|link| link.near)
    }
}
