//! A load balancer in the form of `load_balancer.bpf.c`: its backends and hash tables, an array each, and the tables of its
//! flows, which it shares with other generations and with its reply side.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use myelin_packet::maglev::{Backend, TABLE_SIZE};
use myelin_spec::{FunctionConfig, FunctionInstance, LoadBalancerConfig, Side};

use crate::Error;
use crate::flows;
use crate::hop::Hop;
use crate::map::{MMAPABLE, create};
use crate::mapping::Mapping;
use crate::state::{MapShape, State, States};

/// `struct load_balancer`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Instance {
    hop: Hop,
    timeout_ns: u64,
    reply: u32,
    spare: u32,
}

impl Instance {
    pub(crate) fn new(hop: Hop, config: &LoadBalancerConfig, side: Side) -> Self {
        Self {
            hop,
            timeout_ns: config.timeout_ns,
            reply: (side == Side::Reply).into(),
            spare: 0,
        }
    }
}

/// `struct place`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Place {
    address: [u8; 16],
    is_ipv6: u32,
}

/// Bytes of `struct reply`.
const REPLY: usize = 24;

/// Bytes of `struct table`.
const TABLE: usize = TABLE_SIZE.next_multiple_of(4) * size_of::<u16>();

/// The tables of its flows. Backends and timeout may change under them.
pub(crate) fn state(
    states: &States,
    function: &FunctionInstance,
    config: &LoadBalancerConfig,
) -> Result<Arc<State>, Error> {
    let [flows, totals] = flows::balancer(config);
    let replies = MapShape {
        name: "replies",
        value: REPLY,
        ..flows
    };
    let maps = [flows, totals, replies];
    let shape = FunctionConfig::LoadBalancer(config.shape());
    states.get(function.state.as_ref(), &shape, &maps, |_| Ok(()))
}

/// The maps of its configuration, by name.
pub(crate) struct Maps([(&'static str, MapHandle); 3]);

impl Maps {
    pub(crate) fn new(config: &LoadBalancerConfig) -> Result<Self, Error> {
        let maglev = array("maglev", TABLE, 2)?;
        let tables = Mapping::new(maglev.as_fd(), "maglev", 2 * TABLE)?;
        for (family, table) in config.tables().iter().enumerate() {
            tables.write(family * TABLE, bytemuck::cast_slice(&table.entries));
        }
        let list = config.backends();
        let count = list.len().max(1);
        let backends = array("backends", size_of::<Backend>(), count)?;
        Mapping::new(backends.as_fd(), "backends", count * size_of::<Backend>())?
            .write(0, bytemuck::cast_slice(&list));
        let numbers = create(
            "numbers",
            MapType::Hash,
            size_of::<Place>(),
            size_of::<u32>(),
            count as u32,
            0,
        )?;
        for (number, backend) in (0_u32..).zip(&list) {
            let place = Place {
                address: backend.address,
                is_ipv6: backend.is_ipv6.into(),
            };
            numbers
                .update(
                    bytemuck::bytes_of(&place),
                    &number.to_ne_bytes(),
                    MapFlags::ANY,
                )
                .map_err(|cause| Error::map("numbers", "add a backend to", &cause))?;
        }
        Ok(Self([
            ("maglev", maglev),
            ("backends", backends),
            ("numbers", numbers),
        ]))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&'static str, BorrowedFd<'_>)> {
        self.0.iter().map(|(name, map)| (*name, map.as_fd()))
    }
}

fn array(name: &'static str, element: usize, count: usize) -> Result<MapHandle, Error> {
    create(
        name,
        MapType::Array,
        size_of::<u32>(),
        element,
        count as u32,
        MMAPABLE,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::LOAD_BALANCER;
    use crate::twin::{assert_twins, layout};

    #[test]
    fn structures_lie_as_in_c() {
        assert_twins!(
            LOAD_BALANCER,
            "load_balancer",
            Instance {
                hop,
                timeout_ns,
                reply,
                spare
            }
        );
        assert_twins!(
            LOAD_BALANCER,
            "backend",
            Backend {
                address,
                mac,
                has_mac,
                is_ipv6
            }
        );
        assert_twins!(LOAD_BALANCER, "place", Place { address, is_ipv6 });
        for (name, bytes) in [("reply", REPLY), ("table", TABLE)] {
            assert_eq!(layout(&LOAD_BALANCER, name).0, bytes, "struct {name}");
        }
    }
}
