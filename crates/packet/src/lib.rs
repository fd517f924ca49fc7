//! What the bytes of a frame mean.
//!
//! This room knows header layouts and everything that is decided from headers alone: which packet
//! is which ([`parse()`], [`FiveTuple`]), which chain it belongs to ([`Match`], [`classifier`]),
//! what a firewall says of it ([`rules`]), how its checksum follows a change ([`checksum`]), what
//! travels beside it ([`Meta`], [`nsh`]), how long it took ([`sojourn`]) and whether it keeps to its
//! chain's profile ([`traffic`]).
//!
//! It does no I/O, reads no clock and holds no state. No function here panics on the bytes of a
//! frame, however short, long or wrong they are. The eBPF programs have twins of the parser, the
//! metadata, the rule tables and the histogram; both sides are tested on the same list of frames
//! (`fixtures`, a cargo feature).
//!
//! Start reading at [`mod@parse`].

pub mod checksum;
pub mod classifier;
mod dir16;
pub mod five_tuple;
// Test material, for the tests of this crate and of every crate with a parser of its own.
#[cfg(feature = "fixtures")]
#[path = "../tests/fixtures/mod.rs"]
pub mod fixtures;
pub mod flow_key;
pub mod flow_marks;
pub mod flow_record;
pub mod hop_counters;
pub mod lpm;
pub mod mac;
pub mod maglev;
pub mod match_rule;
pub mod meta;
pub mod nsh;
pub mod parse;
pub mod prefix;
pub mod routes;
pub mod rules;
pub mod sojourn;
pub mod traffic;

pub use five_tuple::FiveTuple;
pub use flow_key::FlowKey;
pub use flow_marks::FlowMarks;
pub use flow_record::{FlowCounts, FlowRecord, FlowState, FlowTotals, Flows, TrackedFlow};
pub use hop_counters::HopCounters;
pub use mac::MacAddr;
pub use match_rule::Match;
pub use meta::Meta;
pub use parse::{Flags, Headers, Unparsed, parse};
pub use prefix::{Family, Prefix};
