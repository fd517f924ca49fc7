//! Kinds that need the whole datagram drop fragments in each space, the first one included.

use myelin_packet::fixtures;
use myelin_spec::catalogue::{self, FragmentSupport};
use myelin_spec::{NoFiles, Source, Space, parse};

use crate::space::Spaces;

#[test]
fn kinds_of_both_spaces_that_need_the_whole_datagram_drop_fragments() {
    let fragments: Vec<_> = fixtures::all()
        .into_iter()
        .filter(|fixture| {
            let headers = fixture.expected;
            headers.is_ok_and(|headers| headers.flags.is_fragment())
        })
        .collect();
    let mut kinds = Vec::new();
    for kind in catalogue::kinds() {
        let is_in_both = kind.spaces().any(|space| space == Space::Kernel)
            && kind.spaces().any(|space| space == Space::User);
        if kind.fragments != FragmentSupport::WholeDatagram || !is_in_both {
            continue;
        }
        kinds.push(kind.name);
        let chains = parse(&kind.chain_file(), &Source::new("a.yaml"), &NoFiles).unwrap();
        let loaded = Spaces::all().load(&chains[0].instances(0..1));
        for fixture in &fragments {
            loaded.expect(&fixture.frame, None, fixture.name);
        }
    }
    assert_eq!(kinds, ["xor", "timestamp"]);
}
