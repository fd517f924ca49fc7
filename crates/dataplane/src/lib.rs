//! Packets in user space: frames, rings, AF_XDP ports and the loop that runs service functions.
//!
//! This room knows how a frame gets from a port through functions to a port without being copied, and who owns it on the way. It never reads a
//! chain file, loads no eBPF program (the front door's program redirects into sockets that this room opens), and knows nothing of what a
//! function does.
//!
//! The agent holds a [`WorkerHandle`] for each worker process. It creates the packet memory ([`Umem`]) and binds the sockets
//! ([`Xsk`]); the worker ([`worker_main`]) gets their descriptors over a Unix socket and drives them. So a worker that is killed takes nothing with it:
//! [`WorkerHandle::restart`] hands the same sockets to another process. Nothing in the worker depends on the agent either: when that dies,
//! packets keep flowing.
//!
//! What a worker's ports are is a parameter of the worker process, its [`Driver`]: [`Sockets`] over packet memory of our own, or devices that a library drives
//! past the kernel; these come with a front door in the worker ([`WorkerHandle::lead_chain`]). All else is the same: process, requests, loop, statistics.
//!
//! The user functions of a chain may also run in a process each ([`Pipeline`]): further workers on the same packet memory, with descriptor rings
//! ([`mod@spsc`]) between them.
//!
//! | who dies | what happens |
//! |---|---|
//! | worker | arriving packets fill the RX ring and are then dropped by the kernel; [`WorkerHandle::restart`] processes those in the ring; counters go on |
//! | further process of a pipeline | as for a worker: packets in the rings wait for [`WorkerHandle::restart`], those in its hands are lost, no frame is |
//! | agent | the worker forwards on, without control; it ends on SIGTERM, and is found by [`WORKER_NAME`] and run id in its command line |
//! | egress link | packets stay in the TX ring until it is full, then they are dropped and counted; they leave with the first packet after the link is up |
//!
//! Start reading at [`forwarder`], the loop, then [`mod@umem`], who owns a frame. `unsafe` stands in `ring`, `shm`, `sys` and `umem` only.

mod chain;
mod chain_table;
mod clock;
mod config;
mod deaths;
mod door;
mod driver;
mod emitter;
mod error;
mod facts;
pub mod feed;
mod fill_level;
mod flows;
pub mod forwarder;
mod handle;
mod idle;
mod launch;
#[cfg(any(test, feature = "memory-port"))]
#[path = "../tests/ports/memory.rs"]
pub mod memory_port;
mod named;
mod pipeline;
pub mod port;
mod process;
mod protocol;
pub mod replay_port;
mod ring;
mod ring_link;
mod ring_port;
mod segment;
mod shaper;
mod shm;
pub mod spsc;
pub mod stats;
mod sys;
pub mod umem;
mod worker;
mod worker_port;
mod xdp_port;
mod xsk;

pub use chain::{SocketId, UserChain, UserExit, UserSegment};
pub use clock::monotonic_ns;
pub use config::{DevicePair, MAX_BATCH, WORKER_NAME, WorkerConfig};
pub use deaths::Deaths;
pub use door::{Direction, LeadChain};
pub use driver::{DrivenPort, Driver};
pub use error::Error;
pub use facts::WorkerFacts;
pub use forwarder::Forwarder;
pub use handle::WorkerHandle;
pub use idle::Idle;
pub use launch::{Launched, Launcher};
pub use named::NamedCount;
pub use pipeline::{Pipeline, PipelineReader, RingEnds, Stage};
pub use port::Port;
pub use protocol::{NewPort, PortSetup};
pub use stats::{ChainStats, DoorCounters, DoorStats, ShaperStats, Stats, WorkerStats};
pub use umem::Umem;
pub use worker::{control_from_stdin, worker_main};
pub use worker_port::Sockets;
pub use xsk::{BusyPoll, Lead, RING_SIZE, Role, Xsk, XskConfig};
