//! `load-balancer`: spreads flows over backends by Maglev hashing, and keeps each flow with its
//! backend.
//!
//! The forward side replaces the destination address by that of the flow's backend; ports stay. The
//! reply side (`reverseOf`) restores the source of a backend's answers: the address to which the
//! client had sent. The two sides share one [`Affinity`].
//!
//! A flow keeps its backend while the configuration lists that backend and the flow does not pause
//! longer than the timeout. An ICMP error about a packet of a live flow is translated, with the
//! packet that the error quotes. The function drops:
//!
//! * other packets without ports (protocols other than UDP and TCP), since such packets identify no
//!   flow; later fragments get the address of their first fragment, if the function knows it;
//! * packets with an authentication header (RFC 4302), which covers the addresses;
//! * packets of a family without a backend;
//! * a flow whose answers would equal those of another flow: same client address and port and same
//!   backend, but another original destination;
//! * on the reply side, packets without a live flow.
//!
//! When a table is full, a new flow evicts the least recently used flow, and the table counts the
//! eviction. The client's second packet, unless it opens a TCP connection again, protects a flow,
//! so a flood of half-open connections evicts no established one. The function counts the clients'
//! packets by flow.

use myelin_packet::five_tuple::TCP;
use myelin_packet::flow_marks::tcp;
use myelin_packet::maglev::{Backend, MaglevTable};
use myelin_packet::prefix::address_of;
use myelin_packet::{FiveTuple, FlowCounts, FlowKey, FlowTotals, Fragment, Headers, IcmpQuote};
use myelin_spec::{LoadBalancerConfig, Side};

use crate::flow_table::FlowTable;
use crate::nat::quoted::QuotedEndpoint;
use crate::nat::rewrite::EndpointFields;
use crate::nat::{DROPPED_ERRORS, Endpoint};
use crate::translated_fragments::TranslatedFragments;
use crate::{Emitter, FlowPage, Packet, Stateful, Verdict};

/// Period after which a flow's packet writes the reply record again, as the table may have evicted
/// that record: one second.
const REPLY_REFRESH_NS: u64 = 1_000_000_000;

/// The flows that both sides share.
#[derive(Debug)]
pub struct Affinity {
    flows: FlowTable<FlowKey, BalancedFlow>,
    replies: FlowTable<FlowKey, ReplyFlow>,
    begun: u64,
    /// The translations of first fragments.
    fragments: TranslatedFragments,
}

/// A flow as the clients send it.
#[derive(Clone, Copy, Debug, Default)]
struct BalancedFlow {
    /// Address of the backend.
    address: [u8; 16],
    counts: FlowCounts,
    /// The time when the reply record was last written, ns.
    reply_recorded_ns: u64,
    /// Index of the backend in the configuration when the flow was last used.
    backend: u32,
    is_established: bool,
}

/// A flow as the backends answer it.
#[derive(Clone, Copy, Debug, Default)]
struct ReplyFlow {
    /// The address to which the client had sent.
    address: [u8; 16],
    last_ns: u64,
}

impl Affinity {
    /// Makes tables for `flows` flows.
    pub fn new(flows: usize) -> Self {
        Self {
            flows: FlowTable::new(flows),
            replies: FlowTable::new(flows),
            begun: 0,
            fragments: TranslatedFragments::new(),
        }
    }
}

/// One side of the load balancer.
#[derive(Debug)]
pub struct LoadBalancer {
    side: Side,
    timeout_ns: u64,
    backends: Vec<Backend>,
    v4: MaglevTable,
    v6: MaglevTable,
    dropped_errors: u64,
}

impl LoadBalancer {
    /// Makes the function with this configuration for one side of the affinity.
    pub fn new(config: &LoadBalancerConfig, side: Side) -> Self {
        let [v4, v6] = config.tables();
        Self {
            side,
            timeout_ns: config.timeout_ns,
            backends: config.backends(),
            v4,
            v6,
            dropped_errors: 0,
        }
    }

    /// Sends a packet to the backend of its flow.
    #[inline]
    fn send_to_backend(&mut self, affinity: &mut Affinity, packet: &mut Packet<'_>) -> Option<()> {
        let headers = *packet.headers();
        if headers.flags.has_ports() {
            return self.balance(affinity, packet, &headers).map(drop);
        }
        if headers.flags.is_fragment() {
            return self.send_fragment_to_backend(affinity, packet);
        }
        let done = self.send_error_to_backend(affinity, packet);
        self.count_dropped_error(done, packet)
    }

    /// Sends a packet with ports to the backend of its flow. Returns the backend.
    #[inline]
    fn balance(
        &self,
        affinity: &mut Affinity,
        packet: &mut Packet<'_>,
        headers: &Headers,
    ) -> Option<&Backend> {
        let now_ns = packet.meta().stamp_ns;
        let key = FlowKey::of(headers, packet.bytes())?;
        let is_ipv6 = headers.flags.is_ipv6();
        let arrival = Arrival {
            is_ipv6,
            opens: opens_connection(&key, headers, packet.bytes()),
            packets: packet.segments(),
            bytes: packet.len() as u64,
            now_ns,
        };
        let backend = self.select_backend(affinity, &key, arrival)?;
        let is_partial = packet.has_partial_checksum();
        let frame = packet.bytes_mut();
        let fields = EndpointFields::find(frame, headers, Side::Reply)?;
        let old = fields.endpoint(frame)?;
        let mut new = old;
        new.address = backend.address;
        fields.write(frame, &old, &new, is_partial)?;
        if backend.has_mac != 0 {
            frame.get_mut(..6)?.copy_from_slice(&backend.mac);
        }
        Some(backend)
    }

    /// Finds or selects the backend of a flow, and counts the packet.
    #[inline]
    fn select_backend(
        &self,
        affinity: &mut Affinity,
        key: &FlowKey,
        arrival: Arrival,
    ) -> Option<&Backend> {
        let Arrival {
            is_ipv6,
            opens,
            packets,
            bytes,
            now_ns,
        } = arrival;
        let Affinity {
            flows,
            replies,
            begun,
            ..
        } = affinity;
        if let Some(flow) = flows.use_flow(key)
            && now_ns.saturating_sub(flow.counts.last_ns) <= self.timeout_ns
            && let Some(number) = self.backend_number(flow, is_ipv6)
        {
            let backend = &self.backends[number];
            flow.backend = number as u32;
            if now_ns.saturating_sub(flow.reply_recorded_ns) >= REPLY_REFRESH_NS {
                self.record_reply(replies, key, backend, now_ns)?;
                flow.reply_recorded_ns = now_ns;
            }
            flow.counts.last_ns = now_ns;
            flow.counts.packets += packets;
            flow.counts.bytes += bytes;
            if !opens && !flow.is_established {
                flow.is_established = true;
                flows.protect(key);
                replies.protect(&answers_of(key, backend));
            }
            return Some(backend);
        }
        let table = if is_ipv6 { &self.v6 } else { &self.v4 };
        let number = table.look_up(key)?;
        let backend = self.backends.get(usize::from(number))?;
        self.record_reply(replies, key, backend, now_ns)?;
        let flow = BalancedFlow {
            address: backend.address,
            counts: FlowCounts {
                packets,
                bytes,
                first_ns: now_ns,
                last_ns: now_ns,
            },
            reply_recorded_ns: now_ns,
            backend: number.into(),
            is_established: false,
        };
        flows.insert(*key, flow);
        *begun += 1;
        Some(backend)
    }

    /// Returns the current index of a flow's backend, if the configuration still lists the backend.
    #[inline]
    fn backend_number(&self, flow: &BalancedFlow, is_ipv6: bool) -> Option<usize> {
        let is_same = |backend: &Backend| {
            backend.address == flow.address && backend.is_ipv6 == u8::from(is_ipv6)
        };
        let number = flow.backend as usize;
        if self.backends.get(number).is_some_and(is_same) {
            return Some(number);
        }
        self.backends.iter().position(is_same)
    }

    /// Records the source address for the replies of a flow. Returns `None` if these replies would
    /// equal the replies of another flow.
    fn record_reply(
        &self,
        replies: &mut FlowTable<FlowKey, ReplyFlow>,
        key: &FlowKey,
        backend: &Backend,
        now_ns: u64,
    ) -> Option<()> {
        let address = Backend::new(key.five_tuple().destination, None).address;
        let answers = answers_of(key, backend);
        let taken = replies.get(&answers).is_some_and(|reply| {
            reply.address != address && now_ns.saturating_sub(reply.last_ns) <= self.timeout_ns
        });
        if taken {
            return None;
        }
        let reply = ReplyFlow {
            address,
            last_ns: now_ns,
        };
        replies.insert(answers, reply);
        Some(())
    }

    /// Sends a backend's answer back to the client.
    #[inline]
    fn return_to_client(&mut self, affinity: &mut Affinity, packet: &mut Packet<'_>) -> Option<()> {
        let headers = *packet.headers();
        if headers.flags.has_ports() {
            return self.restore_source(&mut affinity.replies, packet, &headers);
        }
        if headers.flags.is_fragment() {
            return self.return_fragment_to_client(affinity, packet);
        }
        let done = self.return_error_to_client(&affinity.replies, packet);
        self.count_dropped_error(done, packet)
    }

    /// Restores the source of an answer with ports.
    #[inline]
    fn restore_source(
        &self,
        replies: &mut FlowTable<FlowKey, ReplyFlow>,
        packet: &mut Packet<'_>,
        headers: &Headers,
    ) -> Option<()> {
        let now_ns = packet.meta().stamp_ns;
        let key = FlowKey::of(headers, packet.bytes())?;
        let reply = replies.use_flow(&key)?;
        if now_ns.saturating_sub(reply.last_ns) > self.timeout_ns {
            return None;
        }
        reply.last_ns = now_ns;
        let is_partial = packet.has_partial_checksum();
        let frame = packet.bytes_mut();
        let fields = EndpointFields::find(frame, headers, Side::Forward)?;
        let old = fields.endpoint(frame)?;
        let mut new = old;
        new.address = reply.address;
        fields.write(frame, &old, &new, is_partial)
    }
}

/// Fragments: a first one like a whole packet, a later one like its first fragment.
impl LoadBalancer {
    #[cold]
    #[inline(never)]
    fn send_fragment_to_backend(
        &self,
        affinity: &mut Affinity,
        packet: &mut Packet<'_>,
    ) -> Option<()> {
        let (headers, side) = (*packet.headers(), Side::Reply);
        let fragment = Fragment::read(packet.bytes(), &headers)?;
        let Some(whole) = headers_with_ports(&fragment, &headers) else {
            let fragments = &mut affinity.fragments;
            return fragments.translate_later(&fragment, packet, side);
        };
        let backend = self.balance(affinity, packet, &whole)?;
        let mac = (backend.has_mac != 0).then_some(backend.mac);
        affinity.fragments.remember(&fragment, packet, side, mac)
    }

    #[cold]
    #[inline(never)]
    fn return_fragment_to_client(
        &self,
        affinity: &mut Affinity,
        packet: &mut Packet<'_>,
    ) -> Option<()> {
        let (headers, side) = (*packet.headers(), Side::Forward);
        let fragment = Fragment::read(packet.bytes(), &headers)?;
        let Some(whole) = headers_with_ports(&fragment, &headers) else {
            let fragments = &mut affinity.fragments;
            return fragments.translate_later(&fragment, packet, side);
        };
        self.restore_source(&mut affinity.replies, packet, &whole)?;
        affinity.fragments.remember(&fragment, packet, side, None)
    }
}

/// Returns the headers of a first fragment with ports.
fn headers_with_ports(fragment: &Fragment, headers: &Headers) -> Option<Headers> {
    let whole = fragment.headers_of_first(headers);
    whole.filter(|whole| whole.flags.has_ports())
}

/// ICMP errors about packets of live flows. An error makes no flow and refreshes none.
impl LoadBalancer {
    /// Counts the packet if it is an ICMP error that the function does not translate.
    #[cold]
    #[inline(never)]
    fn count_dropped_error(&mut self, done: Option<()>, packet: &Packet<'_>) -> Option<()> {
        if done.is_none() && IcmpQuote::is_error(packet.bytes(), packet.headers()) {
            self.dropped_errors += packet.segments();
        }
        done
    }

    /// Sends an ICMP error about a backend's answer to that backend.
    #[cold]
    #[inline(never)]
    fn send_error_to_backend(&self, affinity: &Affinity, packet: &mut Packet<'_>) -> Option<()> {
        let now_ns = packet.meta().stamp_ns;
        let (headers, is_partial) = (*packet.headers(), packet.has_partial_checksum());
        let frame = packet.bytes_mut();
        let fields = find_quote(frame, &headers, is_partial, Side::Reply)?;
        let flow = affinity.flows.get(&FlowKey::new(&fields.flow(frame)?))?;
        if now_ns.saturating_sub(flow.counts.last_ns) > self.timeout_ns {
            return None;
        }
        let number = self.backend_number(flow, headers.flags.is_ipv6())?;
        let backend = &self.backends[number];
        replace_address(&fields, frame, backend.address)?;
        if backend.has_mac != 0 {
            frame.get_mut(..6)?.copy_from_slice(&backend.mac);
        }
        Some(())
    }

    /// Sends an ICMP error about a client's packet back to the client, from the address to which
    /// the client had sent.
    #[cold]
    #[inline(never)]
    fn return_error_to_client(
        &self,
        replies: &FlowTable<FlowKey, ReplyFlow>,
        packet: &mut Packet<'_>,
    ) -> Option<()> {
        let now_ns = packet.meta().stamp_ns;
        let (headers, is_partial) = (*packet.headers(), packet.has_partial_checksum());
        let frame = packet.bytes_mut();
        let fields = find_quote(frame, &headers, is_partial, Side::Forward)?;
        let reply = replies.get(&FlowKey::new(&fields.flow(frame)?))?;
        if now_ns.saturating_sub(reply.last_ns) > self.timeout_ns {
            return None;
        }
        replace_address(&fields, frame, reply.address)
    }
}

/// Finds the quote of an ICMP error about a UDP or TCP packet.
fn find_quote(
    frame: &[u8],
    headers: &Headers,
    is_partial: bool,
    side: Side,
) -> Option<QuotedEndpoint> {
    let fields = QuotedEndpoint::find(frame, headers, side)?;
    (!is_partial && fields.has_ports()).then_some(fields)
}

/// Replaces the address of the quoted endpoint, and the error's own address.
fn replace_address(fields: &QuotedEndpoint, frame: &mut [u8], address: [u8; 16]) -> Option<()> {
    let old = fields.endpoint(frame)?;
    let new = Endpoint { address, ..old };
    fields.write(frame, &old, &new)
}

/// A client's packet.
#[derive(Clone, Copy)]
struct Arrival {
    is_ipv6: bool,
    /// Whether the packet requests a TCP connection.
    opens: bool,
    /// Packets on the wire.
    packets: u64,
    bytes: u64,
    now_ns: u64,
}

/// Returns whether a packet requests a TCP connection.
#[inline]
fn opens_connection(key: &FlowKey, headers: &Headers, frame: &[u8]) -> bool {
    let flags = frame.get(usize::from(headers.l4) + tcp::OFFSET);
    key.five_tuple().protocol == TCP && flags.is_some_and(|flags| tcp::opens(*flags))
}

/// Returns the key of a backend's answers to a flow.
fn answers_of(key: &FlowKey, backend: &Backend) -> FlowKey {
    let to_backend = FiveTuple {
        destination: address_of(backend.address, backend.is_ipv6 != 0),
        ..key.five_tuple()
    };
    FlowKey::new(&to_backend.reversed())
}

impl Stateful for LoadBalancer {
    type State = Affinity;

    #[inline]
    fn process(
        &mut self,
        affinity: &mut Affinity,
        packet: &mut Packet<'_>,
        _emitter: &mut dyn Emitter,
    ) -> Verdict {
        let done = match self.side {
            Side::Forward => self.send_to_backend(affinity, packet),
            Side::Reply => self.return_to_client(affinity, packet),
        };
        done.into()
    }

    fn read_counters(&self, _affinity: &Affinity, sink: &mut dyn FnMut(&'static str, u64)) {
        sink(DROPPED_ERRORS, self.dropped_errors);
    }

    fn read_flows(&self, affinity: &Affinity, page: &mut FlowPage) {
        let totals = FlowTotals {
            begun: affinity.begun,
            evicted: affinity.flows.evictions(),
            outside: 0,
        };
        page.read_page(&affinity.flows, totals, |key, flow| {
            flow.counts.record(*key).with_backend(flow.address)
        });
    }
}
