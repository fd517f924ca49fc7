//! `classifier`: what a packet pays for the number of chains and rules, and for being counted.

use std::io;
use std::os::fd::BorrowedFd;

use myelin_kernel::test_run::{self, TestRun};
use myelin_kernel::{Capacity, ChainConfig, Hook, LoadedChain, Plane, Port, PortConfig};
use myelin_packet::traffic::Profile;
use myelin_packet::{Match, Meta, parse};
use myelin_spec::FunctionConfig;

use super::{accounting, classifier, firewall};
use crate::{Error, Findings, Session};

/// Runs on one packet before the next one's turn: enough that the clock's own cost does not count, few enough that a packet
/// finds other packets' memory in the caches first.
const RUNS: u32 = 64;

pub(super) fn run(session: Session<'_>) -> Result<Findings, Error> {
    let mut findings = Findings::default();
    for hook in Hook::ALL {
        classifier::run(hook, session, &mut findings)?;
        firewall::run(hook, session, &mut findings)?;
        accounting::run(hook, session, &mut findings)?;
    }
    Ok(findings)
}

/// A front door of test runs with one chain behind it, which takes all packets. The fields' order is that of the end.
pub(crate) struct Door {
    _chain: LoadedChain,
    pub(crate) port: Port,
    _plane: Plane,
}

impl Door {
    /// `single_queue`: of the port; `profile`: what the chain is held to.
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

/// A plane of a few chains.
pub(crate) fn small_plane() -> Result<Plane, Error> {
    let capacity = Capacity {
        matches: 64,
        ..Capacity::default()
    };
    Ok(Plane::create(None, capacity)?)
}

/// Packets that programs are run on, one after another.
pub(crate) struct Packets(Vec<(Vec<u8>, Option<Meta>)>);

impl Packets {
    pub(crate) fn new(frames: impl IntoIterator<Item = Vec<u8>>) -> Self {
        let with_meta = |frame: Vec<u8>| {
            let meta = parse(&frame)
                .ok()
                .map(|headers| Meta::new(1, 1, 0, 0, &headers));
            (frame, meta)
        };
        Self(frames.into_iter().map(with_meta).collect())
    }

    /// Mean nanoseconds a packet of a front door and all behind it.
    pub(crate) fn mean_ns(&self, door: BorrowedFd<'_>, hook: Hook) -> Result<f64, Error> {
        self.mean(door, hook, false)
    }

    /// Mean nanoseconds a packet of a function and all behind it, with the metadata that a front door leaves.
    pub(crate) fn mean_ns_behind_the_door(
        &self,
        function: BorrowedFd<'_>,
        hook: Hook,
    ) -> Result<f64, Error> {
        self.mean(function, hook, true)
    }

    fn mean(&self, program: BorrowedFd<'_>, hook: Hook, behind: bool) -> Result<f64, Error> {
        let mut sum = 0.0;
        for (frame, meta) in &self.0 {
            let test = TestRun {
                meta: meta.filter(|_| behind),
                repeat: RUNS,
                ..TestRun::new(frame)
            };
            let outcome = test_run::run(program, hook, &test)?;
            if outcome.verdict != hook.redirect() {
                let verdict = io::Error::other(format!("its verdict is {}", outcome.verdict));
                return Err(Error::ebpf(
                    "of the kernel room",
                    "send a packet out with",
                    verdict,
                ));
            }
            sum += f64::from(outcome.mean_ns);
        }
        Ok(sum / self.0.len() as f64)
    }
}
