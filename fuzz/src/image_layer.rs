//! Unpacks layers of any bytes: nothing is written outside of the root.

use std::fs;

use myelin_image::{Limits, unpack_layer};

const LIMITS: Limits = Limits {
    bytes: 1 << 20,
    entries: 1000,
};

pub fn run(data: &[u8]) {
    let around = tempfile::tempdir().expect("a directory is made");
    let root = around.path().join("root");
    let victim = around.path().join("victim");
    fs::create_dir(&root).expect("a directory is made");
    fs::write(&victim, "safe").expect("a file is written");
    // Most inputs are refused.
    let _ = unpack_layer(data, &root, &LIMITS);
    assert_eq!(fs::read(&victim).expect("the file stays"), b"safe");
    let names = fs::read_dir(around.path()).expect("the directory stays");
    assert_eq!(names.count(), 2, "nothing is made outside of the root");
}
