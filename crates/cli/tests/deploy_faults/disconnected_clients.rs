//! If a client disconnects while its chain waits, the agent undoes the chain, and other requests
//! continue.

use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::common::chains::KERNEL;
use crate::common::{Myelin, sh, skip_unless_root, wait_for};
use crate::fixtures::{black_box, unique_sleep};

/// The agent undoes a chain within this time, less than the 60 s for which the program starts.
const UNDO_LIMIT: Duration = Duration::from_secs(55);

/// Returns whether a process `sleep SECONDS` runs.
pub(crate) fn is_sleep_running(seconds: &str) -> bool {
    !sh(&format!("pgrep -fx 'sleep {seconds}' || true")).is_empty()
}

/// Starts `up` for a black box `sleep SECONDS` with a long startup; returns when the program runs.
pub(crate) fn start_slow_up(myelin: &Myelin, file: &Path, seconds: &str) -> Child {
    let client = start_up(myelin, file);
    wait_for("the program", || is_sleep_running(seconds));
    assert!(is_sleep_running(seconds));
    client
}

fn start_up(myelin: &Myelin, file: &Path) -> Child {
    myelin
        .command(&["up", file.to_str().expect("the path is UTF-8")])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the client starts")
}

fn kill_client(mut client: Child) {
    client.kill().expect("the client is killed");
    let _ = client.wait();
}

#[test]
fn a_chain_is_undone_when_its_client_disconnects_during_the_startup_of_a_black_box() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    let other = myelin.write_file(KERNEL);
    myelin.run_ok(&["up", other.to_str().expect("the path is UTF-8")]);
    // This command also records the links of the chain for `list_leftovers`.
    myelin.expect_chains(1);
    let idle = myelin.list_leftovers();
    let sleep = unique_sleep(7334);
    let slow = black_box("w", 9001, &format!("sleep, '{sleep}'"), "60s");
    // The agent must also undo the kernel chain of the same file.
    let file = myelin.write_file(&format!("{}---{}", KERNEL.replace("@k", "@l"), slow.text));
    let client = start_slow_up(&myelin, &file, &sleep);
    // Other requests continue and see neither of the two chains.
    assert_eq!(myelin.probe("k", 64, 10)["lost"], 0);
    myelin.run_ok(&["down", &myelin.chain_name("k")]);
    myelin.expect_chains(0);
    myelin.run_ok(&["up", other.to_str().expect("the path is UTF-8")]);
    // A second client waits for the names of the same chains, and disconnects.
    let second = start_up(&myelin, &file);
    std::thread::sleep(Duration::from_millis(100));
    kill_client(second);
    assert!(is_sleep_running(&sleep));
    let start = Instant::now();
    kill_client(client);
    wait_for("the end of the chain", || myelin.list_leftovers() == idle);
    assert_eq!(myelin.list_leftovers(), idle);
    assert!(start.elapsed() < UNDO_LIMIT, "{:?}", start.elapsed());
    assert!(!is_sleep_running(&sleep));
    myelin.expect_chains(1);
    // The names are free again.
    let quick = slow.text.replace("60s", "1ms");
    myelin.run_ok(&[
        "up",
        myelin
            .write_file(&quick)
            .to_str()
            .expect("the path is UTF-8"),
    ]);
    myelin.expect_chains(2);
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn a_waiting_client_gets_the_chain_name_when_the_other_client_disconnects() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    let sleep = unique_sleep(7335);
    let slow = black_box("w", 9001, &format!("sleep, '{sleep}'"), "60s");
    let client = start_slow_up(&myelin, &myelin.write_file(&slow.text), &sleep);
    let next = start_up(&myelin, &myelin.write_file(&KERNEL.replace("@k", "@w")));
    std::thread::sleep(Duration::from_millis(100));
    myelin.expect_chains(0);
    kill_client(client);
    let output = next.wait_with_output().expect("the client ends");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let status = myelin.read_status("w");
    assert_eq!(status["mapping"], "compact");
    assert_eq!(
        status["generation"], 0,
        "the chain of the other client came up"
    );
    assert!(!is_sleep_running(&sleep));
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}
