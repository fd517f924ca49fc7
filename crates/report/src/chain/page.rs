//! The page of a chain: the picture, the contract with its measured figures, then each measurement.

use std::fmt::Write as _;

use myelin_api::ReportReply;
use myelin_metrics::ChainReport;

use super::{FLOODS, TERMS, date, describe_account, sections, term_cells};
use crate::Error;
use crate::graph::ChainGraph;
use crate::html::document;
use crate::html::markup::{escape, figure, table};
use crate::terminal::{format_ns, head_and_rows};

/// Makes the whole page, UTF-8.
///
/// # Errors
/// [`Error::Plot`] if the library cannot draw a plot.
pub fn page(ReportReply { report, status, .. }: &ReportReply) -> Result<String, Error> {
    let mut header = String::new();
    write_head(&mut header, report);
    let picture = ChainGraph::running(status).svg_element()?;
    let caption = "The path of the packets: the cost of each step, and the places of losses.";
    let mut out = figure("", &picture, &[], caption);
    write_terms(&mut out, report);
    write_floods(&mut out, report);
    for (i, (name, probe)) in report.probes.iter().enumerate() {
        sections::write_probe(&mut out, report, i, name, probe)?;
    }
    sections::write_sojourn(&mut out, report)?;
    sections::write_hops(&mut out, report)?;
    if let Some(cpu) = &report.cpu {
        sections::write_cpu(&mut out, cpu)?;
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
        table("Origin of the figures.", &["property", "value"], &lines),
    );
    Ok(document(
        &format!("Chain {}", report.chain),
        false,
        &header,
        &out,
    ))
}

fn write_head(out: &mut String, report: &ChainReport) {
    let (class, verdict) = match report.met() {
        Some(true) => ("good", "SLA met"),
        Some(false) => ("bad", "SLA not met"),
        None if report.claims.is_empty() => ("soft", "no SLA"),
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
            "<p>The most expensive hop is <strong>{}</strong> with {} a packet, {source}.</p>",
            escape(&hop.name),
            format_ns(cost),
        );
    }
    let _ = writeln!(
        out,
        "<p class=\"soft\">Measured {}.</p>",
        escape(&date(&report.environment))
    );
    let account = format!("all traffic: {}", describe_account(&report.traffic));
    for note in report.notes.iter().chain([&account]) {
        let _ = writeln!(out, "<p class=\"soft\">{}</p>", escape(note));
    }
}

fn write_terms(out: &mut String, report: &ChainReport) {
    if report.claims.is_empty() {
        return;
    }
    let rows: Vec<_> = report.claims.iter().map(term_cells).collect();
    out.push_str("<section><h2>Contract</h2>\n");
    out.push_str(&table(
        "The agreed and the measured figures.",
        &TERMS,
        &rows,
    ));
    out.push_str("</section>\n");
}

fn write_floods(out: &mut String, report: &ChainReport) {
    if report.floods.is_empty() {
        return;
    }
    let (head, rows) = head_and_rows(&FLOODS, &report.floods);
    out.push_str("<section><h2>Flooded chains</h2>\n");
    out.push_str(&table(
        "Chains that received more than their agreed rate during the measurement.",
        &head,
        &rows,
    ));
    out.push_str("</section>\n");
}
