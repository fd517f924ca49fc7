//! Leftover service under static priority.

use super::rounding::mul_div_up;
use super::{ArrivalCurve, RateLatency, SECOND};

/// Returns the leftover service of one level under static priority (`SCHED_FIFO`): the rate that
/// higher levels leave, after their burst and `blocking` (LBT theorem 6.2.1 and corollary 6.2.1).
/// `blocking` is the longest work of a lower level that finishes first. The order among higher
/// levels does not matter. Returns `None` if higher levels need the whole rate.
pub fn priority(
    service: &RateLatency,
    higher: &ArrivalCurve,
    blocking: u128,
) -> Option<RateLatency> {
    let higher = higher.long();
    let rate = service
        .rate
        .checked_sub(higher.rate)
        .filter(|rate| *rate > 0)?;
    let ahead_fs = mul_div_up(higher.burst.checked_add(blocking)?, SECOND, rate)?;
    // During the latency, work of higher levels accumulates.
    let latency_fs = mul_div_up(service.latency_fs, service.rate, rate)?;
    Some(RateLatency::new(rate, latency_fs.checked_add(ahead_fs)?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::calculus::{LeakyBucket, delay};

    #[test]
    fn level_waits_for_higher_levels_and_one_lower_packet() {
        let higher = ArrivalCurve::of(LeakyBucket::new(50, 4));
        let left = priority(&RateLatency::new(10, 3 * SECOND), &higher, 10).unwrap();
        assert_eq!(left, RateLatency::new(6, 15 * SECOND));
        assert_eq!(priority(&RateLatency::new(4, 0), &higher, 0), None);
    }

    proptest! {
        /// The server finishes a unit of the lower level, then serves the higher level first.
        #[test]
        fn no_unit_of_a_level_exceeds_the_bound(
            high_burst in 0_u128..30, high_rate in 1_u128..50, own_burst in 1_u128..30, own_rate in 1_u128..49,
        ) {
            let rate = 100_u128;
            let step = SECOND / rate;
            let (higher, own) = (LeakyBucket::new(high_burst, high_rate), LeakyBucket::new(own_burst, own_rate));
            let left = priority(&RateLatency::new(rate, 0), &ArrivalCurve::of(higher), 1).unwrap();
            let bound = delay(&ArrivalCurve::of(own), &left).unwrap();
            let arrival = |bucket: &LeakyBucket, unit: u128| {
                mul_div_up((unit + 1).saturating_sub(bucket.burst), SECOND, bucket.rate).unwrap()
            };
            let (mut high, mut mine, mut now, mut longest) = (0, 0, step, 0);
            while mine < 100 {
                if arrival(&higher, high) <= now {
                    high += 1;
                } else if arrival(&own, mine) <= now {
                    longest = longest.max(now + step - arrival(&own, mine));
                    mine += 1;
                } else {
                    // An arrival between two steps waits at most for one unit of a lower level.
                    now = arrival(&own, mine).min(arrival(&higher, high));
                    continue;
                }
                now += step;
            }
            prop_assert!(longest <= bound, "{} above {}", longest, bound);
        }
    }
}
