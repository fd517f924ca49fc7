//! Black boxes in containers.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{Myelin, sh, skip_unless_root, skip_without, wait_for};
use crate::{assert_no_loss, read_status};

/// A program that forwards each frame from ingress to egress.
const FORWARDER: &str = "import os, socket
def open(name):
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    s.bind((os.environ[name], 0))
    return s
a, b = open('MYELIN_INGRESS'), open('MYELIN_EGRESS')
while True:
    frame, source = a.recvfrom(65536)
    if source[2] != socket.PACKET_OUTGOING: b.send(frame)
";

/// Formats a chain of one forwarding black box in a container. `more` holds keys of the function.
fn format_black_box(more: &str) -> String {
    let program = serde_json::to_string(FORWARDER).unwrap();
    let command = format!("[ /usr/bin/python3, -c, {program} ], startup: 60s");
    format_black_box_with_command(more, &command)
}

/// Formats a chain of one black box in a container. `command` may continue with further keys of
/// `config`.
fn format_black_box_with_command(more: &str, command: &str) -> String {
    format!(
        "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: {{ name: @c }}
spec:
  match: {{ protocol: udp, destination: 10.0.0.2/32, destinationPort: 9000 }}
  functions:
    - {{ name: box, kind: external, isolation: container, {more} config: {{ command: {command} }} }}
"
    )
}

#[test]
fn a_black_box_in_a_container_carries_packets() {
    if skip_unless_root() || skip_without("runc") || skip_without("/usr/bin/python3") {
        return;
    }
    let myelin = Myelin::new();
    // The root file system is a view of the host's files, or a directory: here `/`.
    for more in ["limits: { cpu: 1core, memory: 64MiB },", "rootfs: /,"] {
        let file = myelin.write_file(&format_black_box(more));
        myelin.run_ok(&["up", file.to_str().unwrap()]);
        assert_no_loss(&myelin);
        let sandbox = &read_status(&myelin)["hops"][0]["sandbox"];
        assert_eq!(sandbox["isolation"], "container", "{sandbox}");
        assert!(sandbox["cpu_s"].as_f64().unwrap() > 0.0, "{sandbox}");
        myelin.run_ok(&["down", &myelin.chain_name("c")]);
    }
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

/// A mount. Dropping the value unmounts it.
struct Mount(PathBuf);

impl Mount {
    fn new(arguments: &str, at: PathBuf) -> Self {
        fs::create_dir_all(&at).unwrap();
        sh(&format!("mount {arguments} {}", at.display()));
        Self(at)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn mounts_below_the_root_file_system_are_read_only() {
    if skip_unless_root() || skip_without("runc") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let below = |name: &str| directory.path().join(name);
    let _usr = Mount::new("--bind /usr", below("usr"));
    let _disk = Mount::new("-t tmpfs none", below("data/disk"));
    for link in ["bin", "lib", "lib64"] {
        std::os::unix::fs::symlink(format!("usr/{link}"), below(link)).unwrap();
    }
    let myelin = Myelin::new();
    let more = format!("rootfs: {},", directory.path().display());
    let text = format_black_box_with_command(&more, "[ /bin/sleep, infinity ], startup: 1ms");
    // If runc had systemd's NOTIFY_SOCKET, it would wait until the program reports that it is
    // ready. So the agent must remove this variable.
    let up = myelin
        .command(&["up", myelin.write_file(&text).to_str().unwrap()])
        .env("NOTIFY_SOCKET", myelin.run_dir().join("notify"))
        .output()
        .unwrap();
    assert!(up.status.success(), "{up:?}");
    let pid = &read_status(&myelin)["hops"][0]["black_box"]["pid"];
    // `up` waits only 1 ms, so runc may not have changed the root directory yet. It starts the
    // program after it has made all mounts read-only.
    wait_for("the program in the container", || {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        name == "sleep\n" && Path::new(&format!("/proc/{pid}/root/data/disk")).is_dir()
    });
    for place in ["data/x", "data/disk/x"] {
        let error = fs::write(format!("/proc/{pid}/root/{place}"), "").unwrap_err();
        let kind = std::io::ErrorKind::ReadOnlyFilesystem;
        assert_eq!(error.kind(), kind, "{place}: {error}");
    }
    let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap();
    let disk = mounts.lines().find(|line| line.contains(" /data/disk "));
    assert!(disk.unwrap().contains("ro,nosuid,nodev"), "{mounts}");
    // The bundle holds the program's environment, which other users must not read.
    for entry in fs::read_dir(myelin.run_dir().join("containers")).unwrap() {
        let bundle = entry.unwrap().path();
        for private in [bundle.parent().unwrap(), &bundle.join("config.json")] {
            let mode = fs::metadata(private).unwrap().permissions().mode();
            assert_eq!(mode & 0o077, 0, "{}", private.display());
        }
    }
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn up_shows_the_last_output_of_a_contained_program_that_ends_at_once() {
    if skip_unless_root() || skip_without("runc") {
        return;
    }
    let myelin = Myelin::new();
    let command = "[ /bin/sh, -c, 'echo no such device >&2; exit 7' ], startup: 30s";
    let file = myelin.write_file(&format_black_box_with_command("", command));
    // The program may end before or after the agent opens its process.
    for _ in 0..5 {
        let error = myelin.run_failing(1, &["up", file.to_str().unwrap()]);
        for part in ["function `box`", "the program `/bin/sh`", "no such device"] {
            assert!(error.contains(part), "{part}: {error}");
        }
    }
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn up_makes_nothing_if_the_root_file_system_is_no_directory() {
    if skip_unless_root() || skip_without("runc") {
        return;
    }
    let myelin = Myelin::new();
    for (rootfs, word) in [
        ("/nowhere/root", "does not exist"),
        ("/proc/version", "not a directory"),
    ] {
        let file = myelin.write_file(&format_black_box(&format!("rootfs: {rootfs},")));
        let error = myelin.run_failing(1, &["up", file.to_str().unwrap()]);
        assert!(error.contains(rootfs) && error.contains(word), "{error}");
        assert!(error.contains(".yaml:8:"), "{error}");
        let running = myelin.run_json(&["ps", "--json"]);
        assert_eq!(running.as_array().map(Vec::len), Some(0), "{running}");
        assert_eq!(myelin.list_journaled_kinds(), Vec::<String>::new());
    }
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}
