//! Where a repeat's samples go once it is over: distributions, a coarse course over time, and every sample when asked for.

use myelin_metrics::{Distribution, Samples, TimelinePoint};

use crate::tracker::{Sample, Tracker};

/// Points of the course over time.
const TIMELINE_POINTS: u64 = 250;

#[derive(Debug)]
pub(crate) struct Recorder {
    pub(crate) rtt: Distribution,
    pub(crate) forward: Distribution,
    pub(crate) reply: Distribution,
    pub(crate) timeline: Vec<TimelinePoint>,
    pub(crate) samples: Option<Samples>,
    stretch: usize,
    started_ns: u64,
}

impl Recorder {
    /// For about `total` packets in all.
    pub(crate) fn new(total: u64, keep_samples: bool) -> Self {
        Self {
            rtt: Distribution::new(),
            forward: Distribution::new(),
            reply: Distribution::new(),
            timeline: Vec::new(),
            samples: keep_samples.then(Samples::default),
            stretch: total.div_ceil(TIMELINE_POINTS).max(1) as usize,
            started_ns: 0,
        }
    }

    pub(crate) fn start(&mut self, now: u64) {
        self.started_ns = now;
    }

    /// Takes in a repeat that is over.
    pub(crate) fn fold(&mut self, tracker: &Tracker) {
        let mut stretch: Vec<Sample> = Vec::with_capacity(self.stretch);
        for sample in tracker.samples() {
            self.rtt.record(sample.rtt_ns.into());
            self.forward.record(sample.forward_ns.into());
            self.reply.record(sample.reply_ns.into());
            if let Some(samples) = &mut self.samples {
                samples.rtt_ns.push(sample.rtt_ns);
                samples.forward_ns.push(sample.forward_ns);
            }
            stretch.push(sample);
            if stretch.len() == self.stretch {
                self.note(&mut stretch);
            }
        }
        self.note(&mut stretch);
        for distribution in [&mut self.rtt, &mut self.forward, &mut self.reply] {
            distribution.end_repeat();
        }
    }

    fn note(&mut self, stretch: &mut Vec<Sample>) {
        let Some(first) = stretch.first() else { return };
        let at_s = first.sent_ns.saturating_sub(self.started_ns) as f64 / 1e9;
        stretch.sort_unstable_by_key(|sample| sample.rtt_ns);
        let us = |i: usize| f64::from(stretch[i].rtt_ns) / 1000.0;
        self.timeline.push(TimelinePoint {
            at_s,
            min_us: us(0),
            p50_us: us(stretch.len() / 2),
            max_us: us(stretch.len() - 1),
        });
        stretch.clear();
    }
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "exact by construction")]
mod tests {
    use super::*;
    use crate::tracker::Times;

    #[test]
    fn folds_repeats_into_stretches() {
        let mut recorder = Recorder::new(2 * 1500, true);
        recorder.start(1_000_000_000);
        let mut tracker = Tracker::new(1500, 1_000_000);
        for repeat in 0..2_u64 {
            tracker.begin();
            for id in 0..1500 {
                let sent = 1_000_000_000 + (repeat * 1500 + id) * 1_000_000;
                tracker.send(sent);
                let times = Times {
                    server_receive: sent + 400,
                    server_send: sent + 500,
                    client_receive: sent + 1000 + id,
                };
                tracker.answer(id, times);
            }
            recorder.fold(&tracker);
        }
        assert_eq!(recorder.timeline.len(), 250);
        let second = recorder.timeline[126];
        assert!((second.at_s - 1.512).abs() < 1e-9);
        assert_eq!(
            (second.min_us, second.p50_us, second.max_us),
            (1.012, 1.018, 1.023)
        );
        assert_eq!(recorder.samples.as_ref().unwrap().rtt_ns.len(), 3000);
        assert_eq!(recorder.forward.summary(None).unwrap().max_us, 0.4);
        assert!(recorder.rtt.summary(None).unwrap().mean_ci95_us.is_some());
    }
}
