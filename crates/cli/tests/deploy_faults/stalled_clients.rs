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
use crate::fixtures::{black_box, chain_source, unique_sleep};

/// Delay that a busy machine may add.
const SLACK: Duration = Duration::from_millis(100);
/// Repetitions of a list and of an `up`, whose medians a test compares.
const REPEATS: [usize; 2] = [20, 9];

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
fn measure_list_and_up(
    client: &Client,
    request: &UpRequest,
    name: &str,
    repeats: [usize; 2],
) -> [Duration; 2] {
    let lists =
        (0..repeats[0]).map(|_| measure_time(|| drop(client.list().expect("the JSON is a list"))));
    let ups = (0..repeats[1]).map(|_| {
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

/// Each request ends while the stalled clients and the slow program still wait.
#[test]
fn stalled_clients_and_a_slow_black_box_block_no_other_request() {
    if skip_unless_root() {
        return;
    }
    request_during_stalls([3, 2]);
}

#[test]
#[ignore = "thorough: compares the times of requests"]
fn stalled_clients_and_a_slow_black_box_delay_no_other_request() {
    if skip_unless_root() {
        return;
    }
    let ([before, during], cancel_time) = request_during_stalls(REPEATS);
    assert!(during[0] <= 3 * before[0] + SLACK, "{before:?} {during:?}");
    assert!(
        during[1] <= 3 * before[1] / 2 + SLACK,
        "{before:?} {during:?}"
    );
    assert!(cancel_time < 10 * SLACK, "{cancel_time:?}");
}

/// Makes requests before and during stalls. Returns the median times of a list and of an `up`
/// before and during the stalls, and the time until `down --all` cancelled waiting requests.
fn request_during_stalls(repeats: [usize; 2]) -> ([[Duration; 2]; 2], Duration) {
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
        lease: None,
    };
    let other = myelin.chain_name("o");
    let before = measure_list_and_up(&client, &request, &other, repeats);

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
    let sleep = unique_sleep(7336);
    let slow = black_box("w", 9001, &format!("sleep, '{sleep}'"), "60s");
    let mut slow_client = start_slow_up(&myelin, &myelin.write_file(&slow.text), &sleep);
    let pid = crate::common::sh(&format!("pgrep -fx 'sleep {sleep}'"));
    let pid: serde_json::Value = pid
        .trim()
        .parse::<u64>()
        .expect("the text is a number")
        .into();

    let during = measure_list_and_up(&client, &request, &other, repeats);
    println!("a list, an `up`: {before:?} before, {during:?} during the stall");
    let slow_end = slow_client.try_wait().expect("the state is readable");
    assert!(slow_end.is_none(), "the requests outlasted the startup");

    // `down --all` first cancels waiting requests.
    let start = Instant::now();
    let mut down_all = myelin
        .command(&["down", "--all"])
        .stdout(Stdio::null())
        .spawn()
        .expect("the client starts");
    while crate::common::is_alive(&pid) && start.elapsed() < Duration::from_secs(120) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let cancel_time = start.elapsed();
    println!("`down --all` cancelled waiting requests after {cancel_time:?}");
    let output = slow_client.wait_with_output().expect("the client ends");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("cancelled"), "{stderr}");
    assert!(down_all.wait().expect("the client ends").success());
    assert!(!is_sleep_running(&sleep));
    drop(stalled);
    myelin.assert_clean();
    ([before, during], cancel_time)
}
