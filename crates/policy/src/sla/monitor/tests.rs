//! Tests with rounds of constructed readings.

use std::time::Duration;

use myelin_packet::HopCounters;
use myelin_packet::sojourn::Histogram;
use myelin_spec::Sla;

use super::*;
use crate::sla::account::Counts;
use crate::sla::{SlaCause, SlaTerm};

/// A chain with one user function. Its worker's socket serves other chains too. Until `up_s`,
/// `passed_door` packets went to the worker, and `arrived` of them reached the worker and left.
fn chain(
    name: &str,
    spi: u32,
    up_s: f64,
    passed_door: u64,
    arrived: u64,
    overflow: u64,
) -> Reading {
    let hops = vec![HopCounts {
        name: format!("{name}-function"),
        counted: HopCounters {
            packets_in: arrived,
            ..HopCounters::default()
        },
        ..HopCounts::default()
    }];
    Reading {
        name: name.to_owned(),
        spi,
        sla: Sla {
            loss_percent: Some(1.0),
            ..Sla::default()
        },
        up_s,
        counts: Counts {
            packets_in: passed_door,
            packets_out: arrived,
            ..Counts::default()
        },
        passed_door,
        hops,
        sojourn: Some(Histogram::new()),
        loss_counters: vec![LossCounter {
            place: LossPlace::Sockets {
                worker: "w".to_owned(),
                interface: 3,
            },
            next_position: Some(0),
            lost: overflow,
        }],
        workers: vec![WorkerTimes {
            pid: 7,
            core: Some(0),
            run_ns: (up_s * 0.99e9) as u64,
            first_position: Some(0),
            ..WorkerTimes::default()
        }],
        ..Reading::default()
    }
}

fn cores() -> Vec<CoreLoad> {
    vec![CoreLoad::default()]
}

fn add_round(monitor: &mut SlaMonitor, second: u64, readings: Vec<Reading>) -> Vec<SlaVerdict> {
    monitor.add_round(Round {
        running: readings
            .iter()
            .map(|reading| (reading.name.clone(), reading.spi))
            .collect(),
        readings,
        cores: cores(),
        end: SystemTime::UNIX_EPOCH + Duration::from_secs(second),
    })
}

#[test]
fn losses_of_a_shared_ring_count_for_the_chain_with_missing_packets() {
    let mut monitor = SlaMonitor::default();
    add_round(
        &mut monitor,
        1,
        vec![
            chain("a", 1, 1.0, 100, 100, 0),
            chain("b", 2, 1.0, 100, 100, 0),
        ],
    );
    // Of b's 1000 packets 300 are missing, and one of a's packets is in transit.
    add_round(
        &mut monitor,
        2,
        vec![
            chain("a", 1, 2.0, 200, 199, 299),
            chain("b", 2, 2.0, 1100, 800, 299),
        ],
    );
    let lost = |name, spi| monitor.status(name, spi).unwrap().second.lost.ring;
    assert_eq!(lost("a", 1) + lost("b", 2), 299);
    assert!(lost("a", 1) <= 1, "{}", lost("a", 1));
    let events = monitor.events(None, 0);
    let event_of_b = events.iter().find(|event| event.chain == "b").unwrap();
    assert_eq!(
        (event_of_b.cause, event_of_b.hop.as_str()),
        (SlaCause::Overload, "b-function")
    );
    assert_eq!(event_of_b.terms, [SlaTerm::Loss]);
    let cores = monitor.status("b", 2).unwrap().second.worker_cores;
    assert!((cores.unwrap() - 0.99).abs() < 1e-6, "{cores:?}");
}

#[test]
fn losses_of_a_shared_entry_link_count_for_the_chain_whose_packets_miss_the_door() {
    let mut monitor = SlaMonitor::default();
    let reading = |name, spi, up_s, missed, lost| Reading {
        missed_at_entry: missed,
        loss_counters: vec![LossCounter {
            place: LossPlace::Entry { interface: 3 },
            next_position: None,
            lost,
        }],
        ..chain(name, spi, up_s, 100, 100, 0)
    };
    let first = [reading("a", 1, 1.0, 2, 2), reading("b", 2, 1.0, 0, 2)];
    add_round(&mut monitor, 1, first.into());
    let second = [reading("a", 1, 2.0, 2, 32), reading("b", 2, 2.0, 30, 32)];
    add_round(&mut monitor, 2, second.into());
    let lost = |name, spi| monitor.status(name, spi).unwrap().second.lost.link;
    assert_eq!((lost("a", 1), lost("b", 2)), (0, 30));
}

#[test]
fn a_chain_with_most_packets_of_a_worker_is_the_neighbour_of_the_others() {
    let mut monitor = SlaMonitor::default();
    add_round(
        &mut monitor,
        1,
        vec![
            chain("a", 1, 1.0, 100, 100, 0),
            chain("b", 2, 1.0, 100, 100, 0),
        ],
    );
    add_round(
        &mut monitor,
        2,
        vec![
            chain("a", 1, 2.0, 200, 150, 50),
            chain("b", 2, 2.0, 9100, 9100, 50),
        ],
    );
    let events = monitor.events(Some("a"), 0);
    assert_eq!(events[0].cause, SlaCause::Neighbour);
    assert!(
        events[0].evidence.concat().contains("chain b"),
        "{events:?}"
    );
    assert!(monitor.events(Some("b"), 0).is_empty());
    assert!(monitor.events(None, events[0].serial).is_empty());
}

#[test]
fn a_chain_with_a_new_spi_starts_with_an_empty_history() {
    let mut monitor = SlaMonitor::default();
    add_round(&mut monitor, 1, vec![chain("a", 1, 1.0, 100, 100, 0)]);
    add_round(&mut monitor, 2, vec![chain("a", 1, 2.0, 200, 100, 100)]);
    assert_eq!(monitor.events(None, 0).len(), 1);
    add_round(&mut monitor, 3, vec![chain("a", 4, 0.5, 10, 10, 0)]);
    assert!(monitor.status("a", 1).is_none());
    let status = monitor.status("a", 4).unwrap();
    assert_eq!((status.life.packets_in, status.violated_s), (10, 0));
    assert!(monitor.events(None, 0).is_empty());
    add_round(&mut monitor, 4, Vec::new());
    assert!(monitor.status("a", 4).is_none());
}

#[test]
fn a_chain_without_a_reading_is_kept_and_its_losses_count_once() {
    let mut monitor = SlaMonitor::default();
    add_round(&mut monitor, 1, vec![chain("a", 1, 1.0, 100, 90, 10)]);
    assert_eq!(monitor.status("a", 1).unwrap().life.lost.ring, 10);
    monitor.add_round(Round {
        running: [("a".to_owned(), 1)].into(),
        readings: Vec::new(),
        cores: cores(),
        end: SystemTime::UNIX_EPOCH,
    });
    add_round(&mut monitor, 3, vec![chain("a", 1, 3.0, 300, 280, 20)]);
    let status = monitor.status("a", 1).unwrap();
    assert_eq!(status.life.lost.ring, 20);
    assert!((status.second.seconds - 2.0).abs() < 1e-9);
}

#[test]
fn a_round_returns_the_verdict_on_each_chain() {
    let mut monitor = SlaMonitor::default();
    let mut verdict = |second: u64, arrived, lost| {
        let now = chain("a", 1, second as f64, 100 * second, arrived, lost);
        let mut verdicts = add_round(&mut monitor, second, vec![now]);
        assert_eq!(verdicts.len(), 1);
        let SlaVerdict {
            chain,
            spi,
            terms,
            event,
        } = verdicts.remove(0);
        assert_eq!((chain.as_str(), spi), ("a", 1));
        (terms, event)
    };
    assert_eq!(verdict(1, 100, 0), (vec![], None));
    assert_eq!(verdict(2, 150, 50), (vec![SlaTerm::Loss], Some(1)));
    // The violation goes on until some seconds in a row are kept.
    let seconds = (3..=5_u64).map(|second| verdict(second, 100 * second - 50, 50));
    let expected = [(vec![], Some(1)), (vec![], Some(1)), (vec![], None)];
    assert_eq!(seconds.collect::<Vec<_>>(), expected);
    let none = Round {
        running: [("a".to_owned(), 1)].into(),
        readings: Vec::new(),
        cores: cores(),
        end: SystemTime::UNIX_EPOCH,
    };
    assert_eq!(monitor.add_round(none), []);
}

/// A chain whose packets have all left, at an interface that has lost `lost` packets of any sender.
fn at_egress(name: &str, spi: u32, up_s: f64, packets: u64, lost: u64) -> Reading {
    let mut reading = chain(name, spi, up_s, packets, packets, 0);
    reading.loss_counters = vec![LossCounter {
        place: LossPlace::Egress {
            interface: 4,
            name: "eth0".to_owned(),
        },
        next_position: None,
        lost,
    }];
    reading
}

#[test]
fn an_idle_chain_has_no_share_of_egress_losses() {
    let mut monitor = SlaMonitor::default();
    let both_chains = |up_s, packets_of_b, lost| {
        vec![
            at_egress("a", 1, up_s, 100, lost),
            at_egress("b", 2, up_s, packets_of_b, lost),
        ]
    };
    let link = |monitor: &SlaMonitor| {
        let losses_of = |name, spi| monitor.status(name, spi).unwrap().life.lost.link;
        (losses_of("a", 1), losses_of("b", 2))
    };
    add_round(&mut monitor, 1, both_chains(1.0, 100, 0));
    // Neither chain has sent packets, so neither chain has lost packets.
    add_round(&mut monitor, 2, both_chains(2.0, 100, 40));
    assert_eq!(link(&monitor), (0, 0));
    // A chain loses no more packets than it has sent.
    add_round(&mut monitor, 3, both_chains(3.0, 107, 80));
    assert_eq!(link(&monitor), (0, 7));
    // The chain sent more packets than the interface lost.
    add_round(&mut monitor, 4, both_chains(4.0, 207, 85));
    assert_eq!(link(&monitor), (0, 12));
    assert!(monitor.events(Some("a"), 0).is_empty());
}

#[test]
fn egress_losses_of_the_first_second_count() {
    let at = |up_s, packets, lost| at_egress("a", 1, up_s, packets, lost);
    let mut monitor = SlaMonitor::default();
    add_round(&mut monitor, 1, vec![at(1.0, 100, 50)]);
    assert_eq!(monitor.status("a", 1).unwrap().life.lost.link, 50);
    add_round(&mut monitor, 2, vec![at(2.0, 200, 53)]);
    assert_eq!(monitor.status("a", 1).unwrap().life.lost.link, 53);
    let event = &monitor.events(None, 0)[0];
    assert_eq!(
        (event.cause, event.hop.as_str()),
        (SlaCause::Link, "egress")
    );
    assert!(event.evidence.concat().contains("eth0"), "{event:?}");
}

#[test]
fn a_restarted_worker_is_the_cause_of_missing_packets() {
    let mut monitor = SlaMonitor::default();
    add_round(&mut monitor, 1, vec![chain("a", 1, 1.0, 100, 100, 0)]);
    let again = |up_s: f64, arrived| {
        let mut reading = chain("a", 1, up_s, 200, arrived, 0);
        reading.workers[0].pid = 8;
        reading.workers[0].restarts = 1;
        reading
    };
    add_round(&mut monitor, 2, vec![again(2.0, 190)]);
    assert!(
        monitor.events(None, 0).is_empty(),
        "packets missing for less than a second are not lost"
    );
    add_round(&mut monitor, 3, vec![again(3.0, 190)]);
    let event = &monitor.events(None, 0)[0];
    assert_eq!(
        (event.cause, event.hop.as_str()),
        (SlaCause::Failure, "a-function")
    );
    assert_eq!(monitor.status("a", 1).unwrap().life.lost.unseen, 10);
}
