//! Policers of the front door: one for each chain, kept during live changes.

use bytemuck::{Pod, Zeroable};
use libbpf_rs::{MapCore, MapFlags};
use myelin_packet::traffic::{Bucket, CREDIT, Profile};

use crate::Error;
use crate::map::put;
use crate::numbers::NumberRange;
use crate::resources::PlaneResources;

/// The policer of a chain; see [`Plane::policer`](crate::Plane::policer). The drop frees the
/// policer's number.
#[derive(Debug)]
pub struct Policer {
    number: NumberRange,
    profile: Profile,
}

/// Counts of the packets that a shaper delayed or dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShaperCounters {
    /// Packets that the shaper delayed.
    pub delayed: u64,
    /// Packets dropped because their delay would exceed the limit.
    pub late: u64,
    /// Packets dropped because they are larger than the burst.
    pub oversized: u64,
    /// The latest departure time, CLOCK_MONOTONIC (`bpf_ktime_get_ns`), ns; 0 without packets.
    pub latest_ns: u64,
}

/// `struct bucket`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct BucketEntry {
    rate: u64,
    full: u64,
    fill_ns: u64,
    unit_credit: u64,
}

/// `struct policer`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct PolicerEntry {
    lock: u32,
    padding: u32,
    last_ns: u64,
    packets: u64,
    bits: u64,
    /// For a shaper: numbers of delayed, late and oversized packets, then the longest delay, ns.
    shaper_words: [u64; 4],
    packet_bucket: BucketEntry,
    bit_bucket: BucketEntry,
}

impl BucketEntry {
    fn new(bucket: Option<Bucket>) -> Self {
        bucket.map_or_else(Self::zeroed, |bucket| Self {
            rate: bucket.rate(),
            full: bucket.full(),
            fill_ns: bucket.fill_ns(),
            unit_credit: CREDIT,
        })
    }
}

impl PolicerEntry {
    pub(crate) fn new(profile: &Profile) -> Self {
        let [packet_bucket, bit_bucket] = [profile.packets, profile.bits].map(BucketEntry::new);
        Self {
            packets: packet_bucket.full,
            bits: bit_bucket.full,
            packet_bucket,
            bit_bucket,
            ..Self::zeroed()
        }
    }
}

impl Policer {
    pub(crate) fn new(shared: &PlaneResources, profile: &Profile) -> Result<Self, Error> {
        Self::add_entry(shared, profile, PolicerEntry::new(profile))
    }

    /// Makes a shaper: a policer whose packets may wait up to `limit_ns`.
    pub(crate) fn new_shaper(
        shared: &PlaneResources,
        profile: &Profile,
        limit_ns: u64,
    ) -> Result<Self, Error> {
        let mut entry = PolicerEntry::new(profile);
        entry.shaper_words[3] = limit_ns;
        Self::add_entry(shared, profile, entry)
    }

    fn add_entry(
        shared: &PlaneResources,
        profile: &Profile,
        entry: PolicerEntry,
    ) -> Result<Self, Error> {
        let number = NumberRange::allocate(&shared.policer_numbers, 1)?;
        let (key, value) = (number.start().to_ne_bytes(), bytemuck::bytes_of(&entry));
        put(
            &shared.policers,
            ("policers", "add a policer to"),
            &key,
            value,
        )?;
        Ok(Self {
            number,
            profile: *profile,
        })
    }

    /// Returns the profile.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Returns the counters of a shaper.
    pub(crate) fn shaper_counters(&self, shared: &PlaneResources) -> Result<ShaperCounters, Error> {
        let value = shared
            .policers
            .lookup(&self.number.start().to_ne_bytes(), MapFlags::ANY)
            .map_err(|cause| Error::map("policers", "read a shaper of", &cause))?;
        let entry = value.filter(|bytes| bytes.len() == size_of::<PolicerEntry>());
        let entry: PolicerEntry = entry.map_or_else(Zeroable::zeroed, |bytes| {
            bytemuck::pod_read_unaligned(&bytes)
        });
        let [delayed, late, oversized, _] = entry.shaper_words;
        Ok(ShaperCounters {
            delayed,
            late,
            oversized,
            latest_ns: entry.last_ns,
        })
    }

    pub(crate) fn number(&self) -> u32 {
        self.number.start()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::POLICER;
    use crate::tests::assert_same_layout;

    #[test]
    fn entries_match_their_c_layout() {
        assert_same_layout!(
            POLICER,
            "bucket",
            BucketEntry {
                rate,
                full,
                fill_ns,
                unit_credit
            }
        );
        assert_same_layout!(
            POLICER,
            "policer",
            PolicerEntry {
                lock,
                padding,
                last_ns,
                packets,
                bits,
                shaper_words,
                packet_bucket,
                bit_bucket
            }
        );
    }
}
