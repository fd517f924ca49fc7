//! The page of a report: what was asked, whether the claims hold, the plots that the experiment declares, all rows.

mod cells;
mod draw;
mod plot;

use std::fmt::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use myelin_measure::html::document;
use myelin_measure::html::markup::{escape, table};

pub use cells::{cell, headings, holds, measured, plain};
pub(crate) use plot::{Kind, Plot};

use crate::{Claim, Error, Experiment, Report, Row, experiments};

const METHOD: &str = "A claim on a ratio or a median holds when its 95 % interval over at least 30 rounds lies within the \
    bound; with fewer rounds it is undecided. Rounds compare their subjects in turns, so that what wanders on the machine wanders for all of them. \
    Absolute figures are those of this machine, and a paper's those of its own: what compares is ratios and shapes.";

/// A self-contained page with the report's claims, plots and rows, UTF-8.
///
/// # Errors
/// [`Error::Unknown`] when the report is of no experiment; [`Error::Plot`] when a declared plot and the rows do not fit; or
/// what could not be drawn.
pub fn page(report: &Report<Row>) -> Result<String, Error> {
    let experiment = experiments()
        .iter()
        .find(|experiment| experiment.name == report.experiment)
        .ok_or_else(|| Error::Unknown(report.experiment.clone()))?;
    let mut out = String::new();
    claims(&mut out, &report.claims);
    if !experiment.plots.is_empty() {
        out.push_str(
            "<section><h2>Figures</h2>\n<p class=\"soft\">Whiskers are 95 % intervals.</p>\n",
        );
        for (number, plot) in experiment.plots.iter().enumerate() {
            out.push_str(&draw::section(plot, number, &report.rows)?);
        }
        out.push_str("</section>\n");
    }
    how(&mut out, report);
    rows(&mut out, &report.rows);
    envelope(&mut out, report)?;
    let title = format!("Experiment {}", report.experiment);
    Ok(document(&title, true, &header(experiment, report), &out))
}

fn header(experiment: &Experiment, report: &Report<Row>) -> String {
    let decided = |holds| {
        report
            .claims
            .iter()
            .filter(|claim| claim.holds == holds)
            .count()
    };
    let (kept, broken) = (decided(Some(true)), decided(Some(false)));
    let beside = report
        .claims
        .iter()
        .filter(|claim| claim.bound.is_null())
        .count();
    let undecided = decided(None) - beside.min(decided(None));
    let class = match (broken, undecided) {
        (0, 0) => "good",
        (0, _) => "soft",
        _ => "bad",
    };
    let mut verdict = format!("{kept} of {} claims hold", report.claims.len() - beside);
    for (count, what) in [
        (broken, "not"),
        (undecided, "undecided"),
        (beside, "without a bound, beside the paper's"),
    ] {
        if count > 0 {
            let _ = write!(verdict, "; {count} {what}");
        }
    }
    let settings = &report.environment.settings;
    let setting = |name: &str| settings.get(name).map_or("unknown", String::as_str);
    let quiet = match setting("quiet") {
        "yes" => "<p class=\"good\">The machine was quiet".to_owned(),
        other => format!("<p class=\"bad\">Quiet machine: {}", escape(other)),
    };
    let taken = UNIX_EPOCH + Duration::from_secs(report.environment.taken_at_unix_s);
    let date = humantime::format_rfc3339_seconds(taken).to_string();
    format!(
        "<p>{}.</p>\n<p class=\"verdict {class}\">{verdict}.</p>\n{quiet} (other processes {} of the CPU time, hypervisor {}).</p>\n\
         <p class=\"soft\">Measured {} UTC. To repeat it: <code>{}</code></p>\n",
        escape(&capitalized(experiment.about)),
        percent(setting("other_processes_share")),
        percent(setting("steal_share")),
        date.replace('T', " ").trim_end_matches('Z'),
        escape(&command(report)),
    )
}

/// A share as it stands in the settings, in percent.
fn percent(share: &str) -> String {
    share
        .parse::<f64>()
        .map_or_else(|_| escape(share), |share| format!("{:.1} %", share * 100.0))
}

fn command(report: &Report<Row>) -> String {
    let quick = report.environment.settings.get("effort");
    let quick = quick.is_some_and(|effort| effort == "quick");
    let quick = if quick { " --quick" } else { "" };
    format!("sudo myelin bench {}{quick} --json", report.experiment)
}

fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| {
        first.to_uppercase().chain(letters).collect()
    })
}

fn claims(out: &mut String, claims: &[Claim]) {
    if claims.is_empty() {
        return;
    }
    let mut sources: Vec<&str> = Vec::new();
    let rows: Vec<Vec<String>> = claims
        .iter()
        .map(|claim| {
            let paper = match &claim.source {
                None => plain(&claim.paper),
                Some(source) => {
                    let known = sources.iter().position(|known| known == source);
                    let note = known.unwrap_or_else(|| {
                        sources.push(source);
                        sources.len() - 1
                    });
                    format!("{} [{}]", plain(&claim.paper), note + 1)
                }
            };
            let holds = if claim.bound.is_null() {
                "-"
            } else {
                holds(claim)
            };
            vec![
                claim.id.clone(),
                paper,
                measured(&claim.measured),
                plain(&claim.bound),
                holds.to_owned(),
            ]
        })
        .collect();
    let head = [
        "claim",
        "paper",
        "measured [95 % interval] (rounds)",
        "bound",
        "holds",
    ];
    out.push_str("<section><h2>Claims</h2>\n");
    out.push_str(&table(
        "What was claimed, published and measured.",
        &head,
        &rows,
    ));
    for (note, source) in sources.iter().enumerate() {
        let _ = writeln!(
            out,
            "<p class=\"soft\">[{}] {}.</p>",
            note + 1,
            escape(source)
        );
    }
    out.push_str("</section>\n");
}

fn how(out: &mut String, report: &Report<Row>) {
    let settings = &report.environment.settings;
    let words = |name: &str| name.replace('_', " ");
    let (how, machine): (Vec<_>, Vec<_>) = report
        .environment
        .lines()
        .into_iter()
        .map(|(name, value)| (settings.contains_key(&name), vec![words(&name), value]))
        .partition(|(setting, _)| *setting);
    let lines = |lines: Vec<(bool, Vec<String>)>| -> Vec<Vec<String>> {
        lines.into_iter().map(|(_, line)| line).collect()
    };
    let _ = write!(
        out,
        "<section><h2>How it was measured</h2>\n<p>{METHOD}</p>\n<div class=\"tables\">{}{}</div></section>\n",
        table("The experiment.", &["setting", "value"], &lines(how)),
        table("The machine.", &["what", "value"], &lines(machine)),
    );
}

fn rows(out: &mut String, rows: &[Row]) {
    out.push_str("<section><h2>All rows</h2>\n");
    let mut tables: Vec<&str> = Vec::new();
    for row in rows {
        if !tables.contains(&row.table()) {
            tables.push(row.table());
        }
    }
    for name in tables {
        let rows: Vec<&Row> = rows.iter().filter(|row| row.table() == name).collect();
        let fields = headings(rows[0]);
        let head: Vec<String> = fields.iter().map(|field| field.replace('_', " ")).collect();
        let head: Vec<&str> = head.iter().map(String::as_str).collect();
        let cells: Vec<Vec<String>> = rows
            .iter()
            .map(|row| fields.iter().map(|field| cell(row, field)).collect())
            .collect();
        let _ = write!(
            out,
            "<details><summary>{} ({} rows)</summary>\n{}</details>\n",
            escape(name),
            rows.len(),
            table(
                "Each figure \u{b1} half of its 95 % interval, where it has one.",
                &head,
                &cells
            ),
        );
    }
    out.push_str("</section>\n");
}

/// The JSON envelope, a row a line, for programs and for whoever keeps the page alone.
fn envelope(out: &mut String, report: &Report<Row>) -> Result<(), Error> {
    let failed = |cause: serde_json::Error| Error::system("write the report as JSON", cause.into());
    let json = |value: Result<String, _>| value.map_err(failed);
    let mut text = format!(
        "{{\"experiment\":{},\n\"environment\":{},\n",
        json(serde_json::to_string(&report.experiment))?,
        json(serde_json::to_string(&report.environment))?,
    );
    let mut list = |name: &str, lines: Vec<String>, end: &str| {
        let _ = write!(text, "\"{name}\":[\n{}\n]{end}", lines.join(",\n"));
    };
    let rows: Result<Vec<_>, _> = report.rows.iter().map(serde_json::to_string).collect();
    list("rows", rows.map_err(failed)?, ",\n");
    let claims: Result<Vec<_>, _> = report.claims.iter().map(serde_json::to_string).collect();
    list("claims", claims.map_err(failed)?, "}\n");
    let _ = write!(
        out,
        "<section class=\"screen\"><details><summary>JSON envelope</summary>\n<pre><code id=\"envelope\">{}</code></pre></details></section>\n",
        escape(&text)
    );
    Ok(())
}
