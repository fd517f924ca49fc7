//! The generator on a page and an envelope of its own.

use myelin_bench::{Claim, Report, Row};
use myelin_metrics::Environment;
use myelin_metrics::stats::median_ci;

use crate::named_figures::check_figures;
use crate::page::{END_OF_FIGURE, END_OF_RESULTS, Envelopes, Page};

const PAGE: &str = "docs/experiments/hop.md";

fn envelopes() -> Envelopes {
    let estimate = |value: f64| median_ci(&[value - 0.01, value, value + 0.01].repeat(4), 0.95);
    let ratio = |name, payload: usize, value, bound| {
        Claim::at_most(format!("{name}, {payload} B"), estimate(value), bound)
    };
    let row = |payload: usize, us: f64| {
        Row::of("round trips")
            .with("variant", "bare redirect")
            .with("payload_bytes", payload)
            .with_estimate("rtt_p50", "_us", estimate(us))
    };
    let environment = Environment::default()
        .with("effort", "quick")
        .with("revision", "1a2b3c4")
        .with("steal_share", "0.031")
        .with("quiet", "no");
    let report = Report {
        experiment: "hop".to_owned(),
        environment,
        rows: vec![row(256, 9.1234), row(1400, 12.0)],
        claims: vec![
            ratio("tcx / cable", 256, 1.0512, 1.12).with_published(1.5, "Fig. 3"),
            ratio("tcx / cable", 1400, 1.2, 1.12).with_published(1.6, "Fig. 3"),
            ratio("xdp / cable", 256, 1.12, 1.12),
            Claim::shown("each further, ns", estimate(2.4567)),
        ],
        ended_early: None,
    };
    Envelopes::from([("hop".to_owned(), report)])
}

fn generate_page(text: &str, envelopes: &Envelopes) -> Result<String, Vec<String>> {
    Page::new(PAGE, text, envelopes).generate()
}

/// The part that a marker generates, or its only fault.
fn generate(marker: &str) -> Result<String, String> {
    let end = if marker.contains("figure:") {
        END_OF_FIGURE
    } else {
        END_OF_RESULTS
    };
    let text = format!("# Hop\n\nIt takes {marker}old{end} us.\n");
    let page = generate_page(&text, &envelopes()).map_err(|faults| {
        assert_eq!(faults.len(), 1);
        faults[0].clone()
    })?;
    let again = generate_page(&page, &envelopes()).unwrap();
    assert_eq!(again, page, "a generated page stays");
    let (_, after) = page.split_once(marker).unwrap();
    Ok(after.split_once(end).unwrap().0.to_owned())
}

#[test]
fn claims_become_a_table_with_its_source() {
    let table = generate("<!-- results: hop claims -->").unwrap();
    for part in [
        "[hop.json](../results/hop.json): quick run, commit 1a2b3c4",
        "1970-01-01",
        "not quiet (steal 3.1 %",
        "`sudo myelin bench hop --quick`",
        "| tcx / cable, 256 B; 1400 B | <= 1.12 | 1.500 (1); 1.600 (1) \
         | 1.051 [1.041, 1.061]; 1.200 [1.190, 1.210] | holds; **false** |\n",
        "| xdp / cable, 256 B | <= 1.12 | - | 1.120 [1.110, 1.130] | undecided |\n",
        "| each further, ns | - | - | 2.457 [2.447, 2.467] | - |\n",
        "\n1. Fig. 3\n",
        "\n* Undecided: the interval contains the bound.\n",
    ] {
        assert!(
            table.replace('\n', " ").contains(&part.replace('\n', " ")),
            "{part}\n{table}"
        );
    }
    let text = table.lines().filter(|line| !line.starts_with('|'));
    assert!(
        text.map(|line| line.chars().count()).max() <= Some(100),
        "{table}"
    );
}

#[test]
fn a_long_table_shows_ranges_but_each_claim_that_does_not_hold() {
    let mut envelopes = envelopes();
    let claim = |number: u32| {
        let part = ["xdp", "tcx"][number as usize % 2];
        let id = format!("ratio: {part}, {} B", 64 << (number / 2));
        Claim::figure_at_most(id, f64::from(number), 16.0)
    };
    envelopes.get_mut("hop").unwrap().claims = (0..18).map(claim).collect();
    let text = format!("<!-- results: hop claims -->{END_OF_RESULTS}");
    let page = generate_page(&text, &envelopes).unwrap();
    let sizes = "64 B; 128 B; 256 B; 512 B; 1024 B; 2048 B; 4096 B; 8192 B; 16384 B";
    let holding =
        format!("| ratio: xdp; tcx, {sizes} | <= 16 | 0.000 to 16.0 | holds (17 claims) |");
    for line in [
        &holding,
        "| ratio: tcx, 16384 B | <= 16 | 17.0 | **false** |",
    ] {
        assert!(page.contains(line), "{page}");
    }
}

#[test]
fn an_envelope_that_ended_early_has_no_table() {
    let mut envelopes = envelopes();
    let report = envelopes.get_mut("hop").unwrap();
    report.claims.clear();
    report.ended_early = Some("cancelled".to_owned());
    let text = format!("<!-- results: hop claims -->{END_OF_RESULTS}");
    let page = generate_page(&text, &envelopes).unwrap();
    assert!(page.contains("ended early, no claims: cancelled"), "{page}");
    assert!(!page.contains('|'), "{page}");
    let text = format!("<!-- results: all -->{END_OF_RESULTS}");
    let page = generate_page(&text, &envelopes).unwrap();
    assert!(
        page.contains("| [hop](hop.md) | - | - | - | quick, [ended early]"),
        "{page}"
    );
}

#[test]
fn rows_and_figures_are_chosen_by_fields() {
    let rows = generate("<!-- results: hop rows \"round trips\" payload_bytes rtt_p50_us -->");
    assert!(rows.unwrap().contains(
        "| payload bytes | rtt p50 us |\n|---|---|\n| 256 | 9.123 ± 0.010 |\n| 1400 | 12.0"
    ));
    let all = generate("<!-- results: all -->").unwrap();
    assert!(all.contains(
        "| [hop](hop.md) | [1](hop.md#claims) | [**1**](hop.md#claims) | [1](hop.md#claims) |"
    ));
    for (marker, figure) in [
        ("row \"round trips\" rtt_p50_us payload_bytes=256", "9.12"),
        (
            "row \"round trips\"\nrtt_p50_us variant=\"bare redirect\" payload_bytes=1400",
            "12.0",
        ),
        ("claim \"each further,\nns\"", "2.46"),
    ] {
        let marker = format!("<!-- figure: hop {marker} -->");
        assert_eq!(generate(&marker).unwrap(), figure, "{marker}");
    }
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
            "figure: hop claim x",
            "no claim `x`",
            "tcx / cable, 256 B | tcx",
        ),
        (
            "figure: hop row \"round trips\" rtt_p50_us",
            "2 rows",
            "FIELD=VALUE",
        ),
    ] {
        let fault = generate(&format!("<!-- {marker} -->")).unwrap_err();
        assert!(fault.starts_with("docs/experiments/hop.md:3: "), "{fault}");
        assert!(fault.contains(problem) && fault.contains(remedy), "{fault}");
    }
    for text in [
        "<!-- results: hop claims -->",
        "<!-- results: hop claims -->\n<!-- results: all --><!-- end of results -->",
        "A word\n<!-- figure: hop claim \"each further, ns\" -->2.46<!-- end --> ns.",
    ] {
        assert_eq!(
            generate_page(text, &envelopes()).unwrap_err().len(),
            1,
            "{text}"
        );
    }
    let code = "```\n<!-- results: hop claims -->\n```\nand `<!-- figure: x -->`\n";
    assert_eq!(generate_page(code, &envelopes()).unwrap(), code);
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
