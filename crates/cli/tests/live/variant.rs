//! Variants of one chain. Each variant changes the payload in a different way.

use std::path::PathBuf;

use crate::common::Myelin;

const MATCH: &str = "{ protocol: udp, destination: 10.0.0.2/32, destinationPort: 9000 }";

/// One variant of a chain: match, mapping, functions as text of the chain file, and the keys of the
/// xor functions in order.
pub(crate) struct ChainVariant {
    pub(crate) matches: &'static str,
    pub(crate) mapping: &'static str,
    pub(crate) functions: Vec<String>,
    pub(crate) keys: Vec<u8>,
}

impl ChainVariant {
    /// Makes a variant. Each of `functions` is a letter for the space (`k`, `u`) and the kind: `f`
    /// forward, `w` firewall, `m` monitor, or the key of an xor in hex.
    pub(crate) fn new(functions: &[&str]) -> Self {
        let mut variant = Self {
            matches: MATCH,
            mapping: "compact",
            functions: Vec::new(),
            keys: Vec::new(),
        };
        for (at, function) in functions.iter().enumerate() {
            let (space, kind) = function.split_at(1);
            let space = if space == "k" { "kernel" } else { "user" };
            if kind == "m" {
                variant
                    .functions
                    .push(format!("{{ name: meter, kind: monitor, space: {space} }}"));
                continue;
            }
            let kind = match kind {
                "f" => "forward".to_owned(),
                "w" => "firewall, config: { rules: [ { action: deny, source: 192.0.2.0/24 } ] }"
                    .to_owned(),
                key => {
                    variant.keys.push(u8::from_str_radix(key, 16).unwrap());
                    format!("xor, config: {{ key: 0x{key} }}")
                }
            };
            variant
                .functions
                .push(format!("{{ name: f{at}, kind: {kind}, space: {space} }}"));
        }
        variant
    }

    pub(crate) fn with_match(mut self, matches: &'static str) -> Self {
        self.matches = matches;
        self
    }

    pub(crate) fn with_mapping(mut self, mapping: &'static str) -> Self {
        self.mapping = mapping;
        self
    }

    /// Returns the XOR of all keys.
    pub(crate) fn key(&self) -> u8 {
        self.keys.iter().fold(0, |all, key| all ^ key)
    }

    /// Writes the chain file.
    pub(crate) fn write_file(&self, myelin: &Myelin) -> PathBuf {
        myelin.write_file(&self.to_yaml("@live"))
    }

    /// Formats the chain for a chain file.
    pub(crate) fn to_yaml(&self, name: &str) -> String {
        format!(
            "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: {{ name: {name} }}
spec:
  match: {}
  mapping: {}
  functions:
    - {}
",
            self.matches,
            self.mapping,
            self.functions.join("\n    - ")
        )
    }
}
