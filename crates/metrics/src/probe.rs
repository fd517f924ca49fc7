//! The result of a probe, and its options.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::distribution::{Distribution, Summary};

/// The result of a probe.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProbeResult {
    /// How both ends wait for packets.
    pub mode: Mode,
    /// How answers were matched with packets.
    pub matching: Matching,
    /// The cores that the ends' threads were bound to.
    pub cores: Option<Cores>,
    /// UDP payload, bytes.
    pub payload_bytes: usize,
    /// Time between sends, microseconds; 0 is back to back.
    pub interval_us: f64,
    /// Packets in a repeat.
    pub count: u32,
    /// Requested repeats.
    pub repeats: u32,
    /// Reason for an early end.
    pub stopped: Option<Stop>,
    /// Duration of all repeats, seconds.
    pub duration_s: f64,
    /// Packets by outcome.
    pub counts: Counts,
    /// Share (0 to 1) of the sent packets that were lost; 0 when none was sent.
    pub loss_ratio: f64,
    /// Round trips. `None` if no packet was answered.
    pub rtt: Option<Summary>,
    /// One-way delays from the client's send to the server's receive.
    pub forward: Option<Summary>,
    /// One-way delays from the server's send to the client's receive.
    pub reply: Option<Summary>,
    /// Every packet's times, if requested.
    pub samples: Option<Samples>,
    /// Distribution of the round trips, for histograms.
    pub rtt_distribution: Distribution,
    /// Distribution of the one-way delays; not serialized.
    #[serde(skip)]
    pub forward_distribution: Distribution,
    /// Round trips over time.
    pub timeline: Vec<TimelinePoint>,
}

impl ProbeResult {
    /// One flat row of a report. Keys contain their unit; those of the summaries begin with `rtt_`,
    /// `forward_` and `reply_`.
    pub fn row(&self) -> Value {
        let mut row = json!({
            "mode": self.mode,
            "matching": self.matching,
            "payload_bytes": self.payload_bytes,
            "interval_us": self.interval_us,
            "count": self.count,
            "repeats": self.repeats,
            "stopped": self.stopped,
            "duration_s": self.duration_s,
            "loss_ratio": self.loss_ratio,
        });
        if let Some(cores) = &self.cores {
            row["cores"] = json!(cores);
        }
        if let Some(samples) = &self.samples {
            row["samples"] = json!(samples);
        }
        let mut put = |prefix: &str, fields: Value| {
            for (name, value) in fields.as_object().into_iter().flatten() {
                row[format!("{prefix}{name}")] = value.clone();
            }
        };
        put("", json!(self.counts));
        put("rtt_", json!(self.rtt));
        put("forward_", json!(self.forward));
        put("reply_", json!(self.reply));
        row
    }
}

/// How both ends wait for a packet. The mode decides what the round trip includes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// One thread polls both ends in turn: no wake-up and no second core, only the datapath.
    Inline,
    /// One thread for each end; both poll, on two cores.
    Spin,
    /// One thread for each end; both sleep until the system wakes them, as in an application. A
    /// wake-up costs more than the datapath.
    Blocking,
}

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Inline => "inline",
            Self::Spin => "spin",
            Self::Blocking => "blocking",
        })
    }
}

impl std::str::FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "inline" => Ok(Self::Inline),
            "spin" => Ok(Self::Spin),
            "blocking" => Ok(Self::Blocking),
            _ => Err(format!(
                "probe option `mode` is `{text}`: expected inline, spin or blocking"
            )),
        }
    }
}

/// The cores that the ends' threads are bound to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Cores {
    /// The client's core, and in inline mode the only one.
    pub client: usize,
    /// The server's core. The same as the client's only in blocking mode.
    pub server: usize,
}

/// How answers are matched with packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Matching {
    /// By the id in the payload.
    ById,
    /// By order, one packet in flight at a time: an end could not read the payload, because a
    /// function transforms it without a known key. The probe does not check the pattern, and pauses
    /// for one timeout after a loss.
    ByOrder,
}

/// Reason for the early end of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// Its deadline passed.
    Deadline,
    /// The caller cancelled it.
    Cancelled,
    /// None of the first packets was answered in time.
    NoAnswer,
}

/// Packets by outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Counts {
    /// Packets sent, answered or not.
    pub sent: u64,
    /// Packets answered within the timeout.
    pub received: u64,
    /// Packets not answered within the timeout.
    pub lost: u64,
    /// Lost packets whose answer came after the timeout.
    pub late: u64,
    /// Answers that came after an answer to a later packet (RFC 4737, section 3).
    pub reordered: u64,
    /// Further answers to an answered packet.
    pub duplicates: u64,
    /// Answers with an intact header and a wrong pattern, or cut short. They count as received.
    pub corrupted: u64,
    /// Datagrams of other programs or other runs that arrived at an end.
    pub foreign: u64,
    /// Packets sent more than one interval after their time.
    pub behind_schedule: u64,
    /// Sends that the system refused (a full queue, no route); these packets count as lost.
    pub send_errors: u64,
}

/// Round trips of consecutive packets.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TimelinePoint {
    /// Send time of its first packet, seconds from the start of the first repeat.
    pub at_s: f64,
    /// Its shortest round trip, microseconds.
    pub min_us: f64,
    /// Its median round trip, microseconds.
    pub p50_us: f64,
    /// Its longest round trip, microseconds.
    pub max_us: f64,
}

/// Times of every answered packet, in sending order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Samples {
    /// Round trips, nanoseconds.
    pub rtt_ns: Vec<u32>,
    /// One-way delays to the server, nanoseconds.
    pub forward_ns: Vec<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_is_flat_and_its_keys_have_prefixes() {
        let mut rtt = Distribution::new();
        rtt.record(9000);
        let result = ProbeResult {
            mode: Mode::Inline,
            matching: Matching::ById,
            cores: None,
            payload_bytes: 256,
            interval_us: 0.0,
            count: 1,
            repeats: 1,
            stopped: None,
            duration_s: 1.0,
            counts: Counts {
                sent: 1,
                received: 1,
                ..Counts::default()
            },
            loss_ratio: 0.0,
            rtt: rtt.summary(None),
            forward: None,
            reply: None,
            samples: None,
            rtt_distribution: rtt,
            forward_distribution: Distribution::new(),
            timeline: Vec::new(),
        };
        let row = result.row();
        assert_eq!(row["mode"], "inline");
        assert_eq!((&row["sent"], &row["count"]), (&1.into(), &1.into()));
        assert_eq!(
            (&row["rtt_p99_us"], &row["rtt_count"]),
            (&9.0.into(), &1.into())
        );
        for absent in ["forward_p99_us", "cores", "samples", "timeline", "rtt"] {
            assert!(row.get(absent).is_none(), "{absent} in {row}");
        }
    }
}
