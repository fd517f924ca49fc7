//! Leftover service under fair sharing by weights.

use super::RateLatency;
use super::rounding::mul_div_up;

/// Returns the leftover service under a fair scheduler: the share by weight, minus one slice of the
/// core's time (Parekh and Gallager 1993). EEVDF (Linux 6.6) lags at most one request (Stoica and
/// Abdel-Wahab 1995, theorem 1); for CFS this is an assumption (A6 of `docs/guarantees/proofs.md`).
/// `slice_fs` is the longest time between two scheduling decisions: the scheduler's slice, or the
/// tick if that is longer. Returns `None` for the weight 0.
pub fn fair_share(
    service: &RateLatency,
    weight: u64,
    others_weight: u64,
    slice_fs: u128,
) -> Option<RateLatency> {
    let all = u128::from(weight).checked_add(u128::from(others_weight))?;
    let rate = service
        .rate
        .checked_mul(u128::from(weight))?
        .checked_div(all)
        .filter(|rate| *rate > 0)?;
    if others_weight == 0 {
        return Some(*service);
    }
    // The scheduler may charge a stall to this process.
    let lag_fs = slice_fs.checked_add(service.latency_fs)?;
    Some(RateLatency::new(
        rate,
        mul_div_up(lag_fs, all, u128::from(weight))?,
    ))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::calculus::SECOND;

    #[test]
    fn share_lags_one_slice_and_lone_process_gets_the_core() {
        let service = RateLatency::new(100, 5);
        assert_eq!(fair_share(&service, 1024, 0, SECOND), Some(service));
        let third = fair_share(&service, 1, 2, SECOND).unwrap();
        assert_eq!(third, RateLatency::new(33, 3 * SECOND + 15));
        assert_eq!(fair_share(&service, 0, 1, 1), None);
        assert_eq!(fair_share(&service, 0, 0, 1), None);
    }

    proptest! {
        /// EEVDF gives each slice to the eligible process with the earliest virtual deadline.
        #[test]
        fn eevdf_gives_at_least_the_share(weight in 1_u64..20, others in prop::collection::vec(1_u64..20, 1..5), slice in 1_u64..5) {
            let weights: Vec<u64> = std::iter::once(weight).chain(others.iter().copied()).collect();
            let all: u64 = weights.iter().sum();
            let share = fair_share(&RateLatency::core(0), weight, all - weight, u128::from(slice) * SECOND).unwrap();
            let mut used = vec![0_u64; weights.len()];
            for turn in 0..200_u64 {
                let now = turn * slice;
                // A process is eligible if it is not ahead of its share, that is, if
                // used * all <= now * weight.
                let next = (0..weights.len())
                    .filter(|&process| used[process] * all <= now * weights[process])
                    // Of processes with equal deadlines the last runs, so that the first waits.
                    .min_by(|&a, &b| {
                        let deadline =
                            |process: usize| (used[process] + slice) as f64 / weights[process] as f64;
                        deadline(a).total_cmp(&deadline(b)).then(b.cmp(&a))
                    })
                    .unwrap();
                used[next] += slice;
                let promised = share.at(u128::from(now + slice) * SECOND).unwrap();
                prop_assert!(promised <= u128::from(used[0]) * SECOND, "turn {}: {} used", turn, used[0]);
            }
        }
    }
}
