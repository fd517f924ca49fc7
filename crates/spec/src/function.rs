//! The service functions of a chain and their configurations.

use std::fmt;

use myelin_packet::rules::{Action, Rule};
use serde::{Deserialize, Serialize};

use crate::aes::{AesDecryptConfig, AesEncryptConfig};
use crate::catalogue::{self, Kind};
use crate::compression::{CompressConfig, DecompressConfig};
use crate::dpi::DpiConfig;
use crate::error::Place;
use crate::external::ExternalConfig;
use crate::flow_tracker::FlowTrackerConfig;
use crate::isolation::SandboxSpec;
use crate::load_balancer::LoadBalancerConfig;
use crate::lossy_link::LossyLinkConfig;
use crate::nat::NatConfig;
use crate::rlnc::{RlncDecodeConfig, RlncEncodeConfig, RlncRecodeConfig};
use crate::router::RouterConfig;
use crate::words::word_enum;

word_enum! {
    /// Where a function runs.
    #[derive(PartialOrd, Ord, Hash)]
    pub enum Space {
        /// In the kernel, as an eBPF program.
        Kernel = "kernel",
        /// In user space, in a worker process.
        User = "user",
    }
}

word_enum! {
    /// What a firewall does with fragments when one of its rules names a port, which a fragment does not show.
    #[derive(Default)]
    pub enum FragmentPolicy {
        /// Drop them: a port rule cannot be evaded by fragmenting.
        #[default]
        Drop = "drop",
        /// Match them without ports: a rule that names a port does not fit them.
        Match = "match",
    }
}

/// A service function: one element of a chain.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FunctionSpec {
    /// Its name, unique in its chain; a DNS label of at most 32 characters.
    pub name: String,
    /// Its kind and configuration.
    pub config: FunctionConfig,
    /// The function of the reverse chain whose work it undoes (`reverseOf`). It has that one's configuration, uses its
    /// state, and stands in the same space.
    pub reverse_of: Option<String>,
    /// Whether it shares its state with a function of the reverse chain, as the one that undoes or the one that is undone.
    pub paired: bool,
    /// The space it is pinned to; `None` leaves the choice to the planner.
    pub space: Option<Space>,
    /// What it stands in, and with how much of the machine.
    pub sandbox: SandboxSpec,
    /// Where it stands in the chain file.
    pub place: Place,
}

impl FunctionSpec {
    /// Its kind, from the catalogue.
    pub fn kind(&self) -> &'static Kind {
        self.config.kind()
    }

    /// The space it must stand in: the one it is pinned to, or user space when it asks for what only a process can have.
    pub fn required_space(&self) -> Option<Space> {
        let asks = self.sandbox.asked_at.is_some();
        self.space.or(asks.then_some(Space::User))
    }
}

/// Whose state a function uses: the function's name, and that of its chain.
///
/// State belongs to a function and not to a deployed form of its chain: it stays when the chain around the function is
/// changed, and a function that undoes another one's work uses that one's.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StateKey {
    /// The chain.
    pub chain: String,
    /// The function in it.
    pub function: String,
}

impl fmt::Display for StateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.chain, self.function)
    }
}

word_enum! {
    /// Which side of a state a function works on.
    #[derive(Default)]
    pub enum Side {
        /// That of the chain's own traffic.
        #[default]
        Forward = "forward",
        /// That of the replies: it undoes what the function that owns the state does (`reverseOf`).
        Reply = "reply",
    }
}

/// A function as one generation of a chain runs it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionInstance {
    /// Its kind and configuration.
    pub config: FunctionConfig,
    /// Whose state it uses; `None` gives it one of its own that nobody else finds.
    pub state: Option<StateKey>,
    /// Which side of that state it works on.
    pub side: Side,
}

/// An instance with a state of its own.
impl From<FunctionConfig> for FunctionInstance {
    fn from(config: FunctionConfig) -> Self {
        Self {
            config,
            state: None,
            side: Side::Forward,
        }
    }
}

/// A function's kind together with what that kind is configured with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum FunctionConfig {
    /// Hands packets on unchanged.
    Forward,
    /// XORs the payload with a static key.
    Xor(XorConfig),
    /// Drops what its rules deny.
    Firewall(FirewallConfig),
    /// Translates source addresses and ports.
    Nat(NatConfig),
    /// Appends the times of arrival and departure to the UDP payload.
    Timestamp,
    /// Counts packets and bytes by flow.
    Monitor(MonitorConfig),
    /// Follows flows from their first packet to their last.
    #[serde(rename = "flow-tracker")]
    FlowTracker(FlowTrackerConfig),
    /// Spreads flows over backends.
    #[serde(rename = "load-balancer")]
    LoadBalancer(LoadBalancerConfig),
    /// Sends packets to their next hops.
    Router(RouterConfig),
    /// A program that nothing is known of.
    External(ExternalConfig),
    /// Encrypts the UDP payload.
    #[serde(rename = "aes-encrypt")]
    AesEncrypt(AesEncryptConfig),
    /// Decrypts it.
    #[serde(rename = "aes-decrypt")]
    AesDecrypt(AesDecryptConfig),
    /// Looks for patterns in payloads.
    Dpi(DpiConfig),
    /// Loses packets.
    #[serde(rename = "lossy-link")]
    LossyLink(LossyLinkConfig),
    /// Compresses UDP payloads.
    Compress(CompressConfig),
    /// Gives them back.
    Decompress(DecompressConfig),
    /// Adds repair packets (random linear network coding).
    #[serde(rename = "rlnc-encode")]
    RlncEncode(RlncEncodeConfig),
    /// Adds new combinations of coded packets.
    #[serde(rename = "rlnc-recode")]
    RlncRecode(RlncRecodeConfig),
    /// Works out lost packets from repair packets.
    #[serde(rename = "rlnc-decode")]
    RlncDecode(RlncDecodeConfig),
}

impl FunctionConfig {
    /// The kind, from the catalogue.
    pub fn kind(&self) -> &'static Kind {
        match self {
            Self::Forward => &catalogue::FORWARD,
            Self::Xor(_) => &catalogue::XOR,
            Self::Firewall(_) => &catalogue::FIREWALL,
            Self::Nat(_) => &catalogue::NAT,
            Self::Timestamp => &catalogue::TIMESTAMP,
            Self::Monitor(_) => &catalogue::MONITOR,
            Self::FlowTracker(_) => &catalogue::FLOW_TRACKER,
            Self::LoadBalancer(_) => &catalogue::LOAD_BALANCER,
            Self::Router(_) => &catalogue::ROUTER,
            Self::External(_) => &catalogue::EXTERNAL,
            Self::AesEncrypt(_) => &catalogue::AES_ENCRYPT,
            Self::AesDecrypt(_) => &catalogue::AES_DECRYPT,
            Self::Dpi(_) => &catalogue::DPI,
            Self::LossyLink(_) => &catalogue::LOSSY_LINK,
            Self::Compress(_) => &catalogue::COMPRESS,
            Self::Decompress(_) => &catalogue::DECOMPRESS,
            Self::RlncEncode(_) => &catalogue::RLNC_ENCODE,
            Self::RlncRecode(_) => &catalogue::RLNC_RECODE,
            Self::RlncDecode(_) => &catalogue::RLNC_DECODE,
        }
    }
}

/// Configuration of an `xor` function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct XorConfig {
    /// What every payload byte is XORed with.
    pub key: u8,
}

/// Configuration of a `monitor` function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MonitorConfig {
    /// Flows it keeps at most.
    pub flows: u32,
}

/// Configuration of a `firewall` function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirewallConfig {
    /// Its rules, first match wins: those of `rules`, then those of `rulesFile`. At most
    /// [`myelin_packet::rules::MAX_RULES`].
    pub rules: Vec<Rule>,
    /// What happens to a packet that no rule matches.
    pub default: Action,
    /// What happens to fragments when a rule names a port.
    pub fragments: FragmentPolicy,
}

impl FirewallConfig {
    /// Whether fragments are dropped unseen: the policy says so and some rule needs a port.
    pub fn drops_fragments(&self) -> bool {
        self.fragments == FragmentPolicy::Drop && self.rules.iter().any(Rule::names_ports)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_survives_json() {
        let mut rule = Rule::any(Action::Deny);
        rule.destination = Some("2001:db8::/32".parse().unwrap());
        rule.destination_ports = Some(53..=53);
        let configs = [
            FunctionConfig::Forward,
            FunctionConfig::Xor(XorConfig { key: 0x5a }),
            FunctionConfig::Firewall(FirewallConfig {
                rules: vec![rule],
                default: Action::Allow,
                fragments: FragmentPolicy::Match,
            }),
            FunctionConfig::Timestamp,
            FunctionConfig::Monitor(MonitorConfig { flows: 7 }),
            FunctionConfig::FlowTracker(FlowTrackerConfig::default()),
            FunctionConfig::RlncEncode(RlncEncodeConfig::default()),
            FunctionConfig::RlncRecode(RlncRecodeConfig::default()),
            FunctionConfig::RlncDecode(RlncDecodeConfig::default()),
        ];
        for config in configs {
            let json = serde_json::to_string(&config).unwrap();
            assert_eq!(
                serde_json::from_str::<FunctionConfig>(&json).unwrap(),
                config,
                "{json}"
            );
        }
    }

    #[test]
    fn fragments_matter_only_where_a_rule_names_a_port() {
        let mut config = FirewallConfig {
            rules: vec![Rule::any(Action::Deny)],
            default: Action::Allow,
            fragments: FragmentPolicy::Drop,
        };
        assert!(!config.drops_fragments());
        config.rules[0].source_ports = Some(1..=9);
        assert!(config.drops_fragments());
        config.fragments = FragmentPolicy::Match;
        assert!(!config.drops_fragments());
    }
}
