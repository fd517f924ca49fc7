//! Reads `spec.sla`.

use super::field::Field;
use super::profile::{self, Of};
use crate::catalogue::{ConfigKey, DURATION, TEXT, ValueType, integer};
use crate::chain::{Enforce, MAX_SHAPER_QUEUE, Sla};
use crate::error::{Fault, Report};
use crate::keys::{config, keys};
use crate::printable::Printable;
use crate::units;

const QUANTITY: ConfigKey = ConfigKey::new(ValueType::TextOrList);
const PERCENT: ConfigKey = ConfigKey::new(ValueType::Percent);

keys! {
    /// Keys of `spec.sla`.
    KEYS {
        /// what the chain may send: packets or bits a second (20kpps, 100Mbit), or one of each
        "rate" = QUANTITY;
        /// what it may send at once beyond the rate: packets or a size (32, 64kbit), or one of each
        "burst" = QUANTITY;
        /// what the policer lets through at once, where that is more than the burst
        "policingBurst" = QUANTITY;
        /// what holds the traffic to the profile
        "enforce" = Enforce::KEY.or("auto");
        /// the queue of the shaper
        "shaper" = ConfigKey::new(ValueType::Map(Shaper::KEYS));
        /// the longest one-way delay, from the ingress port to the departure from the egress port
        "latency" = DURATION.like("350us");
        /// the percentile of the measured delay that `latency` applies to: above 0, at most 100
        "percentile" = TEXT.or("99");
        /// the share of packets that may be lost
        "loss" = PERCENT;
        /// the longest round trip that an end host sees
        "roundTrip" = DURATION.like("350us");
    }
}

config! {
    /// What the file says of the shaper's queue.
    struct Shaper {
        /// packets that may wait
        "queue" queue: Option<u32> = integer(1, MAX_SHAPER_QUEUE as u64, "a number of packets");
        /// how long a packet may wait; left out: the agreed latency, else 10 ms
        "delay" delay_ns: Option<u64> = DURATION.like("2ms");
        /// by how much a departure may be late and be made good
        "tolerance" tolerance_ns: u64 = DURATION.like("100us");
    }
}

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
    let shaper_field = fields.get("shaper");
    let shaper = shaper_field
        .as_ref()
        .and_then(|field| field.map(report, Shaper::KEYS))
        .map(|fields| Shaper::read(&fields, report))
        .unwrap_or_default();
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
    if let Some(field) = asked.or(shaper_field) {
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
        shaper_queue: shaper.queue,
        shaper_delay_ns: shaper.delay_ns,
        shaper_tolerance_ns: shaper.tolerance_ns,
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
