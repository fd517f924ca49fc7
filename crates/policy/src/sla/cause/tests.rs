//! Causes of constructed seconds.

use myelin_packet::HopCounters;

use super::*;
use crate::sla::Losses;

fn late_breach() -> Breach {
    Breach {
        term: SlaTerm::Latency,
        measured: 900.0,
        ratio: 3.0,
    }
}

fn loss_breach() -> Breach {
    Breach {
        term: SlaTerm::Loss,
        measured: 5.0,
        ratio: 5.0,
    }
}

fn context_of_worker(busy: f64, waited: f64) -> Context {
    Context {
        workers: vec![WorkerLoad {
            pid: 7,
            core: Some(1),
            busy,
            waited,
            first_position: Some(1),
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
        ..Context::default()
    }
}

fn find_cause_and_hop(
    breach: &Breach,
    second: &SlaWindow,
    context: &Context,
) -> (SlaCause, String) {
    let finding = find_cause(breach, 99.0, second, context);
    (finding.cause, finding.hop)
}

fn find_delay_cause(context: &Context) -> (SlaCause, String) {
    find_cause_and_hop(&late_breach(), &SlaWindow::default(), context)
}

fn window_with_losses(losses: Losses) -> SlaWindow {
    SlaWindow {
        lost: losses,
        ..SlaWindow::default()
    }
}

#[test]
fn a_busy_worker_is_overloaded_and_a_waiting_worker_has_a_neighbour() {
    let coder = "coder".to_owned();
    assert_eq!(
        find_delay_cause(&context_of_worker(0.95, 0.0)),
        (SlaCause::Overload, coder.clone())
    );
    assert_eq!(
        find_delay_cause(&context_of_worker(0.3, 0.2)),
        (SlaCause::Neighbour, coder.clone())
    );
    // A full worker is overloaded, even if it waited a little.
    assert_eq!(
        find_delay_cause(&context_of_worker(0.95, 0.04)),
        (SlaCause::Overload, coder.clone())
    );
    // Steal on another core does not matter.
    assert_eq!(
        find_delay_cause(&context_of_worker(0.3, 0.0)).0,
        SlaCause::Unknown
    );
    let mut stolen = context_of_worker(0.3, 0.02);
    stolen.cores[1].steal = 0.05;
    assert_eq!(find_delay_cause(&stolen), (SlaCause::Steal, coder));
}

#[test]
fn waiting_explains_lateness_if_it_reaches_the_share_above_the_percentile() {
    let context = context_of_worker(0.3, 0.03);
    let cause_at =
        |percentile| find_cause(&late_breach(), percentile, &SlaWindow::default(), &context).cause;
    assert_eq!(cause_at(99.0), SlaCause::Neighbour);
    assert_eq!(cause_at(95.0), SlaCause::Unknown);
}

#[test]
fn a_worker_full_of_another_chains_packets_has_a_neighbour() {
    let mut context = context_of_worker(0.99, 0.0);
    context.workers[0].neighbour = Some(("bulk".to_owned(), 0.8));
    let finding = find_cause(&late_breach(), 99.0, &SlaWindow::default(), &context);
    assert_eq!(finding.cause, SlaCause::Neighbour);
    assert!(finding.evidence.concat().contains("80 %"), "{finding:?}");
    assert!(finding.evidence.concat().contains("bulk"), "{finding:?}");
}

#[test]
fn a_polling_worker_is_judged_by_its_rings() {
    let mut context = context_of_worker(1.0, 0.0);
    context.workers[0].is_polling = true;
    assert_eq!(find_delay_cause(&context).0, SlaCause::Unknown);
    context.ring = Some(1);
    let overflow = window_with_losses(Losses {
        ring: 9,
        ..Losses::default()
    });
    assert_eq!(
        find_cause_and_hop(&loss_breach(), &overflow, &context),
        (SlaCause::Overload, "coder".to_owned())
    );
    context.workers[0].waited = 0.2;
    assert_eq!(
        find_cause_and_hop(&loss_breach(), &overflow, &context).0,
        SlaCause::Neighbour
    );
}

#[test]
fn a_worker_whose_packets_waited_for_its_turn_shares_its_core_badly() {
    let mut context = context_of_worker(0.3, 0.0);
    context.workers[0].turn_waited = 0.4;
    let finding = find_cause(&late_breach(), 99.0, &SlaWindow::default(), &context);
    assert_eq!((finding.cause, &*finding.hop), (SlaCause::Sharing, "coder"));
    let expected = "its packets waited 40.0 % of the second for its turn on core 1";
    assert_eq!(finding.evidence[1], expected);
    // What the hypervisor or the kernel took comes first; too short a wait explains nothing.
    context.workers[0].waited = 0.2;
    let neighbour = find_cause(&late_breach(), 99.0, &SlaWindow::default(), &context);
    assert_eq!(neighbour.cause, SlaCause::Neighbour);
    let mut context = context_of_worker(0.3, 0.0);
    context.workers[0].turn_waited = 0.005;
    assert_eq!(
        find_cause(&late_breach(), 99.0, &SlaWindow::default(), &context).cause,
        SlaCause::Unknown
    );
}

#[test]
fn lost_packets_are_evidence_of_a_late_second() {
    let second = window_with_losses(Losses {
        ring: 20,
        ..Losses::default()
    });
    let finding = find_cause(&late_breach(), 99.0, &second, &context_of_worker(0.95, 0.0));
    assert_eq!(finding.cause, SlaCause::Overload);
    let last = finding.evidence.last().map(String::as_str);
    assert_eq!(last, Some("20 packets lost: ring"));
}

#[test]
fn the_place_that_lost_most_is_the_cause() {
    let context = context_of_worker(0.99, 0.0);
    let mut second = window_with_losses(Losses {
        function: 10,
        ring: 3,
        unseen: 2,
        ..Losses::default()
    });
    second.lost_in = [("filter".to_owned(), 8), ("coder".to_owned(), 2)].into();
    let finding = find_cause(&loss_breach(), 99.0, &second, &context);
    assert_eq!(finding.cause, SlaCause::Function);
    assert_eq!(finding.hop, "filter");
    assert_eq!(
        finding.evidence,
        ["function filter dropped 8 of 1000 packets"]
    );
    let link = window_with_losses(Losses {
        link: 4,
        ..Losses::default()
    });
    assert_eq!(
        find_cause_and_hop(&loss_breach(), &link, &context),
        (SlaCause::Link, "egress".to_owned())
    );
}

#[test]
fn packets_missing_after_a_restart_are_a_failure() {
    let unseen = window_with_losses(Losses {
        unseen: 4,
        ..Losses::default()
    });
    let mut context = context_of_worker(0.1, 0.0);
    assert_eq!(
        find_cause_and_hop(&loss_breach(), &unseen, &context).0,
        SlaCause::Unknown
    );
    context.workers[0].restarted = true;
    assert_eq!(
        find_cause_and_hop(&loss_breach(), &unseen, &context),
        (SlaCause::Failure, "coder".to_owned())
    );
    assert_eq!(find_delay_cause(&context).0, SlaCause::Failure);
    let door = window_with_losses(Losses {
        door: 4,
        ..Losses::default()
    });
    assert_eq!(
        find_cause_and_hop(&loss_breach(), &door, &context).0,
        SlaCause::Failure
    );
}

#[test]
fn a_kernel_chain_is_explained_by_any_core() {
    let mut context = Context {
        workers: Vec::new(),
        ..context_of_worker(0.0, 0.0)
    };
    assert_eq!(find_delay_cause(&context).0, SlaCause::Steal);
    context.cores[0] = CoreLoad {
        core: 0,
        steal: 0.0,
        softirq: 0.8,
        idle: 0.0,
    };
    context.cores[1].idle = 1.0;
    assert_eq!(find_delay_cause(&context).0, SlaCause::Overload);
    context.cores[0].softirq = 0.1;
    assert_eq!(find_delay_cause(&context).0, SlaCause::Neighbour);
    context.cores[0].idle = 0.5;
    assert_eq!(
        find_delay_cause(&context),
        (SlaCause::Unknown, "-".to_owned())
    );
}

#[test]
fn the_function_whose_cost_grew_is_the_hop() {
    let mut context = Context {
        workers: Vec::new(),
        cores: Vec::new(),
        ..context_of_worker(0.0, 0.0)
    };
    context.hops[0].counted.samples = 2;
    context.hops[0].counted.sampled_ns = 390;
    assert_eq!(find_delay_cause(&context).1, "-");
    context.hops[0].counted.sampled_ns = 500;
    assert_eq!(
        find_delay_cause(&context),
        (SlaCause::Unknown, "filter".to_owned())
    );
}
