//! The configuration of a `dpi`.

use std::net::IpAddr;

use myelin_packet::MacAddr;
use serde::{Deserialize, Serialize};

use crate::words::word_enum;

/// Patterns of one `dpi` at most.
pub const MAX_PATTERNS: usize = 65_536;
/// Regular expressions among them at most: the time that they take to compile grows with the square of their number.
pub const MAX_REGEXES: usize = 1024;
/// Bytes of one pattern at most: those of a literal, or the text of a regular expression.
pub const MAX_PATTERN_BYTES: usize = 1024;
/// Bytes of all patterns of one `dpi` together at most; it bounds the time and the memory that they take to compile.
pub const MAX_TOTAL_BYTES: usize = 4 << 20;
/// The port of a collector, where none is given: TZSP's.
pub const TZSP_PORT: u16 = 37_008;

word_enum! {
    /// What is done about a packet in which a pattern was found.
    #[derive(Default)]
    pub enum DpiAction {
        /// It is dropped.
        #[default]
        Drop = "drop",
        /// It goes on with another DSCP.
        Mark = "mark",
        /// It goes on, and a copy goes to the collector.
        Mirror = "mirror",
    }
}

word_enum! {
    /// What is done about fragments, over which a payload may be spread.
    #[derive(Default)]
    pub enum DpiFragments {
        /// They are dropped: a pattern cannot be evaded by fragmenting.
        #[default]
        Drop = "drop",
        /// Each is inspected by itself: a pattern that is spread over two of them is not seen.
        Pass = "pass",
    }
}

/// Configuration of a `dpi` function: patterns that are looked for in each packet's payload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DpiConfig {
    /// The patterns, by where they are written; all apply. Within [`MAX_PATTERNS`],
    /// [`MAX_REGEXES`] and [`MAX_TOTAL_BYTES`], and at least one.
    pub lists: Vec<PatternList>,
    /// What happens to fragments.
    pub fragments: DpiFragments,
    /// The DSCP (RFC 2474) that [`DpiAction::Mark`] sets, 0 to 63.
    pub dscp: u8,
    /// Where [`DpiAction::Mirror`] sends to; given when some pattern has that action.
    pub mirror: Option<MirrorConfig>,
}

impl DpiConfig {
    /// The DSCP that marks, where none is given: CS1, low-priority data (RFC 4594, section 2.3).
    pub const DEFAULT_DSCP: u8 = 8;

    /// The patterns with the files that they are written in.
    pub fn patterns(&self) -> impl Iterator<Item = (&str, &Pattern)> {
        self.lists
            .iter()
            .flat_map(|list| list.patterns.iter().map(|pattern| (&*list.file, pattern)))
    }

    /// The part that compiled patterns depend on: a change of what it leaves out needs no compiling.
    #[must_use]
    pub fn shape(&self) -> Self {
        Self {
            lists: self.lists.clone(),
            fragments: DpiFragments::default(),
            dscp: Self::DEFAULT_DSCP,
            mirror: None,
        }
    }
}

/// Patterns that one file holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PatternList {
    /// The file's name as it was given: that of the chain file or of a file of patterns.
    pub file: String,
    /// The patterns, in the file's order.
    pub patterns: Vec<Pattern>,
}

/// A pattern, as a regular expression in PCRE's syntax over bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pattern {
    /// Line of its file, from 1.
    pub line: usize,
    /// What is done about packets that hold it.
    pub action: DpiAction,
    /// The expression; for a literal one that matches just its bytes.
    pub regex: String,
    /// Whether it is a literal.
    pub literal: bool,
    /// The letters A to Z match in either case: the flag `i` of a regular expression, `nocase` of a literal.
    pub caseless: bool,
    /// `m`: `^` and `$` match at line breaks too.
    pub multiline: bool,
    /// `s`: `.` matches a line break too.
    pub dotall: bool,
}

/// Where copies of packets go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MirrorConfig {
    /// The collector's address.
    pub address: IpAddr,
    /// Its UDP port.
    pub port: u16,
    /// The address that copies come from, of the same family.
    pub source: IpAddr,
    /// The Ethernet address that copies go to; `None` for that of the packet.
    pub mac: Option<MacAddr>,
    /// The Ethernet address that copies come from; `None` for that of the packet.
    pub source_mac: Option<MacAddr>,
}
