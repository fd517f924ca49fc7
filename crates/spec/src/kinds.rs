//! The kinds of service functions, a file each.
//!
//! A kind's file is all that this program says of it but its code: what it is ([`Kind`]), the keys of its configuration with their types,
//! defaults and meanings (`config!`), and what it does to traffic ([`Effect`]). The reader of chain files, the catalogue, the
//! schema, the pages in `docs/functions`, the planner's costs and the reports come from it. Start reading at [`xor`].

pub mod aes;
pub mod catalogue;
pub mod compression;
pub mod dpi;
pub mod external;
pub mod firewall;
pub mod flow_tracker;
pub mod forward;
pub mod load_balancer;
pub mod lossy_link;
pub mod monitor;
pub mod nat;
mod prelude;
pub mod rlnc;
pub mod router;
pub mod timestamp;
pub mod work;
pub mod xor;

use myelin_packet::FlowState;
use serde::{Deserialize, Serialize};

use crate::effect::Effect;
use crate::keys::{ConfigKey, integer};
use catalogue::{Kind, State};

pub use aes::Cipher;
pub use compression::{CompressionAlgorithm, Dictionary};
pub use dpi::{DpiAction, DpiFragments, MirrorConfig, Pattern, PatternList};
pub use firewall::FragmentPolicy;
pub use flow_tracker::InvalidPolicy;
pub use load_balancer::BackendSpec;
pub use rlnc::{RlncCode, RlncCoded, RlncDelivery};

/// Defines [`FunctionConfig`] and the list of all kinds: `module::Variant(Configuration) = KIND;`.
macro_rules! kinds {
    ($($(#[$attribute:meta])* $module:ident::$variant:ident $(($config:ident))? = $kind:ident $name:literal;)*) => {
        $(pub use $module::{$kind $(, $config)?};)*

        /// A function's kind together with what that kind is configured with.
        #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(tag = "kind")]
        pub enum FunctionConfig {
            $($(#[$attribute])* #[serde(rename = $name)] $variant $(($config))?,)*
        }

        impl FunctionConfig {
            /// The kind, from the catalogue.
            pub fn kind(&self) -> &'static Kind {
                match self {
                    $(Self::$variant { .. } => &$kind,)*
                }
            }
        }

        /// Every kind, in the order in which they are shown.
        static KINDS: &[&Kind] = &[$(&$kind),*];
    };
}

kinds! {
    /// Hands packets on unchanged.
    forward::Forward = FORWARD "forward";
    /// XORs the payload with a static key.
    xor::Xor(XorConfig) = XOR "xor";
    /// Drops what its rules deny.
    firewall::Firewall(FirewallConfig) = FIREWALL "firewall";
    /// Appends the times of arrival and departure to the UDP payload.
    timestamp::Timestamp = TIMESTAMP "timestamp";
    /// Counts packets and bytes by flow.
    monitor::Monitor(MonitorConfig) = MONITOR "monitor";
    /// Follows flows from their first packet to their last.
    flow_tracker::FlowTracker(FlowTrackerConfig) = FLOW_TRACKER "flow-tracker";
    /// Sends packets to their next hops.
    router::Router(RouterConfig) = ROUTER "router";
    /// Translates source addresses and ports.
    nat::Nat(NatConfig) = NAT "nat";
    /// Spreads flows over backends.
    load_balancer::LoadBalancer(LoadBalancerConfig) = LOAD_BALANCER "load-balancer";
    /// A program that nothing is known of.
    external::External(ExternalConfig) = EXTERNAL "external";
    /// Encrypts the UDP payload.
    aes::AesEncrypt(AesEncryptConfig) = AES_ENCRYPT "aes-encrypt";
    /// Decrypts it.
    aes::AesDecrypt(AesDecryptConfig) = AES_DECRYPT "aes-decrypt";
    /// Looks for patterns in payloads.
    dpi::Dpi(DpiConfig) = DPI "dpi";
    /// Loses packets.
    lossy_link::LossyLink(LossyLinkConfig) = LOSSY_LINK "lossy-link";
    /// Compresses UDP payloads.
    compression::Compress(CompressConfig) = COMPRESS "compress";
    /// Gives them back.
    compression::Decompress(DecompressConfig) = DECOMPRESS "decompress";
    /// Adds repair packets (random linear network coding).
    rlnc::RlncEncode(RlncEncodeConfig) = RLNC_ENCODE "rlnc-encode";
    /// Adds new combinations of coded packets.
    rlnc::RlncRecode(RlncRecodeConfig) = RLNC_RECODE "rlnc-recode";
    /// Works out lost packets from repair packets.
    rlnc::RlncDecode(RlncDecodeConfig) = RLNC_DECODE "rlnc-decode";
    /// Takes time, for experiments.
    work::Work(WorkConfig) = WORK "work";
}

impl FunctionConfig {
    /// What the function does to traffic.
    pub fn effect(&self) -> Effect {
        (self.kind().effect)(self)
    }

    /// How long it keeps a flow after the flow's last packet, ns; `None` for as long as there is room.
    pub fn flow_lifetime_ns(&self, is_tcp: bool, state: Option<FlowState>) -> Option<u64> {
        (self.kind().flow_lifetime_ns)(self, is_tcp, state)
    }

    /// The read-only data of its program in the kernel behind the program's place in the chain, where numbers are all that this needs.
    pub fn kernel_constants(&self) -> Option<Vec<u64>> {
        Some((self.kind().kernel_constants?)(self))
    }

    /// Whether it belongs into the process that has the sockets of its chain: it keeps a state that other chains or later
    /// generations use too, or it answers the senders of packets.
    pub fn stays_at_sockets(&self) -> bool {
        self.kind().state != State::None || self.effect().answers_senders
    }
}

/// Longest IP packet where nothing is said, bytes: Ethernet's.
pub const DEFAULT_MTU: u16 = 1500;

/// The longest IP packet that may leave, bytes. The least that may be asked for is what every IPv4 host must take (RFC 791, section
/// 3.1).
const fn mtu(max: u16) -> ConfigKey {
    integer(576, max as u64, "bytes of an IP packet").or("1500")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::catalogue::kinds;
    use crate::keys::ValueType;
    use crate::{FunctionConfig, Source, SpecErrors, parse};

    const KEY: &str = "5ec2e7005ec2e7005ec2e7005ec2e700";

    fn read(function: &str) -> Result<FunctionConfig, SpecErrors> {
        let text = format!(
            "apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: {{ name: a }}\n\
             spec:\n  match: {{}}\n  functions:\n    - {function}\n"
        );
        let files = BTreeMap::from([("tactile.key".to_owned(), KEY.to_owned())]);
        let chains = parse(&text, &Source::new("a.yaml"), &files)?;
        Ok(chains[0].functions[0].config.clone())
    }

    /// Every kind of the catalogue can be configured, and its example is a valid one.
    #[test]
    fn the_example_of_every_kind_is_read() {
        for kind in kinds() {
            let function = read(kind.example).unwrap_or_else(|errors| panic!("{errors}"));
            assert_eq!(function.kind(), kind);
        }
    }

    /// What the catalogue says of a default is what is taken, also by `Default`.
    #[test]
    fn defaults_are_those_of_the_catalogue() {
        for kind in kinds() {
            let name = kind.name;
            let given = |with_defaults: bool| {
                let keys = kind.config.iter().filter_map(|key| {
                    let default = key.default.filter(|_| with_defaults);
                    let value = default.or(key.required.then(|| required(key.value)))?;
                    Some(format!("{}: {value}", key.key))
                });
                keys.collect::<Vec<_>>().join(", ")
            };
            if name == "dpi" {
                continue; // its patterns must not be empty
            }
            let of = |given: String| {
                read(&format!(
                    "{{ name: a, kind: {name}, config: {{ {given} }} }}"
                ))
            };
            assert_eq!(of(given(true)), of(given(false)), "{name}");
            assert!(of(given(false)).is_ok(), "{name}");
        }
    }

    fn required(value: ValueType) -> &'static str {
        match value {
            ValueType::SecretFile => "tactile.key",
            ValueType::Addresses => "198.51.100.7",
            ValueType::Command => "[true]",
            ValueType::Percent => "5%",
            ValueType::Backends(_) => "[]",
            _ => "1",
        }
    }

    #[test]
    fn a_configuration_survives_json() {
        for kind in kinds() {
            let config = read(kind.example).unwrap();
            let json = serde_json::to_string(&config).unwrap();
            let back: FunctionConfig = serde_json::from_str(&json).unwrap();
            assert_eq!(back, config, "{json}");
        }
    }

    #[test]
    fn nothing_shows_a_key() {
        let config =
            read("{ name: a, kind: aes-encrypt, config: { keyFile: tactile.key } }").unwrap();
        assert!(!format!("{config:?} {config:#?}").contains("5ec2"));
    }
}
