//! What the planner needs to know of the machine.

use serde::{Deserialize, Serialize};

/// What kind of interface a port is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PortKind {
    /// The agent's end of a link to an end host that Myelin made: packets come as skbs, and may be handed straight into
    /// the host.
    EndHost,
    /// A virtual link of somebody else: packets come as skbs.
    Virtual,
    /// A network card whose driver runs XDP: packets come as frames.
    Native,
}

/// The machine and the ports a chain shall lie between.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Cores that are online.
    pub cores: u32,
    /// Where the chain's packets come in.
    pub ingress: PortKind,
    /// Where they leave.
    pub egress: PortKind,
    /// Speed of the link where they leave, bits a second, if it has one.
    #[serde(default)]
    pub egress_bps: Option<u64>,
    /// The longest IP packet that comes in, bytes: the MTU of the interface, 1500 where that is not known.
    #[serde(default)]
    pub ingress_mtu: Option<u32>,
}

impl Machine {
    /// A machine of so many cores, and a chain between end hosts of its own.
    pub fn with_end_hosts(cores: u32) -> Self {
        Self {
            cores,
            ingress: PortKind::EndHost,
            egress: PortKind::EndHost,
            egress_bps: None,
            ingress_mtu: None,
        }
    }

    /// The core of a worker whose file names none: the last one, since the first ones are where interrupts and other work usually are.
    pub fn default_core(&self) -> u32 {
        self.cores.saturating_sub(1)
    }
}
