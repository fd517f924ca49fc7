//! The part of Myelin that runs in the kernel.
//!
//! Holds eBPF programs in C (`src/bpf`) and their typed loader. A [`Port`] is an interface with a
//! *front door*: one program for each hook that parses, classifies, counts, polices and stamps
//! packets and forwards them to a chain. A [`LoadedChain`] holds the kernel functions of a chain.
//! Each function is its own program. Tail calls connect the programs. The slot of the next function
//! is read-only data, so the JIT makes each tail call a direct jump. A [`Reentry`] is the door for
//! packets that come back from user space. A [`FunctionLink`] is a function in its own network
//! namespace, with the service function forwarder at its near end. A [`DelayLink`] leads the
//! packets of impaired links through a delay line. A [`WireDoor`] takes frames of other nodes, and
//! a [`WireExit`] sends packets to them. All share the maps of one [`Plane`], among them the
//! counters, which user space reads without a system call.
//!
//! Each program is written once and built for both hooks ([`Hook`]). A program changes a packet
//! exactly as `myelin-packet` and `myelin-functions` do in user space. The same frames test both
//! implementations. The oldest supported kernel is 6.1. [`test_features()`] lists the features that
//! the running kernel lacks.
//!
//! ```no_run
//! use myelin_kernel::{BehindLink, Capacity, ChainConfig, EntrySpace, Exit, Hook, KernelSegment};
//! use myelin_kernel::{Plane, PortConfig};
//! use myelin_spec::{FunctionConfig, OnFailure};
//!
//! let plane = Plane::create(None, Capacity::default())?;
//! let eth1 = PortConfig {
//!     name: "eth1".into(),
//!     ifindex: 2,
//!     opposite: None,
//!     single_queue: false,
//!     behind_link: BehindLink::No,
//!     discards: false,
//! };
//! let port = plane.add_port(eth1)?;
//! let chain = plane.load_chain(&ChainConfig {
//!     spi: 1,
//!     generation: 0,
//!     hook: Hook::Tcx,
//!     on_failure: OnFailure::Drop,
//!     policer: None,
//!     positions: 1,
//!     entry: EntrySpace::Kernel,
//!     segments: vec![KernelSegment {
//!         first_position: 0,
//!         functions: vec![FunctionConfig::Forward.into()],
//!         exit: Exit::Egress { ifindex: 3, peer: false, by_stack: false },
//!     }],
//! })?;
//! let mut rule = myelin_packet::Match::default();
//! rule.destination = Some("10.0.0.2".parse()?);
//! port.insert(&rule, &chain)?;
//! port.attach_tcx()?;
//! println!("{} packets", plane.counters().read(chain.door_slot()).packets);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod attach;
mod bare_entry;
mod block;
mod chain;
mod classifier;
mod conform;
mod counters;
mod delay;
mod depart;
mod error;
mod features;
mod firewall;
mod flows;
mod hook;
mod hop;
mod immediate;
mod instance;
mod load_balancer;
mod map;
mod mapped_array;
mod nat;
mod numbers;
mod object;
mod pins;
mod plane;
mod policer;
mod port;
mod reentry;
mod relay;
mod reports;
mod resources;
mod router;
mod segment;
mod sff;
mod sockets;
mod sojourn;
mod state;
mod sys;
pub mod test_run;
#[cfg(test)]
mod tests;
mod translated_fragments;
mod wire;

pub use attach::{TrafficDirection, XdpMode};
pub use block::Block;
pub use chain::{ChainConfig, EntrySpace, Exit, KernelSegment, LoadedChain, MAX_FUNCTIONS};
pub use conform::{BucketLevel, ConformConfig, ConformReport, Conformance, Violation};
pub use counters::{CounterLine, CounterReader, Counters};
pub use delay::{DelayCounters, DelayDirection, DelayLink, Delivery, MAX_DIRECTION};
pub use error::Error;
pub use features::{Feature, FeatureState, Features, test_features};
pub use hook::Hook;
#[doc(hidden)]
pub use immediate::fill_immediates;
pub use plane::Plane;
pub use policer::{Policer, ShaperCounters};
pub use port::{BehindLink, Opposite, Port, PortConfig, PortCounters};
pub use reentry::{Reentry, ReentryCounters};
pub use relay::{Relay, ReplyPath};
pub use reports::{Report, ReportReason, RouterReports};
pub use resources::Capacity;
pub use sff::{
    BlackBoxSlots, DistributedConfig, DistributedFunction, FunctionLink, FunctionRuntime,
};
pub use sockets::Sockets;
#[doc(hidden)]
pub use sys::link_create;
pub use wire::{
    Neighbour, PartArrival, PartFrames, PartTtl, UserPort, WireDoor, WireDrops, WireExit,
    WireExitConfig, WireExitCounters, WireSplit,
};

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a table. A panic leaves no partial update in these tables, so a poisoned lock is safe.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
