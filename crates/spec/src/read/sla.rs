//! Reads `spec.sla`.

use super::field::{Field, whole_number};
use crate::chain::Sla;
use crate::error::{Fault, Report};
use crate::printable::Printable;
use crate::units::{self, Rate};

const KEYS: &[&str] = &[
    "rate",
    "burst",
    "latency",
    "percentile",
    "loss",
    "roundTrip",
];

/// A quantity that may be given in packets, in bits, or in a list of both.
struct Profile {
    packets: Option<u64>,
    bits: Option<u64>,
}

pub(super) fn read(field: &Field<'_>, report: &mut Report<'_>) -> Option<Sla> {
    let fields = field.map(report, KEYS)?;
    let duration = |key: &str, report: &mut Report<'_>| {
        fields
            .get(key)?
            .quantity(report, units::parse_duration_ns, "350us")
    };
    let profile = |key: &str, of: Of, report: &mut Report<'_>| {
        fields.get(key).map_or(
            Profile {
                packets: None,
                bits: None,
            },
            |field| profile(&field, of, report),
        )
    };
    let rate = profile("rate", Of::Rate, report);
    let burst = profile("burst", Of::Burst, report);
    Some(Sla {
        rate_pps: rate.packets,
        rate_bps: rate.bits,
        burst_packets: burst.packets,
        burst_bits: burst.bits,
        latency_ns: duration("latency", report),
        percentile: fields
            .get("percentile")
            .and_then(|field| percentile(&field, report))
            .unwrap_or(Sla::default().percentile),
        loss_percent: fields.get("loss").and_then(|field| loss(&field, report)),
        round_trip_ns: duration("roundTrip", report),
    })
}

#[derive(Clone, Copy)]
enum Of {
    Rate,
    Burst,
}

impl Of {
    fn example(self) -> &'static str {
        match self {
            Self::Rate => "20kpps, 100Mbit or [ 20kpps, 100Mbit ]",
            Self::Burst => "32, 64kbit or [ 32, 64kbit ]",
        }
    }

    fn expected(self) -> &'static str {
        match self {
            Self::Rate => "a rate in packets or in bits a second, or a list of one of each",
            Self::Burst => "a number of packets, a size in bits or bytes, or a list of one of each",
        }
    }

    /// A rate's unit says whether it counts packets. A burst in packets is a bare number: packets are its unit.
    fn read(self, text: &str) -> Result<Rate, units::UnitError> {
        match (self, whole_number(text)) {
            (Self::Rate, _) => units::parse_rate(text),
            (Self::Burst, Some(packets)) => Ok(Rate::Packets(packets)),
            (Self::Burst, None) => units::parse_size_bits(text).map(Rate::Bits),
        }
    }
}

fn profile(field: &Field<'_>, of: Of, report: &mut Report<'_>) -> Profile {
    let mut profile = Profile {
        packets: None,
        bits: None,
    };
    let example = of.example();
    let parts = if field.is_list() {
        field.list(report, of.expected()).unwrap_or_default()
    } else {
        vec![field.clone()]
    };
    if parts.is_empty() {
        let fault = Fault::new(
            "the list is empty",
            of.expected(),
            format!("write for example {example}"),
        );
        field.fault(report, fault);
    }
    for part in parts {
        let Some(text) = part.text(
            report,
            of.expected(),
            &format!("write for example {example}"),
        ) else {
            continue;
        };
        let (slot, value, counted) = match of.read(text) {
            Ok(Rate::Packets(value)) => (&mut profile.packets, value, "packets"),
            Ok(Rate::Bits(value)) => (&mut profile.bits, value, "bits"),
            Err(error) => {
                part.unit_fault(report, error);
                continue;
            }
        };
        if value == 0 {
            let fault = Fault::new(
                format!("`{}` lets no packet through", Printable(text)),
                "more than zero",
                format!("write for example {example}, or remove the key"),
            );
            part.fault(report, fault);
        } else if slot.replace(value).is_some() {
            let fault = Fault::new(
                format!("`{}` is the second one in {counted}", Printable(text)),
                of.expected(),
                "remove one of the two",
            );
            part.fault(report, fault);
        }
    }
    profile
}

fn percentile(field: &Field<'_>, report: &mut Report<'_>) -> Option<f64> {
    const EXPECTED: &str = "a percentile: a number above 0, at most 100, without a unit";
    const HELP: &str = "write for example 99 or 99.9";
    let text = field.text(report, EXPECTED, HELP)?;
    let value = text
        .parse::<f64>()
        .ok()
        .filter(|value| *value > 0.0 && *value <= 100.0);
    if value.is_none() {
        let message = format!("`{}` is not a percentile", Printable(text));
        field.fault(report, Fault::new(message, EXPECTED, HELP));
    }
    value
}

fn loss(field: &Field<'_>, report: &mut Report<'_>) -> Option<f64> {
    let text = field.text(
        report,
        "a percentage (0% to 100%)",
        "write for example 0.1%",
    )?;
    units::parse_percent(text)
        .map_err(|error| field.unit_fault(report, error))
        .ok()
}
