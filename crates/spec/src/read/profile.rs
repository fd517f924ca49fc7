//! Reads rates and bursts: the parts of a traffic profile.

use myelin_packet::traffic::Bucket;

use super::field::{Field, whole_number};
use crate::chain::Sla;
use crate::error::{Fault, Report};
use crate::printable::Printable;
use crate::units::{self, Rate};

/// The smallest Ethernet frame, without its check sequence.
const MIN_FRAME_BITS: u64 = 60 * 8;

/// A quantity that may be given in packets, in bits, or in a list of both.
#[derive(Default)]
pub(super) struct Quantity {
    pub(super) packets: Option<u64>,
    pub(super) bits: Option<u64>,
    /// Part of it could not be read, so what is not here may have been meant.
    pub(super) faulty: bool,
}

#[derive(Clone, Copy)]
pub(super) enum Of {
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

    /// The most that a token bucket can count.
    fn most(self) -> u64 {
        match self {
            Self::Rate => Bucket::MAX_RATE,
            Self::Burst => Bucket::MAX_BURST,
        }
    }

    fn format(self, value: u64, counted: &str) -> String {
        match (self, counted) {
            (Self::Rate, "packets") => units::format_packet_rate_pps(value),
            (Self::Rate, _) => units::format_bit_rate_bps(value),
            (Self::Burst, "packets") => value.to_string(),
            (Self::Burst, _) => units::format_size_bits(value),
        }
    }

    /// A rate's unit says whether it counts packets. A burst in packets is a bare number: packets are its unit.
    fn read(self, text: &str) -> Result<Rate, units::UnitError> {
        match (self, whole_number(text)) {
            (Self::Rate, _) => units::parse_rate(text),
            (Self::Burst, Some(packets)) => Ok(Rate::Packets(packets)),
            (Self::Burst, None) if !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit()) => {
                // Too large for a number, as it is for a bucket.
                Ok(Rate::Packets(u64::MAX))
            }
            (Self::Burst, None) if text.parse::<f64>().is_ok() => {
                let bare = |error: units::UnitError| units::UnitError {
                    found: format!("{} and is no whole number of packets", error.found),
                    expected: format!("a whole number of packets, or {}", error.expected),
                    remedy: format!("{}, or a whole number", error.remedy),
                };
                units::parse_size_bits(text).map(Rate::Bits).map_err(bare)
            }
            (Self::Burst, None) => units::parse_size_bits(text).map(Rate::Bits),
        }
    }
}

pub(super) fn read(field: &Field<'_>, of: Of, report: &mut Report<'_>) -> Quantity {
    let before = report.count();
    let mut quantity = Quantity::default();
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
            Ok(Rate::Packets(value)) => (&mut quantity.packets, value, "packets"),
            Ok(Rate::Bits(value)) => (&mut quantity.bits, value, "bits"),
            Err(error) => {
                part.unit_fault(report, error);
                continue;
            }
        };
        let most = of.most();
        if value == 0 {
            let fault = Fault::new(
                format!("`{}` lets no packet through", Printable(text)),
                "more than zero",
                format!("write for example {example}, or remove the key"),
            );
            part.fault(report, fault);
        } else if value > most {
            let fault = Fault::new(
                format!(
                    "`{}` is more than a token bucket can count",
                    Printable(text)
                ),
                format!("at most {}", of.format(most, counted)),
                format!("write for example {example}, or remove the key"),
            );
            part.fault(report, fault);
        } else if counted == "bits" && matches!(of, Of::Burst) && value < MIN_FRAME_BITS {
            let fault = Fault::new(
                format!(
                    "`{}` is less than the smallest frame, so no packet ever conforms",
                    Printable(text)
                ),
                "at least 480bit (a frame of 60 B), and 12112bit for full frames",
                format!("write for example {example}"),
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
    quantity.faulty = report.count() > before;
    quantity
}

/// Neither policer nor shaper has anything to hold the traffic to without a rate.
pub(super) fn check_rate(rate: &Quantity, field: &Field<'_>, report: &mut Report<'_>) {
    if rate.packets.is_none() && rate.bits.is_none() && !rate.faulty {
        let fault = Fault::new(
            "it has no effect without a rate",
            "`rate` too",
            "add for example `rate: 20kpps`, or remove the key",
        );
        field.fault(report, fault);
    }
}

/// A burst limits nothing without the rate that it goes beyond. Of a rate that could not be read that has been told already.
pub(super) fn check_burst(
    burst: &Quantity,
    field: &Field<'_>,
    rate: &Quantity,
    report: &mut Report<'_>,
) {
    if rate.faulty {
        return;
    }
    let cases = [
        (burst.packets, rate.packets, "packets", "20kpps"),
        (burst.bits, rate.bits, "bits", "100Mbit"),
    ];
    for (burst, rate, counted, example) in cases {
        if burst.is_some() && rate.is_none() {
            let fault = Fault::new(
                format!("a burst in {counted} has no effect without a rate in {counted}"),
                format!("`rate` in {counted} too"),
                format!("add for example {example} to `rate`, or remove the burst"),
            );
            field.fault(report, fault);
        }
    }
}

/// The policer's burst is the profile's, also one that the file leaves out, or a wider one: a narrower one would drop what
/// conforms. `burst` is what could be read of the profile's: where that is not all, nobody knows what the file leaves out.
pub(super) fn check_wider(sla: &Sla, burst: &Quantity, field: &Field<'_>, report: &mut Report<'_>) {
    let (policing, profile) = (sla.policing_profile(), sla.profile());
    let cases = [
        (policing.packets, profile.packets, burst.packets, "packets"),
        (policing.bits, profile.bits, burst.bits, "bits"),
    ];
    for (policing, profile, given, counted) in cases {
        if burst.faulty && given.is_none() {
            continue;
        }
        let bursts = policing.zip(profile).map(|(a, b)| (a.burst(), b.burst()));
        if let Some((policing, burst)) = bursts.filter(|(policing, burst)| policing < burst) {
            let [policing, burst] = [policing, burst].map(|value| Of::Burst.format(value, counted));
            let fault = Fault::new(
                format!(
                    "the policer's burst of {policing} is below the profile's {burst}, so it would drop what conforms"
                ),
                format!("at least {burst}"),
                format!(
                    "write {burst} or more, give the profile a smaller `burst`, or remove the key"
                ),
            );
            field.fault(report, fault);
        }
    }
}
