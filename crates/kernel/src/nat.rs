//! The read-only data and the maps of a `nat`, in the layout of `nat.bpf.c`.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use libbpf_rs::MapType;
use myelin_packet::FlowRecord;
use myelin_packet::prefix::address_of;
use myelin_spec::nat::MAX_ADDRESSES;
use myelin_spec::{FunctionConfig, FunctionInstance, NatConfig, Side};

use crate::hop::Hop;
use crate::state::{FunctionState, FunctionStates, MapShape};
use crate::translated_fragments::TRANSLATIONS;
use crate::{Error, flows};

/// `struct nat`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct NatInstance {
    hop: Hop,
    timeout_ns: u64,
    tcp_timeout_ns: u64,
    tcp_transitory_ns: u64,
    reply: u32,
    first_port: u32,
    port_count: u32,
    count_v4: u32,
    count_v6: u32,
    sweeps_at_once: u32,
    v4: [[u8; 16]; MAX_ADDRESSES],
    v6: [[u8; 16]; MAX_ADDRESSES],
}

/// Most entries of a table that the program sweeps within one packet. Such a sweep takes about
/// 100 us and runs at most once a second.
const MAX_SWEPT_AT_ONCE: u32 = 4096;
/// Longest lifetime of a mapping, so that the expiry time does not wrap around.
const MAX_LIFETIME_NS: u64 = u64::MAX / 2;

impl NatInstance {
    pub(crate) fn new(hop: Hop, config: &NatConfig, side: Side) -> Self {
        let mut instance = Self {
            hop,
            timeout_ns: config.timeout_ns.min(MAX_LIFETIME_NS),
            tcp_timeout_ns: config.tcp_timeout_ns.min(MAX_LIFETIME_NS),
            tcp_transitory_ns: config.tcp_transitory_ns(),
            reply: (side == Side::Reply).into(),
            first_port: (*config.ports.start()).into(),
            port_count: config.port_count(),
            sweeps_at_once: (config.flows <= MAX_SWEPT_AT_ONCE).into(),
            ..Self::zeroed()
        };
        // The spec allows at most `MAX_ADDRESSES`.
        for address in config.addresses.iter().take(MAX_ADDRESSES) {
            match address {
                IpAddr::V4(address) => {
                    instance.v4[instance.count_v4 as usize][..4].copy_from_slice(&address.octets());
                    instance.count_v4 += 1;
                }
                IpAddr::V6(address) => {
                    instance.v6[instance.count_v6 as usize] = address.octets();
                    instance.count_v6 += 1;
                }
            }
        }
        instance
    }
}

/// `struct sweep`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Sweep {
    next_ns: u64,
    swept: u64,
}

/// `struct endpoint`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Endpoint {
    address: [u8; 16],
    port: u16,
    protocol: u8,
    is_ipv6: u8,
}

impl Endpoint {
    fn socket_address(&self) -> SocketAddr {
        (address_of(self.address, self.is_ipv6 != 0), self.port).into()
    }
}

/// `struct mapping`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Mapping {
    expires_ns: u64,
    outer: Endpoint,
    closing: u32,
}

const OUTWARD: &str = "outward";

/// Returns the maps that hold the mappings of a `nat`. The lifetimes may change while the maps
/// exist.
pub(crate) fn get_or_create_state(
    states: &FunctionStates,
    function: &FunctionInstance,
    config: &NatConfig,
) -> Result<Arc<FunctionState>, Error> {
    let hash = |name, value| MapShape {
        name,
        kind: MapType::Hash,
        key: size_of::<Endpoint>(),
        value,
        entries: config.flows,
        flags: 0,
    };
    let maps = [
        hash(OUTWARD, size_of::<Mapping>()),
        hash("inward", size_of::<Endpoint>()),
        MapShape {
            name: "sweeps",
            kind: MapType::Array,
            key: size_of::<u32>(),
            value: size_of::<Sweep>(),
            entries: 1,
            flags: 0,
        },
        TRANSLATIONS,
    ];
    let shape = FunctionConfig::Nat(config.state_config());
    states.get_or_create(function.state.as_ref(), &shape, &maps)
}

/// Reads the mappings, including expired mappings that no packet has removed yet. Returns `None` if
/// the state belongs to another kind.
pub(crate) fn read(state: &FunctionState) -> Result<Option<Vec<FlowRecord>>, Error> {
    let Some(map) = state.map(OUTWARD) else {
        return Ok(None);
    };
    let mut records = Vec::new();
    flows::for_each_element((OUTWARD, map), |inner: Endpoint, value| {
        let mapping: Mapping = bytemuck::pod_read_unaligned(value);
        let (inside, outside) = (inner.socket_address(), mapping.outer.socket_address());
        let protocol = inner.protocol;
        records.push(FlowRecord::mapping(
            protocol,
            inside,
            outside,
            mapping.expires_ns,
        ));
    })?;
    Ok(Some(records))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::NAT;
    use crate::tests::assert_same_layout;

    #[test]
    fn instances_match_their_c_layout() {
        assert_same_layout!(
            NAT,
            "nat",
            NatInstance {
                hop,
                timeout_ns,
                tcp_timeout_ns,
                tcp_transitory_ns,
                reply,
                first_port,
                port_count,
                count_v4,
                count_v6,
                sweeps_at_once,
                v4,
                v6,
            }
        );
        assert_same_layout!(NAT, "sweep", Sweep { next_ns, swept });
        assert_same_layout!(
            NAT,
            "endpoint",
            Endpoint {
                address,
                port,
                protocol,
                is_ipv6
            }
        );
        assert_same_layout!(
            NAT,
            "mapping",
            Mapping {
                expires_ns,
                outer,
                closing
            }
        );
    }
}
