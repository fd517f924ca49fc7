//! What a first fragment decides for the fragments that follow: at the front door its ports, at a
//! translator its new address. The kernel has the same tables as LRU maps
//! (`kernel/src/bpf/fragments.h`, `kernel/src/bpf/translated_fragments.h`).

use crate::fragments::DatagramId;

/// How long a table remembers a first fragment, ns. A receiver waits as long (Linux).
pub const LIFETIME_NS: u64 = 30_000_000_000;
/// Datagrams that the front door remembers.
pub const DATAGRAMS: usize = 16_384;

/// Datagrams that share a bucket.
const WAYS: usize = 8;

#[derive(Clone, Copy, Debug)]
struct Entry<T> {
    datagram: DatagramId,
    value: T,
    seen_ns: u64,
}

/// A value for each recent first fragment. The table never grows: a new datagram replaces the
/// oldest datagram of its bucket.
#[derive(Debug)]
pub struct FragmentTable<T> {
    /// Empty until [`reserve`](Self::reserve).
    entries: Vec<Option<Entry<T>>>,
}

impl<T> Default for FragmentTable<T> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
        }
    }
}

impl<T: Copy> FragmentTable<T> {
    /// Allocates the memory for this number of datagrams, a multiple of 8. Until then the table
    /// remembers nothing.
    pub fn reserve(&mut self, datagrams: usize) {
        if self.entries.is_empty() {
            self.entries = vec![None; datagrams];
        }
    }

    fn bucket(&mut self, datagram: &DatagramId) -> &mut [Option<Entry<T>>] {
        let word = |bytes: &[u8]| {
            bytes
                .iter()
                .fold(0, |word, byte| word << 8 | u64::from(*byte))
        };
        let words = [
            word(&datagram.source[..8]),
            word(&datagram.source[8..]),
            word(&datagram.destination[..8]),
            word(&datagram.destination[8..]),
            u64::from(datagram.identification) << 8 | u64::from(datagram.protocol),
        ];
        let hash = words.iter().fold(0_u64, |hash, word| {
            let hash = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            hash ^ (hash >> 32)
        });
        let buckets = self.entries.len() / WAYS;
        let start = (hash as usize).checked_rem(buckets).unwrap_or(0) * WAYS;
        let end = (start + WAYS).min(self.entries.len());
        &mut self.entries[start..end]
    }

    /// Remembers the value of a first fragment that arrived at `now_ns`.
    pub fn remember(&mut self, datagram: DatagramId, value: T, now_ns: u64) {
        let entry = Entry {
            datagram,
            value,
            seen_ns: now_ns,
        };
        let bucket = self.bucket(&datagram);
        let is_same =
            |held: &Option<Entry<T>>| held.as_ref().is_some_and(|held| held.datagram == datagram);
        let oldest = |bucket: &[Option<Entry<T>>]| {
            (0..bucket.len()).min_by_key(|&at| bucket[at].map_or(0, |held| held.seen_ns))
        };
        let at = bucket.iter().position(is_same).or_else(|| oldest(bucket));
        if let Some(slot) = at.and_then(|at| bucket.get_mut(at)) {
            *slot = Some(entry);
        }
    }

    /// Returns the value for a later fragment's datagram, if the first fragment is known.
    pub fn find(&mut self, datagram: &DatagramId, now_ns: u64) -> Option<T> {
        let bucket = self.bucket(datagram);
        let entry = bucket
            .iter()
            .flatten()
            .find(|held| held.datagram == *datagram)?;
        (now_ns.saturating_sub(entry.seen_ns) <= LIFETIME_NS).then_some(entry.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn datagram(i: u32) -> DatagramId {
        let mut source = [0; 16];
        source[..4].copy_from_slice(&i.to_be_bytes());
        DatagramId {
            source,
            destination: [7; 16],
            identification: i,
            protocol: 17,
            is_ipv6: true,
        }
    }

    #[test]
    fn a_first_fragment_is_remembered_for_30_s() {
        let mut table = FragmentTable::default();
        table.remember(datagram(1), [1, 2], 5);
        assert_eq!(table.find(&datagram(1), 5), None, "no memory yet");
        table.reserve(DATAGRAMS);
        table.remember(datagram(1), [1, 2], 5);
        assert_eq!(table.find(&datagram(1), 5 + LIFETIME_NS), Some([1, 2]));
        assert_eq!(table.find(&datagram(1), 6 + LIFETIME_NS), None);
        assert_eq!(table.find(&datagram(2), 5), None);
        // A repeated first fragment renews the entry and replaces its ports.
        table.remember(datagram(1), [3, 4], 6);
        assert_eq!(table.find(&datagram(1), 6 + LIFETIME_NS), Some([3, 4]));
    }

    #[test]
    fn fragments_of_many_sources_replace_the_oldest() {
        let mut table = FragmentTable::default();
        table.reserve(DATAGRAMS);
        let sources = 20 * DATAGRAMS as u32;
        for i in 0..sources {
            table.remember(datagram(i), [9, 9], u64::from(i) + 1);
            assert_eq!(table.find(&datagram(i), u64::from(i) + 1), Some([9, 9]));
        }
        assert_eq!(table.entries.len(), DATAGRAMS);
        let held = (0..sources).filter(|&i| table.find(&datagram(i), 1).is_some());
        assert_eq!(held.count(), DATAGRAMS);
        assert_eq!(table.find(&datagram(0), 1), None);
    }
}
