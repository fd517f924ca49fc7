//! Parses any text as a chain file.

#![no_main]

use libfuzzer_sys::fuzz_target;
use myelin_spec::{NoFiles, Source, parse, referenced_files};

fuzz_target!(|text: &str| {
    let _ = referenced_files(text);
    if let Err(errors) = parse(text, &Source::new("fuzz.yaml"), &NoFiles) {
        assert!(errors.iter().next().is_some(), "an error without a reason");
        assert!(!errors.to_string().is_empty());
    }
});
