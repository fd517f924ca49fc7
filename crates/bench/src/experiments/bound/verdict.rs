//! Delays against bounds.

/// How long a packet was under way, by when it was sent and when it was seen at the end, ns.
///
/// What was sent before the server began to stand still (`from_ns`) counts from then: the burst of all chains then is there at one
/// instant. First come, first served, nothing leaves later for that.
pub(super) fn delay_ns(sent_ns: u64, from_ns: u64, seen_ns: u64) -> u64 {
    seen_ns.saturating_sub(sent_ns.max(from_ns))
}

/// For how long the cores did something else than the packets' work while a turn lasted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Absence {
    /// How long the turn was, ns.
    pub(super) turn_ns: u64,
    /// The core that sends, and serves ports on the way to a worker, ns.
    pub(super) sending_ns: u64,
    /// The core that serves, ns.
    pub(super) serving_ns: u64,
}

impl Absence {
    /// What of it is beyond the times that the bound has each core stand still: by so much a packet may be late.
    pub(super) fn beyond_ns(&self, sending_stall_ns: u64, serving_stall_ns: u64) -> u64 {
        self.sending_ns.saturating_sub(sending_stall_ns)
            + self.serving_ns.saturating_sub(serving_stall_ns)
    }
}

/// What one chain showed in a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Every packet was within the bound.
    Within,
    /// One was above it, by no more than the cores were absent beyond their stalls.
    Excused,
    /// One was above it, and nothing was seen that would explain it.
    Unexplained,
}

pub(super) fn judge(worst_ns: u64, bound_ns: u64, beyond_ns: u64) -> Verdict {
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
    fn what_came_before_the_core_stood_still_counts_from_then() {
        assert_eq!(delay_ns(100, 500, 700), 200);
        assert_eq!(delay_ns(600, 500, 700), 100);
    }

    #[test]
    fn only_what_is_beyond_the_stalls_excuses() {
        let absence = Absence {
            turn_ns: 1_000_000,
            sending_ns: 30,
            serving_ns: 90,
        };
        assert_eq!(absence.beyond_ns(50, 40), 50);
        assert_eq!(absence.beyond_ns(10, 40), 70);
        assert_eq!(judge(100, 100, 0), Verdict::Within);
        assert_eq!(judge(150, 100, 50), Verdict::Excused);
        assert_eq!(judge(151, 100, 50), Verdict::Unexplained);
    }
}
