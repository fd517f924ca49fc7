//! Ports over DPDK.
//!
//! A [`DpdkPort`] is a [`Port`](myelin_dataplane::Port) over a device that DPDK drives. A process
//! has one environment ([`Environment`]). The forwarder uses the environment's pool of mbufs. The
//! port receives and transmits bursts. Functions work in the mbuf, without a copy. Each port
//! has a front door ([`myelin_dataplane::FrontDoor`]), because the kernel's eBPF programs never
//! receive the device's packets.
//!
//! The program does not link DPDK. It embeds a C shim as a shared object and loads it when the
//! first environment starts. So a program built with DPDK runs on machines without DPDK, and
//! [`version`] reports the loaded DPDK. Without libdpdk in pkg-config, or without the cargo feature
//! `dpdk`, the crate builds too, and each start reports why DPDK is missing.
//!
//! A worker process ([`myelin_dataplane::worker_main`] with the driver [`Dpdk`]) has the
//! environment and two ports.
//!
//! Start reading at [`DpdkPort`]. Only `sys` contains `unsafe`.

mod driver;
mod environment;
mod error;
mod library;
mod port;
mod sys;

pub use driver::Dpdk;
pub use environment::{Environment, EnvironmentConfig, runtime_directory};
pub use error::Error;
pub use library::version;
pub use port::DpdkPort;
