//! `down --all` cleans up after an agent that was killed at any step of `up` or `down`.

use crate::common::port_pair::PortPair;
use crate::common::taps::skip_without_dpdk;
use crate::common::{Myelin, wait_for};
use crate::fixtures::{self, ChainFixture, list_leftover_files};
use crate::steps::{Fault, SteppedAgent, choose_steps, for_each_fixture};

/// Number of steps at which the agent is killed, during `up` and during `down`.
const UP_KILLS: u32 = 11;
const DOWN_KILLS: u32 = 5;

fn assert_kills_are_cleaned_up(fixture: &ChainFixture) {
    let myelin = Myelin::new_shared();
    let file = myelin.write_file(&fixture.text);
    let up = ["up", file.to_str().expect("the path is UTF-8")];
    let name = myelin.chain_name(fixture.name);
    let down = ["down", &*name];
    let links = || fixture.ports.as_ref().map(PortPair::show_links);
    let before = links();

    let agent = SteppedAgent::start(&myelin);
    let (up_steps, down_steps) = agent.count_steps_of_both(&myelin, &up, &down);
    agent.stop();
    myelin.assert_clean();

    let up_steps = choose_steps(up_steps, UP_KILLS)
        .into_iter()
        .map(|step| (true, step));
    let down_steps = choose_steps(down_steps, DOWN_KILLS);
    let down_steps = down_steps.into_iter().map(|step| (false, step));
    for (is_up, step) in up_steps.chain(down_steps) {
        let mut agent = SteppedAgent::start(&myelin);
        if !is_up {
            myelin.run_ok(&up);
        }
        let command = if is_up { &up } else { &down };
        let output = agent.run_with_fault(Fault::Kill(step), || myelin.run(command));
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!stderr.contains("panicked"), "{stderr}");
        // The number of steps may differ by one, so `up` may end before the chosen step.
        if !output.status.success() {
            wait_for("the end of the agent", || !agent.is_alive());
            assert!(!agent.is_alive(), "step {step}: {stderr}");
        }
        let last = agent
            .read_step_log()
            .lines()
            .last()
            .unwrap_or_default()
            .to_owned();
        agent.kill();
        myelin.run_ok(&["down", "--all"]);
        let at = format!("{command:?}, killed at step {step}: {last}");
        assert_eq!(myelin.list_leftovers(), Vec::<String>::new(), "{at}");
        assert_eq!(list_leftover_files(&myelin), Vec::<String>::new(), "{at}");
        assert_eq!(links(), before, "{at}");
    }
}

for_each_fixture! {
    assert_kills_are_cleaned_up:
    down_all_removes_a_kernel_chain: fixtures::kernel_chain(), false;
    down_all_removes_a_chain_of_both_spaces: fixtures::mixed_chain(), false;
    down_all_removes_a_topology: fixtures::topology(), false;
    down_all_removes_a_pipeline: fixtures::pipeline_chain(), false;
    down_all_removes_a_distributed_chain: fixtures::distributed_chain(), false;
    down_all_removes_a_black_box: fixtures::black_box("x", 9000, "sleep, infinity", "1ms"), false;
    down_all_removes_a_chain_on_dpdk_devices: fixtures::chain_on_dpdk_devices(), skip_without_dpdk();
    down_all_removes_a_chain_on_interfaces: fixtures::chain_on_interfaces(), false;
}
