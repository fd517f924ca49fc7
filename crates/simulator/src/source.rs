//! Sources of packets.

use crate::ring::Run;

/// Latest time of a simulation, ns: half of the picoseconds that a word counts.
pub(crate) const LAST_NS: u64 = u64::MAX / 2000;

/// A source: the packets of one chain, and the ring that they enter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Source {
    /// The chain's first ring.
    pub ring: usize,
    /// Packets a second while the source sends.
    pub rate_pps: f64,
    /// When the packets come.
    pub pattern: Pattern,
    /// The chain's delay budget, ns; `None` without one.
    pub budget_ns: Option<u64>,
}

/// The distances of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// Equal distances.
    Even,
    /// Exponential distances.
    Poisson,
    /// Equal distances while the source sends, and no packet while it does not.
    OnOff {
        /// Time with packets, ns.
        on_ns: u64,
        /// Time without, ns.
        off_ns: u64,
    },
}

/// A source and the time of its next packet.
#[derive(Debug, Clone)]
pub(crate) struct RunningSource {
    pub(crate) source: Source,
    gap_ps: u64,
    pub(crate) next_ps: u64,
    random: fastrand::Rng,
}

impl RunningSource {
    pub(crate) fn new(source: Source, seed: u64) -> Self {
        let gap_ps = (1e12 / source.rate_pps.max(1e-3)).max(1.0) as u64;
        let mut random = fastrand::Rng::with_seed(seed);
        // Sources do not start together.
        let next_ps = source.pattern.skip_pause_ps(random.u64(0..gap_ps));
        Self {
            source,
            gap_ps,
            next_ps,
            random,
        }
    }

    /// Time of the next packet, ns, rounded up.
    pub(crate) fn next_ns(&self) -> u64 {
        self.next_ps.div_ceil(1000)
    }

    /// The most packets that may come until `end_ns`.
    pub(crate) fn most_until(&self, end_ns: u64) -> u64 {
        if self.source.pattern == Pattern::Poisson {
            return u64::MAX;
        }
        let end_ps = end_ns.saturating_mul(1000);
        end_ps.saturating_sub(self.next_ps) / self.gap_ps + 1
    }

    /// Emits the packets until `until_ps`.
    #[inline]
    pub(crate) fn emit(&mut self, chain: usize, until_ps: u64, mut push: impl FnMut(Run)) {
        while self.next_ps <= until_ps {
            let until_ps = until_ps.min(self.phase_end_ps() - 1);
            let packets = match self.source.pattern {
                Pattern::Poisson => 1,
                _ => (until_ps - self.next_ps) / self.gap_ps + 1,
            };
            let packets = u32::try_from(packets).unwrap_or(u32::MAX);
            push(Run {
                chain,
                packets,
                first_ps: self.next_ps,
                gap_ps: self.gap_ps,
                ready_ns: self.next_ns(),
            });
            let gap_ps = match self.source.pattern {
                Pattern::Poisson => {
                    // The logarithm of a number in (0, 1].
                    let distance = -(1.0 - self.random.f64()).ln();
                    (distance * self.gap_ps as f64) as u64
                }
                _ => self.gap_ps * u64::from(packets),
            };
            let next_ps = self.next_ps.saturating_add(gap_ps);
            self.next_ps = self.source.pattern.skip_pause_ps(next_ps);
        }
    }

    /// The end of the phase that has the next packet, ps.
    #[inline]
    fn phase_end_ps(&self) -> u64 {
        self.source.pattern.period_at(self.next_ps).on_end_ps
    }
}

/// A time with packets, and the pause behind it.
struct Period {
    on_end_ps: u64,
    end_ps: u64,
}

impl Pattern {
    fn period_at(self, at_ps: u64) -> Period {
        let Self::OnOff { on_ns, off_ns } = self else {
            return Period {
                on_end_ps: u64::MAX,
                end_ps: u64::MAX,
            };
        };
        let [on_ps, off_ps] = [on_ns.max(1), off_ns].map(|ns| ns.min(LAST_NS) * 1000);
        let start_ps = at_ps / (on_ps + off_ps) * (on_ps + off_ps);
        let on_end_ps = start_ps.saturating_add(on_ps);
        Period {
            on_end_ps,
            end_ps: on_end_ps.saturating_add(off_ps),
        }
    }

    /// The first time from `at_ps` on that is in no pause, ps.
    #[inline]
    fn skip_pause_ps(self, at_ps: u64) -> u64 {
        let period = self.period_at(at_ps);
        if at_ps < period.on_end_ps {
            at_ps
        } else {
            period.end_ps
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offered(pattern: Pattern, rate_pps: f64, until_ns: u64, step_ns: u64) -> u64 {
        let source = Source {
            ring: 0,
            rate_pps,
            pattern,
            budget_ns: None,
        };
        let mut running = RunningSource::new(source, 7);
        let mut offered = 0;
        let mut last_ps = 0;
        for now_ns in (0..=until_ns).step_by(step_ns as usize) {
            running.emit(0, now_ns * 1000, |run| {
                offered += u64::from(run.packets);
                let end_ps = run.first_ps + run.gap_ps * u64::from(run.packets - 1);
                assert!(
                    run.first_ps >= last_ps && end_ps <= now_ns * 1000,
                    "{run:?} at {now_ns}"
                );
                last_ps = end_ps;
            });
        }
        offered
    }

    #[test]
    fn the_rate_does_not_depend_on_the_steps() {
        for step_ns in [100, 8_000, 1_000_000] {
            let offered = offered(Pattern::Even, 1e6, 10_000_000, step_ns);
            assert!((9_999..=10_001).contains(&offered), "{offered}");
        }
    }

    #[test]
    fn poisson_distances_have_the_mean_of_the_rate() {
        let offered = offered(Pattern::Poisson, 1e6, 100_000_000, 50_000);
        // The standard deviation is 316.
        assert!((98_400..=101_600).contains(&offered), "{offered}");
    }

    #[test]
    fn an_on_off_source_pauses() {
        let pattern = Pattern::OnOff {
            on_ns: 1_000_000,
            off_ns: 3_000_000,
        };
        let offered = offered(pattern, 1e6, 40_000_000 - 1, 10_000);
        assert!((9_980..=10_020).contains(&offered), "{offered}");
    }

    #[test]
    fn a_source_that_is_slower_than_its_phases_sends_nothing_in_pauses() {
        let pattern = Pattern::OnOff {
            on_ns: 1000,
            off_ns: 2000,
        };
        for seed in 0..100 {
            let source = Source {
                ring: 0,
                rate_pps: 1e5,
                pattern,
                budget_ns: None,
            };
            let mut running = RunningSource::new(source, seed);
            let mut stamps_ps = Vec::new();
            running.emit(0, 300_000_000, |run| {
                assert_eq!(run.packets, 1);
                stamps_ps.push(run.first_ps);
            });
            // One packet each 10 us. A pause moves it by at most 2 us.
            assert!((24..=30).contains(&stamps_ps.len()), "{stamps_ps:?}");
            for stamp_ps in stamps_ps {
                assert!(stamp_ps % 3_000_000 < 1_000_000, "{stamp_ps}");
            }
        }
    }

    #[test]
    fn extreme_sources_end() {
        let patterns = [
            Pattern::Even,
            Pattern::Poisson,
            Pattern::OnOff {
                on_ns: 0,
                off_ns: 0,
            },
            Pattern::OnOff {
                on_ns: u64::MAX,
                off_ns: u64::MAX,
            },
        ];
        for (pattern, rate_pps) in patterns.into_iter().zip([0.0, -1.0, f64::NAN, 1e-9]) {
            let source = Source {
                ring: 0,
                rate_pps,
                pattern,
                budget_ns: None,
            };
            let mut running = RunningSource::new(source, 7);
            running.emit(0, LAST_NS * 1000, |run| assert!(run.packets > 0));
            assert!(running.next_ps > LAST_NS * 1000);
        }
    }
}
