//! Measures the costs of eBPF programs with `BPF_PROG_TEST_RUN`.

use std::collections::BTreeMap;

use myelin_api::ApiError;
use myelin_kernel::test_run::{self, TestRun};
use myelin_kernel::{Hook, LoadedChain, Plane};
use myelin_packet::{Match, Meta, Prefix};
use myelin_planner::Cost;
use myelin_spec::FunctionConfig;

use super::direct::SERVER;
use super::{FRAMES, Result, fit, frame, median, parse_configurations};

/// Number of runs of a program in one measurement. They take about a millisecond.
const REPEAT: u32 = 10_000;
/// Number of functions in the longer chain. The shorter chain has one function.
const MANY: usize = 9;

/// Costs of eBPF programs.
pub(super) struct ProgramCosts {
    pub(super) door_tcx: Cost,
    pub(super) door_xdp: Cost,
    pub(super) hop: Cost,
    /// Cost of a function without the hop, by kind.
    pub(super) functions: BTreeMap<&'static str, Cost>,
}

/// Measures on a separate [`Plane`], so that running chains are not affected.
pub(super) fn measure(rounds: usize) -> Result<ProgramCosts> {
    let plane = Plane::create(None, myelin_kernel::Capacity::default())?;
    let mut ns_by_kind = BTreeMap::new();
    for config in parse_configurations()? {
        let ns = FRAMES.map(|bytes| measure_function_ns(&plane, &config, bytes, rounds));
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
        door_tcx: measure_door_cost(&plane, Hook::Tcx, rounds)?,
        door_xdp: measure_door_cost(&plane, Hook::Xdp, rounds)?,
        hop: Cost::new(hop, 0.0),
        functions,
    })
}

/// Measures the cost of one more function in a chain, ns.
fn measure_function_ns(
    plane: &Plane,
    config: &FunctionConfig,
    bytes: usize,
    rounds: usize,
) -> Result<f64> {
    let (short, long) = (
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
        figures.push((run(&long)? - run(&short)?) / (MANY - 1) as f64);
    }
    Ok(median(figures).max(0.0))
}

/// Measures the cost of the front door of one chain, up to the tail call of the first function.
fn measure_door_cost(plane: &Plane, hook: Hook, rounds: usize) -> Result<Cost> {
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
