//! `dpi`: patterns that are looked for in each packet's payload.

use std::net::IpAddr;

use myelin_packet::MacAddr;
use serde::{Deserialize, Serialize};

use super::DEFAULT_MTU;
use super::prelude::*;
use crate::effect::MILLIONTHS;
use crate::error::{FaultLog, Span};
use crate::keys::address::read_host;
use crate::keys::list_file;
use pattern::BadPattern;

mod pattern;

/// Patterns of one `dpi` at most.
pub const MAX_PATTERNS: usize = 65_536;
/// Regular expressions among them at most: the time that they take to compile grows with the square of their number.
pub const MAX_REGEXES: usize = 1024;
/// Bytes of one pattern at most: those of a literal, or the text of a regular expression.
pub const MAX_PATTERN_BYTES: usize = 1024;
/// Bytes of all patterns of one `dpi` together at most; it bounds the time and the memory that they take to compile.
pub const MAX_TOTAL_BYTES: usize = 4 << 20;
/// What a copy for a collector has around the packet, bytes: headers of IPv6, UDP and TZSP, and its own Ethernet header's tags.
const MIRROR_BYTES: u64 = 40 + 8 + 9 + 22;

const PATTERNS: &str = "a list of patterns such as cmd.exe or '/select.+from/i'";
const PATTERN: &str =
    "a pattern, or { pattern: PATTERN, action: drop|mark|mirror, nocase: true|false }";
const EXAMPLE: &str = "write for example { pattern: cmd.exe, action: drop }";
/// Faults of a file of patterns that are told; more would hardly be read.
const MAX_FAULTS: usize = 100;

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

const PATTERNS_FILE: ConfigKey = FILE.named(
    "patternsFile",
    "a text file with more patterns, one a line; empty lines and lines that begin with # are skipped",
);
const ACTION: ConfigKey = DpiAction::KEY.with_default("drop").named(
    "action",
    "the action for patterns without one: drop the packet, mark it with the DSCP `dscp`, or send a copy to \
     `mirror`. All actions of all matching patterns apply",
);
const NOCASE: ConfigKey = BOOLEAN.with_default("false").named(
    "nocase",
    "whether the letters A to Z match in either case, for literals without their own `nocase`; regular expressions \
     have the flag i instead",
);
const MIRROR: ConfigKey = ConfigKey::new(ValueType::Mirror(MirrorConfig::KEYS));

config! {
    /// Configuration of a `dpi` function. The patterns are by where they are written, all apply, and there is at least one; the mirror is
    /// given when some pattern has that action.
    pub struct DpiConfig {
        /// the patterns: a literal; or /REGEX/FLAGS with the flags i (either case), s (. matches
        /// line breaks), m (^ and $ match at line breaks); or { pattern: PATTERN, action:
        /// drop|mark|mirror, nocase: true|false }. In a literal, \xNN is any byte, \\ a backslash,
        /// \/ a slash at its beginning. At most 65536 with those of patternsFile, 1024 of them
        /// regular expressions, 1024 bytes each
        "patterns" lists: Vec<PatternList> = ConfigKey::new(ValueType::Patterns(PATTERN_KEYS)).with_default("[]"), from lists,
            with PATTERNS_FILE, with ACTION, with NOCASE;
        /// the DSCP of marked packets
        "dscp" dscp: u8 = integer(0, 63, "a DSCP").with_default("8");
        /// the collector: { address: IP, port: PORT, source: IP, mac: MAC, sourceMac: MAC }. Copies
        /// are TZSP over UDP from `source` to `address`, at port 37008 unless `port` differs, and
        /// leave at the chain's egress. Ethernet addresses default to those of the packet
        "mirror" mirror: Option<MirrorConfig> = MIRROR, from mirror;
        /// drop fragments, or inspect each separately, without finding a pattern that two of them
        /// share
        "fragments" fragments: DpiFragments = DpiFragments::KEY.with_default("drop");
    }
}

keys! {
    /// Keys of a pattern that says more than what to look for.
    PATTERN_KEYS {
        /// the literal, or /REGEX/FLAGS
        "pattern" = TEXT.required();
        /// what happens to a packet that holds it
        "action" = DpiAction::KEY;
        /// whether the letters A to Z of a literal match in either case
        "nocase" = BOOLEAN;
    }
}

config! {
    /// Where copies of packets go.
    #[derive(Copy)]
    pub struct MirrorConfig {
        /// the collector's address
        "address" address: IpAddr = TEXT.required(), from address;
        /// its UDP port
        "port" port: u16 = integer(1, 65_535, "a port").with_default("37008");
        /// the address that copies come from, of the same family
        "source" source: IpAddr = TEXT.required(), from source;
        /// the Ethernet address that copies go to; left out, that of the packet
        "mac" mac: Option<MacAddr> = TEXT;
        /// the Ethernet address that copies come from; left out, that of the packet
        "sourceMac" source_mac: Option<MacAddr> = TEXT;
    }
}

impl DpiConfig {
    /// The patterns with the files that they are written in.
    pub fn patterns(&self) -> impl Iterator<Item = (&str, &Pattern)> {
        self.lists
            .iter()
            .flat_map(|list| list.patterns.iter().map(|pattern| (&*list.file, pattern)))
    }

    /// The part that compiled patterns depend on: a change of what it leaves out needs no compiling.
    #[must_use]
    pub fn state_config(&self) -> Self {
        Self {
            lists: self.lists.clone(),
            ..Self::default()
        }
    }
}

/// `dpi`. Its cost is that of ten thousand literals; a hundred patterns take a third of it.
pub static DPI: Kind = Kind {
    name: "dpi",
    class: Class::Advanced,
    user: Some(Cost::new(25.0, 0.35)),
    touches: Touches::Payload,
    guards: true,
    config: DpiConfig::KEYS,
    description: "Searches payloads for literals and regular expressions. Drops, marks or mirrors packets \
                  that hold one. Does not find patterns that span several packets. Needs libhs.so.5 \
                  (Hyperscan or Vectorscan) on the node.",
    example: "{ name: ids, kind: dpi, config: { patterns: [ cmd.exe, '/select.+from/i' ] } }",
    counters: &[
        ("matched", "packets with a pattern"),
        ("matched-dropped", "dropped: a pattern with the action drop"),
        ("marked", "forwarded with the DSCP"),
        ("mirrored", "packets with a copy to the collector"),
        ("fragments-dropped", "dropped: a fragment"),
        ("failed-dropped", "dropped: the library failed to scan it"),
    ],
    read: |fields| {
        let before = fields.faults.count();
        let config = DpiConfig::from_fields(fields);
        // What was not read is no reason to complain of what is missing then.
        if fields.faults.count() == before {
            check_amount(&config, fields);
            check_mirror(&config, fields);
        }
        FunctionConfig::Dpi(config)
    },
    effect: |config| match config {
        // A copy of each packet may leave beside it.
        FunctionConfig::Dpi(config) if config.mirror.is_some() => Effect {
            added_packets: AddedPackets {
                parts: MILLIONTHS,
                window: 1,
                at_once: 0,
            },
            added_bytes: AddedBytes::new(MIRROR_BYTES, DEFAULT_MTU),
            ..Effect::default()
        },
        _ => Effect::default(),
    },
    ..Kind::BASE
};

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

fn lists(fields: &Fields<'_>) -> Vec<PatternList> {
    let (action, nocase) = (fields.value(&ACTION), fields.value(&NOCASE));
    let in_list = fields.get("patterns").map(|field| PatternList {
        file: field.faults.place(field.span).file,
        patterns: field
            .list(PATTERNS)
            .unwrap_or_default()
            .iter()
            .filter_map(|item| listed(item, action, nocase))
            .collect(),
    });
    let in_file = fields
        .get("patternsFile")
        .and_then(|field| file(&field, action, nocase));
    in_list.into_iter().chain(in_file).collect()
}

/// An element of `patterns`; `action` and `nocase` are of those that say nothing. What is wrong with it is told of the whole: its
/// quotes and escapes are YAML's as well.
fn listed(field: &Field<'_>, action: DpiAction, nocase: bool) -> Option<Pattern> {
    if !field.is_mapping() {
        return parse(field, action, nocase);
    }
    let fields = field.mapping(PATTERN_KEYS)?;
    let own_action: Option<_> = fields.read(PATTERN_KEYS, "action");
    let own_nocase: Option<_> = fields.read(PATTERN_KEYS, "nocase");
    let text = fields.required("pattern", PATTERN, "cmd.exe")?;
    let pattern = parse(
        &text,
        own_action.unwrap_or(action),
        own_nocase.unwrap_or(nocase),
    )?;
    if let Some(field) = fields.get("nocase").filter(|_| !pattern.literal) {
        field.fault(
            "`nocase` of a regular expression",
            "`nocase` beside a literal",
            "remove it, and write the flag i behind the last slash where letters shall match in either case",
        );
        return None;
    }
    Some(pattern)
}

fn parse(field: &Field<'_>, action: DpiAction, nocase: bool) -> Option<Pattern> {
    let text = field.text(PATTERN, EXAMPLE)?;
    pattern::parse(text, field.span.line, action, nocase)
        .map_err(|bad| field.add(bad.fault))
        .ok()
}

/// The patterns of a file, one a line.
fn file(field: &Field<'_>, action: DpiAction, nocase: bool) -> Option<PatternList> {
    const BLANKS: [char; 3] = [' ', '\t', '\r'];
    let (path, text) = list_file::read_text(field, "rules/ids.patterns")?;
    let inner = FaultLog::within(field.faults, path, &text);
    let mut patterns = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let text = line.trim_matches(BLANKS);
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        match pattern::parse(text, number, action, nocase) {
            Ok(pattern) => patterns.push(pattern),
            Err(BadPattern { at, fault }) => {
                // Blanks are one byte each.
                let indented = line.len() - line.trim_start_matches(BLANKS).len();
                let span = Span {
                    line: number,
                    column: 1 + indented + at,
                    width: (text.chars().count() - at).max(1),
                };
                inner.add(&field.path, span, fault);
            }
        }
        // One too many is enough to tell.
        if patterns.len() > MAX_PATTERNS || inner.count() == MAX_FAULTS {
            break;
        }
    }
    let file = inner.place(Span::START).file;
    field.faults.append(inner);
    Some(PatternList { file, patterns })
}

fn check_amount(config: &DpiConfig, fields: &Fields<'_>) {
    let (mut count, mut regexes, mut bytes) = (0, 0, 0);
    for (_, pattern) in config.patterns() {
        count += 1;
        regexes += usize::from(!pattern.literal);
        bytes += pattern.regex.len();
    }
    let expected = format!("1 to {MAX_PATTERNS} patterns, in `patterns` and `patternsFile`");
    let listed = fields
        .get("patternsFile")
        .or_else(|| fields.get("patterns"));
    let Some(field) = listed else {
        fields.required("patterns", &expected, "[ cmd.exe ]");
        return;
    };
    if count == 0 {
        let help = "write for example patterns: [ cmd.exe ]";
        field.fault("there is no pattern", expected, help);
    } else if count > MAX_PATTERNS {
        let message = format!("more than {MAX_PATTERNS} patterns");
        field.fault(message, expected, "split them over two functions");
    } else if regexes > MAX_REGEXES {
        field.fault(
            format!("{regexes} regular expressions"),
            format!("at most {MAX_REGEXES} regular expressions in one dpi; literals do not count"),
            "write those that are plain text as literals, or split them over two functions",
        );
    } else if bytes > MAX_TOTAL_BYTES {
        field.fault(
            format!("patterns of {bytes} bytes in all, as regular expressions"),
            format!("at most {MAX_TOTAL_BYTES} bytes in one dpi"),
            "look for shorter parts, or split the patterns over two functions",
        );
    }
}

fn check_mirror(config: &DpiConfig, fields: &Fields<'_>) {
    let mirrors = config
        .patterns()
        .any(|(_, pattern)| pattern.action == DpiAction::Mirror);
    if mirrors && config.mirror.is_none() {
        let example = "{ address: 10.0.0.9, source: 10.0.0.1 }";
        fields.required("mirror", "where the copies of `action: mirror` go", example);
    } else if let Some(field) = fields.get("mirror").filter(|_| !mirrors) {
        field.fault(
            "no pattern has the action `mirror`",
            "`mirror` beside `action: mirror`",
            "remove `mirror`, or write `action: mirror`",
        );
    }
}

fn mirror(fields: &Fields<'_>) -> Option<MirrorConfig> {
    let field = fields.get("mirror")?;
    let before = field.faults.count();
    let mirror = MirrorConfig::read(&field, &MIRROR)?;
    let (address, source) = (mirror.address, mirror.source);
    if field.faults.count() == before && address.is_ipv4() != source.is_ipv4() {
        field.fault(
            format!("copies from {source} to {address}"),
            "`source` and `address` of one family",
            "write two IPv4 or two IPv6 addresses",
        );
    }
    Some(mirror)
}

fn address(fields: &Fields<'_>) -> IpAddr {
    let examples = ("10.0.0.9", "10.0.0.9");
    read_host(fields, "address", "an address of one host", examples)
}

fn source(fields: &Fields<'_>) -> IpAddr {
    let examples = ("10.0.0.1", "10.0.0.1");
    read_host(fields, "source", "an address of one host", examples)
}
