//! Leftover service under round robin with quanta.

use super::RateLatency;
use super::rounding::mul_div_up;

/// Returns the leftover service under round robin (`SCHED_RR`): one quantum of each round, after
/// the quanta of all other processes (LBT section 1.3.1 for the staircase, Parekh and Gallager 1993
/// for sharing by weights). `others_fs` is the time of the other processes in a round, with context
/// switches. An unused quantum shortens the round. Returns `None` for the quantum 0.
pub fn round_robin(
    service: &RateLatency,
    quantum_fs: u128,
    others_fs: u128,
) -> Option<RateLatency> {
    let round_fs = quantum_fs.checked_add(others_fs)?;
    // Service rates are rounded down.
    let rate = service
        .rate
        .checked_mul(quantum_fs)?
        .checked_div(round_fs)
        .filter(|rate| *rate > 0)?;
    // A stall may consume this process's quanta.
    let stall_fs = mul_div_up(service.latency_fs, round_fs, quantum_fs)?;
    Some(RateLatency::new(rate, stall_fs.checked_add(others_fs)?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::calculus::SECOND;

    #[test]
    fn quantum_comes_after_all_others() {
        let share =
            round_robin(&RateLatency::new(100, SECOND), SECOND / 4, 3 * SECOND / 4).unwrap();
        assert_eq!(share, RateLatency::new(25, 4 * SECOND + 3 * SECOND / 4));
        assert_eq!(round_robin(&RateLatency::new(100, 0), 0, SECOND), None);
        assert_eq!(round_robin(&RateLatency::new(100, 0), 0, 0), None);
    }

    proptest! {
        /// The other processes use all their quanta.
        #[test]
        fn staircase_is_above_the_curve_and_touches_it(quantum_ms in 1_u128..50, others_ms in 0_u128..200) {
            let ms = SECOND / 1000;
            let share = round_robin(&RateLatency::core(0), quantum_ms * ms, others_ms * ms).unwrap();
            let round = quantum_ms + others_ms;
            let mut nearest = u128::MAX;
            for time_ms in 0..4 * round {
                let into = time_ms % round;
                let done = (time_ms / round * quantum_ms + into.saturating_sub(others_ms)) * ms;
                let promised = share.at(time_ms * ms).unwrap();
                prop_assert!(promised <= done, "at {} ms: {} promised, {} done", time_ms, promised, done);
                if time_ms > others_ms {
                    nearest = nearest.min(done - promised);
                }
            }
            prop_assert!(nearest <= ms, "{} fs above the curve", nearest);
        }
    }
}
