//! Runs each fuzz target on its corpus, and on changed copies of it, without a fuzzer.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

#[allow(
    unreachable_pub,
    reason = "this is also the library of the fuzz targets"
)]
#[path = "../../../fuzz/src/lib.rs"]
mod fuzz;

/// Declares a test for each target, with the count of changed inputs: few where the target is slow.
macro_rules! tests {
    ($($target:ident: $changes:literal,)*) => {
        const TARGETS: &[&str] = &[$(stringify!($target)),*];

        $(#[test]
        fn $target() {
            check(stringify!($target), fuzz::$target::run, $changes);
        })*
    };
}

tests! {
    aes_decrypt: 1000,
    capture_file: 2000,
    chain_file: 50,
    decompress: 1000,
    dpi_patterns: 100,
    image_layer: 300,
    parse_packet: 2000,
    rlnc_decode: 150,
    rlnc_recode: 300,
    rules: 20,
    wire_frames: 2000,
}

#[test]
fn each_fuzz_target_and_each_corpus_has_a_test() {
    let tests: BTreeSet<String> = TARGETS.iter().map(ToString::to_string).collect();
    for directory in ["fuzz/fuzz_targets", "fuzz/corpus"] {
        let names: BTreeSet<String> = entries(&root().join(directory))
            .iter()
            .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
            .collect();
        assert_eq!(names, tests, "{directory}");
    }
}

/// Runs a target on each file of its corpus, then on about `changes` changed copies of these files.
fn check(target: &str, run: fn(&[u8]), changes: usize) {
    let mut files = files(&root().join("fuzz/corpus").join(target));
    assert!(!files.is_empty(), "the corpus of {target} is empty");
    if target == "chain_file" {
        files.extend(self::files(&root().join("examples")));
    }
    let inputs: Vec<(String, Vec<u8>)> = files
        .iter()
        .map(|file| (file.display().to_string(), fs::read(file).unwrap()))
        .collect();
    for (file, bytes) in &inputs {
        judge(run, bytes, file);
    }

    // Each place gives two changed inputs. All places together would take minutes.
    let places = inputs
        .iter()
        .flat_map(|(file, bytes)| (0..bytes.len()).map(move |at| (file, bytes, at)));
    let step = places.clone().count().div_ceil(changes / 2).max(1);
    for (file, bytes, at) in places.step_by(step) {
        judge(run, &bytes[..at], format_args!("{file}, cut to {at} bytes"));
        let bit = at % 8;
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << bit;
        judge(
            run,
            &flipped,
            format_args!("{file}, bit {bit} of byte {at} flipped"),
        );
    }
}

/// Panics with the name of the input when the target panics on it.
fn judge(run: fn(&[u8]), input: &[u8], name: impl Display) {
    assert!(
        catch_unwind(|| run(input)).is_ok(),
        "the target panics on {name}"
    );
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// Returns the files of a directory and of those below it.
fn files(directory: &Path) -> Vec<PathBuf> {
    entries(directory)
        .into_iter()
        .flat_map(|path| {
            if path.is_dir() {
                files(&path)
            } else {
                vec![path]
            }
        })
        .collect()
}

/// Returns what is in a directory, in the order of names. A directory that is absent is empty.
fn entries(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}
