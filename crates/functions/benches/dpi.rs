//! Measures `dpi` by patterns, payload length and payload contents, and compares it with the plain
//! scan of the library and with `aho-corasick`.
//!
//! Run `cargo bench -p myelin-functions --bench dpi`. It needs libhs.so.5. Kinds of payloads:
//!
//! * `random`, `text`: no match, and few similar words.
//! * `prefixes`, `suffixes`: no match, but only words that lack their last or first byte, so that
//!   all text is similar to a pattern.
//! * `match`: text with a match at its end, in each packet. The function marks the packet.

mod common;

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aho_corasick::AhoCorasick;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use myelin_functions::dpi::library::{self, Database, Expression, Scanner};
use myelin_functions::{Batch, Discard, Function, instantiate};
use myelin_packet::fixtures::build;
use myelin_spec::{DpiAction, DpiConfig, DpiFragments, FunctionConfig, Pattern, PatternList};

/// A generator of pseudo-random numbers (xorshift).
struct Random(u64);

impl Random {
    fn draw_below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Returns words of 8 to 24 letters and digits.
fn make_literals(count: usize) -> Vec<String> {
    const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    let mut random = Random(1);
    (0..count)
        .map(|_| {
            let length = 8 + random.draw_below(17);
            (0..length)
                .map(|_| LETTERS[random.draw_below(36) as usize] as char)
                .collect()
        })
        .collect()
}

/// Patterns to search for, and the words for payloads.
struct Patterns {
    expressions: Vec<String>,
    is_literal: bool,
    /// The words in the patterns.
    words: Vec<String>,
    /// A text that one of the patterns matches.
    sample: String,
}

/// Returns patterns that are plain words.
fn make_word_patterns(count: usize) -> Patterns {
    let words = make_literals(count);
    Patterns {
        expressions: words.clone(),
        is_literal: true,
        sample: words[0].clone(),
        words,
    }
}

/// Returns patterns of words with gaps, classes and repetitions between them.
fn make_regex_patterns(count: usize) -> Patterns {
    let words = make_literals(2 * count);
    let joints = [".+", "[0-9]{1,8}", "\\s*=\\s*", "(a|bc|def)?"];
    let pairs = words.chunks(2).zip(joints.iter().cycle());
    let expressions = pairs.map(|(pair, joint)| format!("{}{joint}{}", pair[0], pair[1]));
    Patterns {
        expressions: expressions.collect(),
        is_literal: false,
        sample: format!("{}-{}", words[0], words[1]),
        words,
    }
}

fn make_payload(kind: &str, len: usize, patterns: &Patterns) -> Vec<u8> {
    const ENGLISH: &[u8] = b"etaoinshrdlucmfwypvbgkjqxz etaoin shrdlu  0123456789.,";
    let mut random = Random(7);
    let mut text = |len| -> Vec<u8> {
        let letter = |_| ENGLISH[random.draw_below(ENGLISH.len() as u64) as usize];
        (0..len).map(letter).collect()
    };
    match kind {
        "random" => (0..len).map(|_| random.draw_below(256) as u8).collect(),
        "text" => text(len),
        "match" => {
            let sample = patterns.sample.as_bytes();
            [&text(len - sample.len()), sample].concat()
        }
        _ => {
            let mut fragments = Vec::new();
            while fragments.len() < len {
                let word = &patterns.words[random.draw_below(patterns.words.len() as u64) as usize];
                fragments.extend(match kind {
                    "prefixes" => word[..word.len() - 1].bytes(),
                    _ => word[1..].bytes(),
                });
                // A separator prevents that two fragments make a word.
                fragments.push(b'-');
            }
            fragments.truncate(len);
            fragments
        }
    }
}

fn make_config(expressions: &[String], literal: bool) -> FunctionConfig {
    let pattern = |(regex, line): (&String, usize)| Pattern {
        line,
        action: DpiAction::Mark,
        regex: regex.clone(),
        literal,
        caseless: false,
        multiline: false,
        dotall: false,
    };
    FunctionConfig::Dpi(DpiConfig {
        lists: vec![PatternList {
            file: "bench".to_owned(),
            patterns: expressions.iter().zip(1..).map(pattern).collect(),
        }],
        fragments: DpiFragments::Drop,
        dscp: 8,
        mirror: None,
    })
}

fn make_scanner(expressions: &[String]) -> Scanner {
    let expressions: Vec<_> = expressions
        .iter()
        .map(|regex| Expression {
            regex,
            caseless: false,
            multiline: false,
            dotall: false,
            bits: 1,
        })
        .collect();
    let database = Database::compile(&expressions).expect("expressions that compile");
    Scanner::new(Arc::new(database)).expect("memory")
}

/// Prints how much longer the function takes than the plain scan, as the median of paired rounds.
fn print_framing(
    name: &str,
    function: &mut dyn Function,
    batch: &mut Batch<'_>,
    scanner: &mut Scanner,
    payload: &[u8],
) {
    const ROUNDS: usize = 301;
    const CALLS: u32 = 200;
    let time = |run: &mut dyn FnMut()| {
        let start = Instant::now();
        (0..CALLS).for_each(|_| run());
        start.elapsed().as_nanos() as f64 / f64::from(CALLS)
    };
    let mut rounds: Vec<(f64, f64, f64)> = (0..ROUNDS)
        .map(|_| {
            let scan = time(&mut || {
                black_box(scanner.scan(black_box(payload), 1));
            });
            let whole = time(&mut || {
                black_box(function.process_batch(black_box(batch), &mut Discard));
            });
            (whole - scan, whole / scan, scan)
        })
        .collect();
    let mut median = |of: fn(&(f64, f64, f64)) -> f64| {
        rounds.sort_by(|a, b| of(a).total_cmp(&of(b)));
        of(&rounds[ROUNDS / 2])
    };
    let (more, ratio, scan) = (median(|r| r.0), median(|r| r.1), median(|r| r.2));
    println!(
        "framing {name}: scan {scan:.0} ns, the function {more:.0} ns more, ratio {ratio:.3} (medians of {ROUNDS} pairs)"
    );
}

fn bench_dpi(criterion: &mut Criterion) {
    match library::version() {
        Ok(version) => println!("library: {version}"),
        Err(error) => {
            println!("SKIP: dpi: {error}");
            return;
        }
    }
    let mut group = criterion.benchmark_group("dpi");
    group.warm_up_time(Duration::from_secs(1));
    group.measurement_time(Duration::from_secs(2));
    for (name, patterns) in [
        ("10-literals", make_word_patterns(10)),
        ("1000-literals", make_word_patterns(1000)),
        ("10000-literals", make_word_patterns(10_000)),
        ("100-regexes", make_regex_patterns(100)),
    ] {
        let expressions = &patterns.expressions;
        let config = make_config(expressions, patterns.is_literal);
        let start = Instant::now();
        let mut function = instantiate(&config).expect("a function");
        println!("{name}: made in {:.3} s", start.elapsed().as_secs_f64());
        let mut scanner = make_scanner(expressions);
        let plain = patterns
            .is_literal
            .then(|| AhoCorasick::new(expressions).expect("an automaton"));
        for (kind, len) in [
            ("random", 256),
            ("random", 1400),
            ("text", 256),
            ("text", 1400),
            ("prefixes", 1400),
            ("suffixes", 1400),
            ("match", 1400),
        ] {
            let payload = make_payload(kind, len, &patterns);
            let found = scanner.scan(&payload, 1);
            assert_eq!(found, Some((kind == "match").into()), "{name}/{kind}/{len}");
            let frame = build::udp(build::client_v4(), build::server_v4(), &payload);
            let mut buffers = vec![frame];
            let mut batch = common::make_batch(&mut buffers);
            let id = |of: &str| BenchmarkId::new(of, format!("{name}/{kind}/{len}"));
            group.throughput(Throughput::Bytes(len as u64));
            group.bench_function(id("function"), |bencher| {
                bencher.iter(|| function.process_batch(black_box(&mut batch), &mut Discard));
            });
            group.bench_function(id("scan"), |bencher| {
                bencher.iter(|| scanner.scan(black_box(&payload), 1));
            });
            if let Some(plain) = &plain {
                group.bench_function(id("aho-corasick"), |bencher| {
                    bencher.iter(|| plain.is_match(black_box(&payload)));
                });
            }
            print_framing(
                &format!("{name}/{kind}/{len}"),
                &mut *function,
                &mut batch,
                &mut scanner,
                &payload,
            );
        }
    }
    group.finish();
}

criterion_group!(benches, bench_dpi);
criterion_main!(benches);
