//! Round robin with quanta.

use super::RateLatency;
use super::rounding::mul_div_up;

/// What round robin (`SCHED_RR`) leaves to one of several: of each round of all quanta its own, after those of all others
/// (LBT section 1.3.1 for the stair, Parekh and Gallager 1993 for sharing by weights). `others_fs` is the time that the others have in a
/// round, with what switching costs; a quantum that is not used up makes the round shorter. `None`: it has no quantum.
pub fn round_robin(
    service: &RateLatency,
    quantum_fs: u128,
    others_fs: u128,
) -> Option<RateLatency> {
    let round_fs = quantum_fs.checked_add(others_fs)?;
    // Rounded down, since it is a rate that is given.
    let rate = service
        .rate
        .checked_mul(quantum_fs)?
        .checked_div(round_fs)
        .filter(|rate| *rate > 0)?;
    // The core may stand still during this one's quanta, which count as used up.
    let still_fs = mul_div_up(service.latency_fs, round_fs, quantum_fs)?;
    Some(RateLatency::new(rate, still_fs.checked_add(others_fs)?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::calculus::SECOND;

    #[test]
    fn a_turn_comes_after_all_others() {
        let share =
            round_robin(&RateLatency::new(100, SECOND), SECOND / 4, 3 * SECOND / 4).unwrap();
        assert_eq!(share, RateLatency::new(25, 4 * SECOND + 3 * SECOND / 4));
        assert_eq!(round_robin(&RateLatency::new(100, 0), 0, SECOND), None);
        assert_eq!(round_robin(&RateLatency::new(100, 0), 0, 0), None);
    }

    proptest! {
        /// The stair of a server whose others always use their quanta up is never below the curve, and touches it.
        #[test]
        fn the_stair_is_above_the_curve_and_meets_it(quantum_ms in 1_u128..50, others_ms in 0_u128..200) {
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
            prop_assert!(nearest <= ms, "{} fs apart", nearest);
        }
    }
}
