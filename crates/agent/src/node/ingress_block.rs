//! Drops a chain's packets at its ingress port while the chain waits for an interface.

use myelin_kernel::Block;
use myelin_linux::netlink::Netlink;
use myelin_packet::Match;

use crate::api::ApiError;
use crate::node::Parts;
use crate::node::chains::RunningChain;
use crate::node::port_faults::find_header_fault;
use crate::node::port_state::LinkState;
use crate::node::ports::{Port, PortKey, PortLease};

/// A block of a chain's match. It keeps the port open, and promiscuous. Dropping the value removes
/// the block, unless a chain has the match by then.
pub(crate) struct IngressBlock {
    port: PortLease,
    rule: Match,
    block: Block,
}

impl IngressBlock {
    /// Drops the packets of a running chain from now on.
    ///
    /// # Errors
    /// The chain lies between DPDK devices, or its port does not redirect packets to it.
    pub(crate) fn replace(parts: &Parts, running: &RunningChain) -> Result<Self, ApiError> {
        let generation = running.generation();
        let (_, ingress, _) = generation.ports.kernel_ports()?;
        let blocked = Self::make(
            parts,
            ingress.clone(),
            generation.chain.matches,
            running.spi,
        )?;
        running.change(|generations| generations.is_classified = false);
        let entrance = generation.entrance()?;
        let removed = entrance.remove_behind_link(&blocked.rule);
        removed.map_err(ApiError::failed)?;
        Ok(blocked)
    }

    /// Opens the interface with this index as a port, and drops the packets of `rule` there.
    ///
    /// # Errors
    /// The interface is gone or cannot be a port, or another chain has the match.
    pub(crate) fn open(parts: &Parts, ifindex: u32, rule: Match) -> Result<Self, ApiError> {
        let mut netlink = Netlink::open().map_err(ApiError::failed)?;
        let link = netlink.link_by_index(ifindex).map_err(ApiError::failed)?;
        if let Some(fault) = find_header_fault(&link) {
            return Err(ApiError::failed(fault));
        }
        let key = PortKey::Interface(ifindex);
        let open = || Port::open(&parts.plane, &link, None, &parts.journal);
        let port = parts.ports.acquire(&key, open)?;
        Self::make(parts, port, rule, 0)
    }

    /// Drops the packets of `rule` instead of redirecting them to the chain `spi`.
    fn make(parts: &Parts, port: PortLease, rule: Match, spi: u32) -> Result<Self, ApiError> {
        let block = parts.plane.add_block().map_err(ApiError::failed)?;
        let blocked = port.door().block(&rule, &block, spi);
        blocked.map_err(ApiError::failed)?;
        Ok(Self { port, rule, block })
    }

    /// Drops the packets again after a deployment that failed.
    pub(crate) fn renew(&self) {
        if let Err(error) = self.port.door().block(&self.rule, &self.block, 0) {
            tracing::warn!(interface = self.port.name, %error, "cannot drop the packets of a waiting chain");
        }
    }

    /// Whether a chain that is deployed now could use this port: the port's interface still exists,
    /// and has not changed since it became a port.
    pub(crate) fn is_at(&self, link: &LinkState) -> bool {
        let port = &self.port;
        !port.was_removed()
            && (port.ifindex, port.mtu, port.queues) == (link.index, link.mtu, link.queues)
    }

    /// Number of dropped packets.
    pub(crate) fn dropped(&self) -> u64 {
        self.block.counters().drops
    }
}

impl Drop for IngressBlock {
    fn drop(&mut self) {
        if let Err(error) = self.port.door().unblock(&self.rule, &self.block) {
            tracing::warn!(interface = self.port.name, %error, "cannot remove the block of a chain");
        }
    }
}
