//! Live changes under traffic: no packet is lost, and each packet passes the functions of one
//! generation only.

mod common;
#[path = "live/variant.rs"]
mod variant;

use std::time::Duration;

use common::traffic::Traffic;
use common::{Myelin, sh, skip_unless_root, skip_without, wait_for};
use variant::ChainVariant;

const PORT: u16 = 9000;

/// Asserts that the XOR of each mixture of two successive variants differs from the XOR of both
/// variants. Only then can the server detect a packet that passed a mixture.
fn assert_mixtures_differ(variants: &[ChainVariant]) {
    let sum = |keys: &[u8]| keys.iter().fold(0, |all, key| all ^ key);
    for (at, variant) in variants.iter().enumerate() {
        let (first, next) = (&variant.keys, &variants[(at + 1) % variants.len()].keys);
        for head in 0..=first.len() {
            for tail in 0..=next.len() {
                let is_one_variant =
                    (head, tail) == (first.len(), next.len()) || (head, tail) == (0, 0);
                let mixed = sum(&first[..head]) ^ sum(&next[tail..]);
                assert!(
                    is_one_variant || (mixed != sum(first) && mixed != sum(next)),
                    "{first:02x?}, {next:02x?}: keys before {head} and keys from {tail} on give {mixed:#x}"
                );
            }
        }
    }
}

fn up(myelin: &Myelin, variant: &ChainVariant) -> serde_json::Value {
    myelin.run_json(&["up", variant.write_file(myelin).to_str().unwrap(), "--json"])[0].clone()
}

/// Deploys the variants in turn under traffic and checks each packet. Returns the exchange times,
/// ms.
fn change_under_traffic(variants: &[ChainVariant], packets: u64) -> Vec<f64> {
    assert_mixtures_differ(variants);
    let myelin = Myelin::new();
    let first = up(&myelin, &variants[0]);
    assert_eq!(first["change"], "created");
    let traffic = Traffic::start(&first, PORT);
    // First packet of each variant, and the XOR of its keys.
    let mut changes = vec![(0, variants[0].key())];
    let mut exchanges = Vec::new();
    let mut at = 0;
    traffic.wait_for_packets(100);
    while traffic.sent() < packets || exchanges.len() < 4 * variants.len() {
        at = (at + 1) % variants.len();
        let changed = up(&myelin, &variants[at]);
        assert_eq!(changed["change"], "changed", "{changed}");
        assert_eq!(changed["generation"], exchanges.len() + 1);
        exchanges.push(changed["exchange_ms"].as_f64().unwrap());
        changes.push((traffic.sent(), variants[at].key()));
        traffic.wait_for_packets(packets / 100);
    }
    let status = myelin.run_json(&["ps", "--json"])[0].clone();
    let (sent, arrivals) = traffic.stop();
    assert_eq!(
        (arrivals.damaged, arrivals.duplicates),
        (0, 0),
        "damaged, duplicates"
    );
    let missing: Vec<u64> = (0..sent)
        .filter(|number| !arrivals.keys.contains_key(number))
        .take(10)
        .collect();
    assert!(
        missing.is_empty(),
        "lost of {sent} packets, first: {missing:?}; changes: {changes:?}; {status}"
    );
    for (number, key) in &arrivals.keys {
        let at_change = changes.partition_point(|(from, _)| from <= number) - 1;
        let (_, now) = changes[at_change];
        let next = changes.get(at_change + 1).map_or(now, |(_, next)| *next);
        assert!(
            *key == now || *key == next,
            "packet {number} has {key:#x}, not {now:#x} nor {next:#x}"
        );
    }
    assert!(sent >= packets);
    println!(
        "{sent} packets, {} changes, exchange {:.1} ms in the median, {:.1} ms at most",
        exchanges.len(),
        median(&exchanges),
        exchanges.iter().copied().fold(0.0, f64::max)
    );
    let all = status["packets_in"].as_u64().unwrap();
    assert!(
        all + 100 > packets,
        "the count lacks packets of earlier generations: {status}"
    );
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
    exchanges
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

#[test]
fn a_kernel_chain_is_changed_under_traffic() {
    if skip_unless_root() {
        return;
    }
    change_under_traffic(
        &[
            ChainVariant::new(&["k01", "kf", "k02"]),
            // Then: other keys, another order, more functions, fewer functions.
            ChainVariant::new(&["k04", "kf", "k08"]),
            ChainVariant::new(&["kf", "k14", "kw", "k28"]),
            ChainVariant::new(&["k41"]),
            ChainVariant::new(&["kw", "k82", "k11", "kf", "k44"])
                .with_match("{ protocol: udp, destination: 10.0.0.2/32 }"),
        ],
        50_000,
    );
}

#[test]
fn a_mixed_chain_is_changed_under_traffic() {
    if skip_unless_root() {
        return;
    }
    change_under_traffic(
        &[
            ChainVariant::new(&["kw", "u01", "kf", "u02", "kf"]),
            // Other keys.
            ChainVariant::new(&["kw", "u04", "kf", "u08", "kf"]),
            // Another order and other spaces.
            ChainVariant::new(&["u10", "kf", "k20", "kw", "uf"]),
            // No user function, so another hook.
            ChainVariant::new(&["kw", "k41", "kf", "k82", "kf"]),
            // A user function again.
            ChainVariant::new(&["kw", "k44", "uf", "k88", "kf", "k11"]),
            // Only user functions.
            ChainVariant::new(&["u22", "uf"]),
            ChainVariant::new(&["uf", "k50", "uf", "kf", "ua1"])
                .with_match("{ protocol: udp, destination: 10.0.0.2/32 }"),
        ],
        100_000,
    );
}

#[test]
fn a_chain_changes_its_mapping_under_traffic() {
    if skip_unless_root() {
        return;
    }
    change_under_traffic(
        &[
            ChainVariant::new(&["k01", "u02"]),
            ChainVariant::new(&["k04", "u08"]).with_mapping("distributed"),
            ChainVariant::new(&["k10", "u20"]).with_mapping("distributed"),
            ChainVariant::new(&["u40", "u81"]).with_mapping("pipeline"),
            ChainVariant::new(&["k04", "k08"]),
            ChainVariant::new(&["u10", "uf", "u20"]).with_mapping("pipeline"),
        ],
        20_000,
    );
}

/// Changes a chain of 32 functions under traffic; returns the exchange times, ms.
fn change_chain_of_32_functions() -> Vec<f64> {
    let long = |key: &'static str| {
        let mut functions = vec!["kf"; 31];
        functions.push(key);
        ChainVariant::new(&functions)
    };
    change_under_traffic(&[long("k01"), long("k02")], 20_000)
}

#[test]
fn a_chain_of_32_functions_is_changed_under_traffic() {
    if skip_unless_root() {
        return;
    }
    change_chain_of_32_functions();
}

#[test]
#[ignore = "thorough: measures the time of a live change on a quiet machine"]
fn a_chain_of_32_functions_is_exchanged_in_milliseconds() {
    if skip_unless_root() {
        return;
    }
    let exchanges = change_chain_of_32_functions();
    // About 10 ms on an idle machine. The limit only detects an exchange that waits for a timeout.
    assert!(median(&exchanges) < 100.0, "{exchanges:?}");
}

#[test]
fn a_function_keeps_its_state_over_a_live_change() {
    if skip_unless_root() {
        return;
    }
    for variants in [
        [
            ChainVariant::new(&["km", "k01"]),
            ChainVariant::new(&["k02", "kf", "km"]),
        ],
        [
            ChainVariant::new(&["k01", "um"]),
            ChainVariant::new(&["um", "kf", "u02", "kf"]),
        ],
        // Another hook. The function `m` stays in its space.
        [
            ChainVariant::new(&["km", "k01"]),
            ChainVariant::new(&["km", "u02"]),
        ],
    ] {
        let myelin = Myelin::new();
        let first = up(&myelin, &variants[0]);
        let traffic = Traffic::start(&first, PORT);
        for variant in variants.iter().rev().cycle().take(5) {
            traffic.wait_for_packets(500);
            assert_eq!(up(&myelin, variant)["change"], "changed");
        }
        traffic.wait_for_packets(500);
        let (sent, arrivals) = traffic.stop();
        assert_eq!(arrivals.keys.len() as u64, sent, "packets were lost");
        let flows = myelin.run_json(&["ps", "--flows", "--json"]);
        let meter = &flows[0];
        assert_eq!(meter["function"], "meter", "{flows}");
        assert_eq!(meter["begun"], 1, "{flows}");
        assert_eq!(meter["flows"][0]["packets"], sent, "{flows}");
    }
}

/// Lists `change` and `generation` of each chain in the output of `up --json`.
fn list_changes(up: &serde_json::Value) -> Vec<(String, u64)> {
    let all = up.as_array().unwrap().iter();
    all.map(|chain| {
        (
            chain["change"].as_str().unwrap().to_owned(),
            chain["generation"].as_u64().unwrap(),
        )
    })
    .collect()
}

#[test]
fn up_restarts_neither_unchanged_chains_nor_their_worker() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let one = ChainVariant::new(&["kf", "u01"]);
    let mut other = ChainVariant::new(&["k02"]);
    let up_both = |other: &ChainVariant| {
        let text = format!("{}---{}", one.to_yaml("@live"), other.to_yaml("@other"));
        let file = myelin.write_file(&text);
        myelin.run_json(&["up", file.to_str().unwrap(), "--json"])
    };
    up(&myelin, &one);
    let worker = |myelin: &Myelin| {
        let list = myelin.run_json(&["ps", "--json"]);
        let live = list.as_array().unwrap().iter();
        live.filter_map(|chain| chain["worker"]["pid"].as_u64())
            .collect::<Vec<_>>()
    };
    let before = worker(&myelin);
    let unchanged = ("unchanged".to_owned(), 0);
    assert_eq!(
        list_changes(&up_both(&other)),
        [unchanged.clone(), ("created".to_owned(), 0)]
    );
    other.functions.reverse();
    assert_eq!(
        list_changes(&up_both(&other)),
        [unchanged.clone(), unchanged.clone()]
    );
    let other = ChainVariant::new(&["k03"]);
    assert_eq!(
        list_changes(&up_both(&other)),
        [unchanged, ("changed".to_owned(), 1)]
    );
    assert_eq!(worker(&myelin), before, "the chain has a new worker");
    let text = myelin.run_ok(&["up", one.write_file(&myelin).to_str().unwrap()]);
    assert!(text.contains("is unchanged"), "{text}");
    let text = myelin.run_ok(&[
        "up",
        ChainVariant::new(&["kf", "u04"])
            .write_file(&myelin)
            .to_str()
            .unwrap(),
    ]);
    assert!(
        text.contains("is changed") && text.contains("generation 1"),
        "{text}"
    );
    assert_eq!(worker(&myelin), before, "the chain has a new worker");
    // `run` removes its chains at the end, so it refuses a chain that runs already.
    let error = myelin.run_failing(1, &["run", one.write_file(&myelin).to_str().unwrap()]);
    assert!(error.contains("runs already"), "{error}");
    myelin.expect_chains(2);
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn a_live_change_of_one_chain_of_a_pair_leaves_the_other_unchanged() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let up_pair = |variant: &ChainVariant| {
        let there = variant
            .to_yaml("@live")
            .replace("spec:", "spec:\n  reverse: @back");
        let back = ChainVariant::new(&["uf"])
            .with_match("{ protocol: udp, destination: 10.0.0.1/32 }")
            .to_yaml("@back");
        let file = myelin.write_file(&format!("{there}---{back}"));
        myelin.run_json(&["up", file.to_str().unwrap(), "--json"])
    };
    let up = up_pair(&ChainVariant::new(&["k01", "uf"]));
    let traffic = Traffic::start(&up[0], PORT);
    for functions in [&["k02"][..], &["u04", "kf"], &["k08", "kf"]] {
        traffic.wait_for_packets(200);
        let up = up_pair(&ChainVariant::new(functions));
        let changes = list_changes(&up).into_iter().map(|(change, _)| change);
        assert_eq!(changes.collect::<Vec<_>>(), ["changed", "unchanged"]);
    }
    traffic.wait_for_packets(200);
    let (sent, arrivals) = traffic.stop();
    assert_eq!(arrivals.keys.len() as u64, sent, "packets were lost");
    let probe = myelin.probe("live", 64, 50);
    assert_eq!(probe["lost"], 0, "{probe}");
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn a_change_that_needs_a_new_deployment_is_refused_with_the_remedy() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let variant = ChainVariant::new(&["u01", "kf"]);
    let first = up(&myelin, &variant);
    let traffic = Traffic::start(&first, PORT);
    traffic.wait_for_packets(100);
    let text = format!(
        "{}---{}",
        variant.to_yaml("@live"),
        ChainVariant::new(&["kf"]).to_yaml("@back")
    );
    for (from, to, word) in [
        (
            "spec:",
            "spec:\n  ports: { ingress: lo, egress: nowhere }",
            "spec.ports",
        ),
        ("spec:", "spec:\n  reverse: @back", "spec.reverse"),
        ("spec:", "spec:\n  worker: { batch: 32 }", "spec.worker"),
        ("10.0.0.2/32", "10.9.9.9/32", "end hosts"),
        (
            "{ name: @live }",
            "{ name: @live, namespace: other }",
            "owner",
        ),
    ] {
        let file = myelin.write_file(&text.replacen(from, to, 1));
        let error = myelin.run_failing(1, &["up", file.to_str().unwrap()]);
        assert!(
            error.contains(word) && error.contains("myelin down"),
            "{word}: {error}"
        );
    }
    traffic.wait_for_packets(100);
    let (sent, arrivals) = traffic.stop();
    assert_eq!(arrivals.keys.len() as u64, sent);
    assert_eq!(
        list_changes(&myelin.run_json(&[
            "up",
            variant.write_file(&myelin).to_str().unwrap(),
            "--json"
        ])),
        [("unchanged".to_owned(), 0)]
    );
}

/// Runs `up` under traffic with a file of two chains: the first is a valid live change, the second
/// is `broken`. Returns the error and the number of packets that passed the changed chain.
fn fail_up_with_broken_second_chain(
    myelin: &Myelin,
    broken: impl Fn(&serde_json::Value) -> String,
) -> (String, u64) {
    let variant = ChainVariant::new(&["k01", "kf"]);
    let first = up(myelin, &variant);
    let traffic = Traffic::start(&first, PORT);
    traffic.wait_for_packets(100);
    // Other functions, another match and another hook.
    let changed = ChainVariant::new(&["u04", "kf"])
        .with_match("{ protocol: udp, destination: 10.0.0.2/32 }")
        .to_yaml("@live");
    let file = myelin.write_file(&format!("{changed}---{}", broken(&first)));
    let error = myelin.run_failing(1, &["up", file.to_str().unwrap()]);
    let rolled_back = traffic.sent();
    traffic.wait_for_packets(100);
    let (sent, arrivals) = traffic.stop();
    assert_eq!(arrivals.keys.len() as u64, sent, "packets were lost");
    assert_eq!((arrivals.damaged, arrivals.duplicates), (0, 0));
    let by_next = arrivals.keys.iter().filter(|(_, key)| **key == 4);
    assert!(
        by_next.clone().all(|(number, _)| *number < rolled_back),
        "a packet passed the changed chain after the roll-back"
    );
    let by_next = by_next.count() as u64;
    let by_first = arrivals.keys.values().filter(|key| **key == 1).count() as u64;
    assert_eq!(
        by_next + by_first,
        sent,
        "a packet passed functions of both generations"
    );
    assert_first_generation(myelin, sent);
    (error, by_next)
}

#[test]
fn no_packet_is_redirected_to_a_change_whose_file_cannot_be_deployed() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let (error, by_next) = fail_up_with_broken_second_chain(&myelin, |_| {
        ChainVariant::new(&["kf"]).to_yaml("@broken").replace(
            "spec:",
            "spec:\n  ports: { ingress: my-nowhere0, egress: my-nowhere1 }",
        )
    });
    assert!(error.contains("my-nowhere0"), "{error}");
    assert_eq!(
        by_next, 0,
        "packets were redirected before all chains of the file were made"
    );
}

#[test]
fn a_change_is_rolled_back_if_the_match_of_a_later_chain_is_taken() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let (error, _) = fail_up_with_broken_second_chain(&myelin, |first| {
        // The same match as the first chain, on the same port.
        let ports = format!(
            "spec:\n  ports: {{ ingress: {}, egress: {} }}",
            first["ingress"].as_str().unwrap(),
            first["egress"].as_str().unwrap()
        );
        ChainVariant::new(&["kf"])
            .with_match("{ protocol: udp, destination: 10.0.0.2/32 }")
            .to_yaml("@broken")
            .replace("spec:", &ports)
    });
    assert!(error.contains(&myelin.chain_name("broken")), "{error}");
}

/// Asserts that the first generation runs and counted `sent` packets, then removes the chain.
fn assert_first_generation(myelin: &Myelin, sent: u64) {
    let status = myelin.run_json(&["ps", "--json"])[0].clone();
    assert_eq!(status["generation"], 0, "{status}");
    assert!(status["worker"].is_null(), "{status}");
    assert_eq!(status["packets_in"], sent, "{status}");
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn a_generation_that_fails_to_load_leaves_the_old_one_unchanged() {
    if skip_unless_root() || skip_without("prlimit") {
        return;
    }
    let myelin = Myelin::new();
    let first = up(&myelin, &ChainVariant::new(&["k01", "kf"]));
    let next = ChainVariant::new(&["k02", "u04", "kf"]).write_file(&myelin);
    let agent = myelin.read_agent_pid();
    let descriptors = || {
        std::fs::read_dir(format!("/proc/{agent}/fd"))
            .unwrap()
            .count()
    };
    let traffic = Traffic::start(&first, PORT);
    traffic.wait_for_packets(100);
    // Each limit makes the agent run out of descriptors at another step: worker, sockets, internal
    // link, programs.
    let before = descriptors();
    for more in [6, 8, 10, 12, 14, 16, 20, 24] {
        sh(&format!(
            "prlimit --pid {agent} --nofile={}:",
            before + more
        ));
        let error = myelin.run_failing(1, &["up", next.to_str().unwrap()]);
        assert!(!error.is_empty());
        traffic.wait_for_packets(20);
    }
    sh(&format!("prlimit --pid {agent} --nofile=1024:"));
    wait_for("all descriptors", || descriptors() <= before);
    assert!(descriptors() <= before, "{} leaked", descriptors() - before);
    let (sent, arrivals) = traffic.stop();
    assert_eq!(arrivals.keys.len() as u64, sent, "packets were lost");
    assert!(arrivals.keys.values().all(|key| *key == 1));
    assert_first_generation(&myelin, sent);
}

#[test]
fn down_all_cleans_up_after_an_agent_killed_during_a_live_change() {
    if skip_unless_root() {
        return;
    }
    for delay_ms in [1, 5, 10, 20, 40] {
        let myelin = Myelin::new();
        let variants = [
            ChainVariant::new(&["k01", "kf"]),
            ChainVariant::new(&["u02", "kf", "u04"]),
        ];
        up(&myelin, &variants[0]);
        let file = variants[1].write_file(&myelin);
        let mut change = myelin
            .command(&["up", file.to_str().unwrap()])
            .stderr(std::process::Stdio::null())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(delay_ms));
        myelin.kill_agent();
        change.wait().unwrap();
        myelin.run_ok(&["down", "--all"]);
        myelin.assert_clean();
    }
}
