//! Made-up seconds.

use myelin_packet::HopCounters;

use super::*;
use crate::sla::Losses;

fn late() -> Breach {
    Breach {
        term: SlaTerm::Latency,
        measured: 900.0,
        times: 3.0,
    }
}

fn losing() -> Breach {
    Breach {
        term: SlaTerm::Loss,
        measured: 5.0,
        times: 5.0,
    }
}

fn worker(busy: f64, waited: f64) -> Circumstances {
    Circumstances {
        workers: vec![WorkerLoad {
            pid: 7,
            core: Some(1),
            busy,
            waited,
            first: Some(1),
            ..WorkerLoad::default()
        }],
        cores: vec![
            CoreLoad {
                core: 0,
                steal: 0.5,
                ..CoreLoad::default()
            },
            CoreLoad {
                core: 1,
                ..CoreLoad::default()
            },
        ],
        hops: ["filter", "coder"]
            .into_iter()
            .zip(0..)
            .map(|(name, position)| HopCounts {
                name: name.to_owned(),
                position,
                counted: HopCounters {
                    packets_in: 1000,
                    ..HopCounters::default()
                },
                ..HopCounts::default()
            })
            .collect(),
        usual_ns: vec![Some(100.0), Some(100.0)],
        ..Circumstances::default()
    }
}

fn cause(breach: &Breach, second: &SlaWindow, around: &Circumstances) -> (SlaCause, String) {
    let finding = find(breach, 99.0, second, around);
    (finding.cause, finding.hop)
}

fn of_delay(around: &Circumstances) -> (SlaCause, String) {
    cause(&late(), &SlaWindow::default(), around)
}

fn lost(losses: Losses) -> SlaWindow {
    SlaWindow {
        lost: losses,
        ..SlaWindow::default()
    }
}

#[test]
fn a_worker_without_time_left_is_overloaded_and_one_that_waits_has_neighbours() {
    let coder = "coder".to_owned();
    assert_eq!(
        of_delay(&worker(0.95, 0.0)),
        (SlaCause::Overload, coder.clone())
    );
    assert_eq!(
        of_delay(&worker(0.3, 0.2)),
        (SlaCause::Neighbour, coder.clone())
    );
    // It has no time left, whatever else runs.
    assert_eq!(
        of_delay(&worker(0.95, 0.04)),
        (SlaCause::Overload, coder.clone())
    );
    // The hypervisor's other core is none of its.
    assert_eq!(of_delay(&worker(0.3, 0.0)).0, SlaCause::Unknown);
    let mut stolen = worker(0.3, 0.02);
    stolen.cores[1].steal = 0.05;
    assert_eq!(of_delay(&stolen), (SlaCause::Steal, coder));
}

#[test]
fn a_stall_explains_a_percentile_when_it_is_as_long_as_what_that_leaves_out() {
    let around = worker(0.3, 0.03);
    let at = |percentile| find(&late(), percentile, &SlaWindow::default(), &around).cause;
    assert_eq!(at(99.0), SlaCause::Neighbour);
    assert_eq!(at(95.0), SlaCause::Unknown);
}

#[test]
fn a_worker_full_of_another_chain_s_packets_has_a_neighbour() {
    let mut around = worker(0.99, 0.0);
    around.workers[0].neighbour = Some(("bulk".to_owned(), 0.8));
    let finding = find(&late(), 99.0, &SlaWindow::default(), &around);
    assert_eq!(finding.cause, SlaCause::Neighbour);
    assert!(finding.evidence.concat().contains("80 %"), "{finding:?}");
    assert!(finding.evidence.concat().contains("bulk"), "{finding:?}");
}

#[test]
fn the_time_of_a_worker_that_polls_tells_nothing_but_its_rings_do() {
    let mut around = worker(1.0, 0.0);
    around.workers[0].polls = true;
    assert_eq!(of_delay(&around).0, SlaCause::Unknown);
    around.ring = Some(1);
    let overflow = lost(Losses {
        ring: 9,
        ..Losses::default()
    });
    assert_eq!(
        cause(&losing(), &overflow, &around),
        (SlaCause::Overload, "coder".to_owned())
    );
    around.workers[0].waited = 0.2;
    assert_eq!(cause(&losing(), &overflow, &around).0, SlaCause::Neighbour);
}

#[test]
fn late_packets_do_not_hide_lost_ones() {
    let second = lost(Losses {
        ring: 20,
        ..Losses::default()
    });
    let finding = find(&late(), 99.0, &second, &worker(0.95, 0.0));
    assert_eq!(finding.cause, SlaCause::Overload);
    let told = finding.evidence.last().map(String::as_str);
    assert_eq!(told, Some("20 packets lost: ring"));
}

#[test]
fn the_place_that_lost_most_decides() {
    let around = worker(0.99, 0.0);
    let mut second = lost(Losses {
        function: 10,
        ring: 3,
        unseen: 2,
        ..Losses::default()
    });
    second.lost_in = [("filter".to_owned(), 8), ("coder".to_owned(), 2)].into();
    let finding = find(&losing(), 99.0, &second, &around);
    assert_eq!(finding.cause, SlaCause::Function);
    assert_eq!(finding.hop, "filter");
    assert_eq!(
        finding.evidence,
        ["function filter dropped 8 of 1000 packets"]
    );
    let link = lost(Losses {
        link: 4,
        ..Losses::default()
    });
    assert_eq!(
        cause(&losing(), &link, &around),
        (SlaCause::Link, "egress".to_owned())
    );
}

#[test]
fn what_is_missing_after_a_worker_s_end_was_in_its_hands() {
    let unseen = lost(Losses {
        unseen: 4,
        ..Losses::default()
    });
    let mut around = worker(0.1, 0.0);
    assert_eq!(cause(&losing(), &unseen, &around).0, SlaCause::Unknown);
    around.workers[0].restarted = true;
    assert_eq!(
        cause(&losing(), &unseen, &around),
        (SlaCause::Failure, "coder".to_owned())
    );
    assert_eq!(of_delay(&around).0, SlaCause::Failure);
    let door = lost(Losses {
        door: 4,
        ..Losses::default()
    });
    assert_eq!(cause(&losing(), &door, &around).0, SlaCause::Failure);
}

#[test]
fn a_chain_in_the_kernel_is_hit_by_steal_of_any_core() {
    let mut around = Circumstances {
        workers: Vec::new(),
        ..worker(0.0, 0.0)
    };
    assert_eq!(of_delay(&around).0, SlaCause::Steal);
    around.cores[0] = CoreLoad {
        core: 0,
        steal: 0.0,
        softirq: 0.8,
        idle: 0.0,
    };
    around.cores[1].idle = 1.0;
    assert_eq!(of_delay(&around).0, SlaCause::Overload);
    around.cores[0].softirq = 0.1;
    assert_eq!(of_delay(&around).0, SlaCause::Neighbour);
    around.cores[0].idle = 0.5;
    assert_eq!(of_delay(&around), (SlaCause::Unknown, "-".to_owned()));
}

#[test]
fn the_hop_that_has_become_dear_is_named() {
    let mut around = Circumstances {
        workers: Vec::new(),
        cores: Vec::new(),
        ..worker(0.0, 0.0)
    };
    around.hops[0].counted.samples = 2;
    around.hops[0].counted.sampled_ns = 390;
    assert_eq!(of_delay(&around).1, "-");
    around.hops[0].counted.sampled_ns = 500;
    assert_eq!(of_delay(&around), (SlaCause::Unknown, "filter".to_owned()));
}
