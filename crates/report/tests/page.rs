//! The HTML page is well-formed, self-contained and complete for any report.
#![allow(clippy::float_cmp, reason = "exact by construction")]

mod common;

use myelin_api::{PacketAccount, ReportReply};
use myelin_metrics::chain::{ChainReport, Flood, Hop, Traffic};
use myelin_metrics::envelope::Claim;
use myelin_metrics::{
    CoreUse, Counts, CpuUse, Distribution, Matching, Mode, ProbeResult, ProcessUse, Shares, Stop,
    TimelinePoint,
};
use myelin_report::Error;
use myelin_report::chain::{details, page, summary};
use myelin_report::terminal::Style;

fn empty_report() -> ChainReport {
    ChainReport {
        chain: "tactile".to_owned(),
        file_name: "tactile.yaml".to_owned(),
        file_text: "kind: ServiceChain # <&> \"quoted\"\n".to_owned(),
        ..ChainReport::default()
    }
}

/// Returns a nearly log-normal distribution with a tail, from a fixed generator.
fn log_normal_delays(centre_ns: f64, n: usize) -> Distribution {
    let mut state = 1_u64;
    let mut uniform = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((state >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    };
    let mut delays = Distribution::new();
    for _ in 0..n {
        let normal: f64 = (0..12).map(|_| uniform()).sum::<f64>() - 6.0;
        let tail = if uniform() < 0.01 {
            1.0 + 30.0 * uniform()
        } else {
            1.0
        };
        delays.record((centre_ns * (0.08 * normal).exp() * tail) as u64);
    }
    delays
}

/// Returns the result of a probe of 500 packets in `mode`.
fn probe(mode: Mode, rtt: Distribution) -> ProbeResult {
    let summary = rtt.summary(Some(700.0));
    ProbeResult {
        mode,
        matching: Matching::ById,
        cores: None,
        payload_bytes: 256,
        interval_us: 200.0,
        count: 500,
        repeats: 6,
        stopped: summary.is_none().then_some(Stop::NoAnswer),
        duration_s: 0.6,
        counts: Counts {
            sent: 500,
            ..Counts::default()
        },
        loss_ratio: 0.0,
        rtt: summary.clone(),
        forward: summary,
        reply: None,
        samples: None,
        timeline: (0..100)
            .map(|i| TimelinePoint {
                at_s: f64::from(i) / 100.0,
                min_us: 8.0,
                p50_us: 9.0,
                max_us: 30.0,
            })
            .collect(),
        rtt_distribution: rtt,
        forward_distribution: Distribution::new(),
    }
}

fn full_report() -> ChainReport {
    let inline = probe(Mode::Inline, log_normal_delays(9_000.0, 3000));
    let blocking = probe(Mode::Blocking, log_normal_delays(40_000.0, 3000));
    let shares = |user, system, softirq, steal| Shares {
        user_share: user,
        system_share: system,
        irq_share: 0.0,
        softirq_share: softirq,
        steal_share: steal,
        idle_share: 1.0 - user - system - softirq - steal,
    };
    let hop = |name: &str, kind: &str, space: &str, measured_ns: Option<f64>, predicted_ns| Hop {
        name: name.to_owned(),
        kind: kind.to_owned(),
        space: space.to_owned(),
        measured_ns,
        predicted_ns: Some(predicted_ns),
        packets_in: 12_000,
        packets_out: 11_990,
        drops: 10,
    };
    ChainReport {
        claims: vec![
            Claim::figure_at_most("latency, p99, us", 12.4, 350.0),
            Claim::figure_at_most("loss, %", 0.0, 0.1),
            Claim::figure_at_most("round trip, us", 30.1, 700.0),
        ],
        traffic: Traffic {
            packets_in: 12_000,
            policed: 4,
            packets_out: 11_986,
            lost: vec![("function".to_owned(), 10)],
        },
        latency_bound_us: Some(350.0),
        round_trip_bound_us: Some(700.0),
        probes: vec![("inline, 256 B".to_owned(), inline), ("blocking, 256 B".to_owned(), blocking)],
        sojourns: vec![
            ("before the black box".to_owned(), log_normal_delays(2_500.0, 20_000)),
            ("after it".to_owned(), log_normal_delays(9_000.0, 20_000)),
        ],
        hops: vec![
            hop("front door", "", "kernel", Some(160.0), 150.0),
            hop("edge-filter", "firewall", "kernel", Some(48.0), 40.0),
            hop("to user space", "", "crossing", None, 2600.0),
            hop("a-function-with-a-very-long-name-indeed", "xor", "user", Some(95.0), 120.0),
            hop("egress", "", "user", Some(1900.0), 2100.0),
        ],
        floods: vec![Flood {
            chain: "noisy".to_owned(),
            times: 10.0,
            sent: 84_211,
            ..Flood::default()
        }],
        cpu: Some(CpuUse {
            duration_s: 4.2,
            overall: Some(shares(0.21, 0.18, 0.22, 0.02)),
            per_core: vec![
                CoreUse {
                    core: 0,
                    shares: shares(0.3, 0.3, 0.35, 0.01),
                },
                CoreUse {
                    core: 1,
                    shares: shares(0.12, 0.06, 0.09, 0.03),
                },
            ],
            processes: vec![ProcessUse {
                name: "worker".to_owned(),
                pid: 4711,
                cpu_s: Some(1.3),
                cores: Some(0.31),
            }],
        }),
        notes: vec!["Power is not measured here: no meter.".to_owned()],
        file_text: "apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: { name: tactile }\nspec:\n  match: { protocol: udp, destination: 10.0.0.2/32 }\n  functions:\n    - { name: edge-filter, kind: firewall }\n".to_owned(),
        ..empty_report()
    }
}

/// Makes the page of a report, with a picture at the top.
fn page_of(report: ChainReport) -> Result<String, Error> {
    let plan = common::plan("tactile", &[("coder", "kind: xor, config: { key: 7 }")], "");
    let status = Box::new(common::status(&plan, PacketAccount::default()));
    let envelope = serde_json::Value::Null;
    page(&ReportReply {
        envelope,
        report,
        status,
    })
}

fn parse(page: &str) -> roxmltree::Document<'_> {
    let options = roxmltree::ParsingOptions {
        allow_dtd: true,
        ..roxmltree::ParsingOptions::default()
    };
    roxmltree::Document::parse_with_options(page, options).unwrap()
}

#[test]
fn a_full_report_is_well_formed_complete_and_self_contained() {
    let page = page_of(full_report()).unwrap();
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("page.html");
    std::fs::write(&path, &page).unwrap();
    println!("written to {}", path.display());
    let document = parse(&page);
    let count = |name: &str| {
        document
            .descendants()
            .filter(|n| n.has_tag_name(("http://www.w3.org/1999/xhtml", name)))
            .count()
    };
    let svgs: Vec<_> = document
        .descendants()
        .filter(|n| n.tag_name().name() == "svg")
        .collect();
    // The picture, two probes with three plots, sojourn, hops, CPU.
    assert_eq!((svgs.len(), count("figure"), count("h1")), (10, 10, 1));
    let mut ids = std::collections::BTreeSet::new();
    for node in document.descendants() {
        if let Some(id) = node.attribute("id") {
            assert!(ids.insert(id.to_owned()), "two elements have the id {id}");
        }
    }
    for svg in svgs {
        assert_eq!(svg.attribute("role"), Some("img"));
        let labels = svg.attribute("aria-labelledby").unwrap();
        assert!(labels.split(' ').all(|id| ids.contains(id)), "{labels}");
        let title = svg
            .descendants()
            .find(|n| n.tag_name().name() == "title")
            .unwrap();
        assert!(!title.text().unwrap().is_empty());
    }
    for outside in [
        "<script", "src=", "href=", "url(", "@import", "http://", "https://",
    ] {
        let allowed = match outside {
            // The names of the two markup languages are not addresses.
            "http://" => page.matches("xmlns=\"http://www.w3.org/").count(),
            _ => 0,
        };
        assert_eq!(page.matches(outside).count(), allowed, "{outside}");
    }
    for text in [
        "SLA met",
        "noisy x 10",
        "84211",
        "egress",
        "700.0 us",
        "worker",
        "apiVersion",
        "Power is not measured",
        "p99.99",
        "softirq",
        "all traffic: 12000 packets in, 4 policed, 11986 out, lost: 10 function",
    ] {
        assert!(page.contains(text), "{text}");
    }
    assert!(page.len() < 1_000_000, "{} bytes", page.len());
}

#[test]
fn an_empty_report_gives_a_page() {
    let page = page_of(empty_report()).unwrap();
    let document = parse(&page);
    let code = document
        .descendants()
        .find(|n| n.tag_name().name() == "code")
        .unwrap();
    assert_eq!(code.text(), Some("kind: ServiceChain # <&> \"quoted\"\n"));
    assert!(page.contains("no SLA"));
}

#[test]
fn a_report_with_odd_figures_gives_a_page() {
    let mut report = empty_report();
    report.chain = "<script>alert(1)</script>".to_owned();
    report.file_text = "\u{0}\u{1b}]0;x\u{7} ]]> &amp;".to_owned();
    let mut one = Distribution::new();
    one.record(1);
    report.sojourns = vec![
        ("empty".to_owned(), Distribution::new()),
        ("one".to_owned(), one),
    ];
    report.latency_bound_us = Some(1e9);
    report.hops = vec![
        Hop::default(),
        Hop {
            measured_ns: Some(0.0),
            ..Hop::default()
        },
    ];
    report.cpu = Some(CpuUse {
        duration_s: 0.001,
        overall: None,
        per_core: Vec::new(),
        processes: Vec::new(),
    });
    report.probes = vec![(
        "silent".to_owned(),
        probe(Mode::Inline, Distribution::new()),
    )];
    let page = page_of(report).unwrap();
    parse(&page);
    assert!(!page.contains("<script") && page.contains("because no packet was answered"));
}

#[test]
fn the_text_begins_with_the_verdict_and_fits_the_terminal() {
    for width in [60, 90] {
        let style = Style { width, ascii: true };
        let text = format!(
            "{}{}",
            summary(&full_report(), style),
            details(&full_report(), style)
        );
        let long = text.lines().find(|line| line.len() > width);
        assert_eq!(long, None, "{text}");
        assert!(text.is_ascii(), "{text}");
    }
    let style = Style {
        width: 90,
        ascii: true,
    };
    let text = summary(&full_report(), style);
    let verdict = "chain tactile: SLA met: round trip is 30.10 us, owed 700 us (4 %)\n";
    assert!(text.starts_with(verdict), "{text}");
    for part in [
        "traffic     12000 packets in, 4 policed, 11986 out, lost: 10 function\n",
        "slowest hop to user space (crossing): 2600 ns a packet, by the model\n",
        "latency, p99, us",
        "noisy x 10",
        "edge-filter",
        "inline, 256 B",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let text = details(&full_report(), style);
    for part in [
        "p99.99",
        "duplicates",
        "sojourn of all traffic, after it",
        "-- SLA latency 350.0 us",
        "CPU, all cores, first probe: user 21.0 %",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn the_verdict_contains_the_share_of_the_bound() {
    let verdict = |report: &ChainReport| {
        let text = summary(report, Style::default());
        text.lines().next().unwrap_or_default().to_owned()
    };
    let report_with = |measured: Option<f64>, bound: f64| ChainReport {
        claims: vec![
            Claim::figure_at_most("sla.loss: packets lost, %", 0.0, 0.0),
            Claim::new("sla.latency: sojourn at p99, us", measured).with_bound(
                format!("<= {bound}"),
                Some(measured.is_some_and(|measured| measured <= bound)),
            ),
        ],
        ..empty_report()
    };
    for (report, expected) in [
        (empty_report(), "chain tactile: no SLA agreed"),
        (
            report_with(Some(61.98), 350.0),
            "chain tactile: SLA met: sojourn at p99 is 61.98 us, owed 350 us (18 %)",
        ),
        (
            report_with(Some(2048.0), 350.0),
            "chain tactile: SLA not met: sojourn at p99 is 2048 us, owed 350 us (585 %)",
        ),
        (
            report_with(Some(3.0), 0.0),
            "chain tactile: SLA not met: sojourn at p99 is 3.00 us, owed 0 us",
        ),
        (
            report_with(None, 350.0),
            "chain tactile: SLA not met: sojourn at p99 was not measured",
        ),
    ] {
        assert_eq!(verdict(&report), expected);
    }
}

#[test]
fn a_report_round_trips_through_json() {
    let report = full_report();
    let sent = serde_json::to_string(&report).unwrap();
    let received: ChainReport = serde_json::from_str(&sent).unwrap();
    assert_eq!(
        page_of(received.clone()).unwrap(),
        page_of(report.clone()).unwrap()
    );
    for text in [summary, details] {
        assert_eq!(
            text(&received, Style::default()),
            text(&report, Style::default())
        );
    }
}
