//! Pages with results: their generated parts come from envelopes, and each figure that a page names
//! is in one of its envelopes.
//!
//! A page marks its generated parts with comments. A word that contains spaces is quoted.
//!
//! ```text
//! <!-- results: NAME claims -->               a table of the experiment's claims
//! <!-- results: NAME rows TABLE COLUMN... FIELD=VALUE... -->   a table of rows
//! <!-- results: all -->                       a table of all experiments
//! <!-- end of results -->                     ends these parts
//! <!-- figure: NAME claim ID -->1.05<!-- end -->   the figure of a claim, within text
//! <!-- figure: NAME row TABLE COLUMN FIELD=VALUE... -->1.05<!-- end -->   that of a row
//! <!-- not measured: WHY -->                  the figures of this paragraph are in no envelope
//! ```

mod named_figures;
mod tables;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::LazyLock;

use myelin_metrics::Row;
use myelin_metrics::envelope::Report;
use myelin_report::experiment::plain;
use regex::Regex;
use serde_json::Value;

pub use named_figures::check_figures;

/// Reports by the name of their experiment.
pub type Envelopes = BTreeMap<String, Report<Row>>;

/// A fault of a page, with its remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{page}:{line}: {problem}; {remedy}")]
pub struct PageFault {
    /// The page's path within the repository.
    pub page: String,
    /// The number of the line, from 1.
    pub line: usize,
    /// The fault.
    pub problem: String,
    /// What to do.
    pub remedy: String,
}

const END_OF_RESULTS: &str = "<!-- end of results -->";
const END_OF_FIGURE: &str = "<!-- end -->";
const USAGE: &str = "crates/bench/src/documents.rs shows the markers";

/// Returns the page with its new generated parts. `path` is its path within the repository.
///
/// # Errors
/// Markers that are incomplete, or that name results which no envelope has.
pub fn generate_page(
    path: &str,
    text: &str,
    envelopes: &Envelopes,
) -> Result<String, Vec<PageFault>> {
    let page = Page::new(path, text, envelopes);
    let mut faults = Vec::new();
    let mut generated = String::new();
    let mut copied = 0;
    for part in page.parts() {
        match part.and_then(|part| Ok((page.generate(&part)?, part.content))) {
            Ok((made, content)) => {
                generated.push_str(&text[copied..content.start]);
                generated.push_str(&made);
                copied = content.end;
            }
            Err(fault) => faults.push(fault),
        }
    }
    generated.push_str(&text[copied..]);
    if faults.is_empty() {
        Ok(generated)
    } else {
        Err(faults)
    }
}

struct Page<'a> {
    path: &'a str,
    text: &'a str,
    /// The text with spaces in place of code.
    prose: String,
    envelopes: &'a Envelopes,
}

/// A generated part.
struct Part {
    line: usize,
    is_figure: bool,
    /// The words of its marker.
    words: Vec<String>,
    /// Its place between its markers.
    content: Range<usize>,
}

impl<'a> Page<'a> {
    fn new(path: &'a str, text: &'a str, envelopes: &'a Envelopes) -> Self {
        static FENCED: LazyLock<Regex> = LazyLock::new(|| pattern("(?ms)^ *```.*?^ *```"));
        static CODE: LazyLock<Regex> = LazyLock::new(|| pattern("`(?:[^`\n]|\n[^`\n])+`"));
        let prose = blank(&blank(text, &FENCED), &CODE);
        Self {
            path,
            text,
            prose,
            envelopes,
        }
    }

    fn fault(
        &self,
        line: usize,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) -> PageFault {
        PageFault {
            page: self.path.to_owned(),
            line,
            problem: problem.into(),
            remedy: remedy.into(),
        }
    }

    fn line_of(&self, place: usize) -> usize {
        self.text[..place].matches('\n').count() + 1
    }

    /// Its generated parts, in order.
    fn parts(&self) -> impl Iterator<Item = Result<Part, PageFault>> {
        static START: LazyLock<Regex> =
            LazyLock::new(|| pattern(r"(?s)<!-- (results|figure):(.*?)-->"));
        START.captures_iter(&self.prose).map(|found| {
            let (marker, words) = (found.get_match(), &found[2]);
            let is_figure = &found[1] == "figure";
            let line = self.line_of(marker.start());
            let rest = &self.prose[marker.end()..];
            let end = if is_figure {
                END_OF_FIGURE
            } else {
                END_OF_RESULTS
            };
            let next = START.find(rest).map_or(rest.len(), |next| next.start());
            let Some(length) = rest.find(end).filter(|end| *end < next) else {
                return Err(self.fault(line, "a marker has no end", format!("add `{end}`")));
            };
            let before = self.text[..marker.start()].lines().last();
            let is_in_text = before.is_some_and(|line| line.contains(char::is_alphanumeric));
            // CommonMark takes a line that begins with a comment for HTML.
            if is_figure && (self.prose[..marker.start()].ends_with('\n') || !is_in_text) {
                let problem = "a line begins with the marker of a figure";
                return Err(self.fault(line, problem, "put a word before it"));
            }
            Ok(Part {
                line,
                is_figure,
                words: split_words(words),
                content: marker.end()..marker.end() + length,
            })
        })
    }

    fn generate(&self, part: &Part) -> Result<String, PageFault> {
        let words: Vec<&str> = part.words.iter().map(String::as_str).collect();
        let made = match (part.is_figure, words.as_slice()) {
            (false, ["all"]) => tables::experiments(self.path, self.envelopes),
            (false, [name, "claims"]) => tables::claims(self.path, self.envelope(name, part)?),
            (false, [name, "rows", table, choice @ ..]) => {
                let (rows, columns) = self.rows(self.envelope(name, part)?, table, choice, part)?;
                tables::rows(&rows, &columns)
            }
            (true, [name, "claim", id]) => {
                let figure = self.claim(self.envelope(name, part)?, id, part)?;
                return Ok(tables::short(figure));
            }
            (true, [name, "row", table, choice @ ..]) => {
                let (rows, columns) = self.rows(self.envelope(name, part)?, table, choice, part)?;
                let ([row], [column]) = (rows.as_slice(), columns.as_slice()) else {
                    let problem = format!("{} rows, {} columns", rows.len(), columns.len());
                    let remedy = "choose one column, and one row with FIELD=VALUE";
                    return Err(self.fault(part.line, problem, remedy));
                };
                return Ok(row
                    .get(column)
                    .and_then(Value::as_f64)
                    .map_or_else(|| "not measured".to_owned(), tables::short));
            }
            _ => return Err(self.fault(part.line, "an unknown marker", USAGE)),
        };
        Ok(format!("\n\n{}\n\n", made.trim_end()))
    }

    fn envelope(&self, name: &str, part: &Part) -> Result<&'a Report<Row>, PageFault> {
        self.envelopes.get(name).ok_or_else(|| {
            let remedy = format!("`sudo myelin bench {name} --quick --results docs/results`");
            self.fault(
                part.line,
                format!("there is no {}", tables::file(name)),
                remedy,
            )
        })
    }

    fn claim(&self, report: &Report<Row>, id: &str, part: &Part) -> Result<f64, PageFault> {
        let fault = |problem: String| {
            let ids: Vec<_> = report
                .claims
                .iter()
                .map(|claim| claim.id.as_str())
                .collect();
            self.fault(
                part.line,
                problem,
                format!("its claims are: {}", ids.join(" | ")),
            )
        };
        let claim = report.claims.iter().find(|claim| claim.id == id);
        let claim = claim.ok_or_else(|| fault(format!("there is no claim `{id}`")))?;
        claim
            .figure()
            .ok_or_else(|| fault(format!("claim `{id}` has no single figure")))
    }

    /// The rows of a table, and the chosen columns. A word with `=` chooses rows, all others are
    /// columns.
    fn rows(
        &self,
        report: &'a Report<Row>,
        table: &str,
        choice: &[&str],
        part: &Part,
    ) -> Result<(Vec<&'a Row>, Vec<String>), PageFault> {
        let mut rows: Vec<&Row> = report
            .rows
            .iter()
            .filter(|row| row.table() == table)
            .collect();
        let mut columns = Vec::new();
        for word in choice {
            let (field, wanted) = word.split_once('=').unzip();
            let field = field.unwrap_or(word);
            if !rows.iter().all(|row| row.get(field).is_some()) {
                let fields = rows[0].fields().map(|(name, _)| name).collect::<Vec<_>>();
                let remedy = format!("its fields are: {}", fields.join(", "));
                let problem = format!("table `{table}` has no field `{field}`");
                return Err(self.fault(part.line, problem, remedy));
            }
            match wanted {
                None => columns.push(field.to_owned()),
                Some(wanted) => {
                    rows.retain(|row| row.get(field).is_some_and(|value| plain(value) == wanted));
                }
            }
        }
        if rows.is_empty() {
            let mut tables: Vec<&str> = report.rows.iter().map(Row::table).collect();
            tables.dedup();
            let remedy = format!("its tables are: {}", tables.join(" | "));
            return Err(self.fault(part.line, "no row of the envelope matches", remedy));
        }
        Ok((rows, columns))
    }
}

/// Words between spaces. Quotes keep spaces.
fn split_words(text: &str) -> Vec<String> {
    static WORD: LazyLock<Regex> = LazyLock::new(|| pattern(r#"(?:"[^"]*"|[^ \n"])+"#));
    // A quoted word may continue on the next line.
    let plain = |word: &str| {
        let words: Vec<&str> = word.split_whitespace().collect();
        words.join(" ").replace('"', "")
    };
    WORD.find_iter(text)
        .map(|word| plain(word.as_str()))
        .collect()
}

/// The text with spaces in place of all matches. Places and lines stay.
fn blank(text: &str, pattern: &Regex) -> String {
    let blanks = |found: &regex::Captures<'_>| -> String {
        let keep = |byte: u8| if byte == b'\n' { '\n' } else { ' ' };
        found[0].bytes().map(keep).collect()
    };
    pattern.replace_all(text, blanks).into_owned()
}

#[allow(clippy::expect_used, reason = "a constant, which the tests compile")]
fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("a valid pattern")
}

#[cfg(test)]
mod tests {
    use myelin_metrics::Environment;
    use myelin_metrics::envelope::Claim;
    use myelin_metrics::stats::median_ci;

    use super::*;

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

    fn generate(marker: &str) -> Result<String, String> {
        let end = if marker.contains("figure:") {
            END_OF_FIGURE
        } else {
            END_OF_RESULTS
        };
        let text = format!("# Hop\n\nIt takes {marker}old{end} us.\n");
        let page = generate_page(PAGE, &text, &envelopes()).map_err(|faults| {
            assert_eq!(faults.len(), 1);
            faults[0].to_string()
        })?;
        let again = generate_page(PAGE, &page, &envelopes()).unwrap();
        assert_eq!(again, page, "a generated page stays");
        Ok(page
            .split_once(marker)
            .unwrap()
            .1
            .split_once(end)
            .unwrap()
            .0
            .to_owned())
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
        let page = generate_page(PAGE, &text, &envelopes).unwrap();
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
        let page = generate_page(PAGE, &text, &envelopes).unwrap();
        assert!(page.contains("ended early, no claims: cancelled"), "{page}");
        assert!(!page.contains('|'), "{page}");
        let text = format!("<!-- results: all -->{END_OF_RESULTS}");
        let page = generate_page(PAGE, &text, &envelopes).unwrap();
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
            ("results: hop", "an unknown marker", "documents.rs"),
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
                generate_page(PAGE, text, &envelopes()).unwrap_err().len(),
                1,
                "{text}"
            );
        }
        let code = "```\n<!-- results: hop claims -->\n```\nand `<!-- figure: x -->`\n";
        assert_eq!(generate_page(PAGE, code, &envelopes()).unwrap(), code);
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
            assert_eq!(check(text), [], "{text}");
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
            assert_eq!(fault.line, 4, "{text}");
            assert!(fault.problem.starts_with(&format!("`{named}`")), "{fault}");
            let without = check_figures(PAGE, text, &Envelopes::new());
            assert!(
                without
                    .iter()
                    .any(|fault| fault.problem.contains("it has none"))
            );
        }
        let idle = "It takes long. <!-- not measured: a constant -->";
        assert!(check(idle)[0].remedy.contains("remove"));
        let without = check_figures(PAGE, "It takes 9.12 us.", &Envelopes::new());
        assert_eq!(without.len(), 1, "its envelope is missing");
    }
}
