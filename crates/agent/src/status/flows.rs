//! The flows that a chain's functions know, read from the kernel's tables and from the workers.

use myelin_packet::{FlowRecord, Flows};
use myelin_planner::Hop;
use myelin_spec::catalogue::State;
use myelin_spec::{FunctionConfig, Space};

use crate::api::{ApiError, FlowStatus, FunctionFlows};
use crate::node::chains::{Form, Running};

/// What every function of a chain that keeps a table of flows knows. A function that shares the table of another one
/// (`reverseOf`) is left out.
pub(crate) fn of(running: &Running) -> Result<Vec<FunctionFlows>, ApiError> {
    let form = running.form();
    let mut all = Vec::new();
    for (hop, function) in form.plan.hops.iter().zip(&form.chain.functions) {
        if function.kind().state != State::PerFlow || function.reverse_of.is_some() {
            continue;
        }
        let read = match hop.space {
            Space::Kernel => form
                .layout
                .kernel_flows(hop.position)
                .map_err(ApiError::failed)?,
            Space::User => in_workers(running.spi, &form, hop)?,
        };
        let Some(Flows { records, totals }) = read else {
            continue;
        };
        // The stamps of the last packets lie before this.
        let now_ns = myelin_measure::clock::now_ns();
        let mut flows: Vec<FlowStatus> = records
            .iter()
            .filter(|record| lives(&function.config, record, now_ns))
            .map(|record| status(record, now_ns))
            .collect();
        flows.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.flow.cmp(&b.flow)));
        all.push(FunctionFlows {
            chain: form.chain.name.clone(),
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

/// The flows of a user function, from whichever worker of the chain runs it.
fn in_workers(spi: u32, form: &Form, hop: &Hop) -> Result<Option<Flows>, ApiError> {
    for worker in form.layout.workers() {
        if worker.has_failed() {
            continue;
        }
        let mut entry = worker.entry();
        let flows = entry.handle().flows(spi, form.generation, hop.position);
        if let Some(flows) = flows.map_err(ApiError::failed)? {
            return Ok(Some(flows));
        }
    }
    Ok(None)
}

/// Whether a flow has not timed out; the tables keep it until its place is needed.
fn lives(config: &FunctionConfig, record: &FlowRecord, now_ns: u64) -> bool {
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
