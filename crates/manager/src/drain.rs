//! Waits until packets have left the parts of a path.

use std::thread;
use std::time::{Duration, Instant};

use myelin_api::ChainStatus;

use crate::deployment::{PartTakers, PlacedPart};
use crate::parallel::in_parallel;

/// Longest time that packets of a path may take to leave its parts, besides the delay of the links.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Time without a packet after which parts are empty, besides the delay of the links.
const QUIET: Duration = Duration::from_millis(20);
/// Time without a packet after which packets that a previous part has sent count as lost, besides
/// the delay of the links.
const LOST_AFTER: Duration = Duration::from_millis(500);
/// Interval at which the counts of the parts are read.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// The counts of a part that drains.
#[derive(Clone, PartialEq, Eq)]
struct Counts {
    received: u64,
    entered: u64,
    left: u64,
    under_way: u64,
    /// Packets that left to the next node, or that the exit to it dropped.
    at_exit: u64,
    /// Packets that left the part, to the next node if there is one.
    sent: u64,
}

impl Counts {
    fn of(status: &ChainStatus) -> Self {
        let (account, part) = (&status.account, status.part.as_ref());
        let received = part.and_then(|part| part.received);
        let at_exit = part.and_then(|part| Some(part.sent? + part.too_long + part.unresolved));
        let sent = part.and_then(|part| part.sent);
        Self {
            received: received.unwrap_or(account.packets_in),
            entered: account.packets_in,
            left: account.packets_out,
            under_way: account.under_way,
            at_exit: at_exit.unwrap_or(account.packets_out),
            sent: sent.unwrap_or(account.packets_out),
        }
    }

    /// Whether all of `sent` packets have arrived, and have left the part.
    fn are_complete(&self, sent: u64) -> bool {
        self.received >= sent && self.entered >= self.received && self.at_exit >= self.left
    }
}

/// The last counts of the parts that have drained.
pub(crate) struct Drained {
    /// Packets that the first of the parts received.
    pub(crate) received: Option<u64>,
    /// Packets that left the last of the parts.
    pub(crate) left: Option<u64>,
}

/// Waits until the neighbouring parts behind the first part of a chain are empty: until the
/// `entered` packets have passed all of them; without that number, and after losses, until no
/// packet moves.
pub(crate) fn drain(
    takers: &dyn PartTakers,
    parts: &[&PlacedPart],
    links: Duration,
    entered: Option<u64>,
) -> Drained {
    if parts.is_empty() {
        return Drained {
            received: None,
            left: entered,
        };
    }
    let deadline = Instant::now() + DRAIN_TIMEOUT + links;
    let mut before = Vec::new();
    let mut last_change = Instant::now();
    loop {
        let counts = read(takers, parts);
        if before != counts {
            last_change = Instant::now();
        }
        // Nobody has a part whose node does not answer, so no packet comes out of it.
        let is_whole = entered.is_some() && counts.iter().all(Option::is_some);
        let quiet = links + if is_whole { LOST_AFTER } else { QUIET };
        let is_still = have_passed(parts, &counts, entered) || last_change.elapsed() > quiet;
        let full = counts.iter().zip(parts).filter_map(|(counts, part)| {
            let under_way = counts.as_ref()?.under_way;
            (under_way > 0).then_some((part, under_way))
        });
        let is_late = Instant::now() > deadline;
        if is_still && full.clone().next().is_none() || is_late {
            for (PlacedPart { node, name, .. }, under_way) in full {
                tracing::warn!(node, part = name, under_way, "removes a part with packets");
            }
            let ways = Ways::new(parts, &counts);
            return Drained {
                received: add(ways.firsts(), |counts| counts.received),
                left: add(ways.lasts(), |counts| counts.sent),
            };
        }
        before = counts;
        thread::sleep(CHECK_INTERVAL);
    }
}

/// The counts of parts by the flows that pass them.
struct Ways<'c> {
    /// The parts that all flows pass.
    common: &'c [Option<Counts>],
    /// Those of each replica; empty without replicas.
    branches: Vec<&'c [Option<Counts>]>,
}

impl<'c> Ways<'c> {
    fn new(parts: &[&PlacedPart], counts: &'c [Option<Counts>]) -> Self {
        let begins = parts.iter().map(|part| part.begins_branch);
        let begins = begins.zip(0..counts.len());
        let begins: Vec<usize> = begins.filter_map(|(is, at)| is.then_some(at)).collect();
        let first = begins.first().copied().unwrap_or(counts.len());
        let ends = begins.iter().skip(1).copied().chain([counts.len()]);
        let branches = begins.iter().zip(ends);
        Self {
            common: &counts[..first],
            branches: branches.map(|(begin, end)| &counts[*begin..end]).collect(),
        }
    }

    /// The parts where packets arrive.
    fn firsts(&self) -> Vec<&'c Option<Counts>> {
        match self.common.first() {
            Some(first) => vec![first],
            None => self.branches.iter().filter_map(|way| way.first()).collect(),
        }
    }

    /// The parts from which packets leave.
    fn lasts(&self) -> Vec<&'c Option<Counts>> {
        let ends = self.branches.iter().filter_map(|way| way.last());
        let common = self.common.last().filter(|_| self.branches.is_empty());
        common.into_iter().chain(ends).collect()
    }
}

/// Adds a count of the parts that somebody has; `None` if nobody has one of them.
fn add(parts: Vec<&Option<Counts>>, count: impl Fn(&Counts) -> u64) -> Option<u64> {
    let known: Vec<&Counts> = parts.into_iter().flatten().collect();
    (!known.is_empty()).then(|| known.into_iter().map(count).sum())
}

/// Whether the packets that entered have passed all parts. What a part has sent is final when all
/// packets of the part before have passed it.
fn have_passed(parts: &[&PlacedPart], counts: &[Option<Counts>], entered: Option<u64>) -> bool {
    let pass = |way: &[Option<Counts>], entered: u64| {
        way.iter().try_fold(entered, |sent, counts| {
            let counts = counts.as_ref()?;
            counts.are_complete(sent).then_some(counts.sent)
        })
    };
    let ways = Ways::new(parts, counts);
    // The path had more packets if an undone change has led packets back to it.
    if add(ways.firsts(), |counts| counts.received) != entered {
        return false;
    }
    let Some(sent) = entered.and_then(|entered| pass(ways.common, entered)) else {
        return false;
    };
    // It is unknown how many packets take each branch.
    let received = ways
        .branches
        .iter()
        .map(|way| Some(way.first()?.as_ref()?.received));
    let received: Option<Vec<u64>> = received.collect();
    received.is_some_and(|received| {
        let mut branches = ways.branches.iter().zip(&received);
        (received.is_empty() || received.iter().sum::<u64>() >= sent)
            && branches.all(|(way, received)| pass(way, *received).is_some())
    })
}

/// Reads the counts of all parts at the same time; `None` for a part that nobody has.
fn read(takers: &dyn PartTakers, parts: &[&PlacedPart]) -> Vec<Option<Counts>> {
    let statuses = in_parallel(parts, |part| takers.status(&part.node, &part.name));
    let read = statuses.into_iter().map(|status| {
        let status = status?.ok()??;
        Some(Counts::of(&status))
    });
    read.collect()
}
