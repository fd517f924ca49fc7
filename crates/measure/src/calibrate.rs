//! Measures the costs that `plan` uses. Measures functions and front doors in isolation, and the
//! steps between functions by round trips through chains that differ in one step.

mod black_box;
mod bursts;
mod crossings;
mod crowd;
mod deployed;
mod direct;
mod fed_functions;
mod own_links;
mod programs;
mod ring;
mod stalls;
mod user_functions;
mod worst_case;

use std::collections::BTreeMap;
use std::path::Path;

pub use black_box::measure_black_box;
use crowd::SinglePacketCosts;
use myelin_api::{ApiError, ChainSource, ChainUp, DownReply};
use myelin_dataplane::feed;
use myelin_linux::sched;
use myelin_packet::sojourn::Histogram;
use myelin_planner::costs::VERSION;
use myelin_planner::{Cost, Costs, FunctionCosts, Origin, StepCosts};
use myelin_spec::{FunctionConfig, Space};
use worst_case::worst_case_factor;

use crate::Monitor;
use crate::function_config;

/// Frame lengths of the measurements, bytes. The UDP payloads are those of CALVIN, 256 and 1400 B.
const FRAMES: [usize; 2] = [256 + 42, 1400 + 42];

/// The operations of an agent that calibration needs.
pub trait Chains {
    /// Deploys the chains of a file.
    fn up(&self, source: &ChainSource) -> Result<Vec<ChainUp>, ApiError>;
    /// Removes a chain.
    fn down(&self, name: &str) -> Result<DownReply, ApiError>;
    /// The sojourn of all packets of a chain since its deployment, by section.
    fn sojourn(&self, name: &str) -> Result<Vec<Histogram>, ApiError>;
}

/// A failed measurement.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
enum Error {
    Chains(#[from] ApiError),
    Linux(#[from] myelin_linux::Error),
    Kernel(#[from] myelin_kernel::Error),
    Dataplane(#[from] myelin_dataplane::Error),
    Functions(#[from] myelin_functions::Error),
    Probe(#[from] crate::Error),
    Frame(#[from] myelin_packet::Unparsed),
    Send(#[from] std::io::Error),
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        match error {
            Error::Chains(error) => error,
            other => Self::failed(other),
        }
    }
}

type Result<T, E = Error> = std::result::Result<T, E>;

/// Measures the costs of this machine.
///
/// # Errors
/// A chain cannot be deployed or measured.
pub fn calibrate(
    chains: &dyn Chains,
    quick: bool,
    monitor: &Monitor<'_>,
) -> Result<Costs, ApiError> {
    let rounds = if quick { 7 } else { 31 };
    monitor.progress("stalls", 0, 4);
    let stalls = stalls::measure(quick)?;
    monitor.progress("programs", 1, 4);
    let programs = programs::measure(rounds)?;
    monitor.progress("user functions", 2, 4);
    let user = user_functions::measure(rounds)?;
    monitor.progress("crossings", 3, 4);
    let crossed = crossings::measure(chains, rounds, &programs, user.dispatch, monitor)?;
    let cost_in_space = |kind: &str, space| {
        let (call, function) = match space {
            Space::Kernel => (programs.hop, programs.functions.get(kind)),
            Space::User => (user.dispatch, user.functions.get(kind)),
        };
        call.plus(function.copied().unwrap_or_default())
    };
    let single = SinglePacketCosts {
        function: &cost_in_space,
        to_door: crossed.to_door,
    };
    let crowd = crowd::measure(chains, rounds, &single, monitor)?;
    let min_stall_ns = stalls.values().map(|stall| stall.stall_ns).min();
    let crowd_bursts = crowd.iter().flat_map(|crowd| &crowd.slowest_ns);
    let worst_case = worst_case_factor(
        crossed.slowest_ns.iter().chain(crowd_bursts),
        min_stall_ns.unwrap_or(0),
    );
    let steps = StepCosts {
        ring: ring::measure(rounds)?,
        ..crossed.steps
    };
    let (slice, slice_from) = sched::longest_turn();
    let fed = fed_functions::measure(rounds, user.dispatch.per_packet_ns)?;
    let in_both = programs.functions.iter().map(|(kind, kernel)| {
        let costs = FunctionCosts {
            kernel: Some(*kernel),
            user: user.functions.get(kind).copied(),
        };
        ((*kind).to_owned(), costs)
    });
    let in_user_space = fed.into_iter().map(|(kind, user)| {
        let costs = FunctionCosts {
            kernel: None,
            user: Some(user),
        };
        (kind.to_owned(), costs)
    });
    let functions = in_both.chain(in_user_space).collect();
    let environment = myelin_linux::machine::Machine::detect();
    Ok(Costs {
        version: VERSION,
        origin: Origin::Measured {
            machine: format!(
                "{}, {} cores, Linux {}",
                environment.cpu, environment.cores, environment.kernel
            ),
            date: humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string(),
        },
        steps,
        functions,
        black_boxes: BTreeMap::new(),
        stalls,
        worst_case,
        in_burst: crowd.map(|crowd| crowd.in_burst),
        slice_ns: slice.as_nanos() as u64,
        pause_ns: 0,
        slice_from,
    })
}

/// Writes costs to a file. Writes a temporary file first and renames it, so readers never see a
/// partial file.
///
/// # Errors
/// The file cannot be written.
pub fn save_costs(path: &Path, costs: &Costs) -> Result<(), ApiError> {
    let failed = |error: std::io::Error| {
        ApiError::failed(format!(
            "cannot write the costs to {}: {error}",
            path.display()
        ))
    };
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).map_err(failed)?;
    }
    let temporary = path.with_extension("json.new");
    std::fs::write(&temporary, costs.to_json()).map_err(failed)?;
    std::fs::rename(&temporary, path).map_err(failed)
}

/// Functions that can process the same frame again and again. Their rules match nothing, so each
/// packet pays for the whole look-up.
///
/// `timestamp` is missing because the frame would grow each time, `compress` and `decompress`
/// because they would change the frame only the first time, `router` because the frame's time to
/// live would expire.
const FUNCTIONS: [&str; 7] = [
    "kind: forward",
    "kind: xor, config: { key: 0x5a }",
    "kind: firewall, config: { default: allow, fragments: match, rules: [ { action: deny, source: 192.0.2.0/24, destinationPort: 53 } ] }",
    "kind: monitor, config: { flows: 1024 }",
    "kind: flow-tracker, config: { flows: 1024 }",
    // The backend and the address are those of the frame, so the frame stays in one flow.
    "kind: load-balancer, config: { backends: [ { address: 10.0.0.2 } ], flows: 1024 }",
    "kind: nat, config: { address: 10.0.0.1, flows: 1024 }",
];

fn parse_configurations() -> Result<Vec<FunctionConfig>> {
    let files = BTreeMap::new();
    FUNCTIONS
        .iter()
        .map(|function| Ok(function_config::parse(function, &files)?))
        .collect()
}

/// A frame of that length with a UDP packet from 10.0.0.1 to 10.0.0.2, port 9000. The packet has a
/// checksum, although IPv4 does not require a checksum, because functions must update it.
fn frame(length: usize) -> Vec<u8> {
    feed::frame(&vec![0x55; length - feed::HEADERS])
}

/// Fits a line through the costs of the two frames. Noise must not make a cost negative.
fn fit(ns: [f64; 2]) -> Cost {
    let per_byte_ns = ((ns[1] - ns[0]) / (FRAMES[1] - FRAMES[0]) as f64).max(0.0);
    Cost::new(
        (ns[0] - per_byte_ns * FRAMES[0] as f64).max(0.0),
        per_byte_ns,
    )
}

/// Returns the median; 0 for no figures.
fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or_default()
}

/// As [`fit`], with negative costs set to 0 before the fit.
fn fit_clamped(cost: [f64; 2]) -> Cost {
    fit(cost.map(|ns| ns.max(0.0)))
}

/// The built-in cost of a step that only a network card has.
fn built_in_tcx_skb() -> Cost {
    StepCosts::default().tcx_skb
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_frame_is_valid() {
        for length in FRAMES {
            let frame = frame(length);
            let headers = myelin_packet::parse(&frame).expect("parses");
            assert_eq!(usize::from(headers.end), length);
            assert_eq!(
                myelin_packet::checksum::l4_is_valid(&frame, &headers),
                Some(true)
            );
        }
    }

    #[test]
    fn fitted_line_passes_both_points() {
        let cost = fit([
            100.0 + 0.5 * FRAMES[0] as f64,
            100.0 + 0.5 * FRAMES[1] as f64,
        ]);
        assert!(
            (cost.per_packet_ns - 100.0).abs() < 1e-9 && (cost.per_byte_ns - 0.5).abs() < 1e-12
        );
        // If noise makes the short frame cost more, the cost of a byte is 0.
        assert_eq!(fit([100.0, 90.0]), Cost::new(100.0, 0.0));
    }

    #[test]
    fn the_median_is_the_middle_figure() {
        assert!((median(vec![9.0, 1.0, 5.0]) - 5.0).abs() < f64::EPSILON);
        assert!(median(Vec::new()).abs() < f64::EPSILON);
    }
}
