//! An agent killed between any two steps of a chain's way up or down leaves what `down --all`
//! removes.

use crate::common::port_pair::PortPair;
use crate::common::taps::skip_without_dpdk;
use crate::common::{Myelin, wait_for};
use crate::forms::{self, Form, left_files};
use crate::steps::{Agent, At, chosen, for_forms};

/// Steps at which the agent is killed on the way up, and on the way down.
const UP: u32 = 11;
const DOWN: u32 = 5;

fn killed_at_any_step(form: &Form) {
    let myelin = Myelin::beside_others();
    let file = myelin.file(&form.text);
    let up = ["up", file.to_str().expect("a path")];
    let name = myelin.chain(form.name);
    let down = ["down", &*name];
    let links = || form.ports.as_ref().map(PortPair::links);
    let before = links();

    let agent = Agent::start(&myelin);
    let (up_steps, down_steps) = agent.count_both(&myelin, &up, &down);
    agent.stop();
    myelin.assert_clean();

    let up_steps = chosen(up_steps, UP).into_iter().map(|step| (true, step));
    let down_steps = chosen(down_steps, DOWN);
    let down_steps = down_steps.into_iter().map(|step| (false, step));
    for (is_up, step) in up_steps.chain(down_steps) {
        let mut agent = Agent::start(&myelin);
        if !is_up {
            myelin.ok(&up);
        }
        let command = if is_up { &up } else { &down };
        let output = agent.with(At::Kill(step), || myelin.run(command));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!said.contains("panicked"), "{said}");
        // A step that waits for others may be one more or less the next time.
        if !output.status.success() {
            wait_for("its end", || !agent.is_alive());
            assert!(!agent.is_alive(), "step {step}: {said}");
        }
        let last = agent.steps().lines().last().unwrap_or_default().to_owned();
        agent.kill();
        myelin.ok(&["down", "--all"]);
        let at = format!("{command:?}, killed at step {step}: {last}");
        assert_eq!(myelin.leftovers(), Vec::<String>::new(), "{at}");
        assert_eq!(left_files(&myelin), Vec::<String>::new(), "{at}");
        assert_eq!(links(), before, "{at}");
    }
}

for_forms! {
    killed_at_any_step:
    on_the_way_of_a_chain_in_the_kernel: forms::kernel_only(), false;
    on_the_way_of_a_chain_in_both_spaces: forms::mixed(), false;
    on_the_way_of_a_pipeline: forms::pipeline(), false;
    on_the_way_of_a_distributed_chain: forms::distributed(), false;
    on_the_way_of_a_black_box: forms::black_box("x", 9000, "sleep, infinity", "1ms"), false;
    on_the_way_of_a_chain_between_devices: forms::devices(), skip_without_dpdk();
    on_the_way_of_a_chain_between_interfaces: forms::between_interfaces(), false;
}
