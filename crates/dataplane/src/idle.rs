//! What a worker does while no packet is there.

use std::time::Duration;

use myelin_spec::WorkerSpec;
use serde::{Deserialize, Serialize};

/// What a worker does while no packet is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Idle {
    /// Looks again and again: least latency, a whole core.
    Spin,
    /// Sleeps until a packet wakes it: no core, but a wake-up per packet that comes alone.
    Sleep,
    /// Looks again for this long after the last packet, then sleeps.
    Adaptive {
        /// How long, counted from the first time it finds nothing.
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

/// The next step of a worker that found nothing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Look again.
    Look,
    /// Sleep until something happens.
    Sleep,
}

/// Looks between two readings of the clock, which costs as much as several looks.
const LOOKS_PER_READING: u32 = 16;
/// In place of a number of looks: its time is over, and it sleeps whenever it finds nothing.
const SLEEPY: u32 = u32::MAX;

/// How the time since the last packet is spent.
#[derive(Debug)]
pub(crate) struct IdleClock {
    idle: Idle,
    looks: u32,
    since_ns: u64,
}

impl IdleClock {
    pub(crate) fn new(idle: Idle) -> Self {
        Self {
            idle,
            looks: 0,
            since_ns: 0,
        }
    }

    /// There was something to do.
    #[inline]
    pub(crate) fn busy(&mut self) {
        self.looks = 0;
    }

    /// There was nothing to do; `now_ns` reads the monotonic clock.
    #[inline]
    pub(crate) fn nothing(&mut self, now_ns: impl FnOnce() -> u64) -> Step {
        match self.idle {
            Idle::Spin => Step::Look,
            Idle::Sleep => Step::Sleep,
            Idle::Adaptive { .. } if self.looks == SLEEPY => Step::Sleep,
            Idle::Adaptive { spin } => {
                let looks = self.looks;
                self.looks = looks.wrapping_add(1).max(1);
                if looks == 0 {
                    self.since_ns = now_ns();
                } else if looks.is_multiple_of(LOOKS_PER_READING)
                    && u128::from(now_ns().saturating_sub(self.since_ns)) >= spin.as_nanos()
                {
                    self.looks = SLEEPY;
                    return Step::Sleep;
                }
                Step::Look
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spin_never_sleeps_and_sleep_never_looks_twice() {
        let mut spin = IdleClock::new(Idle::Spin);
        let mut sleep = IdleClock::new(Idle::Sleep);
        for _ in 0..1000 {
            assert_eq!(spin.nothing(|| unreachable!("no clock needed")), Step::Look);
            assert_eq!(
                sleep.nothing(|| unreachable!("no clock needed")),
                Step::Sleep
            );
        }
    }

    #[test]
    fn adaptive_sleeps_after_its_time_and_a_packet_starts_it_anew() {
        let spin = Duration::from_micros(1);
        let mut idle = IdleClock::new(Idle::Adaptive { spin });
        for start in [5_000, 90_000] {
            // One nanosecond a look: the clock is looked at every 16 looks.
            let slept_at =
                (start..start + 1_000_000).find(|&now| idle.nothing(|| now) == Step::Sleep);
            assert_eq!(slept_at, Some(start + 1008));
            assert_eq!(
                idle.nothing(|| unreachable!("no clock needed")),
                Step::Sleep,
                "until a packet comes"
            );
            idle.busy();
        }
    }

    #[test]
    fn the_chain_file_chooses() {
        let spec = WorkerSpec {
            spin_ns: 7_000,
            ..WorkerSpec::default()
        };
        let spin = Duration::from_micros(7);
        assert_eq!(Idle::from(&spec), Idle::Adaptive { spin });
    }
}
