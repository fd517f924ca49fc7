//! Tests that a second process cannot use the prefix of a running one.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use myelin_dpdk::{Environment, EnvironmentConfig, runtime_directory};

/// Environment variable with the prefix of the second process.
const PREFIX: &str = "MYELIN_TEST_PREFIX";

/// Runs in the helper process of the other test. Uses the prefix until its standard input ends.
#[test]
fn hold_prefix() {
    let Ok(prefix) = std::env::var(PREFIX) else {
        return;
    };
    let environment = Environment::start(&EnvironmentConfig::new(prefix)).unwrap();
    println!("\nready");
    std::io::stdout().flush().unwrap();
    let _ = std::io::stdin().lines().next();
    environment.stop();
}

/// Ends the first process and removes its files even if an assertion fails.
struct FirstProcess(Child, String);

impl Drop for FirstProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        let _ = std::fs::remove_dir_all(runtime_directory(&self.1));
    }
}

#[test]
fn a_second_process_with_the_same_prefix_is_refused_and_the_first_continues() {
    if let Err(error) = myelin_dpdk::version() {
        println!("SKIP: {error}");
        return;
    }
    if !nix::unistd::geteuid().is_root() {
        println!("SKIP: needs root for DPDK's runtime directory");
        return;
    }
    let prefix = format!("myelin-t{}", std::process::id());
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "hold_prefix", "--nocapture"])
        .env(PREFIX, &prefix)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = FirstProcess(child, prefix.clone());
    let mut lines = BufReader::new(first.0.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok);
    assert!(lines.any(|line| line == "ready"));

    let error = Environment::start(&EnvironmentConfig::new(&prefix))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains(&prefix) && error.contains("another process uses this prefix"),
        "{error}"
    );
    assert!(
        runtime_directory(&prefix).exists(),
        "the files of the first process remain"
    );
    drop(first.0.stdin.take());
    lines.for_each(drop);
    assert!(first.0.wait().unwrap().success());
    assert!(
        !runtime_directory(&prefix).exists(),
        "the first process left files"
    );
}
