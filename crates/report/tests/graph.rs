//! Pictures of chains: reviewed texts and SVGs, and properties of all pictures.
//!
//! `WRITE_FIXTURES=1 cargo test -p myelin-report --test graph` rewrites the pictures; review them.

mod common;

use std::collections::BTreeMap;
use std::path::Path;

use common::{plan, status};
use myelin_api::{PacketAccount, Plan};
use myelin_report::graph::ChainGraph;
use myelin_spec::chain::{MAX_FUNCTIONS, MAX_NAME};
use proptest::prelude::*;

const WIDTH: u16 = 100;
const FILTER: &str =
    "kind: firewall, config: { rules: [ { action: deny, source: 192.0.2.0/24 } ] }";
const CODER: &str = "kind: xor, config: { key: 7 }, space: user";
const BOX: &str = "kind: external, config: { command: [ /bin/true ] }";

fn places(counts: &[(&str, u64)]) -> BTreeMap<String, u64> {
    counts
        .iter()
        .map(|(place, packets)| ((*place).to_owned(), *packets))
        .collect()
}

/// Returns an account with losses at every place of a chain with these functions.
fn lossy_account(dropped: &[(&str, u64)]) -> PacketAccount {
    PacketAccount {
        packets_in: 20_000,
        packets_out: 19_000,
        policed: 300,
        dropped: places(dropped),
        lost: places(&[("door", 2), ("ring", 20), ("link", 5), ("unseen", 3)]),
        made: 0,
        under_way: 4,
    }
}

/// Returns a chain of each mapping, of DPDK devices and with a black box: planned, and running with
/// losses.
fn pictures() -> Vec<(&'static str, ChainGraph)> {
    let functions = [("edge-filter", FILTER), ("coder", CODER)];
    let sla = "  sla: { rate: 20kpps, burst: 24, latency: 350us, loss: 0.1% }\n";
    let compact = plan("compact", &functions, sla);
    let stages = [
        ("one", CODER),
        ("two", CODER),
        ("three", CODER),
        ("last", FILTER),
    ];
    let pipeline = plan("staged", &stages, &format!("  mapping: pipeline\n{sla}"));
    let three = [
        ("edge-filter", FILTER),
        ("coder", CODER),
        ("decoder", CODER),
    ];
    let distributed = plan("distributed", &three, "  mapping: distributed\n");
    let devices = "  ports: { ingress: { dpdk: \"net_tap0,iface=tap0,mac=02:00:00:00:00:01\" }, \
                   egress: { dpdk: \"net_tap1,iface=tap1\" } }\n";
    let dpdk = plan("devices", &[("filter", FILTER), ("coder", CODER)], devices);
    let boxed = [("filter", FILTER), ("script", BOX), ("coder", CODER)];
    let black_box = plan("black-box", &boxed, "");
    let names: Vec<String> = (1..=20).map(|i| format!("function-number-{i}")).collect();
    let many: Vec<_> = names
        .iter()
        .map(|name| (name.as_str(), "kind: forward"))
        .collect();
    let long = plan("long", &many, "  ports: { ingress: eth1, egress: eth2 }\n");
    let running = |plan: &Plan, dropped: &[(&str, u64)]| {
        ChainGraph::running(&status(plan, lossy_account(dropped)))
    };
    vec![
        ("compact", ChainGraph::planned(&compact)),
        (
            "compact-running",
            running(&compact, &[("edge-filter", 40), ("shaper", 6), ("old", 1)]),
        ),
        ("pipeline", ChainGraph::planned(&pipeline)),
        ("pipeline-running", running(&pipeline, &[("two", 7)])),
        ("distributed", ChainGraph::planned(&distributed)),
        (
            "distributed-running",
            running(&distributed, &[("decoder", 7)]),
        ),
        ("dpdk", ChainGraph::planned(&dpdk)),
        ("dpdk-running", running(&dpdk, &[("filter", 7)])),
        ("black-box", ChainGraph::planned(&black_box)),
        ("black-box-running", running(&black_box, &[("script", 7)])),
        ("long", ChainGraph::planned(&long)),
    ]
}

#[test]
fn pictures_equal_the_reviewed_files() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/graph");
    for (name, graph) in pictures() {
        let svg = graph.svg().unwrap();
        check_svg(&svg);
        for (extension, text) in [("txt", graph.text(WIDTH)), ("svg", svg)] {
            let path = directory.join(name).with_extension(extension);
            if std::env::var_os("WRITE_FIXTURES").is_some() {
                std::fs::create_dir_all(&directory).unwrap();
                std::fs::write(&path, &text).unwrap();
            }
            let reviewed = std::fs::read_to_string(&path).unwrap_or_default();
            assert_eq!(text, reviewed, "{} differs:\n{text}", path.display());
        }
    }
}

/// Greatest width of a letter of a monospaced font, as a share of its size.
const LETTER: f64 = 0.61;

/// Checks that the SVG is XML with a title and a description, and that all text lies in the view
/// box.
fn check_svg(svg: &str) {
    let document = roxmltree::Document::parse(svg).unwrap();
    let root = document.root_element();
    let view: Vec<f64> = root
        .attribute("viewBox")
        .unwrap()
        .split(' ')
        .map(|figure| figure.parse().unwrap())
        .collect();
    let text_of = |tag: &str| {
        let mut nodes = root.children();
        let node = nodes.find(|node| node.tag_name().name() == tag);
        node.and_then(|node| node.text()).unwrap_or_default().trim()
    };
    assert!(
        !text_of("title").is_empty() && !text_of("desc").is_empty(),
        "{svg}"
    );
    let mut texts = 0;
    for text in root
        .children()
        .filter(|node| node.tag_name().name() == "text")
    {
        let figure = |name: &str| text.attribute(name).unwrap().parse::<f64>().unwrap();
        let size = figure("font-size");
        let letters = text.text().unwrap().trim().chars().count();
        let right = figure("x") + letters as f64 * size * LETTER;
        let is_inside = figure("x") >= 0.0
            && right <= view[2]
            && figure("y") >= size
            && figure("y") + size <= view[3];
        assert!(is_inside, "{text:?} in {view:?}");
        texts += 1;
    }
    assert!(texts > 0, "{svg}");
}

/// Returns the sum of all losses in the text.
fn losses_in(text: &str) -> u64 {
    let words: Vec<_> = text.split_whitespace().collect();
    let losses = words.windows(2).filter_map(|pair| match pair[1] {
        "policed" | "dropped" | "lost" => pair[0].parse::<u64>().ok(),
        _ => None,
    });
    losses.sum()
}

prop_compose! {
    /// Generates different names of functions.
    fn function_names()(
        count in 1..=MAX_FUNCTIONS,
        lengths in prop::collection::vec(6..=MAX_NAME, MAX_FUNCTIONS),
    ) -> Vec<String> {
        let name = |(i, length): (usize, &usize)| format!("fn{i:02}{}", "x".repeat(length - 4));
        lengths.iter().enumerate().take(count).map(name).collect()
    }
}

proptest! {
    #[test]
    fn every_chain_fits_and_shows_each_function_and_each_loss_once(
        names in function_names(),
        kinds in prop::collection::vec(0..3_usize, MAX_FUNCTIONS),
        mapping in prop::sample::select(vec!["auto", "compact", "pipeline", "distributed"]),
        drops in prop::collection::vec(0..u64::MAX >> 8, MAX_FUNCTIONS),
        lost in prop::collection::vec(0..u64::MAX >> 8, 4),
        has_profile in any::<bool>(),
    ) {
        let is_boxed = ["auto", "distributed"].contains(&mapping);
        let kinds = kinds.iter().map(|kind| match kind {
            0 => FILTER,
            2 if is_boxed => BOX,
            _ => CODER,
        });
        let functions: Vec<_> = names.iter().map(String::as_str).zip(kinds).collect();
        let profile = if has_profile { ", rate: 2kpps" } else { "" };
        let more = format!("  mapping: {mapping}\n  sla: {{ loss: 1%{profile} }}\n");
        let plan = plan(&"c".repeat(MAX_NAME), &functions, &more);
        let dropped: Vec<_> = names.iter().map(String::as_str).zip(drops).collect();
        let account = PacketAccount {
            lost: ["door", "ring", "link", "unseen"].map(str::to_owned).into_iter().zip(lost).collect(),
            ..lossy_account(&dropped)
        };
        let places = account.dropped.values().chain(account.lost.values());
        let sum = account.policed + places.sum::<u64>();
        let graph = ChainGraph::running(&status(&plan, account));
        let text = graph.text(WIDTH);
        prop_assert_eq!(losses_in(&text), sum, "{}", text);
        for line in text.lines() {
            prop_assert!(line.chars().count() <= usize::from(WIDTH), "{}", text);
        }
        for name in &names {
            prop_assert_eq!(text.matches(name.as_str()).count(), 1, "{} in {}", name, text);
        }
        check_svg(&graph.svg().unwrap());
    }
}
