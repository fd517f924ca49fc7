//! Whatever the order.

use super::rounding::mul_div_up;
use super::{ArrivalCurve, RateLatency, SECOND};

/// The longest time that a server works without a pause, fs: no packet stays longer, in whatever order it is served, and however often it
/// comes back to the same server, when its work is that of all its visits (LBT section 1.3.2, strict service curves). The server must
/// not do anything else while work waits. `None`: it may work for ever.
pub fn busy_period(arrival: &ArrivalCurve, service: &RateLatency) -> Option<u128> {
    let until_met = |burst: u128, rate: u128| {
        let spare = service.rate.checked_sub(rate).filter(|rate| *rate > 0)?;
        let burst_fs = mul_div_up(burst, SECOND, spare)?;
        let latency_fs = mul_div_up(service.latency_fs, service.rate, spare)?;
        burst_fs.checked_add(latency_fs)
    };
    let (short, long) = (arrival.short(), arrival.long());
    match (
        until_met(short.burst, short.rate),
        until_met(long.burst, long.rate),
    ) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::calculus::LeakyBucket;

    proptest! {
        /// When the curves meet all that came has been done, and not before.
        #[test]
        fn it_ends_where_the_curves_meet(burst in 0_u128..1000, rate in 0_u128..99, latency_ms in 0_u128..500) {
            let arrival = ArrivalCurve::of(LeakyBucket::new(burst, rate));
            let service = RateLatency::new(100, latency_ms * (SECOND / 1000));
            let end = busy_period(&arrival, &service).unwrap();
            let margin = SECOND / 10;
            prop_assert!(service.at(end + margin).unwrap() + 2 >= arrival.at(end + margin).unwrap());
            if end > margin && burst > 10 {
                prop_assert!(service.at(end - margin).unwrap() <= arrival.at(end - margin).unwrap());
            }
            prop_assert_eq!(busy_period(&arrival, &RateLatency::new(rate, 0)), None);
        }
    }
}
