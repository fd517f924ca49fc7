//! `--graph`: the picture of a plan, and of a running chain with its packet losses.

mod common;

use std::net::UdpSocket;

use common::{Myelin, repository_root, skip_unless_root, wait_for};
use myelin_linux::netns::Netns;
use serde_json::Value;

/// The firewall drops packets to port 9001. The policer lets 5000 packets pass, then one a second.
const LOSSY: &str = "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: { name: @lossy }
spec:
  match: { protocol: udp }
  functions:
    - name: edge-filter
      kind: firewall
      config: { rules: [ { action: deny, destinationPort: 9001 } ] }
    - { name: coder, kind: xor, space: user, config: { key: 0x5a } }
  sla: { rate: 1pps, burst: 5000, enforce: policer }
";

/// Reads the texts of an SVG file, in order.
fn read_texts(path: &std::path::Path) -> Vec<String> {
    let svg = std::fs::read_to_string(path).unwrap();
    let document = roxmltree::Document::parse(&svg).unwrap();
    let texts = document
        .descendants()
        .filter(|node| node.has_tag_name("text"));
    texts
        .map(|node| node.text().unwrap_or_default().trim().to_owned())
        .collect()
}

#[test]
fn a_plan_is_drawn_as_text_and_as_svg() {
    let example = |name: &str| {
        repository_root()
            .join("examples")
            .join(name)
            .to_str()
            .unwrap()
            .to_owned()
    };
    let myelin = Myelin::new_shared();
    let text = myelin.run_ok(&["plan", "--graph", &example("tactile.yaml")]);
    for word in [
        "end host",
        "front door",
        "edge-filter",
        "AF_XDP socket",
        "user space, worker",
    ] {
        assert!(text.contains(word), "{word}: {text}");
    }
    assert!(
        text.lines().all(|line| line.chars().count() <= 100),
        "{text}"
    );

    let directory = tempfile::tempdir().unwrap();
    let svg = directory.path().join("ports.svg");
    let option = format!("--graph={}", svg.display());
    let output = myelin.run_ok(&["plan", &option, &example("two-chains-one-port.yaml")]);
    assert_eq!(output.matches("picture: ").count(), 2, "{output}");
    assert!(read_texts(&svg).contains(&"eth1".to_owned()));
    let second = directory.path().join("ports-motion-control.svg");
    assert!(read_texts(&second).contains(&"coder".to_owned()));

    let refused = myelin.write_file(&LOSSY.replace("enforce", "latency: 1us, enforce"));
    let refused = myelin.run(&["plan", "--graph", refused.to_str().unwrap()]);
    let text = String::from_utf8(refused.stdout).unwrap();
    assert_eq!(refused.status.code(), Some(3), "{text}");
    assert!(
        text.contains("is refused: ") && text.contains("front door"),
        "{text}"
    );
    assert!(
        text.lines().all(|line| line.chars().count() <= 100),
        "{text}"
    );

    // `--graph` must not overwrite a chain file.
    let file = myelin.write_file(LOSSY);
    let option = format!("--graph={}", file.display());
    let refused = myelin.run_failing(2, &["plan", &option, file.to_str().unwrap()]);
    assert!(refused.contains("must end in .svg"), "{refused}");
    assert!(
        std::fs::read_to_string(&file)
            .unwrap()
            .contains("edge-filter")
    );
}

/// Opens a socket on the client; returns it with the address of the server.
fn open_client(status: &Value) -> (UdpSocket, String) {
    let host = |role: &str, key: &str| {
        let mut hosts = status["hosts"].as_array().unwrap().iter();
        let host = hosts.find(|host| host["role"] == role).unwrap();
        host[key].as_str().unwrap().to_owned()
    };
    let netns = Netns::open(&host("client", "netns")).unwrap();
    let address = host("client", "address");
    let socket = netns.enter(|| UdpSocket::bind((&*address, 0)).unwrap());
    (socket.unwrap(), host("server", "address"))
}

#[test]
fn a_running_chain_shows_its_costs_and_where_packets_were_lost() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    let file = myelin.write_file(LOSSY);
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    let directory = tempfile::tempdir().unwrap();
    let page = directory.path().join("lossy.html");
    let chain = myelin.chain_name("lossy");
    let report = ["--report", page.to_str().unwrap()];
    let measured = [
        "probe",
        &chain,
        "--mode",
        "inline",
        "--payload",
        "64",
        "--count",
        "5",
    ];
    myelin.run(
        &[
            &measured[..],
            &["--repeats", "1", "--interval", "1ms"],
            &report,
        ]
        .concat(),
    );
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("<title id=\"chain-graph-t\">"), "{page}");

    let (socket, server) = open_client(&myelin.read_status("lossy"));
    let count = 8000_u64;
    let before = myelin.read_status("lossy")["packets_in"].as_u64().unwrap();
    let account = |key: &str| myelin.read_status("lossy")["account"][key].clone();
    // The link before the chain holds this many packets.
    for sent in (200..=count).step_by(200) {
        for port in [9000, 9001].repeat(100) {
            socket.send_to(b"packet", (&*server, port)).unwrap();
        }
        wait_for("all packets to leave", || {
            account("packets_in") == before + sent && account("under_way") == 0
        });
    }
    let status = myelin.read_status("lossy");
    let (policed, dropped) = (
        status["account"]["policed"].as_u64().unwrap(),
        status["account"]["dropped"]["edge-filter"]
            .as_u64()
            .unwrap(),
    );
    assert!(policed > 0 && dropped > 0, "{status}");

    let text = myelin.run_ok(&["ps", &myelin.chain_name("lossy"), "--graph"]);
    for shown in [
        "10.0.0.1".to_owned(),
        format!("{} in", before + count),
        format!("{policed} policed"),
        format!("{dropped} dropped"),
        format!("{} out", status["account"]["packets_out"]),
        "measured".to_owned(),
    ] {
        assert!(text.contains(&shown), "{shown}: {text}");
    }
    assert!(
        text.lines().all(|line| line.chars().count() <= 100),
        "{text}"
    );

    let svg = directory.path().join("lossy.svg");
    let option = format!("--graph={}", svg.display());
    myelin.run_ok(&["ps", &myelin.chain_name("lossy"), &option]);
    let texts = read_texts(&svg);
    for shown in [format!("{policed} policed"), format!("{dropped} dropped")] {
        assert!(texts.contains(&shown), "{shown}: {texts:?}");
    }

    let missing = myelin.run_failing(1, &["ps", "no-such-chain", "--graph"]);
    assert!(
        missing.contains("no chain `no-such-chain` runs"),
        "{missing}"
    );
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}
