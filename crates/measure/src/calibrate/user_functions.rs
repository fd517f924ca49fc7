//! Measures user functions with single packets, through the worker's dynamic call.

use std::collections::BTreeMap;
use std::time::Instant;

use myelin_api::ApiError;
use myelin_functions::{Batch, Discard, Function, Packet, instantiate};
use myelin_packet::Meta;
use myelin_planner::Cost;

use super::{FRAMES, Result, fit, frame, median, parse_configurations};

/// Number of packets in one measurement. They take about a millisecond.
const REPEAT: u32 = 20_000;

/// Costs of user functions.
pub(super) struct UserFunctionCosts {
    /// Cost of the worker's call.
    pub(super) dispatch: Cost,
    /// Cost of a function without the call, by kind.
    pub(super) functions: BTreeMap<&'static str, Cost>,
}

/// Measures all functions.
pub(super) fn measure(rounds: usize) -> Result<UserFunctionCosts> {
    let mut whole = BTreeMap::new();
    for config in parse_configurations()? {
        let mut function = instantiate(&config)?;
        let mut ns = [0.0; 2];
        for (bytes, ns) in FRAMES.iter().zip(&mut ns) {
            let figures = (0..rounds)
                .map(|_| measure_packet_ns(function.as_mut(), *bytes))
                .collect::<Result<_, _>>()?;
            *ns = median(figures);
        }
        whole.insert(config.kind().name, ns);
    }
    // `forward` does nothing, so its cost is the cost of the call.
    let dispatch = whole.get("forward").map_or(0.0, |ns| ns[0].min(ns[1]));
    Ok(UserFunctionCosts {
        dispatch: Cost::new(dispatch, 0.0),
        functions: whole
            .into_iter()
            .map(|(kind, ns)| (kind, fit(ns.map(|ns| (ns - dispatch).max(0.0)))))
            .collect(),
    })
}

/// Measures the mean time of a packet, in batches of one packet, ns.
fn measure_packet_ns(function: &mut dyn Function, bytes: usize) -> Result<f64> {
    let mut frame = frame(bytes);
    let headers = myelin_packet::parse(&frame)?;
    let meta = Meta::new(1, 1, 0, 0, &headers);
    let length = frame.len();
    let mut batch = Batch::with_capacity(1);
    let packet = Packet::new(&mut frame, 0, length, meta, 0);
    batch.push(packet.ok_or_else(|| {
        ApiError::failed(
            "cannot measure a user function: the packet does not fit its buffer; please report it",
        )
    })?);
    let start = Instant::now();
    for _ in 0..REPEAT {
        std::hint::black_box(
            function.process_batch(std::hint::black_box(&mut batch), &mut Discard),
        );
    }
    Ok(start.elapsed().as_nanos() as f64 / f64::from(REPEAT))
}
