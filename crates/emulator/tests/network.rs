//! Tests networks with real packets.

use std::net::UdpSocket;
use std::path::Path;
use std::time::{Duration, Instant};

use myelin_emulator::{DelayPoint, Network, NetworkError, Run};
use myelin_linux::journal::Journal;
use myelin_linux::netlink::Netlink;
use myelin_linux::netns::Netns;
use myelin_spec::{NoFiles, Source, Topology, parse_objects};

/// The names of this test process differ from those of others.
fn run() -> String {
    format!("test-{}", std::process::id())
}

fn create(topology: &Topology, journal: &Journal) -> Result<Network, NetworkError> {
    let (id, cgroup) = (run(), format!("myelin-{}", run()));
    let run = Run {
        id: &id,
        cgroup: &cgroup,
    };
    Network::create(run, topology, journal)
}

fn topology(name: &str, spec: &str) -> Topology {
    let text = format!(
        "apiVersion: myelin.dev/v1alpha1\nkind: Topology\nmetadata: {{ name: {name}-{} }}\nspec:\n{spec}",
        std::process::id()
    );
    let objects = parse_objects(&text, &Source::new("test.yaml"), &NoFiles);
    let mut topologies = objects
        .unwrap_or_else(|errors| panic!("{errors}"))
        .topologies;
    topologies.remove(0)
}

fn root_or_skip() -> bool {
    let is_root = myelin_linux::capability::is_root();
    if !is_root {
        eprintln!("skipped: needs root");
    }
    is_root
}

fn journal(directory: &Path) -> Journal {
    Journal::open(&directory.join("journal")).unwrap()
}

/// A socket on a host.
fn socket(network: &Network, host: &str, address: &str) -> UdpSocket {
    let host = network.hosts().find(|found| found.name == host).unwrap();
    let netns = Netns::open(&host.netns).unwrap();
    let socket = netns.enter(|| UdpSocket::bind(address)).unwrap().unwrap();
    socket
        .set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    socket
}

/// Whether a datagram arrives, within 20 s if `is_expected`.
fn arrives(from: &UdpSocket, to: &UdpSocket, is_expected: bool) -> bool {
    let patience = Duration::from_secs(if is_expected { 20 } else { 1 });
    let start = Instant::now();
    let target = to.local_addr().unwrap();
    while start.elapsed() < patience {
        // The kernel refuses packets while the link is down.
        let _ = from.send_to(b"x", target);
        if to.recv(&mut [0; 8]).is_ok() {
            return true;
        }
    }
    false
}

#[test]
fn packets_cross_two_switches_and_follow_changes_of_links() {
    if !root_or_skip() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let journal = journal(directory.path());
    let spec = "  hosts: [ h1, h2, { name: h3, address: ['10.0.0.3/8', 'fd00::3/64'] }, { name: h4, address: 'fd00::4/64' } ]
  switches: [ s1, s2, s3 ]
  links:
    - { ends: [ h1, s1 ] }
    - { ends: [ s1, s2 ] }
    - { ends: [ s2, h2 ] }
    - { ends: [ s3, s2 ] }
    - { ends: [ h3, s3 ] }
    - { ends: [ h3, h4 ] }
    - { ends: [ h4, s1 ] }
";
    let lab = topology("lab", spec);
    let mut network = create(&lab, &journal).unwrap();
    let h1 = socket(&network, "h1", "10.0.0.1:0");
    let h2 = socket(&network, "h2", "10.0.0.2:0");
    let h3 = socket(&network, "h3", "10.0.0.3:0");
    for (from, to) in [(&h1, &h2), (&h3, &h1), (&h2, &h3)] {
        assert!(arrives(from, to, true));
    }
    // h4's address is on eth0, which leads to h3, whose IPv6 address is on its eth0 at s3.
    let names: Vec<String> = network
        .links()
        .map(|(link, [one, _], _)| format!("{} {}", link.name, one.interface))
        .collect();
    assert_eq!(names[5], "h3-h4 eth1");

    network.set_link_up("s2-s1", false).unwrap();
    assert!(!arrives(&h1, &h2, false) && arrives(&h3, &h2, true));
    assert!(!network.links().nth(1).unwrap().2);
    network.set_link_up("s1-s2", true).unwrap();
    assert!(arrives(&h1, &h2, true));

    network.move_link("h1-s1", "s3").unwrap();
    network.set_link_up("s1-s2", false).unwrap();
    // h3 sends first, so no switch may remember the old way to h1.
    assert!(arrives(&h3, &h1, true) && arrives(&h1, &h2, true));
    assert_eq!(network.links().next().unwrap().0.name, "h1-s3");
    let error = network.move_link("s2-s1", "s3").unwrap_err().to_string();
    assert!(error.contains("a loop"), "{error}");
    let error = network.set_link_up("h1-s1", true).unwrap_err().to_string();
    assert!(error.contains("no link `h1-s1`"), "{error}");
    network.set_link_up("h3-h4", false).unwrap();

    let hosts: Vec<String> = network.hosts().map(|host| host.netns).collect();
    drop((h1, h2, h3));
    drop(network);
    assert!(journal.replay().is_empty());
    assert!(hosts.iter().all(|host| Netns::open(host).is_err()));
}

#[test]
fn a_switch_has_more_hosts_than_a_bridge_has_ports() {
    if !root_or_skip() {
        return;
    }
    // 1200 links without 1200 hosts: each host has 12 links.
    let hosts: Vec<String> = (0..100).map(|host| format!("h{host}")).collect();
    let links: Vec<String> = (0..1200)
        .map(|link| format!("{{ ends: [ h{}, s1 ], name: l{link} }}", link % 100))
        .collect();
    let spec = format!(
        "  hosts: [ {} ]\n  switches: [ s1 ]\n  links: [ {} ]\n",
        hosts.join(", "),
        links.join(", ")
    );
    let directory = tempfile::tempdir().unwrap();
    let journal = journal(directory.path());
    let network = create(&topology("star", &spec), &journal).unwrap();
    let (_, bridges) = network.bridges().next().unwrap();
    assert_eq!(bridges.len(), 3);
    let last = network.links().nth(1199).unwrap().1;
    assert_eq!(last[0].interface, "eth11");
    let h0 = socket(&network, "h0", "10.0.0.1:0");
    let h99 = socket(&network, "h99", "10.0.0.100:0");
    // The first link and the last one are at different bridges.
    let moved = Netns::open(&network.hosts().nth(99).unwrap().netns).unwrap();
    moved
        .enter(|| {
            let mut netlink = Netlink::open().unwrap();
            let (first, last) = (
                netlink.link("eth0").unwrap(),
                netlink.link("eth11").unwrap(),
            );
            let address = "10.0.0.100".parse().unwrap();
            netlink
                .apply([
                    myelin_linux::link::set_down(&first.id()),
                    myelin_linux::address::add(&last.id(), address, 32),
                    myelin_linux::route::add_on_link(&last.id(), "10.0.0.1".parse().unwrap(), 32),
                ])
                .unwrap();
        })
        .unwrap();
    assert!(arrives(&h99, &h0, true) && arrives(&h0, &h99, true));
    drop(network);
    assert!(journal.replay().is_empty());
}

#[test]
fn links_have_a_place_for_a_delay_line() {
    if !root_or_skip() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let journal = journal(directory.path());
    let lab = topology(
        "delayed",
        "  hosts: [ a, b, c ]\n  switches: [ s ]\n  links:\n    - { ends: [ a, s ], delay: 1ms }\n    \
         - { ends: [ s, b ] }\n    - { ends: [ a, c ], delay: 1ms }\n    - { ends: [ b, c ] }\n",
    );
    let network = create(&lab, &journal).unwrap();
    let port = |link: &str| match network.delay_point(link).unwrap() {
        DelayPoint::Port { end, is_second } => (end.name, is_second),
        DelayPoint::Wires(wires) => panic!("{wires:?}"),
    };
    let ends: Vec<_> = network.links().map(|(_, ends, _)| ends).collect();
    assert_eq!(port("a-s"), (ends[0][1].interface.clone(), true));
    assert_eq!(port("s-b"), (ends[1][0].interface.clone(), false));
    let DelayPoint::Wires(wires) = network.delay_point("a-c").unwrap() else {
        panic!("both ends are in the namespaces of hosts");
    };
    let mut netlink = Netlink::open().unwrap();
    for (wire, end) in wires.iter().zip(&ends[2]) {
        let netns = Netns::open(end.netns.as_ref().unwrap()).unwrap();
        let inside = Netlink::open_in(&netns)
            .unwrap()
            .link(&end.interface)
            .unwrap();
        assert_eq!(netlink.link(&wire.name).unwrap().peer, Some(inside.index));
    }
    let refused = network.delay_point("b-c").unwrap_err().to_string();
    assert!(refused.contains("put a switch between"), "{refused}");
    drop(network);
    assert!(journal.replay().is_empty());
    assert!(netlink.link(&wires[0].name).is_err());
}

#[test]
fn a_network_that_cannot_be_made_leaves_nothing() {
    if !root_or_skip() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let journal = journal(directory.path());
    let core = topology("core", "  hosts: [ { name: a, cpus: 4095 } ]\n");
    let error = create(&core, &journal).unwrap_err();
    assert!(error.to_string().contains("core 4095"), "{error}");

    // Another program has the name of the last host.
    let lab = topology(
        "taken",
        "  hosts: [ { name: a, cpu: 100m }, b ]\n  switches: [ s ]\n  links: [ { ends: [ a, s ] } ]\n",
    );
    let name = |host: &str| format!("myelin-{}-{host}", lab.name);
    let taken = Netns::create(&name("b")).unwrap();
    let error = create(&lab, &journal).unwrap_err();
    assert!(error.to_string().contains("rename the topology"), "{error}");
    assert!(Netns::open(&name("a")).is_err() && Netns::open(&name("b")).is_ok());
    assert!(journal.replay().is_empty());
    drop(taken);
    myelin_linux::netns::delete(&name("b")).unwrap();

    // Killed: only the journal knows the network.
    let network = create(&lab, &journal).unwrap();
    std::mem::forget(network);
    let reopened = Journal::open(&directory.path().join("journal")).unwrap();
    assert!(reopened.replay().len() >= 4);
    reopened.remove_all().unwrap();
    assert!(Netns::open(&name("a")).is_err() && Netns::open(&name("b")).is_err());
}

#[test]
fn a_network_grows_under_traffic_and_forgets_an_addition() {
    if !root_or_skip() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let journal = journal(directory.path());
    let spec = "  hosts: [ h1, h2 ]
  switches: [ s1 ]
  links: [ { ends: [ h1, s1 ] }, { ends: [ h2, s1 ] } ]
";
    let lab = topology("grown", spec);
    let mut network = create(&lab, &journal).unwrap();
    let links_here = |network: &Network| {
        let links = Netlink::open().unwrap().links().unwrap();
        let own = links
            .iter()
            .filter(|link| network.owns_interface(&link.name));
        own.count()
    };
    let before = links_here(&network);
    let more = "  hosts: [ h1, h2, h3 ]
  switches: [ s1, s2 ]
  links: [ { ends: [ h1, s1 ] }, { ends: [ h2, s1 ] }, { ends: [ s1, s2 ] }, { ends: [ h3, s2 ] }, { ends: [ h1, h2 ] } ]
";
    let wanted = topology("grown", more);
    let grown = network.topology().change_to(&lab, &wanted).unwrap().grown;
    let growth = network.grow(&grown, &journal).unwrap();
    assert_eq!(growth.links_before(), 2);
    let h1 = socket(&network, "h1", "10.0.0.1:0");
    let h3 = socket(&network, "h3", "10.0.0.3:0");
    assert!(arrives(&h1, &h3, true) && arrives(&h3, &h1, true));
    let last = network.links().last().unwrap().1;
    assert_eq!(
        (last[0].interface.as_str(), last[1].interface.as_str()),
        ("eth1", "eth1")
    );
    let netns = network.hosts().last().unwrap().netns;
    drop(h3);
    network.undo(&growth).unwrap();
    assert_eq!((network.topology(), network.links().count()), (&lab, 2));
    assert!(Netns::open(&netns).is_err());
    let h2 = socket(&network, "h2", "10.0.0.2:0");
    assert!(arrives(&h1, &h2, true));
    assert_eq!(links_here(&network), before);
    // The same addition is possible again.
    network.grow(&grown, &journal).unwrap();
    let h3 = socket(&network, "h3", "10.0.0.3:0");
    assert!(arrives(&h2, &h3, true));
    drop((h1, h3));
    // The first host goes, and its numbers with it. The others keep theirs.
    let mut fewer = wanted.clone();
    fewer.hosts.remove(0);
    fewer
        .links
        .retain(|link| !link.ends.contains(&"h1".to_owned()));
    let change = network.topology().change_to(&wanted, &fewer).unwrap();
    let gone: Vec<String> = network
        .ports_of(&change.removal)
        .map(str::to_owned)
        .collect();
    assert_eq!(gone.len(), 1, "{gone:?}");
    network.remove(&change.removal).unwrap();
    assert!(Netns::open("myelin-grown-h1").is_err());
    assert!(Netlink::open().unwrap().link(&gone[0]).is_err());
    let h3 = socket(&network, "h3", "10.0.0.3:0");
    assert!(arrives(&h2, &h3, true));
    let change = network.topology().change_to(&fewer, &wanted).unwrap();
    network.grow(&change.grown, &journal).unwrap();
    let ports: Vec<_> = network.links().flat_map(|(_, ends, _)| ends).collect();
    assert!(ports.iter().any(|end| end.interface == gone[0]));
    let h1 = socket(&network, "h1", "10.0.0.1:0");
    assert!(arrives(&h1, &h3, true) && arrives(&h3, &h1, true));
    drop((h1, h2, h3));
    drop(network);
    assert!(journal.replay().is_empty());
}
