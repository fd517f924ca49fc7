//! Tests the decision about a plan by its mean cost, and the warnings of a plan.

#[allow(dead_code)]
mod common;

use common::{EXTERNAL, FIREWALL, FORWARD, XOR, chain, machine, pinned, planned};
use myelin_packet::FragmentHandling;
use myelin_planner::{Costs, plan};
use myelin_spec::Space;

#[test]
fn latency_below_the_predicted_cost_is_refused() {
    let (kernel, user) = (pinned(FIREWALL, Space::Kernel), pinned(XOR, Space::User));
    let tried = |sla| planned(&[&kernel, &user], sla);
    let plan = tried("  sla: { latency: 2us }\n");
    assert!(!plan.admitted);
    let reason = plan.refusal.unwrap();
    assert!(reason.starts_with("the predicted cost of "), "{reason}");
    assert!(
        reason.contains("above the agreed latency of 2us; the largest part is `f1` "),
        "{reason}"
    );
    let plan = tried("  sla: { latency: 1ms, roundTrip: 2us }\n");
    assert!(
        plan.refusal
            .unwrap()
            .contains("the agreed roundTrip of 2us")
    );
    let plan = tried("  sla: { latency: 350us }\n");
    assert!(plan.admitted && plan.refusal.is_none());
}

#[test]
fn plan_warns_of_late_wake_ups_busy_cores_and_unused_workers() {
    let user = pinned(XOR, Space::User);
    let quiet = planned(&[&user], "  sla: { latency: 350us, rate: 20kpps }\n");
    assert_eq!(quiet.warnings, [""; 0]);

    let sleeping = planned(&[&user], "  sla: { latency: 20us }\n");
    assert!(sleeping.warnings[0].starts_with("a packet that wakes the worker takes about "));
    assert!(
        sleeping
            .worst_case_note
            .contains("for a wake-up of the worker")
    );
    let spinning = planned(
        &[&user],
        "  sla: { latency: 20us }\n  worker: { idle: spin }\n",
    );
    assert_eq!(spinning.warnings, [""; 0]);
    assert!(!spinning.worst_case_note.contains("wake-up"));

    let busy = planned(&[&user], "  sla: { rate: 1Mpps }\n").warnings;
    assert!(
        busy[0].starts_with("at 1000000 packets/s the worker of the chain"),
        "{busy:?}"
    );
    let busy = planned(&[FORWARD], "  sla: { rate: 100Gbit }\n").warnings;
    assert!(busy[0].contains("the kernel part of the chain"), "{busy:?}");

    let unused = planned(&[FORWARD], "  worker: { batch: 32 }\n").warnings;
    assert_eq!(
        unused,
        ["`spec.worker` has no effect: no function runs in user space"]
    );
}

#[test]
fn fragments_that_bypass_a_guard_give_a_warning() {
    let warnings = |functions: &[&str], fragments, port| {
        let mut chain = chain(functions, "");
        chain.matches.fragments = fragments;
        chain.matches.destination_port = port;
        plan(&chain, &Costs::default(), &machine())
            .unwrap()
            .warnings
    };
    let found = warnings(&[XOR, FIREWALL], FragmentHandling::Pass, Some(9000));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("IP fragments bypass `f1`"), "{found:?}");
    for quiet in [
        warnings(&[XOR, FIREWALL], FragmentHandling::Follow, Some(9000)),
        warnings(&[XOR, FIREWALL], FragmentHandling::Pass, None),
        warnings(&[XOR], FragmentHandling::Pass, Some(9000)),
    ] {
        assert_eq!(quiet, [""; 0]);
    }
}

#[test]
fn bypassing_a_guard_on_failure_gives_a_warning() {
    let functions = [XOR, FIREWALL, FORWARD];
    let warnings = planned(&functions, "  onFailure: pass\n").warnings;
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(
        warnings[0].contains("`onFailure: pass`") && warnings[0].contains("bypass `f1` when"),
        "{warnings:?}"
    );
    for more in ["", "  onFailure: drop\n"] {
        assert_eq!(planned(&functions, more).warnings, [""; 0], "{more}");
    }
    let unguarded = planned(&[XOR], "  onFailure: pass\n").warnings;
    assert_eq!(unguarded, [""; 0]);
}

#[test]
fn costs_use_the_profiles_frame_length() {
    assert_eq!(
        planned(&[XOR], "").frame_bytes,
        myelin_planner::REFERENCE_FRAME_BYTES
    );
    let large = planned(&[XOR], "  sla: { rate: [ 1kpps, 11.2Mbit ] }\n");
    assert_eq!(large.frame_bytes, 1400);
    assert!(large.predicted_ns > planned(&[XOR], "").predicted_ns);
    let tiny = planned(&[XOR], "  sla: { rate: [ 1kpps, 8kbit ] }\n");
    assert_eq!(tiny.frame_bytes, 60);
}

#[test]
fn latency_below_the_cost_around_a_black_box_is_refused() {
    let plan = planned(&[EXTERNAL], "  sla: { latency: 100ns }\n");
    assert!(!plan.admitted);
    assert!(planned(&[EXTERNAL], "  sla: { latency: 1ms }\n").admitted);
}
