//! Which external endpoint stands for which inside one.
//!
//! The rules, which `nat.bpf.c` follows to the letter, so that both give the same ports:
//!
//! * All inside endpoints of one address get the same external address, chosen by a hash of it.
//! * A new mapping takes the inside port if that is in the range and free, else the first free one of
//!   [`TRIES`] ports that a hash of the inside endpoint picks from the range; where the range is not
//!   larger than that, these are all of it. Nothing free: no mapping.
//! * A port is free when it has no mapping or one that has expired; that one is removed then.
//! * A mapping that has expired but whose port nobody took goes on when its inside endpoint sends
//!   again. Packets from outside find it expired.
//! * After a FIN or RST from inside a mapping lives as one of a closing connection does, whatever
//!   follows, until a SYN without either. All connections of an inside endpoint share that.
//! * A full table is swept of all expired mappings, once a second at most; if that makes no room there
//!   is no mapping. Here [`PIECE`] places are looked at for each mapping that is asked for, so that no
//!   packet waits for a sweep of a large table; in the kernel, beyond 4096 mappings, as many external
//!   endpoints.

use std::net::IpAddr;

use myelin_spec::NatConfig;

use super::Endpoint;
use crate::flow_table::FlowTable;

/// Ports that are looked at besides the inside port.
pub const TRIES: u32 = 128;

/// Places of a full table that are looked at in one go: some 10 us.
pub const PIECE: usize = 1024;

/// Time from the start of one sweep to the next, ns.
const SWEEP_EVERY_NS: u64 = 1_000_000_000;

/// How long a mapping lives after a packet from inside.
#[derive(Clone, Copy, Debug)]
pub struct Lifetime {
    /// ns, unless the connection is closing.
    pub ns: u64,
    /// ns, while it is.
    pub closing_ns: u64,
    /// Whether it is closing from this packet on; `None` where the packet does not tell.
    pub closing: Option<bool>,
}

impl Lifetime {
    /// Where there are no connections.
    pub fn always(ns: u64) -> Self {
        Self {
            ns,
            closing_ns: ns,
            closing: None,
        }
    }

    /// When a mapping expires, CLOCK_MONOTONIC.
    #[inline]
    fn end_ns(&self, now_ns: u64, is_closing: bool) -> u64 {
        now_ns.saturating_add(if is_closing { self.closing_ns } else { self.ns })
    }
}

/// What an inside endpoint has.
#[derive(Clone, Copy, Debug, Default)]
struct Mapping {
    outer: Endpoint,
    /// CLOCK_MONOTONIC.
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
    /// By inside endpoint.
    outward: FlowTable<Endpoint, Mapping>,
    /// The inside endpoint by the external one: there is one for each mapping.
    inward: FlowTable<Endpoint, Endpoint>,
    next_sweep_ns: u64,
    /// Where the sweep that is under way goes on; 0 when none is.
    swept: usize,
}

impl Mappings {
    /// None yet, with room for as many as the configuration says.
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
            swept: 0,
        }
    }

    /// Mappings, those included that have expired but were not removed yet.
    pub fn len(&self) -> usize {
        self.outward.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.outward.is_empty()
    }

    /// The external endpoint for a packet from `inner`, whose mapping lives that long from `now_ns`
    /// on. `None` when there is no external address of its family, no free port, or no room for a
    /// further mapping.
    #[inline]
    pub fn outward(
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

    /// The inside endpoint for a packet to `outer`; `None` when no living mapping has that one.
    #[inline]
    pub fn inward(&self, outer: &Endpoint, now_ns: u64) -> Option<Endpoint> {
        let inner = self.inward.get(outer)?;
        self.is_alive(inner, now_ns).then_some(*inner)
    }

    fn is_alive(&self, inner: &Endpoint, now_ns: u64) -> bool {
        self.outward
            .get(inner)
            .is_some_and(|mapping| now_ns < mapping.expires_ns)
    }

    /// A free external endpoint, with room for its mapping.
    #[cold]
    fn allocate(&mut self, inner: &Endpoint, now_ns: u64) -> Option<Endpoint> {
        let pool = if inner.is_ipv6 { &self.v6 } else { &self.v4 };
        let address = *pool.get(inner.address_hash().checked_rem(pool.len() as u32)? as usize)?;
        let hash = inner.choice();
        let start = hash % self.port_count;
        let step = 1 + (hash >> 16) % (self.port_count / TRIES).max(1);
        let offset = u32::from(inner.port).wrapping_sub(self.first_port.into());
        let own = (offset < self.port_count).then_some(offset);
        let picked = (0..TRIES.min(self.port_count)).map(|n| (start + n * step) % self.port_count);
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

    /// Removes what has expired in the next piece of the table; whether there is room now.
    fn sweep(&mut self, now_ns: u64) -> bool {
        if self.swept == 0 {
            if now_ns < self.next_sweep_ns {
                return false;
            }
            self.next_sweep_ns = now_ns.saturating_add(SWEEP_EVERY_NS);
        }
        let end = (self.swept + PIECE).min(self.outward.capacity());
        for place in self.swept..end {
            if let Some((&inner, mapping)) = self.outward.at(place)
                && mapping.expires_ns <= now_ns
            {
                self.remove(&inner);
            }
        }
        self.swept = if end == self.outward.capacity() {
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
