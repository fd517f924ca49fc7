//! Policers of the front door: one for a chain, kept over its live changes.

use bytemuck::{Pod, Zeroable};
use libbpf_rs::{MapCore, MapFlags};
use myelin_packet::traffic::{Bucket, CREDIT, Profile};

use crate::Error;
use crate::blocks::Block;
use crate::map::put;
use crate::shared::Shared;

/// The policer of a chain; see [`Plane::policer`](crate::Plane::policer). Its place is free for others when it is dropped.
#[derive(Debug)]
pub struct Policer {
    number: Block,
    profile: Profile,
}

/// What a shaper made of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Departures {
    /// Had to wait.
    pub delayed: u64,
    /// Dropped: would have waited too long.
    pub late: u64,
    /// Dropped: larger than the burst.
    pub big: u64,
    /// The latest departure that it gave a packet, on the clock of `bpf_ktime_get_ns` (CLOCK_MONOTONIC), ns; 0 if it gave none.
    pub latest_ns: u64,
}

/// `struct bucket`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Limit {
    rate: u64,
    full: u64,
    fill_ns: u64,
    each: u64,
}

/// `struct policer`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Entry {
    lock: u32,
    spare: u32,
    last_ns: u64,
    packets: u64,
    bits: u64,
    /// Of a shaper: packets delayed, too late, too big; how long one may wait, ns.
    more: [u64; 4],
    of_packets: Limit,
    of_bits: Limit,
}

impl Limit {
    fn new(bucket: Option<Bucket>) -> Self {
        bucket.map_or_else(Self::zeroed, |bucket| Self {
            rate: bucket.rate(),
            full: bucket.full(),
            fill_ns: bucket.fill_ns(),
            each: CREDIT,
        })
    }
}

impl Entry {
    pub(crate) fn new(profile: &Profile) -> Self {
        let (of_packets, of_bits) = (Limit::new(profile.packets), Limit::new(profile.bits));
        Self {
            packets: of_packets.full,
            bits: of_bits.full,
            of_packets,
            of_bits,
            ..Self::zeroed()
        }
    }
}

impl Policer {
    pub(crate) fn new(shared: &Shared, profile: &Profile) -> Result<Self, Error> {
        Self::with(shared, profile, Entry::new(profile))
    }

    /// A shaper: the same bucket, whose packets may wait so long.
    pub(crate) fn shaper(shared: &Shared, profile: &Profile, limit_ns: u64) -> Result<Self, Error> {
        let mut entry = Entry::new(profile);
        entry.more[3] = limit_ns;
        Self::with(shared, profile, entry)
    }

    fn with(shared: &Shared, profile: &Profile, entry: Entry) -> Result<Self, Error> {
        let number = Block::take(&shared.policer_numbers, 1)?;
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

    /// What it lets through.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// What it did, as a shaper.
    pub(crate) fn departures(&self, shared: &Shared) -> Result<Departures, Error> {
        let value = shared
            .policers
            .lookup(&self.number.start().to_ne_bytes(), MapFlags::ANY)
            .map_err(|cause| Error::map("policers", "read a shaper of", &cause))?;
        let entry = value.filter(|bytes| bytes.len() == size_of::<Entry>());
        let entry = entry.map_or_else(Entry::zeroed, |bytes| bytemuck::pod_read_unaligned(&bytes));
        let [delayed, late, big, _] = entry.more;
        Ok(Departures {
            delayed,
            late,
            big,
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
    use crate::tests::assert_twins;

    #[test]
    fn entries_lie_as_in_c() {
        assert_twins!(
            POLICER,
            "bucket",
            Limit {
                rate,
                full,
                fill_ns,
                each
            }
        );
        assert_twins!(
            POLICER,
            "policer",
            Entry {
                lock,
                spare,
                last_ns,
                packets,
                bits,
                more,
                of_packets,
                of_bits
            }
        );
    }
}
