//! The key `mtu`, which several kinds have.

use super::{ConfigKey, ValueType};
use crate::mtu::MIN_MTU;

/// The key for at most `max` bytes; `doc` says what becomes of longer packets.
pub(super) const fn mtu(max: u16, doc: &'static str) -> ConfigKey {
    ConfigKey {
        key: "mtu",
        value: ValueType::Integer {
            min: MIN_MTU as u64,
            max: max as u64,
        },
        required: false,
        default: Some("1500"),
        doc,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mtu::DEFAULT_MTU;

    #[test]
    fn the_default_is_what_is_taken() {
        assert_eq!(mtu(9000, "").default, Some(&*DEFAULT_MTU.to_string()));
    }
}
