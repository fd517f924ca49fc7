//! Programs on hosts: their input, output, exit status, signals and terminal, and their end.

mod common;

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};

use common::{Myelin, is_alive, skip_unless_root, wait_for};
use nix::pty::{Winsize, openpty};

const PAIR: &str = "
apiVersion: myelin.dev/v1alpha1
kind: Topology
metadata: { name: @pair }
spec:
  hosts: [ h1, { name: h2, cpu: 500m, memory: 256MiB } ]
  links: [ { ends: [ h1, h2 ] } ]
";

fn up(myelin: &Myelin) {
    let file = myelin.write_file(PAIR);
    myelin.run_ok(&["up", file.to_str().unwrap()]);
}

/// Starts a shell script on a host with pipes.
fn start(myelin: &Myelin, host: &str, script: &str) -> Child {
    let host = format!("{}/{host}", myelin.chain_name("pair"));
    let mut command = myelin.command(&["exec", &host, "--", "sh", "-c", script]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command.spawn().unwrap()
}

fn read_line(child: &mut Child) -> String {
    let mut line = String::new();
    let output = child.stdout.as_mut().unwrap();
    // Byte by byte, so that the rest stays in the pipe.
    let mut byte = [0];
    while output.read(&mut byte).unwrap() > 0 && byte != *b"\n" {
        line.push(char::from(byte[0]));
    }
    line
}

#[test]
fn a_program_has_the_pipes_the_directory_and_the_status_of_the_caller() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    up(&myelin);
    let mut child = start(&myelin, "h1", "cat; pwd; ls /sys/class/net; exit 7");
    child.stdin.take().unwrap().write_all(b"input\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let here = std::env::current_dir().unwrap();
    let expected = format!("input\n{}\neth0\nlo\n", here.display());
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
    assert_eq!(output.status.code(), Some(7));
    let h1 = format!("{}/h1", myelin.chain_name("pair"));
    let killed = myelin.run(&["exec", &h1, "--", "sh", "-c", "kill -9 $$"]);
    assert_eq!(killed.status.code(), Some(128 + 9));
    let missing = myelin.run_failing(1, &["exec", &h1, "--", "no-such-program"]);
    assert!(
        missing.contains("no-such-program") && missing.contains(&h1),
        "{missing}"
    );
    let nowhere = myelin.run_failing(2, &["exec", "h9", "--", "true"]);
    assert!(nowhere.contains("no host `h9`"), "{nowhere}");
    myelin.run_ok(&["down", "--all"]);
}

#[test]
fn a_program_ends_with_its_client_and_with_its_host() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    up(&myelin);
    let pid = |child: &mut Child| -> serde_json::Value {
        read_line(child).parse::<u32>().unwrap().into()
    };
    let script = "sleep 1000 & echo $!; trap 'echo caught' INT; echo $$; wait; wait";
    let mut child = start(&myelin, "h2", script);
    let (background, shell) = (pid(&mut child), pid(&mut child));
    let groups = std::fs::read_to_string(format!("/proc/{shell}/cgroup")).unwrap();
    assert!(groups.contains(".h2/programs"), "{groups}");
    let signalled = nix::unistd::Pid::from_raw(child.id().cast_signed());
    nix::sys::signal::kill(signalled, nix::sys::signal::Signal::SIGINT).unwrap();
    assert_eq!(read_line(&mut child), "caught");
    child.kill().unwrap();
    child.wait().unwrap();
    wait_for("the end of both", || {
        !is_alive(&shell) && !is_alive(&background)
    });
    // On a host without limits, also a program in a session of its own ends with the host.
    let mut child = start(&myelin, "h1", "setsid sleep 1000 & echo $!; wait");
    let session = pid(&mut child);
    myelin.run_ok(&["down", "--all"]);
    wait_for("the end of the program", || !is_alive(&session));
    child.wait().unwrap();
}

/// Runs a shell in the place that these arguments name, with a terminal.
fn check_terminal(myelin: &Myelin, place: &[&str]) {
    let size = Winsize {
        ws_row: 31,
        ws_col: 97,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let pair = openpty(&size, None).unwrap();
    let script = "stty size; trap 'echo interrupted; exit 4' INT; read line; echo got $line; while :; do sleep 0.01; done";
    let mut command = myelin.command(&[place, &["--", "sh", "-c", script]].concat());
    let side = || Stdio::from(pair.slave.try_clone().unwrap());
    let child = command
        .stdin(side())
        .stdout(side())
        .stderr(side())
        .process_group(0);
    let mut child = child.spawn().unwrap();
    drop(command);
    drop(pair.slave);
    let mut keys = File::from(pair.master.try_clone().unwrap());
    let mut lines = BufReader::new(File::from(pair.master)).lines();
    let mut expect = |text: &str| {
        let found = lines.find(|line| line.as_ref().is_ok_and(|line| line.contains(text)));
        assert!(found.is_some_and(|line| line.is_ok()), "{text}");
    };
    expect("31 97");
    keys.write_all(b"hello\n").unwrap();
    expect("got hello");
    keys.write_all(b"\x03").unwrap();
    expect("interrupted");
    assert_eq!(child.wait().unwrap().code(), Some(4));
}

#[test]
fn a_terminal_passes_keys_sizes_and_interrupts() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    up(&myelin);
    let host = format!("{}/h1", myelin.chain_name("pair"));
    check_terminal(&myelin, &["exec", &host]);
    myelin.run_ok(&["down", "--all"]);
}
