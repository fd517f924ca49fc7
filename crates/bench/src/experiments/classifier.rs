//! `classifier`: the cost of many chains and rules, and of accounting.

use std::io;
use std::os::fd::BorrowedFd;

use myelin_kernel::test_run::{self, TestRun};
use myelin_kernel::{Capacity, ChainConfig, Hook, LoadedChain, Plane, Port, PortConfig};
use myelin_packet::traffic::Profile;
use myelin_packet::{Match, Meta, parse};
use myelin_spec::FunctionConfig;

use super::{accounting, chains_at_port, firewall};
use crate::{Error, Experiment, Findings, Session};

/// Runs on one packet before the next: enough to make the clock's cost small, few enough that
/// packets evict each other's memory from the caches.
const RUNS: u32 = 64;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "classifier",
    about: "processing time with 10 to 10 000 chains at a port, 10 to 1000 firewall rules, and the cost of counting and stamping",
    differs: "",
    run,
    plots: include_str!("../../plots/classifier.yaml"),
};

fn run(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    for hook in Hook::ALL {
        chains_at_port::run(hook, session, findings)?;
        firewall::run(hook, session, findings)?;
        accounting::run(hook, session, findings)?;
    }
    Ok(())
}

/// A front door for test runs with one chain that matches all packets. Fields drop in this order.
pub(crate) struct Door {
    _chain: LoadedChain,
    pub(crate) port: Port,
    _plane: Plane,
}

impl Door {
    /// `single_queue` is a property of the port. `profile` is that of the chain's policer.
    pub(crate) fn new(
        hook: Hook,
        single_queue: bool,
        profile: Option<&Profile>,
        functions: &[FunctionConfig],
    ) -> Result<Self, Error> {
        let plane = small_plane()?;
        let port = plane.add_port(PortConfig {
            single_queue,
            ..test_run::port()
        })?;
        let chain = plane.load_chain(&ChainConfig {
            policer: profile
                .map(|profile| plane.policer(profile))
                .transpose()?
                .flatten(),
            ..test_run::chain(hook, 1, functions)
        })?;
        port.insert(&Match::default(), &chain)?;
        Ok(Self {
            _chain: chain,
            port,
            _plane: plane,
        })
    }
}

/// A plane for a few chains.
pub(crate) fn small_plane() -> Result<Plane, Error> {
    let capacity = Capacity {
        matches: 64,
        ..Capacity::default()
    };
    Ok(Plane::create(None, capacity)?)
}

/// Packets for test runs of programs, one after another.
pub(crate) struct TestPackets(Vec<(Vec<u8>, Option<Meta>)>);

impl TestPackets {
    pub(crate) fn new(frames: impl IntoIterator<Item = Vec<u8>>) -> Self {
        let with_meta = |frame: Vec<u8>| {
            let meta = meta(&frame);
            (frame, meta)
        };
        Self(frames.into_iter().map(with_meta).collect())
    }

    /// Mean time of a packet in a front door and the chain behind it, ns; or in a function and the
    /// rest of its chain, `behind` a front door, with its metadata.
    pub(crate) fn mean_ns(
        &self,
        program: BorrowedFd<'_>,
        hook: Hook,
        behind: bool,
    ) -> Result<f64, Error> {
        let mut sum = 0.0;
        for (frame, meta) in &self.0 {
            sum += mean_ns(program, hook, frame, meta.filter(|_| behind), RUNS)?;
        }
        Ok(sum / self.0.len() as f64)
    }
}

/// The front door's metadata of a packet.
pub(super) fn meta(frame: &[u8]) -> Option<Meta> {
    let headers = parse(frame).ok()?;
    Some(Meta::new(1 << 40, 1, 0, 0, &headers))
}

/// Mean time of a run, ns. Every run must redirect the packet.
pub(super) fn mean_ns(
    program: BorrowedFd<'_>,
    hook: Hook,
    frame: &[u8],
    meta: Option<Meta>,
    repeat: u32,
) -> Result<f64, Error> {
    let test = TestRun {
        meta,
        repeat,
        ..TestRun::new(frame)
    };
    let outcome = test_run::run(program, hook, &test)?;
    if outcome.verdict != hook.redirect() {
        let verdict = io::Error::other(format!("its verdict is {}", outcome.verdict));
        return Err(Error::ebpf("kernel function", "redirect a packet", verdict));
    }
    Ok(outcome.mean_ns.into())
}
