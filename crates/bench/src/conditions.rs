//! Conditions of a round trip: how the end hosts wait for a packet, and whether idle cores sleep.

use std::fmt;

use myelin_measure::Mode;

/// Conditions of a round trip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Conditions {
    pub(crate) mode: Mode,
    /// Idle cores poll instead of sleeping, as with `spec.cpuLatency: 0us`.
    pub(crate) awake: bool,
}

impl From<Mode> for Conditions {
    fn from(mode: Mode) -> Self {
        Self { mode, awake: false }
    }
}

impl fmt::Display for Conditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let awake = if self.awake { ", cores awake" } else { "" };
        write!(f, "{}{awake}", self.mode)
    }
}
