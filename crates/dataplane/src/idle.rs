//! The behaviour of a worker without packets: poll or sleep.

use std::time::Duration;

use myelin_spec::WorkerSpec;
use serde::{Deserialize, Serialize};

/// The behaviour of a worker without packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Idle {
    /// Polls all the time. This has the lowest latency, but occupies a core.
    Spin,
    /// Sleeps until a packet arrives. This saves the core, but each single packet costs a wake-up.
    Sleep,
    /// Polls for `spin` after the last packet, then sleeps.
    Adaptive {
        /// Duration from the first poll that finds no packet.
        spin: Duration,
    },
}

impl From<&WorkerSpec> for Idle {
    fn from(worker: &WorkerSpec) -> Self {
        match worker.idle {
            myelin_spec::Idle::Spin => Self::Spin,
            myelin_spec::Idle::Sleep => Self::Sleep,
            myelin_spec::Idle::Adaptive => Self::Adaptive {
                spin: Duration::from_nanos(worker.spin_ns),
            },
        }
    }
}

/// The next step of a worker that found no packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IdleStep {
    /// Poll again.
    Poll,
    /// Sleep until an event.
    Sleep,
}

/// Number of polls between two readings of the clock. A reading costs as much as several polls.
const POLLS_PER_READING: u32 = 16;
/// The value of `polls` after the spin time. From then on, the worker sleeps if it has no packet.
const SPIN_ENDED: u32 = u32::MAX;

/// Decides between polling and sleeping.
#[derive(Debug)]
pub(crate) struct IdlePolicy {
    idle: Idle,
    polls: u32,
    since_ns: u64,
}

impl IdlePolicy {
    pub(crate) fn new(idle: Idle) -> Self {
        Self {
            idle,
            polls: 0,
            since_ns: 0,
        }
    }

    /// Records that the worker had work.
    #[inline]
    pub(crate) fn record_work(&mut self) {
        self.polls = 0;
    }

    /// Returns the next step after a poll without work. `now_ns` reads the monotonic clock.
    #[inline]
    pub(crate) fn next_step(&mut self, now_ns: impl FnOnce() -> u64) -> IdleStep {
        match self.idle {
            Idle::Spin => IdleStep::Poll,
            Idle::Sleep => IdleStep::Sleep,
            Idle::Adaptive { .. } if self.polls == SPIN_ENDED => IdleStep::Sleep,
            Idle::Adaptive { spin } => {
                let polls = self.polls;
                self.polls = polls.wrapping_add(1).max(1);
                if polls == 0 {
                    self.since_ns = now_ns();
                } else if polls.is_multiple_of(POLLS_PER_READING)
                    && u128::from(now_ns().saturating_sub(self.since_ns)) >= spin.as_nanos()
                {
                    self.polls = SPIN_ENDED;
                    return IdleStep::Sleep;
                }
                IdleStep::Poll
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mode_spin_never_sleeps_and_mode_sleep_sleeps_at_once() {
        let mut spin = IdlePolicy::new(Idle::Spin);
        let mut sleep = IdlePolicy::new(Idle::Sleep);
        for _ in 0..1000 {
            assert_eq!(
                spin.next_step(|| unreachable!("no clock needed")),
                IdleStep::Poll
            );
            assert_eq!(
                sleep.next_step(|| unreachable!("no clock needed")),
                IdleStep::Sleep
            );
        }
    }

    #[test]
    fn adaptive_sleeps_after_the_spin_time_and_a_packet_restarts_the_time() {
        let spin = Duration::from_micros(1);
        let mut idle = IdlePolicy::new(Idle::Adaptive { spin });
        for start in [5_000, 90_000] {
            // Each poll takes 1 ns. The policy reads the clock every 16 polls.
            let slept_at =
                (start..start + 1_000_000).find(|&now| idle.next_step(|| now) == IdleStep::Sleep);
            assert_eq!(slept_at, Some(start + 1008));
            assert_eq!(
                idle.next_step(|| unreachable!("no clock needed")),
                IdleStep::Sleep,
                "until a packet arrives"
            );
            idle.record_work();
        }
    }

    #[test]
    fn the_chain_file_selects_the_idle_mode() {
        let spec = WorkerSpec {
            spin_ns: 7_000,
            ..WorkerSpec::default()
        };
        let spin = Duration::from_micros(7);
        assert_eq!(Idle::from(&spec), Idle::Adaptive { spin });
    }
}
