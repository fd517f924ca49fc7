//! Measures the costs of eBPF programs by `BPF_PROG_TEST_RUN`.

use std::collections::BTreeMap;

use myelin_api::ApiError;
use myelin_kernel::test_run::{self, TestRun};
use myelin_kernel::{Hook, LoadedChain, Plane};
use myelin_packet::{Match, Meta, Prefix};
use myelin_planner::Cost;
use myelin_spec::FunctionConfig;

use super::direct::SERVER;
use super::{FRAMES, Result, configurations, fit, frame, median};

/// Runs of a program in one measurement, about a millisecond.
const REPEAT: u32 = 10_000;
/// Functions in the longer chain; the shorter chain has one.
const MANY: usize = 9;

/// Costs of eBPF programs.
pub(super) struct ProgramCosts {
    pub(super) door_tcx: Cost,
    pub(super) door_xdp: Cost,
    pub(super) hop: Cost,
    /// By kind.
    pub(super) functions: BTreeMap<&'static str, Cost>,
}

/// Measures on a separate plane, so that running chains are not affected.
pub(super) fn measure(rounds: usize) -> Result<ProgramCosts> {
    let plane = Plane::create(None, myelin_kernel::Capacity::default())?;
    let mut ns_by_kind = BTreeMap::new();
    for config in configurations()? {
        let ns = FRAMES.map(|bytes| function_ns(&plane, &config, bytes, rounds));
        let [short, long] = ns;
        ns_by_kind.insert(config.kind().name, [short?, long?]);
    }
    // `forward` only counts, so its cost is the cost of the hop.
    let hop = ns_by_kind.get("forward").map_or(0.0, |ns| ns[0].min(ns[1]));
    let functions = ns_by_kind
        .iter()
        .map(|(kind, ns)| (*kind, fit(ns.map(|ns| (ns - hop).max(0.0)))))
        .collect();
    Ok(ProgramCosts {
        door_tcx: door_cost(&plane, Hook::Tcx, rounds)?,
        door_xdp: door_cost(&plane, Hook::Xdp, rounds)?,
        hop: Cost::new(hop, 0.0),
        functions,
    })
}

/// Cost of one more function in a chain, ns.
fn function_ns(plane: &Plane, config: &FunctionConfig, bytes: usize, rounds: usize) -> Result<f64> {
    let (one, many) = (
        load(plane, Hook::Tcx, config, 1)?,
        load(plane, Hook::Tcx, config, MANY)?,
    );
    let frame = frame(bytes);
    let headers = myelin_packet::parse(&frame)?;
    let test = TestRun {
        meta: Some(Meta::new(1, 1, 0, 0, &headers)),
        repeat: REPEAT,
        ..TestRun::new(&frame)
    };
    let run = |chain: &LoadedChain| -> Result<f64> {
        let program = chain
            .program(0)
            .ok_or_else(|| ApiError::failed("the chain has no program"))?;
        let outcome = test_run::run(program, Hook::Tcx, &test)?;
        Ok(f64::from(outcome.mean_ns))
    };
    let mut figures = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        figures.push((run(&many)? - run(&one)?) / (MANY - 1) as f64);
    }
    Ok(median(figures).max(0.0))
}

/// Cost of the front door of one chain, up to its tail call.
fn door_cost(plane: &Plane, hook: Hook, rounds: usize) -> Result<Cost> {
    let port = plane.add_port(test_run::port())?;
    let chain = load(plane, hook, &FunctionConfig::Forward, 1)?;
    let matches = Match {
        destination: Prefix::new(SERVER, 32).ok(),
        destination_port: Some(9000),
        protocol: Some(17),
        ..Match::default()
    };
    port.insert(&matches, &chain)?;
    let program = port.program(hook)?;
    let frame = frame(FRAMES[0]);
    let headers = myelin_packet::parse(&frame)?;
    let whole_run = TestRun {
        repeat: REPEAT,
        ..TestRun::new(&frame)
    };
    let function_run = TestRun {
        meta: Some(Meta::new(1, 1, 0, 0, &headers)),
        ..whole_run
    };
    let mut figures = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let first = chain
            .program(0)
            .ok_or_else(|| ApiError::failed("the chain has no program"))?;
        let whole = test_run::run(std::os::fd::AsFd::as_fd(&*program), hook, &whole_run)?;
        let rest = test_run::run(first, hook, &function_run)?;
        figures.push(f64::from(whole.mean_ns) - f64::from(rest.mean_ns));
    }
    Ok(Cost::new(median(figures).max(0.0), 0.0))
}

fn load(plane: &Plane, hook: Hook, config: &FunctionConfig, count: usize) -> Result<LoadedChain> {
    let functions = vec![config.clone(); count];
    Ok(plane.load_chain(&test_run::chain(hook, 1, &functions))?)
}
