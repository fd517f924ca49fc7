//! Tests the load of a core that placement starts from.

#[allow(dead_code)]
mod common;

use common::node::plan_on_node;
use common::{XOR, machine, named, pinned};
use myelin_planner::Costs;
use myelin_planner::admission::{CoreLoad, Ledger, Platform};
use myelin_planner::calculus::{RateLatency, SECOND, delay};
use myelin_planner::placement::CoreRoom;
use myelin_spec::Space;

const US: u128 = SECOND / 1_000_000;
/// The core of workers on a machine with two cores.
const WORKERS: u32 = 1;

fn load(ledger: &Ledger, core: u32) -> Option<CoreLoad> {
    ledger.core_load(core, &Platform::new(&Costs::default()))
}

/// Inserts a chain in user space between two interfaces. All chains share a worker.
fn insert(ledger: &mut Ledger, name: &str, sla: &str) {
    let user = pinned(XOR, Space::User);
    let ports = format!("  ports: {{ ingress: {name}-in, egress: {name}-out }}\n");
    let chain = named(name, &[&user], &format!("{ports}{sla}"));
    let (plan, booking) = plan_on_node(ledger, &chain, &machine());
    assert!(plan.admitted, "{:?}", plan.refusal);
    ledger.insert(booking);
}

#[test]
fn load_is_that_of_the_workers_and_the_tightest_promise_is_the_limit() {
    let mut ledger = Ledger::default();
    insert(&mut ledger, "free", "  sla: { rate: 10kpps, burst: 8 }\n");
    let free = load(&ledger, WORKERS).unwrap();
    assert!(free.load.long().rate > 0 && free.longest_fs.is_none());
    let other = load(&ledger, 0).unwrap();
    assert!(other.load.is_zero() && other.longest_fs.is_none());

    let agreed = "  sla: { rate: 10kpps, burst: 8, latency: 2ms }\n";
    insert(&mut ledger, "loose", agreed);
    let loose = load(&ledger, WORKERS).unwrap();
    assert!(loose.load.long().rate > free.load.long().rate);
    let now_fs = delay(&loose.load, &RateLatency::core(20 * US)).unwrap();
    let longest_fs = loose.longest_fs.unwrap();
    assert!((now_fs..2000 * US).contains(&longest_fs), "{longest_fs}");
    insert(&mut ledger, "tight", &agreed.replace("2ms", "1500us"));
    let tight = load(&ledger, WORKERS).unwrap();
    assert!(tight.longest_fs.unwrap() < longest_fs - 400 * US);
    let room = CoreRoom::of_ledger(&ledger, WORKERS, &Platform::new(&Costs::default()));
    assert_eq!(room.unwrap().longest_fs, tight.longest_fs);
}

/// All processes of a pipeline take time of its core, not only the first.
#[test]
fn load_of_a_pipeline_has_the_work_of_its_stages() {
    let user = pinned(XOR, Space::User);
    let with = |mapping: &str, functions: usize| {
        let more = format!(
            "  ports: {{ ingress: eth1, egress: eth2 }}\n  mapping: {mapping}\n  \
             worker: {{ sharing: {{ policy: cooperative, reads: 2 }}, batch: 16 }}\n  \
             sla: {{ rate: 1kpps, burst: 4, latency: 90ms, enforce: policer }}\n"
        );
        let chain = named("a", &vec![&*user; functions], &more);
        let mut ledger = Ledger::default();
        let (plan, booking) = plan_on_node(&ledger, &chain, &machine());
        assert!(plan.admitted, "{mapping}: {:?}", plan.refusal);
        ledger.insert(booking);
        let found = load(&ledger, WORKERS).unwrap();
        ledger.remove("a");
        assert!(load(&ledger, WORKERS).unwrap().load.is_zero());
        (found.load.long(), found.longest_fs.unwrap())
    };
    for functions in [2, 3] {
        let (compact, _) = with("compact", functions);
        let (pipeline, longest_fs) = with("pipeline", functions);
        // The rings cost more than the calls of one process.
        assert!(pipeline.rate > compact.rate, "{pipeline:?} {compact:?}");
        assert!(pipeline.burst > compact.burst, "{pipeline:?} {compact:?}");
        assert!(longest_fs > 0);
    }
}

#[test]
fn core_of_a_chain_without_a_rate_has_no_room_for_promises() {
    let mut ledger = Ledger::default();
    insert(&mut ledger, "best-effort", "");
    assert_eq!(load(&ledger, WORKERS), None);
    assert!(load(&ledger, 0).is_some());
}
