//! The cost of a packet in a lane, learned from batches.

/// Cost of a packet before the first batch is timed, ps.
pub(super) const FIRST_COST_PS: u64 = 100_000;
/// A new cost counts a sixteenth.
const COST_SHIFT: u32 = 4;
/// A new cost counts at most as this multiple of the known one: if the kernel interrupts a batch,
/// the time of the other program is no cost of the packets.
const MOST_COST: u64 = 4;

/// The cost of a packet in a table, ps.
pub(super) fn known_cost_ps(recorded_ps: u64) -> u64 {
    match recorded_ps {
        0 => FIRST_COST_PS,
        recorded_ps => recorded_ps,
    }
}

/// The cost of a packet after a batch whose packets took `seen_ps` each.
pub(super) fn next_cost_ps(known_ps: u64, seen_ps: u64) -> u64 {
    let seen_ps = seen_ps.min(known_ps.saturating_mul(MOST_COST));
    // Rounded up, so that a small cost can grow.
    let seen_ps = seen_ps.div_ceil(1 << COST_SHIFT);
    (known_ps - (known_ps >> COST_SHIFT)).saturating_add(seen_ps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_follows_its_batches_and_no_single_interruption() {
        let learn = |first_ps, seen_ps, batches: u32| {
            (0..batches).fold(first_ps, |known_ps, _| next_cost_ps(known_ps, seen_ps))
        };
        for seen_ps in [1000, 60_000, 10_000_000] {
            let learned_ps = learn(FIRST_COST_PS, seen_ps, 200);
            assert!(learned_ps.abs_diff(seen_ps) <= seen_ps / 10, "{learned_ps}");
        }
        // A batch of 64 packets that another program interrupts for 4 ms.
        let interrupted_ps = learn(60_000, 4_000_000_000 / 64, 1);
        assert!(
            (60_000..75_000).contains(&interrupted_ps),
            "{interrupted_ps}"
        );
        assert!(learn(0, 0, 3) < 2 && learn(0, u64::MAX, 3) < 100);
        assert!(learn(u64::MAX, u64::MAX, 3) > u64::MAX / 2);
    }
}
