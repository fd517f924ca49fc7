//! Two files at once that want the same thing: what comes of it is what comes of one after the
//! other.

use std::path::Path;
use std::process::Output;

use serde_json::Value;

use crate::common::chains::KERNEL;
use crate::common::port_pair::PortPair;
use crate::common::{Myelin, skip_unless_root};

const ROUNDS: usize = 10;

/// The results of two commands that run at the same time.
fn at_once(myelin: &Myelin, commands: [&[&str]; 2]) -> [Output; 2] {
    let started = commands.map(|arguments| {
        let mut command = myelin.command(arguments);
        command.stdout(std::process::Stdio::piped());
        command.stderr(std::process::Stdio::piped());
        command.spawn().expect("a client")
    });
    started.map(|client| client.wait_with_output().expect("its end"))
}

fn up_at_once(myelin: &Myelin, files: [&Path; 2]) -> [Output; 2] {
    let [one, other] = files.map(|file| ["up", file.to_str().expect("a path"), "--json"]);
    at_once(myelin, [&one, &other])
}

/// What it brought up, which it must have.
fn came_up(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{}", error(output));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Removes these chains at once.
fn down_at_once(myelin: &Myelin, names: [&str; 2]) {
    let [one, other] = names.map(|name| myelin.chain(name));
    for output in at_once(myelin, [&["down", &one], &["down", &other]]) {
        assert!(output.status.success(), "{}", error(&output));
    }
    myelin.expect_chains(0);
}

/// A chain in user space.
fn chain(name: &str, port: u16, spec: &str) -> String {
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

/// Does this so often, in an instance that is clean at the end.
fn rounds(round: impl Fn(&Myelin)) {
    let myelin = Myelin::beside_others();
    for _ in 0..ROUNDS {
        round(&myelin);
    }
    myelin.ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn they_share_a_port_and_a_worker() {
    if skip_unless_root() {
        return;
    }
    let ports = PortPair::new();
    let before = ports.links();
    let [one, other] = [("a", 9000), ("b", 9001)].map(|(name, port)| chain(name, port, ""));
    rounds(|myelin| {
        let files = [&one, &other].map(|text| myelin.file(&ports.add_to(text)));
        for output in up_at_once(myelin, [&files[0], &files[1]]) {
            assert_eq!(came_up(&output)[0]["change"], "created");
        }
        let worker = |name| myelin.status(name)["worker"]["pid"].clone();
        assert_eq!(worker("a"), worker("b"));
        for (name, port) in [("a", 9000), ("b", 9001)] {
            ports.send_ten(port);
            let packets = || myelin.status(name)["packets_out"].clone();
            crate::common::wait_for("ten packets", || packets() == 10);
            assert_eq!(packets(), 10, "{name}");
        }
        down_at_once(myelin, ["a", "b"]);
        assert_eq!(ports.links(), before);
    });
}

/// The queues of a port belong to one of them; the other one gets links of its own.
#[test]
fn they_share_a_port_and_have_different_owners() {
    if skip_unless_root() {
        return;
    }
    let ports = PortPair::new();
    let before = ports.links();
    let [one, other] = [("a", 9000), ("b", 9001)].map(|(name, port)| {
        let text = chain(name, port, "");
        text.replace("name: @", &format!("namespace: owner-{name}, name: @"))
    });
    rounds(|myelin| {
        let files = [&one, &other].map(|text| myelin.file(&ports.add_to(text)));
        let mut mappings = up_at_once(myelin, [&files[0], &files[1]])
            .map(|output| came_up(&output)[0]["plan"]["mapping"].to_string());
        mappings.sort();
        assert_eq!(mappings, ["\"compact\"", "\"distributed\""]);
        down_at_once(myelin, ["a", "b"]);
        assert_eq!(ports.links(), before);
    });
}

#[test]
fn they_want_one_worker_with_different_settings() {
    if skip_unless_root() {
        return;
    }
    let ports = PortPair::new();
    let one = chain("a", 9000, "  worker: { batch: 8 }");
    let other = chain("b", 9001, "  worker: { batch: 16 }");
    rounds(|myelin| {
        let files = [&one, &other].map(|text| myelin.file(&ports.add_to(text)));
        let outputs = up_at_once(myelin, [&files[0], &files[1]]);
        let refused: Vec<_> = outputs.iter().filter(|one| !one.status.success()).collect();
        let errors: Vec<_> = refused.iter().map(|output| error(output)).collect();
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(errors[0].contains("spec.worker differs"), "{errors:?}");
        let left = myelin.expect_chains(1)[0]["chain"]
            .as_str()
            .expect("a name")
            .to_owned();
        myelin.ok(&["down", &left]);
    });
}

#[test]
fn they_have_the_same_name() {
    if skip_unless_root() {
        return;
    }
    rounds(|myelin| {
        let forms = ["192.0.2.0/24", "198.51.100.0/24"];
        let files = forms.map(|network| myelin.file(&KERNEL.replace("192.0.2.0/24", network)));
        let outputs = up_at_once(myelin, [&files[0], &files[1]]);
        let ups = outputs.each_ref().map(|output| came_up(output)[0].clone());
        let second = ups.iter().position(|up| up["change"] == "changed");
        let second = second.unwrap_or_else(|| panic!("{ups:?}"));
        assert_eq!(ups[1 - second]["change"], "created");
        assert_eq!(
            (&ups[1 - second]["generation"], &ups[second]["generation"]),
            (&0.into(), &1.into())
        );
        assert_eq!(myelin.expect_chains(1)[0]["generation"], 1);
        // It has the form of the second.
        let again = files.each_ref().map(|file| file.to_str().expect("a path"));
        let up = myelin.json(&["up", again[second], "--json"]);
        assert_eq!(up[0]["change"], "unchanged");
        // The same file twice, which is there already or not.
        for (there, expected) in [
            (true, ["unchanged", "unchanged"]),
            (false, ["created", "unchanged"]),
        ] {
            if !there {
                myelin.ok(&["down", &myelin.chain("k")]);
            }
            let file = &*files[second];
            let outputs = up_at_once(myelin, [file, file]);
            let mut changes = outputs.map(|output| came_up(&output)[0]["change"].clone());
            changes.sort_by_key(Value::to_string);
            assert_eq!(changes, expected);
        }
        assert_eq!(myelin.probe("k", 64, 10)["lost"], 0);
        // Both remove it; the second one says that there is none.
        let name = myelin.chain("k");
        let outputs = at_once(myelin, [&["down", &name], &["down", &name]]);
        assert_eq!(outputs.iter().filter(|one| one.status.success()).count(), 1);
        myelin.expect_chains(0);
    });
}

/// Each waits for a name that the other has, if they take them one by one.
#[test]
fn they_have_the_same_names_the_other_way_round() {
    if skip_unless_root() {
        return;
    }
    rounds(|myelin| {
        let [one, other] = ["a", "b"].map(|name| KERNEL.replace("@k", &format!("@{name}")));
        let files = [
            myelin.file(&format!("{one}---{other}")),
            myelin.file(&format!("{other}---{one}")),
        ];
        let outputs = up_at_once(myelin, [&files[0], &files[1]]);
        let mut changes: Vec<_> = outputs.iter().flat_map(came_up).collect();
        changes.sort_by_key(|up| up["change"].to_string());
        let changes: Vec<_> = changes
            .iter()
            .map(|up| up["change"].as_str().expect("it"))
            .collect();
        assert_eq!(changes, ["created", "created", "unchanged", "unchanged"]);
        myelin.expect_chains(2);
        down_at_once(myelin, ["a", "b"]);
    });
}

/// One of a pair goes while both are wanted.
#[test]
fn one_removes_what_the_other_brings_up() {
    if skip_unless_root() {
        return;
    }
    let there = chain("a", 9000, "  reverse: @b");
    let back = chain("b", 9000, "")
        .replace("destination: 10.0.0.2", "source: 10.0.0.2")
        .replace("destinationPort", "sourcePort");
    rounds(|myelin| {
        let file = myelin.file(&format!("{there}---{back}"));
        let up = ["up", file.to_str().expect("a path"), "--json"];
        myelin.ok(&up);
        let down = ["down", &*myelin.chain("a")];
        let [brought, removed] = at_once(myelin, [&up, &down]);
        assert!(removed.status.success(), "{}", error(&removed));
        let change = came_up(&brought)[0]["change"].clone();
        // It was there still, and went; or was gone already, and came back.
        let count = if change == "unchanged" { 1 } else { 2 };
        let list = myelin.expect_chains(count);
        if change != "unchanged" {
            assert_eq!(change, "created");
            assert_eq!(list[0]["ingress"], list[1]["egress"], "one circuit");
            assert_eq!(myelin.probe("a", 64, 10)["lost"], 0);
            myelin.ok(&["down", &myelin.chain("a")]);
        }
        myelin.ok(&["down", &myelin.chain("b")]);
    });
}

#[test]
fn only_one_of_them_is_admitted() {
    if skip_unless_root() {
        return;
    }
    // Each leaves hardly more than what it takes itself.
    let myelin = Myelin::beside_others();
    let text = |name: &str, latency_us: u64| {
        let sla = format!("  sla: {{ rate: 1kpps, burst: 8, latency: {latency_us}us }}");
        chain(name, 9000, &sla)
    };
    let plan = myelin.file(&text("a", 900_000));
    let plan = myelin.json(&["plan", plan.to_str().expect("a path"), "--json"]);
    let bound_ns = plan[0]["bound"]["bound_ns"].as_u64().expect("a bound");
    let latency_us = bound_ns.div_ceil(1000) + 1000;
    let files = ["a", "b"].map(|name| myelin.file(&text(name, latency_us)));
    for _ in 0..ROUNDS {
        let outputs = up_at_once(&myelin, [&files[0], &files[1]]);
        let codes = outputs.each_ref().map(|output| output.status.code());
        assert!(
            codes == [Some(0), Some(3)] || codes == [Some(3), Some(0)],
            "{codes:?}: {}{}",
            error(&outputs[0]),
            error(&outputs[1])
        );
        let up = codes.iter().position(|code| *code == Some(0)).expect("one");
        let name = myelin.chain(["a", "b"][up]);
        assert_eq!(myelin.expect_chains(1)[0]["chain"], *name);
        assert!(
            error(&outputs[1 - up]).contains("is refused"),
            "{}",
            error(&outputs[1 - up])
        );
        myelin.ok(&["down", &name]);
    }
    myelin.ok(&["down", "--all"]);
    myelin.assert_clean();
}
