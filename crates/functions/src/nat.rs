//! `nat`: source network address and port translation (RFC 3022, NAPT; RFC 4787, 5382, 5508).
//!
//! The forward side gives packets from inside an external source address and port. The reply side
//! (`reverseOf`) restores the inside destination of the answers. The two sides share one table of
//! [`Mappings`]. For an ICMP or ICMPv6 echo, the identifier serves as the port.
//!
//! Behaviour in the terms of RFC 4787: endpoint-independent mapping (REQ-1) and filtering; paired
//! addresses (REQ-2); port preservation where that port is free; only packets from inside refresh a
//! mapping (REQ-6). No hairpinning. An ICMP error about a packet of a live mapping is translated,
//! with the packet that the error quotes (RFC 5508, REQ-3 to REQ-6).
//!
//! Later fragments get the address of their first fragment, which alone contains a port.
//!
//! The function drops packets that it does not translate: later fragments whose first fragment it
//! does not know; other ICMP messages; every other protocol; packets with an authentication
//! header (RFC 4302), which covers the addresses; packets of a family without an external address;
//! packets from outside without a live mapping.

mod endpoint;
mod mappings;
pub(crate) mod quoted;
pub(crate) mod rewrite;

pub use endpoint::Endpoint;
pub use mappings::{Lifetime, Mappings, PORT_TRIES, SWEEP_SLOTS};

use myelin_packet::five_tuple::{ICMP, ICMPV6, TCP, UDP};
use myelin_packet::flow_marks::tcp;
use myelin_packet::{Fragment, Headers, IcmpQuote};
use myelin_spec::{NatConfig, Side};

use crate::{Emitter, FlowPage, Packet, Stateful, Verdict};
use quoted::QuotedEndpoint;
use rewrite::EndpointFields;

/// Name of the counter of dropped ICMP errors.
pub(crate) const DROPPED_ERRORS: &str = "icmp-errors-dropped";

/// One side of the translator.
#[derive(Debug)]
pub struct Nat {
    side: Side,
    timeout_ns: u64,
    tcp_timeout_ns: u64,
    tcp_transitory_ns: u64,
    dropped_errors: u64,
}

impl Nat {
    /// Makes the function with this configuration for one side of the mappings.
    pub fn new(config: &NatConfig, side: Side) -> Self {
        Self {
            side,
            timeout_ns: config.timeout_ns,
            tcp_timeout_ns: config.tcp_timeout_ns,
            tcp_transitory_ns: config.tcp_transitory_ns(),
            dropped_errors: 0,
        }
    }

    #[inline]
    fn translate(&mut self, mappings: &mut Mappings, packet: &mut Packet<'_>) -> Option<()> {
        let headers = *packet.headers();
        if headers.flags.is_fragment() {
            return self.translate_fragment(mappings, packet);
        }
        self.translate_whole(mappings, packet, &headers)
    }

    /// Translates a first fragment like a whole packet, and a later one like its first fragment.
    #[cold]
    #[inline(never)]
    fn translate_fragment(
        &mut self,
        mappings: &mut Mappings,
        packet: &mut Packet<'_>,
    ) -> Option<()> {
        let headers = *packet.headers();
        let fragment = Fragment::read(packet.bytes(), &headers)?;
        let Some(whole) = fragment.headers_of_first(&headers) else {
            let fragments = &mut mappings.fragments;
            return fragments.translate_later(&fragment, packet, self.side);
        };
        self.translate_whole(mappings, packet, &whole)?;
        let fragments = &mut mappings.fragments;
        fragments.remember(&fragment, packet, self.side, None)
    }

    #[inline]
    fn translate_whole(
        &mut self,
        mappings: &mut Mappings,
        packet: &mut Packet<'_>,
        headers: &Headers,
    ) -> Option<()> {
        let now_ns = packet.meta().stamp_ns;
        let is_partial = packet.has_partial_checksum();
        let frame = packet.bytes_mut();
        let Some(fields) = EndpointFields::find(frame, headers, self.side) else {
            return self.translate_or_count_error(mappings, packet);
        };
        let old = fields.endpoint(frame)?;
        let new = match self.side {
            Side::Forward => {
                mappings.translate_outward(&old, now_ns, &self.lifetime(&fields, frame)?)?
            }
            Side::Reply => mappings.translate_inward(&old, now_ns)?,
        };
        fields.write(frame, &old, &new, is_partial)
    }

    /// Translates an ICMP error. Counts an error that it does not translate.
    #[cold]
    #[inline(never)]
    fn translate_or_count_error(
        &mut self,
        mappings: &Mappings,
        packet: &mut Packet<'_>,
    ) -> Option<()> {
        let done = self.translate_error(mappings, packet);
        if done.is_none() && IcmpQuote::is_error(packet.bytes(), packet.headers()) {
            self.dropped_errors += packet.segments();
        }
        done
    }

    /// Translates an ICMP error about a packet of a live mapping. Makes and refreshes no mapping
    /// (RFC 5508, REQ-6).
    fn translate_error(&self, mappings: &Mappings, packet: &mut Packet<'_>) -> Option<()> {
        let now_ns = packet.meta().stamp_ns;
        let headers = *packet.headers();
        if packet.has_partial_checksum() {
            return None;
        }
        let frame = packet.bytes_mut();
        let fields = QuotedEndpoint::find(frame, &headers, self.side)?;
        let old = fields.endpoint(frame)?;
        let new = match self.side {
            Side::Forward => mappings.find_outer(&old, now_ns)?,
            Side::Reply => mappings.translate_inward(&old, now_ns)?,
        };
        fields.write(frame, &old, &new)
    }

    /// Returns the lifetime of a mapping after this packet.
    #[inline]
    fn lifetime(&self, fields: &EndpointFields, frame: &[u8]) -> Option<Lifetime> {
        if fields.protocol() != TCP {
            return Some(Lifetime::constant(self.timeout_ns));
        }
        let flags = frame.get(fields.l4() + tcp::OFFSET)?;
        let (ns, closing) = if flags & (tcp::FIN | tcp::RST) != 0 {
            (self.tcp_transitory_ns, Some(true))
        } else if flags & tcp::SYN != 0 {
            (self.tcp_transitory_ns, Some(false))
        } else {
            (self.tcp_timeout_ns, None)
        };
        Some(Lifetime {
            ns,
            closing_ns: self.tcp_transitory_ns,
            closing,
        })
    }
}

impl Stateful for Nat {
    type State = Mappings;

    #[inline]
    fn process(
        &mut self,
        mappings: &mut Mappings,
        packet: &mut Packet<'_>,
        _emitter: &mut dyn Emitter,
    ) -> Verdict {
        self.translate(mappings, packet).into()
    }

    fn read_counters(&self, _mappings: &Mappings, sink: &mut dyn FnMut(&'static str, u64)) {
        sink(DROPPED_ERRORS, self.dropped_errors);
    }

    fn read_flows(&self, mappings: &Mappings, page: &mut FlowPage) {
        mappings.read_page(page);
    }
}

/// Returns whether the function translates packets of `protocol`.
fn is_translated(protocol: u8, is_ipv6: bool) -> bool {
    match protocol {
        UDP | TCP => true,
        ICMP => !is_ipv6,
        ICMPV6 => is_ipv6,
        _ => false,
    }
}
