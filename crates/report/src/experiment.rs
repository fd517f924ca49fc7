//! The report of an experiment: [`text`] for a terminal, [`page`] as HTML with the plots that the
//! experiment declares ([`Plot`]), [`figures`] with each plot as an SVG file.

mod cells;
mod draw;
mod plot;
mod svg;

use std::fmt::Write as _;

use myelin_metrics::Row;
use myelin_metrics::compare::ClaimChange;
use myelin_metrics::envelope::{Claim, Report, Verdict};

pub use cells::{cell, number, plain};
use cells::{headings, measured, verdict_of};
pub use plot::{Figure, FigurePoint, Kind, Plot};
pub use svg::{SvgFile, day, figures, source_lines};

use crate::Error;
use crate::chain::date;
use crate::html::document;
use crate::html::markup::{escape, table};
use crate::terminal;

const METHOD: &str = "The subjects are deployed several times and measured in turns, so a change of the \
    machine affects all of them. A deployment counts once, with the median of its rounds. A claim holds when \
    its 95 % interval over the deployments is within the bound, is false when the interval is outside, and \
    else is undecided. Absolute figures apply to this machine, a paper's to its own machine: compare ratios \
    and shapes.";

/// The report for a terminal: the verdict, the claims, all rows, the machine. Cells wrap within
/// `width` columns.
pub fn text(report: &Report<Row>, width: u16) -> String {
    let mut out = format!("experiment {}: {}\n", report.experiment, verdict(report));
    if !report.claims.is_empty() {
        let mut table = terminal::grid(["claim", "measured", "bound", "verdict"], width);
        for claim in &report.claims {
            table.add_row([
                claim.id.clone(),
                measured(&claim.measured),
                plain(&claim.bound),
                verdict_of(claim),
            ]);
        }
        // Writing into a String cannot fail.
        let _ = writeln!(
            out,
            "claims (95 % interval, deployments)\n{}\n",
            table.trim_fmt()
        );
    }
    for rows in report
        .rows
        .chunk_by(|one, next| one.table() == next.table())
    {
        let _ = writeln!(out, "{}\n{}\n", rows[0].table(), rows_table(rows, width));
    }
    for (name, value) in report.environment.lines() {
        let _ = writeln!(out, "{name:<24}{value}");
    }
    out
}

/// The claims whose verdict changed since an earlier report, and the number of other claims.
pub fn comparison(changes: &[ClaimChange], width: u16) -> String {
    let changed: Vec<_> = changes.iter().filter(|one| one.is_changed()).collect();
    let apart = |one: &&ClaimChange| one.overlap == Some(false);
    let mut out = format!(
        "{} of {} verdicts changed; {} figures have intervals that do not overlap\n",
        changed.len(),
        changes.len(),
        changes.iter().filter(apart).count()
    );
    let shown: Vec<_> = changes
        .iter()
        .filter(|one| one.is_changed() || apart(one))
        .collect();
    if shown.is_empty() {
        return out;
    }
    let mut table = terminal::grid(["claim", "before", "now", ">before", ">now", ">%"], width);
    let verdict = |verdict: Option<Verdict>| match verdict {
        None => "-",
        Some(Verdict::Holds) => "holds",
        Some(Verdict::False) => "FALSE",
        Some(Verdict::Undecided) => "undecided",
    };
    let figure = |figure: Option<f64>| figure.map_or_else(|| "-".to_owned(), cells::number);
    for one in shown {
        table.add_row([
            one.id.clone(),
            verdict(one.before).to_owned(),
            verdict(one.after).to_owned(),
            figure(one.figure_before),
            figure(one.figure_after),
            one.percent()
                .map_or_else(|| "-".to_owned(), |percent| format!("{percent:+.1}")),
        ]);
    }
    out.push_str(&table.trim_fmt());
    out.push('\n');
    out
}

/// The verdict of a report in a sentence.
pub fn verdict(report: &Report<Row>) -> String {
    count_verdicts(report).1
}

/// The rows of one table. A figure and its interval share a cell.
fn rows_table(rows: &[Row], width: u16) -> String {
    let fields = headings(&rows[0]);
    let is_figure = |field: &str| rows[0].get(field).is_some_and(|value| !value.is_string());
    let heads = fields.iter().map(|field| {
        let mark = if is_figure(field) { ">" } else { "" };
        format!("{mark}{}", field.replace('_', " "))
    });
    let heads: Vec<String> = heads.collect();
    let mut table = terminal::grid(heads.iter().map(String::as_str), width);
    for row in rows {
        table.add_row(fields.iter().map(|field| cell(row, field)));
    }
    table.trim_fmt()
}

/// A self-contained page, UTF-8: claims, plots and rows. `about` describes the experiment in one
/// line.
///
/// # Errors
/// [`Error::Field`] if the rows lack a field of a plot; [`Error::Plot`] or [`Error::Json`] if the
/// figures cannot be written.
pub fn page(
    report: &Report<Row>,
    (about, differs): (&str, &str),
    plots: &[Plot],
) -> Result<String, Error> {
    let mut out = String::new();
    write_claims(&mut out, &report.claims);
    if !differs.is_empty() {
        let differs = escape(&capitalized(differs));
        let _ = write!(
            out,
            "<section><h2>Unlike the paper</h2>\n<p>{differs}.</p></section>\n"
        );
    }
    if !plots.is_empty() {
        out.push_str(
            "<section><h2>Figures</h2>\n<p class=\"soft\">Whiskers are 95 % intervals.</p>\n",
        );
        for (number, plot) in plots.iter().enumerate() {
            out.push_str(&draw::section(plot, number, &report.rows)?);
        }
        out.push_str("</section>\n");
    }
    write_method(&mut out, report);
    write_rows(&mut out, &report.rows);
    write_envelope(&mut out, report)?;
    let title = format!("Experiment {}", report.experiment);
    Ok(document(&title, true, &header(about, report), &out))
}

/// The numbers of claims by verdict: a class of the style sheet, and a sentence.
fn count_verdicts(report: &Report<Row>) -> (&'static str, String) {
    if let Some(reason) = &report.ended_early {
        return ("bad", format!("ended early, no claims: {reason}"));
    }
    let count = |verdict: Option<Verdict>| {
        let claims = report.claims.iter();
        claims.filter(|claim| claim.verdict() == verdict).count()
    };
    let (holding, broken) = (count(Some(Verdict::Holds)), count(Some(Verdict::False)));
    let (undecided, without_bound) = (count(Some(Verdict::Undecided)), count(None));
    let class = match (broken, undecided) {
        (0, 0) => "good",
        (0, _) => "soft",
        _ => "bad",
    };
    let mut verdict = format!("{holding} of {} claims hold", holding + broken + undecided);
    for (count, kind) in [
        (broken, "false"),
        (undecided, "undecided"),
        (without_bound, "without a bound"),
    ] {
        if count > 0 {
            let _ = write!(verdict, "; {count} {kind}");
        }
    }
    (class, verdict)
}

fn header(about: &str, report: &Report<Row>) -> String {
    let (class, verdict) = count_verdicts(report);
    let settings = &report.environment.settings;
    let setting = |name: &str| settings.get(name).map_or("unknown", String::as_str);
    let quiet = match setting("quiet") {
        "yes" => "<p class=\"good\">The machine was quiet".to_owned(),
        other => format!("<p class=\"bad\">Quiet machine: {}", escape(other)),
    };
    format!(
        "<p>{}.</p>\n<p class=\"verdict {class}\">{verdict}.</p>\n{quiet} (other processes {} of the CPU time, hypervisor {}).</p>\n\
         <p class=\"soft\">Measured {} UTC. To repeat it: <code>{}</code></p>\n",
        escape(&capitalized(about)),
        percent(setting("other_processes_share")),
        percent(setting("steal_share")),
        date(&report.environment)
            .replace('T', " ")
            .trim_end_matches('Z'),
        escape(&command(report)),
    )
}

/// A share of the settings, in percent.
fn percent(share: &str) -> String {
    share
        .parse::<f64>()
        .map_or_else(|_| escape(share), |share| format!("{:.1} %", share * 100.0))
}

fn command(report: &Report<Row>) -> String {
    let quick = report.environment.settings.get("effort");
    let quick = quick.is_some_and(|effort| effort == "quick");
    let quick = if quick { " --quick" } else { "" };
    let interval = match report.environment.settings.get("interval_us") {
        Some(us) if us != "0" => format!(" --interval {us}us"),
        _ => String::new(),
    };
    format!("sudo myelin bench {}{quick}{interval}", report.experiment)
}

fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| {
        first.to_uppercase().chain(letters).collect()
    })
}

fn write_claims(out: &mut String, claims: &[Claim]) {
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
            vec![
                claim.id.clone(),
                paper,
                measured(&claim.measured),
                plain(&claim.bound),
                verdict_of(claim),
            ]
        })
        .collect();
    let head = [
        "claim",
        "paper",
        "measured [95 % interval] (deployments)",
        "bound",
        "verdict",
    ];
    out.push_str("<section><h2>Claims</h2>\n");
    out.push_str(&table(
        "Claims with published and measured figures.",
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

fn write_method(out: &mut String, report: &Report<Row>) {
    let settings = &report.environment.settings;
    let words = |name: &str| name.replace('_', " ");
    let (settings, machine): (Vec<_>, Vec<_>) = report
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
        "<section><h2>Method</h2>\n<p>{METHOD}</p>\n<div class=\"tables\">{}{}</div></section>\n",
        table("The experiment.", &["setting", "value"], &lines(settings)),
        table("The machine.", &["property", "value"], &lines(machine)),
    );
}

fn write_rows(out: &mut String, rows: &[Row]) {
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

/// The JSON envelope: the page alone is a complete record.
fn write_envelope(out: &mut String, report: &Report<Row>) -> Result<(), Error> {
    let text = report.to_lines()?;
    let _ = write!(
        out,
        "<section class=\"screen\"><details><summary>JSON envelope</summary>\n<pre><code id=\"envelope\">{}</code></pre></details></section>\n",
        escape(&text)
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comparison_shows_changed_verdicts_and_figures() {
        let change = |id: &str, before, after, figures: (f64, f64), overlap| ClaimChange {
            id: id.to_owned(),
            before: Some(before),
            after: Some(after),
            figure_before: Some(figures.0),
            figure_after: Some(figures.1),
            overlap: Some(overlap),
        };
        let changes = [
            change("same", Verdict::Holds, Verdict::Holds, (1.0, 1.01), true),
            change("slower", Verdict::Holds, Verdict::Holds, (1.0, 1.04), false),
            change("broken", Verdict::Holds, Verdict::False, (1.0, 1.5), false),
        ];
        let text = comparison(&changes, 100);
        assert!(
            text.starts_with("1 of 3 verdicts changed; 2 figures"),
            "{text}"
        );
        assert!(!text.contains("same") && text.contains("slower"), "{text}");
        assert!(text.contains("FALSE") && text.contains("+50.0"), "{text}");
        assert_eq!(comparison(&changes[..1], 100).lines().count(), 1);
    }

    #[test]
    fn a_table_has_a_column_for_each_figure_and_none_for_its_interval() {
        let row = Row::of("rtt")
            .with("rtt_p50_us", 9.1234)
            .with("rtt_p50_ci95_low_us", 9.0)
            .with("rtt_p50_ci95_high_us", 9.2);
        let table = rows_table(&[row], 100);
        assert!(
            table.contains("rtt p50 us") && !table.contains("ci95"),
            "{table}"
        );
    }
}
