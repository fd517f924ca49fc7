//! Topologies whose links have delay, rate and loss, with real packets.

mod common;

use std::net::UdpSocket;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use common::streams::PATIENCE;
use common::{Myelin, is_alive, kill, skip_unless_root, skip_without, wait_for};
use myelin_linux::feature::{Feature, ProbeResult, probe};
use myelin_linux::netns::Netns;
use myelin_linux::priorities;
use myelin_linux::sched::{self, Policy};
use serde_json::Value;

fn skip() -> bool {
    skip_unless_root() || skip_without("ping")
}

/// Two hosts behind a switch, and a direct link between two other hosts.
const LAB: &str = "
apiVersion: myelin.dev/v1alpha1
kind: Topology
metadata: { name: @lab }
spec:
  hosts: [ h1, h2, h3, h4 ]
  switches: [ s1, s2 ]
  links:
    - { ends: [ h1, s1 ], delay: 10ms }
    - { ends: [ s1, h2 ] }
    - { ends: [ h3, h4 ], delay: 10ms, jitter: 1ms, bandwidth: 100Mbit, queue: 100 }
    - { ends: [ s1, s2 ] }
";

fn up(myelin: &Myelin, text: &str) -> PathBuf {
    let file = myelin.write_file(text);
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    file
}

fn status(myelin: &Myelin) -> Value {
    myelin.run_json(&["ps", &myelin.chain_name("lab"), "--json"])
}

/// Sends pings between two hosts. Returns how many came back, and the shortest round trip, ms.
fn ping(myelin: &Myelin, from: &str, address: &str, count: &str) -> (u64, f64) {
    let topology = myelin.chain_name("lab");
    let host = format!("{topology}/{from}");
    let options = ["-c", count, "-i", "0.01", "-W", "20", address];
    let output = myelin.run(&[&["exec", &host, "--", "ping"][..], &options].concat());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let before = |words: &str| text.split(words).next().filter(|_| text.contains(words));
    let received = before(" received").and_then(|text| text.rsplit(", ").next());
    let received = received.unwrap_or_else(|| panic!("{output:?}"));
    let shortest = text.split("mdev = ").nth(1);
    let shortest = shortest.and_then(|text| text.split('/').next()?.parse().ok());
    (received.parse().unwrap(), shortest.unwrap_or(f64::NAN))
}

/// Returns the counters of a link, from its first end to its second.
fn counters(myelin: &Myelin, link: usize) -> Value {
    status(myelin)["links"][link]["directions"][0].clone()
}

fn address_of(myelin: &Myelin, host: usize) -> String {
    let status = status(myelin);
    let address = status["hosts"][host]["addresses"][0].as_str().unwrap();
    address.split('/').next().unwrap().to_owned()
}

#[test]
fn links_delay_packets_and_change_live() {
    if skip() {
        return;
    }
    let myelin = Myelin::new();
    up(&myelin, LAB);
    let link = |link: &str, options: &[&str]| {
        let link = format!("{}/{link}", myelin.chain_name("lab"));
        myelin.run_ok(&[&["link", &link], options].concat())
    };
    let (h2, h4) = (address_of(&myelin, 1), address_of(&myelin, 3));
    let (received, shortest) = ping(&myelin, "h1", &h2, "5");
    assert_eq!(received, 5);
    assert!(shortest >= 20.0, "{shortest}");
    let (received, shortest) = ping(&myelin, "h3", &h4, "5");
    assert_eq!(received, 5);
    assert!(shortest >= 18.0, "{shortest}");
    let before = counters(&myelin, 0);
    assert!(before["left"].as_u64() >= Some(5), "{before}");
    assert!(status(&myelin)["links"][1]["directions"].is_null());
    let text = link("h1-s1", &["--delay", "40ms"]);
    assert!(text.contains("delay 40ms"), "{text}");
    assert!(ping(&myelin, "h1", &h2, "3").1 >= 80.0);
    // A link that had no delay, and a link between hosts that keeps its way through the line.
    link("s1-h2", &["--delay", "30ms", "--bandwidth", "10Mbit"]);
    link("h1-s1", &["--delay", "0ms"]);
    assert!(ping(&myelin, "h1", &h2, "3").1 >= 60.0);
    let links = status(&myelin)["links"].clone();
    assert!(links[0]["directions"].is_null(), "{links}");
    assert_eq!(links[1]["impairments"]["rate_bps"], 10_000_000);
    link(
        "h3-h4",
        &["--delay", "0ms", "--jitter", "0ms", "--queue", "0"],
    );
    link("h3-h4", &["--bandwidth", "0bit"]);
    assert_eq!(ping(&myelin, "h3", &h4, "3").0, 3);
    // Numbers of directions are used again.
    for _ in 0..5 {
        link("h1-s1", &["--delay", "5ms"]);
        assert!(ping(&myelin, "h1", &h2, "2").1 >= 70.0);
        link("h1-s1", &["--delay", "0ms"]);
    }
    // A move and a break keep the delay.
    link("s1-h2", &["--to", "s2"]);
    assert!(ping(&myelin, "h1", &h2, "3").1 >= 60.0);
    link("h3-h4", &["--down"]);
    link("h3-h4", &["--up"]);
    wait_for("the link", || ping(&myelin, "h3", &h4, "1").0 == 1);
    let text = myelin.run_ok(&["ps", &myelin.chain_name("lab")]);
    assert!(text.contains("lateness"), "{text}");
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

/// Sends datagrams from one host to another. Returns the shortest time of one, ms.
fn one_way_ms(myelin: &Myelin, from: usize, to: usize) -> f64 {
    let names = status(myelin)["hosts"].clone();
    let open = |host: usize| {
        let netns = Netns::open(names[host]["netns"].as_str().unwrap()).unwrap();
        let address = address_of(myelin, host);
        let socket = netns.enter(move || UdpSocket::bind((address.as_str(), 0)).unwrap());
        let socket = socket.unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    };
    let (sender, receiver) = (open(from), open(to));
    sender.connect(receiver.local_addr().unwrap()).unwrap();
    let times = (0..5u8).map(|number| {
        let start = Instant::now();
        sender.send(&[number]).unwrap();
        let mut received = [0; 2];
        assert_eq!(receiver.recv(&mut received).expect("a datagram"), 1);
        assert_eq!(received[0], number);
        start.elapsed()
    });
    let shortest: Option<Duration> = times.min();
    shortest.unwrap().as_secs_f64() * 1e3
}

/// Measures both directions between the first two hosts, whose link has 40 ms from the first and
/// nothing back, and changes one direction and then the other.
fn check_directions(myelin: &Myelin, link: &str) {
    let name = format!("{}/{link}", myelin.chain_name("lab"));
    let measure = || [one_way_ms(myelin, 0, 1), one_way_ms(myelin, 1, 0)];
    let [there, back] = measure();
    assert!(there >= 40.0 && back < there, "{there} {back}");
    let text = myelin.run_ok(&["link", &name, "--from", "s1", "--delay", "90ms"]);
    assert!(text.contains("delay 40ms, back delay 90ms"), "{text}");
    let [there, back] = measure();
    assert!(
        (40.0..back).contains(&there) && back >= 90.0,
        "{there} {back}"
    );
    myelin.run_ok(&["link", &name, "--from", "h1", "--delay", "0ms"]);
    let [there, back] = measure();
    assert!(there < back && back >= 90.0, "{there} {back}");
    let links = status(myelin)["links"].clone();
    let delays = ["impairments", "back"].map(|key| links[0][key]["delay_ns"].clone());
    assert_eq!(delays, [0, 90_000_000], "{links}");
    // Without `--from`, both directions get the new values and keep the others.
    myelin.run_ok(&["link", &name, "--delay", "20ms"]);
    assert!(status(myelin)["links"][0]["back"].is_null());
    let error = myelin.run_failing(2, &["link", &name, "--from", "h2", "--delay", "1ms"]);
    assert!(error.contains("write `h1` or `s1`"), "{error}");
}

const ONE_WAY: &str = "{ ends: [ h1, s1 ], delay: 40ms, back: {} }";

#[test]
fn the_directions_of_a_link_differ() {
    if skip() {
        return;
    }
    let myelin = Myelin::new();
    let text = LAB.replace("{ ends: [ h1, s1 ], delay: 10ms }", ONE_WAY);
    let text = text.replace(
        "jitter: 1ms, bandwidth",
        "back: { delay: 30ms, loss: 0% }, bandwidth",
    );
    up(&myelin, &text);
    check_directions(&myelin, "h1-s1");
    // A link between hosts.
    let [there, back] = [one_way_ms(&myelin, 2, 3), one_way_ms(&myelin, 3, 2)];
    assert!(there >= 10.0 && back >= 30.0, "{there} {back}");
    let link = format!("{}/h3-h4", myelin.chain_name("lab"));
    myelin.run_ok(&["link", &link, "--from", "h4", "--loss", "100%"]);
    assert!(one_way_ms(&myelin, 2, 3) >= 10.0);
    assert_eq!(ping(&myelin, "h3", &address_of(&myelin, 3), "1").0, 0);
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn the_directions_of_a_netem_link_differ() {
    if skip() {
        return;
    }
    if probe(Feature::Netem) != ProbeResult::Yes {
        println!("SKIP: this kernel has no netem");
        return;
    }
    let myelin = Myelin::new();
    let netem = ONE_WAY.replace("back: {}", "back: {}, by: netem");
    up(
        &myelin,
        &LAB.replace("{ ends: [ h1, s1 ], delay: 10ms }", &netem),
    );
    check_directions(&myelin, "h1-s1");
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn a_loss_of_all_or_no_packets_is_exact() {
    if skip() {
        return;
    }
    let myelin = Myelin::new();
    up(&myelin, LAB);
    let name = format!("{}/s1-h2", myelin.chain_name("lab"));
    let h2 = address_of(&myelin, 1);
    assert_eq!(ping(&myelin, "h1", &h2, "1").0, 1);
    myelin.run_ok(&["link", &name, "--loss", "100%"]);
    let file = ["exec", &format!("{}/h1", myelin.chain_name("lab"))].map(str::to_owned);
    let output = myelin.run(&[&file[0], &file[1], "--", "ping", "-c", "2", "-W", "1", &h2]);
    assert!(!output.status.success());
    let stats = counters(&myelin, 1);
    assert_eq!(stats["left"], 0, "{stats}");
    assert_eq!(stats["lost"], stats["arrived"], "{stats}");
    assert!(stats["lost"].as_u64() >= Some(2), "{stats}");
    myelin.run_ok(&["link", &name, "--loss", "0%", "--delay", "1ms"]);
    assert_eq!(ping(&myelin, "h1", &h2, "3").0, 3);
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

fn class_of(pid: &Value) -> Policy {
    sched::get(pid.as_u64().unwrap() as u32).unwrap()
}

/// The class of a delay line: real-time, where the kernel gives it to programs of this group.
fn best_class() -> Policy {
    let real_time = Policy::Fifo(priorities::DELAY_LINE);
    let test = move || sched::set(0, real_time).is_ok();
    match std::thread::spawn(test).join() {
        Ok(true) => real_time,
        _ => Policy::Other,
    }
}

#[test]
fn a_dead_delay_line_comes_back() {
    if skip() {
        return;
    }
    let myelin = Myelin::new();
    up(&myelin, LAB);
    let h2 = address_of(&myelin, 1);
    assert_eq!(ping(&myelin, "h1", &h2, "1").0, 1);
    let pid = status(&myelin)["delay_line"]["pid"].clone();
    let class = class_of(&pid);
    assert_eq!(class, best_class());
    kill(&pid);
    wait_for("the restart", || {
        let line = status(&myelin)["delay_line"].clone();
        line["restarts"] == 1 && line["pid"] != 0
    });
    let (received, shortest) = ping(&myelin, "h1", &h2, "3");
    assert_eq!(received, 3);
    assert!(shortest >= 20.0, "{shortest}");
    let pid = status(&myelin)["delay_line"]["pid"].clone();
    wait_for("the class of the new worker", || class_of(&pid) == class);
    // The worker and the programs outlive the agent, and `down --all` removes them.
    myelin.kill_agent();
    assert!(is_alive(&pid));
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

/// Where the kernel has netem, a link with `by: netem` delays packets and changes live, also
/// between two hosts. Elsewhere its topology is refused with the remedy, and nothing is left.
#[test]
fn netem_delays_packets_or_is_refused() {
    if skip() {
        return;
    }
    let myelin = Myelin::new();
    let text = LAB.replace("delay: 10ms }", "delay: 10ms, by: netem }");
    let text = text + "    - { ends: [ h2, h3 ], by: netem }\n";
    if probe(Feature::Netem) == ProbeResult::Yes {
        up(&myelin, &text);
        let h2 = address_of(&myelin, 1);
        let (received, shortest) = ping(&myelin, "h1", &h2, "5");
        assert_eq!(received, 5);
        assert!(shortest >= 20.0, "{shortest}");
        for link in ["h1-s1", "h2-h3"] {
            let link = format!("{}/{link}", myelin.chain_name("lab"));
            let text = myelin.run_ok(&["link", &link, "--delay", "40ms"]);
            assert!(text.contains("delay 40ms, by netem"), "{text}");
        }
        assert!(ping(&myelin, "h1", &h2, "3").1 >= 80.0);
        assert!(status(&myelin)["links"][0]["directions"].is_null());
    } else {
        println!("this kernel has no netem: the topology must be refused");
        let file = myelin.write_file(&text);
        let error = myelin.run_failing(1, &["up", file.to_str().unwrap()]);
        for words in ["link `h1-s1`", "modprobe sch_netem", "remove the key"] {
            assert!(error.contains(words), "{words}: {error}");
        }
        assert!(myelin.run_ok(&["ps"]).contains("no chain runs"));
    }
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

/// A chain at ports of the lab: its functions, and its hook.
fn chain(functions: &str, hook: &str) -> String {
    format!(
        "apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: {{ name: @chain }}\nspec:\n  \
         match: {{ protocol: udp }}\n  functions: [ {functions} ]\n{hook}  \
         ports: {{ ingress: @lab/h1, egress: @lab/h2 }}\n"
    )
}

#[test]
fn chains_whose_packets_would_pass_beside_a_delay_are_refused() {
    const KERNEL: &str = "{ name: f, kind: monitor, space: kernel }";
    const USER: &str = "{ name: f, kind: monitor, space: user }";
    if skip() {
        return;
    }
    let myelin = Myelin::new();
    up(&myelin, LAB);
    let link = format!("{}/s1-h2", myelin.chain_name("lab"));
    let refuse = |text: &str, words: &[&str]| {
        let file = myelin.write_file(text);
        let error = myelin.run_failing(1, &["up", file.to_str().unwrap()]);
        for words in words {
            assert!(error.contains(words), "{words}: {error}");
        }
    };
    let beside = [
        (
            chain(KERNEL, "  hook: xdp\n"),
            ["XDP transmits", "hook: tcx"],
        ),
        (chain(USER, ""), ["AF_XDP", "space: kernel"]),
    ];
    // The link of h1 has a delay: packets meet it before the chain. That of h2 gets one.
    for (text, words) in &beside {
        up(&myelin, text);
        let error = myelin.run_failing(1, &["link", &link, "--delay", "1ms"]);
        for words in words {
            assert!(error.contains(words), "{words}: {error}");
        }
        myelin.run_ok(&["down", &myelin.chain_name("chain")]);
    }
    myelin.run_ok(&["link", &link, "--delay", "1ms"]);
    for (text, words) in &beside {
        refuse(text, words);
        refuse(text, &["s1-h2"]);
    }
    up(&myelin, &chain(KERNEL, ""));
    myelin.run_ok(&["link", &link, "--delay", "2ms"]);
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn impossible_links_are_refused_and_change_nothing() {
    if skip() {
        return;
    }
    let myelin = Myelin::new();
    let fast = LAB.replace("delay: 10ms }", "delay: 10s, bandwidth: 100Gbit }");
    let file = myelin.write_file(&fast);
    let error = myelin.run_failing(1, &["up", file.to_str().unwrap()]);
    assert!(error.contains("lower `bandwidth`"), "{error}");
    let netns = format!("/run/netns/myelin-{}-h1", myelin.chain_name("lab"));
    assert!(!std::path::Path::new(&netns).exists());
    let direct = format!("{LAB}    - {{ ends: [ h1, h3 ] }}\n");
    up(&myelin, &direct);
    let before = status(&myelin)["links"].clone();
    let topology = myelin.chain_name("lab");
    for (status, link, options, words) in [
        (1, "h1-s1", &["--jitter", "20ms"][..], "jitter exceeds"),
        (1, "h1-s1", &["--queue", "5"], "without a rate"),
        (1, "h1-s1", &["--delay", "11s"], "10s"),
        (1, "h1-h3", &["--delay", "1ms"], "switch between"),
        (1, "h1-h9", &["--delay", "1ms"], "h1-h9"),
        (
            1,
            "h1-s1",
            &["--delay", "9s", "--bandwidth", "100Gbit"],
            "lower `bandwidth`",
        ),
        (2, "h1-s1", &["--delay", "5"], "unit"),
        (2, "h1-s1", &["--loss", "200%"], "more than 100%"),
        (2, "h1-s1", &["--up", "--loss", "2%"], "cannot be used"),
        (2, "h1-s1", &[], "no change"),
    ] {
        let link = format!("{topology}/{link}");
        let error = myelin.run_failing(status, &[&["link", &link], options].concat());
        assert!(error.contains(words), "{options:?}: {error}");
    }
    let after = status(&myelin)["links"].clone();
    for (before, after) in before
        .as_array()
        .unwrap()
        .iter()
        .zip(after.as_array().unwrap())
    {
        assert_eq!(before["impairments"], after["impairments"]);
    }
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}
