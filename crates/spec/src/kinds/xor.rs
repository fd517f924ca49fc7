//! `xor`.

use super::prelude::*;

config! {
    /// Configuration of an `xor` function.
    #[derive(Copy)]
    pub struct XorConfig {
        /// The byte to XOR with each byte of the payload.
        "key" key: u8 = integer(0, 255, "a byte").required();
    }
}

/// `xor`. Basic, although it changes the payload: it computes little and needs no run-time
/// environment (CALVIN, section IV-A).
pub static XOR: Kind = Kind {
    name: "xor",
    class: Class::Basic,
    kernel: Some(Cost::new(15.0, 0.05)),
    user: Some(Cost::new(9.0, 0.03)),
    works_on: PacketParts::Payload,
    config: XorConfig::KEYS,
    fragments: FragmentSupport::WholeDatagram,
    description: "XORs each byte of the UDP or TCP payload with a static key. Corrects the checksum. Drops \
                  fragments and packets of other protocols.",
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
    read: |fields| FunctionConfig::Xor(XorConfig::from_fields(fields)),
    ..Kind::BASE
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn effect_names_the_key() {
        let config = FunctionConfig::Xor(XorConfig { key: 0x5a });
        assert_eq!(config.effect().payload_key, 0x5a);
        assert_eq!(FunctionConfig::Forward.effect().payload_key, 0);
    }
}
