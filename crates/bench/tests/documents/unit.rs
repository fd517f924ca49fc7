//! The generator on a page and an envelope of its own.

use myelin_bench::{Claim, Report, Row};
use myelin_metrics::Environment;
use myelin_metrics::stats::median_ci;

use crate::named_figures::check_figures;
use crate::page::{END_OF_FIGURE, END_OF_RESULTS, Envelopes, Page};

const PAGE: &str = "docs/experiments/hop.md";

fn envelopes() -> Envelopes {
    let estimate = |value: f64| median_ci(&[value - 0.01, value, value + 0.01].repeat(4), 0.95);
    let row = |payload: usize, us: f64| {
        Row::of("round trips")
            .with("variant", "bare redirect")
            .with("payload_bytes", payload)
            .with_estimate("rtt_p50", "_us", estimate(us))
    };
    let environment = Environment::default()
        .with("effort", "quick")
        .with("steal_share", "0.031");
    let report = Report {
        experiment: "hop".to_owned(),
        environment,
        rows: vec![row(256, 9.1234), row(1400, 12.0)],
        claims: vec![
            Claim::at_most("tcx / cable", estimate(1.0512), 1.12).with_published(1.5, "Fig. 3"),
            Claim::shown("each further, ns", estimate(2.4567)),
        ],
        ended_early: None,
    };
    Envelopes::from([("hop".to_owned(), report)])
}

fn generate(text: &str, envelopes: &Envelopes) -> Result<String, Vec<String>> {
    Page::new(PAGE, text, envelopes).generate()
}

#[test]
fn an_envelope_that_ended_early_has_no_table() {
    let mut envelopes = envelopes();
    let report = envelopes.get_mut("hop").unwrap();
    report.claims.clear();
    report.ended_early = Some("cancelled".to_owned());
    let markers = ["hop claims", "all"].map(|words| format!("<!-- results: {words} -->"));
    let [claims, all] = markers.map(|marker| {
        let text = format!("{marker}{END_OF_RESULTS}");
        generate(&text, &envelopes).unwrap()
    });
    let problem = "ended early, no claims: cancelled";
    assert!(
        claims.contains(problem) && !claims.contains('|'),
        "{claims}"
    );
    let row = "| [hop](hop.md) | - | - | - | quick, [ended early]";
    assert!(all.contains(row), "{all}");
}

#[test]
fn faults_name_line_and_remedy() {
    for (marker, problem, remedy) in [
        (
            "results: none claims",
            "no docs/results/none.json",
            "myelin bench none --quick",
        ),
        ("results: hop rows none x", "no row", "round trips"),
        (
            "results: hop rows \"round trips\" x",
            "no field `x`",
            "payload_bytes",
        ),
        ("results: hop", "an unknown marker", "page.rs"),
        (
            "figure: hop row \"round trips\" rtt_p50_us",
            "2 rows",
            "FIELD=VALUE",
        ),
    ] {
        let end = if marker.contains("figure:") {
            END_OF_FIGURE
        } else {
            END_OF_RESULTS
        };
        let text = format!("# Hop\n\nIt takes <!-- {marker} -->old{end} us.\n");
        let faults = generate(&text, &envelopes()).unwrap_err();
        let [fault] = &faults[..] else {
            panic!("{faults:?}")
        };
        assert!(fault.starts_with("docs/experiments/hop.md:3: "), "{fault}");
        assert!(fault.contains(problem) && fault.contains(remedy), "{fault}");
    }
    for text in [
        "<!-- results: hop claims -->",
        "<!-- results: hop claims -->\n<!-- results: all --><!-- end of results -->",
        "A word\n<!-- figure: hop row \"round trips\" rtt_p50_us payload_bytes=256 -->9<!-- end -->",
    ] {
        assert_eq!(generate(text, &envelopes()).unwrap_err().len(), 1, "{text}");
    }
    let code = "```\n<!-- results: hop claims -->\n```\nand `<!-- figure: x -->`\n";
    assert_eq!(generate(code, &envelopes()).unwrap(), code);
}

#[test]
fn a_figure_that_no_envelope_has_is_a_fault() {
    let check = |text: &str| check_figures(PAGE, text, &envelopes());
    for text in [
        "The trip takes 9.12 us, or 9123 ns, or 0.012 ms.",
        "It is 1.05 times a cable's, by 105 %, in Linux 6.18 with 3 queues, p99, `7 us`.",
        "It takes 9 to 12 us; 1.12 is its bound, 1.5 the paper's.",
        "The hypervisor took 3.1 %. Each further one takes 2.46 ns.",
        "```\n7 us\n```\n",
        "It takes 3 us here.\n<!-- not measured: a constant -->",
        "It takes <!-- figure: hop x -->7<!-- end --> us.",
    ] {
        assert_eq!(check(text), Vec::<String>::new(), "{text}");
    }
    for (text, named) in [
        ("# Hop\n\nThe trip\ntakes 9.13 us.", "9.13 us"),
        ("# Hop\n\nIt takes\n8 to 12 us.", "8 us"),
        ("# Hop\n\nIt takes\n9 to 13 us.", "13 us"),
        ("# Hop\n\nA ratio\nof 1.06.", "1.06"),
        ("# Hop\n\nIt has\nRatio 1.06.", "1.06"),
        ("# Hop\n\n| claim |\n| 9 ms |", "9 ms"),
        ("# Hop\n\nThat is\n1,051 times more.", "1,051 times"),
        ("# Hop\n\nThat is\n-9.12 us.", "9.12 us"),
    ] {
        let faults = check(text);
        let [fault] = &faults[..] else {
            panic!("{text}: {faults:?}")
        };
        assert!(
            fault.starts_with(&format!("{PAGE}:4: `{named}` ")),
            "{fault}"
        );
        let without = check_figures(PAGE, text, &Envelopes::new());
        assert!(without.iter().any(|fault| fault.contains("it has none")));
    }
    let idle = "It takes long. <!-- not measured: a constant -->";
    assert!(check(idle)[0].contains("remove"));
    let without = check_figures(PAGE, "It takes 9.12 us.", &Envelopes::new());
    assert_eq!(without.len(), 1, "its envelope is missing");
    let text = "It takes 3 us, 50 %, 1.5 times, 20 s at most.";
    let elsewhere = check_figures("docs/internals/hop.md", text, &envelopes());
    assert_eq!(elsewhere.len(), 2, "{elsewhere:?}");
}
