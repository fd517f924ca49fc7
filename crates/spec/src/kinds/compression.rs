//! `compress` and `decompress`.

use std::fmt;
use std::ops::RangeInclusive;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use super::mtu;
use super::prelude::*;

/// Lengths of dictionaries, bytes. A shorter dictionary improves no algorithm.
const DICTIONARY: RangeInclusive<usize> = 8..=128 << 10;
/// The largest value of `mtu`, bytes: usual for jumbo frames.
const MAX_MTU: u16 = 9000;
/// The length of the marker, bytes. An uncompressed payload that begins like a compressed payload
/// gets a marker.
const MARK_BYTES: u64 = 4;

word_enum! {
    /// The algorithm.
    #[derive(Default)]
    pub enum CompressionAlgorithm {
        /// LZ4, block format: fast.
        #[default]
        Lz4 = "lz4",
        /// Zstandard (RFC 8878): small.
        Zstd = "zstd",
    }
}

config! {
    /// Configuration of a `compress` function.
    pub struct CompressConfig {
        /// The algorithm: lz4 is fast; zstd makes packets smaller and costs about ten times as
        /// much.
        "algorithm" algorithm: CompressionAlgorithm = CompressionAlgorithm::KEY.with_default("lz4");
        /// The level. zstd: a higher level makes packets smaller and takes longer. lz4
        /// (acceleration): a higher level takes less time and makes packets larger.
        "level" level: u8 = integer(1, 19, "a level").with_default("1");
        /// A file of 8 bytes to 128 KiB, the same on both sides: bytes that are frequent in the
        /// traffic, or the output of `zstd --train`. Packets carry its hash, so the receiver
        /// detects another one. LZ4 uses the last 64 KiB.
        "dictionary" dictionary: Option<Dictionary> = FILE, from dictionary;
        /// The longest IP packet that may leave, bytes; the function drops longer ones.
        "mtu" mtu: u16 = mtu(MAX_MTU);
    }
}

config! {
    /// Configuration of a `decompress` function. Each packet names its algorithm.
    pub struct DecompressConfig {
        /// A file of 8 bytes to 128 KiB, the same on both sides: bytes that are frequent in the
        /// traffic, or the output of `zstd --train`. Packets carry its hash, so the receiver
        /// detects another one. LZ4 uses the last 64 KiB.
        "dictionary" dictionary: Option<Dictionary> = FILE, from dictionary;
        /// The longest IP packet that may leave, bytes; the function drops longer ones.
        "mtu" mtu: u16 = mtu(MAX_MTU);
    }
}

/// `compress`. The cost is that of lz4 on JSON. A kind has one cost; zstd costs about ten times as
/// much.
pub static COMPRESS: Kind = Kind {
    name: "compress",
    class: Class::Advanced,
    user: Some(Cost::new(35.0, 0.65)),
    works_on: PacketParts::Payload,
    config: CompressConfig::KEYS,
    description: "Compresses each UDP payload separately; `decompress` restores it. Packets that would \
                  not shrink pass unchanged, as do fragments and other protocols. A payload that only \
                  looks compressed gets a marker of 4 bytes.",
    example: "{ name: squeeze, kind: compress, config: { algorithm: lz4 } }",
    counters: &[
        ("compressed", "compressed"),
        ("untouched", "passed unchanged: would not shrink"),
        ("stored", "passed with a marker: only looked compressed"),
        ("other", "passed: a fragment, or another protocol"),
        ("bytes-in", "bytes of payloads before"),
        ("bytes-out", "bytes of payloads after"),
        ("too-long", "dropped: with the marker longer than the MTU"),
    ],
    read: |fields| FunctionConfig::Compress(CompressConfig::from_fields(fields)),
    effect: |config| match config {
        FunctionConfig::Compress(config) => added_bytes_effect(MARK_BYTES, config.mtu),
        _ => Effect::default(),
    },
    ..Kind::BASE
};

/// `decompress`. The cost is that of lz4 on JSON.
pub static DECOMPRESS: Kind = Kind {
    name: "decompress",
    class: Class::Advanced,
    user: Some(Cost::new(20.0, 0.15)),
    works_on: PacketParts::Payload,
    fails_closed: true,
    config: DecompressConfig::KEYS,
    description: "Restores UDP payloads that `compress` compressed. Each packet names its algorithm. \
                  Packets that are not compressed pass unchanged. Drops packets that are damaged, too \
                  long, or compressed with another dictionary.",
    example: "{ name: restore, kind: decompress }",
    counters: &[
        ("decompressed", "restored"),
        ("untouched", "passed unchanged: not compressed"),
        ("stored", "passed without the marker"),
        ("other", "passed: a fragment, or another protocol"),
        ("bytes-in", "bytes of payloads before"),
        ("bytes-out", "bytes of payloads after"),
        (
            "malformed",
            "dropped: damaged, or its length field is wrong",
        ),
        (
            "wrong-dictionary",
            "dropped: compressed with another dictionary",
        ),
        ("too-long", "dropped: would be longer than the MTU"),
    ],
    read: |fields| FunctionConfig::Decompress(DecompressConfig::from_fields(fields)),
    effect: |config| match config {
        // Any packet may grow to the MTU.
        FunctionConfig::Decompress(config) => added_bytes_effect(config.mtu.into(), config.mtu),
        _ => Effect::default(),
    },
    ..Kind::BASE
};

fn added_bytes_effect(bytes: u64, mtu: u16) -> Effect {
    Effect {
        added_bytes: AddedBytes::new(bytes, mtu),
        ..Effect::default()
    }
}

/// A dictionary that both sides have. It contains bytes that are frequent in the traffic, or the
/// output of `zstd --train`.
#[derive(Clone, PartialEq, Eq)]
pub struct Dictionary(Vec<u8>);

impl Dictionary {
    /// Creates a dictionary from its bytes.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// Returns the dictionary's bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Dictionary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dictionary({} bytes)", self.0.len())
    }
}

/// Serializes the bytes as base64, for JSON.
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

fn dictionary(fields: &Fields<'_>) -> Option<Dictionary> {
    const EXPECTED: &str = "the path of a readable file of 8 bytes to 128 KiB, relative to the directory of the chain file";
    let field = fields.get("dictionary")?;
    let path = field.text(EXPECTED, "write for example telemetry.dict")?;
    let shown = Printable(path);
    let (message, help) = match field.faults.files.read_bytes(path) {
        Ok(bytes) if DICTIONARY.contains(&bytes.len()) => return Some(Dictionary::new(bytes)),
        Ok(bytes) => (
            format!("`{shown}` has {} bytes", bytes.len()),
            "make one with `zstd --train --maxdict=65536`, or remove the key",
        ),
        Err(reason) => (
            format!("cannot read `{shown}`: {}", Printable(&reason)),
            "correct the path, or make the file readable",
        ),
    };
    field.fault(message, EXPECTED, help);
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dictionary_of_any_bytes_round_trips_through_json() {
        let dictionary = Dictionary::new((0..=255).collect());
        let json = serde_json::to_string(&dictionary).unwrap();
        assert_eq!(
            serde_json::from_str::<Dictionary>(&json).unwrap(),
            dictionary
        );
        assert!(serde_json::from_str::<Dictionary>("\"no base64\"").is_err());
    }
}
