//! Rounds of made-up readings.

use std::time::Duration;

use myelin_packet::HopCounters;
use myelin_packet::sojourn::Histogram;
use myelin_spec::Sla;

use super::*;
use crate::sla::account::Counts;
use crate::sla::{SlaCause, SlaTerm};

/// A chain with one user function, whose worker's socket it shares with others; at time `up_s` so many packets had gone to the worker
/// and so many had come there and left.
fn chain(name: &str, spi: u32, up_s: f64, entered: u64, came: u64, overflow: u64) -> Reading {
    let hops = vec![HopCounts {
        name: format!("{name}-function"),
        counted: HopCounters {
            packets_in: came,
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
            packets_in: entered,
            packets_out: came,
            ..Counts::default()
        },
        entered,
        hops,
        sojourn: Some(Histogram::new()),
        crossings: vec![Crossing {
            station: Station::Sockets {
                worker: "w".to_owned(),
                interface: 3,
            },
            leads_to: Some(0),
            lost: overflow,
        }],
        workers: vec![WorkerTimes {
            pid: 7,
            core: Some(0),
            run_ns: (up_s * 0.99e9) as u64,
            first: Some(0),
            ..WorkerTimes::default()
        }],
        ..Reading::default()
    }
}

fn cores() -> Vec<CoreLoad> {
    vec![CoreLoad::default()]
}

fn take(monitor: &mut SlaMonitor, second: u64, readings: Vec<Reading>) {
    monitor.take(Round {
        running: readings
            .iter()
            .map(|reading| (reading.name.clone(), reading.spi))
            .collect(),
        readings,
        cores: cores(),
        end: SystemTime::UNIX_EPOCH + Duration::from_secs(second),
    });
}

#[test]
fn a_shared_ring_s_losses_go_to_the_chain_whose_packets_did_not_come() {
    let mut monitor = SlaMonitor::default();
    take(
        &mut monitor,
        1,
        vec![
            chain("a", 1, 1.0, 100, 100, 0),
            chain("b", 2, 1.0, 100, 100, 0),
        ],
    );
    // Of b's 1000 packets 300 are missing, and one of a's is just under way.
    take(
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
    let of_b = events.iter().find(|event| event.chain == "b").unwrap();
    assert_eq!(
        (of_b.cause, of_b.hop.as_str()),
        (SlaCause::Overload, "b-function")
    );
    assert_eq!(of_b.terms, [SlaTerm::Loss]);
    let cores = monitor.status("b", 2).unwrap().second.worker_cores;
    assert!((cores.unwrap() - 0.99).abs() < 1e-6, "{cores:?}");
}

#[test]
fn a_chain_whose_worker_is_full_of_another_s_packets_has_a_neighbour() {
    let mut monitor = SlaMonitor::default();
    take(
        &mut monitor,
        1,
        vec![
            chain("a", 1, 1.0, 100, 100, 0),
            chain("b", 2, 1.0, 100, 100, 0),
        ],
    );
    take(
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
fn a_chain_that_comes_up_anew_begins_anew() {
    let mut monitor = SlaMonitor::default();
    take(&mut monitor, 1, vec![chain("a", 1, 1.0, 100, 100, 0)]);
    take(&mut monitor, 2, vec![chain("a", 1, 2.0, 200, 100, 100)]);
    assert_eq!(monitor.events(None, 0).len(), 1);
    take(&mut monitor, 3, vec![chain("a", 4, 0.5, 10, 10, 0)]);
    assert!(monitor.status("a", 1).is_none());
    let status = monitor.status("a", 4).unwrap();
    assert_eq!((status.life.packets_in, status.violated_s), (10, 0));
    assert!(monitor.events(None, 0).is_empty());
    take(&mut monitor, 4, Vec::new());
    assert!(monitor.status("a", 4).is_none());
}

#[test]
fn a_chain_that_was_not_read_this_time_is_kept_and_counted_once() {
    let mut monitor = SlaMonitor::default();
    take(&mut monitor, 1, vec![chain("a", 1, 1.0, 100, 90, 10)]);
    assert_eq!(monitor.status("a", 1).unwrap().life.lost.ring, 10);
    monitor.take(Round {
        running: [("a".to_owned(), 1)].into(),
        readings: Vec::new(),
        cores: cores(),
        end: SystemTime::UNIX_EPOCH,
    });
    take(&mut monitor, 3, vec![chain("a", 1, 3.0, 300, 280, 20)]);
    let status = monitor.status("a", 1).unwrap();
    assert_eq!(status.life.lost.ring, 20);
    assert!((status.second.seconds - 2.0).abs() < 1e-9);
}

/// A chain whose packets have all left, at an interface that has lost so many of whomever.
fn at_egress(name: &str, spi: u32, up_s: f64, packets: u64, lost: u64) -> Reading {
    let mut reading = chain(name, spi, up_s, packets, packets, 0);
    reading.crossings = vec![Crossing {
        station: Station::Egress {
            interface: 4,
            name: "eth0".to_owned(),
        },
        leads_to: None,
        lost,
    }];
    reading
}

#[test]
fn an_idle_chain_is_not_blamed_for_what_others_lose_at_its_egress() {
    let mut monitor = SlaMonitor::default();
    let both = |up_s, of_b, lost| {
        vec![
            at_egress("a", 1, up_s, 100, lost),
            at_egress("b", 2, up_s, of_b, lost),
        ]
    };
    let link = |monitor: &SlaMonitor| {
        let of = |name, spi| monitor.status(name, spi).unwrap().life.lost.link;
        (of("a", 1), of("b", 2))
    };
    take(&mut monitor, 1, both(1.0, 100, 0));
    // Nobody's: neither has sent anything.
    take(&mut monitor, 2, both(2.0, 100, 40));
    assert_eq!(link(&monitor), (0, 0));
    // No more than it has sent.
    take(&mut monitor, 3, both(3.0, 107, 80));
    assert_eq!(link(&monitor), (0, 7));
    // As many as were lost.
    take(&mut monitor, 4, both(4.0, 207, 85));
    assert_eq!(link(&monitor), (0, 12));
    assert!(monitor.events(Some("a"), 0).is_empty());
}

#[test]
fn an_interface_s_earlier_losses_are_nobody_s() {
    let at = |up_s, packets, lost| at_egress("a", 1, up_s, packets, lost);
    let mut monitor = SlaMonitor::default();
    take(&mut monitor, 1, vec![at(1.0, 100, 50)]);
    assert_eq!(monitor.status("a", 1).unwrap().life.lost.link, 0);
    take(&mut monitor, 2, vec![at(2.0, 200, 53)]);
    assert_eq!(monitor.status("a", 1).unwrap().life.lost.link, 3);
    let event = &monitor.events(None, 0)[0];
    assert_eq!(
        (event.cause, event.hop.as_str()),
        (SlaCause::Link, "egress")
    );
    assert!(event.evidence.concat().contains("eth0"), "{event:?}");
}

#[test]
fn a_worker_that_was_started_again_is_noticed() {
    let mut monitor = SlaMonitor::default();
    take(&mut monitor, 1, vec![chain("a", 1, 1.0, 100, 100, 0)]);
    let again = |up_s: f64, came| {
        let mut reading = chain("a", 1, up_s, 200, came, 0);
        reading.workers[0].pid = 8;
        reading.workers[0].restarts = 1;
        reading
    };
    take(&mut monitor, 2, vec![again(2.0, 190)]);
    assert!(monitor.events(None, 0).is_empty(), "they may come yet");
    take(&mut monitor, 3, vec![again(3.0, 190)]);
    let event = &monitor.events(None, 0)[0];
    assert_eq!(
        (event.cause, event.hop.as_str()),
        (SlaCause::Failure, "a-function")
    );
    assert_eq!(monitor.status("a", 1).unwrap().life.lost.unseen, 10);
}
