//! The rule tables of a firewall in the layout of `firewall.bpf.c`. A map with a single element
//! holds all tables. The read-only data holds the offsets of the tables.

use bytemuck::{NoUninit, Pod, Zeroable};
use libbpf_rs::MapHandle;
use myelin_packet::rules::{
    Action, ClassVector, Ipv4Table, Ipv6Table, NumberTable, RuleTables, RulesError, WORDS,
};
use myelin_spec::FirewallConfig;

use crate::Error;
use crate::hop::Hop;
use crate::map::create_filled;

/// `struct table`: byte offsets in the element, and numbers of entries.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
struct TableOffsets {
    entries: u32,
    starts: u32,
    first_step: u32,
    blocks: u32,
    block_count: u32,
    vectors: u32,
    vector_count: u32,
    padding: u32,
}

/// The read-only data of a `firewall`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct FirewallInstance {
    hop: Hop,
    source_v4: TableOffsets,
    destination_v4: TableOffsets,
    source_v6: TableOffsets,
    destination_v6: TableOffsets,
    protocol: TableOffsets,
    source_port: TableOffsets,
    destination_port: TableOffsets,
    allow: u32,
    default_allow: u32,
    drops_fragments: u32,
    padding: u32,
}

/// Builds the bytes of the map's element.
#[derive(Default)]
struct ElementBuilder {
    bytes: Vec<u8>,
}

impl ElementBuilder {
    /// Appends an array. Returns the array's offset, a multiple of eight.
    fn push<T: NoUninit>(&mut self, array: &[T]) -> u32 {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(bytemuck::cast_slice(array));
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        at as u32
    }

    fn push_vectors(&mut self, vectors: &[ClassVector]) -> TableOffsets {
        TableOffsets {
            vectors: self.push(vectors),
            vector_count: vectors.len() as u32,
            ..TableOffsets::default()
        }
    }

    fn push_v4(&mut self, table: &Ipv4Table) -> TableOffsets {
        TableOffsets {
            entries: self.push(&table.classes.direct),
            blocks: self.push(&table.classes.blocks),
            block_count: table.classes.blocks.len() as u32,
            ..self.push_vectors(&table.vectors)
        }
    }

    /// Pads the table to a power of two, so a search needs no check of the table's end. The added
    /// intervals start at the last address and have the last class.
    fn push_v6(&mut self, table: &Ipv6Table) -> TableOffsets {
        let count = table.starts.len().next_power_of_two();
        let (mut starts, mut classes) = (table.starts.clone(), table.classes.clone());
        starts.resize(count, [u64::MAX; 2]);
        classes.resize(count, classes.last().copied().unwrap_or_default());
        TableOffsets {
            entries: self.push(&classes),
            starts: self.push(&starts),
            first_step: count as u32 / 2,
            ..self.push_vectors(&table.vectors)
        }
    }

    fn push_numbers(&mut self, table: &NumberTable) -> TableOffsets {
        TableOffsets {
            entries: self.push(&table.classes),
            ..self.push_vectors(&table.vectors)
        }
    }
}

/// The tables of a firewall in user space, and the firewall's read-only data without the hop.
pub(crate) struct FirewallTables {
    instance: FirewallInstance,
    bytes: Vec<u8>,
}

impl FirewallTables {
    pub(crate) fn new(config: &FirewallConfig) -> Result<Self, RulesError> {
        let tables = RuleTables::new(&config.rules)?;
        let mut allow = [0_u64; WORDS];
        for (i, rule) in config.rules.iter().enumerate() {
            allow[i / 64] |= u64::from(rule.action == Action::Allow) << (i % 64);
        }
        let mut builder = ElementBuilder::default();
        let instance = FirewallInstance {
            hop: Hop::zeroed(),
            source_v4: builder.push_v4(&tables.source_v4),
            destination_v4: builder.push_v4(&tables.destination_v4),
            source_v6: builder.push_v6(&tables.source_v6),
            destination_v6: builder.push_v6(&tables.destination_v6),
            protocol: builder.push_numbers(&tables.protocol),
            source_port: builder.push_numbers(&tables.source_port),
            destination_port: builder.push_numbers(&tables.destination_port),
            allow: builder.push(&allow),
            default_allow: u32::from(config.default == Action::Allow),
            drops_fragments: u32::from(config.drops_fragments()),
            padding: 0,
        };
        Ok(Self {
            instance,
            bytes: builder.bytes,
        })
    }

    pub(crate) fn instance(&self, hop: Hop) -> FirewallInstance {
        FirewallInstance {
            hop,
            ..self.instance
        }
    }

    /// Creates the map with the tables.
    pub(crate) fn create_map(&self) -> Result<MapHandle, Error> {
        create_filled("tables", self.bytes.len(), &self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::FIREWALL;
    use crate::tests::assert_same_layout;

    #[test]
    fn instances_match_their_c_layout() {
        assert_same_layout!(
            FIREWALL,
            "table",
            TableOffsets {
                entries,
                starts,
                first_step,
                blocks,
                block_count,
                vectors,
                vector_count,
                padding
            }
        );
        assert_same_layout!(
            FIREWALL,
            "firewall",
            FirewallInstance {
                hop,
                source_v4,
                destination_v4,
                source_v6,
                destination_v6,
                protocol,
                source_port,
                destination_port,
                allow,
                default_allow,
                drops_fragments,
                padding,
            }
        );
    }
}
