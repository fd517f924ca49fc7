//! Parses and formats quantities: `20kpps`, `100Mbit`, `350us`, `64kbit`, `0.1%`.
//!
//! A quantity is a decimal number and a unit. [`Dimension::parse`] reads a quantity exactly,
//! without floating point, as a whole number of base units. [`Dimension::format`] writes a number
//! in the largest unit that is not larger than the number, so `DURATION.parse(&DURATION.format(n))
//! == Ok(n)` for every `n`. Prefixes are decimal: `k` = 1000.

use crate::error::Fault;
use crate::printable::Printable;

/// A rate of a contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rate {
    /// Packets a second.
    Packets(u64),
    /// Bits a second.
    Bits(u64),
}

/// A unit: its spellings (`format` writes the first) and its number of base units.
struct Unit {
    spellings: &'static [&'static str],
    factor: u64,
}

const fn unit(spellings: &'static [&'static str], factor: u64) -> Unit {
    Unit { spellings, factor }
}

const KILO: u64 = 1_000;
const MEGA: u64 = 1_000_000;
const GIGA: u64 = 1_000_000_000;
const KIBI: u64 = 1024;
const BITS_PER_BYTE: u64 = 8;

/// The number of units that `format` uses.
const WRITTEN: usize = 4;

/// A kind of quantity.
pub struct Dimension {
    /// The quantity and its units, for "expected ..." in errors.
    expected: &'static str,
    /// The first [`WRITTEN`] in rising order for `format`, then others that only `parse` takes.
    units: &'static [Unit],
    /// Units that an error suggests for a text without a unit.
    offered: &'static [&'static str],
    /// An example for errors.
    example: &'static str,
}

/// Durations, in nanoseconds.
pub static DURATION: Dimension = Dimension {
    expected: "a duration (units ns, us, ms, s)",
    units: &[
        unit(&["ns"], 1),
        unit(&["us", "µs", "μs"], KILO),
        unit(&["ms"], MEGA),
        unit(&["s"], GIGA),
    ],
    offered: &["us"],
    example: "350us",
};

/// Rates of packets, a second.
pub static PACKET_RATE: Dimension = Dimension {
    expected: "a packet rate (units pps, kpps, Mpps, Gpps)",
    units: &[
        unit(&["pps"], 1),
        unit(&["kpps"], KILO),
        unit(&["Mpps"], MEGA),
        unit(&["Gpps"], GIGA),
    ],
    offered: &["pps"],
    example: "20kpps",
};

/// Rates of bits, a second.
pub static BIT_RATE: Dimension = Dimension {
    expected: "a bit rate (units bit, kbit, Mbit, Gbit, each a second)",
    units: &[
        unit(&["bit", "bit/s", "bps"], 1),
        unit(&["kbit", "kbit/s", "kbps"], KILO),
        unit(&["Mbit", "Mbit/s", "Mbps"], MEGA),
        unit(&["Gbit", "Gbit/s", "Gbps"], GIGA),
    ],
    offered: &["bit"],
    example: "100Mbit",
};

/// A rate of packets or bits, for errors. `parse_rate` tries the two dimensions above.
static RATE: Dimension = Dimension {
    expected: "a rate in packets (units pps, kpps, Mpps, Gpps) or in bits a second (bit, kbit, Mbit, Gbit)",
    units: &[],
    offered: &["pps", "bit"],
    example: "20kpps",
};

/// Sizes, in bits.
pub static SIZE: Dimension = Dimension {
    expected: "a size in bits (units bit, kbit, Mbit, Gbit) or bytes (B, kB, MB, GB)",
    units: &[
        unit(&["bit"], 1),
        unit(&["kbit"], KILO),
        unit(&["Mbit"], MEGA),
        unit(&["Gbit"], GIGA),
        unit(&["B"], BITS_PER_BYTE),
        unit(&["kB"], BITS_PER_BYTE * KILO),
        unit(&["MB"], BITS_PER_BYTE * MEGA),
        unit(&["GB"], BITS_PER_BYTE * GIGA),
    ],
    offered: &["kbit", "kB"],
    example: "64kbit",
};

/// Shares of the processor, in thousandths of a core.
pub static CPU: Dimension = Dimension {
    expected: "a share of the processor (units m for a thousandth of a core, cores)",
    units: &[unit(&["m"], 1), unit(&["cores", "core"], KILO)],
    offered: &["cores"],
    example: "0.5cores",
};

/// Amounts of memory, in bytes; [`format_memory_bytes`] writes them with binary prefixes.
pub static MEMORY: Dimension = Dimension {
    expected: "a size in bytes (units B, KiB, MiB, GiB, kB, MB, GB)",
    units: &[
        unit(&["B"], 1),
        unit(&["kB"], KILO),
        unit(&["MB"], MEGA),
        unit(&["GB"], GIGA),
        unit(&["KiB"], KIBI),
        unit(&["MiB"], KIBI * KIBI),
        unit(&["GiB"], KIBI * KIBI * KIBI),
    ],
    offered: &["MiB"],
    example: "256MiB",
};

static PERCENT: Dimension = Dimension {
    expected: "a percentage (0% to 100%)",
    units: &[unit(&["%"], 1)],
    offered: &["%"],
    example: "0.1%",
};

/// Parses a rate. The unit decides between packets and bits a second.
pub fn parse_rate(text: &str) -> Result<Rate, Fault> {
    match split(text) {
        Some((_, suffix)) if find(PACKET_RATE.units, suffix).is_some() => {
            PACKET_RATE.parse(text).map(Rate::Packets)
        }
        Some((_, suffix)) if find(BIT_RATE.units, suffix).is_some() => {
            BIT_RATE.parse(text).map(Rate::Bits)
        }
        split => Err(not_a_quantity(
            text,
            split,
            &RATE,
            &[PACKET_RATE.units, BIT_RATE.units],
        )),
    }
}

/// Writes an amount of memory in the largest unit without a fraction.
pub fn format_memory_bytes(bytes: u64) -> String {
    let whole = |unit: &&Unit| bytes > 0 && bytes.is_multiple_of(unit.factor);
    let unit = MEMORY.units[WRITTEN..].iter().rev().find(whole);
    let unit = unit.unwrap_or(&MEMORY.units[0]);
    format!("{}{}", bytes / unit.factor, unit.spellings[0])
}

/// Parses a percentage and returns the number before the `%`: `0.1%` gives 0.1.
pub fn parse_percent(text: &str) -> Result<f64, Fault> {
    let split = split(text);
    let Some((number, _)) = split.filter(|(_, suffix)| find(PERCENT.units, suffix).is_some())
    else {
        return Err(not_a_quantity(text, split, &PERCENT, &[PERCENT.units]));
    };
    let value = number.parse().ok();
    value
        .filter(|value| (0.0..=100.0).contains(value))
        .ok_or_else(|| {
            let message = format!("{} is more than 100%", quote(text));
            Fault::new(
                message,
                PERCENT.expected,
                format!("write for example {}", PERCENT.example),
            )
        })
}

impl Dimension {
    /// Parses a quantity as a whole number of base units. Never rounds.
    pub fn parse(&self, text: &str) -> Result<u64, Fault> {
        let split = split(text);
        let unit = split.and_then(|(number, suffix)| Some((number, find(self.units, suffix)?)));
        let Some((number, unit)) = unit else {
            return Err(not_a_quantity(text, split, self, &[self.units]));
        };
        let base = self.units[0].spellings[0];
        let (message, help) = match scale(number, unit.factor) {
            Scaled::Whole(value) => return Ok(value),
            Scaled::Fraction => (
                format!("{} is finer than 1{base}", quote(text)),
                format!(
                    "write a whole number of {base}, for example {}",
                    self.example
                ),
            ),
            Scaled::TooLarge => (
                format!("{} is too large", quote(text)),
                format!("write at most {}", self.format(u64::MAX)),
            ),
        };
        Err(Fault::new(message, self.expected, help))
    }

    /// Writes a number of base units in the largest unit that is not larger than the number,
    /// without trailing zeros.
    pub fn format(&self, value: u64) -> String {
        let units = self.units.iter().take(WRITTEN);
        let unit = units.rev().find(|unit| value >= unit.factor);
        let unit = unit.unwrap_or(&self.units[0]);
        let (whole, rest) = (value / unit.factor, value % unit.factor);
        let name = unit.spellings[0];
        if rest == 0 {
            return format!("{whole}{name}");
        }
        let digits = unit.factor.ilog10() as usize;
        let fraction = format!("{rest:0digits$}");
        format!("{whole}.{}{name}", fraction.trim_end_matches('0'))
    }
}

/// Splits a quantity into its number and its unit. Returns `None` if the text does not begin with a
/// decimal number.
fn split(text: &str) -> Option<(&str, &str)> {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    (!whole.is_empty() && !fraction.is_empty() && !fraction.contains('.'))
        .then(|| (number, suffix.trim_start()))
}

fn find<'u>(units: &'u [Unit], suffix: &str) -> Option<&'u Unit> {
    units.iter().find(|unit| unit.spellings.contains(&suffix))
}

enum Scaled {
    Whole(u64),
    Fraction,
    TooLarge,
}

/// Multiplies `number` (decimal digits, at most one point) by `factor`.
fn scale(number: &str, factor: u64) -> Scaled {
    // A u64 has at most 20 digits; no factor here divides by more than 12 decimal places. Within
    // these limits no calculation below overflows 128 bits.
    const MAX_DIGITS: usize = 20;
    const MAX_PLACES: usize = 18;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let (whole, fraction) = (
        whole.trim_start_matches('0'),
        fraction.trim_end_matches('0'),
    );
    if whole.len() > MAX_DIGITS {
        return Scaled::TooLarge;
    }
    if fraction.len() > MAX_PLACES {
        return Scaled::Fraction;
    }
    let digits = |digits: &str| {
        digits
            .bytes()
            .fold(0_u128, |value, digit| value * 10 + u128::from(digit - b'0'))
    };
    let (part, places) = (
        digits(fraction) * u128::from(factor),
        10_u128.pow(fraction.len() as u32),
    );
    if !part.is_multiple_of(places) {
        return Scaled::Fraction;
    }
    u64::try_from(digits(whole) * u128::from(factor) + part / places)
        .map_or(Scaled::TooLarge, Scaled::Whole)
}

/// Creates the error of a malformed quantity: no number, no unit, or a unit of another dimension.
fn not_a_quantity(
    text: &str,
    split: Option<(&str, &str)>,
    dimension: &Dimension,
    alternatives: &[&'static [Unit]],
) -> Fault {
    let example = || format!("write for example {}", dimension.example);
    let (message, help) = match split {
        None if text.trim().starts_with('-') => (format!("{} is negative", quote(text)), example()),
        None => (
            format!("{} is not a number with a unit", quote(text)),
            example(),
        ),
        Some((number, "")) => {
            let offers = dimension
                .offered
                .iter()
                .map(|unit| format!("{number}{unit}"));
            let offers: Vec<_> = offers.collect();
            (
                format!("{number} has no unit"),
                format!("write {}", offers.join(" or ")),
            )
        }
        Some((number, suffix)) => {
            let near = alternatives
                .iter()
                .flat_map(|units| units.iter())
                .flat_map(|unit| unit.spellings)
                .find(|spelling| spelling.eq_ignore_ascii_case(suffix));
            let unit = Printable(suffix);
            (
                format!("{} has the unknown unit `{unit}`", quote(text)),
                near.map_or_else(example, |spelling| format!("write {number}{spelling}")),
            )
        }
    };
    Fault::new(message, dimension.expected, help)
}

fn quote(text: &str) -> String {
    format!("`{}`", Printable(text.trim()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parse_accepts_every_unit() {
        let durations = [
            ("1ns", 1),
            ("350us", 350_000),
            ("1.5ms", 1_500_000),
            ("2s", 2_000_000_000),
            ("7 µs", 7_000),
        ];
        for (text, ns) in durations {
            assert_eq!(DURATION.parse(text), Ok(ns), "{text}");
        }
        assert_eq!(parse_rate("20kpps"), Ok(Rate::Packets(20_000)));
        assert_eq!(parse_rate("1.25Mpps"), Ok(Rate::Packets(1_250_000)));
        assert_eq!(parse_rate("100Mbit"), Ok(Rate::Bits(100_000_000)));
        assert_eq!(parse_rate("10Gbit/s"), Ok(Rate::Bits(10_000_000_000)));
        assert_eq!(SIZE.parse("64kbit"), Ok(64_000));
        assert_eq!(SIZE.parse("1.5kB"), Ok(12_000));
        assert_eq!(SIZE.parse("0.25B"), Ok(2));
        assert_eq!(parse_percent("0.1%"), Ok(0.1));
    }

    #[test]
    fn format_uses_the_largest_unit_without_trailing_zeros() {
        assert_eq!(DURATION.format(350_000), "350us");
        assert_eq!(DURATION.format(1_500), "1.5us");
        assert_eq!(DURATION.format(0), "0ns");
        assert_eq!(PACKET_RATE.format(20_000), "20kpps");
        assert_eq!(BIT_RATE.format(1_050_000_000), "1.05Gbit");
        assert_eq!(SIZE.format(64_000), "64kbit");
        // Trailing zeros beyond the precision do not matter.
        assert_eq!(DURATION.parse("01.50000000000000000000us"), Ok(1500));
    }

    #[test]
    fn processor_shares_and_memory_are_parsed_and_formatted() {
        for (text, millicores) in [
            ("500m", 500),
            ("0.5cores", 500),
            ("1 core", 1000),
            ("1.25cores", 1250),
        ] {
            assert_eq!(CPU.parse(text), Ok(millicores), "{text}");
        }
        assert_eq!(CPU.format(500), "500m");
        assert_eq!(CPU.format(1500), "1.5cores");
        let error = CPU.parse("0.5").unwrap_err();
        assert_eq!(error.help, "write 0.5cores");
        for (text, bytes) in [
            ("256MiB", 256 << 20),
            ("1.5GiB", 3 << 29),
            ("64KiB", 1 << 16),
            ("10MB", 10_000_000),
        ] {
            assert_eq!(MEMORY.parse(text), Ok(bytes), "{text}");
        }
        assert_eq!(format_memory_bytes(256 << 20), "256MiB");
        assert_eq!(format_memory_bytes(10_000_000), "10000000B");
        assert_eq!(format_memory_bytes(0), "0B");
    }

    #[test]
    fn number_without_a_unit_gives_an_error_with_the_unit() {
        assert_eq!(
            DURATION.parse("350").unwrap_err().to_string(),
            "350 has no unit; write 350us"
        );
        assert_eq!(
            parse_rate("20000").unwrap_err().to_string(),
            "20000 has no unit; write 20000pps or 20000bit"
        );
        assert_eq!(
            parse_percent("0.1").unwrap_err().to_string(),
            "0.1 has no unit; write 0.1%"
        );
    }

    #[test]
    fn wrong_unit_gives_an_error_with_the_nearest_unit() {
        assert_eq!(
            DURATION.parse("3min").unwrap_err().message,
            "`3min` has the unknown unit `min`"
        );
        assert_eq!(DURATION.parse("3US").unwrap_err().help, "write 3us");
        assert_eq!(parse_rate("20Kpps").unwrap_err().help, "write 20kpps");
        assert_eq!(parse_rate("20mbit").unwrap_err().help, "write 20Mbit");
    }

    #[test]
    fn fraction_of_a_base_unit_is_refused() {
        assert_eq!(
            DURATION.parse("0.5ns").unwrap_err().message,
            "`0.5ns` is finer than 1ns"
        );
        assert_eq!(
            DURATION.parse("1.2345us").unwrap_err().message,
            "`1.2345us` is finer than 1ns"
        );
        assert_eq!(
            SIZE.parse("0.3B").unwrap_err().message,
            "`0.3B` is finer than 1bit"
        );
        assert_eq!(
            SIZE.parse("0.55B").unwrap_err().message,
            "`0.55B` is finer than 1bit"
        );
        assert_eq!(
            DURATION.parse("99999999999999999999s").unwrap_err().message,
            "`99999999999999999999s` is too large"
        );
        assert_eq!(
            DURATION.parse("-3us").unwrap_err().message,
            "`-3us` is negative"
        );
        for text in ["", ".", "1.", ".5us", "1.2.3us", "us", "1e3us"] {
            assert!(DURATION.parse(text).is_err(), "{text}");
        }
        assert!(parse_percent("100.1%").is_err());
    }

    proptest! {
        #[test]
        fn durations_round_trip(ns: u64) {
            prop_assert_eq!(DURATION.parse(&DURATION.format(ns)), Ok(ns));
        }

        #[test]
        fn rates_round_trip(rate: u64) {
            prop_assert_eq!(parse_rate(&PACKET_RATE.format(rate)), Ok(Rate::Packets(rate)));
            prop_assert_eq!(parse_rate(&BIT_RATE.format(rate)), Ok(Rate::Bits(rate)));
        }

        #[test]
        fn sizes_round_trip(bits: u64) {
            prop_assert_eq!(SIZE.parse(&SIZE.format(bits)), Ok(bits));
        }

        #[test]
        fn percentages_round_trip(percent in 0.0..=100.0_f64) {
            prop_assert_eq!(parse_percent(&format!("{percent}%")), Ok(percent));
        }

        /// The reference computes in whole thousandths, without rounding.
        #[test]
        fn thousandths_are_exact(whole in 0..1_000_000_u64, thousandths in 0..1000_u64) {
            let text = format!("{whole}.{thousandths:03}us");
            prop_assert_eq!(DURATION.parse(&text), Ok(whole * 1000 + thousandths));
        }

        #[test]
        fn arbitrary_text_never_panics(text in any::<String>()) {
            let _ = (DURATION.parse(&text), parse_rate(&text), SIZE.parse(&text), parse_percent(&text));
        }
    }
}
