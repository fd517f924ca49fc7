//! Linux mechanisms, thin and typed: what Myelin does to the machine it runs on, one file a mechanism.
//!
//! Everything is synchronous and starts no thread that outlives a call. Nothing here knows a chain or decides
//! anything; what exists is said as data, what is refused as an [`Error`] that names object, cause and remedy.
//!
//! | wanted | file |
//! |---|---|
//! | a network of one's own | [`netns`]: namespaces that `ip netns` sees too |
//! | links, addresses, routes | [`netlink`] sends the requests that [`link`], [`address`], [`route`] and [`neighbour`] build, many in one system call |
//! | packets as they are on the wire | [`ethtool`] (offloads), [`sysctl`] (IPv6, forwarding) |
//! | packets of one's own making | [`packet_socket`] |
//! | packets at a rate | [`htb`], [`fq`] |
//! | how deeply cores sleep | [`pm_qos`] |
//! | whether clocks are the kernel's | [`time_namespace`] |
//! | who runs where and when, and who waits | [`affinity`], [`sched`], [`schedstat`], [`process`], [`procfs`]; [`napi`] for receive work |
//! | what a process may use at most | [`cgroup`], v2 and v1 |
//! | what this machine is and can | [`machine`], [`feature`], [`capability`] |
//! | things that outlive a process | [`bpffs`], and [`journal`], which finds them again after `kill -9` |
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
