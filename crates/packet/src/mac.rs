//! Ethernet addresses.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An Ethernet address (EUI-48), written `02:00:00:00:00:01`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// Returns whether the address is that of one station: neither a group (multicast, broadcast)
    /// nor all zero.
    pub fn is_station(self) -> bool {
        self.0[0] & 1 == 0 && self.0 != [0; 6]
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, byte) in self.0.iter().enumerate() {
            write!(f, "{}{byte:02x}", if position == 0 { "" } else { ":" })?;
        }
        Ok(())
    }
}

impl FromStr for MacAddr {
    type Err = MacError;

    fn from_str(text: &str) -> Result<Self, MacError> {
        let error = || MacError {
            text: text.to_owned(),
        };
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().ok_or_else(error)?;
            // `from_str_radix` would accept a sign.
            if part.len() != 2 || !part.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return Err(error());
            }
            *byte = u8::from_str_radix(part, 16).map_err(|_| error())?;
        }
        match parts.next() {
            None => Ok(Self(bytes)),
            Some(_) => Err(error()),
        }
    }
}

impl TryFrom<String> for MacAddr {
    type Error = MacError;

    fn try_from(text: String) -> Result<Self, MacError> {
        text.parse()
    }
}

impl From<MacAddr> for String {
    fn from(mac: MacAddr) -> Self {
        mac.to_string()
    }
}

/// A text that is not an Ethernet address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not an Ethernet address: expected six bytes such as 02:00:00:00:00:01")]
pub struct MacError {
    /// The given text.
    pub text: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_the_usual_form() {
        let mac: MacAddr = "02:00:5E:10:00:ff".parse().unwrap();
        assert_eq!(mac, MacAddr([2, 0, 0x5e, 0x10, 0, 0xff]));
        assert_eq!(mac.to_string(), "02:00:5e:10:00:ff");
        let json = serde_json::to_string(&mac).unwrap();
        assert_eq!(json, "\"02:00:5e:10:00:ff\"");
        assert_eq!(serde_json::from_str::<MacAddr>(&json).unwrap(), mac);
    }

    #[test]
    fn refuses_invalid_texts() {
        for text in [
            "",
            "02",
            "02:00:00:00:00",
            "02:00:00:00:00:01:02",
            "02:00:00:00:00:1",
            "02:00:00:00:00:+1",
            "02:00:00:00:00:0g",
            "02-00-00-00-00-01",
        ] {
            assert!(text.parse::<MacAddr>().is_err(), "{text}");
        }
    }

    #[test]
    fn distinguishes_stations_from_groups() {
        for (text, station) in [
            ("02:00:00:00:00:01", true),
            ("00:00:00:00:00:00", false),
            ("ff:ff:ff:ff:ff:ff", false),
            ("01:00:5e:00:00:01", false),
        ] {
            assert_eq!(
                text.parse::<MacAddr>().unwrap().is_station(),
                station,
                "{text}"
            );
        }
    }
}
