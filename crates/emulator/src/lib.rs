//! End hosts on one machine: what a chain without real interfaces stands between.
//!
//! A chain that names no ports gets two hosts, `client` and `server`. Each is a named network namespace
//! (`myelin-<chain>-client`) with one link, `eth0`; the other end of that link, the *port*, stands in the caller's
//! namespace, where the chain is attached to it. So any tool runs on a host: `ip netns exec myelin-tactile-client ping
//! 10.0.0.2`. What makes two ends of a veth pair into hosts that a packet function can be measured between is here:
//! addresses from the chain's match, permanent neighbours, offloads off, silence of IPv6.
//!
//! Start with [`EndHosts::create`]. It makes all or nothing; everything is written into a
//! [`Journal`](myelin_linux::journal::Journal) before it is made, so it can be removed after `kill -9` too.
//! This crate never touches a packet and never joins the two hosts: without a chain they do not reach each other.

mod addressing;
mod end_hosts;
mod names;

pub use addressing::{AddressError, AddressPair, choose};
pub use end_hosts::{Config, EndHosts, Error, Host, Result, create_netns};
pub use names::{Names, Role};
