//! Configuration of a `load-balancer`.

use std::net::IpAddr;

use myelin_packet::MacAddr;
use myelin_packet::maglev::{Backend, MaglevTable};
use serde::{Deserialize, Serialize};

/// Flows of one load balancer at most.
pub const MAX_FLOWS: u32 = 1 << 20;
/// And at least: the kernel keeps this many apart for each CPU before it looks for the oldest.
pub const MIN_FLOWS: u32 = 1 << 10;

/// Configuration of a `load-balancer` function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadBalancerConfig {
    /// Where packets go, of one family or both, each address once; at most [`myelin_packet::maglev::MAX_BACKENDS`].
    pub backends: Vec<BackendSpec>,
    /// How long a flow without packets stays with its backend, ns.
    pub timeout_ns: u64,
    /// Flows it keeps, [`MIN_FLOWS`] to [`MAX_FLOWS`].
    pub flows: u32,
}

/// A backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackendSpec {
    /// What becomes the destination of packets.
    pub address: IpAddr,
    /// Its share of flows, in proportion to the others': 1 to [`myelin_packet::maglev::MAX_WEIGHT`].
    pub weight: u32,
    /// What becomes the Ethernet destination; `None` leaves that as it is.
    pub mac: Option<MacAddr>,
}

impl LoadBalancerConfig {
    /// The backends as tables hold them, in the order of the configuration.
    pub fn backends(&self) -> Vec<Backend> {
        let backend = |spec: &BackendSpec| Backend::new(spec.address, spec.mac);
        self.backends.iter().map(backend).collect()
    }

    /// The hash tables over them: of IPv4, and of IPv6.
    pub fn tables(&self) -> [MaglevTable; 2] {
        let backends = self.backends();
        [0, 1].map(|is_ipv6| {
            let own = (0..).zip(&backends).zip(&self.backends);
            MaglevTable::new(
                own.filter(|((_, backend), _)| backend.is_ipv6 == is_ipv6)
                    .map(|((number, backend), spec)| (number, backend, spec.weight)),
            )
        })
    }

    /// The part that the state of flows depends on: backends may come and go under it.
    #[must_use]
    pub fn shape(&self) -> Self {
        Self {
            flows: self.flows,
            ..Self::default()
        }
    }
}

/// What a file need not say.
impl Default for LoadBalancerConfig {
    fn default() -> Self {
        Self {
            backends: Vec::new(),
            timeout_ns: 300_000_000_000,
            flows: 65_536,
        }
    }
}
