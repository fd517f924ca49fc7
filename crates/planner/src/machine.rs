//! The properties of a machine that the planner needs.

use serde::{Deserialize, Serialize};

/// The kind of a port's interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PortKind {
    /// The agent's end of a link to an emulated end host. Packets arrive as skbs, and tcx can pass
    /// them directly into the host.
    EndHost,
    /// Another virtual link. Packets arrive as skbs.
    Virtual,
    /// A network card whose driver runs XDP. Packets arrive as frames.
    Native,
}

/// A machine and the ports of one chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Cores that are online.
    pub cores: u32,
    /// The ingress port.
    pub ingress: PortKind,
    /// The egress port.
    pub egress: PortKind,
    /// Speed of the egress link, bits a second, if known.
    #[serde(default)]
    pub egress_bps: Option<u64>,
    /// MTU of the ingress interface, bytes; 1500 if unknown.
    #[serde(default)]
    pub ingress_mtu: Option<u32>,
    /// MTU of the egress interface, bytes; 1500 if unknown.
    #[serde(default)]
    pub egress_mtu: Option<u32>,
    /// The chain that makes the end hosts, if it is known: this chain or its reverse chain.
    #[serde(default)]
    pub circuit: Option<String>,
}

impl Machine {
    /// Creates a machine with `cores` cores, where the chain has its own end hosts.
    pub fn with_end_hosts(cores: u32) -> Self {
        Self {
            cores,
            ingress: PortKind::EndHost,
            egress: PortKind::EndHost,
            egress_bps: None,
            ingress_mtu: None,
            egress_mtu: None,
            circuit: None,
        }
    }

    /// Returns the default core of a worker: the last core, because interrupts and other work
    /// usually run on the first cores.
    pub fn default_core(&self) -> u32 {
        self.cores.saturating_sub(1)
    }
}
