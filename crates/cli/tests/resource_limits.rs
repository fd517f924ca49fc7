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
    command.output().expect("prlimit starts")
}

#[test]
fn errors_name_the_limit_that_is_reached_and_its_remedy() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let file = myelin.write_file(CHAIN);
    let up = ["up", file.to_str().unwrap()];
    for (limit, remedy) in [
        ("--nofile=16:16", "`ulimit -Hn`"),
        ("--nofile=48:48", "`ulimit -Hn`"),
        ("--fsize=65536:65536", "`ulimit -f`"),
        ("--as=300000000:300000000", "`ulimit -v`"),
    ] {
        let output = run_limited(&myelin, limit, &up);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{limit}: {error}");
        assert!(error.contains(remedy), "{limit}: {error}");
        myelin.run_ok(&["down", "--all"]);
        myelin.assert_clean();
    }
    // A low soft limit alone is no obstacle.
    let output = run_limited(&myelin, "--nofile=16:4096", &up);
    assert!(output.status.success(), "{output:?}");
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}
