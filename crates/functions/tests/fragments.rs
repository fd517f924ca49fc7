//! Compares what each function does with fragments with the description of its kind.

use std::collections::BTreeMap;

use myelin_functions::{Discard, Error, Packet, States, Verdict};
use myelin_packet::{Meta, fixtures};
use myelin_spec::catalogue::{self, FragmentSupport};
use myelin_spec::{Source, parse};

const ROOM: usize = 2048;

#[test]
fn functions_that_need_the_whole_datagram_drop_fragments() {
    let files = BTreeMap::from([("/dev/urandom".to_owned(), "5a".repeat(32))]);
    let is_fragment = |fixture: &fixtures::Fixture| {
        let headers = fixture.expected;
        headers.is_ok_and(|headers| headers.flags.is_fragment())
    };
    let fragments: Vec<_> = fixtures::all().into_iter().filter(is_fragment).collect();
    assert!(fragments.len() >= 5);
    for kind in catalogue::kinds() {
        let text = format!(
            "apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: {{ name: a }}\nspec:\n  match: {{}}\n  \
             functions: [ {} ]\n",
            kind.example
        );
        let chains = parse(&text, &Source::new("a.yaml"), &files).unwrap();
        let mut function = match States::default().instantiate(&chains[0].instances(0..1)[0]) {
            Ok(function) => function,
            Err(Error::External) => continue,
            Err(Error::Dpi(cause)) => {
                println!("SKIP: dpi: {cause}");
                continue;
            }
            Err(cause) => panic!("{}: {cause}", kind.name),
        };
        for fixture in &fragments {
            let mut buffer = fixture.frame.clone();
            buffer.resize(ROOM, 0);
            let meta = Meta::new(1, 2, 3, 0, &fixture.expected.unwrap());
            let len = fixture.frame.len();
            let mut packet = Packet::new(&mut buffer, 0, len, meta, 0).unwrap();
            let verdict = function.process(&mut packet, &mut Discard);
            if kind.fragments == FragmentSupport::WholeDatagram {
                assert_eq!(verdict, Verdict::Drop, "{}: {}", kind.name, fixture.name);
            }
            if kind.name == "compress" || kind.name == "decompress" {
                assert_eq!(verdict, Verdict::Forward, "{}: {}", kind.name, fixture.name);
                assert_eq!(packet.bytes(), fixture.frame, "{}", kind.name);
            }
        }
    }
}
