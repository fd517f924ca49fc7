//! Maps inside endpoints to external endpoints.
//!
//! `nat.bpf.c` follows the same rules exactly, so the two implementations assign the same ports:
//!
//! * All inside endpoints of one address get the same external address, which a hash of the inside
//!   address selects.
//! * A new mapping takes the inside port if that port is in the range and free. Otherwise the
//!   mapping takes the first free port of [`PORT_TRIES`] ports, which a hash of the inside endpoint
//!   selects from the range. In a smaller range the translator tries all ports. If none is free, it
//!   makes no mapping.
//! * A port is free if it has no mapping, or an expired mapping, which the translator then removes.
//! * An expired mapping whose port is still unused continues when its inside endpoint sends again.
//!   Packets from outside cannot use an expired mapping.
//! * After a FIN or RST from inside, a mapping has the lifetime of a closing connection, until a
//!   SYN without FIN and RST. All connections of an inside endpoint share this state.
//! * When the table is full, a sweep removes all expired mappings, at most once a second. If no
//!   mapping has expired, the translator makes no mapping. Each request for a mapping sweeps
//!   [`SWEEP_SLOTS`] slots, so that no packet waits for the sweep of a large table. In the kernel,
//!   one packet sweeps up to 4096 mappings at once. In a larger table, a request sweeps
//!   [`SWEEP_SLOTS`] external endpoints.

use std::net::IpAddr;

use myelin_packet::{FlowRecord, FlowTotals};
use myelin_spec::NatConfig;

use super::Endpoint;
use crate::FlowPage;
use crate::flow_table::FlowTable;
use crate::translated_fragments::TranslatedFragments;

/// Ports to try besides the inside port.
pub const PORT_TRIES: u32 = 128;

/// Slots of a full table that one request sweeps: about 10 us.
pub const SWEEP_SLOTS: usize = 1024;

/// Time from the start of one sweep to the next, ns.
const SWEEP_EVERY_NS: u64 = 1_000_000_000;

/// The lifetime of a mapping after a packet from inside.
#[derive(Clone, Copy, Debug)]
pub struct Lifetime {
    /// Lifetime while the connection is open, ns.
    pub ns: u64,
    /// Lifetime while the connection is closing, ns.
    pub closing_ns: u64,
    /// Whether the connection is closing from this packet on. `None` if the packet changes nothing.
    pub closing: Option<bool>,
}

impl Lifetime {
    /// Returns a lifetime without the state of a connection.
    pub fn constant(ns: u64) -> Self {
        Self {
            ns,
            closing_ns: ns,
            closing: None,
        }
    }

    /// Returns when a mapping expires, CLOCK_MONOTONIC, ns.
    #[inline]
    fn end_ns(&self, now_ns: u64, is_closing: bool) -> u64 {
        now_ns.saturating_add(if is_closing { self.closing_ns } else { self.ns })
    }
}

/// The mapping of an inside endpoint.
#[derive(Clone, Copy, Debug, Default)]
struct Mapping {
    outer: Endpoint,
    /// Expiry time, CLOCK_MONOTONIC, ns.
    expires_ns: u64,
    is_closing: bool,
}

/// The mappings of one translator.
#[derive(Debug)]
pub struct Mappings {
    v4: Vec<IpAddr>,
    v6: Vec<IpAddr>,
    first_port: u16,
    port_count: u32,
    /// Mappings, indexed by inside endpoint.
    outward: FlowTable<Endpoint, Mapping>,
    /// The inside endpoint of each mapping, indexed by external endpoint.
    inward: FlowTable<Endpoint, Endpoint>,
    next_sweep_ns: u64,
    /// First slot of the sweep's next part. 0 between two sweeps.
    sweep_position: usize,
    /// The translations of first fragments.
    pub(super) fragments: TranslatedFragments,
}

impl Mappings {
    /// Makes an empty table with the capacity of the configuration.
    pub fn new(config: &NatConfig) -> Self {
        let (v4, v6) = config
            .addresses
            .iter()
            .partition(|address| address.is_ipv4());
        Self {
            v4,
            v6,
            first_port: *config.ports.start(),
            port_count: config.port_count(),
            outward: FlowTable::new(config.flows as usize),
            inward: FlowTable::new(config.flows as usize),
            next_sweep_ns: 0,
            sweep_position: 0,
            fragments: TranslatedFragments::new(),
        }
    }

    /// Returns the number of mappings, including expired mappings that are not yet removed.
    pub fn len(&self) -> usize {
        self.outward.len()
    }

    /// Returns whether the table has no mappings.
    pub fn is_empty(&self) -> bool {
        self.outward.is_empty()
    }

    /// Reads the next page of the mappings, including expired mappings that are not yet removed.
    pub fn read_page(&self, page: &mut FlowPage) {
        page.read_page(&self.outward, FlowTotals::default(), |inner, mapping| {
            let (inside, outside) = (inner.socket_address(), mapping.outer.socket_address());
            FlowRecord::mapping(inner.protocol, inside, outside, mapping.expires_ns)
        });
    }

    /// Returns the external endpoint for a packet from `inner`, and sets the expiry time of the
    /// mapping. Returns `None` if the family has no external address, no port is free, or the table
    /// is full.
    #[inline]
    pub fn translate_outward(
        &mut self,
        inner: &Endpoint,
        now_ns: u64,
        lifetime: &Lifetime,
    ) -> Option<Endpoint> {
        if let Some(mapping) = self.outward.use_flow(inner) {
            mapping.is_closing = lifetime.closing.unwrap_or(mapping.is_closing);
            mapping.expires_ns = lifetime.end_ns(now_ns, mapping.is_closing);
            return Some(mapping.outer);
        }
        let outer = self.allocate(inner, now_ns)?;
        let is_closing = lifetime.closing.unwrap_or(false);
        let mapping = Mapping {
            outer,
            expires_ns: lifetime.end_ns(now_ns, is_closing),
            is_closing,
        };
        self.outward.insert(*inner, mapping);
        self.inward.insert(outer, *inner);
        Some(outer)
    }

    /// Returns the inside endpoint for a packet to `outer`. `None` if `outer` has no live mapping.
    #[inline]
    pub fn translate_inward(&self, outer: &Endpoint, now_ns: u64) -> Option<Endpoint> {
        let inner = self.inward.get(outer)?;
        self.is_alive(inner, now_ns).then_some(*inner)
    }

    /// Returns the external endpoint of `inner` without a change of its mapping. `None` if `inner`
    /// has no live mapping.
    pub fn find_outer(&self, inner: &Endpoint, now_ns: u64) -> Option<Endpoint> {
        let mapping = self.outward.get(inner)?;
        (now_ns < mapping.expires_ns).then_some(mapping.outer)
    }

    fn is_alive(&self, inner: &Endpoint, now_ns: u64) -> bool {
        self.outward
            .get(inner)
            .is_some_and(|mapping| now_ns < mapping.expires_ns)
    }

    /// Finds a free external endpoint, and room for its mapping.
    #[cold]
    fn allocate(&mut self, inner: &Endpoint, now_ns: u64) -> Option<Endpoint> {
        let pool = if inner.is_ipv6 { &self.v6 } else { &self.v4 };
        let address = *pool.get(inner.address_hash().checked_rem(pool.len() as u32)? as usize)?;
        let hash = inner.port_hash();
        let start = hash % self.port_count;
        let step = 1 + (hash >> 16) % (self.port_count / PORT_TRIES).max(1);
        let offset = u32::from(inner.port).wrapping_sub(self.first_port.into());
        let own = (offset < self.port_count).then_some(offset);
        let picked =
            (0..PORT_TRIES.min(self.port_count)).map(|n| (start + n * step) % self.port_count);
        for offset in own.into_iter().chain(picked) {
            let port = self.first_port + offset as u16;
            let outer = Endpoint::new(address, inner.protocol, port);
            if let Some(&holder) = self.inward.get(&outer) {
                if self.is_alive(&holder, now_ns) {
                    continue;
                }
                self.remove(&holder);
            } else if self.outward.len() == self.outward.capacity() && !self.sweep(now_ns) {
                return None;
            }
            return Some(outer);
        }
        None
    }

    /// Removes expired mappings from the next slots of the table. Returns whether the table then
    /// has room.
    fn sweep(&mut self, now_ns: u64) -> bool {
        if self.sweep_position == 0 {
            if now_ns < self.next_sweep_ns {
                return false;
            }
            self.next_sweep_ns = now_ns.saturating_add(SWEEP_EVERY_NS);
        }
        let end = (self.sweep_position + SWEEP_SLOTS).min(self.outward.capacity());
        for slot in self.sweep_position..end {
            if let Some((&inner, mapping)) = self.outward.flow_in_slot(slot)
                && mapping.expires_ns <= now_ns
            {
                self.remove(&inner);
            }
        }
        self.sweep_position = if end == self.outward.capacity() {
            0
        } else {
            end
        };
        self.outward.len() < self.outward.capacity()
    }

    fn remove(&mut self, inner: &Endpoint) {
        if let Some(mapping) = self.outward.remove(inner) {
            self.inward.remove(&mapping.outer);
        }
    }
}
