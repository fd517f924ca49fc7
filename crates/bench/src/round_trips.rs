//! Samples round trips of variants, with each payload and under each condition.

use std::time::Duration;

use myelin_measure::Mode;
use myelin_metrics::Distribution;
use myelin_metrics::envelope::Claim;
use myelin_metrics::stats::{Deployments, Estimate};

use crate::conditions::Conditions;
use crate::sampling::Sampling;
use crate::variant::{Variant, median_us};
use crate::{Error, Findings, Row, Session};

/// Measured UDP payloads, bytes.
pub(crate) const PAYLOADS: [usize; 2] = [256, 1400];
/// Rounds of a deployment.
const ROUNDS: usize = 4;
/// Longest time of a figure with an interval between packets, and the fewest packets of a figure.
const LONGEST_FIGURE: Duration = Duration::from_millis(200);
const FEWEST_PACKETS: u32 = 10;

/// A variant with a payload, under a condition.
pub(crate) struct TripSubject<'a> {
    pub(crate) variant: &'a VariantLabel,
    pub(crate) payload: usize,
    pub(crate) conditions: Conditions,
    /// Its slot in the samples.
    pub(crate) slot: usize,
    /// The slot of the first variant with the same payload, under the same condition.
    pub(crate) first: usize,
}

/// The ratio of two variants with a payload, under a condition.
pub(crate) struct TripRatio {
    /// Id of a claim about it.
    pub(crate) id: String,
    pub(crate) payload: usize,
    pub(crate) conditions: Conditions,
    pub(crate) ratio: Option<Estimate>,
}

/// Name and description of a removed variant.
#[derive(Debug)]
pub(crate) struct VariantLabel {
    pub(crate) name: String,
    pub(crate) about: String,
}

/// The sampled variants, payloads and conditions.
#[derive(Debug)]
pub(crate) struct TripSubjects {
    pub(crate) variants: Vec<VariantLabel>,
    pub(crate) conditions: Vec<Conditions>,
    /// A row for each variant that is not available here.
    skipped: Vec<Row>,
}

/// Sampled round trips.
pub(crate) struct RoundTrips {
    /// Medians of the rounds, us.
    pub(crate) samples: Deployments,
    pub(crate) subjects: TripSubjects,
    /// All round trips, by slot.
    pub(crate) distributions: Vec<Distribution>,
}

impl TripSubjects {
    /// The slot of a variant, a payload of [`PAYLOADS`] and a condition, each by index.
    pub(crate) fn slot(&self, variant: usize, payload: usize, condition: usize) -> usize {
        (variant * PAYLOADS.len() + payload) * self.conditions.len() + condition
    }

    /// The index of the variant with that name.
    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        self.variants
            .iter()
            .position(|variant| variant.name == name)
    }

    /// All subjects, by slot.
    pub(crate) fn all(&self) -> impl Iterator<Item = TripSubject<'_>> {
        let conditions = self.conditions.len();
        let of_variant = PAYLOADS.len() * conditions;
        (0..self.variants.len() * of_variant).map(move |slot| TripSubject {
            variant: &self.variants[slot / of_variant],
            payload: PAYLOADS[slot / conditions % PAYLOADS.len()],
            conditions: self.conditions[slot % conditions],
            slot,
            first: slot % of_variant,
        })
    }

    /// The ratio of two variants for each payload and condition. Empty if a variant is not
    /// available here. `what` begins the ids of claims.
    pub(crate) fn ratios(
        &self,
        samples: &Deployments,
        what: &str,
        [subject, reference]: [&str; 2],
    ) -> Vec<TripRatio> {
        let (Some(one), Some(other)) = (self.find(subject), self.find(reference)) else {
            let is_known = |name| self.find(name).is_some() || self.is_skipped(name);
            debug_assert!(is_known(subject), "no variant `{subject}`");
            debug_assert!(is_known(reference), "no variant `{reference}`");
            return Vec::new();
        };
        let mut ratios = Vec::new();
        for (index, payload) in PAYLOADS.into_iter().enumerate() {
            for (condition, conditions) in self.conditions.iter().enumerate() {
                let at = |variant| self.slot(variant, index, condition);
                let mode = match self.conditions[..] {
                    [_] => String::new(),
                    _ => format!(", {conditions}"),
                };
                ratios.push(TripRatio {
                    id: format!("{what}, {payload} B{mode}"),
                    payload,
                    conditions: *conditions,
                    ratio: samples.ratio(at(one), at(other)),
                });
            }
        }
        ratios
    }

    fn is_skipped(&self, name: &str) -> bool {
        let mut skipped = self.skipped.iter().filter_map(|row| row.get("variant"));
        skipped.any(|skipped| skipped.as_str() == Some(name))
    }
}

impl TripRatio {
    pub(crate) fn at_most(self, bound: f64) -> Claim {
        Claim::at_most(self.id, self.ratio, bound)
    }

    pub(crate) fn at_least(self, bound: f64) -> Claim {
        Claim::at_least(self.id, self.ratio, bound)
    }
}

impl RoundTrips {
    /// A row for each subject. `more` adds columns after the median.
    pub(crate) fn rows(&self, more: impl Fn(Row, &Distribution) -> Row) -> Vec<Row> {
        let row = |subject: TripSubject<'_>| {
            let mut row = Row::of("round trips")
                .with("variant", subject.variant.name.as_str())
                .with("payload_bytes", subject.payload);
            if self.subjects.conditions.len() > 1 {
                row = row.with("mode", subject.conditions.to_string());
            }
            row = row.with_estimate("rtt_p50", "_us", self.samples.median(subject.slot));
            more(row, &self.distributions[subject.slot])
                .with("times_direct", self.times_first(&subject))
                .with("what", subject.variant.about.as_str())
        };
        self.subjects.all().map(row).collect()
    }

    /// The ratio of a subject to the first variant.
    pub(crate) fn times_first(&self, subject: &TripSubject<'_>) -> Option<f64> {
        self.samples.ratio_value(subject.slot, subject.first)
    }
}

impl Session<'_> {
    /// Samples the round trips of the variants that `build` makes, with a `share` of the time
    /// limit. Adds a row for each variant that is not available here.
    pub(crate) fn round_trips<C: Copy + Into<Conditions>>(
        self,
        share: f64,
        conditions: &[C],
        findings: &mut Findings,
        mut build: impl FnMut() -> Result<(Vec<Variant>, Vec<Row>), Error>,
        claims: impl Fn(&Deployments, &TripSubjects) -> Vec<Claim>,
    ) -> Result<RoundTrips, Error> {
        let conditions: Vec<Conditions> = conditions.iter().map(|one| (*one).into()).collect();
        let mut distributions = Vec::new();
        let sampling = Sampling::of("round trips").rounds(ROUNDS).share(share);
        let (samples, subjects) = self.sample(
            sampling,
            findings,
            |turns| {
                let (variants, skipped) = build()?;
                let count = variants.len() * PAYLOADS.len() * conditions.len();
                distributions.resize_with(count, Distribution::new);
                let of = |slot: usize| conditions[slot % conditions.len()];
                turns.measure_also_awake(
                    count,
                    &["rtt_p50_us"],
                    |slot| of(slot).awake,
                    |slot| {
                        let case = slot / conditions.len();
                        let payload = PAYLOADS[case % PAYLOADS.len()];
                        let variant = &variants[case / PAYLOADS.len()];
                        let packets = self.packets(of(slot).mode);
                        let trips =
                            variant.round_trips_ns(of(slot).mode, payload, packets, self)?;
                        for ns in &trips {
                            distributions[slot].record(u64::from(*ns));
                        }
                        Ok(vec![median_us(trips)])
                    },
                )?;
                Ok(TripSubjects {
                    variants: variants.iter().map(Variant::label).collect(),
                    conditions: conditions.clone(),
                    skipped,
                })
            },
            claims,
        )?;
        findings.rows.extend_from_slice(&subjects.skipped);
        findings.set("packets_a_round", self.packets(Mode::Inline));
        Ok(RoundTrips {
            samples,
            subjects,
            distributions,
        })
    }

    /// Packets of a figure. A wake-up takes about ten times as long as the rest of a round trip.
    fn packets(self, mode: Mode) -> u32 {
        let packets = match mode {
            Mode::Inline | Mode::Spin => self.effort.packets(),
            Mode::Blocking => self.effort.packets().div_ceil(5),
        };
        if self.interval.is_zero() {
            return packets;
        }
        let fitting = LONGEST_FIGURE.as_nanos() / self.interval.as_nanos();
        packets.min(
            u32::try_from(fitting)
                .unwrap_or(u32::MAX)
                .max(FEWEST_PACKETS),
        )
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use myelin_metrics::envelope::Verdict;

    use super::*;

    #[test]
    fn each_slot_has_one_subject() {
        let label = |name: &str| VariantLabel {
            name: name.to_owned(),
            about: String::new(),
        };
        let subjects = TripSubjects {
            variants: ["cable", "chain"].map(label).into(),
            conditions: [Mode::Inline, Mode::Blocking].map(Into::into).into(),
            skipped: vec![Findings::skipped_row("variant", "absent", &"not built")],
        };
        let all: Vec<_> = subjects.all().collect();
        assert_eq!(all.len(), 8);
        let slot = subjects.slot(1, 1, 0);
        let subject = &all[slot];
        assert_eq!((subject.slot, subject.payload), (slot, 1400));
        assert_eq!(subject.variant.name, "chain");
        assert_eq!(subject.conditions, Mode::Inline.into());
        assert_eq!(subject.first, subjects.slot(0, 1, 0));
        let samples = Deployments::default();
        let ratios = |names| subjects.ratios(&samples, "ratio", names);
        assert_eq!(ratios(["chain", "cable"])[1].id, "ratio, 256 B, blocking");
        assert!(ratios(["chain", "absent"]).is_empty());
    }

    #[test]
    fn an_interval_between_packets_bounds_their_number() {
        let nobody = AtomicBool::new(false);
        let session = Session::quick(&nobody);
        let packets = |interval| {
            Session {
                interval,
                ..session
            }
            .packets(Mode::Inline)
        };
        assert_eq!(packets(Duration::ZERO), session.effort.packets());
        assert_eq!(packets(Duration::from_millis(5)), 40);
        assert_eq!(packets(Duration::from_secs(1)), FEWEST_PACKETS);
    }

    #[test]
    fn claims_about_ratios_turn_with_the_round_trips() {
        let label = |name: &str| VariantLabel {
            name: name.to_owned(),
            about: String::new(),
        };
        let subjects = TripSubjects {
            variants: ["c-afxdp", "user"].map(label).into(),
            conditions: vec![Mode::Inline.into()],
            skipped: Vec::new(),
        };
        // Made-up round trips of `user`, us; those of `c-afxdp` take 10 us. A worker that sleeps
        // while it waits takes 70 us.
        for (trips_us, deployments, expected) in [
            ([10.0, 10.1], 8, Verdict::Holds),
            ([10.0, 10.1], 7, Verdict::Undecided),
            ([10.0, 11.0], 8, Verdict::Undecided),
            ([70.0, 80.0], 8, Verdict::False),
        ] {
            let mut samples = Deployments::default();
            for number in 0..deployments {
                let us = [10.0, trips_us[number % 2]];
                let slots = us.into_iter().flat_map(|us| [us; PAYLOADS.len()]);
                samples.push(slots.map(|us| vec![us]).collect());
            }
            let ratios = subjects.ratios(&samples, "user / c-afxdp", ["user", "c-afxdp"]);
            assert_eq!(ratios.len(), PAYLOADS.len());
            for ratio in ratios {
                let claim = ratio.at_most(1.02);
                assert_eq!(claim.verdict(), Some(expected), "{claim:?}");
            }
        }
    }
}
