//! Coding, encryption, compression and inspection in deployed chains: the examples, and a change of
//! keys under traffic.

mod common;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::Duration;

use common::load::count_never_answered;
use common::{Myelin, repository_root, skip, skip_unless_root, skip_without, wait_for};
use serde_json::Value;

/// Copies an example, with this test's chain name and with absolute paths of its files.
fn copy_example(myelin: &Myelin, name: &str) -> std::path::PathBuf {
    let text = fs::read_to_string(repository_root().join(format!("examples/{name}.yaml")))
        .expect("the example is readable");
    let files = format!(
        "patternsFile: {}/examples/rules/",
        repository_root().display()
    );
    let text = text
        .replace(&format!("name: {name} }}"), &format!("name: @{name} }}"))
        .replace("patternsFile: rules/", &files);
    myelin.write_file(&text)
}

/// Reads a counter of a function of a running chain.
fn read_counter(myelin: &Myelin, chain: &str, function: &str, name: &str) -> u64 {
    let hops = myelin.read_status(chain)["hops"].clone();
    let mut hops = hops.as_array().expect("the status lists hops").iter();
    let hop = hops
        .find(|hop| hop["name"] == function)
        .expect("the chain has the function");
    hop["counters"][name]
        .as_u64()
        .unwrap_or_else(|| panic!("{function} does not count {name}: {hop}"))
}

#[test]
fn the_teleoperation_example_recovers_packets_that_links_lose() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    // The probe exceeds the rate of the example, so the policer would drop its packets.
    let file = copy_example(&myelin, "teleoperation");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(
        &file,
        text.replace("rate: 1kpps,", "enforce: none, rate: 1kpps,"),
    )
    .unwrap();
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    for payload in [256, 1400] {
        let row = myelin.probe("teleoperation", payload, 400);
        assert_eq!(row["corrupted"], 0, "{row}");
        // Two links lose 5 % each. The code cannot recover the last packet before a pause.
        assert!(row["lost"].as_u64().unwrap() < 20, "{row}");
    }
    let count = |function, name| read_counter(&myelin, "teleoperation", function, name);
    let hops = myelin.read_status("teleoperation")["hops"].clone();
    assert!(hops[2]["drops"].as_u64().unwrap() > 10, "{hops}");
    assert!(count("decoder", "recovered") > 10);
    assert!(count("relay", "recoded") > 10);
    assert_eq!(count("open", "not-authentic"), 0);
    assert_eq!(count("open", "replayed"), 0);
    assert_eq!(count("open", "sessions-started"), 1);
    let shown = myelin.run_ok(&["ps", "-v", &myelin.chain_name("teleoperation")]);
    assert!(shown.contains("recovered"), "{shown}");
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn the_wan_optimizer_example_compresses_text_and_restores_it() {
    if skip_unless_root() || skip_without("python3") {
        return;
    }
    let myelin = Myelin::new();
    let file = copy_example(&myelin, "wan-optimizer");
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    let host = |role: &str| format!("{}/{role}", myelin.chain_name("wan-optimizer"));
    let mut server = myelin
        .command(&[
            "exec",
            &host("server"),
            "--",
            "python3",
            "-c",
            "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(120); s.bind(('10.0.0.2', 9000)); \
             print('bound', flush=True); [print(s.recv(2000).decode()[:30], flush=True) for _ in range(20)]",
        ])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the server starts");
    let is_bound = || {
        let sockets = myelin.run_ok(&["exec", &host("server"), "--", "cat", "/proc/net/udp"]);
        sockets.contains(":2328")
    };
    wait_for("the server to listen", is_bound);
    myelin.run_ok(&[
        "exec",
        &host("client"),
        "--",
        "python3",
        "-c",
        "import socket, time; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
         for number in range(20): s.sendto((f'reading {number:03d} ' + 'temperature=21.5 ' * 60).encode(), ('10.0.0.2', 9000)); time.sleep(0.002)",
    ]);
    let mut received = String::new();
    let mut output = server.stdout.take().expect("standard output is piped");
    std::io::Read::read_to_string(&mut output, &mut received).expect("the output is UTF-8");
    assert!(server.wait().expect("the process ends").success());
    for number in 0..20 {
        let line = format!("reading {number:03} temperature=21");
        assert!(received.contains(&line), "{received}");
    }
    let count = |function, name| read_counter(&myelin, "wan-optimizer", function, name);
    assert_eq!(count("squeeze", "compressed"), 20);
    assert_eq!(count("restore", "decompressed"), 20);
    assert!(count("squeeze", "bytes-out") * 5 < count("squeeze", "bytes-in"));
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn the_ids_example_drops_or_marks_packets_that_match_a_signature() {
    if skip_unless_root() || skip_without("bash") {
        return;
    }
    if let Err(error) = myelin_functions::dpi::library::version() {
        skip(&error.to_string());
        return;
    }
    let myelin = Myelin::new();
    let file = copy_example(&myelin, "ids");
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    let host = format!("{}/client", myelin.chain_name("ids"));
    let send = |text: &str| {
        let command = format!("echo '{text}' > /dev/udp/10.0.0.2/9000");
        myelin.run_ok(&["exec", &host, "--", "bash", "-c", &command]);
    };
    send("GET /index.html");
    send("GET /../../etc/passwd");
    send("User-Agent: sqlmap");
    let have_arrived = || myelin.read_status("ids")["packets_in"] == 3;
    wait_for("the packets", have_arrived);
    let count = |name| read_counter(&myelin, "ids", "signatures", name);
    wait_for("the inspection", || {
        count("matched") == 2 && myelin.read_status("ids")["hops"][1]["packets_in"] == 2
    });
    assert_eq!((count("matched-dropped"), count("marked")), (1, 1));
    let status = myelin.read_status("ids");
    assert_eq!(status["hops"][0]["drops"], 1, "{status}");
    assert_eq!(status["hops"][1]["packets_in"], 2, "{status}");
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

const SEALED: &str = "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: { name: @sealed }
spec:
  match: { protocol: udp, destination: 10.0.0.2/32 }
  functions:
    - { name: seal, kind: aes-encrypt, config: { keyFile: current.key, cipher: aes-256-gcm } }
    - { name: open, kind: aes-decrypt, config: { keyFile: accepted.key, cipher: aes-256-gcm } }
";

#[test]
#[expect(clippy::too_many_lines, reason = "one course of events")]
fn keys_change_under_traffic_and_no_packet_is_lost() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let file = myelin.write_file(SEALED);
    let key = |number: u8| format!("{}\n", format!("{number:02x}").repeat(32));
    let write = |name: &str, keys: &[u8]| {
        let path = file.with_file_name(name);
        fs::write(
            &path,
            keys.iter().map(|number| key(*number)).collect::<String>(),
        )
        .unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    };
    let up = || myelin.run_ok(&["up", file.to_str().unwrap()]);
    write("current.key", &[1]);
    write("accepted.key", &[1]);
    up();
    let mut probe = myelin
        .command(&[
            "probe",
            &myelin.chain_name("sealed"),
            "--mode",
            "inline",
            "--payload",
            "256",
            "--count",
            "3000",
            "--repeats",
            "1",
            "--interval",
            "500us",
            "--json",
        ])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the probe starts");
    for next in 2..5 {
        std::thread::sleep(Duration::from_millis(150));
        // First the decrypter accepts the new key, then the encrypter uses it, then the decrypter
        // rejects the old key.
        write("accepted.key", &[next - 1, next]);
        up();
        write("current.key", &[next]);
        up();
        write("accepted.key", &[next]);
        up();
    }
    let mut report = String::new();
    let mut output = probe.stdout.take().expect("standard output is piped");
    std::io::Read::read_to_string(&mut output, &mut report).expect("the output is UTF-8");
    probe.wait().expect("the process ends");
    let report: Value = serde_json::from_str(&report).expect("the output is JSON");
    let row = &report["rows"][0];
    assert_eq!(
        (count_never_answered(row), &row["corrupted"]),
        (0, &0.into()),
        "{row}"
    );
    assert_eq!(read_counter(&myelin, "sealed", "open", "unknown-key"), 0);
    // The decrypter drops packets under an unknown key and counts them.
    write("current.key", &[9]);
    up();
    let output = myelin.run(&[
        "probe",
        &myelin.chain_name("sealed"),
        "--mode",
        "inline",
        "--count",
        "3",
        "--repeats",
        "1",
        "--json",
    ]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    assert_eq!(
        report["rows"][0]["received"].as_u64().unwrap_or(0),
        0,
        "{report}"
    );
    assert!(read_counter(&myelin, "sealed", "open", "unknown-key") > 0);
    // `up` refuses key files that other users may read.
    fs::set_permissions(
        file.with_file_name("current.key"),
        Permissions::from_mode(0o644),
    )
    .unwrap();
    let refused = myelin.run_failing(2, &["up", file.to_str().unwrap()]);
    assert!(
        refused.contains("0644") && refused.contains("chmod 600"),
        "{refused}"
    );
    // No output, journal record or log line shows a key.
    let secret = "09".repeat(32);
    for arguments in [
        &["ps", "--json"][..],
        &["plan", file.to_str().unwrap(), "--json"],
    ] {
        let shown = myelin.run(arguments);
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        assert!(!shown.contains(&secret), "{arguments:?}");
    }
    let journal = fs::read_to_string(myelin.run_dir().join("journal")).unwrap_or_default();
    assert!(!journal.contains(&secret) && !myelin.read_agent_log().contains(&secret));
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}
