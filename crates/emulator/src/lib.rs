//! Emulated hosts: a client and a server for a chain without real interfaces, and whole networks.
//!
//! [`Network`] makes the hosts, switches and links of a topology. The rest of this page is about
//! the end hosts of a chain.
//!
//! A chain without ports in its file gets two hosts, `client` and `server`. Each is a named network
//! namespace (`myelin-<chain>-client`) with one link, `eth0`. The other end of that link, the
//! *port*, is in the caller's namespace, and the chain attaches to it. So any tool runs on a host:
//! `ip netns exec myelin-tactile-client ping 10.0.0.2`. This crate prepares the hosts for
//! measurements: addresses from the chain's match, permanent neighbours, no packets of IPv6
//! autoconfiguration. The links have the kernel's default offloads.
//!
//! Start with [`EndHosts::create`]. It makes both hosts or nothing. It records each object in a
//! [`Journal`](myelin_linux::journal::Journal) first, so removal also works after `kill -9`. This
//! crate processes no packets and does not connect the two hosts. Without a chain, the hosts cannot
//! reach each other.

mod addressing;
mod end_hosts;
mod names;
mod network;

pub use addressing::{AddressError, AddressPair, choose_addresses};
pub use end_hosts::{Config, EndHosts, Error, Host, Result, create_netns};
pub use names::{EndHostNames, Role};
pub use network::{
    DelayPoint, Growth, Network, NetworkEnd, NetworkError, NetworkHost, OpenFlowPorts, Run,
};
