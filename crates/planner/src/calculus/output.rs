//! The burstiness of a server's output.

use super::rounding::mul_div_up;
use super::{ArrivalCurve, LeakyBucket, SECOND};

/// Returns the arrival curve after each packet had a delay of 0 to `delay_fs`, which is
/// `arrival(t + delay)`. Rathore et al. 2022, section 5.1, describe this clustering.
pub fn after_delay(arrival: &ArrivalCurve, delay_fs: u128) -> Option<ArrivalCurve> {
    arrival.map(|bucket| {
        let clustered = mul_div_up(bucket.rate, delay_fs, SECOND)?;
        Some(LeakyBucket::new(
            bucket.burst.checked_add(clustered)?,
            bucket.rate,
        ))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::calculus::RateLatency;

    proptest! {
        /// Units conform to a leaky bucket. The server serves them within its service curve.
        #[test]
        fn departures_conform_to_the_output_curve(
            burst in 1_u128..20, arrival_rate in 1_u128..50, faster in 0_u128..50, latency_ms in 0_u128..2000,
            pauses in prop::collection::vec(0_u128..100, 80),
        ) {
            let arrival = ArrivalCurve::of(LeakyBucket::new(burst, arrival_rate));
            let service = RateLatency::new(arrival_rate + faster, latency_ms * (SECOND / 1000));
            let out = after_delay(&arrival, service.latency_fs).unwrap();
            let (mut finish, mut sent) = (0_u128, Vec::new());
            let mut arrivals: Vec<u128> = Vec::new();
            let mut departures: Vec<u128> = Vec::new();
            for pause_ms in pauses {
                // The unit arrives after the pause, but not before the bucket allows.
                let mut at = arrivals.last().copied().unwrap_or(0) + pause_ms * (SECOND / 1000);
                if arrivals.len() >= burst as usize {
                    for (index, before) in arrivals.iter().enumerate() {
                        let count = (arrivals.len() - index + 1) as u128;
                        at = at.max(before + mul_div_up(count.saturating_sub(burst), SECOND, arrival_rate).unwrap());
                    }
                }
                arrivals.push(at);
                finish = finish.max(at) + SECOND.div_ceil(service.rate);
                // Some units leave as late as the curve allows, others at once.
                let late = if sent.len() % 7 < 5 { service.latency_fs } else { 0 };
                let left = departures.last().copied().unwrap_or(0).max(finish + late);
                departures.push(left);
                sent.push(left);
            }
            for (first, from) in departures.iter().enumerate() {
                for (last, to) in departures.iter().enumerate().skip(first) {
                    let count = (last - first + 1) as u128;
                    // A unit counts when its service ends.
                    prop_assert!(count <= out.at(to - from).unwrap() + 1);
                }
            }
        }
    }
}
