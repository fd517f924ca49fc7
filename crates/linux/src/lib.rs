//! Linux mechanisms as thin typed functions: how Myelin changes the machine it runs on. One file a
//! mechanism.
//!
//! All calls are synchronous and start no thread that outlives them. This crate knows no chain and
//! decides nothing. It returns facts as data, and failures as an [`Error`] that names object, cause
//! and remedy.
//!
//! | task | file |
//! |---|---|
//! | an isolated network | [`netns`]: namespaces that `ip netns` sees too |
//! | links, addresses, routes | [`link`], [`address`], [`route`], [`neighbour`], by [`netlink`] |
//! | packets as they are on the wire | [`ethtool`] (offloads), [`sysctl`] (IPv6, forwarding) |
//! | sending raw frames | [`packet_socket`] |
//! | shaping | [`htb`], [`fq`] |
//! | idle states of cores | [`pm_qos`] |
//! | offset of the clocks | [`time_namespace`] |
//! | cores and priorities of threads | [`affinity`], [`sched`]; [`napi`] for receive work |
//! | processes, their CPU and waiting times | [`process`], [`procfs`], [`schedstat`] |
//! | resource limits of processes | [`cgroup`], v2 and v1 |
//! | properties of this machine | [`machine`], [`feature`], [`capability`] |
//! | objects that outlive a process | [`bpffs`]; [`journal`] finds them after `kill -9` |
//!
//! A pair of links, one end in another namespace:
//!
//! ```no_run
//! use myelin_linux::link::{self, VethEnd};
//! use myelin_linux::netlink::Netlink;
//! use myelin_linux::netns::Netns;
//!
//! let host = Netns::create("myelin-example")?;
//! let mut netlink = Netlink::open()?;
//! let inside = VethEnd { namespace: Some(&host), ..VethEnd::named("eth0") };
//! netlink.apply([link::veth(&VethEnd::named("myexample"), &inside)?])?;
//! let port = netlink.link("myexample")?;
//! netlink.apply([link::up(&port.id())])?;
//! # Ok::<(), myelin_linux::Error>(())
//! ```

pub mod address;
pub mod affinity;
pub mod bpffs;
pub mod capability;
pub mod cgroup;
pub mod error;
pub mod ethtool;
pub mod feature;
pub mod fq;
pub mod htb;
pub mod journal;
pub mod link;
mod link_losses;
pub mod machine;
pub mod napi;
pub mod neighbour;
pub mod netlink;
pub mod netns;
pub mod packet_socket;
pub mod pm_qos;
pub mod process;
pub mod procfs;
mod qdisc;
pub mod route;
pub mod sched;
pub mod schedstat;
pub mod sysctl;
#[cfg(test)]
mod tests;
pub mod time_namespace;

pub use error::{Error, ErrorKind, Result};
