//! Routes from destination addresses to next hops.

use std::collections::HashMap;
use std::net::IpAddr;

use bytemuck::{Pod, Zeroable};
use serde::{Deserialize, Serialize};

use crate::lpm::{LpmError, LpmTables, NO_MATCH};
use crate::mac::MacAddr;
use crate::prefix::Prefix;

/// Most routes of one table.
pub const MAX_ROUTES: usize = crate::lpm::MAX_PREFIXES;

/// A route: packets to the addresses of a prefix go to a next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Route {
    /// The destination addresses.
    pub prefix: Prefix,
    /// Ethernet address of the next hop, the new destination of the frame. `None` keeps the old
    /// destination, which is correct on a link to one host.
    pub mac: Option<MacAddr>,
    /// New source of the frame. `None` keeps the old source.
    pub source_mac: Option<MacAddr>,
}

/// The addresses that a router writes into the Ethernet header. Same layout as `struct next_hop` of
/// the eBPF programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Pod, Zeroable)]
#[repr(C)]
pub struct NextHop {
    /// New destination address of the frame.
    pub destination: [u8; 6],
    /// New source address of the frame.
    pub source: [u8; 6],
    /// The addresses to write: [`NextHop::DESTINATION`], [`NextHop::SOURCE`].
    pub writes: u32,
}

impl NextHop {
    /// Bit of [`writes`](Self::writes): write the destination.
    pub const DESTINATION: u32 = 1;
    /// Bit of [`writes`](Self::writes): write the source.
    pub const SOURCE: u32 = 2;

    /// Writes the addresses into the first 12 bytes of a frame.
    #[inline]
    pub fn apply(&self, addresses: &mut [u8; 12]) {
        if self.writes & Self::DESTINATION != 0 {
            addresses[..6].copy_from_slice(&self.destination);
        }
        if self.writes & Self::SOURCE != 0 {
            addresses[6..].copy_from_slice(&self.source);
        }
    }
}

impl From<&Route> for NextHop {
    fn from(route: &Route) -> Self {
        let (destination, source) = (route.mac, route.source_mac);
        let bit = |mac: Option<MacAddr>, bit| if mac.is_some() { bit } else { 0 };
        Self {
            destination: destination.map_or([0; 6], |mac| mac.0),
            source: source.map_or([0; 6], |mac| mac.0),
            writes: bit(destination, Self::DESTINATION) | bit(source, Self::SOURCE),
        }
    }
}

/// Routes as look-up tables. The longest prefix wins; of equal prefixes, the last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteTables {
    /// Maps an address to the number of its next hop.
    pub lpm: LpmTables,
    /// The different next hops. Number 0 means no route.
    pub hops: Vec<NextHop>,
}

impl RouteTables {
    /// Builds the tables of at most [`MAX_ROUTES`] routes.
    pub fn new(routes: &[Route]) -> Result<Self, LpmError> {
        let mut hops = vec![NextHop::zeroed()];
        let mut numbers = HashMap::new();
        let mut number_of = |route: &Route| {
            let hop = NextHop::from(route);
            *numbers.entry(hop).or_insert_with(|| {
                hops.push(hop);
                hops.len() as u32 - 1
            })
        };
        let prefixes: Vec<(Prefix, u32)> = routes
            .iter()
            .map(|route| (route.prefix, number_of(route)))
            .collect();
        Ok(Self {
            lpm: LpmTables::new(&prefixes)?,
            hops,
        })
    }

    /// Returns the next hop of packets to `address`, if a route contains the address.
    #[inline]
    pub fn look_up(&self, address: IpAddr) -> Option<&NextHop> {
        match self.lpm.look_up(address) {
            NO_MATCH => None,
            number => self.hops.get(number as usize),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(prefix: &str, last: u8, source: Option<u8>) -> Route {
        let mac = |last| MacAddr([2, 0, 0, 0, 0, last]);
        Route {
            prefix: prefix.parse().unwrap(),
            mac: Some(mac(last)),
            source_mac: source.map(mac),
        }
    }

    #[test]
    fn the_most_specific_route_gives_the_next_hop() {
        let routes = [
            route("0.0.0.0/0", 1, None),
            route("10.0.0.0/8", 2, Some(9)),
            route("10.1.0.0/16", 1, None),
            route("2001:db8::/32", 2, None),
        ];
        let tables = RouteTables::new(&routes).unwrap();
        // No route, then each different next hop once.
        assert_eq!(tables.hops.len(), 4);
        let hop = |address: &str| tables.look_up(address.parse().unwrap()).copied();
        assert_eq!(hop("192.0.2.1").unwrap().destination[5], 1);
        assert_eq!(hop("10.1.2.3"), hop("192.0.2.1"));
        let two = hop("10.2.0.1").unwrap();
        assert_eq!((two.destination[5], two.source[5], two.writes), (2, 9, 3));
        assert_eq!(hop("2001:db8::1").unwrap().writes, 1);
        assert_eq!(hop("2001:db9::1"), None);
    }

    #[test]
    fn json_round_trips() {
        for source in [None, Some(3)] {
            let route = route("10.0.0.0/8", 1, source);
            let json = serde_json::to_string(&route).unwrap();
            assert_eq!(serde_json::from_str::<Route>(&json).unwrap(), route);
        }
    }
}
