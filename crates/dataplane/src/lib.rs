//! Packets in user space: frames, rings, AF_XDP ports and the loop that runs service functions.
//!
//! This crate moves a frame from a port through functions to a port without a copy, and tracks the
//! holder of the frame. It never reads a chain file. It loads no eBPF program: the front door's
//! program redirects packets into sockets that this crate opens. It treats all functions alike.
//!
//! The agent holds a [`WorkerHandle`] for each worker process. The handle creates the UMEM
//! ([`Umem`]) and binds the sockets ([`Xsk`]). The worker ([`worker_main`]) receives the
//! descriptors of the UMEM and the sockets over a Unix socket, and drives the sockets. So a killed
//! worker loses no socket: [`WorkerHandle::restart`] hands the same sockets to another process. If
//! the agent dies, the worker keeps forwarding.
//!
//! The [`Driver`] of a worker process defines its ports: [`Sockets`] over Myelin's UMEM, or devices
//! that a library drives without the kernel. Such devices have a front door in the worker
//! ([`WorkerHandle::redirect_chain`]). The two drivers use the same process, requests, loop and
//! statistics.
//!
//! Each user-space function of a chain may also run in a separate process ([`Pipeline`]). These
//! workers share the UMEM and exchange descriptors through rings ([`mod@spsc`]).
//!
//! Failures:
//!
//! * A worker fails: arriving packets fill the RX ring, then the kernel drops them.
//!   [`WorkerHandle::restart`] processes the packets in the ring. Counters continue.
//! * Another process of a pipeline fails: packets in the rings wait for
//!   [`WorkerHandle::restart`]. The packets that the process was processing are lost, but not their
//!   frames.
//! * The agent fails: the worker keeps forwarding until SIGTERM. [`WORKER_NAME`] and the run id in
//!   the worker's command line identify the worker.
//! * The egress link fails: packets fill the TX ring, then the worker drops and counts them.
//!   Packets in the ring leave with the first packet after the link is up.
//!
//! A delay line ([`DelayLine`]) is a worker with another loop: it delays and drops the packets of
//! emulated links.
//!
//! Start reading at [`forwarder`], which has the loop, then [`mod@umem`], which tracks the holders
//! of frames. Only `shm`, `sys`, `umem` and `xsk_ring` contain `unsafe`.

mod chain;
mod clock;
mod config;
mod deaths;
mod delay_line;
mod door;
mod driver;
mod emitter;
mod error;
mod facts;
pub mod feed;
mod fill_level;
mod flows;
pub mod forwarder;
mod front_door;
mod handle;
mod idle;
mod launch;
#[cfg(any(test, feature = "memory-port"))]
#[path = "../tests/ports/memory.rs"]
pub mod memory_port;
mod named_counters;
mod packet_io;
mod packet_port;
mod packet_socket;
mod packet_sockets;
mod pipeline;
pub mod port;
mod process;
mod protocol;
pub mod replay_port;
mod ring_link;
mod ring_port;
mod segment;
mod segment_table;
mod shaper;
mod shm;
pub mod spsc;
pub mod stats;
mod sys;
mod turns;
pub mod umem;
mod worker;
mod worker_port;
mod xdp_port;
mod xsk;
mod xsk_ring;

pub use chain::{SocketId, UserChain, UserExit, UserSegment};
pub use clock::monotonic_ns;
pub use config::{DevicePair, MAX_BATCH, WORKER_NAME, WorkerConfig};
pub use deaths::Deaths;
pub use delay_line::{
    DelayLine, DelayLineStats, DelayTable, DirectionStats, MAX_DIRECTION, delay_line_main,
};
pub use door::{ChainRedirect, Direction};
pub use driver::{DrivenPort, Driver};
pub use error::Error;
pub use facts::WorkerFacts;
pub use forwarder::Forwarder;
pub use front_door::{DoorDecision, FrontDoor};
pub use handle::WorkerHandle;
pub use idle::Idle;
pub use launch::{Launched, Launcher};
pub use named_counters::NamedCount;
pub use packet_port::PacketPort;
pub use packet_socket::PacketSocket;
pub use packet_sockets::PacketSockets;
pub use pipeline::{Pipeline, PipelineReader, RingEnds, Stage};
pub use port::Port;
pub use protocol::{NewPort, PortSetup};
pub use stats::{ChainStats, DoorCounters, DoorStats, ShaperStats, Stats, WorkerStats};
pub use turns::{
    CoreStats, CoreTable, Member, RingKind, RingObserver, TaskLevel, TaskObserver, TaskStats,
};
pub use umem::Umem;
pub use worker::{control_from_stdin, worker_main};
pub use worker_port::Sockets;
pub use xsk::{BusyPoll, RING_SIZE, Role, SocketRedirect, Xsk, XskConfig};
