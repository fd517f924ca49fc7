//! A step that fails at any of its system calls undoes itself, and the agent goes on.

use nix::errno::Errno;

use crate::common::port_pair::PortPair;
use crate::common::taps::skip_without_dpdk;
use crate::common::{Myelin, wait_for};
use crate::forms::{self, Form};
use crate::steps::{Agent, At, chosen, for_forms};

/// Calls that fail on the way up, and on the way down.
const UP: u32 = 12;
const DOWN: u32 = 5;

fn fails_at_any_step(form: &Form) {
    let myelin = Myelin::beside_others();
    let file = myelin.file(&form.text);
    let up = ["up", file.to_str().expect("a path")];
    let name = myelin.chain(form.name);
    let down = ["down", &*name];
    let links = || form.ports.as_ref().map(PortPair::links);
    let before = links();
    let mut agent = Agent::start(&myelin);
    let idle = myelin.leftovers();
    let (up_steps, down_steps) = agent.count_both(&myelin, &up, &down);

    for step in chosen(up_steps, UP) {
        let error = if step % 2 == 0 {
            Errno::EPERM
        } else {
            Errno::ENOMEM
        };
        let output = agent.with(At::Fail(step, error), || myelin.run(&up));
        let last = agent.steps();
        let last = last.lines().nth(step as usize - 1).unwrap_or_default();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let at = format!("up, {error} at step {step}: {last}: {said}");
        println!("{at}");
        assert!(agent.is_alive(), "{at}\n{}", agent.said());
        assert!(!agent.said().contains("panicked"), "{at}\n{}", agent.said());
        if !output.status.success() {
            assert_eq!(output.status.code(), Some(1), "{at}");
            assert!(said.contains(&name), "{at}");
            assert_eq!(
                myelin.json(&["ps", "--json"]),
                serde_json::json!([]),
                "{at}"
            );
            wait_for("its undoing", || myelin.leftovers() == idle);
            assert_eq!(myelin.leftovers(), idle, "{at}\n{}", agent.said());
            assert_eq!(links(), before, "{at}");
            myelin.ok(&up);
        }
        myelin.expect_chains(1);
        myelin.ok(&down);
        assert_eq!(myelin.leftovers(), idle, "{at}\n{}", agent.said());
    }
    for step in chosen(down_steps, DOWN) {
        myelin.ok(&up);
        let output = agent.with(At::Fail(step, Errno::ENOMEM), || myelin.run(&down));
        let last = agent.steps();
        let last = last.lines().nth(step as usize - 1).unwrap_or_default();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let at = format!("down, step {step}: {last}: {said}");
        println!("{at}{}", agent.said().lines().last().unwrap_or_default());
        assert!(agent.is_alive(), "{at}\n{}", agent.said());
        assert!(!agent.said().contains("panicked"), "{at}\n{}", agent.said());
        myelin.expect_chains(0);
        // What could not be removed then is removed with the agent.
        if myelin.leftovers() != idle {
            agent.stop();
            assert_eq!(myelin.leftovers(), Vec::<String>::new(), "{at}");
            assert_eq!(links(), before, "{at}");
            agent = Agent::start(&myelin);
        }
    }
    agent.stop();
    assert_eq!(links(), before);
    myelin.assert_clean();
}

for_forms! {
    fails_at_any_step:
    a_call_fails_for_a_chain_in_the_kernel: forms::kernel_only(), false;
    a_call_fails_for_a_chain_in_both_spaces: forms::mixed(), false;
    a_call_fails_for_a_pipeline: forms::pipeline(), false;
    a_call_fails_for_a_distributed_chain: forms::distributed(), false;
    a_call_fails_for_a_black_box: forms::black_box("x", 9000, "sleep, infinity", "1ms"), false;
    a_call_fails_for_a_chain_between_devices: forms::devices(), skip_without_dpdk();
    a_call_fails_for_a_chain_between_interfaces: forms::between_interfaces(), false;
}
