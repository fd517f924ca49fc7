//! The report of `myelin conform`, as text and as JSON.

use std::time::Duration;

use myelin_kernel::{BucketLevel, ConformReport};
use myelin_packet::traffic::{Bucket, CREDIT, Quantity};
use myelin_report::terminal::Column;
use myelin_spec::units;
use serde::Serialize;

use super::Watched;
use super::contract::ContractReport;
use crate::output;

/// A bucket of the profile, and the traffic measured against this bucket.
#[derive(Debug, Serialize)]
struct BucketReport {
    /// `packets` or `bits`.
    quantity: &'static str,
    /// Rate of the profile, packets or bits a second.
    rate: u64,
    /// Burst of the profile, packets or bits.
    burst: u64,
    /// The least burst with which the traffic conforms at this rate, rounded up.
    measured_burst: u64,
    /// Whether the monitor's counter was full. If so, the real burst may be larger.
    saturated: bool,
    /// The highest measured level above the burst, packets or bits, with a fraction.
    excess: f64,
    /// Time of the highest level, after the first packet.
    fullest_s: f64,
    /// The least tolerance with which the traffic conforms.
    least_tolerance_ns: u64,
}

/// Consecutive packets above the profile.
#[derive(Debug, Serialize)]
struct ViolationReport {
    /// Time from the first packet of the measurement to the start of the violation.
    from_s: f64,
    /// Time from the first packet of the measurement to the end of the violation.
    to_s: f64,
    packets: u64,
    excess_packets: f64,
    excess_bits: f64,
}

/// The verdict and its figures.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    interface: String,
    netns: Option<String>,
    direction: String,
    #[serde(rename = "match")]
    filter: Option<String>,
    tolerance_ns: u64,
    packets: u64,
    bytes: u64,
    /// Time from the first to the last packet.
    span_s: f64,
    mean_pps: f64,
    mean_bps: f64,
    buckets: Vec<BucketReport>,
    /// Packets above the profile, without any tolerance.
    above: u64,
    /// Packets above the profile that the tolerance does not cover.
    above_with_tolerance: u64,
    conforms_strictly: bool,
    /// The verdict. `None` without packets.
    conforms: Option<bool>,
    violations: u64,
    first_violations: Vec<ViolationReport>,
    /// Loss and latency of a chain over nodes (`--chain`), after the measurement.
    #[serde(skip_serializing_if = "Option::is_none")]
    contract: Option<ContractReport>,
}

fn credit_to_units(credit: u64) -> f64 {
    credit as f64 / CREDIT as f64
}

fn seconds_between(from_ns: u64, to_ns: u64) -> f64 {
    to_ns.saturating_sub(from_ns) as f64 / 1e9
}

/// Formats a number of packets, with more digits for small numbers.
fn format_packets(number: f64) -> String {
    if number < 1.0 {
        format!("{number:.4}")
    } else {
        format!("{number:.2}")
    }
}

/// Rounds to four figures, because more figures are noise.
fn round_figure(value: f64) -> u64 {
    let unit = 10_f64.powi((value.max(1.0).log10() as i32 - 3).max(0));
    ((value / unit).round() * unit) as u64
}

impl BucketReport {
    fn new(quantity: &'static str, bucket: Bucket, fill: &BucketLevel, first_ns: u64) -> Self {
        Self {
            quantity,
            rate: bucket.rate(),
            burst: bucket.burst(),
            measured_burst: fill.level.burst(),
            saturated: fill.is_saturated(),
            excess: credit_to_units(fill.excess(bucket)),
            fullest_s: seconds_between(first_ns, fill.most_ns),
            least_tolerance_ns: fill.least_tolerance_ns(bucket),
        }
    }

    fn counts_packets(&self) -> bool {
        self.quantity == "packets"
    }

    fn format_rate(&self) -> String {
        if self.counts_packets() {
            units::PACKET_RATE.format(self.rate)
        } else {
            units::BIT_RATE.format(self.rate)
        }
    }

    fn format_burst(&self, burst: u64) -> String {
        if self.counts_packets() {
            burst.to_string()
        } else {
            units::SIZE.format(burst)
        }
    }

    fn format_measured(&self) -> String {
        self.mark_saturated(self.format_burst(self.measured_burst))
    }

    fn format_tolerance(&self) -> String {
        self.mark_saturated(units::DURATION.format(self.least_tolerance_ns))
    }

    /// Adds "or more" to a figure whose counter was full.
    fn mark_saturated(&self, figure: String) -> String {
        if self.saturated {
            format!("{figure} or more")
        } else {
            figure
        }
    }

    fn format_excess(&self) -> String {
        if self.excess == 0.0 {
            "-".to_owned()
        } else if self.counts_packets() {
            format_packets(self.excess)
        } else {
            units::SIZE.format(self.excess.ceil() as u64)
        }
    }
}

impl Report {
    pub(super) fn new(
        watched: &Watched,
        measured: &ConformReport,
        contract: Option<ContractReport>,
    ) -> Self {
        let config = &watched.config;
        let span_s = seconds_between(measured.first_ns, measured.last_ns);
        // N packets span N - 1 intervals.
        let per_second = |count: f64| if span_s > 0.0 { count / span_s } else { 0.0 };
        let intervals = measured.packets.saturating_sub(1) as f64;
        let bytes_a_packet = measured.bytes as f64 / measured.packets.max(1) as f64;
        let bucket = |(quantity, bucket)| {
            let (quantity, fill) = match quantity {
                Quantity::Packets => ("packets", &measured.packet_bucket),
                Quantity::Bits => ("bits", &measured.bit_bucket),
            };
            let fill = fill.as_ref()?;
            Some(BucketReport::new(quantity, bucket, fill, measured.first_ns))
        };
        let violation = |violation: &myelin_kernel::Violation| ViolationReport {
            from_s: seconds_between(measured.first_ns, violation.from_ns),
            to_s: seconds_between(measured.first_ns, violation.to_ns),
            packets: violation.packets,
            excess_packets: credit_to_units(violation.packets_over),
            excess_bits: credit_to_units(violation.bits_over),
        };
        Self {
            interface: watched.interface.clone(),
            netns: watched.netns.clone(),
            direction: watched.direction.clone(),
            filter: watched.filter.clone(),
            tolerance_ns: config.tolerance_ns,
            packets: measured.packets,
            bytes: measured.bytes,
            span_s,
            mean_pps: per_second(intervals),
            mean_bps: per_second(intervals * bytes_a_packet * 8.0),
            buckets: config.profile.buckets().filter_map(bucket).collect(),
            above: measured.above,
            above_with_tolerance: measured.beyond,
            conforms_strictly: measured.above == 0,
            conforms: (measured.packets > 0).then_some(measured.beyond == 0),
            violations: measured.violations,
            first_violations: measured.first_violations.iter().map(violation).collect(),
            contract,
        }
    }

    /// Returns whether the monitor saw packets and all packets conform, and whether the chain, if
    /// one is measured, kept its contract.
    pub(super) fn is_kept(&self) -> bool {
        let contract = self.contract.as_ref();
        self.conforms() && contract.is_none_or(ContractReport::is_kept)
    }

    fn conforms(&self) -> bool {
        self.conforms == Some(true)
    }

    /// Formats the state in one line. `previous` is the report from `interval` earlier.
    pub(super) fn format_progress(
        &self,
        elapsed: Duration,
        previous: &ConformReport,
        interval: Duration,
    ) -> String {
        let rate = |now: u64, before: u64| {
            round_figure((now.saturating_sub(before)) as f64 / interval.as_secs_f64())
        };
        let bursts: Vec<_> = self
            .buckets
            .iter()
            .map(BucketReport::format_measured)
            .collect();
        format!(
            "{:6.1} s  {} packets  {}  {}  burst {}  {} above",
            elapsed.as_secs_f64(),
            self.packets,
            units::PACKET_RATE.format(rate(self.packets, previous.packets)),
            units::BIT_RATE.format(rate(self.bytes * 8, previous.bytes * 8)),
            bursts.join(" / "),
            self.above_with_tolerance
        )
    }

    /// Prints the verdict, the traffic, and each bucket; if `verbose`, the violations too.
    pub(super) fn print(&self, verbose: bool) {
        let traffic = format!(
            "{} ({}): {} packets, {} bytes in {:.3} s: {}, {}",
            self.interface,
            self.direction,
            self.packets,
            self.bytes,
            self.span_s,
            units::PACKET_RATE.format(round_figure(self.mean_pps)),
            units::BIT_RATE.format(round_figure(self.mean_bps))
        );
        if self.packets == 0 {
            println!("{}", output::wrap(&traffic));
            return;
        }
        println!("{}", output::wrap(&self.format_verdict()));
        println!("{}", output::wrap(&traffic));
        if let Some(contract) = &self.contract {
            let verdict = if contract.is_kept() {
                "keeps"
            } else {
                "does not keep"
            };
            println!("{verdict} the agreed loss and latency");
            println!("{}", output::wrap(&contract.format()));
        }
        let columns: [Column<BucketReport>; 7] = [
            ("bucket", |bucket| bucket.quantity.to_owned()),
            (">rate", BucketReport::format_rate),
            (">burst", |bucket| bucket.format_burst(bucket.burst)),
            (">measured burst", BucketReport::format_measured),
            (">above by", BucketReport::format_excess),
            (">fullest after s", |bucket| {
                format!("{:.6}", bucket.fullest_s)
            }),
            (">least tolerance", BucketReport::format_tolerance),
        ];
        println!("{}", output::format_table(&columns, &self.buckets));
        if verbose {
            self.print_violations();
        } else if self.violations > 0 {
            println!("violations: {}; -v shows each", self.violations);
        }
    }

    fn print_violations(&self) {
        for violation in &self.first_violations {
            let mut excess = Vec::new();
            if violation.excess_packets > 0.0 {
                excess.push(format!(
                    "{} packets",
                    format_packets(violation.excess_packets)
                ));
            }
            if violation.excess_bits > 0.0 {
                excess.push(units::SIZE.format(violation.excess_bits.ceil() as u64));
            }
            let text = format!(
                "from {:.6} s to {:.6} s: {} packets too many, up to {} above the burst",
                violation.from_s,
                violation.to_s,
                violation.packets,
                excess.join(" and ")
            );
            println!("{}", output::wrap(&text));
        }
        let shown = self.first_violations.len() as u64;
        let more = self.violations.saturating_sub(shown);
        if more > 0 {
            println!("and {more} more violations");
        }
    }

    fn format_verdict(&self) -> String {
        let tolerance = units::DURATION.format(self.tolerance_ns);
        let least = self
            .buckets
            .iter()
            .max_by_key(|bucket| bucket.least_tolerance_ns);
        let least = least.map_or_else(String::new, BucketReport::format_tolerance);
        match (self.conforms(), self.conforms_strictly) {
            (true, true) => "conforms".to_owned(),
            (true, false) => format!(
                "conforms with the tolerance of {tolerance}: the traffic needs {least}; without a tolerance, {} packets are \
                 above the profile",
                self.above
            ),
            (false, _) => {
                let bursts: Vec<_> = self
                    .buckets
                    .iter()
                    .filter(|bucket| bucket.excess > 0.0)
                    .map(BucketReport::format_measured)
                    .collect();
                format!(
                    "does not conform: {} of {} packets are above the profile{}; the traffic would conform with a \
                     burst of {}, or with a tolerance of {least}",
                    self.above_with_tolerance,
                    self.packets,
                    if self.tolerance_ns > 0 {
                        format!(
                            " and the tolerance of {tolerance} ({} without a tolerance)",
                            self.above
                        )
                    } else {
                        String::new()
                    },
                    bursts.join(" and ")
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::round_figure;

    #[test]
    fn round_figure_keeps_four_figures() {
        let cases = [
            (0.0, 0),
            (7.4, 7),
            (1234.4, 1234),
            (19_998.6, 20_000),
            (123_456.0, 123_500),
        ];
        for (value, expected) in cases {
            assert_eq!(round_figure(value), expected, "{value}");
        }
    }
}
