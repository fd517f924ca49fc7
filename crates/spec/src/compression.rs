//! Configuration of a `compress` and of a `decompress`.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::mtu::DEFAULT_MTU;
use crate::words::word_enum;

/// Longest dictionary, bytes. Of one for LZ4 the last 64 KiB are used.
pub const MAX_DICTIONARY: usize = 128 << 10;
/// And the shortest: what is shorter helps no algorithm.
pub const MIN_DICTIONARY: usize = 8;
/// The greatest level.
pub const MAX_LEVEL: u8 = 19;
/// Greatest value of `mtu`, bytes: what is usual of jumbo frames.
pub const MAX_MTU: u16 = 9000;

word_enum! {
    /// How a payload is compressed.
    #[derive(Default)]
    pub enum CompressionAlgorithm {
        /// LZ4, block format: fast.
        #[default]
        Lz4 = "lz4",
        /// Zstandard (RFC 8878): small.
        Zstd = "zstd",
    }
}

/// What both sides know of the traffic beforehand: any bytes that it often holds, or what `zstd --train` makes of
/// samples of it.
#[derive(Clone, PartialEq, Eq)]
pub struct Dictionary(Vec<u8>);

impl Dictionary {
    /// A dictionary of those bytes.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Dictionary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dictionary({} bytes)", self.0.len())
    }
}

/// As base64, so that JSON takes it.
impl Serialize for Dictionary {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Dictionary {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = STANDARD.decode(text).map_err(serde::de::Error::custom)?;
        Ok(Self(bytes))
    }
}

/// Configuration of a `compress` function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompressConfig {
    /// How.
    pub algorithm: CompressionAlgorithm,
    /// 1 to [`MAX_LEVEL`]. Zstandard's level: more makes it smaller and slower. LZ4's acceleration: more makes it faster
    /// and larger.
    pub level: u8,
    /// What the other side knows too.
    pub dictionary: Option<Dictionary>,
    /// Longest IP packet that may leave, bytes.
    pub mtu: u16,
}

/// What a file need not say.
impl Default for CompressConfig {
    fn default() -> Self {
        Self {
            algorithm: CompressionAlgorithm::default(),
            level: 1,
            dictionary: None,
            mtu: DEFAULT_MTU,
        }
    }
}

/// Configuration of a `decompress` function. Each packet says how it was compressed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecompressConfig {
    /// What the other side used.
    pub dictionary: Option<Dictionary>,
    /// Longest IP packet that may leave, bytes.
    pub mtu: u16,
}

/// What a file need not say.
impl Default for DecompressConfig {
    fn default() -> Self {
        Self {
            dictionary: None,
            mtu: DEFAULT_MTU,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FunctionConfig;

    #[test]
    fn a_dictionary_of_any_bytes_survives_json() {
        let dictionary = Some(Dictionary::new((0..=255).collect()));
        let configs = [
            FunctionConfig::Compress(CompressConfig {
                algorithm: CompressionAlgorithm::Zstd,
                dictionary: dictionary.clone(),
                ..CompressConfig::default()
            }),
            FunctionConfig::Decompress(DecompressConfig {
                dictionary,
                ..DecompressConfig::default()
            }),
            FunctionConfig::Decompress(DecompressConfig::default()),
        ];
        for config in configs {
            let json = serde_json::to_string(&config).unwrap();
            assert_eq!(
                serde_json::from_str::<FunctionConfig>(&json).unwrap(),
                config
            );
        }
        assert!(serde_json::from_str::<Dictionary>("\"no base64\"").is_err());
    }
}
