//! What a probe found, as a row of a report.

use serde::{Serialize, Serializer};

use crate::client::{Matching, Outcome};
use crate::config::{Config, Cores, Mode};
use crate::control::Stop;
use crate::distribution::{Distribution, Summary};
use crate::recorder::{Samples, TimelinePoint};
use crate::tracker::Counts;

/// The result of [`crate::probe`]. Serialized it is one flat row; keys carry their unit.
#[derive(Debug, Clone, Serialize)]
pub struct ProbeResult {
    /// How the ends waited.
    pub mode: Mode,
    /// How answers were matched.
    pub matching: Matching,
    /// The cores the ends were bound to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cores: Option<Cores>,
    /// UDP payload, bytes.
    pub payload_bytes: usize,
    /// Time between sends, microseconds; 0 is back to back.
    pub interval_us: f64,
    /// Packets a repeat.
    pub count: u32,
    /// Repeats asked for.
    pub repeats: u32,
    /// Why it ended early, if it did.
    pub stopped: Option<Stop>,
    /// How long the repeats took, seconds.
    pub duration_s: f64,
    /// What became of the packets.
    #[serde(flatten)]
    pub counts: Counts,
    /// Share (0 to 1) of the sent packets that were lost; 0 when none was sent.
    pub loss_ratio: f64,
    /// Round trips; keys begin with `rtt_`. `None` when nothing was answered.
    #[serde(flatten, serialize_with = "as_rtt")]
    pub rtt: Option<Summary>,
    /// One-way delays from the client's send to the server's receive; keys begin with `forward_`.
    #[serde(flatten, serialize_with = "as_forward")]
    pub forward: Option<Summary>,
    /// One-way delays from the server's send to the client's receive; keys begin with `reply_`.
    #[serde(flatten, serialize_with = "as_reply")]
    pub reply: Option<Summary>,
    /// Every packet's times, if they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples: Option<Samples>,
    /// The round trips' distribution, for histograms and further figures.
    #[serde(skip)]
    pub rtt_distribution: Distribution,
    /// The one-way delays' distribution.
    #[serde(skip)]
    pub forward_distribution: Distribution,
    /// The round trips' course over time.
    #[serde(skip)]
    pub timeline: Vec<TimelinePoint>,
}

impl ProbeResult {
    pub(crate) fn new(config: &Config, outcome: Outcome) -> Self {
        let us = |bound: Option<std::time::Duration>| bound.map(|b| b.as_nanos() as f64 / 1000.0);
        let recorder = outcome.recorder;
        // The way back is told by its main figures; its curve would be the forward one's twin.
        let reply = recorder.reply.summary(None).map(|mut summary| {
            summary.cdf_us.clear();
            summary
        });
        Self {
            mode: config.mode,
            matching: outcome.matching,
            cores: config.cores,
            payload_bytes: config.payload_bytes,
            interval_us: config.interval.as_nanos() as f64 / 1000.0,
            count: config.count,
            repeats: config.repeats,
            stopped: outcome.stop,
            duration_s: outcome.duration_ns as f64 / 1e9,
            counts: outcome.counts,
            loss_ratio: outcome.counts.lost as f64 / outcome.counts.sent.max(1) as f64,
            rtt: recorder.rtt.summary(us(config.rtt_bound)),
            forward: recorder.forward.summary(us(config.forward_bound)),
            reply,
            samples: recorder.samples,
            rtt_distribution: recorder.rtt,
            forward_distribution: recorder.forward,
            timeline: recorder.timeline,
        }
    }

    /// Drops the curves from the serialized form: a row of a long table.
    pub fn without_curves(&mut self) {
        for summary in [&mut self.rtt, &mut self.forward].into_iter().flatten() {
            summary.cdf_us.clear();
        }
    }
}

// Serde's `serialize_with` fixes the reference types.
#[allow(clippy::ref_option)]
fn as_rtt<S: Serializer>(summary: &Option<Summary>, serializer: S) -> Result<S::Ok, S::Error> {
    summary
        .as_ref()
        .map(|s| s.with_prefix("rtt_"))
        .serialize(serializer)
}

#[allow(clippy::ref_option)]
fn as_forward<S: Serializer>(summary: &Option<Summary>, serializer: S) -> Result<S::Ok, S::Error> {
    summary
        .as_ref()
        .map(|s| s.with_prefix("forward_"))
        .serialize(serializer)
}

#[allow(clippy::ref_option)]
fn as_reply<S: Serializer>(summary: &Option<Summary>, serializer: S) -> Result<S::Ok, S::Error> {
    summary
        .as_ref()
        .map(|s| s.with_prefix("reply_"))
        .serialize(serializer)
}
