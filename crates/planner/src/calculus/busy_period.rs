//! Whatever the order.

use super::rounding::mul_div_up;
use super::{ArrivalCurve, LeakyBucket, RateLatency, SECOND};

/// The longest time that a server works without a pause, fs: no packet stays longer, in whatever order it is served, and however often it
/// comes back to the same server, when its work is that of all its visits (LBT section 1.3.2, strict service curves). The server must
/// not do anything else while work waits. `None`: it may work for ever.
///
/// `again` is what of `arrival` is held back by something else and comes a second time: of each packet the time that it is held back
/// must be in `arrival` as a delay. What comes again within a time without a pause may have come a first time before it, but no longer
/// before than the packet was held back and a time without a pause; so that is added as one more delay. It holds for the first
/// such time, before which nothing was held back, and with each for the next.
pub fn busy_period(
    arrival: &ArrivalCurve,
    again: &ArrivalCurve,
    service: &RateLatency,
) -> Option<u128> {
    let until_met = |bucket: LeakyBucket, again: LeakyBucket| {
        let rate = bucket.rate.checked_add(again.rate)?;
        let spare = service.rate.checked_sub(rate).filter(|rate| *rate > 0)?;
        let burst_fs = mul_div_up(bucket.burst, SECOND, spare)?;
        let latency_fs = mul_div_up(service.latency_fs, service.rate, spare)?;
        burst_fs.checked_add(latency_fs)
    };
    let (short, long) = (
        until_met(arrival.short(), again.short()),
        until_met(arrival.long(), again.long()),
    );
    short.into_iter().chain(long).min()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::calculus::after_delay;

    const NOTHING: ArrivalCurve = ArrivalCurve::of(LeakyBucket::new(0, 0));

    #[test]
    fn what_comes_again_takes_its_rate_once_more() {
        let bucket = |burst, rate| ArrivalCurve::of(LeakyBucket::new(burst, rate));
        let service = RateLatency::new(10, SECOND);
        let (arrival, again) = (bucket(30, 2), bucket(7, 3));
        assert_eq!(busy_period(&arrival, &NOTHING, &service), Some(5 * SECOND));
        assert_eq!(busy_period(&arrival, &again, &service), Some(8 * SECOND));
        assert_eq!(busy_period(&arrival, &bucket(0, 8), &service), None);
    }

    proptest! {
        /// When the curves meet all that came has been done, and not before.
        #[test]
        fn it_ends_where_the_curves_meet(burst in 0_u128..1000, rate in 0_u128..99, latency_ms in 0_u128..500) {
            let arrival = ArrivalCurve::of(LeakyBucket::new(burst, rate));
            let service = RateLatency::new(100, latency_ms * (SECOND / 1000));
            let end = busy_period(&arrival, &NOTHING, &service).unwrap();
            let margin = SECOND / 10;
            prop_assert!(service.at(end + margin).unwrap() + 2 >= arrival.at(end + margin).unwrap());
            if end > margin && burst > 10 {
                prop_assert!(service.at(end - margin).unwrap() <= arrival.at(end - margin).unwrap());
            }
            prop_assert_eq!(busy_period(&arrival, &NOTHING, &RateLatency::new(rate, 0)), None);
        }

        /// Units that come by a leaky bucket, are worked on, held back until a gate opens, and worked on again: none stays longer either time.
        #[test]
        fn what_comes_again_stays_no_longer(
            burst in 1_u128..30, rate in 1_u128..150, gate_ms in 1_u128..200, latency_ms in 0_u128..100, last: bool,
            pauses in prop::collection::vec(prop_oneof![3 => Just(0_u128), 1 => 0_u128..300], 80),
        ) {
            let ms = SECOND / 1000;
            // Each takes a millisecond each time.
            let sent = ArrivalCurve::of(LeakyBucket::new(2 * ms * burst, 2 * ms * rate));
            let arrival = after_delay(&sent, gate_ms * ms).unwrap();
            let service = RateLatency::core(latency_ms * ms);
            let bound = busy_period(&arrival, &sent, &service).unwrap();
            // When each comes to the server, and whether it was there before.
            let mut open: Vec<(u128, bool)> = Vec::new();
            for (index, pause_ms) in pauses.iter().enumerate() {
                let mut at = open.last().map_or(0, |(at, _)| *at) + pause_ms * ms;
                for (before, (came, _)) in open.iter().enumerate() {
                    let count = (index - before + 1) as u128;
                    at = at.max(came + (count.saturating_sub(burst) * SECOND).div_ceil(rate));
                }
                open.push((at, false));
            }
            let mut now = 0;
            while let Some(next) = open.iter().map(|(at, _)| *at).min() {
                if next > now {
                    now = next + latency_ms * ms;
                }
                // The first that came, or the last.
                let come = (0..open.len()).filter(|one| open[*one].0 <= now);
                let one = if last { come.max_by_key(|one| open[*one].0) } else { come.min_by_key(|one| open[*one].0) };
                let (at, was_here) = open.swap_remove(one.unwrap());
                now += ms;
                prop_assert!(now - at <= bound, "{} above {}", now - at, bound);
                if !was_here {
                    open.push(((now / (gate_ms * ms) + 1) * gate_ms * ms, true));
                }
            }
        }
    }
}
