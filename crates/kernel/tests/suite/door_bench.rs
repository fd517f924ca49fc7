//! Runs a front door with a chain, and the same functions in user space.

use std::os::fd::{AsFd, BorrowedFd};

use myelin_functions::{Discard, Function, Packet, Verdict, instantiate};
use myelin_kernel::test_run::{Outcome, TestRun, run};
use myelin_kernel::{Hook, LoadedChain, Plane, Port, PortConfig};
use myelin_packet::{Headers, Match, Meta};
use myelin_spec::FunctionConfig;

use crate::common::{LOOPBACK, create_plane, kernel_chain};

/// Adds a port that only packets of test runs reach.
pub(crate) fn add_port(plane: &Plane) -> Port {
    plane
        .add_port(PortConfig {
            name: "lo".into(),
            ifindex: LOOPBACK,
            opposite: None,
            single_queue: false,
            behind_link: myelin_kernel::BehindLink::No,
            discards: false,
        })
        .unwrap()
}

/// Returns `count` functions that change no packet.
pub(crate) fn forwards(count: usize) -> Vec<FunctionConfig> {
    vec![FunctionConfig::Forward; count]
}

/// A front door that redirects all packets into one chain.
pub(crate) struct DoorBench {
    pub(crate) hook: Hook,
    pub(crate) plane: Plane,
    pub(crate) port: Port,
    pub(crate) chain: LoadedChain,
    functions: usize,
}

impl DoorBench {
    /// Creates a front door with a chain of these functions.
    pub(crate) fn new(hook: Hook, functions: &[FunctionConfig]) -> Self {
        let plane = create_plane();
        let port = add_port(&plane);
        let chain = plane
            .load_chain(&kernel_chain(hook, 0x00ab_cdef, functions))
            .unwrap();
        port.insert(&Match::default(), &chain).unwrap();
        Self {
            hook,
            plane,
            port,
            chain,
            functions: functions.len(),
        }
    }

    /// Runs the door and the chain on a frame.
    pub(crate) fn run(&self, frame: &[u8]) -> Outcome {
        self.run_with(&TestRun::new(frame))
    }

    pub(crate) fn run_with(&self, test: &TestRun<'_>) -> Outcome {
        let program = self.port.program(self.hook).unwrap();
        run(program.as_fd(), self.hook, test).unwrap()
    }

    /// Returns the packet counts of the chain's front door, functions and egress.
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

/// Functions in user space.
pub(crate) struct UserFunctions(Vec<Box<dyn Function>>);

impl UserFunctions {
    pub(crate) fn new(functions: &[FunctionConfig]) -> Self {
        Self(
            functions
                .iter()
                .map(|config| instantiate(config).unwrap())
                .collect(),
        )
    }

    /// Runs the functions on a frame. Returns `None` if a function drops the frame.
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
