//! Accounts for each packet of a chain: the place where the packet is, or was lost. Pure.
//!
//! All counters grow. With no packet in transit, `in + made = policed + door + rings + functions +
//! shaper + out`. A difference between both sides is the number of packets in transit or lost
//! without a counter.

use std::collections::BTreeMap;

use myelin_packet::HopCounters;
use myelin_packet::sojourn::Histogram;
use myelin_spec::Sla;
use myelin_spec::catalogue::{self, Coding};

use crate::sla::PacketAccount;
use crate::sla::history::TransitLosses;

/// A chain's packet counters, summed over all its generations.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets classified to the chain at the front door.
    pub packets_in: u64,
    /// Bytes classified to the chain at the front door.
    pub bytes_in: u64,
    /// Packets above the profile, which the policer dropped.
    pub policed: u64,
    /// Bytes of the policed packets, as the policer counts bytes.
    pub policed_bytes: u64,
    /// Packets that the front door dropped because no program and no worker could take them.
    pub door: u64,
    /// Packets that functions dropped, by function name.
    pub drops: BTreeMap<String, u64>,
    /// Packets that count as lost in a function, by function name.
    pub lost: BTreeMap<String, u64>,
    /// Packets that the shaper dropped.
    pub shaper: u64,
    /// Packets that functions created, for example repair packets of a code.
    pub made: u64,
    /// Packets that left at the egress.
    pub packets_out: u64,
    /// Bytes that left at the egress; 0 if the egress does not count bytes.
    pub bytes_out: u64,
}

/// One function of the current generation, and its counters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HopCounts {
    /// The function's name.
    pub name: String,
    /// The function's kind, as in the chain file.
    pub kind: String,
    /// The function's position in the chain.
    pub position: u8,
    /// Whether the function is a black box.
    pub is_black_box: bool,
    /// The function's counters.
    pub counted: HopCounters,
}

/// A place between functions that can lose packets, and its loss counter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LossCounter {
    /// The place. Chains with an equal place share one counter.
    pub place: LossPlace,
    /// Position of the function behind the place; `None` at the egress and before the front door.
    pub next_position: Option<u8>,
    /// Packets lost at the place since its creation.
    pub lost: u64,
}

/// A place between functions that can lose packets.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum LossPlace {
    /// The receive rings of a worker's sockets on one interface.
    Sockets {
        /// The worker's key.
        worker: String,
        /// The interface's index.
        interface: u32,
    },
    /// The transmit rings of a generation, and the rings between its processes.
    Transmit {
        /// The chain's service path identifier.
        spi: u32,
        /// The generation.
        generation: u16,
        /// Position of the function that sends.
        position: u8,
    },
    /// The entry link of a port, before the front door.
    Entry {
        /// The interface's index.
        interface: u32,
    },
    /// A link on which packets leave for a function's namespace.
    Inner {
        /// The interface's index.
        interface: u32,
    },
    /// The interface on which packets leave the chain.
    Egress {
        /// The interface's index.
        interface: u32,
        /// The interface's name.
        name: String,
    },
}

impl LossPlace {
    /// Whether the place is a ring of a worker, not an interface.
    pub fn is_ring(&self) -> bool {
        matches!(self, Self::Sockets { .. } | Self::Transmit { .. })
    }
}

/// A worker process that serves the chain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorkerTimes {
    /// Process number.
    pub pid: u32,
    /// The core that the worker is assigned to.
    pub core: Option<u32>,
    /// Whether the worker polls and never sleeps, so its run time does not show its load.
    pub is_polling: bool,
    /// Number of restarts.
    pub restarts: u64,
    /// Time on a core, ns.
    pub run_ns: u64,
    /// Time ready to run while something else ran, ns.
    pub waited_ns: u64,
    /// Time in which packets waited for the worker's turn on a shared core, ns.
    pub turn_wait_ns: u64,
    /// Position of the first function that the worker runs.
    pub first_position: Option<u8>,
    /// Whether the worker runs on its core.
    pub binding: Binding,
}

/// Whether a worker runs on its core.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Binding {
    /// The worker runs on its core, or is assigned to no core.
    #[default]
    Kept,
    /// The worker was moved off its core, and the agent has bound the worker to the core again.
    Restored,
    /// The core is offline.
    Offline,
    /// The core is online, but the worker's control group does not include it.
    Forbidden,
}

impl Binding {
    /// Whether the worker cannot use its core.
    pub fn is_lost(self) -> bool {
        matches!(self, Self::Offline | Self::Forbidden)
    }
}

/// All counters of a chain, read at one time.
#[derive(Debug, Clone, Default)]
pub struct Reading {
    /// The chain's name.
    pub name: String,
    /// Service path identifier. Distinguishes the chain from an earlier chain of that name.
    pub spi: u32,
    /// The chain's current generation.
    pub generation: u16,
    /// The chain's contract.
    pub sla: Sla,
    /// Time since the chain came up, s.
    pub up_s: f64,
    /// The chain's packet counters over all generations.
    pub counts: Counts,
    /// Whether the egress counts bytes.
    pub counts_bytes_out: bool,
    /// Packets that arrived at the port for the current generation, but not at the front door
    /// behind the entry link.
    pub missed_at_entry: u64,
    /// Packets that the front door passed on to the current generation.
    pub passed_door: u64,
    /// The chain's functions, in chain order.
    pub hops: Vec<HopCounts>,
    /// Packets that wait in the shaper.
    pub in_shaper: u64,
    /// Sojourn of the chain's packets; `None` if black boxes divide the chain into sections.
    pub sojourn: Option<Histogram>,
    /// Loss counters at the places between functions.
    pub loss_counters: Vec<LossCounter>,
    /// The workers that serve the chain.
    pub workers: Vec<WorkerTimes>,
    /// Whether packets may bypass the chain (`onFailure: pass`), so a missing packet need not be
    /// lost.
    pub may_bypass: bool,
}

/// Computes the packets that each function lost: drops less created packets.
///
/// An erasure code repairs drops between its two ends. So a packet that enters the coded section
/// and does not leave the section counts as lost at its end. A decoder without an encoder in this
/// chain counts as lossless, because its drops include repair packets.
pub(crate) fn compute_losses_by_hop(hops: &[HopCounts]) -> Vec<u64> {
    let mut lost: Vec<u64> = hops
        .iter()
        .map(|hop| hop.counted.drops.saturating_sub(hop.counted.emitted))
        .collect();
    let coding = |hop: &HopCounts| catalogue::kind(&hop.kind).and_then(|kind| kind.coding);
    for end in 0..hops.len() {
        if coding(&hops[end]) != Some(Coding::Ends) {
            continue;
        }
        lost[end] = 0;
        let mut earlier = hops[..end].iter();
        if let Some(begin) = earlier.rposition(|hop| coding(hop) == Some(Coding::Begins)) {
            let section = &hops[begin..=end];
            let dropped: u64 = section.iter().map(|hop| hop.counted.drops).sum();
            let made: u64 = section.iter().map(|hop| hop.counted.emitted).sum();
            lost[begin..end].fill(0);
            lost[end] = dropped.saturating_sub(made);
        }
    }
    lost
}

impl Counts {
    /// Adds the counters of one generation's functions.
    pub fn add_hops(&mut self, hops: &[HopCounts]) {
        for (hop, lost) in hops.iter().zip(compute_losses_by_hop(hops)) {
            self.made += hop.counted.emitted;
            add(&mut self.drops, &hop.name, hop.counted.drops);
            add(&mut self.lost, &hop.name, lost);
        }
    }

    /// Adds the counters of `other`, for example of other generations.
    pub fn add(&mut self, other: &Self) {
        self.packets_in += other.packets_in;
        self.bytes_in += other.bytes_in;
        self.policed += other.policed;
        self.policed_bytes += other.policed_bytes;
        self.door += other.door;
        self.shaper += other.shaper;
        self.made += other.made;
        self.packets_out += other.packets_out;
        self.bytes_out += other.bytes_out;
        for (name, drops) in &other.drops {
            add(&mut self.drops, name, *drops);
        }
        for (name, lost) in &other.lost {
            add(&mut self.lost, name, *lost);
        }
    }

    /// Returns the difference to an earlier reading.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let grown = |count: fn(&Self) -> u64| count(self).saturating_sub(count(earlier));
        Self {
            packets_in: grown(|counts| counts.packets_in),
            bytes_in: grown(|counts| counts.bytes_in),
            policed: grown(|counts| counts.policed),
            policed_bytes: grown(|counts| counts.policed_bytes),
            door: grown(|counts| counts.door),
            drops: since(&self.drops, &earlier.drops),
            lost: since(&self.lost, &earlier.lost),
            shaper: grown(|counts| counts.shaper),
            made: grown(|counts| counts.made),
            packets_out: grown(|counts| counts.packets_out),
            bytes_out: grown(|counts| counts.bytes_out),
        }
    }

    /// Packets that should leave: conforming packets, and packets that functions created.
    pub(crate) fn expected_out(&self) -> u64 {
        (self.packets_in + self.made).saturating_sub(self.policed)
    }

    /// Packets in transit, or lost without a counter. `transit` is the number of packets that rings
    /// and links lost.
    pub fn missing(&self, transit: u64) -> u64 {
        (self.packets_in + self.made).saturating_sub(self.sum_removed(transit) + self.packets_out)
    }

    /// Sums the packets that were policed, dropped, or lost.
    fn sum_removed(&self, transit: u64) -> u64 {
        let in_functions: u64 = self.drops.values().sum();
        self.policed + self.door + in_functions + self.shaper + transit
    }
}

impl PacketAccount {
    /// Accounts for the packets of `counts`. `transit`: losses of rings and links. `stuck`: packets
    /// that black boxes hold. `unseen`: packets lost without a counter.
    pub(crate) fn new(
        counts: &Counts,
        transit: TransitLosses,
        stuck: &BTreeMap<String, u64>,
        unseen: u64,
    ) -> Self {
        let mut missing = counts.missing(transit.ring + transit.inner);
        let mut dropped = counts.drops.clone();
        add(&mut dropped, "shaper", counts.shaper);
        for (name, packets) in stuck {
            let packets = (*packets).min(missing);
            missing -= packets;
            add(&mut dropped, name, packets);
        }
        let unseen = unseen.min(missing);
        let at_egress = transit.egress.min(counts.packets_out);
        // The agent reads the front door's counters first, so later counters may include more
        // packets.
        let behind_door = counts.sum_removed(transit.ring + transit.inner) + counts.packets_out;
        let mut lost = BTreeMap::new();
        add(&mut lost, "door", counts.door);
        add(&mut lost, "ring", transit.ring);
        add(&mut lost, "link", transit.inner + at_egress);
        add(&mut lost, "unseen", unseen);
        Self {
            packets_in: counts
                .packets_in
                .max(behind_door.saturating_sub(counts.made)),
            made: counts.made,
            packets_out: counts.packets_out - at_egress,
            policed: counts.policed,
            dropped,
            lost,
            under_way: missing - unseen,
        }
    }
}

/// A packet that is still inside the chain after this time counts as lost, ns.
const MAX_TRANSIT_NS: u64 = 1_000_000_000;
/// Tolerance added to the longest sojourn, ns. A worker that is off its core during a reading may
/// have the packets of this time in its rings.
const OFF_CORE_NS: u64 = 10_000_000;

/// Returns the largest possible number of packets in transit at the end of an interval of
/// `length_s`, in which `arrived` packets arrived. A packet takes at most the longest measured
/// `sojourn`, or a second if no sojourn was measured.
pub(crate) fn max_in_transit(arrived: u64, length_s: f64, sojourn: Option<&Histogram>) -> u64 {
    let longest_ns = sojourn.and_then(|sojourn| sojourn.quantile(1.0));
    let transit_ns = longest_ns.map_or(MAX_TRANSIT_NS, |ns| {
        ns.saturating_add(OFF_CORE_NS).min(MAX_TRANSIT_NS)
    });
    let length_ns = length_s * 1e9;
    if length_ns <= transit_ns as f64 {
        return arrived;
    }
    (arrived as f64 * (transit_ns as f64 / length_ns)).ceil() as u64
}

/// Returns the growth of each counter that grew.
pub(crate) fn since(
    now: &BTreeMap<String, u64>,
    before: &BTreeMap<String, u64>,
) -> BTreeMap<String, u64> {
    let grown = now.iter().map(|(name, lost)| {
        let before = before.get(name).copied().unwrap_or_default();
        (name.clone(), lost.saturating_sub(before))
    });
    grown.filter(|(_, lost)| *lost > 0).collect()
}

fn add(counters: &mut BTreeMap<String, u64>, name: &str, packets: u64) {
    if packets > 0 {
        *counters.entry(name.to_owned()).or_default() += packets;
    }
}

/// Divides packets in proportion to weights. The sum of the parts is `packets`. No part exceeds its
/// weight if `packets` is at most the sum of the weights. If all weights are zero, the first part
/// takes all.
pub(crate) fn divide_by_weight(packets: u64, weights: &[u64]) -> Vec<u64> {
    let sum: u128 = weights.iter().map(|weight| u128::from(*weight)).sum();
    if sum == 0 {
        let mut parts = vec![0; weights.len()];
        if let Some(first) = parts.first_mut() {
            *first = packets;
        }
        return parts;
    }
    let (mut before, mut given) = (0_u128, 0_u64);
    weights
        .iter()
        .map(|weight| {
            before += u128::from(*weight);
            // `until` is at most `packets`, so it fits in u64.
            let until = (u128::from(packets) * before / sum) as u64;
            let part = until - given;
            given = until;
            part
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hop(kind: &str, packets_in: u64, drops: u64, emitted: u64) -> HopCounts {
        HopCounts {
            name: kind.to_owned(),
            kind: kind.to_owned(),
            counted: HopCounters {
                packets_in,
                drops,
                emitted,
                ..HopCounters::default()
            },
            ..HopCounts::default()
        }
    }

    #[test]
    fn function_drops_less_created_packets_are_lost() {
        let hops = [hop("firewall", 100, 7, 0), hop("xor", 93, 3, 2)];
        assert_eq!(compute_losses_by_hop(&hops), [7, 1]);
        assert_eq!(hops[1].counted.packets_out(), 92);
    }

    #[test]
    fn packets_that_a_code_recovers_are_not_lost() {
        // Of 100 packets and 25 repair packets the link loses 10. The decoder recovers 9 and
        // consumes the rest of the code.
        let hops = [
            hop("rlnc-encode", 100, 0, 25),
            hop("lossy-link", 125, 10, 0),
            hop("rlnc-decode", 115, 25, 9),
            hop("forward", 99, 1, 0),
        ];
        assert_eq!(compute_losses_by_hop(&hops), [0, 0, 1, 1]);
        assert_eq!(hops[2].counted.packets_out(), 99);
        // Without a decoder a dropped packet is lost.
        assert_eq!(compute_losses_by_hop(&hops[..2]), [0, 10]);
        // A decoder without its encoder in the chain counts as lossless.
        assert_eq!(compute_losses_by_hop(&hops[2..]), [0, 1]);
    }

    #[test]
    fn no_packet_is_missing_when_all_have_left() {
        let mut counts = Counts {
            packets_in: 1000,
            policed: 100,
            door: 2,
            shaper: 3,
            packets_out: 842,
            ..Counts::default()
        };
        counts.add_hops(&[hop("firewall", 890, 40, 0), hop("xor", 850, 5, 5)]);
        assert_eq!(counts.missing(8), 5);
        counts.packets_out += 5;
        assert_eq!(counts.missing(8), 0);
        // Counters are read one after the other, so more packets may be out than in.
        counts.packets_out += 5;
        assert_eq!(counts.missing(8), 0);
        let mut twice = counts.clone();
        twice.add(&counts);
        assert_eq!((twice.packets_in, twice.drops["firewall"]), (2000, 80));
        assert!(!twice.lost.contains_key("xor"));
    }

    #[test]
    fn the_account_counts_each_packet_once() {
        let mut counts = Counts {
            packets_in: 1000,
            policed: 100,
            door: 2,
            shaper: 3,
            packets_out: 800,
            ..Counts::default()
        };
        counts.add_hops(&[hop("firewall", 890, 40, 0), hop("encode", 850, 0, 50)]);
        let transit = TransitLosses {
            ring: 20,
            inner: 5,
            egress: 7,
        };
        let stuck = [("box".to_owned(), 4)].into();
        for (unseen, under_way) in [(0, 76), (30, 46), (500, 0)] {
            let account = PacketAccount::new(&counts, transit, &stuck, unseen);
            assert_eq!(account.under_way, under_way);
            assert_eq!((account.packets_out, account.lost["link"]), (793, 12));
            let places = account.dropped.values().chain(account.lost.values());
            let sum = account.packets_out + account.policed + places.sum::<u64>() + under_way;
            assert_eq!(account.packets_in + account.made, sum, "{account:?}");
        }
        // Packets passed between the readings of the front door and of the egress.
        counts.packets_out = 1000;
        let account = PacketAccount::new(&counts, transit, &BTreeMap::new(), 0);
        let places = account.dropped.values().chain(account.lost.values());
        let sum = account.packets_out + account.policed + places.sum::<u64>();
        assert_eq!(account.packets_in + account.made, sum, "{account:?}");
        assert_eq!(account.under_way, 0);
    }

    proptest::proptest! {
        #[test]
        fn divided_parts_add_up_and_none_exceeds_its_weight(
            packets in 0..1_u64 << 48,
            weights in proptest::collection::vec(0..1_u64 << 48, 1..9),
        ) {
            let parts = divide_by_weight(packets, &weights);
            proptest::prop_assert_eq!(parts.iter().map(|part| u128::from(*part)).sum::<u128>(), u128::from(packets));
            let sum: u128 = weights.iter().map(|weight| u128::from(*weight)).sum();
            if sum > 0 {
                for (part, weight) in parts.iter().zip(&weights) {
                    let due = packets as f64 * (*weight as f64 / sum as f64);
                    proptest::prop_assert!((*part as f64 - due).abs() <= 1.0 + due * 1e-9);
                    proptest::prop_assert!(part <= weight || u128::from(packets) > sum);
                }
            }
        }
    }
}
