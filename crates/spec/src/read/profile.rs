//! Reads rates and bursts: the parts of a traffic profile.

use myelin_packet::traffic::Bucket;

use crate::error::Fault;
use crate::keys::field::{Field, whole_number};
use crate::printable::Printable;
use crate::sla::Sla;
use crate::units::{self, Rate};

/// The smallest Ethernet frame, without its check sequence.
const MIN_FRAME_BITS: u64 = 60 * 8;

/// The value of `rate` or `burst`: in packets, in bits, or a list of both.
#[derive(Default)]
pub(super) struct PacketsAndBits {
    pub(super) packets: Option<u64>,
    pub(super) bits: Option<u64>,
    /// Whether a part is faulty. If so, a value that is `None` here may still be in the file.
    pub(super) is_faulty: bool,
}

#[derive(Clone, Copy)]
pub(super) enum ProfileKey {
    Rate,
    Burst,
}

impl ProfileKey {
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

    /// Returns the greatest value of a token bucket.
    fn max(self) -> u64 {
        match self {
            Self::Rate => Bucket::MAX_RATE,
            Self::Burst => Bucket::MAX_BURST,
        }
    }

    fn format(self, value: u64, counted: &str) -> String {
        match (self, counted) {
            (Self::Rate, "packets") => units::PACKET_RATE.format(value),
            (Self::Rate, _) => units::BIT_RATE.format(value),
            (Self::Burst, "packets") => value.to_string(),
            (Self::Burst, _) => units::SIZE.format(value),
        }
    }

    /// Parses a rate or a burst. The unit of a rate decides between packets and bits. A burst in
    /// packets is a number without a unit.
    fn parse(self, text: &str) -> Result<Rate, Fault> {
        match (self, whole_number(text)) {
            (Self::Rate, _) => units::parse_rate(text),
            (Self::Burst, Some(packets)) => Ok(Rate::Packets(packets)),
            (Self::Burst, None) if !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit()) => {
                // A number that overflows `u64` also exceeds the bucket's maximum.
                Ok(Rate::Packets(u64::MAX))
            }
            (Self::Burst, None) => {
                let with_packets = |fault: Fault| Fault {
                    message: fault.message,
                    expected: format!("a whole number of packets, or {}", fault.expected),
                    help: format!("{}, or for packets a whole number such as 64", fault.help),
                };
                units::SIZE
                    .parse(text)
                    .map(Rate::Bits)
                    .map_err(with_packets)
            }
        }
    }

    /// Returns the fault of a value that no token bucket can have.
    fn range_fault(self, text: &str, value: u64, counted: &str) -> Option<Fault> {
        let shown = Printable(text);
        let example = format!("write for example {}", self.example());
        let remove = format!("{example}, or remove the key");
        if value == 0 {
            let message = format!("`{shown}` lets no packet through");
            Some(Fault::new(message, "more than zero", remove))
        } else if value > self.max() {
            let message = format!("`{shown}` is more than a token bucket can count");
            let expected = format!("at most {}", self.format(self.max(), counted));
            Some(Fault::new(message, expected, remove))
        } else if counted == "bits" && matches!(self, Self::Burst) && value < MIN_FRAME_BITS {
            Some(Fault::new(
                format!("`{shown}` is less than the smallest frame, so no packet ever conforms"),
                "at least 480bit (a frame of 60 B), and 12112bit for full frames",
                example,
            ))
        } else {
            None
        }
    }
}

impl PacketsAndBits {
    pub(super) fn read(field: &Field<'_>, key: ProfileKey) -> Self {
        let before = field.faults.count();
        let mut quantity = Self::default();
        let (expected, example) = (
            key.expected(),
            format!("write for example {}", key.example()),
        );
        let parts = field.one_or_list(expected);
        if parts.is_empty() && field.node.text().is_none() {
            field.fault("the list is empty", expected, example.clone());
        }
        for part in parts {
            let Some(text) = part.text(expected, &example) else {
                continue;
            };
            let (slot, value, counted) = match key.parse(text) {
                Ok(Rate::Packets(value)) => (&mut quantity.packets, value, "packets"),
                Ok(Rate::Bits(value)) => (&mut quantity.bits, value, "bits"),
                Err(fault) => {
                    part.add(fault);
                    continue;
                }
            };
            if let Some(fault) = key.range_fault(text, value, counted) {
                part.add(fault);
            } else if slot.replace(value).is_some() {
                let message = format!("`{}` is the second value in {counted}", Printable(text));
                part.fault(message, expected, "remove one of the two");
            }
        }
        quantity.is_faulty = field.faults.count() > before;
        quantity
    }
}

/// Reports a key that needs a rate, if the contract has no rate.
pub(super) fn check_rate(rate: &PacketsAndBits, field: &Field<'_>) {
    if rate.packets.is_none() && rate.bits.is_none() && !rate.is_faulty {
        field.fault(
            "the key has no effect without a rate",
            "`rate` too",
            "add for example `rate: 20kpps`, or remove the key",
        );
    }
}

/// Reports a burst without a rate. Skips a faulty rate, which is reported already.
pub(super) fn check_burst(burst: &PacketsAndBits, field: &Field<'_>, rate: &PacketsAndBits) {
    if rate.is_faulty {
        return;
    }
    let cases = [
        (burst.packets, rate.packets, "packets", "20kpps"),
        (burst.bits, rate.bits, "bits", "100Mbit"),
    ];
    for (burst, rate, counted, example) in cases {
        if burst.is_some() && rate.is_none() {
            field.fault(
                format!("a burst in {counted} has no effect without a rate in {counted}"),
                format!("`rate` in {counted} too"),
                format!("add for example {example} to `rate`, or remove the burst"),
            );
        }
    }
}

/// Reports a policer's burst below the profile's burst, because the policer would drop conforming
/// packets. `burst` is the profile's burst in the file. If `burst` is faulty, its absent part is
/// unknown and is not compared.
pub(super) fn check_policing_burst(sla: &Sla, burst: &PacketsAndBits, field: &Field<'_>) {
    let (policing, profile) = (sla.policing_profile(), sla.profile());
    let cases = [
        (policing.packets, profile.packets, burst.packets, "packets"),
        (policing.bits, profile.bits, burst.bits, "bits"),
    ];
    for (policing, profile, given, counted) in cases {
        if burst.is_faulty && given.is_none() {
            continue;
        }
        let bursts = policing.zip(profile).map(|(a, b)| (a.burst(), b.burst()));
        if let Some((policing, burst)) = bursts.filter(|(policing, burst)| policing < burst) {
            let [policing, burst] =
                [policing, burst].map(|value| ProfileKey::Burst.format(value, counted));
            field.fault(
                format!(
                    "the policer's burst of {policing} is below the profile's {burst}, so it would drop conforming packets"
                ),
                format!("at least {burst}"),
                format!(
                    "write {burst} or more, give the profile a smaller `burst`, or remove the key"
                ),
            );
        }
    }
}
