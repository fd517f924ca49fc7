//! What the tests share: a front door with a chain behind it, and the functions' twins.

use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd};

use myelin_functions::{Discard, Function, Packet, Verdict, instantiate};
use myelin_kernel::test_run::{Outcome, TestRun, run};
use myelin_kernel::{
    Capacity, ChainConfig, Entry, Exit, Hook, KernelSegment, LoadedChain, Plane, Port, PortConfig,
};
use myelin_packet::{Headers, Match, Meta};
use myelin_spec::{FunctionConfig, OnFailure};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

/// The loopback interface: what a test run takes for the ingress, and an egress that nothing reaches.
pub(crate) const LOOPBACK: u32 = 1;

/// Whether the test may load programs; says why not.
pub(crate) fn is_root() -> bool {
    // The bpf() of someone without the right fails; asking for the user alone would miss containers.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective
        .and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok())
        .unwrap_or(0);
    // CAP_NET_ADMIN is 12, CAP_SYS_ADMIN 21, CAP_BPF 39.
    let can = bits >> 12 & 1 == 1 && (bits >> 21 & 1 == 1 || bits >> 39 & 1 == 1);
    if !can {
        println!("SKIP: needs root to load eBPF programs");
    }
    can
}

/// A small plane.
pub(crate) fn plane() -> Plane {
    let capacity = Capacity {
        lines: 512,
        programs: 128,
        chains: 64,
        matches: 4096,
        ports: 16,
        queues: 4,
    };
    Plane::create(None, capacity).unwrap()
}

/// A port that no packet but those of test runs reaches.
pub(crate) fn port(plane: &Plane) -> Port {
    plane
        .add_port(PortConfig {
            name: "lo".into(),
            ifindex: LOOPBACK,
            opposite: None,
            single_queue: false,
        })
        .unwrap()
}

/// That many functions that change nothing.
pub(crate) fn forwards(count: usize) -> Vec<FunctionConfig> {
    vec![FunctionConfig::Forward; count]
}

/// A chain of kernel functions only, out at the loopback interface.
pub(crate) fn kernel_chain(hook: Hook, spi: u32, functions: &[FunctionConfig]) -> ChainConfig {
    ChainConfig {
        spi,
        generation: 7,
        hook,
        on_failure: OnFailure::Drop,
        policer: None,
        positions: functions.len() as u8,
        entry: Entry::Kernel,
        segments: vec![KernelSegment {
            first_position: 0,
            functions: functions.iter().cloned().map(Into::into).collect(),
            exit: Exit::Egress {
                ifindex: LOOPBACK,
                peer: false,
            },
        }],
    }
}

/// A front door that leads everything into one chain.
pub(crate) struct Stand {
    pub(crate) hook: Hook,
    pub(crate) plane: Plane,
    pub(crate) port: Port,
    pub(crate) chain: LoadedChain,
    pub(crate) twins: RefCell<Twins>,
    functions: usize,
}

impl Stand {
    /// With a chain of these functions.
    pub(crate) fn new(hook: Hook, functions: &[FunctionConfig]) -> Self {
        let plane = plane();
        let port = port(&plane);
        let chain = plane
            .load_chain(&kernel_chain(hook, 0x00ab_cdef, functions))
            .unwrap();
        port.insert(&Match::default(), &chain).unwrap();
        Self {
            hook,
            plane,
            port,
            chain,
            twins: RefCell::new(Twins::new(functions)),
            functions: functions.len(),
        }
    }

    /// Runs the door, and what is behind it, on a frame.
    pub(crate) fn run(&self, frame: &[u8]) -> Outcome {
        self.run_with(&TestRun::new(frame))
    }

    pub(crate) fn run_with(&self, test: &TestRun<'_>) -> Outcome {
        let program = self.port.program(self.hook).unwrap();
        run(program.as_fd(), self.hook, test).unwrap()
    }

    /// Packets of the chain's front door, of its functions, of its egress.
    pub(crate) fn packets(&self) -> Vec<u64> {
        let functions = (0..self.functions).filter_map(|p| self.chain.counter_slot(p as u8));
        [self.chain.door_slot()]
            .into_iter()
            .chain(functions)
            .chain([self.chain.egress_slot()])
            .map(|slot| self.plane.counters().read(slot).packets)
            .collect()
    }
}

/// Runs a program on one frame.
pub(crate) fn run_once(program: BorrowedFd<'_>, hook: Hook, frame: &[u8]) -> Outcome {
    run(program, hook, &TestRun::new(frame)).unwrap()
}

/// The same functions in user space.
pub(crate) struct Twins(Vec<Box<dyn Function>>);

impl Twins {
    pub(crate) fn new(functions: &[FunctionConfig]) -> Self {
        Self(
            functions
                .iter()
                .map(|config| instantiate(config).unwrap())
                .collect(),
        )
    }

    /// What they make of a frame; `None` if one of them drops it.
    pub(crate) fn process(&mut self, frame: &[u8], headers: &Headers) -> Option<Vec<u8>> {
        let mut frame = frame.to_vec();
        let (len, meta) = (frame.len(), Meta::new(1, 1, 0, 0, headers));
        for function in &mut self.0 {
            let mut packet = Packet::new(&mut frame, 0, len, meta, 0).unwrap();
            if function.process(&mut packet, &mut Discard) == Verdict::Drop {
                return None;
            }
        }
        Some(frame)
    }
}

/// Checks that many random cases; on a failure the shortest that still fails.
pub(crate) fn for_all<S: Strategy>(cases: u32, strategy: &S, check: impl Fn(S::Value)) {
    let config = ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let result = TestRunner::new(config).run(strategy, |value| {
        check(value);
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

/// Whether the kernel runs programs of that hook on a frame at all: it must have an Ethernet header and fit in a page,
/// and for the tc hook there must be a whole IP header behind it (shorter ones go over real links, in `live.rs`).
pub(crate) fn runs(hook: Hook, frame: &[u8]) -> bool {
    let shortest = match (hook, frame.get(12..14)) {
        (Hook::Xdp, _) => 14,
        (Hook::Tcx, Some([0x08, 0x00])) => 34,
        (Hook::Tcx, Some([0x86, 0xdd])) => 54,
        (Hook::Tcx, _) => 15,
    };
    (shortest..=3500).contains(&frame.len())
}
