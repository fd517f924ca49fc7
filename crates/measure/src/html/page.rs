//! The page of a chain: what was owed and got, then how; and the document around any page.

use std::fmt::Write as _;

use super::markup::{escape, format_ns, table};
use super::sections;
use crate::Error;
use crate::chain_report::{ChainReport, Flood};

const STYLE: &str = include_str!("page.css");

/// The whole page, UTF-8.
///
/// # Errors
/// [`Error::Plot`] when a plot cannot be drawn.
pub fn render(report: &ChainReport) -> Result<String, Error> {
    let mut header = String::new();
    head(&mut header, report);
    let mut out = String::new();
    terms(&mut out, report);
    floods(&mut out, report);
    for (i, (name, probe)) in report.probes.iter().enumerate() {
        sections::probe(&mut out, report, i, name, probe)?;
    }
    sections::sojourn(&mut out, report)?;
    sections::hops(&mut out, report)?;
    if let Some(cpu) = &report.cpu {
        sections::cpu(&mut out, cpu)?;
    }
    let _ = write!(
        out,
        "<section><h2>Chain file</h2>\n<p class=\"soft\">{}</p>\n<pre><code>{}</code></pre></section>\n",
        escape(&report.file_name),
        escape(&report.file_text),
    );
    let lines: Vec<Vec<String>> = report
        .environment
        .lines()
        .into_iter()
        .map(|(name, value)| vec![name, value])
        .collect();
    let _ = write!(
        out,
        "<section><h2>Environment</h2>\n{}</section>\n",
        table("Where the figures come from.", &["what", "value"], &lines),
    );
    Ok(document(
        &format!("Chain {}", report.chain),
        false,
        &header,
        &out,
    ))
}

/// A self-contained page with that title: markup that stands in its header and in its main part. `wide` leaves room for
/// drawings beside each other.
pub fn document(title: &str, wide: bool, header: &str, main: &str) -> String {
    let title = escape(title);
    let class = if wide { " class=\"wide\"" } else { "" };
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\">\n<head>\n<meta charset=\"utf-8\" />\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\" />\n<title>{title} - Myelin</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body{class}>\n<header>\n<h1>{title}</h1>\n{header}</header>\n<main>\n{main}</main>\n\
         </body>\n</html>\n"
    )
}

fn head(out: &mut String, report: &ChainReport) {
    let (class, verdict) = match report.met() {
        Some(true) => ("good", "SLA met"),
        Some(false) => ("bad", "SLA not met"),
        None if report.terms.is_empty() => ("soft", "no SLA"),
        None => ("soft", "SLA not decided: a term could not be measured"),
    };
    let _ = writeln!(out, "<p class=\"verdict {class}\">{verdict}</p>");
    if let Some(hop) = report.costliest_hop() {
        let cost = hop.cost_ns().unwrap_or(0.0);
        let source = if hop.measured_ns.is_some() {
            "measured"
        } else {
            "by the model"
        };
        let _ = writeln!(
            out,
            "<p>The hop that costs most is <strong>{}</strong> with {} a packet, {source}.</p>",
            escape(&hop.name),
            format_ns(cost),
        );
    }
    let _ = writeln!(
        out,
        "<p class=\"soft\">Measured {}.</p>",
        escape(&report.measured_at)
    );
    for note in &report.notes {
        let _ = writeln!(out, "<p class=\"soft\">{}</p>", escape(note));
    }
}

fn terms(out: &mut String, report: &ChainReport) {
    if report.terms.is_empty() {
        return;
    }
    let rows: Vec<Vec<String>> = report
        .terms
        .iter()
        .map(|term| {
            let met = match term.met {
                Some(true) => "met",
                Some(false) => "not met",
                None => "not decided",
            };
            vec![
                term.name.clone(),
                term.owed.clone(),
                term.measured.clone(),
                met.to_owned(),
            ]
        })
        .collect();
    out.push_str("<section><h2>Contract</h2>\n");
    out.push_str(&table(
        "What the chain is owed and what it got.",
        &["term", "owed", "measured", ""],
        &rows,
    ));
    out.push_str("</section>\n");
}

fn floods(out: &mut String, report: &ChainReport) {
    if report.floods.is_empty() {
        return;
    }
    let rows: Vec<Vec<String>> = report.floods.iter().map(Flood::cells).collect();
    out.push_str("<section><h2>Flooded meanwhile</h2>\n");
    out.push_str(&table(
        "Chains that were sent more than they agreed while this one was measured.",
        &Flood::HEAD,
        &rows,
    ));
    out.push_str("</section>\n");
}
