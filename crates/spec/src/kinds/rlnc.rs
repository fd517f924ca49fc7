//! Random linear network coding: `rlnc-encode`, `rlnc-recode`, `rlnc-decode`.
//!
//! The costs are for the default configurations without loss, on a Xeon with AVX-512 and GFNI. A
//! cost is for one source packet with its share of repair packets: the least time of `cargo bench
//! -p myelin-functions --bench rlnc`, minus the cost of `forward`.

use super::mtu;
use super::prelude::*;

word_enum! {
    /// The source packets that a repair packet covers.
    #[derive(Default)]
    pub enum RlncCode {
        /// The latest source packets.
        #[default]
        Window = "window",
        /// The source packets of one block.
        Block = "block",
    }
}

word_enum! {
    /// The order of delivery.
    #[derive(Default)]
    pub enum RlncDelivery {
        /// Each packet when it arrives or is recovered.
        #[default]
        Immediate = "immediate",
        /// The order at the encoder.
        InOrder = "in-order",
    }
}

word_enum! {
    /// The action of a recoder on coded packets.
    #[derive(Default)]
    pub enum RlncCoded {
        /// Pass them, and add recoded packets.
        #[default]
        Pass = "pass",
        /// Replace each by a recoded packet.
        Replace = "replace",
    }
}

/// The unit of a stored redundancy: the configuration holds millionths.
pub const MILLIONTHS: u32 = crate::keys::MILLIONTHS;
/// The largest value of `mtu`, bytes: the size of a worker's frame without its headroom.
pub const MAX_MTU: u16 = 1700;
/// The bytes of a repair packet (RFC 8681) besides its symbol: identifier, seed of the
/// coefficients, length of the data unit. A recoded packet also has a coefficient byte for each
/// packet of the window.
const CODING_BYTES: u64 = 12;
/// The most packets that a decoder recovers at once: the number of its equations.
const EQUATIONS: u32 = 64;

/// Source packets in one coded packet.
const PACKETS: ConfigKey = integer(1, 64, "a number of packets");
const REDUNDANCY: ConfigKey = ConfigKey::new(ValueType::Number { max: 4 }).with_default("0.25");

config! {
    /// Configuration of an `rlnc-encode` function. The redundancy is in [`MILLIONTHS`].
    #[derive(Copy)]
    pub struct RlncEncodeConfig {
        /// The source packets that a repair packet covers: the latest ones, or those of a block.
        "code" code: RlncCode = RlncCode::KEY.with_default("window");
        /// Source packets of a window, for code: window.
        "window" window: u8 = PACKETS.with_default("8");
        /// Source packets of a block, for code: block.
        "block" block: u8 = PACKETS.with_default("32");
        /// Coded packets for each source packet, with up to six decimals; 0.25 is one for four.
        "redundancy" redundancy: u32 = REDUNDANCY;
        /// Density threshold (RFC 8681): a repair packet covers a source packet of the window with
        /// probability (density + 1) / 16.
        "density" density: u8 = integer(0, 15, "a density threshold").with_default("15");
        /// After this time without a packet, the encoder sends the repair packets that are due and
        /// ends the block.
        "flush" flush_ns: u64 = DURATION.with_default("1ms");
        /// The longest IP packet that may leave, bytes; the function drops longer ones.
        "mtu" mtu: u16 = mtu(MAX_MTU);
    }
}

config! {
    /// Configuration of an `rlnc-recode` function. The redundancy is in [`MILLIONTHS`].
    #[derive(Copy)]
    pub struct RlncRecodeConfig {
        /// The latest packets, source and coded ones, that it combines.
        "window" window: u8 = PACKETS.with_default("8");
        /// Coded packets for each source packet, with up to six decimals; 0.25 is one for four.
        "redundancy" redundancy: u32 = REDUNDANCY;
        /// Pass received coded packets and add recoded ones, or replace each by a recoded one.
        "coded" coded: RlncCoded = RlncCoded::KEY.with_default("pass");
        /// The longest IP packet that may leave, bytes; the function drops longer ones.
        "mtu" mtu: u16 = mtu(MAX_MTU);
    }
}

config! {
    /// Configuration of an `rlnc-decode` function.
    #[derive(Copy)]
    pub struct RlncDecodeConfig {
        /// Forward each packet when it arrives or is recovered, or hold it until all earlier ones
        /// are there.
        "delivery" delivery: RlncDelivery = RlncDelivery::KEY.with_default("immediate");
        /// With delivery: in-order, the longest time that a packet waits.
        "timeout" timeout_ns: u64 = DURATION.with_default("10ms");
        /// Source packets that it keeps, rounded up to a power of two; 1.5 KiB each.
        "buffer" buffer: u16 = integer(128, 4096, "a number of packets").with_default("256");
    }
}

impl RlncEncodeConfig {
    /// Returns the part of the configuration that the encoder's state depends on.
    #[must_use]
    pub fn state_config(&self) -> Self {
        Self {
            code: self.code,
            window: self.window,
            block: self.block,
            ..Self::default()
        }
    }

    fn effect(&self) -> Effect {
        let (redundancy, parts) = (u64::from(self.redundancy), u64::from(MILLIONTHS));
        Effect {
            added_packets: AddedPackets {
                parts: self.redundancy,
                window: self.window.max(self.block),
                // The repair packets of a block leave together, at the end of the block.
                at_once: match self.code {
                    RlncCode::Block => (u64::from(self.block) * redundancy).div_ceil(parts),
                    RlncCode::Window => 0,
                },
            },
            added_bytes: AddedBytes::new(CODING_BYTES, self.mtu),
            ..Effect::default()
        }
    }
}

impl RlncRecodeConfig {
    /// Returns the part of the configuration that the recoder's state depends on.
    #[must_use]
    pub fn state_config(&self) -> Self {
        Self {
            window: self.window,
            ..Self::default()
        }
    }

    fn effect(self) -> Effect {
        Effect {
            added_packets: AddedPackets {
                parts: self.redundancy,
                window: self.window,
                at_once: 0,
            },
            added_bytes: AddedBytes::new(CODING_BYTES + u64::from(self.window), self.mtu),
            ..Effect::default()
        }
    }
}

impl RlncDecodeConfig {
    /// Returns the part of the configuration that the decoder's state depends on.
    #[must_use]
    pub fn state_config(&self) -> Self {
        Self {
            buffer: self.buffer,
            ..Self::default()
        }
    }

    /// Returns the decoder's effect. The decoder creates no packets, because it only recovers
    /// packets that were lost after the encoder.
    fn effect(self) -> Effect {
        Effect {
            released: EQUATIONS,
            held_ns: (self.delivery == RlncDelivery::InOrder).then_some(self.timeout_ns),
            ..Effect::default()
        }
    }
}

/// `rlnc-encode`.
pub static RLNC_ENCODE: Kind = Kind {
    name: "rlnc-encode",
    class: Class::Advanced,
    user: Some(Cost::new(85.0, 0.055)),
    works_on: PacketParts::HeaderAndPayload,
    state: State::PerInstance,
    config: RlncEncodeConfig::KEYS,
    fragments: FragmentSupport::WholeDatagram,
    description: "Adds repair packets to UDP traffic: network coding (RFC 8681). \
                  `rlnc-decode` recovers lost packets from them. Drops fragments, packets of other \
                  protocols, and packets too long to be protected.",
    example: "{ name: coder, kind: rlnc-encode, config: { window: 8, redundancy: 0.25 } }",
    coding: Some(Coding::Begins),
    counters: &[
        ("source", "source packets numbered"),
        ("repair", "repair packets sent"),
        (
            "unsupported",
            "dropped: not UDP, a fragment, or bytes after the datagram",
        ),
        (
            "too-long",
            "dropped: its repair packet or it would exceed the MTU",
        ),
        ("no-room", "dropped: no room in its buffer"),
    ],
    read: |fields| FunctionConfig::RlncEncode(RlncEncodeConfig::from_fields(fields)),
    effect: |config| match config {
        FunctionConfig::RlncEncode(config) => config.effect(),
        _ => Effect::default(),
    },
    ..Kind::BASE
};

/// `rlnc-recode`.
pub static RLNC_RECODE: Kind = Kind {
    name: "rlnc-recode",
    class: Class::Advanced,
    user: Some(Cost::new(130.0, 0.06)),
    works_on: PacketParts::HeaderAndPayload,
    state: State::PerInstance,
    config: RlncRecodeConfig::KEYS,
    fragments: FragmentSupport::WholeDatagram,
    description: "Sends new combinations of received coded packets, without decoding. They help against \
                  losses before and after the function. Source packets pass unchanged. Drops packets that are not \
                  from an `rlnc-encode`.",
    example: "{ name: relay, kind: rlnc-recode, config: { redundancy: 0.25 } }",
    counters: &[
        ("source", "source packets received"),
        ("coded", "coded packets received"),
        ("recoded", "recoded packets added"),
        ("replaced", "coded packets replaced by recoded ones"),
        ("malformed", "dropped: not from an encoder"),
        ("too-long", "recoded packets not made: longer than the MTU"),
    ],
    read: |fields| FunctionConfig::RlncRecode(RlncRecodeConfig::from_fields(fields)),
    effect: |config| match config {
        FunctionConfig::RlncRecode(config) => config.effect(),
        _ => Effect::default(),
    },
    ..Kind::BASE
};

/// `rlnc-decode`.
pub static RLNC_DECODE: Kind = Kind {
    name: "rlnc-decode",
    class: Class::Advanced,
    user: Some(Cost::new(80.0, 0.02)),
    works_on: PacketParts::HeaderAndPayload,
    state: State::PerInstance,
    fails_closed: true,
    config: RlncDecodeConfig::KEYS,
    fragments: FragmentSupport::WholeDatagram,
    description: "Recovers lost packets of an `rlnc-encode`, and removes coded packets. Drops duplicates, \
                  and packets that are not from an `rlnc-encode`.",
    example: "{ name: decoder, kind: rlnc-decode, config: { delivery: in-order } }",
    coding: Some(Coding::Ends),
    counters: &[
        ("source", "source packets received"),
        ("coded", "coded packets received"),
        ("redundant", "coded packets without new information"),
        ("recovered", "packets recovered"),
        ("lost", "packets counted as lost"),
        ("late", "dropped: older than the buffer, or counted as lost"),
        ("duplicate", "dropped: received before"),
        ("malformed", "dropped: not from an encoder, or too long"),
        ("corrupt", "recovered, but not a valid UDP packet"),
        ("reset", "resets after jumps of packet numbers"),
    ],
    read: |fields| FunctionConfig::RlncDecode(RlncDecodeConfig::from_fields(fields)),
    effect: |config| match config {
        FunctionConfig::RlncDecode(config) => config.effect(),
        _ => Effect::default(),
    },
    ..Kind::BASE
};
