//! Topologies: real packets between hosts, live changes of links, limits, chains between hosts, and
//! removal after every fault.

mod common;

use std::net::UdpSocket;
use std::time::Duration;

use common::{Myelin, kill, skip_unless_root, wait_for};
use myelin_linux::netns::Netns;
use serde_json::Value;

const LAB: &str = "
apiVersion: myelin.dev/v1alpha1
kind: Topology
metadata: { name: @lab }
spec:
  hosts: [ h1, h2, { name: h3, cpu: 500m, memory: 64MiB, cpus: 0 } ]
  switches: [ s1, s2 ]
  links:
    - { ends: [ h1, s1 ] }
    - { ends: [ s1, s2 ] }
    - { ends: [ h2, s2 ] }
    - { ends: [ h3, s2 ] }
";

fn up(myelin: &Myelin, text: &str) -> String {
    let file = myelin.write_file(text);
    myelin.run_ok(&["up", file.to_str().unwrap()])
}

/// A running topology as `ps NAME --json` shows it.
fn read(myelin: &Myelin, name: &str) -> Value {
    myelin.run_json(&["ps", &myelin.chain_name(name), "--json"])
}

/// A UDP socket on a host.
fn socket(myelin: &Myelin, topology: &str, host: &str, address: &str) -> UdpSocket {
    let name = format!("myelin-{}-{host}", myelin.chain_name(topology));
    let netns = Netns::open(&name).unwrap();
    let socket = netns.enter(|| UdpSocket::bind(address)).unwrap().unwrap();
    let timeout = Duration::from_millis(200);
    socket.set_read_timeout(Some(timeout)).unwrap();
    socket
}

fn receives(from: &UdpSocket, to: &UdpSocket) -> bool {
    let target = to.local_addr().unwrap();
    // The kernel refuses packets while the link is down.
    let _ = from.send_to(b"x", target);
    to.recv(&mut [0; 8]).is_ok()
}

/// Asserts that no datagram arrives: several are sent, because one could be late.
fn assert_silent(from: &UdpSocket, to: &UdpSocket) {
    assert!((0..5).all(|_| !receives(from, to)));
}

#[test]
fn packets_cross_switches_and_links_change_live() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    let out = up(&myelin, LAB);
    assert!(out.contains("3 hosts, 2 switches, 4 links"), "{out}");
    let lab = myelin.chain_name("lab");
    let h1 = socket(&myelin, "lab", "h1", "10.0.0.1:0");
    let h2 = socket(&myelin, "lab", "h2", "10.0.0.2:0");
    wait_for("a datagram over two switches", || receives(&h1, &h2));
    let exec = ["exec", &format!("{lab}/h1"), "--", "cat", "/proc/net/dev"];
    assert!(myelin.run_ok(&exec).contains("eth0"));

    let link = |name: &str| format!("{lab}/{name}");
    capture_both_directions(&myelin, &link("h1-s1"), [&h1, &h2]);
    myelin.run_ok(&["link", &link("s2-s1"), "--down"]);
    assert_silent(&h1, &h2);
    assert!(myelin.run_ok(&["ps"]).contains("s1-s2"));
    assert!(myelin.run_ok(&["graph", &lab]).contains("s2  down"));
    myelin.run_ok(&["link", &link("s1-s2"), "--up"]);
    wait_for("a datagram over the link", || receives(&h1, &h2));

    let moved = myelin.run_ok(&["link", &link("h1-s1"), "--to", "s2"]);
    assert!(moved.contains("h1-s2: h1 - s2, up"), "{moved}");
    // Long before h2 asks for h1 again, which would teach the switches the new way.
    assert!(
        (0..25).any(|_| receives(&h2, &h1)),
        "s2 remembers the old way"
    );
    myelin.run_ok(&["link", &link("s1-s2"), "--down"]);
    wait_for("a datagram over one switch", || receives(&h2, &h1));
    let error = myelin.run_failing(1, &["link", &link("h1-s1"), "--up"]);
    assert!(error.contains("no link `h1-s1` (h1-s2"), "{error}");
    let error = myelin.run_failing(1, &["link", &link("s1-s2"), "--to", "s9"]);
    assert!(error.contains("no switch `s9`"), "{error}");

    // The file still describes the topology. It gets more under traffic, and loses it again.
    up(&myelin, LAB);
    let more = LAB.replace("cpus: 0 } ]", "cpus: 0 }, h4 ]");
    up(&myelin, &format!("{more}    - {{ ends: [ h4, s2 ] }}\n"));
    let h4 = socket(&myelin, "lab", "h4", "10.0.0.4:9000");
    wait_for("a datagram to the new host", || receives(&h2, &h4));
    drop(h4);
    up(&myelin, LAB);
    assert!(Netns::open(&format!("myelin-{lab}-h4")).is_err());
    assert!(!myelin.run_ok(&["ps", &lab]).contains("h4"));
    wait_for("a datagram after the removal", || receives(&h2, &h1));
    drop((h1, h2));
    assert!(myelin.run_ok(&["down", &lab]).contains("removed"));
    let error = myelin.run_failing(1, &["ps", &lab]);
    assert!(error.contains(&lab), "{error}");
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

const FEWER: &str = "
apiVersion: myelin.dev/v1alpha1
kind: Topology
metadata: { name: @lab }
spec:
  hosts: [ h1, { name: h3, address: 10.0.0.3/8, cpu: 500m, memory: 64MiB, cpus: 0 } ]
  switches: [ s2 ]
  links:
    - { ends: [ h1, s2 ], delay: 1ms }
    - { ends: [ h3, s2 ] }
";

const ACROSS: &str = "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: { name: @across }
spec:
  match: { protocol: udp, destination: 10.0.0.3/32 }
  functions: [ { name: count, kind: monitor, space: kernel } ]
  ports: { ingress: @lab/h2, egress: @lab/h3 }
";

#[test]
fn a_topology_loses_what_its_file_lacks() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    let lab = myelin.chain_name("lab");
    up(
        &myelin,
        &LAB.replace("[ h1, s1 ]", "[ h1, s1 ], loss: 0%, delay: 1ms"),
    );
    up(&myelin, ACROSS);
    // A chain has its port at h2.
    let fewer = myelin.write_file(FEWER);
    let error = myelin.run_failing(1, &["up", fewer.to_str().unwrap()]);
    let down = format!("run `myelin down {}` first", myelin.chain_name("across"));
    assert!(error.contains(&down), "{error}");
    assert!(error.contains("(h2, s1, h1-s1, h2-s2, s1-s2)"), "{error}");
    let h1 = socket(&myelin, "lab", "h1", "10.0.0.1:0");
    let h2 = socket(&myelin, "lab", "h2", "10.0.0.2:0");
    wait_for("a datagram: nothing has gone", || receives(&h1, &h2));
    drop(h2);
    myelin.run_ok(&["down", &myelin.chain_name("across")]);

    let sleep = ["exec", &format!("{lab}/h2"), "--", "sleep", "1000"];
    let mut program = myelin.command(&sleep).spawn().unwrap();
    wait_for("a program on h2", || !pids_in(&lab, "h2").is_empty());
    up(&myelin, FEWER);
    program.wait().unwrap();
    assert!(Netns::open(&format!("myelin-{lab}-h2")).is_err());
    let status = read(&myelin, "lab");
    let names = |key: &str| {
        let parts = status[key].as_array().unwrap().iter();
        let names = parts.map(|part| part["name"].as_str().unwrap().to_owned());
        names.collect::<Vec<_>>()
    };
    assert_eq!(names("hosts"), ["h1", "h3"]);
    assert_eq!(names("switches"), ["s2"]);
    assert_eq!(names("links"), ["h3-s2", "h1-s2"]);
    let h3 = socket(&myelin, "lab", "h3", "10.0.0.3:9000");
    let h1_again = socket(&myelin, "lab", "h1", "10.0.0.1:0");
    wait_for("a datagram over the new link", || receives(&h1_again, &h3));
    let delayed = &read(&myelin, "lab")["links"][1]["directions"][0]["left"];
    assert!(delayed.as_u64().unwrap() > 0);
    drop((h1, h1_again, h3));
    // What has gone can come again.
    up(
        &myelin,
        &FEWER
            .replace(
                "hosts: [ h1,",
                "hosts: [ h1, { name: h2, address: 10.0.0.2/8 },",
            )
            .replace(
                "    - { ends: [ h3",
                "    - { ends: [ h2, s2 ] }\n    - { ends: [ h3",
            ),
    );
    let h1 = socket(&myelin, "lab", "h1", "10.0.0.1:0");
    let h2 = socket(&myelin, "lab", "h2", "10.0.0.2:9000");
    wait_for("a datagram to the host that came again", || {
        receives(&h1, &h2)
    });
    drop((h1, h2));
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

/// The processes in the namespace of a host.
fn pids_in(topology: &str, host: &str) -> String {
    common::sh(&format!("ip netns pids myelin-{topology}-{host}"))
}

/// `myelin pcap` writes the datagrams of both directions.
fn capture_both_directions(myelin: &Myelin, link: &str, [h1, h2]: [&UdpSocket; 2]) {
    let file = myelin.run_dir().join("link.pcap");
    let mut capture = myelin
        .command(&["pcap", link, file.to_str().unwrap()])
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let marks = [&b"from-h1-to-h2"[..], b"from-h2-to-h1"];
    let has = |bytes: &[u8], mark: &[u8]| bytes.windows(mark.len()).any(|part| part == mark);
    wait_for("both datagrams in the file", || {
        h1.send_to(marks[0], h2.local_addr().unwrap()).unwrap();
        h2.send_to(marks[1], h1.local_addr().unwrap()).unwrap();
        let written = std::fs::read(&file).unwrap_or_default();
        marks.iter().all(|mark| has(&written, mark))
    });
    let pid = nix::unistd::Pid::from_raw(capture.id().cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
    assert!(capture.wait().unwrap().success());
    let written = std::fs::read(&file).unwrap();
    assert_eq!(written[..4], 0xa1b2_3c4d_u32.to_ne_bytes());
    assert!(marks.iter().all(|mark| has(&written, mark)));
    for socket in [h1, h2] {
        while socket.recv(&mut [0; 64]).is_ok() {}
    }
}

#[test]
fn programs_of_a_host_share_its_limits_and_end_with_it() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    up(&myelin, LAB);
    let status = read(&myelin, "lab");
    let group = status["hosts"][2]["cgroup"].as_str().unwrap().to_owned();
    assert!(status["hosts"][0]["cgroup"].is_null());
    let host = format!("{}/h3", myelin.chain_name("lab"));
    let exec = |program: &[&str]| {
        let mut arguments = vec!["exec", &*host, "--"];
        arguments.extend(program);
        myelin.run_ok(&arguments)
    };
    let groups = exec(&["cat", "/proc/self/cgroup"]);
    assert!(groups.matches(&*group).count() >= 1, "{groups}");
    let allowed = exec(&["grep", "Cpus_allowed_list", "/proc/self/status"]);
    assert_eq!(allowed.split_whitespace().last(), Some("0"), "{allowed}");
    let find = |kind: &str| myelin_linux::procfs::find_mounts(kind).unwrap();
    let files = find("cgroup").into_iter().chain(find("cgroup2"));
    let files: Vec<_> = files.map(|mount| mount.join(&group)).collect();
    let read = |name: &str| {
        let found = files
            .iter()
            .find_map(|group| std::fs::read_to_string(group.join(name)).ok());
        found.map(|text| text.trim().to_owned())
    };
    let memory = read("memory.limit_in_bytes").or_else(|| read("memory.max"));
    assert_eq!(memory.as_deref(), Some("67108864"));
    let cpu = read("cpu.cfs_quota_us").or_else(|| read("cpu.max"));
    assert!(
        cpu.is_some_and(|cpu| cpu.starts_with("5000")),
        "half of 10 ms"
    );

    // A program that leaves the terminal and forks ends with the topology.
    let sleeping = "setsid sh -c 'sleep 98765 & sleep 98765' </dev/null >/dev/null 2>&1 &";
    exec(&["sh", "-c", sleeping]);
    let processes = || {
        let is_sleep = |arguments: &[String]| arguments.iter().any(|word| word == "98765");
        myelin_linux::procfs::find_processes(is_sleep)
            .unwrap()
            .len()
    };
    wait_for("two programs", || processes() >= 2);
    myelin.run_ok(&["down", &myelin.chain_name("lab")]);
    wait_for("the end of both programs", || processes() == 0);
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn two_topologies_stand_together() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    up(
        &myelin,
        &format!("{LAB}---{}", LAB.replace("@lab", "@other")),
    );
    let names = ["lab", "other"].map(|name| myelin.chain_name(name));
    let overview = myelin.run_ok(&["ps"]);
    assert!(
        names.iter().all(|name| overview.contains(name)),
        "{overview}"
    );
    let error = myelin.run_failing(2, &["exec", "h1", "--", "true"]);
    assert!(error.contains(&format!("{}/h1", names[1])), "{error}");
    let error = myelin.run_failing(2, &["link", "h1-s1", "--down"]);
    assert!(error.contains("write TOPOLOGY/h1-s1"), "{error}");
    let sockets = ["lab", "other"].map(|name| {
        let one = socket(&myelin, name, "h1", "10.0.0.1:0");
        (one, socket(&myelin, name, "h2", "10.0.0.2:0"))
    });
    for (h1, h2) in &sockets {
        wait_for("a datagram", || receives(h1, h2));
    }
    // The same address in the other topology is another host.
    let target = sockets[1].1.local_addr().unwrap();
    for _ in 0..5 {
        sockets[0].0.send_to(b"x", target).unwrap();
    }
    assert!(sockets[1].1.recv(&mut [0; 8]).is_err());
    myelin.run_ok(&["down", &names[0]]);
    wait_for("a datagram in the other topology", || {
        receives(&sockets[1].0, &sockets[1].1)
    });
    drop(sockets);
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn a_chain_takes_packets_between_two_hosts() {
    if skip_unless_root() {
        return;
    }
    let chain = "---
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: { name: @over }
spec:
  match: { protocol: udp, destination: 10.0.0.2/32, destinationPort: 9000 }
  functions: [ { name: flip, kind: xor, space: SPACE, config: { key: 0x01 } } ]
  ports: { ingress: @lab/h1, egress: @lab/h2 }
";
    let myelin = Myelin::new_shared();
    let lab = myelin.chain_name("lab");
    for space in ["kernel", "user"] {
        up(&myelin, &format!("{LAB}{}", chain.replace("SPACE", space)));
        let h1 = socket(&myelin, "lab", "h1", "10.0.0.1:0");
        let h2 = socket(&myelin, "lab", "h2", "10.0.0.2:9000");
        let mut byte = [0; 8];
        wait_for("a changed datagram", || {
            let _ = h1.send_to(b"\x40", "10.0.0.2:9000");
            h2.recv(&mut byte).is_ok() && byte[0] == 0x41
        });
        // The chain does not match the replies.
        wait_for("a reply", || receives(&h2, &h1));
        let error = myelin.run_failing(1, &["down", &lab]);
        let words = format!("`myelin down {}`", myelin.chain_name("over"));
        assert!(error.contains(&words), "{error}");
        drop((h1, h2));
        myelin.run_ok(&["down", &myelin.chain_name("over")]);
    }
    let alone = myelin.write_file(&chain.replace("SPACE", "kernel").replace("lab/h2", "lab/h9"));
    let error = myelin.run_failing(1, &["up", alone.to_str().unwrap()]);
    assert!(
        error.contains("no host `h9`") && error.contains(".yaml:"),
        "{error}"
    );
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

/// A chain that fails takes the topology of its file with it.
#[test]
fn wrong_files_make_nothing() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    let refuse = |status: i32, text: &str, words: &str| {
        let file = myelin.write_file(text);
        let error = myelin.run_failing(status, &["up", file.to_str().unwrap()]);
        assert!(error.contains(words), "{error}");
        let left = myelin.list_leftovers();
        assert!(
            left.iter()
                .all(|object| object.starts_with("process") || object.starts_with("a mount")),
            "{left:?}"
        );
    };
    let with = |link: &str| format!("{LAB}    - {link}\n");
    refuse(2, &with("{ ends: [ h1, s9 ] }"), "called `s9`");
    refuse(
        2,
        &with("{ ends: [ s2, s1 ], name: again }"),
        "s2 - s1 - s2",
    );
    refuse(
        1,
        &with("{ ends: [ h1, s2 ], delay: 10s, bandwidth: 100Gbit }"),
        "lower `bandwidth`",
    );
    refuse(1, &LAB.replace("cpus: 0", "cpus: 4095"), "core 4095");
    let chain = "---
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: { name: @bad }
spec:
  match: {}
  functions: [ { name: f, kind: forward } ]
  ports: { ingress: absent0, egress: absent1 }
";
    refuse(1, &format!("{LAB}{chain}"), "absent0");
    assert!(myelin.run_ok(&["ps"]).contains("no chain runs"));
    let file = myelin.write_file(LAB);
    let error = myelin.run_failing(2, &["run", file.to_str().unwrap()]);
    assert!(error.contains("use `up`"), "{error}");
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn down_all_removes_the_topologies_of_a_killed_agent() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    up(&myelin, LAB);
    let is_sleep = |arguments: &[String]| arguments == ["sleep", "98764"];
    let find_sleep = || myelin_linux::procfs::find_processes(is_sleep).unwrap();
    let hanging = myelin
        .command(&[
            "exec",
            &format!("{}/h3", myelin.chain_name("lab")),
            "--",
            "sleep",
            "98764",
        ])
        .spawn()
        .unwrap();
    wait_for("the program's group", || {
        let group = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/cgroup"));
        let mut found = find_sleep().into_iter();
        found.any(|pid| group(&pid).is_ok_and(|text| text.contains("/host-")))
    });
    kill(&myelin.read_agent_pid().into());
    let recovered = myelin.run_ok(&["down", "--all"]);
    assert!(recovered.contains("recovered"), "{recovered}");
    let mut hanging = hanging;
    hanging.wait().unwrap();
    wait_for("the end of the program", || find_sleep().is_empty());
    myelin.assert_clean();
    for milliseconds in [1, 5, 10, 20, 40] {
        let file = myelin.write_file(LAB);
        myelin.kill_agent_during_up(&file, Duration::from_millis(milliseconds));
    }
}

#[test]
fn the_example_runs_as_it_stands() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let file = common::repository_root().join("examples/topology.yaml");
    let file = file.to_str().unwrap();
    let picture = myelin.run_ok(&["graph", file]);
    assert!(
        picture.contains("└── s2\n    ├── h3  10.0.0.3/8"),
        "{picture}"
    );
    assert!(
        myelin
            .run_ok(&["plan", file])
            .contains("topology lab: 4 hosts")
    );
    myelin.run_ok(&["up", file]);
    let send =
        |host: &str, command: &str| myelin.run_ok(&["exec", host, "--", "bash", "-c", command]);
    wait_for("a counted packet", || {
        send("h1", "echo x > /dev/udp/10.0.0.40/9000");
        myelin.run_json(&["ps", "h1-to-h4", "--json"])[0]["account"]["packets_out"].as_u64()
            > Some(0)
    });
    let svg = myelin.run_dir().join("lab.svg");
    myelin.run_ok(&["graph", "lab", "--svg", svg.to_str().unwrap()]);
    let svg = std::fs::read_to_string(svg).unwrap();
    assert!(svg.contains("h4  10.0.0.40/8"), "{svg}");
    myelin.run_ok(&["link", "h3-s2", "--to", "s1"]);
    myelin.run_ok(&["down", file]);
    assert!(myelin.run_ok(&["ps"]).contains("no chain runs"));
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}
