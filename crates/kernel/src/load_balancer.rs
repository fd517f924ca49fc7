//! The maps of a load balancer in the layout of `load_balancer.bpf.c`: backends, hash tables, flow
//! tables. All generations and the reply side share the flow tables.

use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use libbpf_rs::MapType;
use myelin_packet::maglev::{Backend, TABLE_BYTES};
use myelin_spec::{FunctionConfig, FunctionInstance, LoadBalancerConfig, Side};

use crate::Error;
use crate::flows;
use crate::hop::Hop;
use crate::map::{NamedMap, create, create_filled, put};
use crate::state::{FunctionState, FunctionStates, MapShape};
use crate::translated_fragments::TRANSLATIONS;

/// `struct load_balancer`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct LoadBalancerInstance {
    hop: Hop,
    timeout_ns: u64,
    reply: u32,
    padding: u32,
}

impl LoadBalancerInstance {
    pub(crate) fn new(hop: Hop, config: &LoadBalancerConfig, side: Side) -> Self {
        Self {
            hop,
            timeout_ns: config.timeout_ns,
            reply: (side == Side::Reply).into(),
            padding: 0,
        }
    }
}

/// `struct backend_key`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct BackendKey {
    address: [u8; 16],
    is_ipv6: u32,
}

/// Bytes of `struct reply`.
const REPLY: usize = 24;

/// Returns the flow tables of a load balancer. The load balancer's backends and timeout may change
/// while the tables exist.
pub(crate) fn get_or_create_state(
    states: &FunctionStates,
    function: &FunctionInstance,
    config: &LoadBalancerConfig,
) -> Result<Arc<FunctionState>, Error> {
    let [flows, totals] = flows::balancer_maps(config);
    let replies = MapShape {
        name: "replies",
        value: REPLY,
        ..flows
    };
    let maps = [flows, totals, replies, TRANSLATIONS];
    let shape = FunctionConfig::LoadBalancer(config.state_config());
    states.get_or_create(function.state.as_ref(), &shape, &maps)
}

/// Creates the maps of a load balancer's configuration.
pub(crate) fn create_maps(config: &LoadBalancerConfig) -> Result<[NamedMap; 3], Error> {
    let mut tables = Vec::with_capacity(2 * TABLE_BYTES);
    for (family, table) in config.tables().iter().enumerate() {
        tables.extend_from_slice(bytemuck::cast_slice(&table.entries));
        tables.resize((family + 1) * TABLE_BYTES, 0);
    }
    let list = config.backends();
    let numbers = create(
        "numbers",
        MapType::Hash,
        size_of::<BackendKey>(),
        size_of::<u32>(),
        list.len().max(1) as u32,
        0,
    )?;
    for (number, backend) in (0_u32..).zip(&list) {
        let key = BackendKey {
            address: backend.address,
            is_ipv6: backend.is_ipv6.into(),
        };
        let (key, number) = (bytemuck::bytes_of(&key), number.to_ne_bytes());
        put(&numbers, ("numbers", "add a backend to"), key, &number)?;
    }
    let backends = bytemuck::cast_slice(&list);
    Ok([
        ("maglev", create_filled("maglev", TABLE_BYTES, &tables)?),
        (
            "backends",
            create_filled("backends", size_of::<Backend>(), backends)?,
        ),
        ("numbers", numbers),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::LOAD_BALANCER;
    use crate::tests::{assert_same_layout, layout};

    #[test]
    fn structures_match_their_c_layout() {
        assert_same_layout!(
            LOAD_BALANCER,
            "load_balancer",
            LoadBalancerInstance {
                hop,
                timeout_ns,
                reply,
                padding
            }
        );
        assert_same_layout!(
            LOAD_BALANCER,
            "backend",
            Backend {
                address,
                mac,
                has_mac,
                is_ipv6
            }
        );
        assert_same_layout!(
            LOAD_BALANCER,
            "backend_key",
            BackendKey { address, is_ipv6 }
        );
        for (name, bytes) in [("reply", REPLY), ("table", TABLE_BYTES)] {
            assert_eq!(layout(&LOAD_BALANCER, name).0, bytes, "struct {name}");
        }
    }
}
