//! A five-tuple as fixed bytes: the key of flow tables.

use std::hash::{Hash, Hasher};
use std::net::IpAddr;

use bytemuck::{Pod, Zeroable};

use crate::FiveTuple;
use crate::five_tuple::TCP;
use crate::parse::{Flags, Headers};
use crate::prefix::address_of;

/// The key of every flow table, in kernel and user space. Same layout as `struct flow_key`.
///
/// The bytes are source (16), destination (16), source port, destination port, protocol, flags
/// ([`Flags::IPV6`], [`Flags::PORTS`]) and two zeros. Addresses and ports are in network order. An
/// IPv4 address takes the first four bytes of its field; the other bytes are zero. eBPF hash maps
/// compare keys byte by byte, so every byte is defined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct FlowKey([u64; 5]);

const _: () = assert!(size_of::<FlowKey>() == 40);

impl FlowKey {
    /// Makes the key of a five-tuple.
    #[inline]
    pub fn new(tuple: &FiveTuple) -> Self {
        let mut flags = Flags::default();
        let (source, destination) = match (tuple.source, tuple.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                (v4_words(source.octets()), v4_words(destination.octets()))
            }
            (source, destination) => {
                flags = Flags::IPV6;
                (v6_words(&octets(source)), v6_words(&octets(destination)))
            }
        };
        let mut ports = [0; 4];
        if let (Some(source), Some(destination)) = (tuple.source_port, tuple.destination_port) {
            flags = flags.with(Flags::PORTS);
            ports = bytemuck::cast([source.to_be_bytes(), destination.to_be_bytes()]);
        }
        let last = last_word(ports, tuple.protocol, flags);
        Self([source[0], source[1], destination[0], destination[1], last])
    }

    /// Returns the flow key of a packet. `None` if `frame` is shorter than the frame from which the
    /// headers were parsed.
    #[inline]
    pub fn of(headers: &Headers, frame: &[u8]) -> Option<Self> {
        let l3 = frame.get(headers.l3.into()..)?;
        let mut flags = Flags::default();
        let (source, destination) = if headers.flags.is_ipv6() {
            flags = Flags::IPV6;
            let addresses: &[u8; 32] = l3.get(8..)?.first_chunk()?;
            let (source, destination) = addresses.split_at(16);
            (
                v6_words(source.first_chunk()?),
                v6_words(destination.first_chunk()?),
            )
        } else {
            let addresses: &[u8; 8] = l3.get(12..)?.first_chunk()?;
            let [a, b, c, d, rest @ ..] = *addresses;
            (v4_words([a, b, c, d]), v4_words(rest))
        };
        let mut ports = [0; 4];
        if headers.flags.has_ports() {
            flags = flags.with(Flags::PORTS);
            ports = *frame.get(headers.l4.into()..)?.first_chunk()?;
        }
        let last = last_word(ports, headers.protocol, flags);
        Some(Self([
            source[0],
            source[1],
            destination[0],
            destination[1],
            last,
        ]))
    }

    /// Returns the key of packets in the other direction.
    #[inline]
    #[must_use]
    pub fn reversed(self) -> Self {
        let [s0, s1, d0, d1, last] = self.0;
        let [p0, p1, q0, q1, rest @ ..] = last.to_ne_bytes();
        let [protocol, flags, _, _] = rest;
        let last = u64::from_ne_bytes([q0, q1, p0, p1, protocol, flags, 0, 0]);
        Self([d0, d1, s0, s1, last])
    }

    /// Returns one key for both directions of a flow: the order of the endpoints does not depend on
    /// the sender. Also returns whether the sender is the second endpoint.
    #[inline]
    #[must_use]
    pub fn canonical(self) -> (Self, bool) {
        let [s0, s1, d0, d1, last] = self.0;
        let [p0, p1, q0, q1, ..] = last.to_ne_bytes();
        let from_second = (s0, s1, [p0, p1]) > (d0, d1, [q0, q1]);
        (
            if from_second { self.reversed() } else { self },
            from_second,
        )
    }

    /// Returns whether the key is of TCP packets that are not fragments.
    pub fn is_tcp(&self) -> bool {
        self.protocol() == TCP && self.flags().has_ports()
    }

    /// Returns the five-tuple of the key.
    pub fn five_tuple(&self) -> FiveTuple {
        let flags = self.flags();
        let address = |words: [u64; 2]| address_of(bytemuck::cast(words), flags.is_ipv6());
        let [s0, s1, d0, d1, last] = self.0;
        let [p0, p1, q0, q1, ..] = last.to_ne_bytes();
        let port = |bytes| flags.has_ports().then(|| u16::from_be_bytes(bytes));
        FiveTuple {
            source: address([s0, s1]),
            destination: address([d0, d1]),
            protocol: self.protocol(),
            source_port: port([p0, p1]),
            destination_port: port([q0, q1]),
        }
    }

    fn protocol(&self) -> u8 {
        self.0[4].to_ne_bytes()[4]
    }

    fn flags(&self) -> Flags {
        Flags::from_bits(self.0[4].to_ne_bytes()[5])
    }
}

// These functions build keys in registers. A key that is written byte by byte and read word by word
// would wait for its own stores.

#[inline]
fn v4_words([a, b, c, d]: [u8; 4]) -> [u64; 2] {
    [u64::from_ne_bytes([a, b, c, d, 0, 0, 0, 0]), 0]
}

#[inline]
fn v6_words(octets: &[u8; 16]) -> [u64; 2] {
    bytemuck::cast(*octets)
}

#[inline]
fn last_word([p0, p1, q0, q1]: [u8; 4], protocol: u8, flags: Flags) -> u64 {
    u64::from_ne_bytes([p0, p1, q0, q1, protocol, flags.bits(), 0, 0])
}

// Hashes eight bytes at a time instead of field by field.
impl Hash for FlowKey {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(bytemuck::bytes_of(self));
    }
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    fn tuple() -> impl Strategy<Value = FiveTuple> {
        let addresses = prop_oneof![
            any::<([u8; 4], [u8; 4])>().prop_map(|(a, b)| (IpAddr::from(a), IpAddr::from(b))),
            any::<([u8; 16], [u8; 16])>().prop_map(|(a, b)| (IpAddr::from(a), IpAddr::from(b))),
        ];
        (addresses, any::<u8>(), any::<Option<(u16, u16)>>()).prop_map(
            |((source, destination), protocol, ports)| FiveTuple {
                source,
                destination,
                protocol,
                source_port: ports.map(|(source, _)| source),
                destination_port: ports.map(|(_, destination)| destination),
            },
        )
    }

    proptest! {
        #[test]
        fn a_key_round_trips_to_its_tuple(tuple in tuple(), other in tuple()) {
            let key = FlowKey::new(&tuple);
            prop_assert_eq!(key.five_tuple(), tuple);
            prop_assert_eq!(key.reversed(), FlowKey::new(&tuple.reversed()));
            let (forward, reverse) = (key.canonical(), key.reversed().canonical());
            prop_assert_eq!(forward.0, reverse.0);
            prop_assert!(forward.1 != reverse.1 || key == key.reversed());
            prop_assert_eq!(key == FlowKey::new(&other), tuple == other);
        }
    }

    #[test]
    fn a_packet_has_the_key_of_its_tuple() {
        for fixture in crate::fixtures::all() {
            let Ok(headers) = fixture.expected else {
                continue;
            };
            let tuple = headers.five_tuple(&fixture.frame);
            let key = FlowKey::of(&headers, &fixture.frame);
            assert_eq!(key, Some(FlowKey::new(&tuple)), "{}", fixture.name);
            let short = &fixture.frame[..headers.l3.into()];
            assert_eq!(FlowKey::of(&headers, short), None);
        }
    }

    #[test]
    fn families_and_absent_ports_have_different_keys() {
        let v4 = FiveTuple {
            source: Ipv4Addr::UNSPECIFIED.into(),
            destination: Ipv4Addr::UNSPECIFIED.into(),
            protocol: 17,
            source_port: None,
            destination_port: None,
        };
        let v6 = FiveTuple {
            source: Ipv6Addr::UNSPECIFIED.into(),
            destination: Ipv6Addr::UNSPECIFIED.into(),
            ..v4
        };
        let zero_ports = FiveTuple {
            source_port: Some(0),
            destination_port: Some(0),
            ..v4
        };
        assert_ne!(FlowKey::new(&v4), FlowKey::new(&v6));
        assert_ne!(FlowKey::new(&v4), FlowKey::new(&zero_ports));
    }
}
