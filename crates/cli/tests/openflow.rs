//! OpenFlow switches: Open vSwitch forwards only what a controller tells it, links change live, and
//! nothing is left of it.

mod common;
#[path = "openflow/forwarder.rs"]
mod forwarder;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixListener;
use std::process::{Child, Stdio};
use std::time::Duration;

use common::{Myelin, kill, repository_root, sh, skip_unless_root, skip_without, wait_for};
use myelin_linux::netns::Netns;
use serde_json::Value;

const FABRIC: &str = "
apiVersion: myelin.dev/v1alpha1
kind: Topology
metadata: { name: @fabric }
spec:
  hosts: [ h1, h2, c0 ]
  switches: [ { name: s1, openflow: 'tcp:c0:6653' }, { name: s2, openflow: 'tcp:c0:6653' } ]
  links:
    - { ends: [ h1, s1 ] }
    - { ends: [ s1, s2 ], delay: 1ms }
    - { ends: [ s2, h2 ] }
---
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: { name: @chained }
spec:
  match: { protocol: udp, destination: 10.0.0.2/32, destinationPort: 9000 }
  functions: [ { name: count, kind: monitor, space: kernel } ]
  ports: { ingress: @fabric/h1, egress: @fabric/h2 }
";

fn netns(myelin: &Myelin, host: &str) -> Netns {
    Netns::open(&format!("myelin-{}-{host}", myelin.chain_name("fabric"))).unwrap()
}

fn socket(myelin: &Myelin, host: &str, address: &str) -> UdpSocket {
    bind_in(&netns(myelin, host), address)
}

fn bind_in(netns: &Netns, address: &str) -> UdpSocket {
    let bound = netns.enter(|| UdpSocket::bind(address));
    let socket = bound.unwrap().unwrap();
    let timeout = Duration::from_millis(200);
    socket.set_read_timeout(Some(timeout)).unwrap();
    socket
}

fn receives(from: &UdpSocket, to: &UdpSocket) -> bool {
    let _ = from.send_to(b"x", to.local_addr().unwrap());
    to.recv(&mut [0; 8]).is_ok()
}

/// Asserts that no datagram arrives: several are sent, because one could be late. Those that
/// arrived before do not count.
fn assert_silent(from: &UdpSocket, to: &UdpSocket) {
    while to.recv(&mut [0; 8]).is_ok() {}
    assert!((0..5).all(|_| !receives(from, to)));
}

fn controllers(myelin: &Myelin) -> Vec<Value> {
    let status = myelin.run_json(&["ps", &myelin.chain_name("fabric"), "--json"]);
    let switches = status["switches"].as_array().unwrap().iter();
    switches
        .map(|switch| switch["controller"]["state"].clone())
        .collect()
}

/// os-ken on the host `c0`. Dropping the value ends it.
struct Controller(Child);

impl Controller {
    fn start(myelin: &Myelin) -> Self {
        let program = repository_root().join("examples/openflow/learning_switch.py");
        let host = format!("{}/c0", myelin.chain_name("fabric"));
        let exec = [
            "exec",
            &host,
            "--",
            "osken-manager",
            "--ofp-tcp-listen-port",
        ];
        let mut command = myelin.command(&exec);
        command.arg("6653").arg(program);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A file goes over the switches as TCP sends it, with the offloads of the hosts' links.
fn check_tcp(myelin: &Myelin) {
    const BYTES: usize = 1 << 20;
    let listen = netns(myelin, "h2").enter(|| TcpListener::bind("10.0.0.2:7000"));
    let listener = listen.unwrap().unwrap();
    let reader = std::thread::spawn(move || {
        let mut read = Vec::new();
        listener.accept().unwrap().0.read_to_end(&mut read).unwrap();
        read
    });
    let connect = netns(myelin, "h1").enter(|| TcpStream::connect("10.0.0.2:7000"));
    let mut stream = connect.unwrap().unwrap();
    let sent: Vec<u8> = (0..BYTES).map(|byte| (byte % 251) as u8).collect();
    stream.write_all(&sent).unwrap();
    drop(stream);
    assert!(reader.join().unwrap() == sent);
}

#[test]
fn packets_pass_once_the_controller_has_answered() {
    if skip_unless_root() || skip_without("ovs-vswitchd") || skip_without("osken-manager") {
        return;
    }
    let myelin = Myelin::new_shared();
    let file = myelin.write_file(FABRIC);
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    let fabric = myelin.chain_name("fabric");
    let text = myelin.run_ok(&["ps", &fabric]);
    assert!(
        text.contains("tcp:c0:6653, which does not answer"),
        "{text}"
    );
    let h1 = socket(&myelin, "h1", "10.0.0.1:0");
    let h2 = socket(&myelin, "h2", "10.0.0.2:0");
    assert_silent(&h1, &h2);
    let controller = Controller::start(&myelin);
    wait_for("both switches at the controller", || {
        controllers(&myelin) == ["connected", "connected"]
    });
    wait_for("a datagram over both switches", || receives(&h1, &h2));
    check_tcp(&myelin);
    check_links(&myelin, [&h1, &h2]);

    // The chain takes its packets before the switch sees them.
    let chained = socket(&myelin, "h2", "10.0.0.2:9000");
    wait_for("a datagram through the chain", || receives(&h1, &chained));
    let status = myelin.read_status("chained");
    assert!(status["packets_out"].as_u64().unwrap() > 0, "{status}");

    drop(controller);
    wait_for("switches without a controller", || {
        controllers(&myelin) == ["silent", "silent"]
    });
    kill_the_switch(&myelin, [&h1, &h2]);
    drop((h1, h2, chained));
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

/// Links to OpenFlow switches go down and up and have delay. An end moves only to a free port.
fn check_links(myelin: &Myelin, [h1, h2]: [&UdpSocket; 2]) {
    let link = |name: &str| format!("{}/{name}", myelin.chain_name("fabric"));
    let status = myelin.run_json(&["ps", &myelin.chain_name("fabric"), "--json"]);
    let delayed = &status["links"][1]["directions"][0]["left"];
    assert!(delayed.as_u64().unwrap() > 0, "{status}");
    myelin.run_ok(&["link", &link("h1-s1"), "--down"]);
    assert_silent(h1, h2);
    myelin.run_ok(&["link", &link("h1-s1"), "--up"]);
    wait_for("a datagram over the link", || receives(h1, h2));
    let error = myelin.run_failing(1, &["link", &link("h1-s1"), "--to", "s2"]);
    assert!(
        error.contains("no free port: an OpenFlow switch"),
        "{error}"
    );
}

/// Killed daemons start anew with all ports, and forward what the controller says. Those that end
/// too often do not, and `ps` says so.
fn kill_the_switch(myelin: &Myelin, [h1, h2]: [&UdpSocket; 2]) {
    let before = daemons_of(myelin);
    assert_eq!(before.len(), 2, "{before:?}");
    kill(&before[1].into());
    let is_new = || {
        let now = daemons_of(myelin);
        now.len() == 2 && now.iter().all(|pid| !before.contains(pid))
    };
    wait_for("new daemons", is_new);
    let controller = Controller::start(myelin);
    wait_for("a datagram over both new switches", || receives(h1, h2));
    drop(controller);
    wait_for("switches that ended too often", || {
        for pid in daemons_of(myelin) {
            // The agent may have ended it meanwhile.
            sh(&format!("kill -9 {pid} || true"));
        }
        controllers(myelin) == ["switch-ended", "switch-ended"] && daemons_of(myelin).is_empty()
    });
}

/// The processes that work in a directory of this run.
fn daemons_of(myelin: &Myelin) -> Vec<i32> {
    let run_dir = myelin.run_dir();
    let found = std::fs::read_dir("/proc").unwrap().flatten();
    let numbers = found.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers
        .filter(|pid: &i32| {
            let directory = std::fs::read_link(format!("/proc/{pid}/cwd"));
            directory.is_ok_and(|path| path.parent() == Some(&run_dir))
        })
        .collect()
}

#[test]
fn nothing_is_left_of_a_killed_agent_and_its_switches() {
    if skip_unless_root() || skip_without("ovs-vswitchd") {
        return;
    }
    let myelin = Myelin::new_shared();
    let socket = myelin.run_dir().join("controller.sock");
    std::fs::create_dir_all(myelin.run_dir()).unwrap();
    let listener = UnixListener::bind(&socket).unwrap();
    let text = FABRIC.replace("tcp:c0:6653", &format!("unix:{}", socket.display()));
    let file = myelin.write_file(&text);
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    // Each switch begins with the message HELLO.
    let mut header = [0; 8];
    let (mut first, _) = listener.accept().unwrap();
    first.read_exact(&mut header).unwrap();
    assert_eq!(header[1], 0, "{header:?}");
    let daemons = daemons_of(&myelin);
    assert_eq!(daemons.len(), 2);
    for pid in &daemons {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let uid = sh("id -u nobody");
        assert!(
            status.contains(&format!("Uid:\t{}", uid.trim())),
            "{status}"
        );
        // At most: low ports, broadcasts, links, raw frames, locked memory.
        let mut rights = status
            .lines()
            .filter_map(|line| line.strip_prefix("CapPrm:"));
        let rights = u64::from_str_radix(rights.next().unwrap().trim(), 16).unwrap();
        assert_eq!(rights & !0x7c00, 0, "{status}");
    }
    kill(&myelin.read_agent_pid().into());
    let recovered = myelin.run_ok(&["down", "--all"]);
    assert!(recovered.contains(".openflow"), "{recovered}");
    wait_for("the end of the daemons", || daemons_of(&myelin).is_empty());
    myelin.assert_clean();
    drop(first);
    for milliseconds in [5, 50, 150] {
        let file = myelin.write_file(&text);
        myelin.kill_agent_during_up(&file, Duration::from_millis(milliseconds));
        wait_for("the end of the daemons", || daemons_of(&myelin).is_empty());
    }
}
