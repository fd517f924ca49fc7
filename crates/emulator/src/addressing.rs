//! Chooses addresses of the end hosts such that packets from client to server match the chain.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use myelin_packet::{Family, Match, Prefix};

/// Addresses of the two hosts in one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressPair {
    /// The client's address, in the chain's source prefix.
    pub client: IpAddr,
    /// The server's address, in the chain's destination prefix.
    pub server: IpAddr,
}

/// The reason why end hosts cannot have the addresses that a match requires.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// One prefix is IPv4, the other IPv6.
    #[error(
        "the match's source and destination are of different families, so no packet matches: write prefixes of one family"
    )]
    MixedFamilies,
    /// No address of the prefix is valid for a host.
    #[error(
        "no end host can have an address of {0}: the address is reserved or not unicast; write real interfaces (`spec.ports`)"
    )]
    Reserved(Prefix),
    /// The opposite host has the only valid address of the prefix.
    #[error(
        "no end host can have an address of {0}: the opposite host has the only address; write real interfaces (`spec.ports`)"
    )]
    Taken(Prefix),
}

/// The client's host number in a prefix of several addresses.
const CLIENT: u128 = 1;
/// The server's host number in a prefix of several addresses.
const SERVER: u128 = 2;

/// Chooses addresses for a chain with this match. Returns one pair for each family that the match
/// allows.
///
/// In a prefix with several addresses, the client gets host number 1 and the server gets host
/// number 2. If the match allows it, the prefix is 10.0.0.0/24 (fd00::/64), so most chains use
/// 10.0.0.1 and 10.0.0.2.
pub fn choose_addresses(matches: &Match) -> Result<Vec<AddressPair>, AddressError> {
    let pairs: Vec<AddressPair> = matches
        .families()
        .map(|family| {
            let default = default_prefix(family);
            choose_pair(
                matches.source.unwrap_or(default),
                matches.destination.unwrap_or(default),
            )
        })
        .collect::<Result<_, _>>()?;
    if pairs.is_empty() {
        Err(AddressError::MixedFamilies)
    } else {
        Ok(pairs)
    }
}

fn default_prefix(family: Family) -> Prefix {
    let (address, length) = match family {
        Family::V4 => (IpAddr::V4(Ipv4Addr::new(10, 0, 0, 0)), 24),
        Family::V6 => (IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0)), 64),
    };
    Prefix::new(address, length).unwrap_or_else(|_| Prefix::host(address))
}

fn choose_pair(source: Prefix, destination: Prefix) -> Result<AddressPair, AddressError> {
    // The longer prefix has fewer addresses, so its host gets an address first.
    if source.len() >= destination.len() {
        let client = pick_address(source, CLIENT, None)?;
        Ok(AddressPair {
            client,
            server: pick_address(destination, SERVER, Some(client))?,
        })
    } else {
        let server = pick_address(destination, SERVER, None)?;
        Ok(AddressPair {
            client: pick_address(source, CLIENT, Some(server))?,
            server,
        })
    }
}

fn pick_address(prefix: Prefix, host: u128, taken: Option<IpAddr>) -> Result<IpAddr, AddressError> {
    let default = default_prefix(prefix.family());
    let (first, last) = if prefix.covers(&default) {
        default.range()
    } else {
        prefix.range()
    };
    let span = last - first;
    // Three numbers suffice for both hosts even if one is ::1. The end of the range helps if the
    // start of the range is reserved (0.0.0.0/5). Number 0 is the network's address, so it is the
    // last choice.
    let mut usable = [
        Some(host),
        Some(1),
        Some(2),
        Some(3),
        span.checked_sub(1),
        span.checked_sub(2),
        Some(0),
    ]
    .into_iter()
    .flatten()
    .filter(|number| *number <= span)
    .map(|number| match prefix.family() {
        Family::V4 => IpAddr::V4(Ipv4Addr::from_bits((first + number) as u32)),
        Family::V6 => IpAddr::V6(Ipv6Addr::from_bits(first + number)),
    })
    .filter(|address| is_host_address(*address))
    .peekable();
    let no_address = if usable.peek().is_some() {
        AddressError::Taken(prefix)
    } else {
        AddressError::Reserved(prefix)
    };
    usable
        .find(|address| Some(*address) != taken)
        .ok_or(no_address)
}

/// Returns whether a host's link can have `address`, and another host can send to `address`.
fn is_host_address(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            // 0/8 is "this network" (RFC 1122, 3.2.1.3); 127/8 never leaves a host.
            !(address.octets()[0] == 0
                || address.is_loopback()
                || address.is_multicast()
                || address.is_broadcast())
        }
        IpAddr::V6(address) => {
            !(address.is_unspecified()
                || address.is_loopback()
                || address.is_multicast()
                // A link-local address is valid on one link only.
                || address.is_unicast_link_local()
                || address.to_ipv4_mapped().is_some())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse_match(source: &str, destination: &str) -> Match {
        let parse = |text: &str| (!text.is_empty()).then(|| text.parse().unwrap());
        Match {
            source: parse(source),
            destination: parse(destination),
            ..Match::default()
        }
    }

    #[test]
    fn chosen_addresses_match_the_chain() {
        for (source, destination, addresses) in [
            ("", "", "10.0.0.1 10.0.0.2, fd00::1 fd00::2"),
            ("", "10.0.0.2", "10.0.0.1 10.0.0.2"),
            ("", "192.0.2.7", "10.0.0.1 192.0.2.7"),
            ("", "10.0.0.1", "10.0.0.2 10.0.0.1"),
            ("10.0.0.2", "", "10.0.0.2 10.0.0.1"),
            ("0.0.0.0/0", "10.0.0.0/8", "10.0.0.1 10.0.0.2"),
            ("192.0.2.0/24", "192.0.2.0/24", "192.0.2.1 192.0.2.2"),
            ("192.0.2.2", "192.0.2.0/24", "192.0.2.2 192.0.2.1"),
            ("192.0.2.0/31", "192.0.2.0/31", "192.0.2.1 192.0.2.0"),
            ("", "2001:db8::/32", "fd00::1 2001:db8::2"),
            ("::/0", "2001:db8::5", "fd00::1 2001:db8::5"),
            ("::/1", "::/1", "::2 ::3"),
            ("0.0.0.0/5", "", "7.255.255.254 10.0.0.2"),
        ] {
            let pairs = choose_addresses(&parse_match(source, destination)).unwrap();
            let text: Vec<String> = pairs
                .iter()
                .map(|pair| format!("{} {}", pair.client, pair.server))
                .collect();
            assert_eq!(text.join(", "), addresses, "{source} {destination}");
        }
    }

    #[test]
    fn errors_explain_impossible_matches() {
        for (source, destination, expected) in [
            (
                "",
                "239.0.0.1",
                "no end host can have an address of 239.0.0.1: the address is reserved or not unicast",
            ),
            (
                "",
                "127.0.0.1",
                "reserved or not unicast; write real interfaces (`spec.ports`)",
            ),
            ("", "ff02::1", "not unicast"),
            ("fe80::/10", "", "not unicast"),
            (
                "10.1.0.1",
                "10.1.0.1",
                "an address of 10.1.0.1: the opposite host has the only address",
            ),
            ("10.1.0.1", "fd00::/64", "of different families"),
        ] {
            let error = choose_addresses(&parse_match(source, destination))
                .unwrap_err()
                .to_string();
            assert!(error.contains(expected), "{source} {destination}: {error}");
        }
    }

    proptest! {
        #[test]
        fn hosts_differ_and_their_packets_match(
            source in (any::<u32>(), 0..=32_u8), destination in (any::<u32>(), 0..=32_u8), is_ipv6 in any::<bool>()
        ) {
            let prefix = |(bits, length): (u32, u8)| {
                let v6 = IpAddr::V6(Ipv6Addr::from_bits(u128::from(bits) << 96));
                Prefix::new(if is_ipv6 { v6 } else { IpAddr::V4(Ipv4Addr::from_bits(bits)) }, length).unwrap()
            };
            let (source, destination) = (prefix(source), prefix(destination));
            let matches = Match { source: Some(source), destination: Some(destination), ..Match::default() };
            match choose_addresses(&matches) {
                Ok(pairs) => {
                    let [pair] = pairs[..] else { panic!("{pairs:?}") };
                    prop_assert!(pair.client != pair.server && is_host_address(pair.client) && is_host_address(pair.server));
                    prop_assert!(source.contains(pair.client) && destination.contains(pair.server), "{pair:?}");
                }
                // Only a prefix of reserved addresses, or of a single address, gives no pair.
                Err(AddressError::Taken(prefix)) => prop_assert_eq!(prefix, Prefix::host(prefix.addr())),
                Err(AddressError::Reserved(prefix)) => {
                    let (first, last) = prefix.range();
                    prop_assert!(last - first < 1 << 120);
                    prop_assert!(!is_host_address(prefix.addr()));
                }
                Err(error) => return Err(TestCaseError::fail(error.to_string())),
            }
        }
    }
}
