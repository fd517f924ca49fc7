//! `router`: forwards packets to the next hop of the longest matching prefix.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use myelin_packet::checksum;
use myelin_packet::link_scope::stays_on_link;
use myelin_packet::lpm::LpmError;
use myelin_packet::routes::RouteTables;
use myelin_spec::RouterConfig;

use crate::icmp_error::{self, IcmpError};
use crate::{Emitter, Function, Packet, Verdict};

/// ICMP messages allowed in one burst after a pause.
const BURST: u64 = 10;
/// Flag in byte 6 of an IPv4 header.
const DONT_FRAGMENT: u8 = 0x40;

/// A router for IPv4 and IPv6. It looks up the destination address, decrements the time to live
/// (hop limit) and writes the Ethernet address of the next hop.
///
/// The router drops a packet without a route, a packet whose time to live expires, and a packet
/// that is longer than the MTU and that routers must not fragment. It sends an ICMP message to the
/// sender of the last two (RFC 1812, sections 5.3.1 and 5.2.7.1; RFC 8200, sections 3 and 5),
/// unless the configuration has no address of the packet's family. IPv6 packets that stay on their
/// link, such as neighbour discovery, pass unchanged.
#[derive(Debug)]
pub struct Router {
    tables: RouteTables,
    addresses: (Option<Ipv4Addr>, Option<Ipv6Addr>),
    /// Longest IP packet of the next link, bytes.
    mtu: u32,
    limit: RateLimit,
    /// Buffer for the ICMP message, kept to avoid allocation.
    message: Vec<u8>,
}

impl Router {
    /// Compiles the routes.
    pub fn new(config: &RouterConfig) -> Result<Self, LpmError> {
        Ok(Self {
            tables: RouteTables::new(&config.routes)?,
            addresses: config.addresses,
            mtu: config.mtu.unwrap_or(u32::MAX),
            limit: RateLimit::new(config.icmp_rate),
            message: Vec::with_capacity(2048),
        })
    }

    #[cold]
    fn report(&mut self, error: IcmpError, packet: &Packet<'_>, emitter: &mut dyn Emitter) {
        let from: Option<IpAddr> = if packet.headers().flags.is_ipv6() {
            self.addresses.1.map(Into::into)
        } else {
            self.addresses.0.map(Into::into)
        };
        if let Some(from) = from
            && icmp_error::write(
                error,
                (packet.bytes(), packet.headers()),
                from,
                &mut self.message,
            )
            && self.limit.take_token(packet.meta().stamp_ns)
        {
            emitter.reply(packet.meta(), &self.message);
        }
    }
}

impl Function for Router {
    #[inline]
    fn process(&mut self, packet: &mut Packet<'_>, emitter: &mut dyn Emitter) -> Verdict {
        let l3 = usize::from(packet.headers().l3);
        let is_v6 = packet.headers().flags.is_ipv6();
        let is_too_long = packet.ip_len() > self.mtu;
        let Some((ethernet, ip)) = packet.bytes_mut().split_at_mut_checked(l3) else {
            return Verdict::Drop;
        };
        if is_v6 && stays_on_link(ip) {
            return Verdict::Forward;
        }
        let Some(IpFields {
            destination,
            time_to_live,
        }) = IpFields::of(ip, is_v6)
        else {
            return Verdict::Drop;
        };
        let Some(hop) = self.tables.look_up(destination) else {
            return Verdict::Drop;
        };
        if ip[time_to_live] <= 1 {
            self.report(IcmpError::TimeExceeded, packet, emitter);
            return Verdict::Drop;
        }
        // The egress interface drops and counts a long packet without this flag.
        if is_too_long && (is_v6 || ip[6] & DONT_FRAGMENT != 0) {
            self.report(IcmpError::TooBig(self.mtu), packet, emitter);
            return Verdict::Drop;
        }
        if is_v6 {
            ip[time_to_live] -= 1;
        } else if let Some(header) = ip.first_chunk_mut() {
            decrement_ttl(header);
        }
        let Some(addresses) = ethernet.first_chunk_mut::<12>() else {
            return Verdict::Drop;
        };
        hop.apply(addresses);
        Verdict::Forward
    }
}

/// The fields of an IP header that a router needs.
struct IpFields {
    destination: IpAddr,
    /// Offset of the time to live or hop limit.
    time_to_live: usize,
}

impl IpFields {
    #[inline]
    fn of(ip: &[u8], is_v6: bool) -> Option<Self> {
        Some(if is_v6 {
            Self {
                destination: IpAddr::from(*ip.get(24..)?.first_chunk::<16>()?),
                time_to_live: 7,
            }
        } else {
            Self {
                destination: IpAddr::from(*ip.get(16..)?.first_chunk::<4>()?),
                time_to_live: 8,
            }
        })
    }
}

/// Decrements the time to live of an IPv4 header, which is not 0, and corrects the header checksum
/// (RFC 1624).
#[inline]
fn decrement_ttl(header: &mut [u8; 20]) {
    let old = u16::from_be_bytes([header[8], header[9]]);
    header[8] -= 1;
    let new = u16::from_be_bytes([header[8], header[9]]);
    let old_checksum = u16::from_be_bytes([header[10], header[11]]);
    let updated = checksum::update(old_checksum, old, new);
    header[10..12].copy_from_slice(&updated.to_be_bytes());
}

/// A token bucket for ICMP messages (RFC 1812, section 4.3.2.8; RFC 4443, section 2.4 f). Stores
/// the only variable of the equivalent virtual scheduling algorithm (ITU-T I.371).
#[derive(Debug)]
struct RateLimit {
    /// Time between two messages at the full rate; `None` allows no message.
    interval_ns: Option<u64>,
    /// The time when the bucket is full again.
    full_ns: u64,
}

impl RateLimit {
    fn new(per_second: u32) -> Self {
        Self {
            interval_ns: 1_000_000_000_u64.checked_div(per_second.into()),
            full_ns: 0,
        }
    }

    /// Takes a token. Returns whether the bucket had a token.
    fn take_token(&mut self, now_ns: u64) -> bool {
        let Some(interval) = self.interval_ns else {
            return false;
        };
        let full = self.full_ns.max(now_ns) + interval;
        let allowed = full <= now_ns.saturating_add(interval * BURST);
        if allowed {
            self.full_ns = full;
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_limit_allows_a_burst_and_then_its_rate() {
        let mut limit = RateLimit::new(100);
        let start = 1 << 40;
        let sent = |limit: &mut RateLimit, from: u64, to: u64| {
            (from..to)
                .step_by(100_000)
                .filter(|now| limit.take_token(*now))
                .count()
        };
        assert_eq!(sent(&mut limit, start, start + 1_000_000), 10);
        let second = sent(&mut limit, start + 1_000_000, start + 1_001_000_000);
        assert!((99..=101).contains(&second), "{second}");
        assert!(!RateLimit::new(0).take_token(start));
        // After an hour the bucket holds one burst, not more.
        assert_eq!(sent(&mut limit, start << 1, (start << 1) + 1_000_000), 10);
    }

    #[test]
    fn decrement_keeps_every_checksum_correct() {
        for time_to_live in 1..=255 {
            for protocol in [0, 1, 17, 254, 255] {
                let mut header = [
                    0x45,
                    0,
                    0,
                    84,
                    0x12,
                    0x34,
                    0x40,
                    0,
                    time_to_live,
                    protocol,
                    0,
                    0,
                    10,
                    0,
                    0,
                    1,
                    10,
                    0,
                    0,
                    2,
                ];
                let value = checksum::checksum(&header);
                header[10..12].copy_from_slice(&value.to_be_bytes());
                decrement_ttl(&mut header);
                assert_eq!(header[8], time_to_live - 1);
                assert_eq!(checksum::fold(checksum::sum(&header)), 0xffff);
            }
        }
    }
}
