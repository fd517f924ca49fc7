//! Tests with the seconds of constructed chains.

use std::time::Duration;

use myelin_packet::HopCounters;

use super::*;
use crate::sla::{SlaCause, SlaTerm};

fn sla() -> Sla {
    Sla {
        latency_ns: Some(100_000),
        loss_percent: Some(1.0),
        ..Sla::default()
    }
}

/// A chain after `up_s` seconds: `packets_in` packets arrived, the function dropped `dropped` of
/// them, and the others left after 10 us.
fn reading(up_s: f64, packets_in: u64, dropped: u64) -> Reading {
    let mut sojourn = Histogram::new();
    sojourn.record_many(10_000, packets_in - dropped);
    let hops = vec![HopCounts {
        name: "filter".to_owned(),
        counted: HopCounters {
            packets_in,
            drops: dropped,
            ..HopCounters::default()
        },
        ..HopCounts::default()
    }];
    let mut counts = Counts {
        packets_in,
        bytes_in: packets_in * 100,
        packets_out: packets_in - dropped,
        bytes_out: (packets_in - dropped) * 100,
        ..Counts::default()
    };
    counts.add_hops(&hops);
    Reading {
        name: "c".to_owned(),
        sla: sla(),
        up_s,
        counts,
        counts_bytes_out: true,
        passed_door: packets_in,
        hops,
        sojourn: Some(sojourn),
        ..Reading::default()
    }
}

fn add_second(history: &mut History, reading: Reading, transit: TransitLosses) -> SlaWindow {
    let length_s = reading.up_s - history.last.up_s;
    let second = Second {
        end: SystemTime::UNIX_EPOCH + Duration::from_secs_f64(reading.up_s),
        reading,
        transit,
        length_s,
        context: Context::default(),
    };
    history.add_second(second, &mut 0);
    history.status().second
}

fn history_of(reading: Reading) -> History {
    let mut history = History::new(&reading);
    add_second(&mut history, reading, TransitLosses::default());
    history
}

#[test]
fn a_second_is_the_difference_of_two_readings() {
    let mut history = history_of(reading(0.5, 100, 0));
    let status = history.status();
    assert_eq!(
        (status.second.packets_in, status.second.seconds),
        (100, 0.5)
    );
    assert!((status.second.in_pps - 200.0).abs() < 1e-9);
    let second = add_second(
        &mut history,
        reading(1.5, 1100, 5),
        TransitLosses::default(),
    );
    assert_eq!((second.packets_in, second.packets_out), (1000, 995));
    assert!((second.out_bps.unwrap() - 796_000.0).abs() < 1e-6);
    assert_eq!(second.lost.function, 5);
    assert_eq!(second.lost_in["filter"], 5);
    assert_eq!(second.loss_percent, Some(0.5));
    assert_eq!(second.sojourn.unwrap().packets, 995);
    let status = history.status();
    assert_eq!(status.life.packets_in, 1100);
    assert_eq!(status.minute.packets_in, 1100);
    assert_eq!(status.minute.sojourn.unwrap().packets, 1095);
    assert_eq!(
        (status.state, status.violated_s, status.judged_s),
        (SlaState::Kept, 0, 2)
    );
}

#[test]
fn a_violation_shows_in_state_and_events_until_it_ends() {
    let mut history = history_of(reading(1.0, 100, 0));
    add_second(
        &mut history,
        reading(2.0, 200, 50),
        TransitLosses::default(),
    );
    let status = history.status();
    assert_eq!(
        (status.state, status.violated_s, status.violated_now),
        (SlaState::Violated, 1, true)
    );
    let event = status.last_event.unwrap();
    assert_eq!(
        (event.cause, event.hop.as_str()),
        (SlaCause::Function, "filter")
    );
    assert_eq!(event.terms, [SlaTerm::Loss]);
    assert_eq!((event.lost, event.worst_loss_percent), (50, Some(50.0)));
    assert!(event.end.is_none());
    for second in 3..6 {
        add_second(
            &mut history,
            reading(f64::from(second), 200, 50),
            TransitLosses::default(),
        );
    }
    let status = history.status();
    assert!(!status.violated_now && status.last_event.unwrap().end.is_some());
    // A second without packets is not judged.
    assert_eq!((status.judged_s, status.violated_s), (2, 1));
}

#[test]
fn late_packets_violate_the_latency() {
    let mut history = history_of(reading(1.0, 100, 0));
    let mut late = reading(2.0, 200, 0);
    let sojourn = late.sojourn.as_mut().unwrap();
    // Two packets of a hundred are late, and the percentile allows one.
    *sojourn = Histogram::new();
    sojourn.record_many(10_000, 198);
    sojourn.record_many(1_000_000, 2);
    add_second(&mut history, late, TransitLosses::default());
    let event = history.status().last_event.unwrap();
    assert_eq!(event.terms, [SlaTerm::Latency]);
    assert!((event.worst_latency_us.unwrap() - 1000.0).abs() < 20.0);
}

#[test]
fn a_chain_without_bounds_is_not_judged() {
    let free = |up_s, packets_in, dropped| Reading {
        sla: Sla::default(),
        ..reading(up_s, packets_in, dropped)
    };
    let mut history = history_of(free(1.0, 100, 100));
    add_second(&mut history, free(2.0, 200, 200), TransitLosses::default());
    let status = history.status();
    assert_eq!((status.state, status.judged_s), (SlaState::NoContract, 0));
    assert!(status.last_event.is_none());
}

#[test]
fn packets_missing_for_a_second_are_lost_and_new_packets_are_in_transit() {
    let with_missing = |up_s, packets_in, missing| {
        let mut reading = reading(up_s, packets_in, 0);
        reading.counts.packets_out -= missing;
        // Without a sojourn a packet may take a second.
        reading.sojourn = None;
        reading
    };
    let mut history = history_of(with_missing(1.0, 100, 7));
    assert_eq!(history.status().under_way, 7);
    // The same number is missing, but these may be other packets.
    let second = add_second(
        &mut history,
        with_missing(2.0, 200, 7),
        TransitLosses::default(),
    );
    assert_eq!((second.lost.unseen, history.status().under_way), (0, 7));
    // Only three packets have arrived since the last reading, so four are lost.
    let second = add_second(
        &mut history,
        with_missing(3.0, 203, 7),
        TransitLosses::default(),
    );
    assert_eq!((second.lost.unseen, history.status().under_way), (4, 3));
    // A ring counts two of the lost packets one second late.
    let transit = TransitLosses {
        ring: 2,
        ..TransitLosses::default()
    };
    let second = add_second(&mut history, with_missing(4.0, 300, 7), transit);
    assert_eq!((second.lost.unseen, second.lost.ring), (0, 2));
    // Packets in the shaper are not missing. The shaper's drops count as `shaper`.
    let mut shaped = with_missing(4.5, 300, 50);
    shaped.in_shaper = 40;
    shaped.counts.shaper = 3;
    let second = add_second(&mut history, shaped, TransitLosses::default());
    assert_eq!((second.lost.shaper, second.lost.unseen), (3, 1));
    // With `onFailure: pass` a missing packet is not lost.
    let mut passing = with_missing(5.0, 300, 50);
    passing.may_bypass = true;
    let second = add_second(&mut history, passing, TransitLosses::default());
    assert_eq!(second.lost.unseen, 0);
}

#[test]
fn a_steady_loss_is_found_among_many_packets() {
    // 10,000 packets arrive each second, 9,000 above the profile; five of the conforming packets
    // are lost without a counter.
    let losing = |second: u64, more| {
        let mut reading = reading(second as f64, 1000 * second, 0);
        reading.counts.packets_in += 9000 * second;
        reading.counts.policed = 9000 * second;
        reading.counts.packets_out -= 5 * second + more;
        reading
    };
    let mut history = history_of(losing(1, 0));
    for second in 2..=4 {
        add_second(&mut history, losing(second, 0), TransitLosses::default());
    }
    // A worker that is off its core during the reading has lost nothing.
    add_second(&mut history, losing(5, 60), TransitLosses::default());
    for second in 6..=9 {
        add_second(&mut history, losing(second, 0), TransitLosses::default());
    }
    let second = add_second(&mut history, losing(10, 0), TransitLosses::default());
    assert_eq!(second.lost.unseen, 5);
    // Except the packets of 10.01 ms, which may be in transit at the last reading but one.
    assert_eq!(history.status().life.lost.unseen, 9 * 5 - 11);
}

#[test]
fn packets_held_by_a_black_box_for_a_second_count_as_its_losses() {
    let with_box = |up_s, packets_in, held| {
        let mut reading = reading(up_s, packets_in, 0);
        reading.hops[0].is_black_box = true;
        reading.hops[0].counted.drops = held;
        reading.hops[0].counted.held = held;
        reading.counts.packets_out -= held;
        reading.sojourn = None;
        reading
    };
    let mut history = history_of(with_box(1.0, 100, 20));
    assert_eq!(history.status().under_way, 20);
    let second = add_second(
        &mut history,
        with_box(2.0, 200, 20),
        TransitLosses::default(),
    );
    assert_eq!(second.lost.total(), 0);
    let second = add_second(
        &mut history,
        with_box(3.0, 205, 20),
        TransitLosses::default(),
    );
    assert_eq!((second.lost.function, second.lost_in["filter"]), (15, 15));
    assert_eq!(second.lost.unseen, 0);
    assert!(second.sojourn.is_none());
    let second = add_second(
        &mut history,
        with_box(4.0, 205, 20),
        TransitLosses::default(),
    );
    assert_eq!(second.lost.function, 5);
}

#[test]
fn figures_continue_over_a_live_change() {
    let mut history = history_of(reading(1.0, 100, 3));
    // The new generation's functions count from zero. The chain's counters include the previous
    // generation.
    let mut next = reading(2.0, 150, 3);
    next.generation = 1;
    next.hops[0].counted.packets_in = 40;
    next.hops[0].counted.drops = 0;
    let second = add_second(&mut history, next, TransitLosses::default());
    assert_eq!((second.packets_in, second.lost.total()), (50, 0));
    assert_eq!(history.status().life.lost_in["filter"], 3);
}

#[test]
fn only_the_last_seconds_are_kept() {
    let mut history = history_of(reading(1.0, 1, 0));
    for second in 2..=(SECONDS as u64 + 5) {
        add_second(
            &mut history,
            reading(second as f64, second, 0),
            TransitLosses::default(),
        );
    }
    assert_eq!(history.seconds.len(), SECONDS);
    assert_eq!(history.sojourns.len(), MINUTE);
    let minute = history.status().minute;
    assert_eq!((minute.packets_in, minute.seconds), (60, 60.0));
    assert_eq!(minute.sojourn.unwrap().packets, 60);
}

/// Adds a second in which the function's worker has `binding` to core 3.
fn add_second_with_binding(history: &mut History, second: u8, binding: Binding) -> SlaStatus {
    let worker = WorkerTimes {
        pid: 7,
        core: Some(3),
        binding,
        ..WorkerTimes::default()
    };
    let second = f64::from(second);
    let mut now = reading(second, 100, 0);
    now.workers = vec![worker];
    let load = cause::WorkerLoad {
        pid: 7,
        core: Some(3),
        first_position: Some(0),
        binding,
        ..cause::WorkerLoad::default()
    };
    let context = Context {
        hops: now.hops.clone(),
        workers: vec![load],
        ..Context::default()
    };
    let taken = Second {
        end: SystemTime::UNIX_EPOCH + Duration::from_secs_f64(second),
        reading: now,
        transit: TransitLosses::default(),
        length_s: 1.0,
        context,
    };
    history.add_second(taken, &mut 0);
    history.status()
}

#[test]
fn a_lost_core_is_an_event_until_the_core_is_back() {
    let mut history = history_of(reading(1.0, 100, 0));
    let status = add_second_with_binding(&mut history, 2, Binding::Offline);
    assert_eq!(status.lost_cores, [3]);
    // No packet was late or lost.
    assert_eq!(
        (status.state, status.violated_s, status.violated_now),
        (SlaState::Kept, 0, false)
    );
    let event = status.last_event.unwrap();
    assert_eq!(
        (event.cause, event.hop.as_str(), &event.terms[..]),
        (SlaCause::Core, "filter", &[SlaTerm::Core][..])
    );
    let evidence = event.evidence.join("; ");
    assert!(
        evidence.contains("core 3 is offline") && evidence.contains("remedy: write 1 to "),
        "{evidence}"
    );
    let back = add_second_with_binding(&mut history, 3, Binding::Restored);
    assert!(back.lost_cores.is_empty());
    for second in 4..7 {
        add_second_with_binding(&mut history, second, Binding::Kept);
    }
    let event = history.status().last_event.unwrap();
    assert_eq!((event.seconds, event.end.is_some()), (2, true));
    assert_eq!(
        event.evidence.join("; "),
        evidence,
        "the event keeps the evidence of its worst second"
    );
}

#[test]
fn a_chain_without_bounds_reports_a_lost_core_too() {
    let mut unbounded = reading(1.0, 100, 0);
    unbounded.sla = Sla::default();
    let mut history = history_of(unbounded);
    let status = add_second_with_binding(&mut history, 2, Binding::Forbidden);
    assert_eq!(status.lost_cores, [3]);
    let event = status.last_event.unwrap();
    assert!(event.evidence.join("; ").contains("cpuset"), "{event:?}");
}

#[test]
fn seconds_are_listed_with_their_ends() {
    let mut history = history_of(reading(1.0, 100, 0));
    for second in 2..=SECONDS as u32 + 10 {
        let packets = u64::from(second) * 100;
        add_second(
            &mut history,
            reading(f64::from(second), packets, 0),
            TransitLosses::default(),
        );
    }
    let seconds = history.last_seconds(usize::MAX);
    assert_eq!(seconds.len(), SECONDS);
    assert_eq!(seconds[0].end, "1970-01-01T00:00:11.000Z");
    let two = history.last_seconds(2);
    assert_eq!(two[..], seconds[SECONDS - 2..]);
    assert_eq!(two[1].end, "1970-01-01T00:05:10.000Z");
    assert_eq!(two[1].window, history.status().second);
    assert!(history.last_seconds(0).is_empty());
}
