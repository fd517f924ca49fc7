//! Reads the configurations of a `compress` and of a `decompress`.

use std::ops::RangeInclusive;

use super::field::Fields;
use super::mtu;
use crate::compression::{
    CompressConfig, CompressionAlgorithm, DecompressConfig, Dictionary, MAX_DICTIONARY, MAX_LEVEL,
    MAX_MTU, MIN_DICTIONARY,
};
use crate::error::{Fault, Report};
use crate::files::FileResolver;
use crate::printable::Printable;

pub(super) fn compress(
    fields: &Fields<'_>,
    files: &dyn FileResolver,
    report: &mut Report<'_>,
) -> CompressConfig {
    let default = CompressConfig::default();
    let algorithm = fields
        .get("algorithm")
        .and_then(|field| field.word(report, CompressionAlgorithm::WORDS));
    let level = fields
        .get("level")
        .and_then(|field| field.integer(report, 1..=u64::from(MAX_LEVEL), "a level"));
    CompressConfig {
        algorithm: algorithm.unwrap_or_default(),
        level: level.map_or(default.level, |level| level as u8),
        dictionary: dictionary(fields, files, report),
        mtu: mtu::read(fields, MAX_MTU, report),
    }
}

pub(super) fn decompress(
    fields: &Fields<'_>,
    files: &dyn FileResolver,
    report: &mut Report<'_>,
) -> DecompressConfig {
    DecompressConfig {
        dictionary: dictionary(fields, files, report),
        mtu: mtu::read(fields, MAX_MTU, report),
    }
}

fn dictionary(
    fields: &Fields<'_>,
    files: &dyn FileResolver,
    report: &mut Report<'_>,
) -> Option<Dictionary> {
    const EXPECTED: &str = "the path of a readable file of 8 bytes to 128 KiB, relative to the directory of the chain file";
    const LENGTHS: RangeInclusive<usize> = MIN_DICTIONARY..=MAX_DICTIONARY;
    let field = fields.get("dictionary")?;
    let path = field.text(report, EXPECTED, "write for example telemetry.dict")?;
    let (message, help) = match files.read_bytes(path) {
        Ok(bytes) if LENGTHS.contains(&bytes.len()) => return Some(Dictionary::new(bytes)),
        Ok(bytes) => (
            format!("`{}` has {} bytes", Printable(path), bytes.len()),
            "make one with `zstd --train --maxdict=65536`, or remove the key",
        ),
        Err(reason) => (
            format!("cannot read `{}`: {}", Printable(path), Printable(&reason)),
            "correct the path, or make the file readable",
        ),
    };
    field.fault(report, Fault::new(message, EXPECTED, help));
    None
}
