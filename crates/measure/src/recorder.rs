//! Collects the samples of finished repeats: distributions, a timeline, and optionally all samples.

use myelin_metrics::{Distribution, Samples, TimelinePoint};

use crate::tracker::{Sample, Tracker};

/// Maximum number of points of the timeline.
const TIMELINE_POINTS: u64 = 250;

#[derive(Debug)]
pub(crate) struct Recorder {
    pub(crate) rtt: Distribution,
    pub(crate) forward: Distribution,
    pub(crate) reply: Distribution,
    pub(crate) timeline: Vec<TimelinePoint>,
    pub(crate) samples: Option<Samples>,
    /// Number of samples of one point of the timeline.
    window: usize,
    started_ns: u64,
}

impl Recorder {
    /// Makes a recorder for about `total` packets.
    pub(crate) fn new(total: u64, keep_samples: bool) -> Self {
        Self {
            rtt: Distribution::new(),
            forward: Distribution::new(),
            reply: Distribution::new(),
            timeline: Vec::new(),
            samples: keep_samples.then(Samples::default),
            window: total.div_ceil(TIMELINE_POINTS).max(1) as usize,
            started_ns: 0,
        }
    }

    pub(crate) fn start(&mut self, now: u64) {
        self.started_ns = now;
    }

    /// Adds the samples of a finished repeat.
    pub(crate) fn record_repeat(&mut self, tracker: &Tracker) {
        let mut window: Vec<Sample> = Vec::with_capacity(self.window);
        for sample in tracker.samples() {
            self.rtt.record(sample.rtt_ns.into());
            self.forward.record(sample.forward_ns.into());
            self.reply.record(sample.reply_ns.into());
            if let Some(samples) = &mut self.samples {
                samples.rtt_ns.push(sample.rtt_ns);
                samples.forward_ns.push(sample.forward_ns);
            }
            window.push(sample);
            if window.len() == self.window {
                self.add_timeline_point(&mut window);
            }
        }
        self.add_timeline_point(&mut window);
        for distribution in [&mut self.rtt, &mut self.forward, &mut self.reply] {
            distribution.end_repeat();
        }
    }

    fn add_timeline_point(&mut self, window: &mut Vec<Sample>) {
        let Some(first) = window.first() else { return };
        let at_s = first.sent_ns.saturating_sub(self.started_ns) as f64 / 1e9;
        window.sort_unstable_by_key(|sample| sample.rtt_ns);
        let us = |i: usize| f64::from(window[i].rtt_ns) / 1000.0;
        self.timeline.push(TimelinePoint {
            at_s,
            min_us: us(0),
            p50_us: us(window.len() / 2),
            max_us: us(window.len() - 1),
        });
        window.clear();
    }
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "exact by construction")]
mod tests {
    use super::*;
    use crate::tracker::Times;

    #[test]
    fn repeats_become_timeline_points() {
        let mut recorder = Recorder::new(2 * 1500, true);
        recorder.start(1_000_000_000);
        let mut tracker = Tracker::new(1500, 1_000_000);
        for repeat in 0..2_u64 {
            tracker.begin_repeat();
            for id in 0..1500 {
                let sent = 1_000_000_000 + (repeat * 1500 + id) * 1_000_000;
                tracker.record_send(sent);
                let times = Times {
                    server_receive: sent + 400,
                    server_send: sent + 500,
                    client_receive: sent + 1000 + id,
                };
                tracker.record_answer(id, times);
            }
            recorder.record_repeat(&tracker);
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
