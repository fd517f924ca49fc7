//! Maglev hashing: maps a flow to one of several backends, so that few flows move when a backend is
//! added or removed (Eisenbud et al., Maglev: A Fast and Reliable Software Network Load Balancer,
//! NSDI 2016, section 3.4).

use std::net::IpAddr;

use bytemuck::{Pod, Zeroable};

use crate::flow_key::FlowKey;
use crate::mac::MacAddr;
use crate::prefix::address_bytes;

/// Entries of a table: a prime above 100 times [`MAX_BACKENDS`], so that the shares of backends
/// with equal weights differ by less than a percent of a fair share.
pub const TABLE_SIZE: usize = 65_537;
/// Bytes of a table's entries, padded to a multiple of eight: `struct table` of the eBPF programs.
pub const TABLE_BYTES: usize = TABLE_SIZE.next_multiple_of(4) * size_of::<u16>();
/// Most backends.
pub const MAX_BACKENDS: usize = 512;
/// Greatest weight.
pub const MAX_WEIGHT: u32 = 100;
/// Entry of a table without backends.
pub const NO_BACKEND: u16 = u16::MAX;

/// Target of a load balancer. Same layout as `struct backend` of the eBPF programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Pod, Zeroable)]
#[repr(C)]
pub struct Backend {
    /// Address in network order. An IPv4 address takes the first four bytes; the other bytes are
    /// zero.
    pub address: [u8; 16],
    /// The Ethernet address for packets to this backend, if `has_mac`.
    pub mac: [u8; 6],
    /// 1 if `mac` is set, otherwise 0.
    pub has_mac: u8,
    /// 1 if the address is IPv6, otherwise 0.
    pub is_ipv6: u8,
}

impl Backend {
    /// Makes the backend of an address.
    pub fn new(address: IpAddr, mac: Option<MacAddr>) -> Self {
        Self {
            address: address_bytes(address),
            mac: mac.map_or([0; 6], |mac| mac.0),
            has_mac: mac.is_some().into(),
            is_ipv6: address.is_ipv6().into(),
        }
    }

    /// Makes a target without an address. Its place in the table depends only on its name.
    fn named(name: &str) -> Self {
        let words: Vec<u64> = name
            .as_bytes()
            .chunks(size_of::<u64>())
            .map(|chunk| {
                let byte = |at: usize| chunk.get(at).copied().unwrap_or(0);
                u64::from_ne_bytes(std::array::from_fn(byte))
            })
            .collect();
        let hashes: [u32; 4] = std::array::from_fn(|seed| mix(&words, seed as u64 + 1));
        Self {
            address: bytemuck::cast(hashes),
            ..Self::zeroed()
        }
    }
}

/// The table of one address family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MaglevTable {
    /// [`TABLE_SIZE`] numbers of backends. Without backends, all entries are [`NO_BACKEND`].
    pub entries: Vec<u16>,
}

/// A backend's permutation of the table's entries.
struct Permutation {
    number: u16,
    weight: u32,
    next: usize,
    skip: usize,
    /// Weight collected towards the next turn.
    credit: u32,
}

impl MaglevTable {
    /// Builds the table from backends with number and weight; numbers are below [`NO_BACKEND`]. A
    /// backend's position depends only on its address, so its number may change.
    pub fn new<'a>(backends: impl Iterator<Item = (u16, &'a Backend, u32)>) -> Self {
        let mut permutations: Vec<(&Backend, Permutation)> = backends
            .filter(|(_, _, weight)| *weight > 0)
            .map(|(number, backend, weight)| {
                let hash = |seed| u64::from(mix(&words(&backend.address), seed));
                let permutation = Permutation {
                    number,
                    weight,
                    next: (hash(1) % TABLE_SIZE as u64) as usize,
                    skip: (hash(2) % (TABLE_SIZE as u64 - 1)) as usize + 1,
                    credit: 0,
                };
                (backend, permutation)
            })
            .collect();
        // Backends take turns in the order of their addresses, for any order in the configuration.
        permutations.sort_by_key(|(backend, _)| backend.address);
        let mut entries = vec![NO_BACKEND; TABLE_SIZE];
        let greatest = permutations
            .iter()
            .map(|(_, permutation)| permutation.weight)
            .max();
        let (Some(greatest), mut free) = (greatest, TABLE_SIZE) else {
            return Self { entries };
        };
        'filled: loop {
            for (_, permutation) in &mut permutations {
                // The heaviest backend takes a turn in every round.
                permutation.credit += permutation.weight;
                if permutation.credit < greatest {
                    continue;
                }
                permutation.credit -= greatest;
                while entries[permutation.next] != NO_BACKEND {
                    permutation.next = (permutation.next + permutation.skip) % TABLE_SIZE;
                }
                entries[permutation.next] = permutation.number;
                free -= 1;
                if free == 0 {
                    break 'filled;
                }
            }
        }
        Self { entries }
    }

    /// Builds the table of targets with these names and equal shares. The numbers are the positions
    /// in `names`. Another order or number of names moves few flows.
    pub fn of_names(names: &[&str]) -> Self {
        let targets: Vec<Backend> = names.iter().map(|name| Backend::named(name)).collect();
        Self::new(
            (0..)
                .zip(&targets)
                .map(|(number, target)| (number, target, 1)),
        )
    }

    /// Returns the number of the target of a flow, the same in both directions of the flow. Same
    /// result as `choose_target` in `split.bpf.c`.
    pub fn look_up_either_way(&self, flow: &FlowKey) -> Option<u16> {
        self.look_up(&flow.canonical().0)
    }

    /// Returns the number of a flow's backend, if the table has backends.
    #[inline]
    pub fn look_up(&self, flow: &FlowKey) -> Option<u16> {
        let hash = mix(bytemuck::cast_ref::<FlowKey, [u64; 5]>(flow), 0);
        // Scales the hash to the table, because a remainder would need a division.
        let at = (u64::from(hash) * TABLE_SIZE as u64) >> 32;
        let entry = self.entries[at as usize];
        (entry != NO_BACKEND).then_some(entry)
    }
}

fn words(address: &[u8; 16]) -> [u64; 2] {
    bytemuck::pod_read_unaligned(address)
}

/// Hashes words by multiplication with 2^64 divided by the golden ratio. Same result as `flow_hash`
/// in `maglev.h`.
#[inline]
fn mix(words: &[u64], seed: u64) -> u32 {
    let hash = words.iter().fold(seed, |hash, word| {
        let product = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        product ^ product >> 29
    });
    (hash.wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32) as u32
}
