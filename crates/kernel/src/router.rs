//! A router's tables in the form of `router.bpf.c`: an array each, filled one to one.

use std::os::fd::{AsFd, BorrowedFd};

use bytemuck::{NoUninit, Pod, Zeroable};
use libbpf_rs::{MapHandle, MapType};
use myelin_packet::lpm::{BLOCK, LpmError, Tree};
use myelin_packet::routes::RouteTables;
use myelin_spec::RouterConfig;

use crate::Error;
use crate::hop::Hop;
use crate::map::{MMAPABLE, create};
use crate::mapping::Mapping;

/// The read-only data of a `router`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Instance {
    hop: Hop,
    first: Tree,
}

/// A router ready to be loaded.
pub(crate) struct Tables(RouteTables);

impl Tables {
    pub(crate) fn new(config: &RouterConfig) -> Result<Self, LpmError> {
        RouteTables::new(&config.routes).map(Self)
    }

    pub(crate) fn instance(&self, hop: Hop) -> Instance {
        Instance {
            hop,
            first: self.0.lpm.v6.trees[0],
        }
    }

    /// Maps that hold the tables.
    pub(crate) fn maps(&self) -> Result<Maps, Error> {
        let RouteTables { lpm, hops } = &self.0;
        let (v4, v6) = (&lpm.v4, &lpm.v6);
        Ok(Maps([
            array("direct4", v4.direct.len(), &v4.direct)?,
            array("blocks4", BLOCK, &v4.blocks)?,
            array("trees6", 1, &v6.trees)?,
            array("nodes6", 1, &v6.nodes)?,
            array("leaves6", 1, &v6.leaves)?,
            array("hops", 1, hops)?,
        ]))
    }
}

/// The maps of one router, by name.
pub(crate) struct Maps([(&'static str, MapHandle); 6]);

impl Maps {
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&'static str, BorrowedFd<'_>)> {
        self.0.iter().map(|(name, map)| (*name, map.as_fd()))
    }
}

/// An array map of `items`, so many in an element, whose size is a multiple of eight bytes; at least one element, for an
/// array cannot be empty.
fn array<T: NoUninit>(
    name: &'static str,
    in_element: usize,
    items: &[T],
) -> Result<(&'static str, MapHandle), Error> {
    let element = in_element * size_of::<T>();
    debug_assert!(element.is_multiple_of(8), "{name} would not lie end to end");
    let elements = (items.len() / in_element).max(1);
    let map = create(
        name,
        MapType::Array,
        size_of::<u32>(),
        element,
        elements as u32,
        MMAPABLE,
    )?;
    Mapping::new(map.as_fd(), name, elements * element)?.write(0, bytemuck::cast_slice(items));
    Ok((name, map))
}

#[cfg(test)]
mod tests {
    use myelin_packet::lpm::{Leaf, Node};
    use myelin_packet::routes::NextHop;

    use super::*;
    use crate::object::ROUTER;
    use crate::twin::assert_twins;

    #[test]
    fn structures_lie_as_in_c() {
        assert_twins!(ROUTER, "router", Instance { hop, first });
        assert_twins!(
            ROUTER,
            "tree",
            Tree {
                root,
                depth,
                leaf,
                inner
            }
        );
        assert_twins!(ROUTER, "node", Node { keys });
        assert_twins!(ROUTER, "leaf", Leaf { values });
        assert_twins!(
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
