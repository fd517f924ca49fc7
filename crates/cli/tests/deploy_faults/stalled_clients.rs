//! Stalled clients, and a black box that takes a minute to start, delay no other request.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::time::{Duration, Instant};

use myelin_api::{
    Client, PREFIX, ProbeOptions, ProbeRequest, RunDir, RunRequest, UpRequest, VERSION,
    VERSION_HEADER,
};

use crate::common::chains::KERNEL;
use crate::common::{Myelin, skip_unless_root, wait_for};
use crate::disconnected_clients::{is_sleep_running, start_slow_up};
use crate::fixtures::{black_box, chain_source};

/// Delay that a busy machine may add.
const SLACK: Duration = Duration::from_millis(100);
/// Repetitions of each request. The test compares medians.
const LIST_REPEATS: usize = 20;
const UP_REPEATS: usize = 9;

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn measure_time(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

/// Measures the median times of a list request and of an `up` request.
fn measure_list_and_up(client: &Client, request: &UpRequest, name: &str) -> [Duration; 2] {
    let lists = (0..LIST_REPEATS)
        .map(|_| measure_time(|| drop(client.list().expect("the JSON is a list"))));
    let ups = (0..UP_REPEATS).map(|_| {
        let time = measure_time(|| drop(client.up(request).expect("the chain is deployed")));
        client.down(name).expect("the chain is removed");
        time
    });
    [median(lists.collect()), median(ups.collect())]
}

/// Sends the head of a request with content length `length`, and the bytes `body`.
fn send_request(run_dir: &RunDir, path: &str, body: &[u8], length: usize) -> UnixStream {
    let mut socket =
        UnixStream::connect(run_dir.socket()).expect("the agent accepts the connection");
    write!(
        socket,
        "POST {PREFIX}{path} HTTP/1.1\r\nhost: myelin\r\ncontent-type: application/json\r\n\
         {VERSION_HEADER}: {VERSION}\r\ncontent-length: {length}\r\n\r\n"
    )
    .expect("the head is sent");
    socket.write_all(body).expect("the body is sent");
    socket
}

/// Sends a whole request. The caller must not read the answer.
fn send_whole_request(run_dir: &RunDir, path: &str, request: &impl serde::Serialize) -> UnixStream {
    let body = serde_json::to_vec(request).expect("the output is JSON");
    send_request(run_dir, path, &body, body.len())
}

#[test]
fn stalled_clients_and_a_slow_black_box_delay_no_other_request() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let measured = myelin.write_file(KERNEL);
    myelin.run_ok(&["up", measured.to_str().expect("the path is UTF-8")]);
    let run_dir = RunDir::resolve(Some(&myelin.run_dir()));
    let client = Client::connect(&run_dir)
        .expect("the agent answers")
        .expect("the agent serves");
    let request = UpRequest {
        source: chain_source(&myelin, &KERNEL.replace("@k", "@o")),
        force: false,
    };
    let other = myelin.chain_name("o");
    let before = measure_list_and_up(&client, &request, &other);

    // Three incomplete requests, then five whose streams of events the client does not read.
    let mut stalled = Vec::new();
    for path in ["/chains", "/probe", "/run"] {
        stalled.push(send_request(&run_dir, path, b"{ \"name\":", 1000));
    }
    let options = ProbeOptions {
        modes: vec!["blocking".into()],
        payloads: vec![64],
        interval_us: 20_000,
        count: 1000,
        repeats: 1000,
    };
    for chain in ["r", "s"] {
        let run = RunRequest {
            source: chain_source(&myelin, &KERNEL.replace("@k", &format!("@{chain}"))),
            options: options.clone(),
            force: false,
            floods: Vec::new(),
        };
        stalled.push(send_whole_request(&run_dir, "/run", &run));
    }
    for _ in 0..3 {
        let probe = ProbeRequest {
            chain: myelin.chain_name("k"),
            options: options.clone(),
        };
        stalled.push(send_whole_request(&run_dir, "/probe", &probe));
    }
    let all_run = || client.list().expect("the JSON is a list").len() == 3;
    wait_for("the chains of `run`", all_run);
    assert!(all_run());
    let slow = black_box("w", 9001, "sleep, 7336.25", "60s");
    let slow_client = start_slow_up(&myelin, &myelin.write_file(&slow.text), "7336.25");
    let pid = crate::common::sh("pgrep -fx 'sleep 7336.25'");
    let pid: serde_json::Value = pid
        .trim()
        .parse::<u64>()
        .expect("the text is a number")
        .into();

    let during = measure_list_and_up(&client, &request, &other);
    println!("a list, an `up`: {before:?} before, {during:?} during the stall");
    assert!(during[0] <= 3 * before[0] + SLACK, "{before:?} {during:?}");
    assert!(
        during[1] <= 3 * before[1] / 2 + SLACK,
        "{before:?} {during:?}"
    );

    // `down --all` first cancels waiting requests.
    let start = Instant::now();
    let mut down_all = myelin
        .command(&["down", "--all"])
        .stdout(Stdio::null())
        .spawn()
        .expect("the client starts");
    while crate::common::is_alive(&pid) && start.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let cancel_time = start.elapsed();
    println!("`down --all` cancelled waiting requests after {cancel_time:?}");
    assert!(cancel_time < 10 * SLACK, "{cancel_time:?}");
    let output = slow_client.wait_with_output().expect("the client ends");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("cancelled"), "{stderr}");
    assert!(down_all.wait().expect("the client ends").success());
    assert!(!is_sleep_running("7336.25"));
    drop(stalled);
    myelin.assert_clean();
}
