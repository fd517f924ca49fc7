//! A stream of iperf3 keeps its connection under live changes and killed workers, and the account
//! of both chains adds up.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::load::read_count;
use crate::common::port_pair::PortPair;
use crate::common::{Myelin, kill, skip_unless_root, skip_without, wait_for};

/// Functions of both chains, deployed in turn. Those at even places have a worker.
const VARIANTS: [&str; 4] = [
    "[ { name: a, kind: monitor, space: user } ]",
    "[ { name: a, kind: firewall, space: kernel } ]",
    "[ { name: a, kind: firewall, space: kernel }, { name: b, kind: monitor, space: user }, { name: c, kind: forward, space: user } ]",
    "[ { name: a, kind: forward, space: kernel }, { name: b, kind: flow-tracker, space: kernel } ]",
];
/// Traffic between two disturbances.
const PAUSE: Duration = Duration::from_millis(700);
/// Longest time of the client above its own.
const PATIENCE: Duration = Duration::from_secs(120);

#[test]
fn a_stream_survives_live_changes_and_killed_workers() {
    keep_stream(8);
}

#[test]
#[ignore = "thorough: takes five minutes"]
fn a_stream_survives_five_minutes_of_live_changes_and_killed_workers() {
    keep_stream(300);
}

/// A process that is killed on drop.
struct Process(Child);

impl Process {
    fn start(netns: &str, arguments: &[&str], stdout: Stdio) -> Self {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", netns, "iperf3"]);
        command.args(arguments).stdin(Stdio::null()).stdout(stdout);
        Self(command.spawn().expect("ip runs"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn keep_stream(seconds: u64) {
    if skip_unless_root() || skip_without("iperf3") {
        return;
    }
    let myelin = Myelin::new();
    let ports = PortPair::new();
    let up = |variant: usize| {
        let functions = VARIANTS[variant % VARIANTS.len()];
        let file = myelin.write_file(&ports.both_ways(functions, ""));
        myelin.run_ok(&["up", file.to_str().unwrap()]);
    };
    up(0);
    let (client, server) = (ports.open_client(), ports.open_server());
    let [client, server] = [&client, &server].map(|netns| netns.name().unwrap());
    let listening = ["--server", "--one-off", "--bind", "10.77.0.2"];
    let _server = Process::start(server, &listening, Stdio::null());
    wait_for("the server of iperf3", || {
        let table = ports
            .open_server()
            .enter(|| std::fs::read_to_string("/proc/thread-self/net/tcp"));
        table.unwrap().unwrap().contains(":1451 00000000:0000 0A")
    });
    let time = seconds.to_string();
    let sending = ["--json", "--client", "10.77.0.2", "--time", &time];
    let mut client = Process::start(client, &sending, Stdio::piped());

    let start = Instant::now();
    let (mut changes, mut kills) = (0, 0);
    while start.elapsed() < Duration::from_secs(seconds) {
        std::thread::sleep(PAUSE);
        let workers = list_workers(&myelin);
        if let Some(pid) = workers.first().filter(|_| kills * 2 <= changes) {
            kill(pid);
            kills += 1;
            wait_for("a new worker", || {
                let workers = list_workers(&myelin);
                !workers.is_empty() && !workers.contains(pid)
            });
        } else {
            changes += 1;
            up(changes);
        }
    }
    let report = read_report(&mut client, Duration::from_secs(seconds) + PATIENCE);
    assert!(changes >= 2 && kills >= 1, "{changes} {kills}");
    assert_eq!(report["error"], Value::Null, "{}", report["error"]);
    let received = &report["end"]["sum_received"];
    let gbit_s = received["bits_per_second"].as_f64().unwrap() / 1e9;
    println!("{gbit_s:.2} Gbit/s, {changes} changes, {kills} killed workers");
    assert!(read_count(&received["bytes"]) > 1 << 20, "{received}");
    for name in ["there", "back"] {
        check_account(&myelin, name);
    }
    myelin.run_ok(&["down", "--all"]);
    drop(ports);
    myelin.assert_clean();
}

/// Lists the process numbers of the workers.
fn list_workers(myelin: &Myelin) -> Vec<Value> {
    let status = myelin.read_status("there");
    let pid = &status["worker"]["pid"];
    let is_running = pid.as_i64().is_some_and(|pid| pid > 0);
    is_running.then(|| pid.clone()).into_iter().collect()
}

/// Waits for the end of the client; returns its report.
fn read_report(client: &mut Process, patience: Duration) -> Value {
    let output = client.0.stdout.take().expect("the output is a pipe");
    let reader = std::thread::spawn(move || std::io::read_to_string(output));
    let start = Instant::now();
    while client.0.try_wait().unwrap().is_none() {
        assert!(start.elapsed() < patience, "the client does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = reader.join().unwrap().unwrap();
    serde_json::from_str(&output).unwrap_or_else(|error| panic!("{error}: {output}"))
}

/// Checks that the account names the place of each packet, once no packet is under way.
pub(crate) fn check_account(myelin: &Myelin, name: &str) {
    let mut account = Value::Null;
    wait_for("the last packets of the account", || {
        account = myelin.read_status(name)["account"].clone();
        account["under_way"] == 0
    });
    assert!(read_count(&account["packets_in"]) > 100, "{account}");
    let sum = |places: &Value| -> u64 {
        let places = places.as_object().expect("a place each");
        places.values().map(read_count).sum()
    };
    let [before, out, policed, way] =
        ["packets_in", "packets_out", "policed", "under_way"].map(|key| read_count(&account[key]));
    let made = account["made"].as_u64().unwrap_or_default();
    let gone = [&account["dropped"], &account["lost"]]
        .map(|places| if places.is_null() { 0 } else { sum(places) });
    let seen = out + policed + way + gone.iter().sum::<u64>();
    assert_eq!(before + made, seen, "{account}");
    println!("{name}: {account}");
}
