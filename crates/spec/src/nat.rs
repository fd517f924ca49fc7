//! The configuration of a `nat`.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// External addresses of one `nat` at most, both families together.
pub const MAX_ADDRESSES: usize = 16;
/// Mappings of one `nat` at most.
pub const MAX_FLOWS: u64 = 1 << 20;

/// How long a mapping of a TCP connection that is not established lives, ns: four minutes (RFC 5382, REQ-5).
pub const TCP_TRANSITORY_NS: u64 = 240_000_000_000;

/// Configuration of a `nat` function: source NAT of UDP, TCP and ICMP echo.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NatConfig {
    /// The external addresses, of one family or both: at least one, at most [`MAX_ADDRESSES`], none twice.
    pub addresses: Vec<IpAddr>,
    /// The least external port, and the least identifier of an echo.
    pub first_port: u16,
    /// The greatest.
    pub last_port: u16,
    /// How long a mapping of UDP or ICMP lives after the last packet from inside, ns.
    pub timeout_ns: u64,
    /// The same for TCP. [`TCP_TRANSITORY_NS`], if that is less, after a SYN, and from a FIN or RST
    /// to the next SYN.
    pub tcp_timeout_ns: u64,
    /// Mappings at most.
    pub flows: u32,
}

impl NatConfig {
    /// External ports of each address and protocol.
    pub fn port_count(&self) -> u32 {
        u32::from(self.last_port - self.first_port) + 1
    }

    /// The part that mappings depend on: a change of what it leaves out needs no new ones.
    #[must_use]
    pub fn shape(&self) -> Self {
        let Self {
            timeout_ns,
            tcp_timeout_ns,
            ..
        } = Self::default();
        Self {
            timeout_ns,
            tcp_timeout_ns,
            ..self.clone()
        }
    }

    /// How long a mapping lives after a TCP segment with SYN, and while its connection is closing, ns.
    pub fn tcp_transitory_ns(&self) -> u64 {
        self.tcp_timeout_ns.min(TCP_TRANSITORY_NS)
    }
}

/// What a file need not say; without an address, so that it translates nothing.
impl Default for NatConfig {
    fn default() -> Self {
        Self {
            addresses: Vec::new(),
            first_port: 1024,
            last_port: 65_535,
            // RFC 4787, REQ-5: not below two minutes.
            timeout_ns: 120_000_000_000,
            // RFC 5382, REQ-5: not below two hours and four minutes.
            tcp_timeout_ns: 7_440_000_000_000,
            flows: 16_384,
        }
    }
}
