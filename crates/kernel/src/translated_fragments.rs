//! The map of `translated_fragments.h`: the translations of recent first fragments.

use libbpf_rs::MapType;

use crate::state::MapShape;

/// Bytes of `struct translated_datagram`.
const DATAGRAM: usize = 40;
/// Bytes of `struct translation`.
const TRANSLATION: usize = 32;
/// Datagrams that a function remembers. Same number as in user space.
const DATAGRAMS: u32 = 4096;

/// The map, which both sides of a function share.
pub(crate) const TRANSLATIONS: MapShape = MapShape {
    name: "translations",
    kind: MapType::LruHash,
    key: DATAGRAM,
    value: TRANSLATION,
    entries: DATAGRAMS,
    flags: 0,
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::{LOAD_BALANCER, NAT};
    use crate::tests::layout;

    #[test]
    fn sizes_match_the_c_layout() {
        for object in [&NAT, &LOAD_BALANCER] {
            assert_eq!(layout(object, "translated_datagram").0, DATAGRAM);
            assert_eq!(layout(object, "translation").0, TRANSLATION);
        }
    }
}
