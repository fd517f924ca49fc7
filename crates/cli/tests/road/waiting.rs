//! A client that goes while its chain waits: the chain is undone, and nobody else notices.

use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::common::chains::KERNEL;
use crate::common::{Myelin, sh, skip_unless_root, wait_for};
use crate::forms::black_box;

/// How soon what nobody wants any more must be gone on a busy machine.
const SOON: Duration = Duration::from_secs(20);

/// Whether a program runs that sleeps that long.
pub(crate) fn sleeps(seconds: &str) -> bool {
    !sh(&format!("pgrep -fx 'sleep {seconds}' || true")).is_empty()
}

/// Starts `up` for a black box that is up when it has slept for long, and waits until that one is
/// being waited for.
pub(crate) fn begin_up(myelin: &Myelin, file: &Path, seconds: &str) -> Child {
    let client = up(myelin, file);
    wait_for("the program", || sleeps(seconds));
    assert!(sleeps(seconds));
    client
}

fn up(myelin: &Myelin, file: &Path) -> Child {
    myelin
        .command(&["up", file.to_str().expect("a path")])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a client")
}

fn end(mut client: Child) {
    client.kill().expect("kill");
    let _ = client.wait();
}

#[test]
fn a_client_goes_while_its_chain_waits_for_a_black_box() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::beside_others();
    let other = myelin.file(KERNEL);
    myelin.ok(&["up", other.to_str().expect("a path")]);
    // Whose links are known from now on.
    myelin.expect_chains(1);
    let idle = myelin.leftovers();
    let slow = black_box("w", 9001, "sleep, 7334.25", "60s");
    // A kernel chain of the same file, which must go with it.
    let file = myelin.file(&format!("{}---{}", KERNEL.replace("@k", "@l"), slow.text));
    let client = begin_up(&myelin, &file, "7334.25");
    // Others work meanwhile, and see neither of the two.
    assert_eq!(myelin.probe("k", 64, 10)["lost"], 0);
    myelin.ok(&["down", &myelin.chain("k")]);
    myelin.expect_chains(0);
    myelin.ok(&["up", other.to_str().expect("a path")]);
    // A second client for the same chain waits for the first, and goes too.
    let second = up(&myelin, &file);
    std::thread::sleep(Duration::from_millis(100));
    end(second);
    assert!(sleeps("7334.25"));
    let start = Instant::now();
    end(client);
    wait_for("the end of the chain", || myelin.leftovers() == idle);
    assert_eq!(myelin.leftovers(), idle);
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    assert!(!sleeps("7334.25"));
    myelin.expect_chains(1);
    // Nothing is reserved any more.
    let quick = slow.text.replace("60s", "1ms");
    myelin.ok(&["up", myelin.file(&quick).to_str().expect("a path")]);
    myelin.expect_chains(2);
    myelin.ok(&["down", "--all"]);
    myelin.assert_clean();
}

/// Who waits for a chain's name gets it when the other client goes.
#[test]
fn a_client_goes_and_the_next_one_gets_the_name() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::beside_others();
    let slow = black_box("w", 9001, "sleep, 7335.25", "60s");
    let client = begin_up(&myelin, &myelin.file(&slow.text), "7335.25");
    let next = up(&myelin, &myelin.file(&KERNEL.replace("@k", "@w")));
    std::thread::sleep(Duration::from_millis(100));
    myelin.expect_chains(0);
    let start = Instant::now();
    end(client);
    let output = next.wait_with_output().expect("its end");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    assert_eq!(myelin.status("w")["mapping"], "compact");
    assert!(!sleeps("7335.25"));
    myelin.ok(&["down", "--all"]);
    myelin.assert_clean();
}
