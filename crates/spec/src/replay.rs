//! The frames that a worker replays in the place of an ingress port (`spec.ports.ingress.replay`).

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::units;

/// The frames of a chain with ports in memory, and their times.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ReplaySpec {
    /// The file of the frames; `None` if Myelin makes a frame of the chain's match.
    pub file: Option<String>,
    /// The frames, which arrive in turn. At least one.
    pub frames: Vec<Vec<u8>>,
    /// Number of frames that the chain's match does not take.
    pub unmatched: usize,
    /// The times of the frames.
    pub times: ReplayTimes,
    /// Number of packets after which none arrives; `None` for no end.
    pub packets: Option<u64>,
}

/// The times at which replayed frames arrive.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReplayTimes {
    /// Always, as many as the worker takes.
    #[default]
    Endless,
    /// At even times: packets a second.
    Even(u64),
    /// At recorded times.
    Recorded {
        /// Time of each frame since the first one, ns. Never decreases.
        offsets_ns: Vec<u64>,
        /// Time between two first frames, ns. Above the last offset.
        period_ns: u64,
    },
}

/// Hides the bytes of the frames.
impl fmt::Debug for ReplaySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReplaySpec({self}, {:?} packets)", self.packets)
    }
}

/// The name of the port, in plans and in the status: `replay 100kpps, 64 B`.
impl fmt::Display for ReplaySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("replay ")?;
        match &self.times {
            ReplayTimes::Endless => f.write_str("endless")?,
            ReplayTimes::Even(rate) => f.write_str(&units::PACKET_RATE.format(*rate))?,
            ReplayTimes::Recorded { .. } => f.write_str("recorded")?,
        }
        match &self.file {
            Some(file) => write!(f, ", {file}")?,
            None => write!(f, ", {} B", self.longest())?,
        }
        if self.unmatched > 0 {
            let (unmatched, all) = (self.unmatched, self.frames.len());
            write!(f, ", {unmatched} of {all} frames unmatched")?;
        }
        Ok(())
    }
}

impl ReplaySpec {
    /// Returns the length of the longest frame, bytes.
    pub fn longest(&self) -> usize {
        self.frames.iter().map(Vec::len).max().unwrap_or_default()
    }
}
