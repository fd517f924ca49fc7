//! The conformance monitor: checks whether the traffic of an interface conforms to a profile. It
//! needs no plane and no agent, and shares no code with the policer. `Meter`, a fixture of
//! `packet`, computes the same levels.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bytemuck::{Pod, Zeroable};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use myelin_packet::traffic::{Bucket, CREDIT, Level, Profile};
use myelin_packet::{Family, Match};

use crate::attach::{AttachTarget, Attachment, TrafficDirection};
use crate::classifier::keys::{Words, make_comparison};
use crate::object::CONFORM;
use crate::{Error, Hook};

/// Number of violations that the monitor keeps.
const KEPT: usize = 32;

/// The configuration of a conformance monitor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConformConfig {
    /// The profile of the traffic.
    pub profile: Profile,
    /// Tolerance for early packets, ns. Traffic below `rate * (t + tolerance) + burst` is no
    /// violation. Covers the jitter of clocks and schedulers between the policed port and the
    /// interface.
    pub tolerance_ns: u64,
    /// The packets to count; `None` counts all packets.
    pub filter: Option<Match>,
    /// Number of packets after which the monitor stops counting.
    pub most_packets: Option<u64>,
}

/// A monitor at an interface. The drop or the end of the process detaches the monitor. Without tcx
/// (before Linux 6.6) a killed process leaves a clsact filter behind, which only counts.
#[derive(Debug)]
pub struct Conformance {
    map: MapHandle,
    profile: Profile,
    _attachment: Option<Attachment>,
}

/// Level of a monitor's bucket: `struct level`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BucketLevel {
    /// The present and the largest level.
    pub level: Level,
    /// Time of the largest level, ns of `CLOCK_MONOTONIC`.
    pub most_ns: u64,
}

impl BucketLevel {
    /// Returns whether the level reached the end of its range. The traffic's burst is then at least
    /// that level.
    pub fn is_saturated(&self) -> bool {
        self.level.most == u64::MAX
    }

    /// Returns the largest excess over the bucket's burst, in units of 1 / [`CREDIT`].
    pub fn excess(&self, bucket: Bucket) -> u64 {
        self.level.most.saturating_sub(bucket.full())
    }

    /// Returns the smallest tolerance without violations, ns: the time in which the bucket's rate
    /// drains the excess.
    pub fn least_tolerance_ns(&self, bucket: Bucket) -> u64 {
        self.excess(bucket).div_ceil(bucket.rate())
    }
}

/// Consecutive packets that exceed the profile and the tolerance: `struct violation`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Violation {
    /// Time of the violation's first packet, ns of `CLOCK_MONOTONIC`.
    pub from_ns: u64,
    /// Time of the violation's last packet, ns of `CLOCK_MONOTONIC`.
    pub to_ns: u64,
    /// Number of packets in the violation.
    pub packets: u64,
    /// Largest excess of the packet bucket over its burst, in units of 1 / [`CREDIT`] of a packet.
    pub packets_over: u64,
    /// Largest excess of the bit bucket over its burst, in units of 1 / [`CREDIT`] of a bit.
    pub bits_over: u64,
}

/// The results of a monitor. Each segment of a GSO packet counts as a packet with its own headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConformReport {
    /// Packets that the monitor counted.
    pub packets: u64,
    /// Bytes of the counted frames, with the Ethernet header, without preamble and frame check
    /// sequence.
    pub bytes: u64,
    /// Time of the first packet, ns of `CLOCK_MONOTONIC`; 0 without packets.
    pub first_ns: u64,
    /// Time of the last packet, ns of `CLOCK_MONOTONIC`; 0 without packets.
    pub last_ns: u64,
    /// Packets above the profile.
    pub above: u64,
    /// Packets above the profile and the tolerance. The traffic conforms if this number is 0.
    pub beyond: u64,
    /// Levels of the packet bucket; `None` if the profile has no limit in packets.
    pub packet_bucket: Option<BucketLevel>,
    /// Levels of the bit bucket; `None` if the profile has no limit in bits.
    pub bit_bucket: Option<BucketLevel>,
    /// Number of violations.
    pub violations: u64,
    /// The first violations, in the order of time.
    pub first_violations: Vec<Violation>,
}

impl Conformance {
    /// Attaches a monitor to an interface of the calling thread's network namespace. Without tcx,
    /// drop the monitor in the same namespace. Pins nothing.
    ///
    /// # Errors
    /// The interface does not exist, a capability is missing, or the kernel refuses the program.
    pub fn attach(
        interface: &str,
        ifindex: u32,
        direction: TrafficDirection,
        config: &ConformConfig,
    ) -> Result<Self, Error> {
        Self::attach_with(config, |program| {
            let target = attach_target(interface, ifindex);
            Attachment::attach_outermost(program, &target, direction, None)
        })
    }

    /// Attaches a monitor as a clsact filter even if the kernel has tcx. Drop the monitor in the
    /// same network namespace.
    ///
    /// # Errors
    /// As [`Conformance::attach`].
    pub fn attach_clsact(
        interface: &str,
        ifindex: u32,
        direction: TrafficDirection,
        config: &ConformConfig,
    ) -> Result<Self, Error> {
        Self::attach_with(config, |program| {
            Attachment::attach_clsact(program, &attach_target(interface, ifindex), direction, None)
        })
    }

    fn attach_with(
        config: &ConformConfig,
        attach: impl FnOnce(BorrowedFd<'_>) -> Result<Attachment, Error>,
    ) -> Result<Self, Error> {
        let (program, map) = load(config, false)?;
        Ok(Self {
            map,
            profile: config.profile,
            _attachment: Some(attach(program.as_fd())?),
        })
    }

    /// Returns an unattached monitor and its program for test runs. The program reads the time from
    /// the packets.
    ///
    /// # Errors
    /// The kernel refuses the program or its map.
    pub fn load_unattached(config: &ConformConfig) -> Result<(OwnedFd, Self), Error> {
        let (program, map) = load(config, true)?;
        let monitor = Self {
            map,
            profile: config.profile,
            _attachment: None,
        };
        Ok((program, monitor))
    }

    /// Returns a consistent snapshot of the results.
    ///
    /// # Errors
    /// The kernel refuses to read the map.
    pub fn read(&self) -> Result<ConformReport, Error> {
        read(&self.map, &self.profile)
    }
}

fn attach_target(interface: &str, ifindex: u32) -> AttachTarget {
    AttachTarget {
        interface: interface.to_owned(),
        ifindex,
    }
}

/// Loads the program with its own map. With `trial`, the program reads the time from the packets.
fn load(config: &ConformConfig, trial: bool) -> Result<(OwnedFd, MapHandle), Error> {
    let map = CONFORM.create_declared_map(MAP, 1)?;
    let instance = ConformInstance::new(config, trial);
    let maps = [(MAP, map.as_fd())];
    let program = CONFORM.load(Hook::Tcx, bytemuck::bytes_of(&instance), &maps)?;
    Ok((program, map))
}

/// Reads the results from the program's map.
fn read(map: &MapHandle, profile: &Profile) -> Result<ConformReport, Error> {
    // The flag takes the program's lock, for a consistent snapshot.
    let bytes = map
        .lookup(&0_u32.to_ne_bytes(), MapFlags::LOCK)
        .map_err(|cause| Error::map(MAP, "read", &cause))?
        .unwrap_or_default();
    let entry =
        bytemuck::try_pod_read_unaligned::<ConformEntry>(&bytes).map_err(|_| Error::Map {
            map: MAP,
            action: "read",
            cause: std::io::ErrorKind::InvalidData.into(),
        })?;
    let kept = KEPT.min(usize::try_from(entry.violations).unwrap_or(KEPT));
    Ok(ConformReport {
        packets: entry.packets,
        bytes: entry.bytes,
        first_ns: entry.first_ns,
        last_ns: entry.last_ns,
        above: entry.above,
        beyond: entry.beyond,
        packet_bucket: profile.packets.map(|_| entry.packet_bucket),
        bit_bucket: profile.bits.map(|_| entry.bit_bucket),
        violations: entry.violations,
        first_violations: entry.kept[..kept].to_vec(),
    })
}

/// The name of the program's map.
const MAP: &str = "conformance";

/// `struct leaky_bucket`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct LeakyBucket {
    rate: u64,
    full: u64,
    tolerated: u64,
    drain_ns: u64,
    unit: u64,
}

impl LeakyBucket {
    fn new(bucket: Option<Bucket>, tolerance_ns: u64) -> Self {
        bucket.map_or_else(Self::zeroed, |bucket| Self {
            rate: bucket.rate(),
            full: bucket.full(),
            tolerated: bucket
                .full()
                .saturating_add(bucket.rate().saturating_mul(tolerance_ns)),
            drain_ns: u64::MAX / bucket.rate(),
            unit: CREDIT,
        })
    }
}

/// `struct conform`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct ConformInstance {
    packet_bucket: LeakyBucket,
    bit_bucket: LeakyBucket,
    most_packets: u64,
    families: u32,
    trial: u32,
    keep: [Words; 2],
    expected: [Words; 2],
}

impl ConformInstance {
    fn new(config: &ConformConfig, trial: bool) -> Self {
        let mut instance = Self {
            packet_bucket: LeakyBucket::new(config.profile.packets, config.tolerance_ns),
            bit_bucket: LeakyBucket::new(config.profile.bits, config.tolerance_ns),
            most_packets: config.most_packets.unwrap_or(0),
            trial: trial.into(),
            ..Self::zeroed()
        };
        for (number, family) in [Family::V4, Family::V6].into_iter().enumerate() {
            let comparison = config
                .filter
                .and_then(|filter| make_comparison(&filter, family));
            if let Some((keep, expected)) = comparison {
                instance.families |= 1 << number;
                (instance.keep[number], instance.expected[number]) = (keep, expected);
            }
        }
        instance
    }
}

/// `struct conformance`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct ConformEntry {
    lock: u32,
    violating: u32,
    first_ns: u64,
    last_ns: u64,
    packets: u64,
    bytes: u64,
    above: u64,
    beyond: u64,
    violations: u64,
    packet_bucket: BucketLevel,
    bit_bucket: BucketLevel,
    kept: [Violation; KEPT],
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;
    use crate::tests::{assert_same_layout, layout};

    #[test]
    fn structures_match_their_c_layout() {
        assert_same_layout!(
            CONFORM,
            "leaky_bucket",
            LeakyBucket {
                rate,
                full,
                tolerated,
                drain_ns,
                unit
            }
        );
        assert_same_layout!(
            CONFORM,
            "conform",
            ConformInstance {
                packet_bucket,
                bit_bucket,
                most_packets,
                families,
                trial,
                keep,
                expected
            }
        );
        let members = [
            ("now", offset_of!(BucketLevel, level.now)),
            ("most", offset_of!(BucketLevel, level.most)),
            ("most_ns", offset_of!(BucketLevel, most_ns)),
        ];
        let members = members.map(|(name, offset)| (name.to_owned(), offset));
        assert_eq!(
            layout(&CONFORM, "level"),
            (size_of::<BucketLevel>(), members.into())
        );
        assert_same_layout!(
            CONFORM,
            "violation",
            Violation {
                from_ns,
                to_ns,
                packets,
                packets_over,
                bits_over
            }
        );
        assert_same_layout!(
            CONFORM,
            "conformance",
            ConformEntry {
                lock,
                violating,
                first_ns,
                last_ns,
                packets,
                bytes,
                above,
                beyond,
                violations,
                packet_bucket,
                bit_bucket,
                kept
            }
        );
    }
}
