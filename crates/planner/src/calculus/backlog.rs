//! The backlog bound.

use super::{ArrivalCurve, RateLatency};

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
    let (bend_fs, come) = arrival.bend()?;
    let at_bend = come.saturating_sub(service.at(bend_fs)?);
    Some(at_latency.max(at_bend))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::arrival::tests::bent;
    use super::*;
    use crate::calculus::{LeakyBucket, SECOND};

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
            arrival in bent(), rate in 20_u128..500, latency_ms in 0_u128..400,
        ) {
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
