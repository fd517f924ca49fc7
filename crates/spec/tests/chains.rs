//! Tests the values that the parser reads from valid chain files.

use std::collections::BTreeMap;

use myelin_packet::rules::{Action, Rule};
use myelin_packet::{FragmentHandling, Match};
use myelin_spec::{
    Classify, Enforce, FirewallConfig, FragmentPolicy, FunctionConfig, Hook, Idle, Isolation,
    Limits, Mapping, NatConfig, NoFiles, OnFailure, PortDriver, Ports, ServiceChain, SharingPolicy,
    SharingSpec, Side, Sla, Source, Space, WorkerSpec, XorConfig, parse,
};
use proptest::prelude::*;

const FULL: &str = "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: { name: full, namespace: plant-7, labels: { line: a }, annotations: { note: none } }
spec:
  match: { source: 10.0.0.0/8, destination: 10.1.2.3, protocol: udp, sourcePort: 5000, destinationPort: 0x2328, fragments: drop }
  functions:
    - name: filter
      kind: firewall
      space: kernel
      config:
        default: deny
        fragments: match
        rules:
          - { action: allow, source: 192.0.2.0/24, protocol: tcp, sourcePort: 1000-2000, destinationPort: 53 }
          - { action: deny, destination: '2001:db8::/32', protocol: 89 }
        rulesFile: more.yaml
    - { name: coder, kind: xor, config: { key: '0x5a' }, space: user }
    - { name: last, kind: forward, config: {} }
  sla: { rate: [ 20kpps, 100Mbit ], burst: [ 32, 64kbit ], policingBurst: 64, enforce: both, shaper: { queue: 100, delay: 2ms, tolerance: 50us }, latency: 350us, percentile: 99.9, loss: 0.1%, roundTrip: 1ms }
  mapping: compact
  classify: calvin
  hook: xdp
  ports: { ingress: eth1, egress: eth2 }
  onFailure: pass
  worker: { batch: 32, idle: adaptive, spin: 20us, cores: [1], ring: 2048, busyPoll: 10us, sharing: { policy: unis, gamma: 0.5, longestWait: 3600s } }
  cpuLatency: 0us
";

fn chains(text: &str) -> Vec<ServiceChain> {
    parse(text, &Source::new("chain.yaml"), &NoFiles).unwrap_or_else(|errors| panic!("{errors}"))
}

/// Returns a minimal chain file. `more` contains additional lines of the `spec`.
fn minimal(name: &str, more: &str) -> String {
    format!(
        "apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: {{ name: {name} }}\n\
         spec:\n  match: {{}}\n  functions: [ {{ name: a, kind: forward }} ]\n{more}---\n"
    )
}

#[test]
#[expect(clippy::too_many_lines, reason = "every field once")]
fn every_key_is_read() {
    let files = BTreeMap::from([("more.yaml".to_owned(), "- { action: deny }\n".to_owned())]);
    let chains =
        parse(FULL, &Source::new("full.yaml"), &files).unwrap_or_else(|errors| panic!("{errors}"));
    let chain = &chains[0];
    assert_eq!((chain.name.as_str(), chain.owner()), ("full", "plant-7"));
    let matches = Match {
        source: Some("10.0.0.0/8".parse().unwrap()),
        destination: Some("10.1.2.3".parse().unwrap()),
        protocol: Some(17),
        source_port: Some(5000),
        destination_port: Some(9000),
        fragments: FragmentHandling::Drop,
    };
    assert_eq!(chain.matches, matches);
    let allow = Rule {
        action: Action::Allow,
        source: Some("192.0.2.0/24".parse().unwrap()),
        destination: None,
        protocol: Some(6),
        source_ports: Some(1000..=2000),
        destination_ports: Some(53..=53),
    };
    let mut deny = Rule::any(Action::Deny);
    deny.destination = Some("2001:db8::/32".parse().unwrap());
    deny.protocol = Some(89);
    let firewall = FirewallConfig {
        rules: vec![allow, deny, Rule::any(Action::Deny)],
        default: Action::Deny,
        fragments: FragmentPolicy::Match,
    };
    let functions: Vec<_> = chain
        .functions
        .iter()
        .map(|function| {
            (
                function.name.as_str(),
                function.config.clone(),
                function.space,
            )
        })
        .collect();
    assert_eq!(
        functions,
        [
            (
                "filter",
                FunctionConfig::Firewall(firewall),
                Some(Space::Kernel)
            ),
            (
                "coder",
                FunctionConfig::Xor(XorConfig { key: 0x5a }),
                Some(Space::User)
            ),
            ("last", FunctionConfig::Forward, None),
        ]
    );
    assert_eq!(chain.functions[1].place.to_string(), "full.yaml:18:7");
    let sla = Sla {
        rate_pps: Some(20_000),
        rate_bps: Some(100_000_000),
        burst_packets: Some(32),
        burst_bits: Some(64_000),
        policing_burst_packets: Some(64),
        policing_burst_bits: None,
        excess_queue_ns: None,
        enforce: Enforce::Both,
        shaper_queue: Some(100),
        shaper_delay_ns: Some(2_000_000),
        shaper_tolerance_ns: 50_000,
        latency_ns: Some(350_000),
        percentile: 99.9,
        loss_percent: Some(0.1),
        round_trip_ns: Some(1_000_000),
        has_tcp_burst: false,
    };
    assert_eq!(chain.sla, sla);
    assert_eq!(
        (chain.mapping, chain.classify, chain.hook),
        (Mapping::Compact, Classify::Calvin, Hook::Xdp)
    );
    let ports = Ports {
        ingress: "eth1".into(),
        egress: "eth2".into(),
        driver: PortDriver::Kernel,
        replay: None,
    };
    assert_eq!(chain.ports, Some(ports));
    assert_eq!(chain.on_failure, Some(OnFailure::Pass));
    let worker = WorkerSpec {
        batch: 32,
        idle: Idle::Adaptive,
        spin_ns: 20_000,
        cores: vec![1],
        ring: 2048,
        busy_poll_ns: Some(10_000),
        hugepages: false,
        super_packets: false,
        sharing: SharingSpec {
            policy: SharingPolicy::Unis,
            gamma: 500_000,
            longest_wait_ns: 3_600_000_000_000,
            ..SharingSpec::default()
        },
    };
    assert_eq!(chain.worker, worker);
    assert_eq!(chain.cpu_latency_ns, Some(0));
    assert_eq!(chain.places.mapping.to_string(), "full.yaml:21:12");
}

#[test]
fn absent_keys_have_their_defaults() {
    let chain = &chains(&minimal("plain", ""))[0];
    assert_eq!(chain.owner(), "default");
    assert_eq!(chain.matches, Match::default());
    assert_eq!(chain.sla, Sla::default());
    assert_eq!(chain.worker, WorkerSpec::default());
    assert_eq!(chain.cpu_latency_ns, None);
    assert_eq!(
        (chain.mapping, chain.classify, chain.hook),
        (Mapping::Auto, Classify::Cost, Hook::Auto)
    );
    assert_eq!(
        (&chain.ports, &chain.reverse, chain.on_failure),
        (&None, &None, None)
    );
    // The location of an absent key is the location of the mapping around it.
    assert_eq!(chain.places.mapping.line, 4);
}

#[test]
fn guarded_chain_drops_on_failure_by_default() {
    let plain = &chains(&minimal("plain", ""))[0];
    assert_eq!(plain.effective_on_failure(), OnFailure::Pass);
    let guarded = minimal("guarded", "").replace("kind: forward", "kind: firewall");
    assert_eq!(chains(&guarded)[0].effective_on_failure(), OnFailure::Drop);
    let explicit =
        minimal("explicit", "  onFailure: pass\n").replace("kind: forward", "kind: firewall");
    assert_eq!(chains(&explicit)[0].effective_on_failure(), OnFailure::Pass);
}

#[test]
fn reverse_becomes_mutual_and_shares_ports() {
    let there = minimal(
        "there",
        "  reverse: back\n  ports: { ingress: eth1, egress: eth2 }\n",
    );
    let pair = chains(&(there + &minimal("back", "")));
    assert_eq!(pair[1].reverse.as_deref(), Some("there"));
    let ports = Ports {
        ingress: "eth2".into(),
        egress: "eth1".into(),
        driver: PortDriver::Kernel,
        replay: None,
    };
    assert_eq!(pair[1].ports, Some(ports));
    // Either chain may name the other.
    let there = minimal("there", "  ports: { ingress: eth1, egress: eth2 }\n");
    let pair = chains(&(there + &minimal("back", "  reverse: there\n")));
    assert_eq!(pair[0].reverse.as_deref(), Some("back"));
    assert_eq!(
        pair[1].ports.as_ref().map(|ports| ports.ingress.as_str()),
        Some("eth2")
    );
    // Either chain may have the ports.
    let back = minimal(
        "back",
        "  reverse: there\n  ports: { ingress: eth2, egress: eth1 }\n",
    );
    let pair = chains(&(minimal("there", "") + &back));
    let ports = pair[0].ports.as_ref();
    assert_eq!(ports.map(|ports| ports.ingress.as_str()), Some("eth1"));
}

#[test]
fn chains_with_end_hosts_never_tie() {
    let text = minimal("one", "") + &minimal("two", "");
    assert_eq!(chains(&text).len(), 2);
}

#[test]
fn chain_round_trips_through_json() {
    let files = BTreeMap::from([("more.yaml".to_owned(), String::new())]);
    let chains = parse(FULL, &Source::new("full.yaml"), &files).unwrap();
    let json = serde_json::to_string(&chains).unwrap();
    assert_eq!(
        serde_json::from_str::<Vec<ServiceChain>>(&json).unwrap(),
        chains
    );
}

#[test]
fn faults_of_all_objects_are_reported() {
    let text = minimal("one", "  hook: a\n")
        + &minimal("two", "")
        + &minimal("three", "  hook: b\n  mapping: c\n");
    let errors = parse(&text, &Source::new("chain.yaml"), &NoFiles).unwrap_err();
    let keys: Vec<_> = errors
        .iter()
        .map(|error| (error.object.as_str(), error.key.as_str()))
        .collect();
    let (one, three) = ("ServiceChain `one`", "ServiceChain `three`");
    assert_eq!(
        keys,
        [
            (one, "spec.hook"),
            (three, "spec.hook"),
            (three, "spec.mapping")
        ]
    );
}

proptest! {
    #[test]
    fn arbitrary_text_never_panics(text in any::<String>()) {
        let _ = parse(&text, &Source::new("any"), &NoFiles);
        let _ = myelin_spec::referenced_files(&text);
    }

    /// A damaged chain file reaches more code than arbitrary text.
    #[test]
    fn damaged_chain_file_never_panics(
        at in 0..FULL.len(),
        removed in 0..20_usize,
        inserted in "[ -~\n\t\u{e9}]{0,6}",
    ) {
        let end = (at + removed).min(FULL.len());
        let text = format!("{}{inserted}{}", &FULL[..at], &FULL[end..]);
        let files = BTreeMap::from([("more.yaml".to_owned(), inserted.clone())]);
        if let Err(errors) = parse(&text, &Source::new("damaged"), &files) {
            prop_assert!(errors.iter().next().is_some());
            for error in &errors {
                prop_assert!(!error.message.is_empty() && !error.expected.is_empty() && !error.help.is_empty());
                prop_assert!(error.to_string().contains('^'));
            }
        }
        let _ = myelin_spec::referenced_files(&text);
    }
}

#[test]
fn reverse_of_copies_configuration_and_space() {
    let text = "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: { name: back }
spec:
  match: {}
  functions:
    - { name: first, kind: forward }
    - { name: restore, kind: nat, space: user, config: { reverseOf: masquerade } }
---
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: { name: out }
spec:
  match: {}
  functions:
    - name: masquerade
      kind: nat
      config: { address: [ 198.51.100.7, '2001:db8::7' ], ports: 2000-3000, timeout: 30s, tcpTimeout: 100s, flows: 64 }
    - { name: other, kind: nat, config: { address: 198.51.100.8, ports: 4000 } }
  reverse: back
";
    let chains = chains(text);
    let [back, out] = [0, 1].map(|chain: usize| chains[chain].instances(0..2));
    let expected = NatConfig {
        addresses: ["198.51.100.7", "2001:db8::7"]
            .map(|address| address.parse().unwrap())
            .to_vec(),
        ports: 2000..=3000,
        timeout_ns: 30_000_000_000,
        tcp_timeout_ns: 100_000_000_000,
        flows: 64,
    };
    assert_eq!(expected.tcp_transitory_ns(), 100_000_000_000);
    assert_eq!(out[0].config, FunctionConfig::Nat(expected));
    assert_eq!(
        out[1].config,
        FunctionConfig::Nat(NatConfig {
            addresses: vec!["198.51.100.8".parse().unwrap()],
            ports: 4000..=4000,
            ..NatConfig::default()
        })
    );
    assert_eq!(
        (&back[1].config, &back[1].state),
        (&out[0].config, &out[0].state)
    );
    assert_eq!((back[1].side, out[0].side), (Side::Reply, Side::Forward));
    assert_eq!(out[0].state.as_ref().unwrap().to_string(), "out/masquerade");
    assert_eq!(back[0].state.as_ref().unwrap().to_string(), "back/first");
    assert_eq!(
        chains[1].functions[0].space,
        Some(Space::User),
        "a pinned space applies to both functions"
    );
    assert!(chains[0].functions[1].paired && chains[1].functions[0].paired);
    assert!(!chains[1].functions[1].paired);
}

#[test]
fn isolation_of_a_function_precedes_isolation_of_its_chain() {
    let text = "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: { name: isolated }
spec:
  match: {}
  isolation: container
  functions:
    - { name: as-the-chain, kind: forward }
    - { name: own, kind: forward, isolation: process, limits: { cpu: 250m, memory: 1.5GiB } }
    - { name: with-files, kind: external, rootfs: /srv/root, config: { command: [ box ] } }
    - { name: kernel, kind: forward, space: kernel }
";
    let functions = chains(text).remove(0).functions;
    let isolation: Vec<_> = functions
        .iter()
        .map(|function| function.sandbox.isolation)
        .collect();
    assert_eq!(
        isolation,
        [
            Isolation::Container,
            Isolation::Process,
            Isolation::Container,
            Isolation::Container
        ]
    );
    let limits = Limits {
        cpu_millicores: Some(250),
        memory_bytes: Some(3 << 29),
    };
    assert_eq!(functions[1].sandbox.limits, limits);
    let requests: Vec<_> = functions
        .iter()
        .map(|function| function.sandbox.requested_at.is_some())
        .collect();
    assert_eq!(requests, [false, true, false, false]);
    // Only a function with its own request needs a process.
    let spaces: Vec<_> = functions
        .iter()
        .map(myelin_spec::FunctionSpec::required_space)
        .collect();
    assert_eq!(spaces, [None, Some(Space::User), None, Some(Space::Kernel)]);
    assert_eq!(functions[2].sandbox.rootfs.as_deref(), Some("/srv/root"));
    let demands: Vec<_> = functions
        .iter()
        .map(|function| function.sandbox.demand())
        .collect();
    let container = Some("isolation: container");
    assert_eq!(demands, [container, Some("limits"), container, container]);
}

#[test]
fn excess_that_waits_widens_the_policers_burst_by_the_traffic_of_the_wait() {
    let sla = |keys: &str| {
        let text = minimal("excess", &format!("  sla: {{ {keys} }}\n"));
        chains(&text).remove(0).sla
    };
    let packets = sla("rate: 20kpps, burst: 4, excess: { queue: 20ms }");
    let bucket = packets.policing_profile().packets.unwrap();
    assert_eq!((bucket.rate(), bucket.burst()), (20_000, 404));
    assert_eq!(packets.profile().packets.unwrap().burst(), 4);
    assert_eq!(
        (
            packets.enforce,
            packets.is_policed(),
            packets.shaper_delay_ns()
        ),
        (Enforce::Both, true, 30_000_000)
    );
    let bits = sla("rate: 15Mbit, excess: { queue: 20ms }");
    let bucket = bits.policing_profile().bits.unwrap();
    assert_eq!(bucket.burst(), 32 * 1514 * 8 + 300_000);
    assert!(!bits.has_tcp_burst);
    assert_eq!(bits.shaper_queue(), 1024);
    let late = sla("rate: 20kpps, latency: 50ms, excess: { queue: 20ms }");
    assert_eq!(late.shaper_delay_ns(), 50_000_000);
}
