//! The kinds of service functions, a file each.
//!
//! The file of a kind describes the kind's properties ([`Kind`]), its keys with types, defaults and
//! meanings (`config!`), and its effect on traffic ([`Effect`]). The code is elsewhere. The reader
//! of chain files, `myelin functions`, the JSON Schema, `docs/reference`, the planner's costs and
//! the reports use this description. Start reading at [`xor`].

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

        /// A function's kind with its configuration.
        #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(tag = "kind")]
        pub enum FunctionConfig {
            $($(#[$attribute])* #[serde(rename = $name)] $variant $(($config))?,)*
        }

        impl FunctionConfig {
            /// Returns the description of the kind.
            pub fn kind(&self) -> &'static Kind {
                match self {
                    $(Self::$variant { .. } => &$kind,)*
                }
            }
        }

        /// All kinds, in display order.
        static KINDS: &[&Kind] = &[$(&$kind),*];
    };
}

kinds! {
    /// Forwards packets unchanged.
    forward::Forward = FORWARD "forward";
    /// XORs the payload with a static key.
    xor::Xor(XorConfig) = XOR "xor";
    /// Drops packets that its rules deny.
    firewall::Firewall(FirewallConfig) = FIREWALL "firewall";
    /// Appends two timestamps to the UDP payload.
    timestamp::Timestamp = TIMESTAMP "timestamp";
    /// Counts packets and bytes per flow.
    monitor::Monitor(MonitorConfig) = MONITOR "monitor";
    /// Tracks the state of flows.
    flow_tracker::FlowTracker(FlowTrackerConfig) = FLOW_TRACKER "flow-tracker";
    /// Forwards packets to their next hops.
    router::Router(RouterConfig) = ROUTER "router";
    /// Translates source addresses and ports.
    nat::Nat(NatConfig) = NAT "nat";
    /// Spreads flows over backends.
    load_balancer::LoadBalancer(LoadBalancerConfig) = LOAD_BALANCER "load-balancer";
    /// Runs any program (a black box).
    external::External(ExternalConfig) = EXTERNAL "external";
    /// Encrypts the UDP payload.
    aes::AesEncrypt(AesEncryptConfig) = AES_ENCRYPT "aes-encrypt";
    /// Decrypts the UDP payload.
    aes::AesDecrypt(AesDecryptConfig) = AES_DECRYPT "aes-decrypt";
    /// Searches payloads for patterns.
    dpi::Dpi(DpiConfig) = DPI "dpi";
    /// Loses packets at random.
    lossy_link::LossyLink(LossyLinkConfig) = LOSSY_LINK "lossy-link";
    /// Compresses UDP payloads.
    compression::Compress(CompressConfig) = COMPRESS "compress";
    /// Decompresses UDP payloads.
    compression::Decompress(DecompressConfig) = DECOMPRESS "decompress";
    /// Adds repair packets (random linear network coding).
    rlnc::RlncEncode(RlncEncodeConfig) = RLNC_ENCODE "rlnc-encode";
    /// Adds new combinations of coded packets.
    rlnc::RlncRecode(RlncRecodeConfig) = RLNC_RECODE "rlnc-recode";
    /// Recovers lost packets from repair packets.
    rlnc::RlncDecode(RlncDecodeConfig) = RLNC_DECODE "rlnc-decode";
    /// Occupies the core, for experiments.
    work::Work(WorkConfig) = WORK "work";
}

impl FunctionConfig {
    /// Returns the configuration of a function that names its own core and sharing: a black box.
    pub fn own_core(&self) -> Option<&ExternalConfig> {
        match self {
            Self::External(config) => Some(config),
            _ => None,
        }
    }

    /// Returns the function's effect on traffic.
    pub fn effect(&self) -> Effect {
        (self.kind().effect)(self)
    }

    /// Returns the lifetime of a flow after its last packet, ns; `None` if a flow ends only when
    /// the table is full.
    pub fn flow_lifetime_ns(&self, is_tcp: bool, state: Option<FlowState>) -> Option<u64> {
        (self.kind().flow_lifetime_ns)(self, is_tcp, state)
    }

    /// Returns the read-only data of the kernel program, if numbers suffice. In the program, these
    /// numbers follow the function's position in the chain.
    pub fn kernel_constants(&self) -> Option<Vec<u64>> {
        Some((self.kind().kernel_constants?)(self))
    }

    /// Whether the function must run in the worker with the chain's sockets, because it shares
    /// state with other chains or later generations, or answers the senders of packets.
    pub fn needs_socket_worker(&self) -> bool {
        self.kind().state != State::None || self.effect().answers_senders
    }
}

/// The default of the longest IP packet, bytes: Ethernet's.
pub const DEFAULT_MTU: u16 = 1500;

/// Creates the key of the longest IP packet that may leave, bytes. The minimum is the length that
/// every IPv4 host must accept (RFC 791, section 3.1).
const fn mtu(max: u16) -> ConfigKey {
    integer(576, max as u64, "bytes of an IP packet").with_default("1500")
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
        let files = BTreeMap::from([("/dev/urandom".to_owned(), KEY.to_owned())]);
        let chains = parse(&text, &Source::new("a.yaml"), &files)?;
        Ok(chains[0].functions[0].config.clone())
    }

    #[test]
    fn example_of_every_kind_is_valid() {
        for kind in kinds() {
            let function = read(kind.example).unwrap_or_else(|errors| panic!("{errors}"));
            assert_eq!(function.kind(), kind);
        }
    }

    #[test]
    fn chain_file_of_every_kind_is_valid() {
        let files = BTreeMap::from([("/dev/urandom".to_owned(), KEY.to_owned())]);
        for kind in kinds() {
            let text = kind.chain_file();
            let chains = parse(&text, &Source::new("a.yaml"), &files);
            let chains = chains.unwrap_or_else(|errors| panic!("{errors}"));
            let mut functions = chains[0].functions.iter();
            assert!(functions.any(|function| function.kind() == kind), "{text}");
            assert!(text.lines().all(|line| line.len() <= 100), "{text}");
            assert!(kind.summary().len() <= 75, "{}", kind.summary());
        }
    }

    #[test]
    fn described_defaults_apply() {
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
                continue; // Without a pattern, the configuration has a fault.
            }
            let read_config = |given: String| {
                read(&format!(
                    "{{ name: a, kind: {name}, config: {{ {given} }} }}"
                ))
            };
            assert_eq!(
                read_config(given(true)),
                read_config(given(false)),
                "{name}"
            );
            assert!(read_config(given(false)).is_ok(), "{name}");
        }
    }

    fn required(value: ValueType) -> &'static str {
        match value {
            ValueType::SecretFile => "/dev/urandom",
            ValueType::Addresses => "198.51.100.7",
            ValueType::Command => "[true]",
            ValueType::Percent => "5%",
            ValueType::Backends(_) => "[]",
            _ => "1",
        }
    }

    #[test]
    fn configuration_round_trips_through_json() {
        for kind in kinds() {
            let config = read(kind.example).unwrap();
            let json = serde_json::to_string(&config).unwrap();
            let back: FunctionConfig = serde_json::from_str(&json).unwrap();
            assert_eq!(back, config, "{json}");
        }
    }

    #[test]
    fn debug_output_hides_keys() {
        let config =
            read("{ name: a, kind: aes-encrypt, config: { keyFile: /dev/urandom } }").unwrap();
        assert!(!format!("{config:?} {config:#?}").contains("5ec2"));
    }
}
