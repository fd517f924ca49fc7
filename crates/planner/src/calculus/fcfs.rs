//! Leftover service under first come, first served.

use super::rounding::mul_div_up;
use super::{ArrivalCurve, RateLatency, SECOND};

/// Returns the leftover service of one flow under first come, first served (LBT proposition 6.2.1,
/// after Cruz 1998, with the parameter that gives a rate-latency curve): the rate that other flows
/// leave, after the latency and their whole burst. Returns `None` if the other flows need the whole
/// rate.
///
/// At a single server the delay of the aggregate is tighter ([`delay`](super::delay()) of the sum).
/// This curve is for [`tandem`](super::tandem).
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
    fn other_flows_add_latency_and_reduce_the_rate() {
        let others = ArrivalCurve::of(LeakyBucket::new(50, 4));
        let left = fcfs(&RateLatency::new(10, SECOND), &others).unwrap();
        assert_eq!(left, RateLatency::new(6, 6 * SECOND));
        assert_eq!(fcfs(&RateLatency::new(4, 0), &others), None);
    }

    #[test]
    fn at_one_server_the_aggregate_delay_is_tighter() {
        let service = RateLatency::new(10, SECOND);
        let (own, others) = (LeakyBucket::new(7, 2), LeakyBucket::new(50, 4));
        let (own, others) = (ArrivalCurve::of(own), ArrivalCurve::of(others));
        let together = delay(&own.plus(&others).unwrap(), &service);
        assert!(together <= delay(&own, &fcfs(&service, &others).unwrap()));
    }
}
