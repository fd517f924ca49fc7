//! Judges the loss of a chain over nodes as a whole, from the first node to the last. Pure.
//!
//! Each part counts the packets that it loses. The links between the parts lose packets, too: those
//! that a part has sent, and that the next part has not received after the delay of the link and a
//! second. Violated seconds are events, whose cause is the part or the link that lost most.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::sla::cause::Finding;
use crate::sla::events::{Events, Violation};
use crate::sla::judge::{check_bound, loss_percent};
use crate::sla::{Losses, SlaCause, SlaEvent, SlaState, SlaTerm, SlaWindow};

/// Time, besides the delay of the link, after which a packet between two nodes counts as lost.
const LOST_AFTER: Duration = Duration::from_secs(1);

/// The loss of a whole chain over nodes, judged once a second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SpanLoss {
    /// The verdict.
    pub state: SlaState,
    /// Share of conforming packets that may be lost, percent.
    pub agreed_percent: f64,
    /// Lost packets since the chain came up, as a share of the conforming packets at the first
    /// node, percent; absent if no conforming packet arrived.
    pub loss_percent: Option<f64>,
    /// The same of the last second.
    pub second_percent: Option<f64>,
    /// Conforming packets that arrived at the first node.
    pub conformed: u64,
    /// Packets that the parts lost.
    pub lost_in_parts: u64,
    /// Packets that the links between the nodes lost.
    pub lost_on_links: u64,
    /// Seconds with traffic to judge.
    pub judged_s: u64,
    /// Seconds that violated the contract.
    pub violated_s: u64,
    /// Whether the last second violated the contract.
    pub violated_now: bool,
}

/// The counters of a part.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PartCounts {
    /// The part's name on its node. A part with a new name counts from zero.
    pub name: String,
    /// The node.
    pub node: String,
    /// The cause and the hop of the part's own violation, while one is in progress.
    pub violation: Option<(SlaCause, String)>,
    /// Packets that arrived, without the policed ones.
    pub conformed: u64,
    /// Packets that the part lost.
    pub lost: u64,
    /// Packets that arrived from the previous node; 0 in the first part.
    pub received: u64,
    /// Packets that left to the next node; 0 in the last part.
    pub sent: u64,
    /// The number of the part that sends to this one; `None` of the first part. A part that splits
    /// flows among replicas sends to several.
    pub before: Option<usize>,
    /// The longest delay of the links before the part.
    pub delay: Duration,
}

/// The counters of all parts of a chain at one time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WholeReading {
    /// The chain's name.
    pub chain: String,
    /// The path of the chain. The packets between the nodes count from zero on a new path.
    pub path: u32,
    /// The time of the reading, from any beginning.
    pub at: Duration,
    /// The date of the reading.
    pub end: SystemTime,
    /// Packets that the first part sent on this path before undone changes. Its count `sent` begins
    /// at zero after each; those of the other parts go on.
    pub resumed: u64,
    /// The parts, in the order of the chain.
    pub parts: Vec<PartCounts>,
}

/// The loss of one chain over nodes, of all its paths.
#[derive(Debug, Default)]
pub struct WholeLoss {
    /// The counts of the path of the last reading.
    current: PathCounts,
    /// Those of the path before: packets take it again if a change is undone.
    earlier: PathCounts,
    life: Figures,
    second: Figures,
    judged_s: u64,
    violated_s: u64,
    violated_now: bool,
    /// The time of the last reading.
    last: Option<Duration>,
    events: Events,
}

/// The counts of a path at its last readings.
#[derive(Debug, Default)]
struct PathCounts {
    path: u32,
    /// The conforming and the lost packets of each part.
    parts: BTreeMap<String, [u64; 2]>,
    /// The packets that each part had sent, at each reading that may still be needed.
    sent: VecDeque<(Duration, Vec<u64>)>,
    /// The packets of each part that are lost on the links behind it.
    missing: Vec<u64>,
}

/// Packets of an interval.
#[derive(Debug, Clone, Copy, Default)]
struct Figures {
    conformed: u64,
    in_parts: u64,
    on_links: u64,
}

/// Packets lost at each place in an interval.
#[derive(Debug, Default)]
struct LostAt {
    /// In each part.
    parts: Vec<u64>,
    /// On the links behind each part.
    links: Vec<u64>,
}

impl Figures {
    fn loss_percent(&self) -> Option<f64> {
        loss_percent(self.conformed, 0, self.in_parts + self.on_links)
    }
}

impl WholeLoss {
    /// Adds the reading of a second, and compares the loss of the second with the contract.
    /// Increments `serial` for a new event, which gets that number.
    pub fn add(&mut self, reading: &WholeReading, agreed_percent: f64, serial: &mut u64) {
        if reading.path != self.current.path {
            std::mem::swap(&mut self.current, &mut self.earlier);
        }
        if reading.path != self.current.path {
            self.current = PathCounts {
                path: reading.path,
                ..PathCounts::default()
            };
        }
        let mut second = Figures::default();
        let mut lost_at = LostAt::default();
        let mut parts = BTreeMap::new();
        for (number, part) in reading.parts.iter().enumerate() {
            // Paths may have the same first part.
            let before = [&self.current, &self.earlier].map(|path| path.parts.get(&part.name));
            let before = before.into_iter().flatten().max();
            let before = before.copied().unwrap_or_default();
            // The agent reads arrived and policed packets one after the other.
            let conformed = part.conformed.max(before[0]);
            let lost = part.lost.max(before[1]);
            if number == 0 {
                second.conformed = conformed - before[0];
            }
            lost_at.parts.push(lost - before[1]);
            parts.insert(part.name.clone(), [conformed, lost]);
        }
        self.current.parts = parts;
        lost_at.links = self.current.count_lost_on_links(reading);
        second.in_parts = lost_at.parts.iter().sum();
        second.on_links = lost_at.links.iter().sum();
        self.life.conformed += second.conformed;
        self.life.in_parts += second.in_parts;
        self.life.on_links += second.on_links;
        let measured = second.loss_percent();
        self.judged_s += u64::from(measured.is_some());
        self.second = second;
        self.record(reading, (measured, agreed_percent), &lost_at, serial);
        self.last = Some(reading.at);
    }

    /// Records the verdict on the last second, as an event if it violated the contract.
    fn record(
        &mut self,
        reading: &WholeReading,
        (measured, agreed_percent): (Option<f64>, f64),
        lost_at: &LostAt,
        serial: &mut u64,
    ) {
        let breach =
            measured.and_then(|measured| check_bound(SlaTerm::Loss, measured, agreed_percent));
        self.violated_now = breach.is_some();
        self.violated_s += u64::from(self.violated_now);
        let Some(breach) = breach else {
            return self.events.record_kept();
        };
        let length = self.last.map(|last| reading.at.saturating_sub(last));
        let length = length.unwrap_or_default();
        let window = SlaWindow {
            seconds: length.as_secs_f64(),
            lost: Losses {
                function: self.second.in_parts,
                link: self.second.on_links,
                ..Losses::default()
            },
            ..SlaWindow::default()
        };
        let violation = Violation {
            chain: &reading.chain,
            breaches: &[breach],
            second: &window,
            end: reading.end,
        };
        let find_cause = || find_cause(reading, lost_at);
        self.events.record_violation(&violation, serial, find_cause);
    }

    /// Returns the violations with a serial above `serial`, the oldest first.
    pub fn events_after(&self, serial: u64) -> impl Iterator<Item = &SlaEvent> {
        let events = self.events.iter();
        events.filter(move |event| event.serial > serial)
    }

    /// Returns the figures and the verdict.
    pub fn status(&self, agreed_percent: f64) -> SpanLoss {
        SpanLoss {
            state: if self.violated_s > 0 {
                SlaState::Violated
            } else {
                SlaState::Kept
            },
            agreed_percent,
            loss_percent: self.life.loss_percent(),
            second_percent: self.second.loss_percent(),
            conformed: self.life.conformed,
            lost_in_parts: self.life.in_parts,
            lost_on_links: self.life.on_links,
            judged_s: self.judged_s,
            violated_s: self.violated_s,
            violated_now: self.violated_now,
        }
    }
}

impl PathCounts {
    /// Counts the packets that have become overdue since the last reading, on the links behind each
    /// part.
    fn count_lost_on_links(&mut self, reading: &WholeReading) -> Vec<u64> {
        let mut sent: Vec<u64> = reading.parts.iter().map(|part| part.sent).collect();
        if let Some(first) = sent.first_mut() {
            *first += reading.resumed;
        }
        self.sent.push_back((reading.at, sent));
        self.missing.resize(reading.parts.len(), 0);
        let mut lost = vec![0; reading.parts.len()];
        let mut oldest = None;
        let places = self.missing.iter_mut().zip(&mut lost);
        for (sender, (missing, lost)) in places.enumerate() {
            let receivers = reading.parts.iter();
            let receivers = receivers.filter(|part| part.before == Some(sender));
            let Some(delay) = receivers.clone().map(|part| part.delay).max() else {
                continue;
            };
            let due = reading.at.checked_sub(LOST_AFTER + delay);
            let mut earlier = self.sent.iter().rev();
            let earlier = earlier.find(|(at, _)| due.is_some_and(|due| *at <= due));
            let sent = earlier.and_then(|(_, sent)| sent.get(sender)).copied();
            let received = receivers.map(|part| part.received).sum();
            let overdue = sent.unwrap_or_default().saturating_sub(received);
            *lost = overdue.saturating_sub(*missing);
            *missing = overdue.max(*missing);
            oldest = due.into_iter().chain(oldest).min();
        }
        // Of the readings before the longest delay, the next round needs the last one only.
        while let (Some(oldest), Some((next, _))) = (oldest, self.sent.get(1)) {
            if *next > oldest {
                break;
            }
            self.sent.pop_front();
        }
        lost
    }
}

/// Finds the part or the link that lost most in a second. Of a part, the cause is that of its own
/// violation.
fn find_cause(reading: &WholeReading, lost_at: &LostAt) -> Finding {
    let of_parts = reading.parts.iter().zip(&lost_at.parts);
    let of_parts = of_parts.map(|(part, lost)| {
        let hop = format!("node {}", part.node);
        let (cause, hop) = match &part.violation {
            Some((cause, at)) => (*cause, format!("{hop}, {at}")),
            None => (SlaCause::Unknown, hop),
        };
        (*lost, cause, hop)
    });
    let of_links = lost_at.links.iter().enumerate().map(|(sender, lost)| {
        let receivers = reading.parts.iter();
        let receivers = receivers.filter(|part| part.before == Some(sender));
        let to: Vec<&str> = receivers.map(|part| part.node.as_str()).collect();
        let from = reading.parts.get(sender).map_or("-", |part| &part.node);
        let hop = format!("links from {from} to {}", to.join(", "));
        (*lost, SlaCause::Link, hop)
    });
    let mut places: Vec<_> = of_parts.chain(of_links).collect();
    places.retain(|(lost, ..)| *lost > 0);
    places.sort_by_key(|(lost, ..)| std::cmp::Reverse(*lost));
    let lines = places.iter();
    let evidence = lines.map(|(lost, _, hop)| format!("{hop}: {lost} packets lost"));
    let evidence = evidence.collect();
    let (cause, hop) = match places.into_iter().next() {
        Some((_, cause, hop)) => (cause, hop),
        None => (SlaCause::Unknown, "-".to_owned()),
    };
    Finding {
        cause,
        hop,
        evidence,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reading of two parts: what the first one sent, and what the second one received and lost.
    fn reading(second: u64, path: u32, sent: u64, received: u64, lost: u64) -> WholeReading {
        let part = |name: &str, conformed, lost| PartCounts {
            name: name.to_owned(),
            node: format!("node-{name}"),
            conformed,
            lost,
            ..PartCounts::default()
        };
        WholeReading {
            chain: "whole".to_owned(),
            path,
            at: Duration::from_secs(second),
            end: SystemTime::UNIX_EPOCH + Duration::from_secs(second),
            resumed: 0,
            parts: vec![
                PartCounts {
                    sent,
                    ..part("first", sent, 0)
                },
                PartCounts {
                    received,
                    before: Some(0),
                    delay: Duration::from_millis(1500),
                    ..part(&format!("second {path}"), received, lost)
                },
            ],
        }
    }

    #[test]
    fn packets_under_way_are_not_lost() {
        let mut loss = WholeLoss::default();
        // Each packet takes two seconds: its delay, and the time until the next reading.
        for second in 1_u64..50 {
            let received = second.saturating_sub(2) * 100;
            loss.add(&reading(second, 1, second * 100, received, 0), 0.0, &mut 0);
        }
        let status = loss.status(0.0);
        assert_eq!((status.lost_on_links, status.violated_s), (0, 0));
        assert_eq!((status.conformed, status.judged_s), (4900, 49));
        assert_eq!(status.state, SlaState::Kept);
        assert!(loss.current.sent.len() < 8, "{}", loss.current.sent.len());
    }

    #[test]
    fn the_whole_loses_on_links_and_in_parts() {
        let mut loss = WholeLoss::default();
        loss.add(&reading(1, 1, 100, 97, 2), 3.0, &mut 0);
        assert_eq!(loss.status(3.0).lost_in_parts, 2);
        for second in 2..6 {
            loss.add(&reading(second, 1, 100, 97, 2), 3.0, &mut 0);
        }
        let status = loss.status(3.0);
        assert_eq!((status.lost_in_parts, status.lost_on_links), (2, 3));
        assert_eq!(status.loss_percent, Some(5.0));
        // Each of the parts alone lost at most 3 %, and so did each second of the first kind.
        assert_eq!((status.state, status.violated_s), (SlaState::Violated, 1));
        assert!(!status.violated_now, "{status:?}");
    }

    #[test]
    fn a_new_path_counts_between_its_nodes_from_zero() {
        let mut loss = WholeLoss::default();
        for second in 1..5 {
            loss.add(&reading(second, 1, 100, 100, 7), 100.0, &mut 0);
        }
        // The first part stays, and counts its packets on.
        for second in 5..12 {
            let mut next = reading(second, 2, 10, 9, 1);
            next.parts[0].conformed = 110;
            loss.add(&next, 100.0, &mut 0);
        }
        let status = loss.status(100.0);
        assert_eq!(status.conformed, 110);
        assert_eq!((status.lost_in_parts, status.lost_on_links), (8, 1));
        assert_eq!(status.violated_s, 0);
    }

    #[test]
    fn packets_of_a_path_count_once_although_a_change_is_undone() {
        let mut loss = WholeLoss::default();
        for second in 1..5 {
            loss.add(&reading(second, 1, 100, 96, 7), 100.0, &mut 0);
        }
        let mut next = reading(5, 2, 10, 10, 1);
        next.parts[0].conformed = 110;
        loss.add(&next, 100.0, &mut 0);
        for second in 6..9 {
            let mut back = reading(second, 1, 0, 96, 7);
            (back.resumed, back.parts[0].conformed) = (100, 110);
            loss.add(&back, 100.0, &mut 0);
        }
        let status = loss.status(100.0);
        assert_eq!(status.conformed, 110);
        assert_eq!((status.lost_in_parts, status.lost_on_links), (8, 4));
    }

    #[test]
    fn links_lose_packets_after_an_undone_change_too() {
        let mut loss = WholeLoss::default();
        for second in 1..5 {
            loss.add(&reading(second, 1, 100, 100, 0), 100.0, &mut 0);
        }
        // The first part sends on the path again, and counts from zero.
        for second in 5..9 {
            let mut next = reading(second, 1, 20, 117, 0);
            next.resumed = 100;
            loss.add(&next, 100.0, &mut 0);
        }
        assert_eq!(loss.status(100.0).lost_on_links, 3);
    }

    #[test]
    fn packets_to_replicas_are_lost_only_if_none_received_them() {
        let mut loss = WholeLoss::default();
        for second in 1..8 {
            let mut next = reading(second, 1, 100, 60, 0);
            let mut other = next.parts[1].clone();
            other.name = "replica".to_owned();
            (other.received, other.conformed) = (38, 38);
            next.parts.push(other);
            loss.add(&next, 5.0, &mut 0);
        }
        let status = loss.status(5.0);
        assert_eq!((status.lost_in_parts, status.lost_on_links), (0, 2));
    }

    #[test]
    fn a_violation_names_the_link_or_the_part_that_lost_most() {
        let (mut loss, mut serial) = (WholeLoss::default(), 6);
        for second in 1..5 {
            loss.add(&reading(second, 1, 100, 90, 2), 3.0, &mut serial);
        }
        // Two packets of the part are within the contract, ten of the link are not.
        let events: Vec<SlaEvent> = loss.events_after(0).cloned().collect();
        assert_eq!((events.len(), serial), (1, 7), "{events:?}");
        let event = &events[0];
        assert_eq!((event.serial, event.lost, event.seconds), (7, 10, 1));
        assert_eq!(
            (event.chain.as_str(), event.cause),
            ("whole", SlaCause::Link)
        );
        assert_eq!(event.hop, "links from node-first to node-second 1");
        assert_eq!(event.terms, [SlaTerm::Loss]);
        assert_eq!(
            (event.end.as_ref(), event.worst_loss_percent),
            (None, Some(100.0))
        );
        for second in 5..9 {
            loss.add(&reading(second, 1, 100, 90, 2), 3.0, &mut serial);
        }
        let first = loss.events_after(6).next();
        assert!(first.is_some_and(|event| event.end.is_some()), "{first:?}");

        let mut next = reading(9, 1, 200, 190, 40);
        next.parts[1].violation = Some((SlaCause::Function, "filter".to_owned()));
        loss.add(&next, 3.0, &mut serial);
        let last = loss.events_after(7).last().unwrap();
        assert_eq!((last.serial, last.cause), (8, SlaCause::Function));
        assert_eq!(last.hop, "node node-second 1, filter");
        assert_eq!(
            last.evidence,
            ["node node-second 1, filter: 38 packets lost"]
        );
    }
}
