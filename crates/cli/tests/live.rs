//! Chains are changed while packets flow: none is lost, none is seen by half of one form and half
//! of another.

mod common;
#[path = "live/form.rs"]
mod form;
#[path = "live/traffic.rs"]
mod traffic;

use std::time::Duration;

use common::{Myelin, sh, skip_unless_root, skip_without, wait_for};
use form::Form;
use traffic::Traffic;

const PORT: u16 = 9000;
/// No row of functions that begins in one form and ends in the next leaves a packet as a whole form
/// would: else the test could not see it.
fn assert_mixtures_show(forms: &[Form]) {
    let sum = |keys: &[u8]| keys.iter().fold(0, |all, key| all ^ key);
    for (at, one) in forms.iter().enumerate() {
        let (one, next) = (&one.keys, &forms[(at + 1) % forms.len()].keys);
        for head in 0..=one.len() {
            for tail in 0..=next.len() {
                let is_whole = (head, tail) == (one.len(), next.len()) || (head, tail) == (0, 0);
                let mixed = sum(&one[..head]) ^ sum(&next[tail..]);
                assert!(
                    is_whole || (mixed != sum(one) && mixed != sum(next)),
                    "{one:02x?}, {next:02x?}: {head} of one and those from {tail} of the next make {mixed:#x}"
                );
            }
        }
    }
}

fn up(myelin: &Myelin, form: &Form) -> serde_json::Value {
    myelin.json(&["up", form.file(myelin).to_str().unwrap(), "--json"])[0].clone()
}

/// Goes through the forms round and round under traffic, and looks at every packet. Gives the
/// exchange times, ms.
fn change_under_traffic(forms: &[Form], packets: u64) -> Vec<f64> {
    assert_mixtures_show(forms);
    let myelin = Myelin::new();
    let first = up(&myelin, &forms[0]);
    assert_eq!(first["change"], "created");
    let traffic = Traffic::start(&first, PORT);
    // From which packet on which form must be seen.
    let mut eras = vec![(0, forms[0].key())];
    let mut exchanges = Vec::new();
    let mut at = 0;
    traffic.wait_for_packets(100);
    while traffic.sent() < packets || exchanges.len() < 4 * forms.len() {
        at = (at + 1) % forms.len();
        let changed = up(&myelin, &forms[at]);
        assert_eq!(changed["change"], "changed", "{changed}");
        assert_eq!(changed["generation"], exchanges.len() + 1);
        exchanges.push(changed["exchange_ms"].as_f64().unwrap());
        eras.push((traffic.sent(), forms[at].key()));
        traffic.wait_for_packets(packets / 100);
    }
    let status = myelin.json(&["ps", "--json"])[0].clone();
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
        "lost of {sent} packets, first: {missing:?}; eras: {eras:?}; {status}"
    );
    for (number, key) in &arrivals.keys {
        let era = eras.partition_point(|(from, _)| from <= number) - 1;
        let (_, now) = eras[era];
        let next = eras.get(era + 1).map_or(now, |(_, next)| *next);
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
        "the figures of former generations are gone: {status}"
    );
    myelin.ok(&["down", "--all"]);
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
            Form::new(&["k01", "kf", "k02"]),
            // Reconfigured, reordered, longer, shorter.
            Form::new(&["k04", "kf", "k08"]),
            Form::new(&["kf", "k14", "kw", "k28"]),
            Form::new(&["k41"]),
            Form::new(&["kw", "k82", "k11", "kf", "k44"])
                .matching("{ protocol: udp, destination: 10.0.0.2/32 }"),
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
            Form::new(&["kw", "u01", "kf", "u02", "kf"]),
            // Reconfigured.
            Form::new(&["kw", "u04", "kf", "u08", "kf"]),
            // Reordered, and spaces changed.
            Form::new(&["u10", "kf", "k20", "kw", "uf"]),
            // The last user function goes, and with it the hook.
            Form::new(&["kw", "k41", "kf", "k82", "kf"]),
            // The first one comes back.
            Form::new(&["kw", "k44", "uf", "k88", "kf", "k11"]),
            // Only user functions.
            Form::new(&["u22", "uf"]),
            Form::new(&["uf", "k50", "uf", "kf", "ua1"])
                .matching("{ protocol: udp, destination: 10.0.0.2/32 }"),
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
            Form::new(&["k01", "u02"]),
            Form::new(&["k04", "u08"]).mapped("distributed"),
            Form::new(&["k10", "u20"]).mapped("distributed"),
            Form::new(&["u40", "u81"]).mapped("pipeline"),
            Form::new(&["k04", "k08"]),
            Form::new(&["u10", "uf", "u20"]).mapped("pipeline"),
        ],
        20_000,
    );
}

#[test]
fn a_chain_of_32_functions_is_exchanged_in_milliseconds() {
    if skip_unless_root() {
        return;
    }
    let long = |key: &'static str| {
        let mut functions = vec!["kf"; 31];
        functions.push(key);
        Form::new(&functions)
    };
    let exchanges = change_under_traffic(&[long("k01"), long("k02")], 20_000);
    // 10 ms on a machine that has nothing else to do; here the limit only tells milliseconds from a
    // wait that ran out.
    assert!(median(&exchanges) < 100.0, "{exchanges:?}");
}

#[test]
fn what_a_function_knows_survives_a_change_of_the_chain_around_it() {
    if skip_unless_root() {
        return;
    }
    for forms in [
        [Form::new(&["km", "k01"]), Form::new(&["k02", "kf", "km"])],
        [
            Form::new(&["k01", "um"]),
            Form::new(&["um", "kf", "u02", "kf"]),
        ],
        // The hook changes, and the function stays in its space.
        [Form::new(&["km", "k01"]), Form::new(&["km", "u02"])],
    ] {
        let myelin = Myelin::new();
        let first = up(&myelin, &forms[0]);
        let traffic = Traffic::start(&first, PORT);
        for form in forms.iter().rev().cycle().take(5) {
            traffic.wait_for_packets(500);
            assert_eq!(up(&myelin, form)["change"], "changed");
        }
        traffic.wait_for_packets(500);
        let (sent, arrivals) = traffic.stop();
        assert_eq!(arrivals.keys.len() as u64, sent, "lost");
        let flows = myelin.json(&["ps", "--flows", "--json"]);
        let meter = &flows[0];
        assert_eq!(meter["function"], "meter", "{flows}");
        assert_eq!(meter["begun"], 1, "{flows}");
        assert_eq!(meter["flows"][0]["packets"], sent, "{flows}");
    }
}

/// What `up` did with each chain of a file, and its generation.
fn states(up: &serde_json::Value) -> Vec<(String, u64)> {
    let all = up.as_array().unwrap().iter();
    all.map(|one| {
        (
            one["change"].as_str().unwrap().to_owned(),
            one["generation"].as_u64().unwrap(),
        )
    })
    .collect()
}

#[test]
fn what_is_the_same_stays_untouched() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let one = Form::new(&["kf", "u01"]);
    let mut other = Form::new(&["k02"]);
    let both = |other: &Form| {
        let text = format!("{}---{}", one.object("@live"), other.object("@other"));
        let file = myelin.file(&text);
        myelin.json(&["up", file.to_str().unwrap(), "--json"])
    };
    up(&myelin, &one);
    let worker = |myelin: &Myelin| {
        let list = myelin.json(&["ps", "--json"]);
        let live = list.as_array().unwrap().iter();
        live.filter_map(|chain| chain["worker"]["pid"].as_u64())
            .collect::<Vec<_>>()
    };
    let before = worker(&myelin);
    let unchanged = ("unchanged".to_owned(), 0);
    assert_eq!(
        states(&both(&other)),
        [unchanged.clone(), ("created".to_owned(), 0)]
    );
    other.functions.reverse();
    assert_eq!(
        states(&both(&other)),
        [unchanged.clone(), unchanged.clone()]
    );
    let other = Form::new(&["k03"]);
    assert_eq!(
        states(&both(&other)),
        [unchanged, ("changed".to_owned(), 1)]
    );
    assert_eq!(worker(&myelin), before, "another worker");
    let text = myelin.ok(&["up", one.file(&myelin).to_str().unwrap()]);
    assert!(text.contains("is unchanged"), "{text}");
    let text = myelin.ok(&[
        "up",
        Form::new(&["kf", "u04"]).file(&myelin).to_str().unwrap(),
    ]);
    assert!(
        text.contains("is changed") && text.contains("generation 1"),
        "{text}"
    );
    assert_eq!(worker(&myelin), before, "another worker");
    // What `run` takes down at its end must not be somebody's running chain.
    let error = myelin.fails(1, &["run", one.file(&myelin).to_str().unwrap()]);
    assert!(error.contains("runs already"), "{error}");
    myelin.expect_chains(2);
    myelin.ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn one_of_a_pair_of_chains_is_changed() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let pair = |form: &Form| {
        let there = form
            .object("@live")
            .replace("spec:", "spec:\n  reverse: @back");
        let back = Form::new(&["uf"])
            .matching("{ protocol: udp, destination: 10.0.0.1/32 }")
            .object("@back");
        let file = myelin.file(&format!("{there}---{back}"));
        myelin.json(&["up", file.to_str().unwrap(), "--json"])
    };
    let up = pair(&Form::new(&["k01", "uf"]));
    let traffic = Traffic::start(&up[0], PORT);
    for functions in [&["k02"][..], &["u04", "kf"], &["k08", "kf"]] {
        traffic.wait_for_packets(200);
        let up = pair(&Form::new(functions));
        let changes = states(&up).into_iter().map(|(change, _)| change);
        assert_eq!(changes.collect::<Vec<_>>(), ["changed", "unchanged"]);
    }
    traffic.wait_for_packets(200);
    let (sent, arrivals) = traffic.stop();
    assert_eq!(arrivals.keys.len() as u64, sent, "lost");
    let probe = myelin.probe("live", 64, 50);
    assert_eq!(probe["lost"], 0, "{probe}");
    myelin.ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn what_cannot_be_changed_live_is_refused_with_the_remedy() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let form = Form::new(&["u01", "kf"]);
    let first = up(&myelin, &form);
    let traffic = Traffic::start(&first, PORT);
    traffic.wait_for_packets(100);
    let text = format!(
        "{}---{}",
        form.object("@live"),
        Form::new(&["kf"]).object("@back")
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
        let file = myelin.file(&text.replacen(from, to, 1));
        let error = myelin.fails(1, &["up", file.to_str().unwrap()]);
        assert!(
            error.contains(word) && error.contains("myelin down"),
            "{word}: {error}"
        );
    }
    traffic.wait_for_packets(100);
    let (sent, arrivals) = traffic.stop();
    assert_eq!(arrivals.keys.len() as u64, sent);
    assert_eq!(
        states(&myelin.json(&["up", form.file(&myelin).to_str().unwrap(), "--json"])),
        [("unchanged".to_owned(), 0)]
    );
}

/// Brings a file up whose first object, the changed chain, is fine and whose second is `broken`.
/// Returns the error, what arrived, and how many packets had been sent when it was over.
fn fails_half_way(myelin: &Myelin, broken: impl Fn(&serde_json::Value) -> String) -> (String, u64) {
    let form = Form::new(&["k01", "kf"]);
    let first = up(myelin, &form);
    let traffic = Traffic::start(&first, PORT);
    traffic.wait_for_packets(100);
    // It changes with its match and its hook.
    let changed = Form::new(&["u04", "kf"])
        .matching("{ protocol: udp, destination: 10.0.0.2/32 }")
        .object("@live");
    let file = myelin.file(&format!("{changed}---{}", broken(&first)));
    let error = myelin.fails(1, &["up", file.to_str().unwrap()]);
    let rolled_back = traffic.sent();
    traffic.wait_for_packets(100);
    let (sent, arrivals) = traffic.stop();
    assert_eq!(arrivals.keys.len() as u64, sent, "lost");
    assert_eq!((arrivals.damaged, arrivals.duplicates), (0, 0));
    let by_next = arrivals.keys.iter().filter(|(_, key)| **key == 4);
    assert!(
        by_next.clone().all(|(number, _)| *number < rolled_back),
        "packets after the roll-back"
    );
    let by_next = by_next.count() as u64;
    let by_first = arrivals.keys.values().filter(|key| **key == 1).count() as u64;
    assert_eq!(by_next + by_first, sent, "another key");
    assert_untouched(myelin, sent);
    (error, by_next)
}

#[test]
fn a_file_that_cannot_be_laid_out_is_never_led_to() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let (error, by_next) = fails_half_way(&myelin, |_| {
        Form::new(&["kf"]).object("@broken").replace(
            "spec:",
            "spec:\n  ports: { ingress: my-nowhere0, egress: my-nowhere1 }",
        )
    });
    assert!(error.contains("my-nowhere0"), "{error}");
    assert_eq!(by_next, 0, "led over before all of the file stood");
}

#[test]
fn a_file_whose_last_match_is_taken_is_rolled_back() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let (error, _) = fails_half_way(&myelin, |first| {
        // The match that the first object takes on the same port.
        let ports = format!(
            "spec:\n  ports: {{ ingress: {}, egress: {} }}",
            first["ingress"].as_str().unwrap(),
            first["egress"].as_str().unwrap()
        );
        Form::new(&["kf"])
            .matching("{ protocol: udp, destination: 10.0.0.2/32 }")
            .object("@broken")
            .replace("spec:", &ports)
    });
    assert!(error.contains(&myelin.chain("broken")), "{error}");
}

/// The chain is as it came up, and has taken `sent` packets.
fn assert_untouched(myelin: &Myelin, sent: u64) {
    let status = myelin.json(&["ps", "--json"])[0].clone();
    assert_eq!(status["generation"], 0, "{status}");
    assert!(status["worker"].is_null(), "{status}");
    assert_eq!(status["packets_in"], sent, "{status}");
    myelin.ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn a_generation_that_does_not_load_leaves_the_old_one_untouched() {
    if skip_unless_root() || skip_without("prlimit") {
        return;
    }
    let myelin = Myelin::new();
    let first = up(&myelin, &Form::new(&["k01", "kf"]));
    let next = Form::new(&["k02", "u04", "kf"]).file(&myelin);
    let agent = myelin.agent_pid();
    let descriptors = || {
        std::fs::read_dir(format!("/proc/{agent}/fd"))
            .unwrap()
            .count()
    };
    let traffic = Traffic::start(&first, PORT);
    traffic.wait_for_packets(100);
    // The agent runs out of descriptors at one step after the other: worker, sockets, internal
    // link, programs.
    let before = descriptors();
    for more in [6, 8, 10, 12, 14, 16, 20, 24] {
        sh(&format!(
            "prlimit --pid {agent} --nofile={}:",
            before + more
        ));
        let error = myelin.fails(1, &["up", next.to_str().unwrap()]);
        assert!(!error.is_empty());
        traffic.wait_for_packets(20);
    }
    sh(&format!("prlimit --pid {agent} --nofile=1024:"));
    wait_for("all descriptors", || descriptors() <= before);
    assert!(descriptors() <= before, "{} leaked", descriptors() - before);
    let (sent, arrivals) = traffic.stop();
    assert_eq!(arrivals.keys.len() as u64, sent, "lost");
    assert!(arrivals.keys.values().all(|key| *key == 1));
    assert_untouched(&myelin, sent);
}

#[test]
fn an_agent_killed_in_an_exchange_leaves_nothing_that_down_all_does_not_find() {
    if skip_unless_root() {
        return;
    }
    for delay_ms in [1, 5, 10, 20, 40] {
        let myelin = Myelin::new();
        let forms = [Form::new(&["k01", "kf"]), Form::new(&["u02", "kf", "u04"])];
        up(&myelin, &forms[0]);
        let file = forms[1].file(&myelin);
        let mut change = myelin
            .command(&["up", file.to_str().unwrap()])
            .stderr(std::process::Stdio::null())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(delay_ms));
        myelin.kill_agent();
        change.wait().unwrap();
        myelin.ok(&["down", "--all"]);
        myelin.assert_clean();
    }
}
