//! Mapping `pipeline`, one process for each user function: payloads, counts, restarts and removal.

mod common;

use common::{Myelin, sh, skip_unless_root, wait_for};

/// The keys together XOR each byte with 0x21 ^ 0x42 = 0x63.
const STAGED: &str = "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: { name: @staged }
spec:
  match: { protocol: udp, destination: 10.0.0.2/32 }
  functions:
    - { name: one, kind: forward, space: user }
    - { name: two, kind: xor, space: user, config: { key: 0x21 } }
    - { name: three, kind: xor, space: user, config: { key: 0x42 } }
  mapping: pipeline
";

/// Sends `count` packets one by one; returns the number of right payloads at the server.
fn count_right_payloads(myelin: &Myelin, count: u32) -> u32 {
    let chain = myelin.chain_name("staged");
    let ready = myelin.run_dir().with_extension("ready");
    let _ = std::fs::remove_file(&ready);
    let ready = ready.display();
    let server = format!(
        "import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('10.0.0.2', 9000)); s.settimeout(60)
open('{ready}', 'w')
right = 0
for i in range({count}):
    d, a = s.recvfrom(2000)
    right += d == bytes((i + j) % 256 ^ 0x63 for j in range(7 * i % 1400 + 1))
    s.sendto(b'next', a)
print(right)"
    );
    let client = format!(
        "import os, socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(60)
while not os.path.exists('{ready}'): time.sleep(0.01)
for i in range({count}):
    s.sendto(bytes((i + j) % 256 for j in range(7 * i % 1400 + 1)), ('10.0.0.2', 9000)); s.recvfrom(100)"
    );
    let out = sh(&format!(
        "ip netns exec myelin-{chain}-client timeout 300 python3 -c \"{client}\" &
         ip netns exec myelin-{chain}-server timeout 300 python3 -c \"{server}\"; wait"
    ));
    out.trim().parse().expect("the text is a number")
}

#[test]
fn packets_pass_each_process_and_killed_processes_are_restarted() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let file = myelin.write_file(STAGED);
    let file = file.to_str().unwrap();
    let plan = myelin.run_json(&["plan", file, "--json"]);
    assert_eq!(plan[0]["hops"][2]["reach"]["name"], "ring + dispatch");
    assert_eq!(plan[0]["egress"]["name"], "ring + user_egress");
    let shown = myelin.run_ok(&["plan", file]);
    assert!(shown.contains("mapping     pipeline"), "{shown}");
    myelin.run_ok(&["up", file]);
    assert_eq!(count_right_payloads(&myelin, 100), 100);

    // A process counts a packet after it sent the packet.
    let mut before = myelin.read_status("staged");
    wait_for("the last counts", || {
        before = myelin.read_status("staged");
        let mut rings = before["rings"].as_array().unwrap().iter();
        before["packets_out"] == 100
            && before["sojourn"]["packets"] == 100
            && rings.all(|ring| ring["dequeued"] == 100 || ring["dequeued"] == 0)
    });
    assert_eq!(
        (&before["mapping"], &before["state"]),
        (&"pipeline".into(), &"active".into())
    );
    assert_eq!(
        (&before["packets_in"], &before["packets_out"]),
        (&100.into(), &100.into())
    );
    for hop in before["hops"].as_array().unwrap() {
        assert_eq!(
            (&hop["packets_in"], &hop["drops"]),
            (&100.into(), &0.into()),
            "{hop}"
        );
    }
    assert_eq!(before["sojourn"]["packets"], 100);
    // Each packet passes three rings: to the second function, to the third, and back to the worker.
    let rings = before["rings"].as_array().unwrap();
    let dequeued = rings
        .iter()
        .map(|ring| ring["dequeued"].as_u64().unwrap())
        .sum::<u64>();
    assert_eq!((rings.len(), dequeued), (4, 300), "{rings:?}");
    let shown = myelin.run_ok(&["ps", "-v", &myelin.chain_name("staged")]);
    let ring = "ring from function 2 to the worker: 0 of 1024 descriptors, 100 taken so far";
    assert!(shown.contains(ring), "{shown}");
    let stages = before["more_workers"].as_array().unwrap();
    assert_eq!(stages.len(), 2);

    common::kill(&stages[0]["pid"]);
    wait_for("a new process", || {
        myelin.read_status("staged")["more_workers"][0]["restarts"] == 1
    });
    let after = myelin.read_status("staged");
    assert_ne!(after["more_workers"][0]["pid"], stages[0]["pid"]);
    assert_eq!(
        after["more_workers"][1]["pid"], stages[1]["pid"],
        "the other stage has restarted"
    );
    assert_eq!(
        after["worker"]["pid"], before["worker"]["pid"],
        "the worker has restarted"
    );
    assert_eq!(count_right_payloads(&myelin, 50), 50);
    wait_for("counts that survive a restart", || {
        myelin.read_status("staged")["hops"][2]["packets_in"] == 150
    });

    // The first worker owns the AF_XDP sockets.
    common::kill(&after["worker"]["pid"]);
    wait_for("a new worker", || {
        myelin.read_status("staged")["worker"]["restarts"] == 1
    });
    let row = myelin.probe("staged", 64, 50);
    assert_eq!(row["lost"], 0, "{row}");
    let processes = row["cpu"]["processes"].as_array().map(Vec::len);
    assert_eq!(processes, Some(3), "{row}");
    myelin.run_ok(&["down", &myelin.chain_name("staged")]);
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn a_pipeline_with_kernel_functions_carries_packets_after_its_agent_is_killed() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    let functions = "
    - { name: a, kind: forward, space: kernel }
    - { name: b, kind: xor, space: user, config: { key: 0x21 } }
    - { name: c, kind: forward, space: user }
    - { name: d, kind: forward, space: kernel }
    - { name: e, kind: xor, space: user, config: { key: 0x42 } }
  mapping";
    let start = STAGED.find("\n    - {").unwrap();
    let end = STAGED.find("  mapping").unwrap() + "  mapping".len();
    let text = format!("{}{functions}{}", &STAGED[..start], &STAGED[end..]);
    let file = myelin.write_file(&text);
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    assert_eq!(count_right_payloads(&myelin, 60), 60);
    let mut status = myelin.read_status("staged");
    wait_for("the last counts", || {
        status = myelin.read_status("staged");
        let mut hops = status["hops"].as_array().unwrap().iter();
        hops.all(|hop| hop["packets_in"] == 60)
    });
    let counts: Vec<_> = status["hops"]
        .as_array()
        .unwrap()
        .iter()
        .map(|hop| &hop["packets_in"])
        .collect();
    assert_eq!(counts, [60; 5]);
    myelin.kill_agent();
    assert_eq!(
        count_right_payloads(&myelin, 20),
        20,
        "packets that arrived after the agent was killed"
    );
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn a_live_change_from_compact_to_pipeline_and_back_carries_packets() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    let pipeline = myelin.write_file(STAGED);
    let compact = myelin.write_file(&STAGED.replace("mapping: pipeline", "mapping: compact"));
    let (pipeline, compact) = (pipeline.to_str().unwrap(), compact.to_str().unwrap());
    for (file, more_workers) in [(compact, 0), (pipeline, 2), (compact, 0)] {
        myelin.run_ok(&["up", file]);
        assert_eq!(count_right_payloads(&myelin, 20), 20);
        let stages = myelin.read_status("staged")["more_workers"].clone();
        assert_eq!(stages.as_array().map_or(0, Vec::len), more_workers);
    }
    let id = myelin_api::RunDir::resolve(Some(&myelin.run_dir())).id();
    let workers = sh(&format!("pgrep -c -f '^myelin-worker@{id}' || true"));
    assert_eq!(workers.trim(), "1", "only the first worker remains");
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn a_stage_that_keeps_dying_fails_only_its_chain() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    // The user functions of the reverse chain run in the same worker.
    let back = "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: { name: @back }
spec:
  match: { protocol: udp, destination: 10.0.0.1/32 }
  functions: [ { name: one, kind: forward, space: user }, { name: two, kind: forward, space: user } ]
  mapping: pipeline
  reverse: @staged
";
    let staged = STAGED.replace("spec:", "spec:\n  reverse: @back\n  onFailure: pass");
    let file = myelin.write_file(&format!("{staged}---{back}"));
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    let worker = myelin.read_status("back")["worker"]["pid"].clone();
    assert_eq!(myelin.read_status("staged")["worker"]["pid"], worker);
    myelin.kill_until_failed("staged", |status| status["more_workers"][1].clone());
    let other = myelin.read_status("back");
    assert_eq!(
        (&other["state"], &other["worker"]["pid"]),
        (&"active".into(), &worker)
    );
    // Packets bypass the failed chain; replies pass the reverse chain.
    let before = other["packets_out"].as_u64().unwrap();
    let probe = myelin.probe("back", 64, 50);
    assert_eq!(probe["lost"], 0, "{probe}");
    let out = || myelin.read_status("back")["packets_out"].as_u64().unwrap();
    wait_for("the last counts", || out() >= before + 50);
    assert!(out() >= before + 50);
    // The failed chain can be removed and deployed again.
    myelin.run_ok(&["down", &myelin.chain_name("staged")]);
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    assert_eq!(myelin.read_status("back")["worker"]["pid"], worker);
    assert_eq!(count_right_payloads(&myelin, 10), 10);
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn processes_take_the_cores_and_the_rings_of_their_file() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let cores = myelin_linux::affinity::get(0).expect("an affinity");
    let [first, .., last] = cores[..] else {
        println!("SKIP: needs two cores");
        return;
    };
    let staged = |worker: &str| {
        let file = myelin.write_file(&format!("{STAGED}  worker: {{ {worker} }}\n"));
        file.to_str().unwrap().to_owned()
    };
    let on = |worker: &serde_json::Value| {
        let pid = worker["pid"].as_u64().unwrap();
        myelin_linux::affinity::get(pid as u32).expect("the process lives")
    };
    for ring in [64, 16_384] {
        // The third process begins again with the first core.
        let listed = format!("cores: [ {first}, {last} ], ring: {ring}");
        myelin.run_ok(&["up", &staged(&listed)]);
        let status = myelin.read_status("staged");
        assert_eq!(on(&status["worker"]), [first], "{status}");
        let stages = status["more_workers"].as_array().unwrap();
        assert_eq!(on(&stages[0]), [last], "{status}");
        assert_eq!(on(&stages[1]), [first], "{status}");
        let rings = status["rings"].as_array().unwrap();
        assert!(rings.iter().all(|one| one["capacity"] == ring), "{rings:?}");
        assert_eq!(count_right_payloads(&myelin, 100), 100);
        // Under the running chain the processes change their cores, but not their rings.
        let turned = format!("cores: [ {last}, {first} ], ring: {ring}");
        myelin.run_ok(&["up", &staged(&turned)]);
        let status = myelin.read_status("staged");
        assert_eq!(on(&status["worker"]), [last], "{status}");
        assert_eq!(on(&status["more_workers"][0]), [first], "{status}");
        let other = format!("cores: [ {last}, {first} ], ring: 128");
        let error = myelin.run_failing(1, &["up", &staged(&other)]);
        assert!(error.contains("only `sharing`, `cores`"), "{error}");
        assert_eq!(count_right_payloads(&myelin, 20), 20);
        myelin.run_ok(&["down", &myelin.chain_name("staged")]);
    }
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}
