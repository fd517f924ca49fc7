//! One endpoint of a flow, the key of mappings.

use std::hash::{Hash, Hasher};
use std::net::{IpAddr, SocketAddr};

use myelin_packet::Family;
use myelin_packet::prefix::{address_bytes, address_of};

/// Address, protocol and port. Same layout as `struct endpoint` in `nat.bpf.c`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Endpoint {
    /// In network order. An IPv4 address takes the first four bytes; the others are zero.
    pub address: [u8; 16],
    /// Port, or identifier of an echo.
    pub port: u16,
    /// IP protocol number.
    pub protocol: u8,
    /// Whether the address is IPv6.
    pub is_ipv6: bool,
}

// Takes three hasher steps, instead of a step for each field.
impl Hash for Endpoint {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(&self.address);
        state.write_u64(self.port_and_protocol().into());
    }
}

impl Endpoint {
    /// Makes the endpoint of an address.
    pub fn new(address: IpAddr, protocol: u8, port: u16) -> Self {
        Self {
            address: address_bytes(address),
            port,
            protocol,
            is_ipv6: address.is_ipv6(),
        }
    }

    /// Returns the address and port.
    pub(super) fn socket_address(&self) -> SocketAddr {
        (address_of(self.address, self.is_ipv6), self.port).into()
    }

    /// Returns the family of the address.
    pub fn family(&self) -> Family {
        if self.is_ipv6 { Family::V6 } else { Family::V4 }
    }

    /// Returns the hash of the address alone.
    pub(super) fn address_hash(&self) -> u32 {
        let (words, _) = self.address.as_chunks::<4>();
        words.iter().fold(0x9e37_79b9, |hash, word| {
            mix(hash, u32::from_be_bytes(*word))
        })
    }

    /// Returns the hash of the whole endpoint, which selects ports to try.
    pub(super) fn port_hash(&self) -> u32 {
        mix(self.address_hash(), self.port_and_protocol())
    }

    fn port_and_protocol(&self) -> u32 {
        u32::from(self.port) << 16 | u32::from(self.protocol) << 8 | u32::from(self.is_ipv6)
    }
}

/// Does one hash step. Multipliers and shifts are those of MurmurHash3's finaliser.
fn mix(hash: u32, word: u32) -> u32 {
    let mut hash = hash ^ word;
    hash ^= hash >> 16;
    hash = hash.wrapping_mul(0x85eb_ca6b);
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(0xc2b2_ae35);
    hash ^ hash >> 16
}
