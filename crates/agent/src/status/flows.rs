//! Reads the flow tables of a chain's functions, from the kernel and from the workers.

use myelin_packet::{FlowRecord, Flows};
use myelin_planner::Hop;
use myelin_spec::catalogue::State;
use myelin_spec::{FunctionConfig, Space};

use crate::api::{ApiError, Endpoint, FlowStatus, FunctionFlows};
use crate::node::chains::{Generation, RunningChain};

/// Reads the flow tables of all functions. Skips functions that share another function's table
/// (`reverseOf`).
pub(crate) fn read(running: &RunningChain) -> Result<Vec<FunctionFlows>, ApiError> {
    let generation = running.generation();
    let mut tables = Vec::new();
    for (hop, function) in generation.plan.hops.iter().zip(&generation.chain.functions) {
        if function.kind().state != State::PerFlow || function.reverse_of.is_some() {
            continue;
        }
        let read = match hop.space {
            Space::Kernel => generation
                .layout
                .kernel_flows(hop.position)
                .map_err(ApiError::failed)?,
            Space::User => read_from_worker(running.spi, &generation, hop)?,
        };
        let Some(Flows { records, totals }) = read else {
            continue;
        };
        // Read the clock after the records, so that no stamp is later than `now_ns`.
        let now_ns = myelin_measure::clock::now_ns();
        let mut flows: Vec<FlowStatus> = records
            .iter()
            .filter_map(|record| status(&function.config, record, now_ns))
            .collect();
        flows.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.flow.cmp(&b.flow)));
        let counts = !matches!(function.config, FunctionConfig::Nat(_));
        tables.push(FunctionFlows {
            chain: generation.chain.name.clone(),
            function: hop.name.clone(),
            kind: hop.kind.clone(),
            space: hop.space.to_string(),
            begun: counts.then_some(totals.begun),
            evicted: counts.then_some(totals.evicted),
            outside: counts.then_some(totals.outside),
            flows,
        });
    }
    Ok(tables)
}

/// Reads the flows of a user function from the worker that runs the function.
fn read_from_worker(
    spi: u32,
    generation: &Generation,
    hop: &Hop,
) -> Result<Option<Flows>, ApiError> {
    for worker in generation.layout.workers() {
        if worker.has_failed() {
            continue;
        }
        let mut state = worker.state();
        let flows = state.handle().flows(spi, generation.number, hop.position);
        if let Some(flows) = flows.map_err(ApiError::failed)? {
            return Ok(Some(flows));
        }
    }
    Ok(None)
}

/// Time at which a flow expires, ns (CLOCK_MONOTONIC). `None` if only a full table evicts the flow.
fn expires_ns(config: &FunctionConfig, record: &FlowRecord) -> Option<u64> {
    if record.translated().is_some() {
        return Some(record.expires_ns);
    }
    let lifetime_ns = config.flow_lifetime_ns(record.key.is_tcp(), record.state())?;
    Some(record.last_ns.saturating_add(lifetime_ns))
}

/// Builds the status of a flow; `None` if the flow has expired. A table keeps expired flows until
/// it needs the entry.
fn status(config: &FunctionConfig, record: &FlowRecord, now_ns: u64) -> Option<FlowStatus> {
    let expires_ns = expires_ns(config, record);
    if expires_ns.is_some_and(|expires_ns| expires_ns < now_ns) {
        return None;
    }
    let tuple = record.key.five_tuple();
    let translated = record.translated();
    let has_destination = translated.is_none();
    let is_counted = record.packets > 0;
    let sees_replies = record.state().is_some();
    Some(FlowStatus {
        flow: if has_destination {
            tuple.to_string()
        } else {
            tuple.sender()
        },
        protocol: tuple.protocol,
        source: tuple.source,
        source_port: tuple.source_port,
        destination: has_destination.then_some(tuple.destination),
        destination_port: tuple.destination_port.filter(|_| has_destination),
        translated: translated.map(|endpoint| Endpoint {
            address: endpoint.ip(),
            port: endpoint.port(),
        }),
        backend: record.backend(),
        state: record.state(),
        packets: is_counted.then_some(record.packets),
        bytes: is_counted.then_some(record.bytes),
        reply_packets: sees_replies.then_some(record.reply_packets),
        reply_bytes: sees_replies.then_some(record.reply_bytes),
        age_ms: is_counted.then(|| elapsed_ms(record.first_ns, now_ns)),
        last_packet_ms_ago: is_counted.then(|| elapsed_ms(record.last_ns, now_ns)),
        expires_in_ms: expires_ns.map(|expires_ns| elapsed_ms(now_ns, expires_ns)),
    })
}

fn elapsed_ms(from_ns: u64, to_ns: u64) -> f64 {
    to_ns.saturating_sub(from_ns) as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use myelin_spec::{MonitorConfig, NatConfig};

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_mapping_has_no_counts_and_vanishes_when_it_expires() {
        let config = FunctionConfig::Nat(NatConfig::default());
        let (inside, outside) = ("10.0.0.1:5000", "198.51.100.7:6000");
        let record = |expires_ns| {
            let [inside, outside] = [inside, outside].map(|text| text.parse().unwrap());
            FlowRecord::mapping(17, inside, outside, expires_ns)
        };
        let shown = status(&config, &record(3 * SECOND), SECOND).unwrap();
        assert_eq!(shown.flow, format!("udp {inside}"));
        let translated = shown.translated.unwrap();
        assert_eq!(
            format!("{}:{}", translated.address, translated.port),
            outside
        );
        assert_eq!((shown.destination, shown.destination_port), (None, None));
        assert_eq!(
            (shown.packets, shown.bytes, shown.reply_packets),
            (None, None, None)
        );
        assert_eq!((shown.age_ms, shown.last_packet_ms_ago), (None, None));
        assert_eq!(shown.expires_in_ms, Some(2000.0));
        for expires_ns in [0, SECOND - 1] {
            assert_eq!(status(&config, &record(expires_ns), SECOND), None);
        }
    }

    #[test]
    fn a_monitored_flow_never_expires() {
        let config = FunctionConfig::Monitor(MonitorConfig::default());
        let mut record = FlowRecord::default();
        (record.packets, record.first_ns, record.last_ns) = (2, SECOND, 2 * SECOND);
        let shown = status(&config, &record, 1000 * SECOND).unwrap();
        assert_eq!((shown.packets, shown.bytes), (Some(2), Some(0)));
        assert_eq!(
            (shown.age_ms, shown.last_packet_ms_ago),
            (Some(999e3), Some(998e3))
        );
        assert_eq!((shown.expires_in_ms, shown.reply_packets), (None, None));
        assert!(shown.destination.is_some() && shown.translated.is_none());
    }
}
