//! Limits of the agent's process: an error names the limit and its remedy, and leaves nothing
//! behind.

mod common;

use std::process::{Command, Output};

use common::{Myelin, skip_unless_root};

const CHAIN: &str = "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: { name: @limited }
spec:
  match: { protocol: udp }
  functions: [ { name: f, kind: monitor, space: user } ]
";

/// Runs a command with a limit of resources, in the form of prlimit(1).
fn run_limited(myelin: &Myelin, limit: &str, arguments: &[&str]) -> Output {
    let limited = myelin.command(arguments);
    let mut command = Command::new("prlimit");
    command
        .arg(limit)
        .arg(limited.get_program())
        .args(limited.get_args());
    for (key, value) in limited.get_envs() {
        command.env(key, value.expect("the variable is set"));
    }
    // By default glibc reserves 64 MiB of address space for each thread that allocates.
    command.env("MALLOC_ARENA_MAX", "1");
    command.output().expect("prlimit starts")
}

/// Returns the largest address space that the agent has had, in bytes.
fn peak_address_space(myelin: &Myelin) -> u64 {
    let pid = myelin.read_agent_pid();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmPeak:"));
    let kib = peak.expect("the kernel tells the peak").split_whitespace();
    let kib = kib.take(1).collect::<String>();
    1024 * kib.parse::<u64>().unwrap()
}

#[test]
fn errors_name_the_limit_that_is_reached_and_its_remedy() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let file = myelin.write_file(CHAIN);
    let up = ["up", file.to_str().unwrap()];
    // A low soft limit alone is no obstacle.
    let output = run_limited(&myelin, "--nofile=16:4096", &up);
    assert!(output.status.success(), "{output:?}");
    // Less than the agent needs, by most of the memory for the statistics.
    let address_space = peak_address_space(&myelin) - 30_000_000;
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
    let address_space = format!("--as={address_space}:{address_space}");
    for (limit, remedy) in [
        ("--nofile=16:16", "`ulimit -Hn`"),
        ("--nofile=48:48", "`ulimit -Hn`"),
        ("--fsize=65536:65536", "`ulimit -f`"),
        (&address_space, "`ulimit -v`"),
    ] {
        let output = run_limited(&myelin, limit, &up);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{limit}: {error}");
        assert!(error.contains(remedy), "{limit}: {error}");
        myelin.run_ok(&["down", "--all"]);
        myelin.assert_clean();
    }
}
