//! IPv6: a search tree over the first 64 bits, and small trees over the other 64 bits.

use std::net::Ipv6Addr;

use bytemuck::{Pod, Zeroable};

/// Keys of a node: one cache line.
pub const NODE: usize = 8;
/// Most levels of a tree: 2^17 prefixes make at most 2^18 + 1 intervals.
pub const MAX_DEPTH: u32 = 7;
/// Marks an entry that is the number of a tree over the low half of the address, not a value.
pub const IS_TREE: u32 = 1 << 31;

/// The first addresses of [`NODE`] adjacent intervals, or of the subtrees that contain them.
/// Same layout as `struct node` of the eBPF programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C, align(64))]
pub struct Node {
    /// The keys, ascending. Unused keys have the greatest value.
    pub keys: [u64; NODE],
}

/// The entries of the [`NODE`] intervals of a last-level node: a value each, or [`IS_TREE`] and the
/// number of a tree. Same layout as `struct leaf` of the eBPF programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Leaf {
    /// The entries, in the order of the node's keys.
    pub values: [u32; NODE],
}

/// A complete tree of nodes without pointers: the children of node `n`, counted from the root, are
/// `8 n + 1` to `8 n + 8`. Same layout as `struct tree` of the eBPF programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Tree {
    /// Number of the root among the nodes of all trees.
    pub root: u32,
    /// Levels, at least 1.
    pub depth: u32,
    /// Number of the tree's first leaf among the leaves of all trees.
    pub leaf: u32,
    /// Number of nodes above the last level.
    pub inner: u32,
}

/// Tree 0 decides by the first 64 bits of the address, the other trees by the last 64.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ipv6Lpm {
    /// The trees.
    pub trees: Vec<Tree>,
    /// Nodes of all trees.
    pub nodes: Vec<Node>,
    /// Leaves of all trees, one for each node of a last level.
    pub leaves: Vec<Leaf>,
}

impl Ipv6Lpm {
    pub(super) fn build(intervals: &[(u128, u32)]) -> Self {
        let mut lpm = Self {
            trees: Vec::new(),
            nodes: Vec::new(),
            leaves: Vec::new(),
        };
        let mut high: Vec<(u64, u32)> = Vec::new();
        // Reserves the number of the first tree; the loop builds the other trees.
        lpm.trees.push(Tree::zeroed());
        let mut at = 0;
        let mut before = 0;
        while let Some(&(first, value)) = intervals.get(at) {
            let half = (first >> 64) as u64;
            let inside = intervals[at..]
                .iter()
                .take_while(|(first, _)| (first >> 64) as u64 == half)
                .count();
            // One interval covers all addresses with this high half, so no low tree is needed.
            if inside == 1 && first as u64 == 0 {
                high.push((half, value));
            } else {
                let mut low: Vec<(u64, u32)> = intervals[at..at + inside]
                    .iter()
                    .map(|(first, value)| (*first as u64, *value))
                    .collect();
                if low[0].0 != 0 {
                    low.insert(0, (0, before));
                }
                let tree = lpm.trees.len() as u32;
                let last = low.last().map_or(before, |(_, value)| *value);
                let built = lpm.add_tree(&low);
                lpm.trees.push(built);
                high.push((half, tree | IS_TREE));
                let next = intervals
                    .get(at + inside)
                    .map(|(first, _)| (first >> 64) as u64);
                // If the next high half has its own intervals, its tree begins with this value.
                if half < u64::MAX && next != Some(half + 1) {
                    high.push((half + 1, last));
                }
            }
            at += inside;
            before = intervals[at - 1].1;
        }
        lpm.trees[0] = lpm.add_tree(&high);
        lpm
    }

    /// Appends a tree over intervals, ascending from 0.
    fn add_tree(&mut self, intervals: &[(u64, u32)]) -> Tree {
        let mut depth = 1;
        while NODE.pow(depth) < intervals.len() {
            depth += 1;
        }
        let inner: usize = (0..depth - 1).map(|level| NODE.pow(level)).sum();
        let tree = Tree {
            root: self.nodes.len() as u32,
            depth,
            leaf: self.leaves.len() as u32,
            inner: inner as u32,
        };
        for level in 1..=depth {
            // Intervals below each key of the level.
            let under = NODE.pow(depth - level);
            for node in 0..NODE.pow(level - 1) {
                let key = |i: usize| {
                    intervals
                        .get((node * NODE + i) * under)
                        .map_or(u64::MAX, |at| at.0)
                };
                self.nodes.push(Node {
                    keys: std::array::from_fn(key),
                });
            }
        }
        // The padding has the value of the last interval, because the greatest address is found
        // there.
        let last = intervals
            .last()
            .map_or(super::NO_MATCH, |(_, value)| *value);
        let value = |i: usize| intervals.get(i).map_or(last, |(_, value)| *value);
        self.leaves
            .extend((0..NODE.pow(depth - 1)).map(|leaf| Leaf {
                values: std::array::from_fn(|i| value(leaf * NODE + i)),
            }));
        tree
    }

    /// Returns the value of `address`.
    #[inline]
    pub fn look_up(&self, address: Ipv6Addr) -> u32 {
        let address = u128::from(address);
        let entry = self.search(0, (address >> 64) as u64);
        if entry & IS_TREE == 0 {
            return entry;
        }
        self.search((entry & !IS_TREE) as usize, address as u64)
    }

    #[inline]
    fn search(&self, tree: usize, address: u64) -> u32 {
        let tree = &self.trees[tree];
        let mut node = 0;
        for level in 1..=tree.depth {
            let keys = &self.nodes[(tree.root + node) as usize].keys;
            // The parent's search ensures that the first key is not above the address.
            let rank: u32 = keys[1..].iter().map(|key| u32::from(*key <= address)).sum();
            if level == tree.depth {
                let leaf = &self.leaves[(tree.leaf + node - tree.inner) as usize];
                return leaf.values[rank as usize];
            }
            node = node * NODE as u32 + 1 + rank;
        }
        super::NO_MATCH
    }

    pub(super) fn memory(&self) -> usize {
        size_of_val(&self.trees[..]) + size_of_val(&self.nodes[..]) + size_of_val(&self.leaves[..])
    }
}
