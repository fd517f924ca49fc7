//! Reads the configurations of `rlnc-encode`, `rlnc-recode` and `rlnc-decode`.

use super::field::Fields;
use super::mtu;
use crate::error::{Fault, Report};
use crate::printable::Printable;
use crate::rlnc::{
    MAX_MTU, MAX_REDUNDANCY, MAX_WINDOW, REDUNDANCY_PARTS, RlncCode, RlncCoded, RlncDecodeConfig,
    RlncDelivery, RlncEncodeConfig, RlncRecodeConfig,
};
use crate::units::parse_duration_ns;

const HELP: &str = "write for example 0.25, which is one packet for four";

pub(super) fn encode(fields: &Fields<'_>, report: &mut Report<'_>) -> RlncEncodeConfig {
    let default = RlncEncodeConfig::default();
    RlncEncodeConfig {
        code: fields
            .get("code")
            .and_then(|field| field.word(report, RlncCode::WORDS))
            .unwrap_or_default(),
        window: packets(fields, "window", report).unwrap_or(default.window),
        block: packets(fields, "block", report).unwrap_or(default.block),
        redundancy: redundancy(fields, report).unwrap_or(default.redundancy),
        density: fields
            .get("density")
            .and_then(|field| field.integer(report, 0..=15, "a density threshold"))
            .map_or(default.density, |density| density as u8),
        flush_ns: duration(fields, "flush", "1ms", report).unwrap_or(default.flush_ns),
        mtu: mtu::read(fields, MAX_MTU, report),
    }
}

pub(super) fn recode(fields: &Fields<'_>, report: &mut Report<'_>) -> RlncRecodeConfig {
    let default = RlncRecodeConfig::default();
    RlncRecodeConfig {
        window: packets(fields, "window", report).unwrap_or(default.window),
        redundancy: redundancy(fields, report).unwrap_or(default.redundancy),
        coded: fields
            .get("coded")
            .and_then(|field| field.word(report, RlncCoded::WORDS))
            .unwrap_or_default(),
        mtu: mtu::read(fields, MAX_MTU, report),
    }
}

pub(super) fn decode(fields: &Fields<'_>, report: &mut Report<'_>) -> RlncDecodeConfig {
    let default = RlncDecodeConfig::default();
    RlncDecodeConfig {
        delivery: fields
            .get("delivery")
            .and_then(|field| field.word(report, RlncDelivery::WORDS))
            .unwrap_or_default(),
        timeout_ns: duration(fields, "timeout", "10ms", report).unwrap_or(default.timeout_ns),
        buffer: fields
            .get("buffer")
            .and_then(|field| field.integer(report, 128..=4096, "a number of packets"))
            .map_or(default.buffer, |buffer| buffer as u16),
    }
}

fn packets(fields: &Fields<'_>, key: &str, report: &mut Report<'_>) -> Option<u8> {
    let field = fields.get(key)?;
    let packets = field.integer(report, 1..=MAX_WINDOW.into(), "a number of packets")?;
    Some(packets as u8)
}

fn duration(fields: &Fields<'_>, key: &str, example: &str, report: &mut Report<'_>) -> Option<u64> {
    fields
        .get(key)?
        .quantity(report, parse_duration_ns, example)
}

fn redundancy(fields: &Fields<'_>, report: &mut Report<'_>) -> Option<u32> {
    let field = fields.get("redundancy")?;
    let expected = format!("a number from 0 to {MAX_REDUNDANCY} with up to six decimals");
    let text = field.text(report, &expected, HELP)?;
    let parts = parts(text).filter(|&parts| parts <= MAX_REDUNDANCY * REDUNDANCY_PARTS);
    if parts.is_none() {
        let message = format!("found `{}`", Printable(text));
        field.fault(report, Fault::new(message, expected, HELP));
    }
    parts
}

/// A decimal number with up to six decimals, in millionths, read exactly.
fn parts(text: &str) -> Option<u32> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let is_plain = |digits: &str| {
        !digits.is_empty() && digits.len() <= 6 && digits.bytes().all(|b| b.is_ascii_digit())
    };
    if !is_plain(whole) || !is_plain(decimals) {
        return None;
    }
    let millionths: u32 = format!("{decimals:0<6}").parse().ok()?;
    let whole: u32 = whole.parse().ok()?;
    whole.checked_mul(REDUNDANCY_PARTS)?.checked_add(millionths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_read_exactly() {
        for (text, expected) in [
            ("0.25", 250_000),
            ("1", 1_000_000),
            ("0.333333", 333_333),
            ("0", 0),
            ("4.0", 4_000_000),
            ("0.000001", 1),
        ] {
            assert_eq!(parts(text), Some(expected), "{text}");
        }
        for text in [
            "",
            ".",
            ".5",
            "1.",
            "-1",
            "1e3",
            "25%",
            "0.1234567",
            "9999999",
            "a",
        ] {
            assert_eq!(parts(text), None, "{text}");
        }
        assert_eq!(parts("999999"), None, "no overflow");
    }
}
