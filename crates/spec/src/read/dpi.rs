//! Reads the configuration of a `dpi`.

use std::net::IpAddr;

use super::field::{Field, Fields};
use super::pattern::{self, BadPattern};
use super::worker::YES_NO;
use super::{list_file, router};
use crate::catalogue::{MIRROR_KEYS, PATTERN_KEYS};
use crate::dpi::{
    DpiAction, DpiConfig, MAX_PATTERNS, MAX_REGEXES, MAX_TOTAL_BYTES, MirrorConfig, Pattern,
    PatternList, TZSP_PORT,
};
use crate::error::{Fault, Report};
use crate::files::FileResolver;
use crate::printable::Printable;
use crate::yaml::Span;

const PATTERNS: &str = "a list of patterns such as cmd.exe or '/select.+from/i'";
const PATTERN: &str =
    "a pattern, or { pattern: PATTERN, action: drop|mark|mirror, nocase: true|false }";
const EXAMPLE: &str = "write for example { pattern: cmd.exe, action: drop }";
/// Faults of a file of patterns that are told; more would hardly be read.
const MAX_FAULTS: usize = 100;

/// `None` when there is no usable pattern; what else is wrong is reported.
pub(super) fn read(
    fields: &Fields<'_>,
    files: &dyn FileResolver,
    report: &mut Report<'_>,
) -> Option<DpiConfig> {
    let before = report.count();
    let action = fields
        .get("action")
        .and_then(|field| field.word(report, DpiAction::WORDS))
        .unwrap_or_default();
    let nocase = fields
        .get("nocase")
        .and_then(|field| field.word(report, YES_NO))
        .unwrap_or_default();
    let listed = fields.get("patterns");
    let filed = fields.get("patternsFile");
    let in_list = listed
        .as_ref()
        .map(|field| list(field, action, nocase, report));
    let in_file = filed
        .as_ref()
        .and_then(|field| file(field, action, nocase, files, report));
    let lists: Vec<_> = in_list.into_iter().chain(in_file).collect();
    let mirror_field = fields.get("mirror");
    let mirror = mirror_field
        .as_ref()
        .and_then(|field| mirror(field, report));
    let config = DpiConfig {
        lists,
        fragments: fields
            .get("fragments")
            .and_then(|field| field.word(report, crate::DpiFragments::WORDS))
            .unwrap_or_default(),
        dscp: fields
            .get("dscp")
            .and_then(|field| field.integer(report, 0..=63, "a DSCP"))
            .map_or(DpiConfig::DEFAULT_DSCP, |dscp| dscp as u8),
        mirror,
    };
    // What was not read is no reason to complain of what is missing then.
    if report.count() == before {
        check_amount(&config, fields, filed.or(listed), report);
        check_mirror(&config, fields, mirror_field, report);
    }
    (report.count() == before).then_some(config)
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
        .and_then(|field| field.word(report, YES_NO));
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
    files: &dyn FileResolver,
    report: &mut Report<'_>,
) -> Option<PatternList> {
    let (path, text) = list_file::text(field, files, report, "rules/ids.patterns")?;
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

fn check_amount(
    config: &DpiConfig,
    fields: &Fields<'_>,
    field: Option<Field<'_>>,
    report: &mut Report<'_>,
) {
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
    let Some(field) = field else {
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

fn check_mirror(
    config: &DpiConfig,
    fields: &Fields<'_>,
    field: Option<Field<'_>>,
    report: &mut Report<'_>,
) {
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
    } else if let Some(field) = field.filter(|_| !mirrors) {
        let fault = Fault::new(
            "no pattern has the action `mirror`",
            "`mirror` beside `action: mirror`",
            "remove `mirror`, or write `action: mirror`",
        );
        field.fault(report, fault);
    }
}

fn mirror(field: &Field<'_>, report: &mut Report<'_>) -> Option<MirrorConfig> {
    let fields = field.map(report, MIRROR_KEYS)?;
    let mut host = |key: &str, example: &str| address(&fields, key, example, report);
    let (address, source) = (host("address", "10.0.0.9"), host("source", "10.0.0.1"));
    let port = fields
        .get("port")
        .and_then(|field| field.integer(report, 1..=65_535, "a port"));
    let mac = router::mac(&fields, "mac", report);
    let source_mac = router::mac(&fields, "sourceMac", report);
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
        port: port.map_or(TZSP_PORT, |port| port as u16),
        source,
        mac,
        source_mac,
    })
}

fn address(
    fields: &Fields<'_>,
    key: &str,
    example: &str,
    report: &mut Report<'_>,
) -> Option<IpAddr> {
    const EXPECTED: &str = "an address of one host, IPv4 or IPv6";
    let help = format!("write for example {example}");
    let field = fields.required(report, key, EXPECTED, example)?;
    let text = field.text(report, EXPECTED, &help)?;
    let address = text.parse().ok().filter(router::is_host);
    if address.is_none() {
        let message = format!("`{}` is not an address of one host", Printable(text));
        field.fault(report, Fault::new(message, EXPECTED, help));
    }
    address
}
