//! Ports over DPDK.
//!
//! This room knows how a device that DPDK drives becomes a [`Port`](myelin_dataplane::Port): one environment a process ([`Environment`]), whose pool of mbufs is
//! the forwarder's packet memory, and a port that takes bursts from a device and gives bursts to one ([`DpdkPort`]). Functions work in the mbuf; nothing
//! is copied. It also is the front door of such a device ([`FrontDoor`]), since the kernel's eBPF programs never see its packets.
//!
//! DPDK is not linked: a shim of C, embedded as a shared object, is loaded when the first environment starts. So a program that was built with DPDK runs
//! where there is none, and [`version`] says what there is. Built where pkg-config finds no libdpdk, or without the cargo feature `dpdk`, all of this is there too and every start
//! says why it fails.
//!
//! A worker process ([`myelin_dataplane::worker_main`] with the driver [`Dpdk`]) has the environment and a pair of ports.
//!
//! Start reading at [`DpdkPort`]. `unsafe` stands in `sys` only.

mod door;
mod driver;
mod environment;
mod error;
mod library;
mod port;
mod sys;

pub use door::{Admission, FrontDoor};
pub use driver::Dpdk;
pub use environment::{Environment, EnvironmentConfig, runtime_directory};
pub use error::Error;
pub use library::version;
pub use port::DpdkPort;
