//! The bound for any order of service.

use super::rounding::mul_div_up;
use super::{ArrivalCurve, LeakyBucket, RateLatency, SECOND};

/// Returns the longest busy period of a server, fs, which is the longest stay of a packet in any
/// order of service; `None` if there is no bound.
///
/// `arrival` counts each packet with the work of all its passages, and includes hold times as a
/// delay. `returning` is the part of the arrivals that functions hold back, counted for each
/// return. Proof: `docs/guarantees/proofs.md`, theorem 4.
pub fn busy_period(
    arrival: &ArrivalCurve,
    returning: &ArrivalCurve,
    service: &RateLatency,
) -> Option<u128> {
    let busy_fs = |bucket: LeakyBucket, returning: LeakyBucket| {
        let rate = bucket.rate.checked_add(returning.rate)?;
        let spare = service.rate.checked_sub(rate).filter(|rate| *rate > 0)?;
        let burst_fs = mul_div_up(bucket.burst, SECOND, spare)?;
        let latency_fs = mul_div_up(service.latency_fs, service.rate, spare)?;
        burst_fs.checked_add(latency_fs)
    };
    let (short, long) = (
        busy_fs(arrival.short(), returning.short()),
        busy_fs(arrival.long(), returning.long()),
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
    fn returning_work_counts_its_rate_once_more() {
        let bucket = |burst, rate| ArrivalCurve::of(LeakyBucket::new(burst, rate));
        let service = RateLatency::new(10, SECOND);
        let (arrival, returning) = (bucket(30, 2), bucket(7, 3));
        assert_eq!(busy_period(&arrival, &NOTHING, &service), Some(5 * SECOND));
        assert_eq!(
            busy_period(&arrival, &returning, &service),
            Some(8 * SECOND)
        );
        assert_eq!(busy_period(&arrival, &bucket(0, 8), &service), None);
    }

    proptest! {
        /// At the bound, the arrival curve and the service curve are equal.
        #[test]
        fn busy_period_ends_where_the_curves_meet(burst in 0_u128..1000, rate in 0_u128..99, latency_ms in 0_u128..500) {
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

        /// Packets conform to a leaky bucket. The server serves each packet, a gate holds the
        /// packet until the gate opens, and the server serves the packet again.
        #[test]
        fn no_stay_of_a_returning_packet_exceeds_the_bound(
            burst in 1_u128..30, rate in 1_u128..150, gate_ms in 1_u128..200, latency_ms in 0_u128..100, last: bool,
            pauses in prop::collection::vec(prop_oneof![3 => Just(0_u128), 1 => 0_u128..300], 80),
        ) {
            let ms = SECOND / 1000;
            // Each passage takes a millisecond.
            let sent = ArrivalCurve::of(LeakyBucket::new(2 * ms * burst, 2 * ms * rate));
            let arrival = after_delay(&sent, gate_ms * ms).unwrap();
            let service = RateLatency::core(latency_ms * ms);
            let bound = busy_period(&arrival, &sent, &service).unwrap();
            // Arrival time of each packet, and whether it is in its second passage.
            let mut open: Vec<(u128, bool)> = Vec::new();
            for (index, pause_ms) in pauses.iter().enumerate() {
                let mut at = open.last().map_or(0, |(at, _)| *at) + pause_ms * ms;
                for (before, (arrived, _)) in open.iter().enumerate() {
                    let count = (index - before + 1) as u128;
                    at = at.max(arrived + (count.saturating_sub(burst) * SECOND).div_ceil(rate));
                }
                open.push((at, false));
            }
            let mut now = 0;
            while let Some(next) = open.iter().map(|(at, _)| *at).min() {
                if next > now {
                    now = next + latency_ms * ms;
                }
                // Serves the first arrival, or the last.
                let arrived = (0..open.len()).filter(|index| open[*index].0 <= now);
                let chosen = if last { arrived.max_by_key(|index| open[*index].0) } else { arrived.min_by_key(|index| open[*index].0) };
                let (at, has_returned) = open.swap_remove(chosen.unwrap());
                now += ms;
                prop_assert!(now - at <= bound, "{} above {}", now - at, bound);
                if !has_returned {
                    open.push(((now / (gate_ms * ms) + 1) * gate_ms * ms, true));
                }
            }
        }
    }
}
