//! Compares delays with bounds.

/// Delay of a packet from its sending and arrival times, ns.
///
/// The delay of a packet sent before the stall (`from_ns`) counts from the stall's start: then the
/// burst of all chains is complete. Service is first come, first served, so the
/// earlier sending makes no packet leave later.
pub(super) fn delay_ns(sent_ns: u64, from_ns: u64, arrival_ns: u64) -> u64 {
    arrival_ns.saturating_sub(sent_ns.max(from_ns))
}

/// Time of a turn in which the cores did other work than packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Absence {
    /// Duration of the turn, ns.
    pub(super) turn_ns: u64,
    /// Absence of the core that sends, ns.
    pub(super) sending_ns: u64,
    /// Absence of the serving core, ns.
    pub(super) serving_ns: u64,
}

impl Absence {
    /// Absence beyond the stalls in the bound. A packet may be late by this time.
    pub(super) fn beyond_ns(&self, sending_stall_ns: u64, serving_stall_ns: u64) -> u64 {
        self.sending_ns.saturating_sub(sending_stall_ns)
            + self.serving_ns.saturating_sub(serving_stall_ns)
    }
}

/// Verdict of a chain in a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// All packets were within the bound.
    Within,
    /// A packet was above the bound, at most by the cores' absence beyond their stalls.
    Excused,
    /// A packet was above the bound by more than this absence.
    Unexplained,
}

pub(super) fn judge_delay(worst_ns: u64, bound_ns: u64, beyond_ns: u64) -> Verdict {
    if worst_ns <= bound_ns {
        Verdict::Within
    } else if worst_ns - bound_ns <= beyond_ns {
        Verdict::Excused
    } else {
        Verdict::Unexplained
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_count_from_the_start_of_the_stall() {
        assert_eq!(delay_ns(100, 500, 700), 200);
        assert_eq!(delay_ns(600, 500, 700), 100);
    }

    #[test]
    fn only_absence_beyond_the_stalls_is_an_excuse() {
        let absence = Absence {
            turn_ns: 1_000_000,
            sending_ns: 30,
            serving_ns: 90,
        };
        assert_eq!(absence.beyond_ns(50, 40), 50);
        assert_eq!(absence.beyond_ns(10, 40), 70);
        assert_eq!(judge_delay(100, 100, 0), Verdict::Within);
        assert_eq!(judge_delay(150, 100, 50), Verdict::Excused);
        assert_eq!(judge_delay(151, 100, 50), Verdict::Unexplained);
    }
}
