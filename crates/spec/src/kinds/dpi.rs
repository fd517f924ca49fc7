//! `dpi`: searches payloads for patterns.

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

/// The most patterns of one `dpi`.
pub const MAX_PATTERNS: usize = 65_536;
/// The most regular expressions of one `dpi`. The compile time grows with the square of their
/// number.
pub const MAX_REGEXES: usize = 1024;
/// The longest pattern, bytes: the bytes of a literal, or the text of a regular expression.
pub const MAX_PATTERN_BYTES: usize = 1024;
/// The most bytes of all patterns of one `dpi`. This limits compile time and memory.
pub const MAX_TOTAL_BYTES: usize = 4 << 20;
/// The bytes that a copy for the collector has in addition to the packet: headers of IPv6, UDP and
/// TZSP, and the Ethernet header of the copied frame with its tags.
const MIRROR_BYTES: u64 = 40 + 8 + 9 + 22;

const PATTERNS: &str = "a list of patterns such as cmd.exe or '/select.+from/i'";
const PATTERN: &str =
    "a pattern, or { pattern: PATTERN, action: drop|mark|mirror, nocase: true|false }";
const EXAMPLE: &str = "write for example { pattern: cmd.exe, action: drop }";
/// The most faults reported for a file of patterns.
const MAX_FAULTS: usize = 100;

word_enum! {
    /// The action on a packet that holds a pattern.
    #[derive(Default)]
    pub enum DpiAction {
        /// Drop it.
        #[default]
        Drop = "drop",
        /// Forward it with another DSCP.
        Mark = "mark",
        /// Forward it, and send a copy to the collector.
        Mirror = "mirror",
    }
}

word_enum! {
    /// The action on fragments: a payload may span several.
    #[derive(Default)]
    pub enum DpiFragments {
        /// Drop them, so that fragmentation evades no pattern.
        #[default]
        Drop = "drop",
        /// Inspect each separately. This misses a pattern that spans two fragments.
        Pass = "pass",
    }
}

const PATTERNS_FILE: ConfigKey = FILE.named(
    "patternsFile",
    "A text file with more patterns, one a line. Empty lines and lines that begin with # are \
     skipped.",
);
const ACTION: ConfigKey = DpiAction::KEY.with_default("drop").named(
    "action",
    "The action for patterns without one: drop the packet, mark it with the DSCP `dscp`, or send a \
     copy to `mirror`. All actions of all matching patterns apply.",
);
const NOCASE: ConfigKey = BOOLEAN.with_default("false").named(
    "nocase",
    "Whether the letters A to Z match in either case, for literals without their own `nocase`. \
     Regular expressions have the flag i instead.",
);
const MIRROR: ConfigKey = ConfigKey::new(ValueType::Mirror(MirrorConfig::KEYS));

config! {
    /// Configuration of a `dpi` function. It has at least one pattern, in groups by file, and a
    /// mirror if a pattern has the action `mirror`.
    pub struct DpiConfig {
        /// The patterns, each a text or a mapping. A text is a literal or /REGEX/FLAGS, with the
        /// flags i (either case), s (. matches line breaks), m (^ and $ match at line breaks). In a
        /// literal, \xNN is any byte, \\ a backslash, \/ a slash at its beginning. At most 65536
        /// with those of patternsFile, 1024 of them regular expressions, 1024 bytes each.
        "patterns" lists: Vec<PatternList> = ConfigKey::new(ValueType::Patterns(PATTERN_KEYS)).with_default("[]"), from read_lists,
            with PATTERNS_FILE, with ACTION, with NOCASE;
        /// The DSCP of marked packets.
        "dscp" dscp: u8 = integer(0, 63, "a DSCP").with_default("8");
        /// The collector of copies. They are TZSP over UDP and leave at the chain's egress.
        "mirror" mirror: Option<MirrorConfig> = MIRROR, from mirror;
        /// Drop fragments, or inspect each separately. Inspection misses a pattern that spans two
        /// fragments.
        "fragments" fragments: DpiFragments = DpiFragments::KEY.with_default("drop");
    }
}

keys! {
    /// Keys of a pattern with its own action or case.
    PATTERN_KEYS {
        /// The literal, or /REGEX/FLAGS.
        "pattern" = TEXT.required();
        /// The action on a packet that holds the pattern.
        "action" = DpiAction::KEY;
        /// Whether the letters A to Z of a literal match in either case.
        "nocase" = BOOLEAN;
    }
}

config! {
    /// The destination of copies.
    #[derive(Copy)]
    pub struct MirrorConfig {
        /// The collector's address.
        "address" address: IpAddr = TEXT.required(), from address;
        /// Its UDP port.
        "port" port: u16 = integer(1, 65_535, "a port").with_default("37008");
        /// The source address of copies, of the same family.
        "source" source: IpAddr = TEXT.required(), from source;
        /// The Ethernet destination of copies. Default: that of the packet.
        "mac" mac: Option<MacAddr> = TEXT;
        /// The Ethernet source of copies. Default: that of the packet.
        "sourceMac" source_mac: Option<MacAddr> = TEXT;
    }
}

impl DpiConfig {
    /// Returns the patterns, each with the name of its file.
    pub fn patterns(&self) -> impl Iterator<Item = (&str, &Pattern)> {
        self.lists
            .iter()
            .flat_map(|list| list.patterns.iter().map(|pattern| (&*list.file, pattern)))
    }

    /// Returns the part of the configuration that the compiled patterns depend on. Other changes
    /// need no compilation.
    #[must_use]
    pub fn state_config(&self) -> Self {
        Self {
            lists: self.lists.clone(),
            ..Self::default()
        }
    }
}

/// `dpi`. The cost is for ten thousand literals; with a hundred patterns the cost is a third.
pub static DPI: Kind = Kind {
    name: "dpi",
    class: Class::Advanced,
    user: Some(Cost::new(25.0, 0.35)),
    works_on: PacketParts::Payload,
    fails_closed: true,
    config: DpiConfig::KEYS,
    fragments: FragmentSupport::WholeDatagram,
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
        // The parser leaves out faulty parts, so their absence is no further fault.
        if fields.faults.count() == before {
            check_amount(&config, fields);
            check_mirror(&config, fields);
        }
        FunctionConfig::Dpi(config)
    },
    effect: |config| match config {
        // A copy of each packet may leave in addition to the packet.
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

/// The patterns of one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PatternList {
    /// The name of the chain file or of the file of patterns.
    pub file: String,
    /// The patterns, in the file's order.
    pub patterns: Vec<Pattern>,
}

/// A pattern, as a regular expression in PCRE's syntax over bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pattern {
    /// Line in the pattern's file, from 1.
    pub line: usize,
    /// The action on packets that hold the pattern.
    pub action: DpiAction,
    /// The expression. For a literal, the expression matches exactly the literal's bytes.
    pub regex: String,
    /// Whether the file has the pattern as a literal.
    pub literal: bool,
    /// Whether the letters A to Z match in either case: the flag `i` of a regular expression,
    /// `nocase` of a literal.
    pub caseless: bool,
    /// Whether `^` and `$` match at line breaks too (flag `m`).
    pub multiline: bool,
    /// Whether `.` matches a line break too (flag `s`).
    pub dotall: bool,
}

fn read_lists(fields: &Fields<'_>) -> Vec<PatternList> {
    let (action, nocase) = (fields.value(&ACTION), fields.value(&NOCASE));
    let in_list = fields.get("patterns").map(|field| PatternList {
        file: field.faults.place(field.span).file,
        patterns: field
            .list(PATTERNS)
            .unwrap_or_default()
            .iter()
            .filter_map(|item| read_element(item, action, nocase))
            .collect(),
    });
    let in_file = fields
        .get("patternsFile")
        .and_then(|field| read_file(&field, action, nocase));
    in_list.into_iter().chain(in_file).collect()
}

/// Reads an element of `patterns`; `action` and `nocase` are the defaults. A fault marks the whole
/// element, because YAML's quotes and escapes hide the exact column.
fn read_element(field: &Field<'_>, action: DpiAction, nocase: bool) -> Option<Pattern> {
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
            "`nocase` only for a literal",
            "remove `nocase`; add the flag i after the last slash to match letters in either case",
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

/// Reads the patterns of a file, one a line.
fn read_file(field: &Field<'_>, action: DpiAction, nocase: bool) -> Option<PatternList> {
    const BLANKS: [char; 3] = [' ', '\t', '\r'];
    let (path, text) = list_file::read_text(field, "rules/ids.patterns")?;
    let inner = FaultLog::for_named_file(field.faults, path, &text);
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
        // `check_amount` logs the fault if the list has one pattern above the limit.
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
    let last = fields
        .get("patternsFile")
        .or_else(|| fields.get("patterns"));
    let Some(field) = last else {
        fields.required("patterns", &expected, "[ cmd.exe ]");
        return;
    };
    if count == 0 {
        let help = "write for example patterns: [ cmd.exe ]";
        field.fault("there is no pattern", expected, help);
    } else if count > MAX_PATTERNS {
        let message = format!("more than {MAX_PATTERNS} patterns");
        field.fault(message, expected, "split the patterns over two functions");
    } else if regexes > MAX_REGEXES {
        field.fault(
            format!("{regexes} regular expressions"),
            format!("at most {MAX_REGEXES} regular expressions in one dpi; literals do not count"),
            "write plain texts as literals, or split the patterns over two functions",
        );
    } else if bytes > MAX_TOTAL_BYTES {
        field.fault(
            format!("patterns of {bytes} bytes in all, as regular expressions"),
            format!("at most {MAX_TOTAL_BYTES} bytes in one dpi"),
            "search for shorter parts, or split the patterns over two functions",
        );
    }
}

fn check_mirror(config: &DpiConfig, fields: &Fields<'_>) {
    let mirrors = config
        .patterns()
        .any(|(_, pattern)| pattern.action == DpiAction::Mirror);
    if mirrors && config.mirror.is_none() {
        let example = "{ address: 10.0.0.9, source: 10.0.0.1 }";
        fields.required(
            "mirror",
            "the destination of the copies of `action: mirror`",
            example,
        );
    } else if let Some(field) = fields.get("mirror").filter(|_| !mirrors) {
        field.fault(
            "no pattern has the action `mirror`",
            "`mirror` only with `action: mirror`",
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
