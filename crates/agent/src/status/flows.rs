//! Reads the flow tables of a chain's functions, from the kernel and from the workers.

use myelin_packet::{FlowRecord, Flows};
use myelin_planner::Hop;
use myelin_spec::catalogue::State;
use myelin_spec::{FunctionConfig, Space};

use crate::api::{ApiError, FlowStatus, FunctionFlows};
use crate::node::chains::{Generation, RunningChain};

/// The flow table of every function that has one. Skips functions that share another one's table
/// (`reverseOf`).
pub(crate) fn of(running: &RunningChain) -> Result<Vec<FunctionFlows>, ApiError> {
    let generation = running.generation();
    let mut all = Vec::new();
    for (hop, function) in generation.plan.hops.iter().zip(&generation.chain.functions) {
        if function.kind().state != State::PerFlow || function.reverse_of.is_some() {
            continue;
        }
        let read = match hop.space {
            Space::Kernel => generation
                .layout
                .kernel_flows(hop.position)
                .map_err(ApiError::failed)?,
            Space::User => in_workers(running.spi, &generation, hop)?,
        };
        let Some(Flows { records, totals }) = read else {
            continue;
        };
        // Read the clock after the records: their stamps are earlier.
        let now_ns = myelin_measure::clock::now_ns();
        let mut flows: Vec<FlowStatus> = records
            .iter()
            .filter(|record| is_alive(&function.config, record, now_ns))
            .map(|record| status(record, now_ns))
            .collect();
        flows.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.flow.cmp(&b.flow)));
        all.push(FunctionFlows {
            chain: generation.chain.name.clone(),
            function: hop.name.clone(),
            kind: hop.kind.clone(),
            space: hop.space.to_string(),
            begun: totals.begun,
            evicted: totals.evicted,
            outside: totals.outside,
            flows,
        });
    }
    Ok(all)
}

/// The flows of a user function, from the worker that runs it.
fn in_workers(spi: u32, generation: &Generation, hop: &Hop) -> Result<Option<Flows>, ApiError> {
    for worker in generation.layout.workers() {
        if worker.has_failed() {
            continue;
        }
        let mut entry = worker.state();
        let flows = entry.handle().flows(spi, generation.number, hop.position);
        if let Some(flows) = flows.map_err(ApiError::failed)? {
            return Ok(Some(flows));
        }
    }
    Ok(None)
}

/// Whether a flow has not timed out. Tables keep expired flows until they need the entry.
fn is_alive(config: &FunctionConfig, record: &FlowRecord, now_ns: u64) -> bool {
    let lifetime_ns = config.flow_lifetime_ns(record.key.is_tcp(), record.state());
    lifetime_ns.is_none_or(|lifetime_ns| now_ns.saturating_sub(record.last_ns) <= lifetime_ns)
}

fn status(record: &FlowRecord, now_ns: u64) -> FlowStatus {
    let tuple = record.key.five_tuple();
    FlowStatus {
        flow: tuple.to_string(),
        protocol: tuple.protocol,
        source: tuple.source,
        source_port: tuple.source_port,
        destination: tuple.destination,
        destination_port: tuple.destination_port,
        state: record.state(),
        packets: record.packets,
        bytes: record.bytes,
        reply_packets: record.reply_packets,
        reply_bytes: record.reply_bytes,
        age_ms: ms(now_ns, record.first_ns),
        last_packet_ms_ago: ms(now_ns, record.last_ns),
    }
}

fn ms(now_ns: u64, then_ns: u64) -> f64 {
    now_ns.saturating_sub(then_ns) as f64 / 1e6
}
