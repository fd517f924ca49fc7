//! Two commands at the same time have the same result as two commands in sequence.

use std::path::Path;
use std::process::Output;

use serde_json::Value;

use crate::common::chains::KERNEL;
use crate::common::port_pair::PortPair;
use crate::common::{Myelin, skip_unless_root};

const ROUNDS: usize = 10;

/// Runs two commands at the same time.
fn run_together(myelin: &Myelin, commands: [&[&str]; 2]) -> [Output; 2] {
    let started = commands.map(|arguments| {
        let mut command = myelin.command(arguments);
        command.stdout(std::process::Stdio::piped());
        command.stderr(std::process::Stdio::piped());
        command.spawn().expect("the client starts")
    });
    started.map(|client| client.wait_with_output().expect("the command ends"))
}

fn up_together(myelin: &Myelin, files: [&Path; 2]) -> [Output; 2] {
    let [first, second] =
        files.map(|file| ["up", file.to_str().expect("the path is UTF-8"), "--json"]);
    run_together(myelin, [&first, &second])
}

/// Parses the output of an `up --json` that must have succeeded.
fn parse_up(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{}", read_stderr(output));
    serde_json::from_slice(&output.stdout).expect("the output is JSON")
}

fn read_stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Removes two chains at the same time.
fn down_together(myelin: &Myelin, names: [&str; 2]) {
    let [first, second] = names.map(|name| myelin.chain_name(name));
    for output in run_together(myelin, [&["down", &first], &["down", &second]]) {
        assert!(output.status.success(), "{}", read_stderr(&output));
    }
    myelin.expect_chains(0);
}

/// Formats a chain in user space.
fn format_chain(name: &str, port: u16, spec: &str) -> String {
    format!(
        "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: {{ name: @{name} }}
spec:
  match: {{ protocol: udp, destination: 10.0.0.2/32, destinationPort: {port} }}
{spec}
  functions: [ {{ name: f, kind: forward, space: user }} ]
"
    )
}

/// Repeats a round in one instance; asserts that nothing is left at the end.
fn repeat_rounds(round: impl Fn(&Myelin)) {
    let myelin = Myelin::new_shared();
    for _ in 0..ROUNDS {
        round(&myelin);
    }
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn two_ups_on_one_port_share_the_worker() {
    if skip_unless_root() {
        return;
    }
    let ports = PortPair::new();
    let before = ports.show_links();
    let [one, other] = [("a", 9000), ("b", 9001)].map(|(name, port)| format_chain(name, port, ""));
    repeat_rounds(|myelin| {
        let files = [&one, &other].map(|text| myelin.write_file(&ports.add_to(text)));
        for output in up_together(myelin, [&files[0], &files[1]]) {
            assert_eq!(parse_up(&output)[0]["change"], "created");
        }
        let worker = |name| myelin.read_status(name)["worker"]["pid"].clone();
        assert_eq!(worker("a"), worker("b"));
        for (name, port) in [("a", 9000), ("b", 9001)] {
            ports.send_ten(port);
            let packets = || myelin.read_status(name)["packets_out"].clone();
            crate::common::wait_for("ten packets", || packets() == 10);
            assert_eq!(packets(), 10, "{name}");
        }
        down_together(myelin, ["a", "b"]);
        assert_eq!(ports.show_links(), before);
    });
}

/// The chains of one owner use the queues of the port; the chain of the other owner is distributed.
#[test]
fn two_ups_of_different_owners_on_one_port_get_different_mappings() {
    if skip_unless_root() {
        return;
    }
    let ports = PortPair::new();
    let before = ports.show_links();
    let [one, other] = [("a", 9000), ("b", 9001)].map(|(name, port)| {
        let text = format_chain(name, port, "");
        text.replace("name: @", &format!("namespace: owner-{name}, name: @"))
    });
    repeat_rounds(|myelin| {
        let files = [&one, &other].map(|text| myelin.write_file(&ports.add_to(text)));
        let mut mappings = up_together(myelin, [&files[0], &files[1]])
            .map(|output| parse_up(&output)[0]["plan"]["mapping"].to_string());
        mappings.sort();
        assert_eq!(mappings, ["\"compact\"", "\"distributed\""]);
        down_together(myelin, ["a", "b"]);
        assert_eq!(ports.show_links(), before);
    });
}

#[test]
fn one_of_two_ups_with_different_worker_settings_is_refused() {
    if skip_unless_root() {
        return;
    }
    let ports = PortPair::new();
    let one = format_chain("a", 9000, "  worker: { batch: 8 }");
    let other = format_chain("b", 9001, "  worker: { batch: 16 }");
    repeat_rounds(|myelin| {
        let files = [&one, &other].map(|text| myelin.write_file(&ports.add_to(text)));
        let outputs = up_together(myelin, [&files[0], &files[1]]);
        let refused: Vec<_> = outputs
            .iter()
            .filter(|output| !output.status.success())
            .collect();
        let errors: Vec<_> = refused.iter().map(|output| read_stderr(output)).collect();
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(errors[0].contains("spec.worker differs"), "{errors:?}");
        let admitted = myelin.expect_chains(1)[0]["chain"]
            .as_str()
            .expect("the name is a string")
            .to_owned();
        myelin.run_ok(&["down", &admitted]);
    });
}

#[test]
fn two_ups_or_downs_of_one_chain_run_one_after_the_other() {
    if skip_unless_root() {
        return;
    }
    repeat_rounds(|myelin| {
        let networks = ["192.0.2.0/24", "198.51.100.0/24"];
        let files =
            networks.map(|network| myelin.write_file(&KERNEL.replace("192.0.2.0/24", network)));
        let outputs = up_together(myelin, [&files[0], &files[1]]);
        let ups = outputs.each_ref().map(|output| parse_up(output)[0].clone());
        let second = ups.iter().position(|up| up["change"] == "changed");
        let second = second.unwrap_or_else(|| panic!("{ups:?}"));
        assert_eq!(ups[1 - second]["change"], "created");
        assert_eq!(
            (&ups[1 - second]["generation"], &ups[second]["generation"]),
            (&0.into(), &1.into())
        );
        assert_eq!(myelin.expect_chains(1)[0]["generation"], 1);
        // The file of the later `up` is deployed.
        let paths = files
            .each_ref()
            .map(|file| file.to_str().expect("the path is UTF-8"));
        let up = myelin.run_json(&["up", paths[second], "--json"]);
        assert_eq!(up[0]["change"], "unchanged");
        // The same file twice, for a running chain and for a chain that does not run.
        for (is_deployed, expected) in [
            (true, ["unchanged", "unchanged"]),
            (false, ["created", "unchanged"]),
        ] {
            if !is_deployed {
                myelin.run_ok(&["down", &myelin.chain_name("k")]);
            }
            let file = &*files[second];
            let outputs = up_together(myelin, [file, file]);
            let mut changes = outputs.map(|output| parse_up(&output)[0]["change"].clone());
            changes.sort_by_key(Value::to_string);
            assert_eq!(changes, expected);
        }
        assert_eq!(myelin.probe("k", 64, 10)["lost"], 0);
        // The second of two `down` fails because the chain no longer runs.
        let name = myelin.chain_name("k");
        let outputs = run_together(myelin, [&["down", &name], &["down", &name]]);
        assert_eq!(
            outputs
                .iter()
                .filter(|output| output.status.success())
                .count(),
            1
        );
        myelin.expect_chains(0);
    });
}

/// An agent that reserved names one by one would deadlock here.
#[test]
fn two_ups_with_the_same_chains_in_opposite_order_do_not_deadlock() {
    if skip_unless_root() {
        return;
    }
    repeat_rounds(|myelin| {
        let [one, other] = ["a", "b"].map(|name| KERNEL.replace("@k", &format!("@{name}")));
        let files = [
            myelin.write_file(&format!("{one}---{other}")),
            myelin.write_file(&format!("{other}---{one}")),
        ];
        let outputs = up_together(myelin, [&files[0], &files[1]]);
        let mut changes: Vec<_> = outputs.iter().flat_map(parse_up).collect();
        changes.sort_by_key(|up| up["change"].to_string());
        let changes: Vec<_> = changes
            .iter()
            .map(|up| up["change"].as_str().expect("the reply names the change"))
            .collect();
        assert_eq!(changes, ["created", "created", "unchanged", "unchanged"]);
        myelin.expect_chains(2);
        down_together(myelin, ["a", "b"]);
    });
}

#[test]
fn down_of_one_chain_of_a_pair_during_up_of_both_keeps_the_pair_consistent() {
    if skip_unless_root() {
        return;
    }
    let there = format_chain("a", 9000, "  reverse: @b");
    let back = format_chain("b", 9000, "")
        .replace("destination: 10.0.0.2", "source: 10.0.0.2")
        .replace("destinationPort", "sourcePort");
    repeat_rounds(|myelin| {
        let file = myelin.write_file(&format!("{there}---{back}"));
        let up = ["up", file.to_str().expect("the path is UTF-8"), "--json"];
        myelin.run_ok(&up);
        let down = ["down", &*myelin.chain_name("a")];
        let [up_output, removed] = run_together(myelin, [&up, &down]);
        assert!(removed.status.success(), "{}", read_stderr(&removed));
        let change = parse_up(&up_output)[0]["change"].clone();
        // `up` before `down` leaves one chain; `down` before `up` leaves both.
        let count = if change == "unchanged" { 1 } else { 2 };
        let list = myelin.expect_chains(count);
        if change != "unchanged" {
            assert_eq!(change, "created");
            assert_eq!(
                list[0]["ingress"], list[1]["egress"],
                "both chains use the same interfaces"
            );
            assert_eq!(myelin.probe("a", 64, 10)["lost"], 0);
            myelin.run_ok(&["down", &myelin.chain_name("a")]);
        }
        myelin.run_ok(&["down", &myelin.chain_name("b")]);
    });
}

#[test]
fn one_of_two_ups_whose_contracts_exclude_each_other_is_admitted() {
    if skip_unless_root() {
        return;
    }
    // The slack of each contract, 1 ms, is too small for the other chain.
    let myelin = Myelin::new_shared();
    let text = |name: &str, latency_us: u64| {
        let sla = format!("  sla: {{ rate: 1kpps, burst: 8, latency: {latency_us}us }}");
        format_chain(name, 9000, &sla)
    };
    let plan = myelin.write_file(&text("a", 900_000));
    let plan = myelin.run_json(&["plan", plan.to_str().expect("the path is UTF-8"), "--json"]);
    let bound_ns = plan[0]["bound"]["bound_ns"]
        .as_u64()
        .expect("the plan has a bound");
    let latency_us = bound_ns.div_ceil(1000) + 1000;
    let files = ["a", "b"].map(|name| myelin.write_file(&text(name, latency_us)));
    for _ in 0..ROUNDS {
        let outputs = up_together(&myelin, [&files[0], &files[1]]);
        let codes = outputs.each_ref().map(|output| output.status.code());
        assert!(
            codes == [Some(0), Some(3)] || codes == [Some(3), Some(0)],
            "{codes:?}: {}{}",
            read_stderr(&outputs[0]),
            read_stderr(&outputs[1])
        );
        let up = codes
            .iter()
            .position(|code| *code == Some(0))
            .expect("one command succeeded");
        let name = myelin.chain_name(["a", "b"][up]);
        assert_eq!(myelin.expect_chains(1)[0]["chain"], *name);
        assert!(
            read_stderr(&outputs[1 - up]).contains("is refused"),
            "{}",
            read_stderr(&outputs[1 - up])
        );
        myelin.run_ok(&["down", &name]);
    }
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}
