//! Configuration of a `router`.

use std::net::{Ipv4Addr, Ipv6Addr};

use myelin_packet::routes::Route;
use serde::{Deserialize, Serialize};

/// Configuration of a `router` function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouterConfig {
    /// Its routes: those of `routes`, then those of `routesFile`. At most [`myelin_packet::routes::MAX_ROUTES`], each
    /// prefix once.
    pub routes: Vec<Route>,
    /// Its own IPv4 address, from which it tells senders that a packet's time ran out; without it, it does not.
    pub address_v4: Option<Ipv4Addr>,
    /// The same for IPv6.
    pub address_v6: Option<Ipv6Addr>,
    /// Such messages at most, a second.
    pub icmp_rate: u32,
}

impl RouterConfig {
    /// Messages about expired packets, a second, when nothing else is said.
    pub const DEFAULT_ICMP_RATE: u32 = 100;
}
