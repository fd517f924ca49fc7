//! `xor`.

use super::prelude::*;

config! {
    /// Configuration of an `xor` function.
    #[derive(Copy)]
    pub struct XorConfig {
        /// the byte that every byte of the payload is XORed with; 0x5a and 90 are the same
        "key" key: u8 = integer(0, 255, "a byte").required();
    }
}

/// `xor`. Basic, though it works on the payload: it computes little and needs no run-time environment (CALVIN, section
/// IV-A).
pub static XOR: Kind = Kind {
    name: "xor",
    class: Class::Basic,
    kernel: Some(Cost::new(15.0, 0.05)),
    user: Some(Cost::new(9.0, 0.03)),
    touches: Touches::Payload,
    config: XorConfig::KEYS,
    description: "XORs every byte of the UDP or TCP payload with one static key and corrects the checksum. Drops packets that \
                  have no such payload to find: fragments and other protocols.",
    example: "{ name: coder, kind: xor, config: { key: 0x5a } }",
    kernel_constants: Some(|config| match config {
        FunctionConfig::Xor(config) => vec![u64::from_ne_bytes([config.key; 8])],
        _ => Vec::new(),
    }),
    effect: |config| match config {
        FunctionConfig::Xor(XorConfig { key }) => Effect {
            payload_key: *key,
            ..Effect::default()
        },
        _ => Effect::default(),
    },
    read: |fields| FunctionConfig::Xor(XorConfig::of(fields)),
    ..Kind::BASE
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_leaves_on_the_payload_is_told() {
        let config = FunctionConfig::Xor(XorConfig { key: 0x5a });
        assert_eq!(config.effect().payload_key, 0x5a);
        assert_eq!(FunctionConfig::Forward.effect().payload_key, 0);
    }
}
