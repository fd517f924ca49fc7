//! Accounts for one chain's packets over the time of a measurement.

use crate::sla::account::{LossPlace, Reading, max_in_transit};
use crate::sla::{Losses, SlaWindow, history};

/// Counts the packets that arrived before `end`, have not left until `now`, and cannot be in
/// transit.
fn count_overdue(start: &Reading, end: &Reading, now: &Reading) -> u64 {
    if now.may_bypass || now.hops.iter().any(|hop| hop.is_black_box) {
        return 0;
    }
    let missing = |reading: &Reading| reading.counts.missing(sum_losses_inside(reading));
    let before = missing(start);
    let arrived = now
        .counts
        .expected_out()
        .saturating_sub(end.counts.expected_out());
    let sojourn = now.sojourn.as_ref().zip(start.sojourn.as_ref());
    let sojourn = sojourn.map(|(now, start)| now.since(start));
    let fresh = max_in_transit(arrived, now.up_s - end.up_s, sojourn.as_ref());
    missing(now).saturating_sub(before + fresh + now.in_shaper)
}

/// Counts the packets that arrived in black boxes before `end` and are still inside.
fn count_stuck(start: &Reading, end: &Reading, now: &Reading) -> u64 {
    let boxes = now
        .hops
        .iter()
        .zip(&end.hops)
        .filter(|(hop, _)| hop.is_black_box);
    let kept = boxes.map(|(hop, at_end)| {
        let mut before = start.hops.iter();
        let before = before.find(|before| before.name == hop.name);
        let fresh = hop.counted.since(&at_end.counted).packets_in;
        let before = before.map_or(0, |before| before.counted.held);
        hop.counted.held.saturating_sub(before + fresh)
    });
    kept.sum()
}

/// Counts the packets that arrived before `end` and have neither left nor been counted as lost.
pub fn count_missing(start: &Reading, end: &Reading, now: &Reading) -> u64 {
    count_overdue(start, end, now) + count_stuck(start, end, now)
}

/// Computes the figures since `start`, of packets that arrived before `end`.
pub fn compute_window(start: &Reading, end: &Reading, now: &Reading) -> SlaWindow {
    let counts = now.counts.since(&start.counts);
    let lost = Losses {
        door: counts.door,
        ring: sum_losses_inside(now).saturating_sub(sum_losses_inside(start)),
        function: counts.lost.values().sum::<u64>() + count_stuck(start, end, now),
        shaper: counts.shaper,
        link: 0,
        unseen: count_overdue(start, end, now),
    };
    let sojourn = now.sojourn.as_ref().zip(start.sojourn.as_ref());
    let sojourn = sojourn.map(|(now, start)| now.since(start));
    let lost = (lost, counts.lost.clone());
    history::compute_window(now.up_s - start.up_s, &counts, lost, sojourn.as_ref(), now)
}

/// Sums the packets lost in rings and on links before the egress.
fn sum_losses_inside(reading: &Reading) -> u64 {
    let rings = reading.loss_counters.iter();
    let rings = rings.filter(|counter| !matches!(counter.place, LossPlace::Egress { .. }));
    rings.map(|counter| counter.lost).sum()
}

#[cfg(test)]
mod tests {
    use myelin_packet::HopCounters;
    use myelin_packet::sojourn::Histogram;

    use super::*;
    use crate::sla::account::{Counts, HopCounts, LossCounter};

    fn reading(packets_in: u64, policed: u64, packets_out: u64, ring: u64) -> Reading {
        Reading {
            counts: Counts {
                packets_in,
                policed,
                packets_out,
                ..Counts::default()
            },
            loss_counters: vec![LossCounter {
                place: LossPlace::Sockets {
                    worker: String::new(),
                    interface: 1,
                },
                next_position: Some(0),
                lost: ring,
            }],
            ..Reading::default()
        }
    }

    #[test]
    fn missing_packets_of_the_span_are_lost() {
        // Two packets were missing before `start`.
        let start = reading(100, 0, 98, 0);
        let end = reading(1100, 500, 580, 10);
        assert_eq!(count_overdue(&start, &end, &end), 8);
        // Five of the missing packets leave, and further packets arrive.
        let now = reading(1120, 500, 597, 10);
        assert_eq!(count_overdue(&start, &end, &now), 0);
        let still = reading(1100, 500, 585, 10);
        let window = compute_window(&start, &end, &still);
        assert_eq!((window.packets_in, window.policed), (1000, 500));
        assert_eq!((window.lost.ring, window.lost.unseen), (10, 3));
        assert_eq!(window.loss_percent, Some(2.6));
    }

    #[test]
    fn later_packets_do_not_hide_lost_packets() {
        let mut start = reading(0, 0, 0, 0);
        start.sojourn = Some(Histogram::new());
        let mut end = reading(1000, 0, 980, 0);
        let mut now = reading(6000, 4000, 1970, 0);
        // Of 5000 further packets the policer passes 1000 in 100 ms. The packets of the last 10 ms
        // and of the longest sojourn may be in transit.
        (end.up_s, now.up_s) = (1.0, 1.1);
        now.sojourn = Some(Histogram::new());
        assert_eq!(
            count_overdue(&start, &end, &now),
            0,
            "without a measured sojourn, all may be in transit"
        );
        now.counts.packets_out = 1880;
        now.sojourn.as_mut().unwrap().record_many(1000, 1880);
        assert_eq!(count_overdue(&start, &end, &now), 120 - 101);
    }

    #[test]
    fn packets_held_by_a_black_box_count_as_its_losses() {
        let with_box = |packets_in, held| {
            let mut reading = reading(packets_in, 0, packets_in - held, 0);
            reading.hops = vec![HopCounts {
                is_black_box: true,
                counted: HopCounters {
                    packets_in,
                    drops: held,
                    held,
                    ..HopCounters::default()
                },
                ..HopCounts::default()
            }];
            reading
        };
        let (start, end) = (with_box(100, 5), with_box(200, 25));
        assert_eq!(compute_window(&start, &end, &end).lost.function, 20);
        let now = with_box(203, 15);
        assert_eq!(compute_window(&start, &end, &now).lost.function, 7);
        assert_eq!(compute_window(&start, &end, &now).lost.unseen, 0);
    }

    #[test]
    fn packets_in_the_shaper_or_bypassing_are_not_lost() {
        let (start, mut end) = (reading(0, 0, 0, 0), reading(10, 0, 6, 0));
        end.in_shaper = 3;
        assert_eq!(count_overdue(&start, &end, &end), 1);
        end.may_bypass = true;
        assert_eq!(count_overdue(&start, &end, &end), 0);
    }
}
