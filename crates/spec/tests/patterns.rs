//! Tests the patterns of a `dpi`, from lists and files.

use std::collections::BTreeMap;

use myelin_spec::dpi::{MAX_PATTERNS, MAX_REGEXES, MAX_TOTAL_BYTES};
use myelin_spec::{
    DpiAction, DpiConfig, DpiFragments, FunctionConfig, MirrorConfig, Source, parse,
};
use proptest::prelude::*;

/// Reads a `dpi` with this configuration and this file of patterns. Returns all messages if the
/// parser reports errors.
fn read(config: &str, file: &str) -> Result<DpiConfig, Vec<String>> {
    let text = format!(
        "apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: {{ name: ids }}\n\
         spec: {{ match: {{ protocol: udp }}, functions: [ {{ name: ids, kind: dpi, config: {config} }} ] }}\n"
    );
    let files = BTreeMap::from([("ids.patterns".to_owned(), file.to_owned())]);
    match parse(&text, &Source::new("ids.yaml"), &files) {
        Ok(mut chains) => match chains.remove(0).functions.remove(0).config {
            FunctionConfig::Dpi(config) => Ok(config),
            other => panic!("{other:?}"),
        },
        Err(errors) => Err(errors.iter().map(|error| error.message.clone()).collect()),
    }
}

const FILE: &str = "{ patternsFile: ids.patterns }";

#[test]
fn a_byte_order_mark_is_not_part_of_the_first_pattern() {
    let config = read(FILE, "\u{feff}/abc/i\r\ndef\r\n").unwrap();
    let found: Vec<_> = config
        .patterns()
        .map(|(_, p)| (&*p.regex, p.line))
        .collect();
    assert_eq!(found, [("abc", 1), ("def", 2)]);
    // The mark must not hide an unknown flag.
    let errors = read(FILE, "\u{feff}/abc/x").unwrap_err();
    assert!(errors[0].contains("flag"), "{errors:?}");
}

#[test]
fn patterns_of_list_and_file_have_their_locations() {
    let config = read(
        "{ patterns: [ a.b, { pattern: /C/i, action: mark }, { pattern: 12 } ], patternsFile: ids.patterns, \
           action: mirror, dscp: 46, fragments: pass, \
           mirror: { address: 10.0.0.9, port: 9, source: 10.0.0.1, mac: \"02:00:00:00:00:01\" } }",
        "# Comment\n\n  two words \r\n\\# x\n/d$/ms",
    )
    .unwrap();
    let found: Vec<_> = config
        .patterns()
        .map(|(file, pattern)| (file, pattern.line, pattern.action, &*pattern.regex))
        .collect();
    assert_eq!(
        found,
        [
            ("ids.yaml", 4, DpiAction::Mirror, "a\\x2eb"),
            ("ids.yaml", 4, DpiAction::Mark, "C"),
            ("ids.yaml", 4, DpiAction::Mirror, "12"),
            ("ids.patterns", 3, DpiAction::Mirror, "two\\x20words"),
            ("ids.patterns", 4, DpiAction::Mirror, "\\x23\\x20x"),
            ("ids.patterns", 5, DpiAction::Mirror, "d$"),
        ]
    );
    let literal: Vec<_> = config.patterns().map(|(_, p)| p.literal).collect();
    assert_eq!(literal, [true, false, true, true, true, false]);
    assert_eq!((config.dscp, config.fragments), (46, DpiFragments::Pass));
    let mirror = MirrorConfig {
        address: [10, 0, 0, 9].into(),
        port: 9,
        source: [10, 0, 0, 1].into(),
        mac: Some("02:00:00:00:00:01".parse().unwrap()),
        source_mac: None,
    };
    assert_eq!(config.mirror, Some(mirror));
    let json = serde_json::to_string(&FunctionConfig::Dpi(config.clone())).unwrap();
    let again: FunctionConfig = serde_json::from_str(&json).unwrap();
    assert_eq!(again, FunctionConfig::Dpi(config));
}

#[test]
fn absent_keys_have_the_defaults_of_the_catalogue() {
    let keys = myelin_spec::DPI.config.iter();
    let written: Vec<String> = keys
        .filter(|key| key.key != "patterns")
        .filter_map(|key| Some(format!("{}: {}", key.key, key.default?)))
        .collect();
    assert_eq!(written.len(), 4);
    let explicit = format!("{{ patterns: [ a ], {} }}", written.join(", "));
    assert_eq!(read(&explicit, ""), read("{ patterns: [ a ] }", ""));
}

/// `nocase` applies to literals of list and file. An element of the list may override `nocase`.
#[test]
fn nocase_applies_to_literals() {
    let caseless = |config: &str| -> Vec<bool> {
        let config = read(config, "file\n/file/").unwrap();
        config.patterns().map(|(_, p)| p.caseless).collect()
    };
    let patterns = "patterns: [ a, { pattern: a, nocase: true }, { pattern: a, nocase: false }, /a/, /a/i ], \
                    patternsFile: ids.patterns";
    assert_eq!(
        caseless(&format!("{{ {patterns} }}")),
        [false, true, false, false, true, false, false]
    );
    assert_eq!(
        caseless(&format!("{{ nocase: true, {patterns} }}")),
        [true, true, false, false, true, true, false]
    );
}

#[test]
fn every_limit_is_enforced() {
    let longest = "abc\n".repeat(MAX_PATTERNS);
    let count = read(FILE, &longest).unwrap().patterns().count();
    assert_eq!(count, MAX_PATTERNS);
    let refused = |file: &str| read(FILE, file).unwrap_err().join("; ");
    assert_eq!(refused(&(longest + "d")), "more than 65536 patterns");
    let regexes = "/a/\n".repeat(MAX_REGEXES) + "b\n";
    assert!(read(FILE, &regexes).is_ok());
    assert_eq!(refused(&(regexes + "/a/")), "1025 regular expressions");
    let long = "x".repeat(1000) + "\n";
    let lines = MAX_TOTAL_BYTES / 1000;
    assert!(read(FILE, &long.repeat(lines)).is_ok());
    let words = "4195000 bytes in all";
    assert!(refused(&long.repeat(lines + 1)).contains(words));
    assert_eq!(refused("# nothing\n"), "there is no pattern");
    let faults = read(FILE, &"\\q\n".repeat(1000)).unwrap_err();
    assert_eq!(faults.len(), 100);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// From any file the parser reads patterns within the limits, or it reports errors.
    #[test]
    fn no_file_of_patterns_panics(file in "([/\\\\xism#(*é \t\r\n]|[0-9a-f]|\\PC|[\\x00-\\x1f]){0,60}") {
        let lines = file.lines().count();
        if let Ok(config) = read(FILE, &file) {
            for (name, pattern) in config.patterns() {
                prop_assert!(name == "ids.patterns" && (1..=lines).contains(&pattern.line));
                prop_assert!(!pattern.regex.is_empty() && !pattern.regex.contains('\0'));
            }
        }
    }
}
