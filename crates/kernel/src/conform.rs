//! The conformance monitor: does what passes an interface keep to a profile? It stands on its own, without a plane or an
//! agent, and shares no code with the policer. Twin of `Meter`, a fixture of `packet`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bytemuck::{Pod, Zeroable};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use myelin_packet::traffic::{Bucket, CREDIT, Level, Profile};
use myelin_packet::{Family, Match};

use crate::attach::{Attachment, Direction, Place};
use crate::classifier::keys::{Words, comparison};
use crate::object::CONFORM;
use crate::{Error, Hook};

/// Violations that are kept, of all that there were.
const KEPT: usize = 32;

/// What a monitor shall look for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watch {
    /// What the traffic is to keep to.
    pub profile: Profile,
    /// By how much a packet may seem early, ns: what is below `rate * (t + tolerance) + burst` is no violation. For the
    /// jitter of clocks and schedulers between the place that is judged and the interface.
    pub tolerance_ns: u64,
    /// The packets that count; all where there is none.
    pub filter: Option<Match>,
    /// After so many packets nothing is counted any more.
    pub most_packets: Option<u64>,
}

/// A monitor at an interface; gone when it is dropped or its process ends. On a kernel without tcx (before 6.6) a killed
/// process leaves a filter of clsact behind, which does nothing but count.
#[derive(Debug)]
pub struct Conformance {
    map: MapHandle,
    profile: Profile,
    _attachment: Option<Attachment>,
}

/// How full a bucket of the monitor got: `struct level`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Fill {
    /// Now, and at most.
    pub level: Level,
    /// When it was fullest, ns of `CLOCK_MONOTONIC`.
    pub most_ns: u64,
}

impl Fill {
    /// Whether it got so full that it can count no further: the burst was this or more.
    pub fn is_saturated(&self) -> bool {
        self.level.most == u64::MAX
    }

    /// The most that it was above a bucket's burst, in units of 1 / [`CREDIT`].
    pub fn over(&self, bucket: Bucket) -> u64 {
        self.level.most.saturating_sub(bucket.full())
    }

    /// The least tolerance with which everything would have conformed, ns: how long the bucket's rate takes for what was
    /// above its burst.
    pub fn least_tolerance_ns(&self, bucket: Bucket) -> u64 {
        self.over(bucket).div_ceil(bucket.rate())
    }
}

/// Packets on end that are beyond the profile, tolerance and all: `struct violation`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Violation {
    /// When the first of them came, ns of `CLOCK_MONOTONIC`.
    pub from_ns: u64,
    /// When the last one came.
    pub to_ns: u64,
    /// How many.
    pub packets: u64,
    /// The most that the bucket of packets was above its burst, in units of 1 / [`CREDIT`] of a packet.
    pub packets_over: u64,
    /// The most that the bucket of bits was above its burst, in units of 1 / [`CREDIT`] of a bit.
    pub bits_over: u64,
}

/// What a monitor has seen so far. Segments of a packet that is segmented later count as packets with headers of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Packets.
    pub packets: u64,
    /// Bytes of their frames, from the Ethernet header on; without preamble and frame check sequence.
    pub bytes: u64,
    /// When the first one came, ns of `CLOCK_MONOTONIC`; 0 without packets.
    pub first_ns: u64,
    /// When the last one came.
    pub last_ns: u64,
    /// Packets with which the traffic did not conform.
    pub above: u64,
    /// Those of them that the tolerance does not excuse: 0 says that the traffic conforms.
    pub beyond: u64,
    /// The bucket of packets, where the profile has one.
    pub of_packets: Option<Fill>,
    /// The bucket of bits, likewise.
    pub of_bits: Option<Fill>,
    /// How many violations there were.
    pub violations: u64,
    /// The first ones, in their order.
    pub first_violations: Vec<Violation>,
}

impl Conformance {
    /// Attaches to an interface of the calling thread's network namespace; on a kernel without tcx it must also be dropped
    /// there. Nothing is pinned.
    ///
    /// # Errors
    /// The interface does not exist, the rights are missing, or the kernel does not take the program.
    pub fn attach(
        interface: &str,
        ifindex: u32,
        direction: Direction,
        watch: &Watch,
    ) -> Result<Self, Error> {
        Self::attached(watch, |program| {
            Attachment::watch(program, &place(interface, ifindex), direction)
        })
    }

    /// Attaches as a filter of clsact even where there is tcx; to be dropped in the same network namespace.
    ///
    /// # Errors
    /// As [`Conformance::attach`].
    pub fn attach_clsact(
        interface: &str,
        ifindex: u32,
        direction: Direction,
        watch: &Watch,
    ) -> Result<Self, Error> {
        Self::attached(watch, |program| {
            Attachment::clsact(program, &place(interface, ifindex), direction, None)
        })
    }

    fn attached(
        watch: &Watch,
        attach: impl FnOnce(BorrowedFd<'_>) -> Result<Attachment, Error>,
    ) -> Result<Self, Error> {
        let (program, map) = load(watch, false)?;
        Ok(Self {
            map,
            profile: watch.profile,
            _attachment: Some(attach(program.as_fd())?),
        })
    }

    /// A monitor that stands nowhere, and its program for test runs: it takes the time from the packets.
    ///
    /// # Errors
    /// The kernel does not take the program or its map.
    pub fn detached(watch: &Watch) -> Result<(OwnedFd, Self), Error> {
        let (program, map) = load(watch, true)?;
        let monitor = Self {
            map,
            profile: watch.profile,
            _attachment: None,
        };
        Ok((program, monitor))
    }

    /// What it has seen so far: one moment's figures.
    ///
    /// # Errors
    /// The kernel does not give them.
    pub fn read(&self) -> Result<Seen, Error> {
        read(&self.map, &self.profile)
    }
}

fn place(interface: &str, ifindex: u32) -> Place {
    Place {
        interface: interface.to_owned(),
        ifindex,
    }
}

/// Loads the program with a map of its own. `trial`: packets bring their time with them.
fn load(watch: &Watch, trial: bool) -> Result<(OwnedFd, MapHandle), Error> {
    let map = CONFORM.declared_map(MAP, 1)?;
    let instance = Instance::new(watch, trial);
    let maps = [(MAP, map.as_fd())];
    let program = CONFORM.load(Hook::Tcx, bytemuck::bytes_of(&instance), &maps)?;
    Ok((program, map))
}

/// What the program has left in its map.
fn read(map: &MapHandle, profile: &Profile) -> Result<Seen, Error> {
    // Under the program's lock, so that the figures belong together.
    let bytes = map
        .lookup(&0_u32.to_ne_bytes(), MapFlags::LOCK)
        .map_err(|cause| Error::map(MAP, "read", &cause))?
        .unwrap_or_default();
    let entry = bytemuck::try_pod_read_unaligned::<Entry>(&bytes).map_err(|_| Error::Map {
        map: MAP,
        action: "read",
        cause: std::io::ErrorKind::InvalidData.into(),
    })?;
    let kept = KEPT.min(usize::try_from(entry.violations).unwrap_or(KEPT));
    Ok(Seen {
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
struct Limit {
    rate: u64,
    full: u64,
    wide: u64,
    drain_ns: u64,
    each: u64,
}

impl Limit {
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
struct Instance {
    of_packets: Limit,
    of_bits: Limit,
    most_packets: u64,
    families: u32,
    trial: u32,
    keep: [Words; 2],
    want: [Words; 2],
}

impl Instance {
    fn new(watch: &Watch, trial: bool) -> Self {
        let mut instance = Self {
            of_packets: Limit::new(watch.profile.packets, watch.tolerance_ns),
            of_bits: Limit::new(watch.profile.bits, watch.tolerance_ns),
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
struct Entry {
    lock: u32,
    violating: u32,
    first_ns: u64,
    last_ns: u64,
    packets: u64,
    bytes: u64,
    above: u64,
    beyond: u64,
    violations: u64,
    of_packets: Fill,
    of_bits: Fill,
    kept: [Violation; KEPT],
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;
    use crate::tests::{assert_twins, layout};

    #[test]
    fn it_lies_as_in_c() {
        assert_twins!(
            CONFORM,
            "limit",
            Limit {
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
            Instance {
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
            ("now", offset_of!(Fill, level.now)),
            ("most", offset_of!(Fill, level.most)),
            ("most_ns", offset_of!(Fill, most_ns)),
        ];
        let members = members.map(|(name, offset)| (name.to_owned(), offset));
        assert_eq!(
            layout(&CONFORM, "level"),
            (size_of::<Fill>(), members.into())
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
            Entry {
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
