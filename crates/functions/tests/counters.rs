//! Compares the counters of each function with the description of its kind.

use std::collections::BTreeMap;

use myelin_functions::{Error, States};
use myelin_spec::{Source, catalogue, parse};

#[test]
fn reported_counters_equal_the_described_counters() {
    let files = BTreeMap::from([("/dev/urandom".to_owned(), "5a".repeat(32))]);
    for kind in catalogue::kinds() {
        let text = format!(
            "apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: {{ name: a }}\nspec:\n  match: {{}}\n  \
             functions: [ {} ]\n",
            kind.example
        );
        let chains = parse(&text, &Source::new("a.yaml"), &files).unwrap();
        let function = match States::default().instantiate(&chains[0].instances(0..1)[0]) {
            Ok(function) => function,
            Err(Error::External) => continue,
            Err(Error::Dpi(cause)) => {
                println!("SKIP: dpi: {cause}");
                continue;
            }
            Err(cause) => panic!("{}: {cause}", kind.name),
        };
        let mut reported = Vec::new();
        function.read_counters(&mut |name, _| reported.push(name));
        let described: Vec<_> = kind.counters.iter().map(|(name, _)| *name).collect();
        assert_eq!(reported, described, "{}", kind.name);
    }
}
