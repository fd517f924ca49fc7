//! Header layouts, and decisions that depend on headers alone.
//!
//! This crate parses packets ([`parse()`], [`FiveTuple`]), selects their chain ([`Match`],
//! [`classifier`]), evaluates firewall rules ([`rules`]) and updates checksums ([`checksum`]). It
//! defines the metadata of packets ([`Meta`], [`nsh`], [`offload`]), the histogram of delays
//! ([`sojourn`]), the profiles of chains ([`traffic`]) and the model of a link ([`link_model`]).
//!
//! It does no I/O, reads no clock and holds no state. No function panics on any frame. The eBPF
//! programs implement the parser, the metadata, the rule tables and the histogram a second time.
//! Tests run the two implementations on the same list of frames (`fixtures`, a cargo feature).
//!
//! Start reading at [`mod@parse`].

pub mod capture;
pub mod checksum;
pub mod classifier;
mod dir16;
pub mod five_tuple;
// Test frames, for the tests of this crate and of every crate with its own parser.
#[cfg(feature = "fixtures")]
#[path = "../tests/fixtures/mod.rs"]
pub mod fixtures;
pub mod flow_key;
pub mod flow_marks;
pub mod flow_record;
pub mod fragment_table;
pub mod fragments;
pub mod hop_counters;
pub mod icmp_quote;
pub mod link_model;
pub mod link_scope;
pub mod loss_model;
pub mod lpm;
pub mod mac;
pub mod maglev;
pub mod match_rule;
pub mod meta;
pub mod nsh;
pub mod offload;
pub mod parse;
pub mod prefix;
pub mod routes;
pub mod rules;
pub mod sample;
pub mod sojourn;
pub mod traffic;
pub mod wire;

pub use five_tuple::FiveTuple;
pub use flow_key::FlowKey;
pub use flow_marks::FlowMarks;
pub use flow_record::{FlowCounts, FlowRecord, FlowState, FlowTotals, Flows, TrackedFlow};
pub use fragments::{Fragment, FragmentHandling};
pub use hop_counters::HopCounters;
pub use icmp_quote::IcmpQuote;
pub use mac::MacAddr;
pub use match_rule::Match;
pub use meta::Meta;
pub use offload::Offload;
pub use parse::{Flags, Headers, Unparsed, parse};
pub use prefix::{Family, Prefix};
