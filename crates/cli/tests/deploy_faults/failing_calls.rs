//! If a system call fails during `up` or `down`, the agent undoes the step and keeps running.

use nix::errno::Errno;

use crate::common::port_pair::PortPair;
use crate::common::taps::skip_without_dpdk;
use crate::common::{Myelin, wait_for};
use crate::fixtures::{self, ChainFixture};
use crate::steps::{Fault, SteppedAgent, choose_steps, for_each_fixture};

/// Number of calls that fail, one after the other, during `up` and during `down`.
const UP_FAILURES: u32 = 12;
const DOWN_FAILURES: u32 = 5;

fn assert_failed_calls_are_undone(fixture: &ChainFixture) {
    let myelin = Myelin::new_shared();
    let file = myelin.write_file(&fixture.text);
    let up = ["up", file.to_str().expect("the path is UTF-8")];
    let name = myelin.chain_name(fixture.name);
    let down = ["down", &*name];
    let links = || fixture.ports.as_ref().map(PortPair::show_links);
    let before = links();
    let runs = |myelin: &Myelin| myelin.run_ok(&["ps"]).contains(&name);
    let mut agent = SteppedAgent::start(&myelin);
    let idle = myelin.list_leftovers();
    let (up_steps, down_steps) = agent.count_steps_of_both(&myelin, &up, &down);

    for step in choose_steps(up_steps, UP_FAILURES) {
        let error = if step % 2 == 0 {
            Errno::EPERM
        } else {
            Errno::ENOMEM
        };
        let output = agent.run_with_fault(Fault::Fail(step, error), || myelin.run(&up));
        let last = agent.read_step_log();
        let last = last.lines().nth(step as usize - 1).unwrap_or_default();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        let at = format!("up, {error} at step {step}: {last}: {stderr}");
        println!("{at}");
        assert!(agent.is_alive(), "{at}\n{}", agent.read_log());
        assert!(
            !agent.read_log().contains("panicked"),
            "{at}\n{}",
            agent.read_log()
        );
        if !output.status.success() {
            assert_eq!(output.status.code(), Some(1), "{at}");
            assert!(stderr.contains(&name), "{at}");
            assert!(!runs(&myelin), "{at}");
            wait_for("the agent to undo the step", || {
                myelin.list_leftovers() == idle
            });
            assert_eq!(myelin.list_leftovers(), idle, "{at}\n{}", agent.read_log());
            assert_eq!(links(), before, "{at}");
            myelin.run_ok(&up);
        }
        assert!(runs(&myelin), "{at}\n{}", agent.read_log());
        myelin.run_ok(&down);
        assert_eq!(myelin.list_leftovers(), idle, "{at}\n{}", agent.read_log());
    }
    for step in choose_steps(down_steps, DOWN_FAILURES) {
        myelin.run_ok(&up);
        let output = agent.run_with_fault(Fault::Fail(step, Errno::ENOMEM), || myelin.run(&down));
        let last = agent.read_step_log();
        let last = last.lines().nth(step as usize - 1).unwrap_or_default();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        let at = format!("down, step {step}: {last}: {stderr}");
        println!(
            "{at}{}",
            agent.read_log().lines().last().unwrap_or_default()
        );
        assert!(agent.is_alive(), "{at}\n{}", agent.read_log());
        assert!(
            !agent.read_log().contains("panicked"),
            "{at}\n{}",
            agent.read_log()
        );
        assert!(!runs(&myelin), "{at}\n{}", agent.read_log());
        // The agent removes the remaining objects when it stops.
        if myelin.list_leftovers() != idle {
            agent.stop();
            assert_eq!(myelin.list_leftovers(), Vec::<String>::new(), "{at}");
            assert_eq!(links(), before, "{at}");
            agent = SteppedAgent::start(&myelin);
        }
    }
    agent.stop();
    assert_eq!(links(), before);
    myelin.assert_clean();
}

for_each_fixture! {
    assert_failed_calls_are_undone:
    a_failed_call_is_undone_for_a_topology: fixtures::topology(), false;
    a_failed_call_is_undone_for_a_kernel_chain: fixtures::kernel_chain(), false;
    a_failed_call_is_undone_for_a_chain_of_both_spaces: fixtures::mixed_chain(), false;
    a_failed_call_is_undone_for_a_pipeline: fixtures::pipeline_chain(), false;
    a_failed_call_is_undone_for_a_distributed_chain: fixtures::distributed_chain(), false;
    a_failed_call_is_undone_for_a_black_box: fixtures::black_box("x", 9000, "sleep, infinity", "1ms"), false;
    a_failed_call_is_undone_for_a_chain_on_dpdk_devices: fixtures::chain_on_dpdk_devices(), skip_without_dpdk();
    a_failed_call_is_undone_for_a_chain_on_interfaces: fixtures::chain_on_interfaces(), false;
}
