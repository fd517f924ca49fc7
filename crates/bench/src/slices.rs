//! Slices of UNiS that are too short or too long, with and without its occupancy rule (Anthony et
//! al. 2020, Figs. 14 and 15): the same subjects and claims on a live and on a simulated core.

use myelin_metrics::stats::Estimate;
use myelin_policy::sharing::UnisParameters;

use crate::Claim;
use crate::published::unis;

/// Functions of a chain.
pub(crate) const FUNCTIONS: usize = 5;
/// Length of a slice: the time to fill this part of the next ring, %.
pub(crate) const SLICES_PERCENT: [u32; 5] = [25, 50, 75, 100, 125];
pub(crate) const SHORT: usize = 0;
pub(crate) const PUBLISHED_SLICE: usize = 2;
pub(crate) const LONG: usize = 4;
pub(crate) const RULES: [&str; 2] = ["rule off", "rule on"];
pub(crate) const OFF: usize = 0;
pub(crate) const ON: usize = 1;
/// Least throughput over that with the published slice, where the paper sees no large difference.
const STEADY_BOUND: f64 = 0.95;

/// UNiS with these slices.
pub(crate) fn parameters(slice: usize, occupancy_rule: bool, batch: u32) -> UnisParameters {
    UnisParameters {
        slice_share: f64::from(SLICES_PERCENT[slice]) / 100.0,
        occupancy_rule,
        ..UnisParameters::for_batch(batch)
    }
}

/// The claims about a chain. `ratio` returns the throughput of a rule and a slice over that with
/// the published slice. Without the rule, the paper has figures only for the chain of number
/// `published`.
pub(crate) fn claims(
    (figure, chain): (&str, &str),
    published: Option<usize>,
    ratio: impl Fn(usize, usize) -> Option<Estimate>,
) -> Vec<Claim> {
    let of = |rule: usize, slice: usize| {
        let id = format!(
            "{figure}, {}, slices of {} % / 75 %, {chain}",
            RULES[rule], SLICES_PERCENT[slice]
        );
        (id, ratio(rule, slice))
    };
    let at_least = |(id, ratio)| Claim::at_least(id, ratio, STEADY_BOUND);
    let mut claims = Vec::new();
    if let Some(drop) = published.and_then(|chain| unis::LONG_SLICE.get(chain)) {
        let (id, ratio) = of(OFF, LONG);
        claims.push(drop.add_to(Claim::at_most(id, ratio, drop.value)));
        claims.push(unis::SHORT_SLICE.add_to(at_least(of(OFF, SHORT))));
    }
    for slice in [SHORT, LONG] {
        claims.push(unis::ANY_SLICE.add_to(at_least(of(ON, slice))));
    }
    claims
}

/// The claim about the worth of the rule: throughput with it over that without.
pub(crate) fn claim_of_rule((figure, chain): (&str, &str), worth: Option<Estimate>) -> Claim {
    let id = format!("{figure}, rule on / off, {chain}");
    unis::RULE.add_to(Claim::at_least(id, worth, 1.0))
}
