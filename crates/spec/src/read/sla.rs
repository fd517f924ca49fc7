//! Reads `spec.sla`.

use super::field::Field;
use super::profile::{self, Of};
use crate::chain::{Enforce, MAX_SHAPER_QUEUE, Sla};
use crate::error::{Fault, Report};
use crate::printable::Printable;
use crate::units;

const KEYS: &[&str] = &[
    "rate",
    "burst",
    "policingBurst",
    "enforce",
    "shaper",
    "latency",
    "percentile",
    "loss",
    "roundTrip",
];

pub(super) fn read(field: &Field<'_>, report: &mut Report<'_>) -> Option<Sla> {
    let fields = field.map(report, KEYS)?;
    let duration = |key: &str, report: &mut Report<'_>| {
        fields
            .get(key)?
            .quantity(report, units::parse_duration_ns, "350us")
    };
    let quantity = |key: &str, of: Of, report: &mut Report<'_>| {
        let field = fields.get(key);
        let read = field.as_ref().map(|field| profile::read(field, of, report));
        (read.unwrap_or_default(), field)
    };
    let (rate, _) = quantity("rate", Of::Rate, report);
    let (burst, burst_field) = quantity("burst", Of::Burst, report);
    let (policing, policing_field) = quantity("policingBurst", Of::Burst, report);
    for (of, field) in [(&burst, &burst_field), (&policing, &policing_field)] {
        if let Some(field) = field {
            profile::check_burst(of, field, &rate, report);
        }
    }
    let shaper = fields
        .get("shaper")
        .map_or_else(Queue::default, |field| shaper(&field, report));
    let enforce_field = fields.get("enforce");
    let enforce = enforce_field
        .as_ref()
        .and_then(|field| field.word(report, Enforce::WORDS));
    let asked = enforce_field.filter(|_| {
        matches!(
            enforce,
            Some(Enforce::Both | Enforce::Policer | Enforce::Shaper)
        )
    });
    if let Some(field) = asked.or_else(|| fields.get("shaper")) {
        profile::check_rate(&rate, &field, report);
    }
    let sla = Sla {
        rate_pps: rate.packets,
        rate_bps: rate.bits,
        burst_packets: burst.packets,
        burst_bits: burst.bits,
        policing_burst_packets: policing.packets,
        policing_burst_bits: policing.bits,
        enforce: enforce.unwrap_or_default(),
        shaper_queue: shaper.packets,
        shaper_delay_ns: shaper.delay_ns,
        shaper_tolerance_ns: shaper.tolerance_ns.unwrap_or_default(),
        latency_ns: duration("latency", report),
        percentile: fields
            .get("percentile")
            .and_then(|field| percentile(&field, report))
            .unwrap_or(Sla::default().percentile),
        loss_percent: fields.get("loss").and_then(|field| loss(&field, report)),
        round_trip_ns: duration("roundTrip", report),
    };
    if let Some(field) = &policing_field {
        profile::check_wider(&sla, &burst, field, report);
    }
    Some(sla)
}

/// What the file says of the shaper's queue.
#[derive(Default)]
struct Queue {
    packets: Option<u32>,
    delay_ns: Option<u64>,
    tolerance_ns: Option<u64>,
}

fn shaper(field: &Field<'_>, report: &mut Report<'_>) -> Queue {
    let Some(fields) = field.map(report, &["queue", "delay", "tolerance"]) else {
        return Queue::default();
    };
    let packets = fields.get("queue").and_then(|field| {
        field.integer(
            report,
            1..=u64::from(MAX_SHAPER_QUEUE),
            "a number of packets",
        )
    });
    let mut duration = |key, example| {
        let field = fields.get(key)?;
        field.quantity(report, units::parse_duration_ns, example)
    };
    Queue {
        packets: packets.map(|packets| packets as u32),
        delay_ns: duration("delay", "2ms"),
        tolerance_ns: duration("tolerance", "100us"),
    }
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
