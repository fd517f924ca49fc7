//! First come, first served.

use super::rounding::mul_div_up;
use super::{ArrivalCurve, RateLatency, SECOND};

/// What first come, first served leaves to one of several (LBT proposition 6.2.1, after Cruz 1998, with the parameter that makes a
/// rate-latency curve of it): the rate that the others do not need, after the latency and all of their burst. `None`: they
/// need all.
///
/// For the delay at one server alone the delay of all together is tighter ([`delay`](super::delay()) of the sum); this is for
/// what comes behind.
pub fn fcfs(service: &RateLatency, others: &ArrivalCurve) -> Option<RateLatency> {
    let others = others.long();
    let rate = service
        .rate
        .checked_sub(others.rate)
        .filter(|rate| *rate > 0)?;
    let burst_fs = mul_div_up(others.burst, SECOND, service.rate)?;
    Some(RateLatency::new(
        rate,
        service.latency_fs.checked_add(burst_fs)?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calculus::{LeakyBucket, delay};

    #[test]
    fn the_others_go_first_and_keep_their_rate() {
        let others = ArrivalCurve::of(LeakyBucket::new(50, 4));
        let left = fcfs(&RateLatency::new(10, SECOND), &others).unwrap();
        assert_eq!(left, RateLatency::new(6, 6 * SECOND));
        assert_eq!(fcfs(&RateLatency::new(4, 0), &others), None);
    }

    #[test]
    fn at_one_server_all_together_wait_no_longer_than_one_of_what_is_left() {
        let service = RateLatency::new(10, SECOND);
        let (own, others) = (LeakyBucket::new(7, 2), LeakyBucket::new(50, 4));
        let (own, others) = (ArrivalCurve::of(own), ArrivalCurve::of(others));
        let together = delay(&own.plus(&others).unwrap(), &service);
        assert!(together <= delay(&own, &fcfs(&service, &others).unwrap()));
    }
}
