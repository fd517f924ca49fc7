//! Reasons for which the AES functions drop packets.

use myelin_spec::catalogue::Kind;

use crate::Verdict;
use crate::datagram::NoDatagram;

/// Why an AES function dropped a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// It is a fragment.
    Fragment,
    /// It is not UDP.
    NotUdp,
    /// The IP packet has bytes after the datagram (RFC 9868).
    Surplus,
    /// It would exceed the MTU.
    TooLong,
    /// It would exceed its buffer.
    NoRoom,
    /// The encrypter could not start a session.
    NoSession,
    /// It is shorter than an encrypted payload.
    TooShort,
    /// Its key is not in the key file.
    UnknownKey,
    /// Its tag does not match: the sender used another key, or the packet was changed.
    NotAuthentic,
    /// It arrived before.
    Replayed,
    /// It is older than the replay window.
    TooOld,
    /// Its session was evicted.
    SessionEvicted,
    /// Its session is new, and all session slots are in use.
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
