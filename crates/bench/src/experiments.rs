//! All experiments, one file each; `lookup` is in three parts.

mod accounting;
mod bound;
mod calvin_advanced;
mod calvin_bandwidth;
mod calvin_chain;
mod calvin_cpu;
mod calvin_technologies;
mod chain_length;
mod classifier;
mod coding_loss;
mod deploy;
mod dpdk_port;
mod firewall;
mod framework;
mod hop_cost;
mod kernel_chain;
mod look_ups;
mod lookup;
mod peers;
mod policing;
mod rate_bucket;
mod rate_isolation;
mod rate_overhead;
mod rings;

use myelin_metrics::stats::{Estimate, ROUNDS_NEEDED};
use serde_json::json;

use crate::{Claim, Experiment};

pub(crate) const ALL: &[Experiment] = &[
    hop_cost::EXPERIMENT,
    kernel_chain::EXPERIMENT,
    lookup::EXPERIMENT,
    deploy::EXPERIMENT,
    calvin_technologies::EXPERIMENT,
    calvin_chain::EXPERIMENT,
    calvin_bandwidth::EXPERIMENT,
    calvin_cpu::EXPERIMENT,
    calvin_advanced::EXPERIMENT,
    coding_loss::EXPERIMENT,
    chain_length::EXPERIMENT,
    dpdk_port::EXPERIMENT,
    peers::EXPERIMENT,
    framework::EXPERIMENT,
    rings::EXPERIMENT,
    look_ups::EXPERIMENT,
    rate_isolation::EXPERIMENT,
    rate_overhead::EXPERIMENT,
    rate_bucket::EXPERIMENT,
    bound::EXPERIMENT,
];

/// "The median is at most `bound`", by the rule for ratios: enough rounds, and the interval wholly at or below it.
pub(crate) fn median_at_most(id: impl Into<String>, median: Option<Estimate>, bound: f64) -> Claim {
    let interval = median.and_then(|median| median.interval);
    let enough = median.is_some_and(|median| median.samples >= ROUNDS_NEEDED as u64);
    Claim {
        id: id.into(),
        paper: ().into(),
        source: None,
        measured: json!({
            "median": median.map(|median| median.value),
            "ci95_low": interval.map(|i| i.low),
            "ci95_high": interval.map(|i| i.high),
            "rounds": median.map(|median| median.samples),
        }),
        bound: format!("<= {bound}").into(),
        holds: interval.filter(|_| enough).map(|i| i.high <= bound),
    }
}

#[cfg(test)]
mod tests {
    use myelin_metrics::stats::median_ci;

    use super::*;

    #[test]
    fn a_median_needs_rounds_and_room() {
        let claim =
            |samples: &[f64], bound| median_at_most("x", median_ci(samples, 0.95), bound).holds;
        assert_eq!(claim(&[10.0; 30], 10.0), Some(true));
        assert_eq!(claim(&[10.0; 30], 9.9), Some(false));
        assert_eq!(claim(&[10.0; 29], 20.0), None);
        assert_eq!(claim(&[], 20.0), None);
    }
}
