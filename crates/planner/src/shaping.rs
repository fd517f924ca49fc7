//! Where a chain's traffic is shaped, and to what.
//!
//! The shaper stands behind the last queue of the way: what queues let out together is apart again when it leaves. A chain
//! that passes a worker is shaped there, at the exit of its last user functions; kernel functions behind that run to
//! completion, packet by packet. A chain of kernel functions alone queues nowhere, so `enforce: auto` leaves it be; where a
//! shaper is asked for all the same, the queueing discipline of the egress interface is one, for packets that the tcx hook
//! sends there. XDP's redirect goes past it.

use myelin_packet::traffic::{Bucket, Profile};
use myelin_spec::mtu::DEFAULT_MTU;
use myelin_spec::rlnc::REDUNDANCY_PARTS;
use myelin_spec::{
    Enforce, FULL_FRAME, FunctionConfig, Hook, Mapping, RlncCode, ServiceChain, Shaping, Space,
};

use crate::error::PlanError;
use crate::frame::{SHORTEST, longest};
use crate::plan::{Plan, ShaperPlace, ShaperPlan};

/// What a contract needs beside the policer.
pub(crate) fn shaper(
    plan: &Plan,
    chain: &ServiceChain,
) -> Result<(Option<ShaperPlan>, Option<String>), PlanError> {
    let sla = &chain.sla;
    let profile = sla.profile();
    let asked = matches!(sla.enforce, Enforce::Both | Enforce::Shaper);
    if profile.is_unlimited() || !(asked || sla.enforce == Enforce::Auto) {
        return Ok((None, None));
    }
    let (place, functions) = match place(plan, chain) {
        Ok(Some((ShaperPlace::Qdisc, _)) | None) if !asked => return Ok((None, None)),
        Ok(Some(found)) => found,
        Ok(None) => return Err(refusal(chain, XDP_ONLY)),
        Err(why) if asked => return Err(refusal(chain, why)),
        Err(why) => {
            let warning = format!(
                "the traffic is policed and not shaped, so packets that cluster between its functions leave together: {why}"
            );
            return Ok((None, Some(warning)));
        }
    };
    let profile = behind(profile, chain, functions);
    let shaping = Shaping::new(&profile, sla.shaper_queue(), sla.shaper_delay_ns())
        .tolerating(sla.shaper_tolerance_ns);
    let plan = ShaperPlan {
        place,
        shaping,
        behind: functions,
    };
    Ok((Some(plan), None))
}

/// A profile as the first so many functions of a chain make it.
pub(crate) fn behind(profile: Profile, chain: &ServiceChain, functions: usize) -> Profile {
    let functions = chain.functions.iter().take(functions);
    functions
        .map(|function| &function.config)
        .fold(profile, grown)
}

const XDP_ONLY: &str = "the chain's functions all run in the kernel at the XDP hook, whose redirect goes past every queue of \
                        the egress interface; write `hook: tcx`, give a function `space: user`, or write `enforce: policer`";

const ENDS_IN_KERNEL: &str = "`mapping: distributed` ends in a kernel function, behind whose link packets are redirected past \
                              every queue of the egress interface; give the last function `space: user`, or write `mapping: compact`";

const ENDS_IN_BOX: &str = "the chain ends in a black box, behind whose link packets are redirected past every queue of the \
                           egress interface; put a function with `space: user` behind it";

fn refusal(chain: &ServiceChain, why: &'static str) -> PlanError {
    PlanError::Shaper {
        chain: chain.name.clone(),
        place: chain.places.sla.clone(),
        enforce: chain.sla.enforce,
        why,
    }
}

/// Where it can stand, behind so many functions; `None` where nothing can queue and nothing can shape; else why it cannot
/// though packets may cluster.
fn place(plan: &Plan, chain: &ServiceChain) -> Result<Option<(ShaperPlace, usize)>, &'static str> {
    let all = chain.functions.len();
    if plan.mapping == Mapping::Distributed {
        return match plan.hops.last() {
            Some(hop) if hop.is_black_box() => Err(ENDS_IN_BOX),
            Some(hop) if hop.space == Space::Kernel => Err(ENDS_IN_KERNEL),
            _ => Ok(Some((ShaperPlace::Worker, all))),
        };
    }
    let mut segments = plan.segments.iter().rev();
    if let Some(last) = segments.find(|segment| segment.space == Space::User) {
        return Ok(Some((ShaperPlace::Worker, last.positions().end)));
    }
    Ok((plan.hook == Hook::Tcx).then_some((ShaperPlace::Qdisc, all)))
}

/// By how much a function makes a packet longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Longer {
    /// Bytes more, at most.
    pub(crate) bytes: u64,
    /// The longest IP packet that it makes, bytes: it drops what would be longer. One that it leaves alone may be longer than that.
    pub(crate) mtu: u64,
}

impl Longer {
    const NOT: Self = Self { bytes: 0, mtu: 0 };

    /// What this function does.
    pub(crate) fn by(config: &FunctionConfig) -> Self {
        let longer = |bytes, mtu: u16| Self {
            bytes,
            mtu: mtu.into(),
        };
        match config {
            FunctionConfig::Timestamp => longer(TIMESTAMP_BYTES, DEFAULT_MTU),
            FunctionConfig::AesEncrypt(config) => {
                let bytes = if config.cipher.is_authenticated() {
                    GCM_BYTES
                } else {
                    CTR_BYTES
                };
                longer(bytes, config.mtu)
            }
            FunctionConfig::Compress(config) => longer(COMPRESSION_MARK_BYTES, config.mtu),
            // Any packet may become as long as one can be.
            FunctionConfig::Decompress(config) => longer(config.mtu.into(), config.mtu),
            FunctionConfig::RlncEncode(config) => longer(CODING_BYTES, config.mtu),
            FunctionConfig::RlncRecode(config) => {
                longer(CODING_BYTES + u64::from(config.window), config.mtu)
            }
            FunctionConfig::Dpi(config) if config.mirror.is_some() => {
                longer(MIRROR_BYTES, DEFAULT_MTU)
            }
            _ => Self::NOT,
        }
    }
}

/// What a function makes of conforming traffic, at most.
#[derive(Debug, Clone, Copy)]
struct Growth {
    /// Packets that it sends for [`REDUNDANCY_PARTS`] that come.
    packets: u64,
    /// Packets that it may send at once beside that.
    at_once: u64,
    /// By how many bytes a packet gets longer.
    longer: Longer,
}

impl Growth {
    const NONE: Self = Self {
        packets: REDUNDANCY_PARTS as u64,
        at_once: 0,
        longer: Longer::NOT,
    };

    fn of(function: &FunctionConfig) -> Self {
        let coded = |redundancy: u32, longer| Self {
            packets: u64::from(REDUNDANCY_PARTS) + u64::from(redundancy),
            longer,
            ..Self::NONE
        };
        match function {
            FunctionConfig::RlncEncode(config) => Self {
                // Those of a block are sent at its end, together.
                at_once: match config.code {
                    RlncCode::Block => u64::from(config.block)
                        .saturating_mul(config.redundancy.into())
                        .div_ceil(REDUNDANCY_PARTS.into()),
                    RlncCode::Window => 0,
                },
                ..coded(config.redundancy, Longer::by(function))
            },
            FunctionConfig::RlncRecode(config) => coded(config.redundancy, Longer::by(function)),
            // A copy of each packet may leave beside it.
            FunctionConfig::Dpi(config) if config.mirror.is_some() => {
                coded(REDUNDANCY_PARTS, Longer::by(function))
            }
            // What `rlnc-decode` works out was lost before, and so is part of the profile.
            _ => Self {
                longer: Longer::by(function),
                ..Self::NONE
            },
        }
    }
}

/// What `timestamp` appends: two stamps of 8 B.
const TIMESTAMP_BYTES: u64 = 16;
/// What `aes-encrypt` appends with `gcm`, and with `ctr`.
const GCM_BYTES: u64 = 44;
const CTR_BYTES: u64 = 28;
/// The mark of `compress` on what only looks compressed.
const COMPRESSION_MARK_BYTES: u64 = 4;
/// What a copy for a collector has around the packet: headers of IPv6, UDP and TZSP, and its own Ethernet header's tags.
const MIRROR_BYTES: u64 = 40 + 8 + 9 + 22;
/// What a repair packet (RFC 8681) has beside its symbol: its identifier, the encoding coefficients' seed and the length of the data unit. A
/// recoded one has its coefficients besides, a byte for each packet of the window.
const CODING_BYTES: u64 = 12;

/// The profile behind a function.
fn grown(profile: Profile, config: &FunctionConfig) -> Profile {
    let growth = Growth::of(config);
    let scaled = |count: u64| scale(count, growth.packets, REDUNDANCY_PARTS.into());
    let packets = profile.packets.map(|bucket| {
        let burst = scaled(bucket.burst()).saturating_add(growth.at_once);
        capped(scaled(bucket.rate()), burst)
    });
    let bits = profile.bits.map(|bucket| {
        // So many packets at most bring so many bits: those of the other limit, or the shortest frames.
        let longer = |bits: u64, packets: Option<u64>| {
            let bits = scaled(bits);
            let packets = packets.unwrap_or(bits / (SHORTEST * 8) + 1);
            let longer = packets.saturating_mul(growth.longer.bytes * 8);
            // No more than full frames, unless they were longer when they came.
            let full = packets.saturating_mul(longest(growth.longer.mtu) * 8);
            bits.saturating_add(longer).min(full.max(bits))
        };
        let rate = longer(bucket.rate(), packets.map(Bucket::rate));
        let burst = longer(bucket.burst(), packets.map(Bucket::burst))
            .saturating_add(growth.at_once * FULL_FRAME * 8);
        capped(rate, burst)
    });
    Profile { packets, bits }
}

/// `count * numerator / denominator`, rounded up.
fn scale(count: u64, numerator: u64, denominator: u64) -> u64 {
    let product = u128::from(count) * u128::from(numerator);
    u64::try_from(product.div_ceil(u128::from(denominator))).unwrap_or(u64::MAX)
}

/// A bucket of that rate and burst, or of the most that one can have.
fn capped(rate: u64, burst: u64) -> Bucket {
    let (rate, burst) = (
        rate.clamp(1, Bucket::MAX_RATE),
        burst.clamp(1, Bucket::MAX_BURST),
    );
    match Bucket::new(rate, burst) {
        Ok(bucket) => bucket,
        Err(error) => unreachable!("{rate} and {burst} are in range: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use myelin_spec::RlncEncodeConfig;

    use super::*;

    fn profile(packets: (u64, u64), bits: Option<(u64, u64)>) -> Profile {
        let bucket = |(rate, burst)| Bucket::new(rate, burst).unwrap();
        Profile {
            packets: Some(bucket(packets)),
            bits: bits.map(bucket),
        }
    }

    #[test]
    fn repair_packets_and_longer_ones_are_allowed_for() {
        let encode = FunctionConfig::RlncEncode(RlncEncodeConfig::default());
        let coded = grown(profile((1000, 5), Some((1_000_000, 50_000))), &encode);
        assert_eq!(
            coded,
            profile((1250, 7), Some((1_250_000 + 1250 * 96, 62_500 + 7 * 96)))
        );
        let block = FunctionConfig::RlncEncode(RlncEncodeConfig {
            code: RlncCode::Block,
            ..RlncEncodeConfig::default()
        });
        assert_eq!(
            grown(profile((1000, 5), None), &block),
            profile((1250, 7 + 8), None)
        );
        let stamped = grown(
            profile((1000, 5), Some((1_000_000, 50_000))),
            &FunctionConfig::Timestamp,
        );
        let expected = profile((1000, 5), Some((1_128_000, 50_640)));
        assert_eq!(stamped, expected);
    }

    #[test]
    fn without_a_packet_rate_frames_are_taken_to_be_the_shortest() {
        let bits = Profile {
            packets: None,
            bits: Bucket::new(480_000, 4800).ok(),
        };
        let longer = grown(bits, &FunctionConfig::Timestamp).bits.unwrap();
        assert_eq!(
            (longer.rate(), longer.burst()),
            (480_000 + 1001 * 128, 4800 + 11 * 128)
        );
    }

    #[test]
    fn nothing_overflows() {
        let most = profile(
            (Bucket::MAX_RATE, Bucket::MAX_BURST),
            Some((Bucket::MAX_RATE, Bucket::MAX_BURST)),
        );
        for config in [
            FunctionConfig::Timestamp,
            FunctionConfig::RlncEncode(RlncEncodeConfig::default()),
        ] {
            assert_eq!(grown(most, &config), most);
        }
    }
}
