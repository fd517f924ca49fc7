//! Parses any text as a pattern file of a `dpi` function.

use std::collections::BTreeMap;

use arbitrary::{Arbitrary, Unstructured};
use myelin_spec::dpi::{MAX_PATTERN_BYTES, MAX_PATTERNS};
use myelin_spec::{FunctionConfig, Source, parse};

const CHAIN: &str = "{ apiVersion: myelin.dev/v1alpha1, kind: ServiceChain, \
    metadata: { name: ids }, spec: { match: { protocol: udp }, \
    functions: [ { name: ids, kind: dpi, config: { patternsFile: p } } ] } }";

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    let Ok(text) = <&str>::arbitrary_take_rest(Unstructured::new(data)) else {
        return;
    };
    let files = BTreeMap::from([("p".to_owned(), text.to_owned())]);
    match parse(CHAIN, &Source::new("fuzz.yaml"), &files) {
        Ok(chains) => {
            let FunctionConfig::Dpi(config) = &chains[0].functions[0].config else {
                panic!("not a dpi");
            };
            let lines = text.lines().count();
            assert!((1..=MAX_PATTERNS).contains(&config.patterns().count()));
            for (_, pattern) in config.patterns() {
                assert!((1..=lines).contains(&pattern.line));
                // A byte of a literal takes up to four bytes of the expression.
                assert!((1..=4 * MAX_PATTERN_BYTES).contains(&pattern.regex.len()));
                assert!(!pattern.regex.contains('\0'));
            }
        }
        Err(errors) => assert!(!errors.to_string().is_empty()),
    }
}
