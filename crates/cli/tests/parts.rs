//! Parts of chains: frames with NSH between two parts of one agent, and of two agents.

mod common;
#[path = "parts/wire.rs"]
mod wire;

use std::net::UdpSocket;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::port_pair::PortPair;
use common::streams::{PATIENCE, Streams};
use common::{Myelin, becomes_true, sh, skip_unless_root, skip_without, wait_for};
use wire::{MACS, Way, Wire};

/// The functions of the first and of the second part, and lines of their `spec`.
const PARTS: [(&str, [&str; 2], &str); 10] = [
    (
        "kernel functions",
        [
            "[ { name: a, kind: firewall, space: kernel } ]",
            "[ { name: b, kind: monitor, space: kernel }, { name: c, kind: forward, space: kernel } ]",
        ],
        "",
    ),
    (
        "payloads in the kernel",
        [CODER_IN_KERNEL, CODER_IN_KERNEL],
        "",
    ),
    (
        "kernel functions at XDP",
        [
            "[ { name: a, kind: monitor, space: kernel } ]",
            "[ { name: b, kind: forward, space: kernel } ]",
        ],
        "  hook: xdp\n",
    ),
    (
        "user functions",
        [
            "[ { name: a, kind: monitor, space: user } ]",
            "[ { name: b, kind: forward, space: user } ]",
        ],
        "",
    ),
    (
        "kernel, then user",
        [
            "[ { name: a, kind: firewall, space: kernel } ]",
            "[ { name: b, kind: monitor, space: user }, { name: c, kind: firewall, space: kernel } ]",
        ],
        "",
    ),
    (
        "user, then kernel",
        [
            "[ { name: a, kind: xor, space: user, config: { key: 90 } } ]",
            CODER_IN_KERNEL,
        ],
        "",
    ),
    (
        "pipeline",
        [
            "[ { name: a, kind: monitor, space: user }, { name: b, kind: forward, space: user } ]",
            "[ { name: c, kind: monitor, space: user }, { name: d, kind: forward, space: user } ]",
        ],
        "  mapping: pipeline\n",
    ),
    (
        "shaped kernel functions",
        [CODER_IN_KERNEL, CODER_IN_KERNEL],
        SHAPED,
    ),
    (
        "shaped user functions",
        [
            "[ { name: a, kind: monitor, space: user } ]",
            "[ { name: b, kind: monitor, space: user } ]",
        ],
        SHAPED,
    ),
    (
        "distributed",
        [
            "[ { name: a, kind: monitor, space: kernel }, { name: b, kind: monitor, space: user } ]",
            "[ { name: c, kind: monitor, space: user }, { name: d, kind: firewall, space: kernel } ]",
        ],
        "  mapping: distributed\n",
    ),
];

const SHAPED: &str = "  sla: { rate: 20kpps, burst: 1000, enforce: both }\n";
const CODER_IN_KERNEL: &str = "[ { name: x, kind: xor, space: kernel, config: { key: 90 } } ]";

/// Sends ten datagrams with partial checksums, then two super-packets of ten datagrams each
/// (SOL_UDP, UDP_SEGMENT).
const SEND_DATAGRAMS: &str = "import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect((\"10.77.0.2\", 9000))
for i in range(10): s.send(bytes([i]) * 700)
s.setsockopt(17, 103, 700)
for i in range(10, 30, 10): s.send(b\"\".join(bytes([j]) * 700 for j in range(i, i + 10)))";

/// Reads the thirty datagrams.
fn receive_datagrams(server: &UdpSocket, name: &str) {
    let mut buffer = [0; 2000];
    for i in 0..30_u8 {
        let length = server.recv(&mut buffer);
        let length = length.unwrap_or_else(|error| panic!("{name}: datagram {i}: {error}"));
        assert_eq!(length, 700, "{name}");
        assert!(
            buffer[..700].iter().all(|byte| byte == &buffer[0]),
            "{name}"
        );
    }
}

#[test]
fn datagrams_pass_two_parts_of_one_agent() {
    if skip_unless_root() {
        return;
    }
    let (myelin, ports) = (Myelin::new(), PortPair::new());
    let wire = Wire::new(Way::Ethernet);
    let bind = || UdpSocket::bind("10.77.0.2:9000").unwrap();
    let server = ports.open_server().enter(bind).unwrap();
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    for (name, functions, spec) in PARTS {
        let file = myelin.write_file(&wire.both_ways(&ports, functions, spec));
        myelin.run_ok(&["up", file.to_str().unwrap()]);
        ports.run_on_client(SEND_DATAGRAMS);
        receive_datagrams(&server, name);
        for part in ["there1", "there2"] {
            wait_for("all packets in the account", || {
                myelin.read_status(part)["packets_out"] == 30
            });
            let status = myelin.read_status(part);
            assert_eq!(status["packets_in"], 30, "{name}: {status}");
        }
        let sent = &myelin.read_status("there1")["part"]["sent"];
        assert_eq!(*sent, 30, "{name}");
        myelin.run_ok(&["down", "--all"]);
    }
    drop(ports);
    myelin.assert_clean();
}

#[test]
fn streams_pass_two_parts_of_one_agent() {
    if skip_unless_root() {
        return;
    }
    let (myelin, ports) = (Myelin::new(), PortPair::new());
    let wire = Wire::new(Way::Ethernet);
    let streams = Streams::between(ports.open_client(), &ports.open_server(), "10.77.0.2:9000");
    ports.set_host_mtu(1462);
    for (name, functions, spec) in PARTS {
        let file = myelin.write_file(&wire.both_ways(&ports, functions, spec));
        myelin.run_ok(&["up", file.to_str().unwrap()]);
        streams.pass_both_ways(name);
        myelin.run_ok(&["down", "--all"]);
    }
    drop(ports);
    myelin.assert_clean();
}

/// Two nodes: the first has the ingress port, the second the egress port.
struct TwoNodes {
    // Fields drop in this order: the agents before their links.
    first: Myelin,
    second: Myelin,
    agent: Child,
    ports: PortPair,
    wire: Wire,
}

impl TwoNodes {
    fn new(way: Way) -> Self {
        let (first, second) = (Myelin::new_shared(), Myelin::new_shared());
        let ports = PortPair::new();
        let wire = Wire::to_node(way, &ports);
        let agent = wire.start_agent(&second);
        Self {
            first,
            second,
            agent,
            ports,
            wire,
        }
    }

    /// Deploys the two parts of a chain to the server.
    fn up(&self, functions: [&str; 2], spec: &str) {
        let ports = [self.ports.ingress.as_str(), self.ports.egress.as_str()];
        let to = ("destination: 10.77.0.2", ports);
        let parts = self.wire.parts(("c", 0x80_0001), to, (0, functions), spec);
        for (myelin, part) in [&self.second, &self.first]
            .into_iter()
            .zip(parts.iter().rev())
        {
            let file = myelin.write_file(part);
            myelin.run_ok(&["up", file.to_str().unwrap()]);
        }
    }

    fn bind_server(&self) -> UdpSocket {
        let bind = || UdpSocket::bind("10.77.0.2:9000").unwrap();
        let server = self.ports.open_server().enter(bind).unwrap();
        server.set_read_timeout(Some(PATIENCE)).unwrap();
        server
    }

    /// Waits until a count of the wires of a node's part has this value.
    fn wait_for_count(&self, node: usize, name: &str, expected: u64) {
        let (myelin, part) = [(&self.first, "c1"), (&self.second, "c2")][node];
        let mut last = serde_json::Value::Null;
        let found = becomes_true(|| {
            last = myelin.read_status(part);
            last["part"][name] == expected
        });
        assert!(found, "{name} of {part}: {last}");
    }

    fn down(&self) {
        self.first.run_ok(&["down", "--all"]);
        self.second.run_ok(&["down", "--all"]);
    }

    fn assert_clean(mut self) {
        self.down();
        sh(&format!("kill {} 2> /dev/null || true", self.agent.id()));
        self.agent.wait().expect("the agent ends");
        self.first.assert_clean();
        self.second.assert_clean();
    }
}

const KERNEL: [&str; 2] = PARTS[0].1;
const USER: [&str; 2] = PARTS[3].1;

#[test]
fn datagrams_pass_two_agents_on_ethernet_and_in_vxlan() {
    if skip_unless_root() {
        return;
    }
    for way in [Way::Ethernet, Way::Vxlan4, Way::Vxlan6] {
        let nodes = TwoNodes::new(way);
        let server = nodes.bind_server();
        for functions in [KERNEL, USER] {
            nodes.up(functions, "");
            nodes.ports.run_on_client(SEND_DATAGRAMS);
            receive_datagrams(&server, &format!("{way:?}"));
            nodes.wait_for_count(0, "sent", 30);
            nodes.wait_for_count(1, "received", 30);
            // Both nodes have one kernel, so the last part's sojourn is that of the whole chain. A
            // worker reads the clock after it has sent, so only kernel functions show it.
            nodes.wait_for_count(1, "stamped", 30);
            let median = |myelin: &Myelin, part: &str| {
                let status = myelin.read_status(part);
                assert_eq!(status["sojourn"]["packets"], 30, "{status}");
                status["sojourn"]["p50_us"].as_f64().unwrap()
            };
            let (first, whole) = (median(&nodes.first, "c1"), median(&nodes.second, "c2"));
            assert!(
                whole >= first || functions == USER,
                "{way:?}: {first} us, then {whole} us"
            );
            let shown = nodes.second.run_ok(&["ps", &nodes.second.chain_name("c2")]);
            assert!(
                shown.contains("30 received from the previous node"),
                "{shown}"
            );
            nodes.first.run_ok(&["down", &nodes.first.chain_name("c1")]);
            nodes
                .second
                .run_ok(&["down", &nodes.second.chain_name("c2")]);
        }
        nodes.assert_clean();
    }
}

/// Sends frames from an interface: each a list of bytes in hexadecimal.
fn send_frames(namespace: Option<&str>, interface: &str, frames: &[String]) {
    let program = format!(
        "import socket
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind((\"{interface}\", 0))
for frame in {frames:?}: s.send(bytes.fromhex(frame))"
    )
    .replace('\'', "\"");
    let enter = namespace.map_or(String::new(), |name| format!("ip netns exec {name} "));
    sh(&format!("{enter}python3 -c '{program}'"));
}

/// Returns a frame with NSH of path 0x800001 from the first node, in hexadecimal, with an IPv4
/// datagram to the server's port 9000.
fn frame(source: &str, base: u32, path: u32, index: u8) -> String {
    let mac = |text: &str| text.replace(':', "");
    let context = "00".repeat(16);
    let ip = "4500002400010000401166c00a4d00010a4d0002";
    let udp = "0fa0232800100000";
    let data = "00".repeat(8);
    format!(
        "{}{}894f{base:08x}{path:06x}{index:02x}{context}{}{}0800{ip}{udp}{data}",
        mac(MACS[1]),
        mac(source),
        "020000770002",
        "020000000009",
    )
}

#[test]
fn forged_frames_are_dropped_and_counted() {
    if skip_unless_root() {
        return;
    }
    let nodes = TwoNodes::new(Way::Ethernet);
    nodes.up(KERNEL, "");
    let (x, neighbour) = (&nodes.wire.ends[0], MACS[0]);
    // The second part begins at position 1.
    let (path, index, base) = (0x80_0001, 254, 0x0fc6_0103);
    let stranger = "02:00:00:78:00:09";
    for (name, frames) in [
        ("foreign", vec![frame(stranger, base, path, index)]),
        (
            "unknown",
            vec![
                frame(neighbour, base, path + 1, index),
                frame(neighbour, base, path, index - 1),
                frame(stranger, base, 1, index),
            ],
        ),
        (
            "malformed",
            vec![
                frame(neighbour, base | 0x4000_0000, path, index),
                frame(neighbour, base | 0x2000_0000, path, index),
                frame(neighbour, (base & !0xff00) | 0x0200, path, index),
                frame(neighbour, (base & !0xff) | 1, path, index),
                frame(neighbour, base, path, index)[..60].to_owned(),
            ],
        ),
        ("expired", vec![frame(neighbour, 0x0046_0103, path, index)]),
    ] {
        send_frames(None, x, &frames);
        nodes.wait_for_count(1, name, frames.len() as u64);
    }
    // NSH in the traffic of users.
    let client = nodes.ports.client_namespace();
    send_frames(
        Some(&client),
        "eth0",
        &[frame(neighbour, base, path, index)],
    );
    nodes.wait_for_count(0, "unknown", 1);
    let status = nodes.second.read_status("c2");
    assert_eq!(
        (&status["packets_in"], &status["part"]["received"]),
        (&0.into(), &0.into())
    );
    // A whole frame of the neighbour passes: the counts above are no accident.
    send_frames(None, x, &[frame(neighbour, base, path, index)]);
    nodes.wait_for_count(1, "received", 1);
    nodes.wait_for_count(1, "stamped", 0);
    nodes.assert_clean();
}

#[test]
fn the_mtu_that_remains_is_planned_and_kept() {
    if skip_unless_root() {
        return;
    }
    let nodes = TwoNodes::new(Way::Vxlan4);
    nodes.up(KERNEL, "");
    let plan = nodes
        .first
        .run_ok(&["ps", "-v", &nodes.first.chain_name("c1")]);
    assert!(!plan.is_empty());
    let ports = [nodes.ports.ingress.as_str(), nodes.ports.egress.as_str()];
    let to = ("destination: 10.77.0.2", ports);
    let [part, _] = nodes.wire.parts(("c", 0x80_0001), to, (0, KERNEL), "");
    let file = nodes.first.write_file(&part);
    let file = file.to_str().unwrap();
    let plan = nodes.first.run_ok(&["plan", file]).replace("\n    ", "");
    assert!(
        plan.contains("packets of up to 1412 B to the next node"),
        "{plan}"
    );
    assert!(plan.contains("the senders' MTU to 1412"), "{plan}");
    let server = nodes.bind_server();
    // With IPv4 and UDP headers: 1412 and 1413 bytes.
    nodes.ports.run_on_client(
        "import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for length in (1385, 1384): s.sendto(b\"x\" * length, (\"10.77.0.2\", 9000))",
    );
    let mut buffer = [0; 2000];
    assert_eq!(server.recv(&mut buffer).unwrap(), 1384);
    nodes.wait_for_count(0, "too_long", 1);
    nodes.wait_for_count(0, "sent", 1);
    wait_for("the loss in the account", || {
        nodes.first.read_status("c1")["packets_out"] == 1
    });
    sh(&format!("ip link set {} mtu 120", nodes.wire.ends[0]));
    let refused = nodes.first.run_failing(2, &["plan", file]);
    assert!(refused.contains("leave no room for packets"), "{refused}");
    nodes.assert_clean();
}

#[test]
fn a_later_part_changes_its_functions_but_not_its_wires() {
    if skip_unless_root() {
        return;
    }
    let nodes = TwoNodes::new(Way::Ethernet);
    nodes.up(KERNEL, "");
    let server = nodes.bind_server();
    // The same positions, in user space.
    nodes.up(
        [
            "[ { name: a, kind: forward, space: user } ]",
            "[ { name: b, kind: monitor, space: user }, { name: c, kind: forward, space: user } ]",
        ],
        "",
    );
    nodes.ports.run_on_client(SEND_DATAGRAMS);
    receive_datagrams(&server, "after the change");
    let ports = [nodes.ports.ingress.as_str(), nodes.ports.egress.as_str()];
    let to = ("destination: 10.77.0.2", ports);
    // A later part has the wires of one path. `chain_over_nodes.rs` changes the first part's.
    let [_, part] = nodes.wire.parts(("c", 0x80_0002), to, (0, KERNEL), "");
    let file = nodes.second.write_file(&part);
    let refused = nodes.second.run_failing(1, &["up", file.to_str().unwrap()]);
    assert!(
        refused.contains("no other part can change these while it runs"),
        "{refused}"
    );
    // A wire that is down is a fault.
    sh(&format!("ip link set {} down", nodes.wire.ends[0]));
    common::port_chains::wait_for_fault(&nodes.first, "c1", "waiting", "is gone or down");
    sh(&format!("ip link set {} up", nodes.wire.ends[0]));
    common::port_chains::wait_until_active(&nodes.first, "c1");
    nodes.ports.run_on_client(SEND_DATAGRAMS);
    receive_datagrams(&server, "after the fault");
    // A killed agent leaves nothing.
    nodes.second.kill_agent();
    nodes.assert_clean();
}

#[test]
fn tshark_reads_the_frames() {
    if skip_unless_root() || skip_without("tshark") {
        return;
    }
    for (way, layers) in [
        (Way::Ethernet, "eth:ethertype:nsh:eth:ethertype:ip:udp:data"),
        (
            Way::Vxlan4,
            "eth:ethertype:ip:udp:vxlan:eth:ethertype:nsh:eth:ethertype:ip:udp:data",
        ),
        (
            Way::Vxlan6,
            "eth:ethertype:ipv6:udp:vxlan:eth:ethertype:nsh:eth:ethertype:ip:udp:data",
        ),
    ] {
        let nodes = TwoNodes::new(way);
        nodes.up(KERNEL, "");
        let server = nodes.bind_server();
        let fields = [
            "frame.protocols",
            "nsh.spi",
            "nsh.si",
            "nsh.ttl",
            "_ws.expert.message",
        ];
        let fields = fields.map(|field| format!("-e {field}")).join(" ");
        let node = nodes.wire.node.as_deref().unwrap();
        let capture = Command::new("sh")
            .args(["-c", &format!(
                "exec ip netns exec {node} tshark -l -n -i {} -f 'ether proto 0x894f or udp port 4789' -c 3 -T fields {fields}",
                nodes.wire.ends[1]
            )])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("tshark starts");
        // Sends until tshark has what it waits for, because its capture begins late.
        let reader = std::thread::spawn(move || capture.wait_with_output().expect("tshark ends"));
        while !reader.is_finished() {
            nodes.ports.send_ten(9000);
            std::thread::sleep(Duration::from_millis(50));
        }
        let read = reader.join().expect("the thread does not panic");
        let text = String::from_utf8_lossy(&read.stdout).into_owned();
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split('\t').collect())
            .collect();
        assert_eq!(lines.len(), 3, "{way:?}: {text}");
        for line in lines {
            assert_eq!(line[0], layers, "{way:?}: {text}");
            let numbers = [line[1], line[2], line[3]].map(parse_number);
            assert_eq!(numbers, [0x80_0001, 254, 63], "{way:?}: {text}");
            assert!(
                !line[4].contains("Malformed") && !line[4].contains("Bad"),
                "{text}"
            );
        }
        drop(server);
        nodes.assert_clean();
    }
}

/// Reads a decimal or hexadecimal number.
fn parse_number(text: &str) -> u32 {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.unwrap_or_else(|error| panic!("`{text}`: {error}"))
}
