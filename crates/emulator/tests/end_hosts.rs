//! Tests end hosts with ordinary tools: `ip`, `ping`, `ethtool`.

use std::path::Path;
use std::process::{self, Command};
use std::time::Duration;

use myelin_emulator::{Config, EndHostNames, EndHosts, Role};
use myelin_linux::journal::{self, Journal};
use myelin_linux::link;
use myelin_linux::netlink::Netlink;
use myelin_linux::netns;
use myelin_packet::Match;

/// End hosts of one test. A drop removes them, also after a panic.
struct Fixture {
    run: String,
    chain: String,
    _directory: tempfile::TempDir,
    journal: Journal,
    hosts: Option<EndHosts>,
    bridge: Option<String>,
}

impl Fixture {
    /// Makes end hosts. Without root, prints the reason and returns `None`.
    fn new(purpose: &str, matches: &Match, mtu: u32) -> Option<Self> {
        if !myelin_linux::capability::is_root() {
            println!("skipped {purpose}: creating network namespaces needs root");
            return None;
        }
        let (run, chain) = (
            format!("test {}", process::id()),
            format!("t{}-{purpose}", process::id()),
        );
        let directory = tempfile::tempdir().unwrap();
        let journal = Journal::open(&directory.path().join("journal")).unwrap();
        let config = Config {
            run: &run,
            chain: &chain,
            matches,
            mtu,
        };
        let hosts = EndHosts::create(&config, &journal).unwrap();
        Some(Self {
            run,
            chain,
            _directory: directory,
            journal,
            hosts: Some(hosts),
            bridge: None,
        })
    }

    fn hosts(&self) -> &EndHosts {
        self.hosts.as_ref().unwrap()
    }

    /// Connects the two ports by a bridge, in place of a chain.
    fn bridge_ports(&mut self) {
        let name = format!("{}b", self.hosts().client.port.name.trim_end_matches('c'));
        let mut netlink = Netlink::open().unwrap();
        netlink
            .apply([link::create_bridge(&name).unwrap()])
            .unwrap();
        self.bridge = Some(name.clone());
        let bridge = netlink.link(&name).unwrap().id();
        myelin_linux::sysctl::disable_ipv6(&name, true).unwrap();
        let ports = [&self.hosts().client.port, &self.hosts().server.port];
        netlink
            .apply(ports.map(|port| link::enslave(port, &bridge)))
            .unwrap();
        netlink.apply([link::set_up(&bridge)]).unwrap();
    }

    fn run_on(&self, role: Role, line: &str) -> String {
        let name = self.hosts().host(role).netns.name().unwrap().to_owned();
        run_ip(&format!("netns exec {name} {line}"))
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        if let Some(name) = &self.bridge {
            let mut netlink = Netlink::open().unwrap();
            if let Ok(bridge) = netlink.link(name) {
                let _ = netlink.apply([link::delete(&bridge.id())]);
            }
        }
        let _ = remove_hosts(&self.run, &self.chain);
    }
}

/// Removes the existing objects of a chain's hosts, newest first, like `down --all` after
/// `kill -9`.
fn remove_hosts(run: &str, chain: &str) -> myelin_linux::Result<()> {
    let resources = EndHostNames::new(run, chain).resources();
    resources.iter().rev().try_for_each(journal::remove)
}

/// Runs `ip LINE`, which must succeed, and returns its output.
fn run_ip(line: &str) -> String {
    let output = Command::new("ip").args(line.split(' ')).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "ip {line}: {text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

#[test]
fn ordinary_tools_work_between_the_hosts() {
    let Some(mut fixture) = Fixture::new("ping", &Match::default(), 1500) else {
        return;
    };
    for role in Role::BOTH {
        let port = Netlink::open()
            .unwrap()
            .link(&fixture.hosts().host(role).port.name)
            .unwrap();
        assert!(port.up && port.carrier && port.operational, "{port:?}");
    }
    let listed = run_ip("netns list");
    for role in Role::BOTH {
        let name = format!("myelin-{}-{role}", fixture.chain);
        assert!(
            listed
                .lines()
                .any(|line| line.split(' ').next() == Some(&name)),
            "{listed}"
        );
        let alias = run_ip(&format!("-n {name} link show lo"));
        assert!(
            alias.contains(&format!("alias myelin run {}", fixture.run)),
            "{alias}"
        );
    }
    // No chain connects the hosts yet.
    let client = format!("myelin-{}-client", fixture.chain);
    let unreachable = Command::new("ip")
        .args(["netns", "exec", &client, "ping", "-c1", "-W1", "10.0.0.2"])
        .output()
        .unwrap();
    assert!(!unreachable.status.success());

    fixture.bridge_ports();
    for (role, far) in [
        (Role::Client, "10.0.0.2"),
        (Role::Server, "10.0.0.1"),
        (Role::Client, "fd00::2"),
        (Role::Server, "fd00::1"),
    ] {
        let text = fixture.run_on(role, &format!("ping -c3 -i0.01 -W60 {far}"));
        assert!(text.contains("3 received, 0% packet loss"), "{text}");
    }
    // The first packet arrives, because the neighbour entries are permanent.
    let neighbours = run_ip(&format!("-n {client} neighbour"));
    assert_eq!(neighbours.lines().count(), 2, "{neighbours}");
    assert!(
        neighbours
            .lines()
            .all(|line| line.ends_with("PERMANENT ") || line.ends_with("PERMANENT")),
        "{neighbours}"
    );
    // A full frame fits.
    assert!(
        fixture
            .run_on(Role::Client, "ping -c1 -W60 -Mdo -s1472 10.0.0.2")
            .contains("1 received")
    );

    let link = &fixture.hosts().client.link;
    let shown = run_ip(&format!("-n {client} -o link show {}", link.name));
    assert!(
        shown.starts_with(&format!("{}: eth0@", link.index))
            && shown.contains(&fixture.hosts().client.mac.to_string()),
        "{shown}"
    );
    // `Host::command` runs a program on the host.
    let output = fixture
        .hosts()
        .client
        .command("ls")
        .unwrap()
        .arg("/sys/class/net")
        .output()
        .unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "eth0\nlo\n");
}

#[test]
fn idle_hosts_send_nothing_and_have_default_offloads() {
    let matches = Match {
        destination: Some("192.0.2.9".parse().unwrap()),
        ..Match::default()
    };
    let Some(mut fixture) = Fixture::new("quiet", &matches, 1500) else {
        return;
    };
    assert_eq!(
        fixture.hosts().server.addresses,
        ["192.0.2.9".parse::<std::net::IpAddr>().unwrap()]
    );
    fixture.bridge_ports();
    let received = |fixture: &Fixture| {
        let port = &fixture.hosts().client.port.name;
        let text = run_ip(&format!("-s -o link show {port}"));
        let counters = text.split("RX:").nth(1).unwrap();
        counters
            .split('\\')
            .nth(1)
            .unwrap()
            .split_whitespace()
            .nth(1)
            .unwrap()
            .parse::<u64>()
            .unwrap()
    };
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(received(&fixture), 0, "packets of an idle client");
    // Packets to other addresses also reach the far host, because a chain may match them.
    fixture.run_on(Role::Client, "ping -c2 -i0.01 -W60 192.0.2.9");
    assert_eq!(received(&fixture), 2);
    let lost = fixture
        .hosts()
        .client
        .command("ping")
        .unwrap()
        .args(["-c1", "-W1", "198.51.100.7"])
        .output()
        .unwrap();
    assert!(!lost.status.success());
    assert_eq!(received(&fixture), 3);

    for role in Role::BOTH {
        let features = fixture.run_on(role, "ethtool -k eth0");
        assert!(features.contains("tcp-segmentation-offload: on"));
        assert!(features.contains("generic-receive-offload: off"));
    }
    let server = &fixture.hosts().server;
    server.set_napi().unwrap();
    assert!(
        fixture
            .run_on(Role::Server, "ethtool -k eth0")
            .contains("generic-receive-offload: on")
    );
    for role in Role::BOTH {
        let port = &fixture.hosts().host(role).port.name;
        assert_eq!(run_ip(&format!("-6 -o address show dev {port}")), "");
        assert_eq!(fixture.run_on(role, "ip -6 -o address show dev eth0"), "");
        let off = |link: &str| {
            myelin_linux::sysctl::get(&format!("net/ipv6/conf/{link}/disable_ipv6")).unwrap()
        };
        assert_eq!(off(port), "1");
        assert_eq!(
            fixture.hosts().host(role).enter(|| off("eth0")).unwrap(),
            "1"
        );
    }
}

#[test]
fn ipv6_addresses_and_larger_mtus_work() {
    let matches = Match {
        source: Some("2001:db8::/64".parse().unwrap()),
        ..Match::default()
    };
    let Some(mut fixture) = Fixture::new("v6", &matches, 3000) else {
        return;
    };
    fixture.bridge_ports();
    let address = fixture.run_on(Role::Client, "ip -o -6 address show dev eth0");
    assert!(
        address.contains("2001:db8::1/128 scope global") && !address.contains("tentative"),
        "{address}"
    );
    assert!(!address.contains("fe80"), "{address}");
    let text = fixture.run_on(Role::Client, "ping -c2 -i0.01 -W60 -Mdo -s2952 fd00::2");
    assert!(text.contains("2 received"), "{text}");
    assert_eq!(
        fixture.run_on(Role::Client, "ip -4 -o address show dev eth0"),
        ""
    );
}

#[test]
fn removal_by_drop_or_by_name_leaves_nothing() {
    let Some(mut fixture) = Fixture::new("down", &Match::default(), 1500) else {
        return;
    };
    let (run, chain) = (fixture.run.clone(), fixture.chain.clone());
    let ports = [
        fixture.hosts().client.port.name.clone(),
        fixture.hosts().server.port.name.clone(),
    ];
    let exist = || {
        let mut netlink = Netlink::open().unwrap();
        ports.iter().any(|port| netlink.link(port).is_ok())
            || Role::BOTH.iter().any(|role| {
                Path::new(netns::DIRECTORY)
                    .join(format!("myelin-{chain}-{role}"))
                    .exists()
            })
    };
    assert!(exist());
    // A program that still runs on a host keeps the namespace, but not the namespace's name or
    // link.
    let mut sleeper = fixture
        .hosts()
        .client
        .command("sleep")
        .unwrap()
        .arg("4716")
        .spawn()
        .unwrap();
    drop(fixture.hosts.take());
    let exist_after_drop = exist();
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    assert!(!exist_after_drop);
    assert_eq!(fixture.journal.replay(), []);

    let matches = Match::default();
    let config = Config {
        run: &run,
        chain: &chain,
        matches: &matches,
        mtu: 1500,
    };
    // The process ends without removing the hosts.
    std::mem::forget(EndHosts::create(&config, &fixture.journal).unwrap());
    assert!(exist());
    remove_hosts("another run", &chain).unwrap();
    assert!(exist(), "hosts of another run are not removed");
    remove_hosts(&run, &chain).unwrap();
    assert!(!exist());
    remove_hosts(&run, &chain).unwrap();
}
