//! The agent must read the same `CLOCK_MONOTONIC` as the kernel, which stamps packets with it.

mod common;

use std::process::Command;

use common::{Myelin, skip, skip_unless_root};

#[test]
fn an_agent_in_a_time_namespace_with_another_clock_is_refused() {
    if skip_unless_root() {
        return;
    }
    let unshare = |offset: &str| {
        let mut command = Command::new("unshare");
        command.args(["--time", "--monotonic", offset]);
        command
    };
    let output = unshare("0").arg("true").output();
    if !output.is_ok_and(|output| output.status.success()) {
        skip("no time namespaces");
        return;
    }
    let myelin = Myelin::new();
    for (offset, expected) in [("1000", "1000 s ahead of"), ("-100", "100 s behind")] {
        let output = unshare(offset)
            .args([env!("CARGO_BIN_EXE_myelin"), "agent", "--idle-exit", "1s"])
            .env("MYELIN_RUN_DIR", myelin.run_dir())
            .output()
            .expect("unshare runs");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(
            text.contains("CLOCK_MONOTONIC") && text.contains(expected) && text.contains("nsenter"),
            "{text}"
        );
    }
    assert!(
        !myelin.run_dir().exists(),
        "the refused agent left its run directory"
    );
}
