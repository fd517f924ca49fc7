//! Why packets were dropped.

use myelin_spec::catalogue::Kind;

use crate::Verdict;
use crate::datagram::NoDatagram;

/// Why a packet was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It is a fragment.
    Fragment,
    /// It is no UDP.
    NotUdp,
    /// Something follows its datagram in the IP packet (RFC 9868).
    Surplus,
    /// It would be longer than the MTU allows.
    TooLong,
    /// It would be longer than its buffer.
    NoRoom,
    /// No session could be begun.
    NoSession,
    /// It is too short to have been encrypted.
    TooShort,
    /// Its key is none of the key file's.
    UnknownKey,
    /// It is not what was encrypted with that key.
    NotAuthentic,
    /// It came before.
    Replayed,
    /// It lies behind the replay window.
    TooOld,
    /// Its session was put out.
    PutOut,
    /// Its session is new, and all that are kept are in use.
    SessionsFull,
}

/// Every reason, with the name of its counter.
const NAMES: [(Refusal, &str); 13] = [
    (Refusal::Fragment, "fragment"),
    (Refusal::NotUdp, "not-udp"),
    (Refusal::Surplus, "surplus"),
    (Refusal::TooLong, "too-long"),
    (Refusal::NoRoom, "no-room"),
    (Refusal::NoSession, "no-session"),
    (Refusal::TooShort, "too-short"),
    (Refusal::UnknownKey, "unknown-key"),
    (Refusal::NotAuthentic, "not-authentic"),
    (Refusal::Replayed, "replayed"),
    (Refusal::TooOld, "too-old"),
    (Refusal::PutOut, "put-out"),
    (Refusal::SessionsFull, "sessions-full"),
];

impl From<NoDatagram> for Refusal {
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
pub(crate) struct Refusals([u64; NAMES.len()]);

impl Refusals {
    /// What becomes of a packet; counts why it is dropped.
    #[inline]
    pub(crate) fn verdict(&mut self, done: Result<(), Refusal>) -> Verdict {
        match done {
            Ok(()) => Verdict::Forward,
            Err(refusal) => {
                self.0[refusal as usize] += 1;
                Verdict::Drop
            }
        }
    }

    /// Tells the counters that functions of that kind have.
    pub(crate) fn read(&self, kind: &Kind, sink: &mut dyn FnMut(&'static str, u64)) {
        for (refusal, name) in NAMES {
            if kind.counters.iter().any(|(counter, _)| *counter == name) {
                sink(name, self.0[refusal as usize]);
            }
        }
    }
}
