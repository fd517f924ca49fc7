//! `dpi`: patterns that are looked for in each packet's payload.

use std::net::IpAddr;

use myelin_packet::MacAddr;
use serde::{Deserialize, Serialize};

use super::DEFAULT_MTU;
use crate::FunctionConfig;
use crate::catalogue::{
    BOOLEAN, Class, ConfigKey, FILE, Kind, State, TEXT, Touches, ValueType, cost, integer,
};
use crate::effect::{Effect, Longer, Made, PARTS};
use crate::error::{Fault, Report};
use crate::keys::{Readable, config, keys};
use crate::read::address::{host, mac};
use crate::read::field::{Field, Fields};
use crate::read::list_file;
use crate::words::word_enum;
use crate::yaml::Span;
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
    "a text file with further patterns, one a line; empty lines are skipped, and those that begin with #",
);
const ACTION: ConfigKey = DpiAction::KEY.or("drop").named(
    "action",
    "what happens to a packet with a pattern that has no action of its own: it is dropped, or goes on with the \
     DSCP `dscp`, or goes on while a copy goes to `mirror`. With several actions all apply",
);
const NOCASE: ConfigKey = BOOLEAN.or("false").named(
    "nocase",
    "whether the letters A to Z of a literal that says nothing of it match in either case; regular expressions have the \
     flag i instead",
);
/// TZSP's port.
const PORT: ConfigKey = integer(1, 65_535, "a port").or("37008");

config! {
    /// Configuration of a `dpi` function. The patterns are by where they are written, all apply, and there is at least one; the mirror is
    /// given when some pattern has that action.
    pub struct DpiConfig {
        /// what to look for: a literal, or /REGEX/FLAGS with the flags i (either case), s (. matches line breaks) and m (^ and $
        /// match at line breaks); or { pattern: PATTERN, action: drop|mark|mirror, nocase: true|false }. A literal writes \xNN for any byte,
        /// \\ for a backslash, \/ for a slash at its beginning. At most 65536 with those of patternsFile, 1024 of them
        /// regular expressions, of 1024 bytes each
        "patterns" lists: Vec<PatternList> = ConfigKey::new(ValueType::Patterns).or("[]"), from lists,
            with PATTERNS_FILE, with ACTION, with NOCASE;
        /// the DSCP of marked packets
        "dscp" dscp: u8 = integer(0, 63, "a DSCP").or("8");
        /// where copies go: { address: IP, port: PORT, source: IP, mac: MAC, sourceMac: MAC }; as TZSP over UDP, to port 37008
        /// unless `port` says otherwise, out of the chain's egress; `source` is the address they come from; Ethernet
        /// addresses that are left out are the packet's
        "mirror" mirror: Option<MirrorConfig> = ConfigKey::new(ValueType::Mirror), from mirror;
        /// fragments are dropped, or inspected each by itself, so that a pattern spread over two of them is not seen
        "fragments" fragments: DpiFragments = DpiFragments::KEY.or("drop");
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

keys! {
    /// Keys of where copies go.
    MIRROR_KEYS {
        /// the collector's address
        "address" = TEXT.required();
        /// its UDP port
        "port" = PORT;
        /// the address that copies come from, of the same family
        "source" = TEXT.required();
        /// the Ethernet address that copies go to; left out, that of the packet
        "mac" = TEXT;
        /// the Ethernet address that copies come from; left out, that of the packet
        "sourceMac" = TEXT;
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
    pub fn shape(&self) -> Self {
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
    user: Some(cost(25.0, 0.35)),
    touches: Touches::Payload,
    state: State::None,
    guards: true,
    config: DpiConfig::KEYS,
    description: "Looks for literals and regular expressions in the payload of each packet and drops, marks or mirrors those that \
                  hold one. Patterns that are spread over several packets are not seen. Needs libhs.so.5 (Hyperscan or \
                  Vectorscan) where it runs.",
    example: "{ name: ids, kind: dpi, config: { patterns: [ cmd.exe, '/select.+from/i' ] } }",
    counters: &[
        ("matched", "held a pattern"),
        ("matched-dropped", "dropped for a pattern"),
        ("marked", "went on marked"),
        ("mirrored", "a copy was sent"),
        ("fragments-dropped", "dropped: a fragment"),
        ("failed-dropped", "dropped: the library failed to scan it"),
    ],
    read: |fields, report| {
        let before = report.count();
        let config = DpiConfig::read(fields, report);
        // What was not read is no reason to complain of what is missing then.
        if report.count() == before {
            check_amount(&config, fields, report);
            check_mirror(&config, fields, report);
        }
        FunctionConfig::Dpi(config)
    },
    effect: |config| match config {
        // A copy of each packet may leave beside it.
        FunctionConfig::Dpi(config) if config.mirror.is_some() => Effect {
            made: Made {
                parts: PARTS,
                window: 1,
                at_once: 0,
            },
            longer: Longer::by(MIRROR_BYTES, DEFAULT_MTU),
            ..Effect::NONE
        },
        _ => Effect::NONE,
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

fn lists(fields: &Fields<'_>, report: &mut Report<'_>) -> Vec<PatternList> {
    let (action, nocase) = (fields.value(&ACTION, report), fields.value(&NOCASE, report));
    let in_list = fields
        .get("patterns")
        .map(|field| list(&field, action, nocase, report));
    let in_file = fields
        .get("patternsFile")
        .and_then(|field| file(&field, action, nocase, report));
    in_list.into_iter().chain(in_file).collect()
}

fn list(
    field: &Field<'_>,
    action: DpiAction,
    nocase: bool,
    report: &mut Report<'_>,
) -> PatternList {
    let items = field.list(report, PATTERNS).unwrap_or_default();
    let patterns = items
        .iter()
        .filter_map(|item| listed(item, action, nocase, report))
        .collect();
    PatternList {
        file: report.place(field.span).file,
        patterns,
    }
}

/// An element of `patterns`; `action` and `nocase` are of those that say nothing. What is wrong with it is told of the whole: its
/// quotes and escapes are YAML's as well.
fn listed(
    field: &Field<'_>,
    action: DpiAction,
    nocase: bool,
    report: &mut Report<'_>,
) -> Option<Pattern> {
    let fields = if field.is_map() {
        Some(field.map(report, PATTERN_KEYS)?)
    } else {
        None
    };
    let own = |key: &str| fields.as_ref().and_then(|fields| fields.get(key));
    let own_action = own("action").and_then(|field| field.word(report, DpiAction::WORDS));
    let nocase_field = own("nocase");
    let own_nocase = nocase_field
        .as_ref()
        .and_then(|field| bool::read(field, &NOCASE, report));
    let text_field = match &fields {
        Some(fields) => fields.required(report, "pattern", PATTERN, "cmd.exe")?,
        None => field.clone(),
    };
    let text = text_field.text(report, PATTERN, EXAMPLE)?;
    let pattern = pattern::parse(
        text,
        text_field.span.line,
        own_action.unwrap_or(action),
        own_nocase.unwrap_or(nocase),
    )
    .map_err(|bad| text_field.fault(report, bad.fault))
    .ok()?;
    if let Some(field) = nocase_field.filter(|_| !pattern.literal) {
        let fault = Fault::new(
            "`nocase` of a regular expression",
            "`nocase` beside a literal",
            "remove it, and write the flag i behind the last slash where letters shall match in either case",
        );
        field.fault(report, fault);
        return None;
    }
    Some(pattern)
}

/// The patterns of a file, one a line.
fn file(
    field: &Field<'_>,
    action: DpiAction,
    nocase: bool,
    report: &mut Report<'_>,
) -> Option<PatternList> {
    let (path, text) = list_file::text(field, report, "rules/ids.patterns")?;
    let mut inner = Report::new(path, &text);
    inner.object.clone_from(&report.object);
    let mut patterns = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let text = line.trim_matches([' ', '\t', '\r']);
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        match pattern::parse(text, number, action, nocase) {
            Ok(pattern) => patterns.push(pattern),
            Err(BadPattern { at, fault }) => {
                let indented = line.chars().count()
                    - line.trim_start_matches([' ', '\t', '\r']).chars().count();
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
    let list = PatternList {
        file: inner.place(Span::START).file,
        patterns,
    };
    report.absorb(inner);
    Some(list)
}

fn check_amount(config: &DpiConfig, fields: &Fields<'_>, report: &mut Report<'_>) {
    let count = config.patterns().count();
    let regexes = config
        .patterns()
        .filter(|(_, pattern)| !pattern.literal)
        .count();
    let bytes: usize = config
        .patterns()
        .map(|(_, pattern)| pattern.regex.len())
        .sum();
    let expected = format!("1 to {MAX_PATTERNS} patterns, in `patterns` and `patternsFile`");
    let Some(field) = fields
        .get("patternsFile")
        .or_else(|| fields.get("patterns"))
    else {
        fields.required(report, "patterns", &expected, "[ cmd.exe ]");
        return;
    };
    let fault = if count == 0 {
        let help = "write for example patterns: [ cmd.exe ]";
        Fault::new("there is no pattern", expected, help)
    } else if count > MAX_PATTERNS {
        Fault::new(
            format!("more than {MAX_PATTERNS} patterns"),
            expected,
            "split them over two functions",
        )
    } else if regexes > MAX_REGEXES {
        Fault::new(
            format!("{regexes} regular expressions"),
            format!("at most {MAX_REGEXES} regular expressions in one dpi; literals do not count"),
            "write those that are plain text as literals, or split them over two functions",
        )
    } else if bytes > MAX_TOTAL_BYTES {
        Fault::new(
            format!("patterns of {bytes} bytes in all, as regular expressions"),
            format!("at most {MAX_TOTAL_BYTES} bytes in one dpi"),
            "look for shorter parts, or split the patterns over two functions",
        )
    } else {
        return;
    };
    field.fault(report, fault);
}

fn check_mirror(config: &DpiConfig, fields: &Fields<'_>, report: &mut Report<'_>) {
    let mirrors = config
        .patterns()
        .any(|(_, pattern)| pattern.action == DpiAction::Mirror);
    if mirrors && config.mirror.is_none() {
        fields.required(
            report,
            "mirror",
            "where the copies of `action: mirror` go",
            "{ address: 10.0.0.9, source: 10.0.0.1 }",
        );
    } else if let Some(field) = fields.get("mirror").filter(|_| !mirrors) {
        let fault = Fault::new(
            "no pattern has the action `mirror`",
            "`mirror` beside `action: mirror`",
            "remove `mirror`, or write `action: mirror`",
        );
        field.fault(report, fault);
    }
}

fn mirror(fields: &Fields<'_>, report: &mut Report<'_>) -> Option<MirrorConfig> {
    let field = fields.get("mirror")?;
    let fields = field.map(report, MIRROR_KEYS)?;
    let mut address = |key: &str, example: &str| {
        let what = "an address of one host";
        host(&fields, key, what, (example, example), report)
    };
    let (address, source) = (
        address("address", "10.0.0.9"),
        address("source", "10.0.0.1"),
    );
    let port = fields.value(&PORT.named("port", ""), report);
    let mac_address = mac(&fields, "mac", report);
    let source_mac = mac(&fields, "sourceMac", report);
    let (address, source) = (address?, source?);
    if address.is_ipv4() != source.is_ipv4() {
        let fault = Fault::new(
            format!("copies from {source} to {address}"),
            "`source` and `address` of one family",
            "write two IPv4 or two IPv6 addresses",
        );
        field.fault(report, fault);
        return None;
    }
    Some(MirrorConfig {
        address,
        port,
        source,
        mac: mac_address,
        source_mac,
    })
}
