//! Reads `spec.sla`.

use super::excess::{self, Excess};
use super::profile::{self, PacketsAndBits, ProfileKey};
use crate::error::FaultLog;
use crate::keys::field::{Field, Fields};
use crate::keys::{
    ConfigKey, DURATION, Readable, TEXT, ValueType, config, integer, keys, read_percent,
};
use crate::printable::Printable;
use crate::sla::{Enforce, MAX_SHAPER_QUEUE, Sla};

const QUANTITY: ConfigKey = ConfigKey::new(ValueType::TextOrList);
const PERCENT: ConfigKey = ConfigKey::new(ValueType::Percent);

keys! {
    /// Keys of `spec.sla`.
    KEYS {
        /// The rate of the profile, per second: packets (20kpps), bits (100Mbit), or a list of
        /// both.
        "rate" = QUANTITY;
        /// The burst of the profile: packets (32), a size (64kbit), or a list of both. Default: 32
        /// packets or full frames, or the traffic of 1 ms if that is more. If TCP enters and the
        /// file has no `latency`: the traffic of 250 ms, up to 256 packets or full frames.
        "burst" = QUANTITY;
        /// The burst that the policer admits, if it is larger than `burst`.
        "policingBurst" = QUANTITY;
        /// The treatment of traffic above the profile. Default: the policer drops it.
        "excess" = ConfigKey::new(ValueType::Map(Excess::KEYS));
        /// The enforcement of the profile: policer, shaper, both or none. With auto, the policer,
        /// and the shaper unless the chain runs in the kernel alone.
        "enforce" = Enforce::KEY.with_default("auto");
        /// The shaper's queue.
        "shaper" = ConfigKey::new(ValueType::Map(Shaper::KEYS));
        /// The longest one-way delay, from the ingress port to the departure at the egress port.
        "latency" = DURATION.with_hint("350us");
        /// The percentile of the measured delay that `latency` limits: above 0, at most 100.
        "percentile" = TEXT.with_default("99");
        /// The largest share of lost packets.
        "loss" = PERCENT;
        /// The longest round-trip time between the end hosts.
        "roundTrip" = DURATION.with_hint("350us");
    }
}

config! {
    /// The shaper's queue.
    struct Shaper {
        /// The most packets in the queue. Default: twice the policer's burst, from 64 to 1024.
        "queue" queue: Option<u32> = integer(1, MAX_SHAPER_QUEUE as u64, "a number of packets");
        /// The longest wait of a packet. Default: `latency`, else 10ms.
        "delay" delay_ns: Option<u64> = DURATION.with_hint("2ms");
        /// The largest lateness of a departure that later departures compensate.
        "tolerance" tolerance_ns: u64 = DURATION.with_hint("100us");
    }
}

/// The default percentile.
const PERCENTILE: f64 = 99.0;

/// The contract of a chain without `sla`.
impl Default for Sla {
    fn default() -> Self {
        sla(&Fields::empty(&FaultLog::new("", "")))
    }
}

impl Readable for Sla {
    fn read(field: &Field<'_>, _: &ConfigKey) -> Option<Self> {
        field.mapping(KEYS).map(|fields| sla(&fields))
    }
}

fn sla(fields: &Fields<'_>) -> Sla {
    let quantity = |key: &str, kind: ProfileKey| {
        let field = fields.get(key);
        let read = field
            .as_ref()
            .map(|field| PacketsAndBits::read(field, kind));
        (read.unwrap_or_default(), field)
    };
    let (rate, _) = quantity("rate", ProfileKey::Rate);
    let (burst, burst_field) = quantity("burst", ProfileKey::Burst);
    let (policing, policing_field) = quantity("policingBurst", ProfileKey::Burst);
    for (quantity, field) in [(&burst, &burst_field), (&policing, &policing_field)] {
        if let Some(field) = field {
            profile::check_burst(quantity, field, &rate);
        }
    }
    let shaper: Shaper = fields.read(KEYS, "shaper");
    let enforce = fields.read(KEYS, "enforce");
    let needs_rate = matches!(enforce, Enforce::Both | Enforce::Policer | Enforce::Shaper);
    let enforcing = fields.get("enforce").filter(|_| needs_rate);
    let excess_field = fields.get("excess");
    let needing = enforcing.or(excess_field.clone()).or(fields.get("shaper"));
    if let Some(field) = needing {
        profile::check_rate(&rate, &field);
    }
    let excess: Excess = fields.read(KEYS, "excess");
    let sla = Sla {
        rate_pps: rate.packets,
        rate_bps: rate.bits,
        burst_packets: burst.packets,
        burst_bits: burst.bits,
        policing_burst_packets: policing.packets,
        policing_burst_bits: policing.bits,
        excess_queue_ns: excess.queue_ns,
        enforce: excess.enforce(enforce),
        shaper_queue: shaper.queue,
        shaper_delay_ns: shaper.delay_ns,
        shaper_tolerance_ns: shaper.tolerance_ns,
        latency_ns: fields.read(KEYS, "latency"),
        percentile: fields
            .get("percentile")
            .and_then(|field| percentile(&field))
            .unwrap_or(PERCENTILE),
        loss_percent: fields
            .get("loss")
            .and_then(|field| read_percent(&field, "0.1%")),
        round_trip_ns: fields.read(KEYS, "roundTrip"),
        has_tcp_burst: false,
    };
    if let Some(field) = &policing_field {
        profile::check_policing_burst(&sla, &burst, field);
    }
    if let Some(field) = &excess_field {
        excess::check(&sla, enforce, field, policing_field.as_ref());
    }
    sla
}

fn percentile(field: &Field<'_>) -> Option<f64> {
    let expected = "a percentile: a number above 0, at most 100, without a unit";
    field.parsed(expected, "write for example 99 or 99.9", |text| {
        let value = text.parse().ok();
        value
            .filter(|value| *value > 0.0 && *value <= 100.0)
            .ok_or_else(|| format!("`{}` is not a percentile", Printable(text)))
    })
}
