//! The account of a chain's packets: arrivals, and the place of each packet. Pure.
//!
//! All figures count up. At rest `in + made = policed + door + rings + functions + shaper + out`; what is missing is under way, or was
//! lost where nobody counts.

use std::collections::BTreeMap;

use myelin_packet::HopCounters;
use myelin_packet::sojourn::Histogram;
use myelin_spec::Sla;
use myelin_spec::catalogue::{self, Coding};

use crate::sla::PacketAccount;
use crate::sla::history::Between;

/// Packets of a chain over all its generations, as stations with counters of their own tell them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Classified to the chain at the front door.
    pub packets_in: u64,
    /// Their bytes.
    pub bytes_in: u64,
    /// Dropped by the policer, above the profile.
    pub policed: u64,
    /// Their bytes, as the policer counts them.
    pub policed_bytes: u64,
    /// Dropped by the front door, which found nobody to hand them to.
    pub door: u64,
    /// Dropped by functions, by name.
    pub drops: BTreeMap<String, u64>,
    /// Of these and of what functions made, what counts as lost, by name.
    pub lost: BTreeMap<String, u64>,
    /// Dropped by the shaper.
    pub shaper: u64,
    /// Made by functions.
    pub made: u64,
    /// Left at the egress.
    pub packets_out: u64,
    /// Their bytes, where the way out counts them.
    pub bytes_out: u64,
}

/// One function of the present generation, and what it counted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HopCounts {
    /// The function's name.
    pub name: String,
    /// Its kind.
    pub kind: String,
    /// Its position in the chain.
    pub position: u8,
    /// Whether it is a program that nothing is known of.
    pub is_black_box: bool,
    /// What it counted.
    pub counted: HopCounters,
}

/// A station between functions that loses packets, with a count of its own. Those of equal stations are one count, which
/// several chains share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Crossing {
    /// Where it is.
    pub station: Station,
    /// The function it leads to; `None` at the way out.
    pub leads_to: Option<u8>,
    /// Packets lost there since it was made.
    pub lost: u64,
}

/// Where that is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Station {
    /// The receiving rings of a worker's sockets, by the worker's process group and interface.
    Sockets {
        /// The process group.
        worker: String,
        /// The interface's index.
        interface: u32,
    },
    /// The transmitting rings of a generation, and those between its processes.
    Transmit {
        /// The chain's service path identifier.
        spi: u32,
        /// The generation.
        generation: u16,
        /// Position of the function that sends.
        position: u8,
    },
    /// A link on which packets leave for a function's namespace.
    Inner {
        /// The interface's index.
        interface: u32,
    },
    /// The interface on which they leave the chain.
    Egress {
        /// The interface's index.
        interface: u32,
        /// Its name.
        name: String,
    },
}

impl Station {
    /// Whether it is a ring of a worker, and not an interface.
    pub fn is_ring(&self) -> bool {
        matches!(self, Self::Sockets { .. } | Self::Transmit { .. })
    }
}

/// A worker process that serves the chain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorkerTimes {
    /// Its process.
    pub pid: u32,
    /// The core it is bound to.
    pub core: Option<u32>,
    /// It never sleeps, so its time says nothing of its load.
    pub polls: bool,
    /// How often it was started again.
    pub restarts: u64,
    /// Time that it ran, ns.
    pub run_ns: u64,
    /// Time that it was ready to run and did not, ns.
    pub waited_ns: u64,
    /// The first function that it runs.
    pub first: Option<u8>,
    /// Whether it has that core.
    pub binding: Binding,
}

/// How a worker stands to its core.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Binding {
    /// It runs there, or was given none.
    #[default]
    Kept,
    /// It had been taken off it, and is bound to it again.
    Restored,
    /// The core is offline.
    Offline,
    /// The core is there, but not for this worker.
    Forbidden,
}

impl Binding {
    /// Whether the core is gone.
    pub fn is_lost(self) -> bool {
        matches!(self, Self::Offline | Self::Forbidden)
    }
}

/// All that is read of a chain at one time.
#[derive(Debug, Clone, Default)]
pub struct Reading {
    /// The chain's name.
    pub name: String,
    /// With the name it tells a chain from an earlier one of that name.
    pub spi: u32,
    /// Its generation.
    pub generation: u16,
    /// Its contract.
    pub sla: Sla,
    /// Since the chain came up, s.
    pub up_s: f64,
    /// Its packets over all generations.
    pub counts: Counts,
    /// Whether the way out counts bytes.
    pub tells_bytes_out: bool,
    /// Packets of the present generation that went on from the front door.
    pub entered: u64,
    /// Its functions, in the order of the chain.
    pub hops: Vec<HopCounts>,
    /// They wait in the shaper.
    pub waiting: u64,
    /// From the front door to the egress; `None` where black boxes cut the way.
    pub sojourn: Option<Histogram>,
    /// Where packets may be lost between functions.
    pub crossings: Vec<Crossing>,
    /// The workers that serve it.
    pub workers: Vec<WorkerTimes>,
    /// Its packets pass by when nobody can process them (`onFailure: pass`), so one that is missing need not be lost.
    pub may_pass_by: bool,
}

/// What each function lost: its drops less what it made. Between the ends of an erasure code, drops are what the code is for: what
/// is missing behind its end of the packets before its beginning counts as lost at the end. What an end alone takes in and
/// does not give on is the code of a beginning elsewhere, and nothing tells a lost packet from it.
pub(crate) fn lost(hops: &[HopCounts]) -> Vec<u64> {
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
        let mut before = hops[..end].iter();
        if let Some(begin) = before.rposition(|hop| coding(hop) == Some(Coding::Begins)) {
            let section = &hops[begin..=end];
            let gone: u64 = section.iter().map(|hop| hop.counted.drops).sum();
            let made: u64 = section.iter().map(|hop| hop.counted.emitted).sum();
            lost[begin..end].fill(0);
            lost[end] = gone.saturating_sub(made);
        }
    }
    lost
}

impl Counts {
    /// Adds what functions of one generation did.
    pub fn add_hops(&mut self, hops: &[HopCounts]) {
        for (hop, lost) in hops.iter().zip(lost(hops)) {
            self.made += hop.counted.emitted;
            add(&mut self.drops, &hop.name, hop.counted.drops);
            add(&mut self.lost, &hop.name, lost);
        }
    }

    /// Adds those of other generations.
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

    /// What was counted since an earlier reading.
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

    /// What was to leave: came in within the profile, or was made.
    pub(crate) fn owed(&self) -> u64 {
        (self.packets_in + self.made).saturating_sub(self.policed)
    }

    /// What has come in and is counted nowhere else, when so many were lost in rings and on links on the way.
    pub fn missing(&self, between: u64) -> u64 {
        (self.packets_in + self.made).saturating_sub(self.gone(between) + self.packets_out)
    }

    /// Packets policed, dropped, or lost, with `between` in rings and links.
    fn gone(&self, between: u64) -> u64 {
        let in_functions: u64 = self.drops.values().sum();
        self.policed + self.door + in_functions + self.shaper + between
    }
}

impl PacketAccount {
    /// The account of `counts`. Rings and links lost `between`, black boxes hold `stuck`, and
    /// `unseen` were lost where nobody counts.
    pub(crate) fn new(
        counts: &Counts,
        between: Between,
        stuck: &BTreeMap<String, u64>,
        unseen: u64,
    ) -> Self {
        let mut missing = counts.missing(between.ring + between.inner);
        let mut dropped = counts.drops.clone();
        add(&mut dropped, "shaper", counts.shaper);
        for (name, packets) in stuck {
            let packets = (*packets).min(missing);
            missing -= packets;
            add(&mut dropped, name, packets);
        }
        let unseen = unseen.min(missing);
        let at_egress = between.egress.min(counts.packets_out);
        // The front door is read before what is behind it. A packet that was counted there has come in.
        let behind_door = counts.gone(between.ring + between.inner) + counts.packets_out;
        let mut lost = BTreeMap::new();
        add(&mut lost, "door", counts.door);
        add(&mut lost, "ring", between.ring);
        add(&mut lost, "link", between.inner + at_egress);
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

/// What has not left after this time is lost, ns.
const UNDER_WAY_NS: u64 = 1_000_000_000;
/// A worker that does not run while its chain is read has packets in its rings that no sojourn tells of yet: those of so long, ns.
const IN_RINGS_NS: u64 = 10_000_000;

/// Of packets that came in so long a time, those that may still be under way at its end. The sojourn of those that have left tells how
/// long the way takes; without one it takes a second.
pub(crate) fn under_way(came: u64, length_s: f64, sojourn: Option<&Histogram>) -> u64 {
    let longest_ns = sojourn.and_then(|sojourn| sojourn.quantile(1.0));
    let way_ns = longest_ns.map_or(UNDER_WAY_NS, |ns| {
        ns.saturating_add(IN_RINGS_NS).min(UNDER_WAY_NS)
    });
    let length_ns = length_s * 1e9;
    if length_ns <= way_ns as f64 {
        return came;
    }
    (came as f64 * (way_ns as f64 / length_ns)).ceil() as u64
}

/// What has grown, by how much.
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

fn add(to: &mut BTreeMap<String, u64>, name: &str, packets: u64) {
    if packets > 0 {
        *to.entry(name.to_owned()).or_default() += packets;
    }
}

/// Divides packets in proportion to weights, none lost by rounding, and nobody gets more than its weight where there are no more packets
/// than all weights together; the first takes all where no weight tells.
pub(crate) fn divide(packets: u64, weights: &[u64]) -> Vec<u64> {
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
            // At most `packets`.
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
    fn drops_of_a_function_are_lost_and_what_it_makes_in_their_place_is_not() {
        let hops = [hop("firewall", 100, 7, 0), hop("xor", 93, 3, 2)];
        assert_eq!(lost(&hops), [7, 1]);
        assert_eq!(hops[1].counted.packets_out(), 92);
    }

    #[test]
    fn what_a_code_makes_up_for_is_not_lost() {
        // Of 100 and 25 repair packets the link loses 10; 9 of what these carried are recovered, and the rest of the code is used up.
        let hops = [
            hop("rlnc-encode", 100, 0, 25),
            hop("lossy-link", 125, 10, 0),
            hop("rlnc-decode", 115, 25, 9),
            hop("forward", 99, 1, 0),
        ];
        assert_eq!(lost(&hops), [0, 0, 1, 1]);
        assert_eq!(hops[2].counted.packets_out(), 99);
        // Behind an encoder without a decoder, what is dropped is lost.
        assert_eq!(lost(&hops[..2]), [0, 10]);
        // A decoder alone uses up a code of which nothing is known here.
        assert_eq!(lost(&hops[2..]), [0, 1]);
    }

    #[test]
    fn an_account_is_closed_when_all_has_left() {
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
        // Counters are read one after the other, so more may be out than in.
        counts.packets_out += 5;
        assert_eq!(counts.missing(8), 0);
        let mut twice = counts.clone();
        twice.add(&counts);
        assert_eq!((twice.packets_in, twice.drops["firewall"]), (2000, 80));
        assert!(!twice.lost.contains_key("xor"));
    }

    #[test]
    fn the_places_of_packets_add_up() {
        let mut counts = Counts {
            packets_in: 1000,
            policed: 100,
            door: 2,
            shaper: 3,
            packets_out: 800,
            ..Counts::default()
        };
        counts.add_hops(&[hop("firewall", 890, 40, 0), hop("encode", 850, 0, 50)]);
        let between = Between {
            ring: 20,
            inner: 5,
            egress: 7,
        };
        let stuck = [("box".to_owned(), 4)].into();
        for (unseen, under_way) in [(0, 76), (30, 46), (500, 0)] {
            let account = PacketAccount::new(&counts, between, &stuck, unseen);
            assert_eq!(account.under_way, under_way);
            assert_eq!((account.packets_out, account.lost["link"]), (793, 12));
            let places = account.dropped.values().chain(account.lost.values());
            let sum = account.packets_out + account.policed + places.sum::<u64>() + under_way;
            assert_eq!(account.packets_in + account.made, sum, "{account:?}");
        }
        // Packets passed between the readings of the front door and of the egress.
        counts.packets_out = 1000;
        let account = PacketAccount::new(&counts, between, &BTreeMap::new(), 0);
        let places = account.dropped.values().chain(account.lost.values());
        let sum = account.packets_out + account.policed + places.sum::<u64>();
        assert_eq!(account.packets_in + account.made, sum, "{account:?}");
        assert_eq!(account.under_way, 0);
    }

    proptest::proptest! {
        #[test]
        fn a_division_gives_everything_and_nobody_what_is_not_due(
            packets in 0..1_u64 << 48,
            weights in proptest::collection::vec(0..1_u64 << 48, 1..9),
        ) {
            let parts = divide(packets, &weights);
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
