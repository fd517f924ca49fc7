//! The backlog bound.

use super::rounding::mul_div_down;
use super::{ArrivalCurve, RateLatency, SECOND};

/// The most that ever waits or is in service: the vertical deviation of the two curves (LBT theorem 1.4.1). What a queue must
/// hold so that nothing is lost. `None`: it grows without end.
pub fn backlog(arrival: &ArrivalCurve, service: &RateLatency) -> Option<u128> {
    let (short, long) = (arrival.short(), arrival.long());
    if long.rate > service.rate {
        return None;
    }
    let at_latency = arrival.at(service.latency_fs)?;
    if short.rate <= service.rate || short == long {
        return Some(at_latency);
    }
    // The arrivals are faster up to the bend of their curve; the femtosecond before is for the service, that after for them.
    let bend_fs = mul_div_down(
        long.burst.checked_sub(short.burst)?,
        SECOND,
        short.rate.checked_sub(long.rate)?,
    )?;
    let at_bend = short
        .at(bend_fs.checked_add(1)?)?
        .saturating_sub(service.at(bend_fs)?);
    Some(at_latency.max(at_bend))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::calculus::LeakyBucket;

    #[test]
    fn what_comes_during_the_latency_waits() {
        let arrival = ArrivalCurve::of(LeakyBucket::new(30, 10));
        assert_eq!(
            backlog(&arrival, &RateLatency::new(10, 2 * SECOND)),
            Some(50)
        );
        assert_eq!(backlog(&arrival, &RateLatency::new(9, 0)), None);
    }

    proptest! {
        #[test]
        fn no_more_waits_at_any_time_and_once_almost_as_much(
            short_burst in 1_u128..40, more in 0_u128..200, short_rate in 20_u128..1000,
            long_rate in 1_u128..20, rate in 20_u128..500, latency_ms in 0_u128..400,
        ) {
            let arrival = ArrivalCurve::least_of([
                LeakyBucket::new(short_burst, short_rate),
                LeakyBucket::new(short_burst + more, long_rate),
            ]).unwrap();
            let ms = SECOND / 1000;
            let service = RateLatency::new(rate, latency_ms * ms);
            let bound = backlog(&arrival, &service).unwrap();
            let waiting = |time_ms: u128| {
                let (come, done) = (arrival.at(time_ms * ms), service.at(time_ms * ms));
                come.unwrap().saturating_sub(done.unwrap())
            };
            let most = (0..20_000).map(waiting).max().unwrap();
            // What has come and what is done are whole units here, each up to one off.
            prop_assert!(most <= bound + 2, "{} above {}", most, bound);
            prop_assert!(bound <= most + 3, "{} far above {}", bound, most);
        }
    }
}
