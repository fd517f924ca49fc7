//! The tables of a router in the layout of `router.bpf.c`: one array for each table, copied
//! unchanged.

use bytemuck::{NoUninit, Pod, Zeroable};
use myelin_packet::lpm::{BLOCK, LpmError, Tree};
use myelin_packet::routes::RouteTables;
use myelin_spec::RouterConfig;

use crate::Error;
use crate::hop::Hop;
use crate::map::{NamedMap, create_filled};

/// The read-only data of a `router`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RouterInstance {
    hop: Hop,
    mtu: u32,
    icmp_rate: u32,
    has_v4: u32,
    has_v6: u32,
    first: Tree,
}

/// The tables of a router in user space, before they are copied to maps.
pub(crate) struct RouterTables(RouteTables);

impl RouterTables {
    pub(crate) fn new(config: &RouterConfig) -> Result<Self, LpmError> {
        RouteTables::new(&config.routes).map(Self)
    }

    pub(crate) fn instance(&self, hop: Hop, config: &RouterConfig) -> RouterInstance {
        RouterInstance {
            hop,
            first: self.0.lpm.v6.trees[0],
            mtu: config.mtu.unwrap_or(0),
            icmp_rate: config.icmp_rate,
            has_v4: config.addresses.0.is_some().into(),
            has_v6: config.addresses.1.is_some().into(),
        }
    }

    /// Creates a map for each table.
    pub(crate) fn create_maps(&self) -> Result<[NamedMap; 6], Error> {
        let RouteTables { lpm, hops } = &self.0;
        let (v4, v6) = (&lpm.v4, &lpm.v6);
        Ok([
            create_array("direct4", v4.direct.len(), &v4.direct)?,
            create_array("blocks4", BLOCK, &v4.blocks)?,
            create_array("trees6", 1, &v6.trees)?,
            create_array("nodes6", 1, &v6.nodes)?,
            create_array("leaves6", 1, &v6.leaves)?,
            create_array("hops", 1, hops)?,
        ])
    }
}

/// Creates an array map of `items`. Each element holds `per_element` items.
fn create_array<T: NoUninit>(
    name: &'static str,
    per_element: usize,
    items: &[T],
) -> Result<NamedMap, Error> {
    let element = per_element * size_of::<T>();
    debug_assert!(element.is_multiple_of(8), "{name} would have gaps");
    Ok((
        name,
        create_filled(name, element, bytemuck::cast_slice(items))?,
    ))
}

#[cfg(test)]
mod tests {
    use myelin_packet::lpm::{Leaf, Node};
    use myelin_packet::routes::NextHop;

    use super::*;
    use crate::object::ROUTER;
    use crate::tests::assert_same_layout;

    #[test]
    fn structures_match_their_c_layout() {
        assert_same_layout!(
            ROUTER,
            "router",
            RouterInstance {
                hop,
                first,
                mtu,
                icmp_rate,
                has_v4,
                has_v6
            }
        );
        assert_same_layout!(
            ROUTER,
            "tree",
            Tree {
                root,
                depth,
                leaf,
                inner
            }
        );
        assert_same_layout!(ROUTER, "node", Node { keys });
        assert_same_layout!(ROUTER, "leaf", Leaf { values });
        assert_same_layout!(
            ROUTER,
            "next_hop",
            NextHop {
                destination,
                source,
                writes
            }
        );
    }
}
