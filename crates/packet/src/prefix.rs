//! Address prefixes of both families.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::ParseIntError;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The family of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// IPv4 (RFC 791).
    V4,
    /// IPv6 (RFC 8200).
    V6,
}

impl Family {
    /// Returns the family of `address`.
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() {
            Self::V4
        } else {
            Self::V6
        }
    }

    /// Returns the length of an address in bits: 32 or 128.
    pub fn bits(self) -> u8 {
        match self {
            Self::V4 => 32,
            Self::V6 => 128,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// A prefix in canonical form: every bit after the length is zero.
///
/// Written `10.0.0.0/24`, or as a bare address for the full length. An IPv4-mapped IPv6 address is
/// an IPv6 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Prefix {
    addr: IpAddr,
    len: u8,
}

impl Prefix {
    /// Returns the prefix of `len` bits that contains `addr`. Clears the later bits.
    pub fn new(addr: IpAddr, len: u8) -> Result<Self, PrefixError> {
        let max = Family::of(addr).bits();
        if len > max {
            return Err(PrefixError::Length {
                addr,
                len: len.into(),
                max,
            });
        }
        Ok(Self {
            addr: mask(addr, len),
            len,
        })
    }

    /// Returns the prefix that contains only `addr`.
    pub fn host(addr: IpAddr) -> Self {
        Self {
            addr,
            len: Family::of(addr).bits(),
        }
    }

    /// Returns the first address.
    pub fn addr(&self) -> IpAddr {
        self.addr
    }

    /// Returns the length in bits, 0 to 32 or 128.
    #[allow(clippy::len_without_is_empty)] // the length counts bits; no prefix is empty
    pub fn len(&self) -> u8 {
        self.len
    }

    /// Returns the family of the prefix.
    pub fn family(&self) -> Family {
        Family::of(self.addr)
    }

    /// Returns whether the prefix contains `addr`; false for an address of the other family.
    pub fn contains(&self, addr: IpAddr) -> bool {
        self.family() == Family::of(addr) && mask(addr, self.len) == self.addr
    }

    /// Returns whether the prefix contains every address of `other`.
    pub fn covers(&self, other: &Self) -> bool {
        self.len <= other.len && self.contains(other.addr)
    }

    /// Returns the first and last address as numbers. IPv4 addresses are below 2^32.
    pub fn range(&self) -> (u128, u128) {
        let (first, bits) = match self.addr {
            IpAddr::V4(a) => (u128::from(u32::from(a)), 32),
            IpAddr::V6(a) => (u128::from(a), 128),
        };
        let host_bits = bits - u32::from(self.len);
        let hosts = if host_bits == 128 {
            u128::MAX
        } else {
            (1 << host_bits) - 1
        };
        (first, first | hosts)
    }
}

/// Returns the bytes of an address in network order. An IPv4 address takes the first four
/// bytes; the other bytes are zero.
pub fn address_bytes(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        }
        IpAddr::V6(address) => address.octets(),
    }
}

/// Returns the address of bytes in the layout of [`address_bytes`].
#[inline]
pub fn address_of(bytes: [u8; 16], is_ipv6: bool) -> IpAddr {
    let [a, b, c, d, ..] = bytes;
    if is_ipv6 {
        bytes.into()
    } else {
        [a, b, c, d].into()
    }
}

/// Clears every bit of `addr` after the first `len`, which is at most the family's length.
pub(crate) fn mask(addr: IpAddr, len: u8) -> IpAddr {
    match addr {
        IpAddr::V4(a) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0);
            Ipv4Addr::from(u32::from(a) & mask).into()
        }
        IpAddr::V6(a) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0);
            Ipv6Addr::from(u128::from(a) & mask).into()
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.len == self.family().bits() {
            write!(f, "{}", self.addr)
        } else {
            write!(f, "{}/{}", self.addr, self.len)
        }
    }
}

impl FromStr for Prefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Self, PrefixError> {
        let (addr, len) = match text.split_once('/') {
            Some((addr, len)) => (addr, Some(len)),
            None => (text, None),
        };
        let addr: IpAddr = addr.parse().map_err(|_| PrefixError::Address {
            text: text.to_owned(),
        })?;
        let max = Family::of(addr).bits();
        let len = match len {
            None => return Ok(Self::host(addr)),
            // `u8::from_str` would accept a sign.
            Some(len) if len.starts_with('+') => {
                return Err(PrefixError::Address {
                    text: text.to_owned(),
                });
            }
            Some(len) => len
                .parse::<u32>()
                .map_err(|source| PrefixError::LengthText {
                    text: text.to_owned(),
                    max,
                    source,
                })?,
        };
        let short = u8::try_from(len).map_err(|_| PrefixError::Length { addr, len, max })?;
        let prefix = Self::new(addr, short)?;
        if prefix.addr == addr {
            Ok(prefix)
        } else {
            Err(PrefixError::HostBits { addr, prefix })
        }
    }
}

impl TryFrom<String> for Prefix {
    type Error = PrefixError;

    fn try_from(text: String) -> Result<Self, PrefixError> {
        text.parse()
    }
}

impl From<Prefix> for String {
    fn from(prefix: Prefix) -> Self {
        prefix.to_string()
    }
}

impl From<IpAddr> for Prefix {
    fn from(addr: IpAddr) -> Self {
        Self::host(addr)
    }
}

/// Why a text is not a prefix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PrefixError {
    /// The part before the slash is not an address.
    #[error(
        "`{text}` is not an IP prefix: expected an address such as 10.0.0.1 or a prefix such as 10.0.0.0/24 or 2001:db8::/32"
    )]
    Address {
        /// The given text.
        text: String,
    },
    /// The part after the slash is not a number.
    #[error(
        "`{text}` is not an IP prefix: the length after `/` must be a number from 0 to {max} ({source})"
    )]
    LengthText {
        /// The given text.
        text: String,
        /// Longest prefix of the family, bits.
        max: u8,
        /// Why the number is invalid.
        source: ParseIntError,
    },
    /// The length exceeds the family's address length.
    #[error("prefix length {len} of `{addr}/{len}` is out of range: at most {max}")]
    Length {
        /// The given address.
        addr: IpAddr,
        /// The given length, bits.
        len: u32,
        /// Longest prefix of the family, bits.
        max: u8,
    },
    /// Bits after the prefix are set, so the address or the length is wrong.
    #[error("`{addr}/{len}` has bits set after the prefix: write `{prefix}` for the network or `{addr}` for the single address", len = prefix.len)]
    HostBits {
        /// The given address.
        addr: IpAddr,
        /// The prefix that contains the address.
        prefix: Prefix,
    },
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn prefix(text: &str) -> Prefix {
        text.parse().unwrap()
    }

    #[test]
    fn reads_and_writes_the_usual_forms() {
        for text in [
            "10.0.0.0/24",
            "0.0.0.0/0",
            "192.0.2.1",
            "2001:db8::/32",
            "::/0",
            "::1",
            "::ffff:10.0.0.1",
        ] {
            assert_eq!(prefix(text).to_string(), text);
        }
        assert_eq!(prefix("192.0.2.1/32").to_string(), "192.0.2.1");
        assert_eq!(prefix("::1/128").to_string(), "::1");
    }

    #[test]
    fn new_clears_host_bits_and_a_text_with_host_bits_is_refused() {
        let addr = "10.1.2.3".parse().unwrap();
        assert_eq!(Prefix::new(addr, 8).unwrap(), prefix("10.0.0.0/8"));
        let error = "10.1.2.3/8".parse::<Prefix>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "`10.1.2.3/8` has bits set after the prefix: write `10.0.0.0/8` for the network or `10.1.2.3` for the single address"
        );
    }

    #[test]
    fn refuses_invalid_prefixes() {
        for (text, part) in [
            ("", "expected an address"),
            ("host", "expected an address"),
            ("10.0.0/24", "expected an address"),
            ("10.0.0.0/", "a number from 0 to 32"),
            ("10.0.0.0/x", "a number from 0 to 32"),
            ("10.0.0.0/+8", "expected an address"),
            ("10.0.0.0/-1", "a number from 0 to 32"),
            ("10.0.0.0/33", "at most 32"),
            ("10.0.0.0/264", "at most 32"),
            ("::/129", "at most 128"),
            ("::/99999999999", "a number from 0 to 128"),
            ("10.0.0.0/8/8", "a number from 0 to 32"),
        ] {
            let error = text.parse::<Prefix>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn contains_only_addresses_of_its_family() {
        assert!(prefix("0.0.0.0/0").contains("255.255.255.255".parse().unwrap()));
        assert!(!prefix("0.0.0.0/0").contains("::".parse().unwrap()));
        assert!(!prefix("::/0").contains("0.0.0.0".parse().unwrap()));
        assert!(prefix("10.0.0.0/31").contains("10.0.0.1".parse().unwrap()));
        assert!(!prefix("10.0.0.0/31").contains("10.0.0.2".parse().unwrap()));
    }

    #[test]
    fn covers_longer_prefixes() {
        assert!(prefix("10.0.0.0/8").covers(&prefix("10.1.0.0/16")));
        assert!(prefix("10.0.0.0/8").covers(&prefix("10.0.0.0/8")));
        assert!(!prefix("10.1.0.0/16").covers(&prefix("10.0.0.0/8")));
        assert!(!prefix("10.0.0.0/16").covers(&prefix("10.0.0.0/8")));
        assert!(!prefix("0.0.0.0/0").covers(&prefix("::/0")));
    }

    #[test]
    fn a_prefix_is_a_string_in_json() {
        let json = serde_json::to_string(&prefix("10.0.0.0/24")).unwrap();
        assert_eq!(json, "\"10.0.0.0/24\"");
        assert_eq!(
            serde_json::from_str::<Prefix>(&json).unwrap(),
            prefix("10.0.0.0/24")
        );
        assert!(serde_json::from_str::<Prefix>("\"10.0.0.1/24\"").is_err());
    }

    fn address() -> impl Strategy<Value = IpAddr> {
        prop_oneof![
            any::<[u8; 4]>().prop_map(IpAddr::from),
            any::<[u8; 16]>().prop_map(IpAddr::from)
        ]
    }

    /// Returns the address as a string of `0` and `1`, to compare leading bits.
    fn bits(address: IpAddr) -> String {
        match address {
            IpAddr::V4(a) => format!("{:032b}", u32::from(a)),
            IpAddr::V6(a) => format!("{:0128b}", u128::from(a)),
        }
    }

    proptest! {
        #[test]
        fn contains_means_equal_leading_bits(a in address(), flip in 0..128_u32, len in 0..=128_u8) {
            let len = len.min(Family::of(a).bits());
            let prefix = Prefix::new(a, len).unwrap();
            let other: IpAddr = match a {
                IpAddr::V4(a) => Ipv4Addr::from(u32::from(a) ^ (1 << (flip % 32))).into(),
                IpAddr::V6(a) => Ipv6Addr::from(u128::from(a) ^ (1 << flip)).into(),
            };
            let len = usize::from(len);
            prop_assert!(prefix.contains(a));
            prop_assert_eq!(prefix.contains(other), bits(a)[..len] == bits(other)[..len]);
            prop_assert_eq!(prefix.to_string().parse::<Prefix>(), Ok(prefix));
            let (first, last) = prefix.range();
            let number = |a| u128::from_str_radix(&bits(a), 2).unwrap();
            prop_assert_eq!(prefix.contains(other), (first..=last).contains(&number(other)));
        }
    }
}
