//! Decides when the worker leaves its CPU because senders wait for it.
//!
//! The worker has a real-time priority, and the kernel never balances such a thread against normal
//! ones. On the CPU of a busy sender the sender runs only while the worker sleeps, so nearly all
//! packets arrive in these sleeps. From senders on other CPUs most packets arrive while a busy
//! worker is awake.

/// Length of a window, ns.
const WINDOW_NS: u64 = 20_000_000;
/// Time without a move after all CPUs were tried, ns.
const PAUSE_NS: u64 = 1_000_000_000;
/// Fewest packets of a window that says something.
const LEAST_PACKETS: u64 = 128;

/// Packets that arrived, and how many of them while the worker slept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Arrivals {
    pub(super) all: u64,
    pub(super) asleep: u64,
}

/// The sleeps and arrivals of the present window.
#[derive(Debug)]
pub(super) struct Placement {
    from_ns: u64,
    slept_ns: u64,
    arrivals: Arrivals,
    /// Moves since the worker last was on a CPU without waiting senders.
    moves: usize,
    paused_until_ns: u64,
}

impl Placement {
    pub(super) fn new(now_ns: u64) -> Self {
        Self {
            from_ns: now_ns,
            slept_ns: 0,
            arrivals: Arrivals::default(),
            moves: 0,
            paused_until_ns: 0,
        }
    }

    /// Records a sleep and the arrivals since the previous one. Returns whether the worker should
    /// move to another CPU.
    pub(super) fn record_sleep(
        &mut self,
        [from_ns, to_ns]: [u64; 2],
        Arrivals { all, asleep }: Arrivals,
    ) -> bool {
        self.slept_ns += to_ns - from_ns;
        self.arrivals.all += all;
        self.arrivals.asleep += asleep;
        let length_ns = to_ns - self.from_ns;
        if length_ns < WINDOW_NS {
            return false;
        }
        let Arrivals { all, asleep } = std::mem::take(&mut self.arrivals);
        let slept_ns = std::mem::take(&mut self.slept_ns);
        self.from_ns = to_ns;
        let is_busy = slept_ns * 2 < length_ns && all >= LEAST_PACKETS;
        let has_waiting_senders = is_busy && asleep * 10 >= all * 8;
        if is_busy && !has_waiting_senders {
            self.moves = 0;
        }
        has_waiting_senders && to_ns >= self.paused_until_ns
    }

    /// Records a move at `now_ns` to another one of `cpus` CPUs.
    pub(super) fn record_move(&mut self, now_ns: u64, cpus: usize) {
        self.moves += 1;
        if self.moves + 1 >= cpus {
            self.moves = 0;
            self.paused_until_ns = now_ns + PAUSE_NS;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLEEP_NS: u64 = 100_000;
    const NO_MOVES: [u64; 0] = [];

    /// Runs turns of 1 ms for 100 ms. `asleep` of 10 packets of a turn arrive in a sleep. Returns
    /// the times of the moves, ms.
    fn run(placement: &mut Placement, start_ns: u64, asleep: u64, cpus: usize) -> Vec<u64> {
        let mut moves = Vec::new();
        for turn in 1..=100 {
            let to_ns = start_ns + turn * 1_000_000;
            let arrivals = Arrivals { all: 10, asleep };
            if placement.record_sleep([to_ns - SLEEP_NS, to_ns], arrivals) {
                moves.push(turn);
                placement.record_move(to_ns, cpus);
            }
        }
        moves
    }

    #[test]
    fn a_busy_worker_moves_from_the_cpu_of_its_senders_to_each_other_one() {
        let mut placement = Placement::new(0);
        assert_eq!(run(&mut placement, 0, 7, 4), NO_MOVES);
        assert_eq!(run(&mut placement, 100_000_000, 8, 4), [20, 40, 60]);
        assert_eq!(run(&mut placement, 200_000_000, 10, 4), NO_MOVES, "a pause");
        // The first turn ends the window of the time between.
        assert_eq!(run(&mut placement, 1_300_000_000, 10, 2), [21]);
    }

    #[test]
    fn a_worker_that_finds_a_better_cpu_may_visit_all_others_later() {
        let mut placement = Placement::new(0);
        assert_eq!(run(&mut placement, 0, 10, 8).len(), 5);
        assert_eq!(run(&mut placement, 100_000_000, 1, 8), NO_MOVES);
        assert_eq!(run(&mut placement, 200_000_000, 10, 8).len(), 5);
    }

    #[test]
    fn a_worker_with_time_to_sleep_stays() {
        let mut placement = Placement::new(0);
        for turn in 1..=100 {
            let to_ns = turn * 1_000_000;
            let arrivals = Arrivals {
                all: 10,
                asleep: 10,
            };
            assert!(!placement.record_sleep([to_ns - 600_000, to_ns], arrivals));
        }
    }

    #[test]
    fn few_packets_say_nothing() {
        let mut placement = Placement::new(0);
        let arrivals = Arrivals { all: 5, asleep: 5 };
        for turn in 1..=100 {
            let to_ns = turn * 1_000_000;
            assert!(!placement.record_sleep([to_ns - SLEEP_NS, to_ns], arrivals));
        }
    }
}
