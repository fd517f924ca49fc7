//! Key material: wiped on drop, never printed.

use std::fmt;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zeroize::Zeroizing;

/// A key. `Debug` shows `[redacted]`, and no error message contains a part of it.
///
/// It serializes as plain hexadecimal digits, because the agent passes it to its workers in memory.
/// So no report and no file may contain a [`FunctionConfig`](crate::FunctionConfig).
#[derive(Clone, PartialEq, Eq)]
pub struct SecretKey(Zeroizing<Vec<u8>>);

impl SecretKey {
    /// Creates a key from its bytes.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// Parses two hexadecimal digits a byte. Returns `None` for other text.
    pub fn from_hex(digits: &str) -> Option<Self> {
        let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
        let digit = |digit: u8| (digit as char).to_digit(16);
        let mut bytes = Zeroizing::new(Vec::with_capacity(pairs.len()));
        for &[high, low] in pairs {
            bytes.push((digit(high)? << 4 | digit(low)?) as u8);
        }
        rest.is_empty().then_some(Self(bytes))
    }

    /// Returns the bytes. Never print or store them; send them to workers only.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

impl Serialize for SecretKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut digits = Zeroizing::new(String::with_capacity(2 * self.0.len()));
        for byte in self.0.iter() {
            for digit in [byte >> 4, byte & 15] {
                digits.extend(char::from_digit(digit.into(), 16));
            }
        }
        serializer.serialize_str(&digits)
    }
}

impl<'de> Deserialize<'de> for SecretKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let digits = Zeroizing::new(String::deserialize(deserializer)?);
        Self::from_hex(&digits).ok_or_else(|| D::Error::custom("not a key in hexadecimal digits"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_round_trips_through_json() {
        let digits = "000102f0ff7f80a5000102f0ff7f80a5";
        let key = SecretKey::from_hex(digits).unwrap();
        assert_eq!(key.expose()[..4], [0, 1, 2, 0xf0]);
        assert_eq!(
            SecretKey::from_hex(&digits.to_uppercase()),
            Some(key.clone())
        );
        let json = serde_json::to_string(&key).unwrap();
        assert_eq!(json, format!("\"{digits}\""));
        assert_eq!(serde_json::from_str::<SecretKey>(&json).unwrap(), key);
    }

    #[test]
    fn other_text_is_not_a_key() {
        for text in ["0", "0g", "+1", "0x", "00 1", "\u{e9}", "\u{661}\u{661}"] {
            assert_eq!(SecretKey::from_hex(text), None, "{text}");
        }
    }

    #[test]
    fn debug_output_hides_a_key() {
        let key = SecretKey::from_hex("5ec2e7005ec2e7005ec2e7005ec2e700").unwrap();
        assert_eq!(
            format!("{key:?} {:#?}", [&key]),
            "[redacted] [\n    [redacted],\n]"
        );
        for json in ["\"5ec2e7z\"", "5325544", "[\"5ec2e7\"]"] {
            let error = serde_json::from_str::<SecretKey>(json).unwrap_err();
            assert!(!error.to_string().contains("5ec2e7"), "{error}");
        }
    }
}
