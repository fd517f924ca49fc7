//! Defines the maps of the kernel functions' flow tables, and reads these tables.

use std::os::fd::AsFd;

use bytemuck::{AnyBitPattern, Pod, Zeroable};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use myelin_packet::{FlowCounts, FlowKey, FlowRecord, FlowState, FlowTotals, Flows, TrackedFlow};
use myelin_spec::{FlowTrackerConfig, InvalidPolicy, LoadBalancerConfig, MonitorConfig};

use crate::hop::Hop;
use crate::state::{FunctionState, MapShape};
use crate::{Error, nat, sys};

/// `struct flow_totals`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
struct Totals {
    inserted: u64,
    replaced: u64,
    untracked: u64,
}

/// `struct flow` of the load balancer.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
struct BalancedFlow {
    address: [u32; 4],
    packets: u64,
    bytes: u64,
    first_ns: u64,
    last_ns: u64,
    confirmed_ns: u64,
    backend: u32,
    padding: u32,
}

/// `struct flow_tracker`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct TrackerInstance {
    hop: Hop,
    timeout_ns: u64,
    tcp_new_ns: u64,
    tcp_established_ns: u64,
    tcp_closing_ns: u64,
    tcp_closed_ns: u64,
    drops_invalid: u32,
    padding: u32,
}

impl TrackerInstance {
    pub(crate) fn new(hop: Hop, config: &FlowTrackerConfig) -> Self {
        Self {
            hop,
            timeout_ns: config.timeout_ns,
            tcp_new_ns: config.lifetime_ns(true, FlowState::New),
            tcp_established_ns: config.lifetime_ns(true, FlowState::Established),
            tcp_closing_ns: config.lifetime_ns(true, FlowState::Closing),
            tcp_closed_ns: config.lifetime_ns(true, FlowState::Closed),
            drops_invalid: (config.invalid == InvalidPolicy::Drop).into(),
            padding: 0,
        }
    }
}

const FLOWS: &str = "flows";
const TOTALS: &str = "flow_totals";

/// Returns the shapes of a `monitor`'s maps.
pub(crate) fn monitor_maps(config: MonitorConfig) -> [MapShape; 2] {
    table_maps(
        MapType::LruPercpuHash,
        size_of::<FlowCounts>(),
        config.flows,
    )
}

/// Returns the shapes of a `flow-tracker`'s maps.
pub(crate) fn tracker_maps(config: FlowTrackerConfig) -> [MapShape; 2] {
    table_maps(MapType::LruHash, size_of::<TrackedFlow>(), config.flows)
}

/// Returns the shapes of a `load-balancer`'s flow maps.
pub(crate) fn balancer_maps(config: &LoadBalancerConfig) -> [MapShape; 2] {
    table_maps(MapType::LruHash, size_of::<BalancedFlow>(), config.flows)
}

/// Returns the shapes of a flow table and of its totals.
fn table_maps(kind: MapType, value: usize, entries: u32) -> [MapShape; 2] {
    let flows = MapShape {
        name: FLOWS,
        kind,
        key: size_of::<FlowKey>(),
        value,
        entries,
        flags: 0,
    };
    let totals = MapShape {
        name: TOTALS,
        kind: MapType::PercpuArray,
        key: size_of::<u32>(),
        value: size_of::<Totals>(),
        entries: 1,
        flags: 0,
    };
    [flows, totals]
}

/// Reads the flow table of a function. Returns `None` if the function has no flow table. The
/// function runs during the read, so a flow that starts or ends may be missing.
pub(crate) fn read(state: &FunctionState) -> Result<Option<Flows>, Error> {
    if let Some(records) = nat::read(state)? {
        let totals = FlowTotals::default();
        return Ok(Some(Flows { records, totals }));
    }
    let (Some(flows), Some(totals)) = (state.map(FLOWS), state.map(TOTALS)) else {
        return Ok(None);
    };
    // Read the totals first, because a flow that starts during the read must not count as evicted.
    let mut sum = Totals::default();
    let totals_by_cpu = totals
        .lookup_percpu(&0_u32.to_ne_bytes(), MapFlags::ANY)
        .map_err(|cause| Error::map(TOTALS, "read", &cause))?;
    for value in totals_by_cpu.unwrap_or_default() {
        let cpu: Totals = bytemuck::pod_read_unaligned(&value[..size_of::<Totals>()]);
        sum.inserted += cpu.inserted;
        sum.replaced += cpu.replaced;
        sum.untracked += cpu.untracked;
    }
    let mut records = Vec::new();
    // The map type and the entry size identify the kind of the table.
    let convert: fn(FlowKey, &[u8]) -> FlowRecord = if flows.map_type() == MapType::LruPercpuHash {
        sum_cpus
    } else if flows.value_size() as usize == size_of::<TrackedFlow>() {
        convert_tracked
    } else {
        convert_balanced
    };
    for_each_element((FLOWS, flows), |key, values| {
        records.push(convert(key, values));
    })?;
    let totals = FlowTotals {
        begun: sum.inserted + sum.replaced,
        evicted: sum.inserted.saturating_sub(records.len() as u64),
        outside: sum.untracked,
    };
    Ok(Some(Flows { records, totals }))
}

/// Converts a flow of a `monitor`. Adds the values of all CPUs.
fn sum_cpus(key: FlowKey, values: &[u8]) -> FlowRecord {
    let mut record = FlowRecord::new(key);
    for value in values.chunks_exact(size_of::<FlowCounts>()) {
        let cpu: FlowCounts = bytemuck::pod_read_unaligned(value);
        if cpu.packets == 0 {
            continue;
        }
        record.packets += cpu.packets;
        record.bytes += cpu.bytes;
        record.first_ns = match record.first_ns {
            0 => cpu.first_ns,
            first_ns => first_ns.min(cpu.first_ns),
        };
        record.last_ns = record.last_ns.max(cpu.last_ns);
    }
    record
}

/// Converts a flow of a `load-balancer`.
fn convert_balanced(key: FlowKey, value: &[u8]) -> FlowRecord {
    let flow: BalancedFlow = bytemuck::pod_read_unaligned(value);
    let mut record = FlowRecord::new(key);
    record.packets = flow.packets;
    record.bytes = flow.bytes;
    record.first_ns = flow.first_ns;
    record.last_ns = flow.last_ns;
    record.with_backend(bytemuck::cast(flow.address))
}

/// Converts a flow of a `flow-tracker`.
fn convert_tracked(key: FlowKey, value: &[u8]) -> FlowRecord {
    bytemuck::pod_read_unaligned::<TrackedFlow>(value).record(key)
}

/// Calls `visit` for every element of a hash map, with the values of all CPUs.
///
/// The kernel locks one bucket of the map at a time, so a packet waits at most for the copy of one
/// bucket's few elements.
///
/// libbpf-rs also reads in batches, but treats a batch that is not full as the last batch. The
/// kernel may return such a batch before the end of the map.
pub(crate) fn for_each_element<K: AnyBitPattern>(
    (name, map): (&'static str, &MapHandle),
    mut visit: impl FnMut(K, &[u8]),
) -> Result<(), Error> {
    const BATCH: usize = 512;
    let failed = |cause| Error::Map {
        map: name,
        action: "read",
        cause,
    };
    let value = if map.map_type() == MapType::LruPercpuHash {
        let cpus =
            libbpf_rs::num_possible_cpus().map_err(|cause| Error::map(name, "size", &cause))?;
        map.value_size() as usize * cpus
    } else {
        map.value_size() as usize
    };
    let mut keys = vec![0; BATCH * size_of::<K>()];
    let mut values = vec![0; BATCH * value];
    let sizes = (BATCH, size_of::<K>(), value);
    let mut cursor = None;
    loop {
        let (count, more) =
            sys::lookup_batch(map.as_fd(), &mut cursor, sizes, &mut keys, &mut values)
                .map_err(failed)?;
        let keys = keys.chunks_exact(size_of::<K>());
        for (key, values) in keys.zip(values.chunks_exact(value)).take(count) {
            visit(bytemuck::pod_read_unaligned(key), values);
        }
        if !more {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::{FLOW_TRACKER, LOAD_BALANCER, MONITOR};
    use crate::tests::{assert_same_layout, layout};

    #[test]
    fn tables_match_their_c_layout() {
        assert_same_layout!(
            MONITOR,
            "flow_totals",
            Totals {
                inserted,
                replaced,
                untracked
            }
        );
        assert_same_layout!(
            MONITOR,
            "flow_counts",
            FlowCounts {
                packets,
                bytes,
                first_ns,
                last_ns
            }
        );
        assert_same_layout!(
            FLOW_TRACKER,
            "tracked",
            TrackedFlow {
                packets,
                bytes,
                first_ns,
                last_ns,
                marks,
                spare
            }
        );
        assert_same_layout!(
            LOAD_BALANCER,
            "flow",
            BalancedFlow {
                address,
                packets,
                bytes,
                first_ns,
                last_ns,
                confirmed_ns,
                backend,
                padding
            }
        );
        assert_ne!(
            size_of::<BalancedFlow>(),
            size_of::<TrackedFlow>(),
            "the size identifies the table"
        );
        assert_same_layout!(
            FLOW_TRACKER,
            "flow_tracker",
            TrackerInstance {
                hop,
                timeout_ns,
                tcp_new_ns,
                tcp_established_ns,
                tcp_closing_ns,
                tcp_closed_ns,
                drops_invalid,
                padding
            }
        );
        let (size, members) = layout(&MONITOR, "flow_key");
        let order = [
            "source",
            "destination",
            "source_port",
            "destination_port",
            "protocol",
            "flags",
        ];
        assert_eq!(order.map(|name| members[name]), [0, 16, 32, 34, 36, 37]);
        assert_eq!(size, size_of::<FlowKey>());
    }

    #[test]
    fn monitor_flow_is_the_sum_over_all_cpus() {
        let counts = |packets, first_ns, last_ns| FlowCounts {
            packets,
            bytes: packets * 100,
            first_ns,
            last_ns,
        };
        let values = [counts(0, 0, 0), counts(2, 50, 60), counts(1, 40, 45)];
        let record = sum_cpus(FlowKey::default(), bytemuck::cast_slice(&values));
        assert_eq!((record.packets, record.bytes), (3, 300));
        assert_eq!((record.first_ns, record.last_ns), (40, 60));
    }
}
