//! Parses any text as a chain file.

use arbitrary::{Arbitrary, Unstructured};
use myelin_spec::{NoFiles, Source, parse, referenced_files};

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    let Ok(text) = <&str>::arbitrary_take_rest(Unstructured::new(data)) else {
        return;
    };
    let _ = referenced_files(text);
    if let Err(errors) = parse(text, &Source::new("fuzz.yaml"), &NoFiles) {
        assert!(errors.iter().next().is_some(), "an error without a reason");
        assert!(!errors.to_string().is_empty());
    }
}
