//! Containers in the hosts of topologies: their end, and further programs in them.

mod common;

use std::io::Write;
use std::process::Stdio;

use common::{Myelin, is_alive, sh, skip_unless_root, skip_without, wait_for};

const HOSTS: &str = "
apiVersion: myelin.dev/v1alpha1
kind: Topology
metadata: { name: @boxes }
spec:
  hosts: [ h1, { name: h2, cpu: 500m, memory: 256MiB } ]
  links: [ { ends: [ h1, h2 ] } ]
";

/// Makes the topology and returns the full name of a host.
fn up(myelin: &Myelin, host: &str) -> String {
    let file = myelin.write_file(HOSTS);
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    format!("{}/{host}", myelin.chain_name("boxes"))
}

fn status(myelin: &Myelin, host: &str) -> serde_json::Value {
    let text = myelin.run_ok(&["container", "ps", host, "--json"]);
    serde_json::from_str::<serde_json::Value>(&text).unwrap()[0].clone()
}

#[test]
fn a_container_that_fails_at_once_is_told_with_its_status_and_last_lines() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    let h1 = up(&myelin, "h1");
    let add = |script| {
        [
            "container",
            "add",
            &h1,
            "box",
            "--watch",
            "60s",
            "--",
            "sh",
            "-c",
            script,
        ]
    };
    let error = myelin.run_failing(1, &add("echo first; echo last words >&2; exit 3"));
    for part in ["box", "exited with status 3", "first\n  last words"] {
        assert!(error.contains(part), "{error}");
    }
    let ended = status(&myelin, &h1);
    assert_eq!(ended["exit_code"], 3, "{ended}");
    assert_eq!(
        ended["last_lines"],
        serde_json::json!(["first", "last words"])
    );
    let listed = myelin.run_ok(&["container", "ps", &h1]);
    for part in ["exited with status", "last words"] {
        assert!(listed.contains(part), "{listed}");
    }
    let into_ended = myelin.run_failing(1, &["container", "exec", &h1, "box", "--", "true"]);
    assert!(into_ended.contains("exited with status 3"), "{into_ended}");
    // A container that has ended gives its name to the next one.
    let silent = myelin.run_failing(1, &add("exit 4"));
    assert!(silent.contains("exited with status 4"), "{silent}");
    assert!(silent.contains("wrote no output"), "{silent}");
    let done = myelin.run_ok(&add("echo done"));
    assert!(done.contains("exited with status 0"), "{done}");
    myelin.run_ok(&["container", "add", &h1, "box", "--", "sleep", "1000"]);
    let taken = myelin.run_failing(1, &add("true"));
    assert!(taken.contains("a container of that name exists"), "{taken}");
    myelin.run_ok(&["down", "--all"]);
}

#[test]
fn a_further_program_has_the_pipes_of_the_caller_and_the_rights_of_the_container() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    let h2 = up(&myelin, "h2");
    let add = [
        "container",
        "add",
        &h2,
        "box",
        "--env",
        "GREETING=hello",
        "--cpu",
        "100m",
        "--memory",
        "64MiB",
        "--",
        "sleep",
        "1000",
    ];
    myelin.run_ok(&add);
    let exec = |script| ["container", "exec", &h2, "box", "--", "sh", "-c", script];
    let mut command = myelin.command(&exec("cat; pwd; echo $GREETING; ls /sys/class/net; exit 7"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"input\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text, "input\n/\nhello\neth0\nlo\n");
    assert_eq!(output.status.code(), Some(7));
    let killed = myelin.run(&exec("kill -9 $$"));
    assert_eq!(killed.status.code(), Some(128 + 9));
    // Namespaces, capabilities and group are those of the container's first program.
    let first = status(&myelin, &h2)["pid"].clone();
    let inside =
        "readlink /proc/$$/ns/*; grep -E 'Cap|NoNewPrivs' /proc/$$/status; cat /proc/$$/cgroup";
    let own = myelin.run_ok(&exec(inside));
    let of_first = inside.replace("$$", &first.to_string());
    let of_first = std::process::Command::new("sh")
        .args(["-c", &of_first])
        .output()
        .unwrap();
    let of_first = String::from_utf8(of_first.stdout).unwrap();
    assert!(
        own.contains("NoNewPrivs:\t1") && own.contains("net:["),
        "{own}"
    );
    let without_groups = |text: &str| -> Vec<String> {
        let lines = text
            .lines()
            .filter(|line| !line.contains("/container") && !line.contains("cgroup:"));
        lines
            .filter(|line| !line.ends_with(":/"))
            .map(str::to_owned)
            .collect()
    };
    assert_eq!(without_groups(&own), without_groups(&of_first));
    let refused = myelin.run(&exec("echo x > /usr/x"));
    assert!(!refused.status.success());
    let missing = myelin.run_failing(
        1,
        &["container", "exec", &h2, "box", "--", "no-such-program"],
    );
    assert!(
        missing.contains("no-such-program") && missing.contains("box"),
        "{missing}"
    );
    let nowhere = myelin.run_failing(1, &["container", "exec", &h2, "none", "--", "true"]);
    assert!(nowhere.contains("no container `none`"), "{nowhere}");
    myelin.run_ok(&["down", "--all"]);
}

/// Stands for a runc whose command `@command` waits.
const SLOW_RUNC: &str = r#"#!/bin/sh
case " $* " in *" @command "*) exec sleep 1000 ;; esac
PATH=@path exec runc "$@"
"#;

/// Makes the topology, with an agent whose runc waits in this command. Returns the full name of a
/// host.
fn up_with_slow_runc(myelin: &Myelin, command: &str) -> String {
    let slow = myelin.write_file("").with_file_name("slow");
    std::fs::create_dir(&slow).unwrap();
    let path = std::env::var("PATH").unwrap();
    let script = SLOW_RUNC.replace("@path", &path);
    let script = script.replace("@command", command);
    std::fs::write(slow.join("runc"), script).unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(slow.join("runc"), executable).unwrap();
    // The first command starts the agent.
    let file = myelin.write_file(HOSTS);
    let mut up = myelin.command(&["up", file.to_str().unwrap()]);
    let up = up.env("PATH", format!("{}:{path}", slow.display()));
    assert!(up.stdout(Stdio::null()).status().unwrap().success());
    format!("{}/h1", myelin.chain_name("boxes"))
}

/// Whether a file of that name exists for the container `box` of a host.
fn has_file(myelin: &Myelin, host: &str, name: &str) -> bool {
    let bundle = format!("{}.box", host.replace('/', "."));
    let found = sh(&format!(
        "find {} -name '{name}' -path '*{bundle}*'",
        myelin.run_dir().display()
    ));
    !found.is_empty()
}

#[test]
fn the_removal_of_a_topology_interrupts_the_start_of_a_container() {
    if skip_unless_root() || skip_without("runc") {
        return;
    }
    let myelin = Myelin::new_shared();
    let h1 = up_with_slow_runc(&myelin, "run");
    let mut add = myelin.command(&["container", "add", &h1, "box", "--", "sleep", "1000"]);
    let add = add.stdin(Stdio::null()).stderr(Stdio::piped());
    let add = add.spawn().unwrap();
    wait_for("runc starts the container", || {
        has_file(&myelin, &h1, "config.json")
    });
    myelin.run_ok(&["down", &myelin.chain_name("boxes")]);
    let output = add.wait_with_output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("it is being removed"), "{error}");
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn the_removal_of_a_container_interrupts_the_start_of_a_further_program() {
    if skip_unless_root() || skip_without("runc") {
        return;
    }
    let myelin = Myelin::new_shared();
    let h1 = up_with_slow_runc(&myelin, "exec");
    myelin.run_ok(&["container", "add", &h1, "box", "--", "sleep", "1000"]);
    let is_starting = || has_file(&myelin, &h1, "program-*.json");
    let mut exec = myelin.command(&["container", "exec", &h1, "box", "--", "true"]);
    let exec = exec.stdin(Stdio::null()).stderr(Stdio::piped());
    let exec = exec.spawn().unwrap();
    wait_for("runc starts the program", is_starting);
    myelin.run_ok(&["container", "rm", &h1, "box"]);
    let output = exec.wait_with_output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("the container is being removed"), "{error}");
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn a_further_program_ends_with_its_client_and_with_the_container() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    let h2 = up(&myelin, "h2");
    myelin.run_ok(&["container", "add", &h2, "box", "--", "sleep", "1000"]);
    let group = status(&myelin, &h2)["id"].as_str().unwrap().to_owned();
    let processes = || -> Vec<serde_json::Value> {
        let listed = std::process::Command::new("pgrep")
            .args(["-f", "^sleep 1234"])
            .output()
            .unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap();
        let of_container = |pid: &&str| {
            let cgroup = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
            let name = group.rsplit('-').next().unwrap_or_default();
            cgroup.contains(name)
        };
        listed
            .lines()
            .filter(of_container)
            .map(|pid| pid.parse::<u32>().unwrap().into())
            .collect()
    };
    let start = || {
        let script = "sleep 1234 & sleep 1234; true";
        let mut command =
            myelin.command(&["container", "exec", &h2, "box", "--", "sh", "-c", script]);
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        wait_for("both programs", || processes().len() == 2);
        child
    };
    let mut child = start();
    let running = processes();
    child.kill().unwrap();
    child.wait().unwrap();
    wait_for("their end", || running.iter().all(|pid| !is_alive(pid)));
    let mut child = start();
    let running = processes();
    myelin.run_ok(&["container", "rm", &h2, "box"]);
    assert!(running.iter().all(|pid| !is_alive(pid)));
    child.wait().unwrap();
    myelin.run_ok(&["down", "--all"]);
}
