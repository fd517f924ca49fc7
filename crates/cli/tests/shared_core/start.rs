//! A preemptor that is killed while it starts.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use super::{
    assert_no_answer_missing, boxes_of, chain, children, classes, expect_core, preemptor,
    two_pollers,
};
use crate::common::{Myelin, kill, skip_unless_root, skip_without, wait_for};

/// Kills the first preemptor of an agent, as soon as it is there. Returns whether there was one.
fn kill_first_preemptor(agent: &Value, stop: &AtomicBool) -> bool {
    while !stop.load(Ordering::Relaxed) {
        if let Some(preemptor) = children(agent, "preemptor --name").first() {
            kill(preemptor);
            return true;
        }
    }
    false
}

#[test]
fn a_preemptor_that_is_killed_while_it_starts_leaves_no_half_of_a_chain() {
    if skip_unless_root() || skip_without("python3") {
        return;
    }
    let myelin = Myelin::new();
    // A chain without a preemptor, so the agent is there.
    let keeper = "    - { name: keep, kind: forward, space: kernel }\n".to_owned();
    let keeper = myelin.write_file(&chain("keeper", 9001, &[keeper]));
    myelin.run_ok(&["up", keeper.to_str().unwrap()]);
    let agent = Value::from(myelin.read_agent_pid());
    let more = "sharing: { policy: unis, mechanism: flip }";
    let file = myelin.write_file(&two_pollers("b", more));
    for _ in 0..3 {
        let stop = AtomicBool::new(false);
        let (output, has_killed) = std::thread::scope(|scope| {
            let killer = scope.spawn(|| kill_first_preemptor(&agent, &stop));
            let output = myelin.run(&["up", file.to_str().unwrap()]);
            stop.store(true, Ordering::Relaxed);
            (output, killer.join().expect("the thread ends"))
        });
        assert!(has_killed, "{output:?}");
        if output.status.success() {
            // It died after its start, or the agent had started another one.
            expect_core(&myelin, 2);
            assert_no_answer_missing(&myelin, "b", "after the death of the preemptor");
            let boxes = boxes_of(&myelin, "b");
            preemptor(&myelin);
            wait_for("turns", || classes(&boxes) == ["FF"]);
            myelin.run_ok(&["down", &myelin.chain_name("b")]);
        } else {
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(error.contains("cannot give turns on core 1"), "{error}");
        }
        myelin.expect_chains(1);
        wait_for("the end of all preemptors", || {
            children(&agent, "preemptor --name").is_empty()
        });
    }
    // Nothing is in the way of the next one.
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    expect_core(&myelin, 2);
    assert_no_answer_missing(&myelin, "b", "the next preemptor");
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}
