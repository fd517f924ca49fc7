//! Linux mechanisms as thin typed functions: how Myelin changes the machine on which it runs. Each
//! file has one mechanism.
//!
//! All calls are synchronous, and no call starts a thread that outlives the call. This crate knows
//! no chain and makes no decision. The functions return facts as data, and failures as an [`Error`]
//! that names the object, the cause and the remedy.
//!
//! | task | file |
//! |---|---|
//! | isolate a network | [`netns`]: namespaces that `ip netns` can use too |
//! | change links and routes | [`link`], [`address`], [`route`], [`neighbour`], [`netlink`] |
//! | follow links that change | [`link_events`] |
//! | turn off offloads and IPv6 | [`ethtool`], [`sysctl`] |
//! | send raw frames, capture frames | [`packet_socket`]; [`capture`] |
//! | shape traffic | [`htb`], [`fq`] |
//! | limit the idle states of cores | [`pm_qos`] |
//! | read the offset of the clocks | [`time_namespace`] |
//! | set cores and priorities | [`affinity`], [`sched`], [`priorities`]; [`napi`]: receive work |
//! | keep mounts after the end of a process | [`mount_namespace`] |
//! | observe processes and their times | [`process`], [`procfs`], [`schedstat`] |
//! | limit the resources of processes | [`cgroup`], v2 and v1 |
//! | detect properties of this machine | [`machine`], [`feature`], [`capability`] |
//! | manage objects that outlive a process | [`bpffs`]; [`journal`], for removals after `kill -9` |
//!
//! This example makes a pair of links, with one end in another namespace:
//!
//! ```no_run
//! use myelin_linux::link::{self, VethEnd};
//! use myelin_linux::netlink::Netlink;
//! use myelin_linux::netns::Netns;
//!
//! let host = Netns::create("myelin-example")?;
//! let mut netlink = Netlink::open()?;
//! let inside = VethEnd { namespace: Some(&host), ..VethEnd::named("eth0") };
//! netlink.apply([link::create_veth(&VethEnd::named("myexample"), &inside)?])?;
//! let port = netlink.link("myexample")?;
//! netlink.apply([link::set_up(&port.id())])?;
//! # Ok::<(), myelin_linux::Error>(())
//! ```

pub mod address;
pub mod affinity;
pub mod bpffs;
pub mod capability;
pub mod capture;
pub mod cgroup;
pub mod error;
pub mod ethtool;
pub mod feature;
pub mod fq;
pub mod htb;
pub mod inherit;
pub mod journal;
pub mod link;
pub mod link_events;
mod link_losses;
pub mod machine;
pub mod mount_namespace;
pub mod napi;
pub mod neighbour;
pub mod netem;
pub mod netlink;
pub mod netns;
pub mod packet_socket;
pub mod pm_qos;
pub mod priorities;
pub mod process;
pub mod procfs;
mod qdisc;
pub mod resource_limit;
pub mod route;
pub mod sched;
pub mod schedstat;
pub mod session;
pub mod sysctl;
#[cfg(test)]
mod tests;
pub mod time_namespace;

pub use error::{Error, ErrorKind, Result};
