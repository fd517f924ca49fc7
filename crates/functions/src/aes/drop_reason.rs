//! Reasons for which the AES functions drop packets.

use myelin_spec::catalogue::Kind;

use crate::Verdict;
use crate::datagram::NoDatagram;

/// The reason why an AES function dropped a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// The packet is a fragment.
    Fragment,
    /// The packet is not UDP.
    NotUdp,
    /// The IP packet has bytes after the datagram (RFC 9868).
    Surplus,
    /// The packet would exceed the MTU.
    TooLong,
    /// The packet would exceed its buffer.
    NoRoom,
    /// The function could not make the key of a session.
    NoSession,
    /// The payload is shorter than an encrypted payload.
    TooShort,
    /// The packet's key is not in the key file.
    UnknownKey,
    /// The tag does not match: the sender used another key, or the packet was changed.
    NotAuthentic,
    /// The packet arrived before.
    Replayed,
    /// The packet is older than the replay window.
    TooOld,
    /// The packet's session was evicted.
    SessionEvicted,
    /// The packet's session is new, and all session slots are in use.
    SessionsFull,
}

/// Each reason with the name of its counter.
const NAMES: [(DropReason, &str); 13] = [
    (DropReason::Fragment, "fragment"),
    (DropReason::NotUdp, "not-udp"),
    (DropReason::Surplus, "surplus"),
    (DropReason::TooLong, "too-long"),
    (DropReason::NoRoom, "no-room"),
    (DropReason::NoSession, "no-session"),
    (DropReason::TooShort, "too-short"),
    (DropReason::UnknownKey, "unknown-key"),
    (DropReason::NotAuthentic, "not-authentic"),
    (DropReason::Replayed, "replayed"),
    (DropReason::TooOld, "too-old"),
    (DropReason::SessionEvicted, "session-evicted"),
    (DropReason::SessionsFull, "sessions-full"),
];

impl From<NoDatagram> for DropReason {
    #[inline]
    fn from(reason: NoDatagram) -> Self {
        match reason {
            NoDatagram::Fragment => Self::Fragment,
            NoDatagram::NotUdp => Self::NotUdp,
            NoDatagram::Surplus => Self::Surplus,
        }
    }
}

/// Dropped packets by reason.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DropCounters([u64; NAMES.len()]);

impl DropCounters {
    /// Converts a result to a verdict, and counts the reason of a drop.
    #[inline]
    pub(crate) fn count_result(&mut self, done: Result<(), DropReason>) -> Verdict {
        match done {
            Ok(()) => Verdict::Forward,
            Err(reason) => {
                self.0[reason as usize] += 1;
                Verdict::Drop
            }
        }
    }

    /// Passes the counters of function kind `kind` to `sink`.
    pub(crate) fn read(&self, kind: &Kind, sink: &mut dyn FnMut(&'static str, u64)) {
        for (reason, name) in NAMES {
            if kind.counters.iter().any(|(counter, _)| *counter == name) {
                sink(name, self.0[reason as usize]);
            }
        }
    }
}
