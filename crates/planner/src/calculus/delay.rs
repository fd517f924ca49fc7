//! The delay bound of one server.

use super::rounding::mul_div_up;
use super::{ArrivalCurve, RateLatency, SECOND};

/// Returns the longest delay at a first-come, first-served server, fs: the horizontal deviation of
/// the two curves (LBT theorem 1.4.2).
///
/// A packet leaves after its last part, so the bound is valid for whole packets (LBT theorem
/// 1.7.1). Returns `None` if the arrival rate exceeds the service rate, or beyond 128 bits.
pub fn delay(arrival: &ArrivalCurve, service: &RateLatency) -> Option<u128> {
    if arrival.is_zero() {
        return Some(service.latency_fs);
    }
    let (short, long) = (arrival.short(), arrival.long());
    let rate = service.rate;
    if long.rate > rate {
        return None;
    }
    let by_long = mul_div_up(long.burst, SECOND, rate);
    let by_short = if short.rate <= rate {
        mul_div_up(short.burst, SECOND, rate)
    } else {
        wait_at_crossover(arrival, rate)
    };
    let least = by_long.into_iter().chain(by_short).min();
    least?.checked_add(service.latency_fs)
}

/// Returns the wait at the crossover. Until the crossover, work arrives faster than the server
/// works, so this wait is the longest.
fn wait_at_crossover(arrival: &ArrivalCurve, rate: u128) -> Option<u128> {
    // The work at one femtosecond after the crossover, as if it waited since the crossover, so the
    // wait is rounded up.
    let (crossover_fs, arrived) = arrival.crossover()?;
    Some(mul_div_up(arrived, SECOND, rate)?.saturating_sub(crossover_fs))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::arrival::tests::curve_with_crossover;
    use super::*;
    use crate::calculus::LeakyBucket;

    #[test]
    fn burst_waits_for_the_latency_and_its_own_service() {
        let arrival = ArrivalCurve::of(LeakyBucket::new(30, 5));
        let service = RateLatency::new(10, SECOND / 2);
        assert_eq!(delay(&arrival, &service), Some(7 * SECOND / 2));
        assert_eq!(
            delay(&arrival, &RateLatency::new(4, 0)),
            None,
            "the backlog grows without end"
        );
        assert_eq!(delay(&arrival, &RateLatency::new(0, 0)), None);
        assert_eq!(delay(&ArrivalCurve::default(), &service), Some(SECOND / 2));
        let huge = ArrivalCurve::of(LeakyBucket::new(u128::MAX, 1));
        assert_eq!(delay(&huge, &service), None);
    }

    proptest! {
        /// Each unit arrives as soon as both buckets allow, at a server that does exactly the work
        /// of its curve.
        #[test]
        fn no_unit_exceeds_the_bound_and_one_nearly_meets_it(
            arrival in curve_with_crossover(), rate in 20_u128..500, latency_us in 0_u128..100_000,
        ) {
            let service = RateLatency::new(rate, latency_us * 1_000_000_000);
            let bound = delay(&arrival, &service).unwrap();
            let mut longest = 0;
            for unit in 1_u128..600 {
                let earliest = |bucket: LeakyBucket| {
                    mul_div_up(unit.saturating_sub(bucket.burst), SECOND, bucket.rate).unwrap()
                };
                let arrived = earliest(arrival.short()).max(earliest(arrival.long()));
                let served = service.latency_fs + mul_div_up(unit, SECOND, rate).unwrap();
                longest = longest.max(served.saturating_sub(arrived));
            }
            prop_assert!(longest <= bound, "{} above {}", longest, bound);
            // At the crossover a part of a unit may have arrived.
            let slack = SECOND / rate + 2;
            prop_assert!(bound <= longest + slack, "{} far above {}", bound, longest);
        }
    }
}
