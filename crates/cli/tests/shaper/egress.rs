//! Kernel chains: the queueing discipline of the egress interface shapes.

use std::time::Duration;

use serde_json::Value;

use crate::common::conformance::Monitor;
use crate::common::load::{read_count, send_clusters, wait_until_settled};
use crate::common::{self, Myelin, sh, skip_unless_root};
use crate::{CLUSTER_SIZE, CLUSTERS, KERNEL, assert_shaped, format_shaped_chain};

/// Finds the queueing discipline that shapes kernel chains on this machine.
fn find_discipline(myelin: &Myelin) -> &'static str {
    let doctor = myelin.run_json(&["doctor", "--json"]);
    let mut findings = doctor["findings"]
        .as_array()
        .expect("doctor lists findings")
        .iter();
    let fq = findings.find(|finding| finding["what"] == "fq");
    let answer = fq.and_then(|finding| finding["answer"].as_str());
    if answer
        .expect("doctor has an answer for fq")
        .starts_with("yes")
    {
        "fq"
    } else {
        "htb"
    }
}

/// Shows the root discipline of the chain's egress interface (`tc qdisc show`).
fn show_egress_discipline(myelin: &Myelin) -> String {
    let egress = myelin.read_status("shaped")["egress"]
        .as_str()
        .unwrap()
        .to_owned();
    sh(&format!("tc qdisc show dev {egress} root"))
}

#[test]
fn the_egress_interface_shapes_a_kernel_chain() {
    if skip_unless_root() || common::skip_without("tc") {
        return;
    }
    for bits in [false, true] {
        let myelin = Myelin::new();
        let mut text = format_shaped_chain(KERNEL, ", enforce: both");
        if bits {
            // With frames of 48 B the limit in bits is 2000 packets a second and a burst of four:
            // stricter than the limit in packets.
            text = text
                .replace(
                    "rate: 2kpps, burst: 4",
                    "rate: [ 4kpps, 768kbit ], burst: [ 32, 1536bit ]",
                )
                .replace("policingBurst: 256", "policingBurst: [ 256, 256kbit ]");
        }
        let file = myelin.write_file(&text);
        myelin.run_ok(&["up", file.to_str().unwrap()]);
        let discipline = find_discipline(&myelin);
        assert!(show_egress_discipline(&myelin).contains(&format!("qdisc {discipline} 6d79:")));
        assert_shaped(&myelin);
        let status = myelin.read_status("shaped");
        let shaper = &status["shaper"];
        assert_eq!(
            (&shaper["by"], &shaper["in_sojourn"]),
            (&discipline.into(), &(discipline == "fq").into())
        );
        assert_eq!(
            (&shaper["waiting"], &status["drops"]),
            (&0.into(), &0.into())
        );
        assert_eq!(status["packets_out"], CLUSTERS * CLUSTER_SIZE);
        myelin.run_ok(&["down", "--all"]);
        myelin.assert_clean();
    }
}

/// Sends clusters through a kernel chain; returns the report of `myelin conform` on the server
/// host.
fn measure_conformance(myelin: &Myelin, up: &Value) -> Value {
    let server = format!("{}/server", myelin.chain_name("shaped"));
    // Without the shaper, a tolerance of more than 300 ms would be necessary.
    let profile = ["--rate", "500pps", "--burst", "4", "--tolerance", "100ms"];
    let filter = ["--match", "protocol=udp,destinationPort=9000", "--json"];
    let before = myelin.read_status("shaped");
    let monitor = Monitor::start(
        myelin,
        &[&["--host", &*server], &profile[..], &filter].concat(),
    );
    send_clusters(up, CLUSTER_SIZE, CLUSTERS, Duration::from_millis(50));
    common::wait_for("the last packet's departure", || {
        let now = myelin.read_status("shaped");
        read_count(&now["packets_out"]) - read_count(&before["packets_out"])
            == CLUSTERS * CLUSTER_SIZE
    });
    // With `fq`, a packet counts as out when it gets its departure time. The last packet departs
    // this much later.
    std::thread::sleep(Duration::from_millis(1000 * CLUSTERS * CLUSTER_SIZE / 500));
    monitor.interrupt();
    let (_, report) = monitor.wait_for_report();
    assert_eq!(report["packets"], CLUSTERS * CLUSTER_SIZE, "{report}");
    report
}

#[test]
fn ps_shows_the_shaper_of_the_egress_interface_until_a_live_change_removes_it() {
    if skip_unless_root() || common::skip_without("tc") {
        return;
    }
    change_shaped_chain(|myelin, up, is_shaped| {
        if is_shaped {
            send_clusters(up, CLUSTER_SIZE, CLUSTERS, Duration::from_millis(50));
            common::wait_for("the last packet's departure", || {
                myelin.read_status("shaped")["packets_out"] == CLUSTERS * CLUSTER_SIZE
            });
        }
    });
}

#[test]
#[ignore = "thorough: measures the times of packets on a quiet machine"]
fn packets_shaped_by_the_egress_interface_conform_at_the_server() {
    if skip_unless_root() || common::skip_without("tc") {
        return;
    }
    // Without the shaper a cluster leaves as a burst.
    change_shaped_chain(|myelin, up, is_shaped| {
        let report = measure_conformance(myelin, up);
        println!("{}", report["buckets"]);
        assert_eq!(report["conforms"], is_shaped, "{report}");
    });
}

/// Deploys a kernel chain with a shaper and removes the shaper by a live change. `send` gets the
/// chain from `up --json`, and whether the shaper exists; it sends clusters with the shaper.
fn change_shaped_chain(send: impl Fn(&Myelin, &Value, bool)) {
    let myelin = Myelin::new();
    let text =
        format_shaped_chain(KERNEL, ", enforce: both").replace("rate: 2kpps", "rate: 500pps");
    let file = myelin.write_file(&text);
    let up = myelin.run_json(&["up", file.to_str().unwrap(), "--json"]);
    let discipline = find_discipline(&myelin);
    send(&myelin, &up[0], true);
    let status = wait_until_settled(&myelin, "shaped");
    let shaper = &status["shaper"];
    assert_eq!(
        (&shaper["by"], &shaper["in_sojourn"], &status["policed"]),
        (&discipline.into(), &(discipline == "fq").into(), &0.into()),
        "{status}"
    );
    let max_us = status["sojourn"]["max_us"]
        .as_f64()
        .expect("the status has a sojourn");
    if discipline == "fq" {
        // The shaper delays each cluster except its burst.
        assert!(
            read_count(&shaper["delayed"]) > CLUSTERS * CLUSTER_SIZE / 2,
            "{status}"
        );
        assert!(max_us > 1e6 * (CLUSTER_SIZE / 2) as f64 / 500.0, "{status}");
    }
    let shown = myelin.run_ok(&["ps", "-v", &myelin.chain_name("shaped")]);
    assert!(shown.contains(&format!("shaper ({discipline})")), "{shown}");
    let egress = status["egress"]
        .as_str()
        .expect("the chain has an egress interface");
    assert!(show_egress_discipline(&myelin).contains(&format!("qdisc {discipline} 6d79:")));
    let plain = myelin.write_file(&text.replace("enforce: both", "enforce: policer"));
    let up = myelin.run_json(&["up", plain.to_str().unwrap(), "--json"]);
    assert_eq!(up[0]["change"], "changed");
    let left = sh(&format!("tc qdisc show dev {egress} root"));
    assert!(!left.contains("6d79:"), "{left}");
    send(&myelin, &up[0], false);
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

/// Two existing interfaces for `spec.ports`. Dropping the value removes the interfaces.
struct ExistingPorts {
    names: [String; 2],
}

impl ExistingPorts {
    fn new(tag: &str) -> Self {
        let id = std::process::id();
        let names = ["i", "o"].map(|end| format!("s{tag}{id}{end}"));
        for name in &names {
            sh(&format!(
                "ip link add {name} type veth peer name {name}p; ip link set {name} up; ip link set {name}p up"
            ));
        }
        Self { names }
    }

    fn format_shaped_chain(&self) -> String {
        let [ingress, egress] = &self.names;
        format_shaped_chain(KERNEL, ", enforce: both")
            + &format!("  ports: {{ ingress: {ingress}, egress: {egress} }}\n")
    }

    fn show_root_discipline(&self) -> String {
        sh(&format!("tc qdisc show dev {} root", self.names[1]))
    }
}

impl Drop for ExistingPorts {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = std::process::Command::new("ip")
                .args(["link", "del", name])
                .status();
        }
    }
}

#[test]
fn up_refuses_to_replace_a_configured_discipline() {
    if skip_unless_root() || common::skip_without("tc") {
        return;
    }
    let (ports, myelin) = (ExistingPorts::new("f"), Myelin::new());
    let egress = &ports.names[1];
    sh(&format!(
        "tc qdisc add dev {egress} root tbf rate 1gbit burst 100k limit 1m"
    ));
    let before = ports.show_root_discipline();
    let file = myelin.write_file(&ports.format_shaped_chain());
    let error = myelin.run_failing(1, &["up", file.to_str().unwrap()]);
    for word in [egress, "`tbf`", "`enforce: policer`", "tc qdisc del"] {
        assert!(error.contains(word), "{error}");
    }
    assert_eq!(ports.show_root_discipline(), before);
    myelin.expect_chains(0);
}

#[test]
fn down_restores_the_default_discipline_also_after_a_killed_agent() {
    if skip_unless_root() || common::skip_without("tc") {
        return;
    }
    let (ports, myelin) = (ExistingPorts::new("k"), Myelin::new());
    let before = ports.show_root_discipline();
    let file = myelin.write_file(&ports.format_shaped_chain());
    let up = || myelin.run_ok(&["up", file.to_str().unwrap()]);
    up();
    let discipline = find_discipline(&myelin);
    assert!(
        ports
            .show_root_discipline()
            .contains(&format!("{discipline} 6d79:")),
        "{}",
        ports.show_root_discipline()
    );
    myelin.run_ok(&["down", &myelin.chain_name("shaped")]);
    assert_eq!(ports.show_root_discipline(), before);
    up();
    // Another profile gets a new class; the agent removes the old one.
    let other = myelin.write_file(
        &ports
            .format_shaped_chain()
            .replace("rate: 2kpps", "rate: 3kpps"),
    );
    myelin.run_ok(&["up", other.to_str().unwrap()]);
    if discipline == "htb" {
        let classes = sh(&format!("tc class show dev {}", ports.names[1]));
        assert_eq!(classes.matches("class htb").count(), 1, "{classes}");
    }
    myelin.kill_agent();
    myelin.run_ok(&["down", "--all"]);
    assert_eq!(ports.show_root_discipline(), before);
    myelin.assert_clean();
}
