//! Longest prefix match: maps an address to the value of the most specific prefix that contains
//! the address.
//!
//! [`LpmTables`] takes a few reads for any number of prefixes. The memory layout equals that
//! of the eBPF maps.
//!
//! Memory at most ([`MAX_PREFIXES`] prefixes): IPv4 takes 256 KiB, and 1 KiB for each /16 with a
//! longer prefix and each /24 with a still longer one. That is 192 MiB if all prefixes are host
//! addresses in different networks, and 64 MiB if no prefix is longer than /24. IPv6 takes 27 MiB
//! (100 000 separate prefixes: 3.3 MiB), and 112 bytes more for each /64 with a longer prefix.

mod intervals;
mod ipv6;

use std::net::IpAddr;

pub use crate::dir16::{BLOCK, Dir16};
pub use ipv6::{IS_TREE, Ipv6Lpm, Leaf, MAX_DEPTH, NODE, Node, Tree};

use crate::prefix::{Family, Prefix};

/// Most prefixes of both families in one table.
pub const MAX_PREFIXES: usize = 1 << 17;
/// The value of an address that no prefix contains.
pub const NO_MATCH: u32 = 0;
/// Greatest value of a prefix; the least is 1.
pub const MAX_VALUE: u32 = (1 << 31) - 1;

/// The tables of both families.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LpmTables {
    /// IPv4.
    pub v4: Dir16,
    /// IPv6.
    pub v6: Ipv6Lpm,
}

/// Why [`LpmTables::new`] refused prefixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LpmError {
    /// More than [`MAX_PREFIXES`].
    #[error(
        "{count} prefixes are too many: at most {MAX_PREFIXES}; merge neighbouring prefixes, or replace some by a default prefix"
    )]
    TooMany {
        /// Prefixes given.
        count: usize,
    },
    /// A value is outside the range from 1 to [`MAX_VALUE`].
    #[error("the value {value} of {prefix} is out of range: 1 to {MAX_VALUE}")]
    Value {
        /// The prefix of the value.
        prefix: Prefix,
        /// The given value.
        value: u32,
    },
}

impl LpmTables {
    /// Builds the tables of prefixes and their values, 1 to [`MAX_VALUE`]. The last of equal
    /// prefixes wins.
    pub fn new(prefixes: &[(Prefix, u32)]) -> Result<Self, LpmError> {
        if prefixes.len() > MAX_PREFIXES {
            return Err(LpmError::TooMany {
                count: prefixes.len(),
            });
        }
        let out_of_range = |(_, value): &&(Prefix, u32)| *value == NO_MATCH || *value > MAX_VALUE;
        if let Some(&(prefix, value)) = prefixes.iter().find(out_of_range) {
            return Err(LpmError::Value { prefix, value });
        }
        Ok(Self {
            v4: Dir16::new(&intervals::build(prefixes, Family::V4)),
            v6: Ipv6Lpm::build(&intervals::build(prefixes, Family::V6)),
        })
    }

    /// Returns the value of the longest prefix that contains `address`, or [`NO_MATCH`].
    #[inline]
    pub fn look_up(&self, address: IpAddr) -> u32 {
        match address {
            IpAddr::V4(address) => self.v4.look_up(address),
            IpAddr::V6(address) => self.v6.look_up(address),
        }
    }

    /// Returns the memory of the tables, bytes.
    pub fn memory(&self) -> usize {
        self.v4.memory() + self.v6.memory()
    }
}
