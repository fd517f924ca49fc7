//! The conformance monitor: checks whether the traffic of an interface conforms to a profile. It
//! needs no plane and no agent, and shares no code with the policer. Twin of `Meter`, a fixture of
//! `packet`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bytemuck::{Pod, Zeroable};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use myelin_packet::traffic::{Bucket, CREDIT, Level, Profile};
use myelin_packet::{Family, Match};

use crate::attach::{AttachTarget, Attachment, TrafficDirection};
use crate::classifier::keys::{Words, comparison};
use crate::object::CONFORM;
use crate::{Error, Hook};

/// Violations that the monitor keeps.
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
    /// The packets to count; `None` counts all.
    pub filter: Option<Match>,
    /// The monitor stops counting after so many packets.
    pub most_packets: Option<u64>,
}

/// A monitor at an interface. It ends with its drop or its process. Without tcx (before Linux 6.6)
/// a killed process leaves a clsact filter behind, which only counts.
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
    /// The present level and the maximum.
    pub level: Level,
    /// Time of the maximum, ns of `CLOCK_MONOTONIC`.
    pub most_ns: u64,
}

impl BucketLevel {
    /// Returns whether the level reached the end of its range. The burst is at least that.
    pub fn is_saturated(&self) -> bool {
        self.level.most == u64::MAX
    }

    /// Returns the largest excess over the bucket's burst, in units of 1 / [`CREDIT`].
    pub fn over(&self, bucket: Bucket) -> u64 {
        self.level.most.saturating_sub(bucket.full())
    }

    /// Returns the smallest tolerance without violations, ns: the time in which the bucket's rate
    /// drains the excess.
    pub fn least_tolerance_ns(&self, bucket: Bucket) -> u64 {
        self.over(bucket).div_ceil(bucket.rate())
    }
}

/// Consecutive packets beyond the profile and the tolerance: `struct violation`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Violation {
    /// Time of the first packet, ns of `CLOCK_MONOTONIC`.
    pub from_ns: u64,
    /// Time of the last packet.
    pub to_ns: u64,
    /// Number of packets.
    pub packets: u64,
    /// Largest excess of the packet bucket over its burst, in units of 1 / [`CREDIT`] of a packet.
    pub packets_over: u64,
    /// Largest excess of the bit bucket over its burst, in units of 1 / [`CREDIT`] of a bit.
    pub bits_over: u64,
}

/// The results of a monitor. Each segment of a GSO packet counts as a packet with its own headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConformReport {
    /// Packets.
    pub packets: u64,
    /// Bytes of their frames, with the Ethernet header, without preamble and frame check sequence.
    pub bytes: u64,
    /// Time of the first packet, ns of `CLOCK_MONOTONIC`; 0 without packets.
    pub first_ns: u64,
    /// Time of the last packet.
    pub last_ns: u64,
    /// Packets above the profile.
    pub above: u64,
    /// Packets above the profile and the tolerance. The traffic conforms if this is 0.
    pub beyond: u64,
    /// The packet bucket, if the profile has one.
    pub of_packets: Option<BucketLevel>,
    /// The bit bucket, if the profile has one.
    pub of_bits: Option<BucketLevel>,
    /// Number of violations.
    pub violations: u64,
    /// The first violations, in order.
    pub first_violations: Vec<Violation>,
}

impl Conformance {
    /// Attaches to an interface of the calling thread's network namespace. Without tcx, drop it in
    /// the same namespace. Pins nothing.
    ///
    /// # Errors
    /// The interface does not exist, a capability is missing, or the kernel refuses the program.
    pub fn attach(
        interface: &str,
        ifindex: u32,
        direction: TrafficDirection,
        watch: &ConformConfig,
    ) -> Result<Self, Error> {
        Self::attached(watch, |program| {
            Attachment::observe(program, &place(interface, ifindex), direction)
        })
    }

    /// Attaches as a clsact filter even if the kernel has tcx. Drop it in the same network
    /// namespace.
    ///
    /// # Errors
    /// As [`Conformance::attach`].
    pub fn attach_clsact(
        interface: &str,
        ifindex: u32,
        direction: TrafficDirection,
        watch: &ConformConfig,
    ) -> Result<Self, Error> {
        Self::attached(watch, |program| {
            Attachment::clsact(program, &place(interface, ifindex), direction, None)
        })
    }

    fn attached(
        watch: &ConformConfig,
        attach: impl FnOnce(BorrowedFd<'_>) -> Result<Attachment, Error>,
    ) -> Result<Self, Error> {
        let (program, map) = load(watch, false)?;
        Ok(Self {
            map,
            profile: watch.profile,
            _attachment: Some(attach(program.as_fd())?),
        })
    }

    /// Returns an unattached monitor and its program for test runs. The program reads the time from
    /// the packets.
    ///
    /// # Errors
    /// The kernel refuses the program or its map.
    pub fn detached(watch: &ConformConfig) -> Result<(OwnedFd, Self), Error> {
        let (program, map) = load(watch, true)?;
        let monitor = Self {
            map,
            profile: watch.profile,
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

fn place(interface: &str, ifindex: u32) -> AttachTarget {
    AttachTarget {
        interface: interface.to_owned(),
        ifindex,
    }
}

/// Loads the program with its own map. `trial`: the program reads the time from the packets.
fn load(watch: &ConformConfig, trial: bool) -> Result<(OwnedFd, MapHandle), Error> {
    let map = CONFORM.declared_map(MAP, 1)?;
    let instance = ConformInstance::new(watch, trial);
    let maps = [(MAP, map.as_fd())];
    let program = CONFORM.load(Hook::Tcx, bytemuck::bytes_of(&instance), &maps)?;
    Ok((program, map))
}

/// Reads the results from the program's map.
fn read(map: &MapHandle, profile: &Profile) -> Result<ConformReport, Error> {
    // Takes the program's lock, for a consistent snapshot.
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
        of_packets: profile.packets.map(|_| entry.of_packets),
        of_bits: profile.bits.map(|_| entry.of_bits),
        violations: entry.violations,
        first_violations: entry.kept[..kept].to_vec(),
    })
}

/// The name of the program's map.
const MAP: &str = "conformance";

/// `struct limit`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct LeakyBucket {
    rate: u64,
    full: u64,
    wide: u64,
    drain_ns: u64,
    each: u64,
}

impl LeakyBucket {
    fn new(bucket: Option<Bucket>, tolerance_ns: u64) -> Self {
        bucket.map_or_else(Self::zeroed, |bucket| Self {
            rate: bucket.rate(),
            full: bucket.full(),
            wide: bucket
                .full()
                .saturating_add(bucket.rate().saturating_mul(tolerance_ns)),
            drain_ns: u64::MAX / bucket.rate(),
            each: CREDIT,
        })
    }
}

/// `struct watch`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct ConformInstance {
    of_packets: LeakyBucket,
    of_bits: LeakyBucket,
    most_packets: u64,
    families: u32,
    trial: u32,
    keep: [Words; 2],
    want: [Words; 2],
}

impl ConformInstance {
    fn new(watch: &ConformConfig, trial: bool) -> Self {
        let mut instance = Self {
            of_packets: LeakyBucket::new(watch.profile.packets, watch.tolerance_ns),
            of_bits: LeakyBucket::new(watch.profile.bits, watch.tolerance_ns),
            most_packets: watch.most_packets.unwrap_or(0),
            trial: trial.into(),
            ..Self::zeroed()
        };
        for (number, family) in [Family::V4, Family::V6].into_iter().enumerate() {
            let compared = watch.filter.and_then(|filter| comparison(&filter, family));
            if let Some((keep, want)) = compared {
                instance.families |= 1 << number;
                (instance.keep[number], instance.want[number]) = (keep, want);
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
    of_packets: BucketLevel,
    of_bits: BucketLevel,
    kept: [Violation; KEPT],
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;
    use crate::tests::{assert_twins, layout};

    #[test]
    fn structures_match_their_c_layout() {
        assert_twins!(
            CONFORM,
            "limit",
            LeakyBucket {
                rate,
                full,
                wide,
                drain_ns,
                each
            }
        );
        assert_twins!(
            CONFORM,
            "watch",
            ConformInstance {
                of_packets,
                of_bits,
                most_packets,
                families,
                trial,
                keep,
                want
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
        assert_twins!(
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
        assert_twins!(
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
                of_packets,
                of_bits,
                kept
            }
        );
    }
}
