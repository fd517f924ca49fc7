//! Plots of an experiment as standalone SVG files.

use std::fmt::Write as _;

use myelin_metrics::Row;
use myelin_metrics::envelope::Report;
use serde_json::Value;

use super::command;
use super::draw::{Drawing, drawings};
use super::plot::Plot;
use crate::Error;
use crate::chain::date;
use crate::html::bars::pixels;
use crate::html::canvas::{FONT_SIZE, INK, SERIES_COLOURS, letters_in, text_width};
use crate::html::markup::{Key, escape};
use crate::html::standalone_svg;

/// Background that the style sheet replaces in dark mode.
const PAPER: &str = "#FFFFFE";
const MARGIN: i32 = 14;
const LINE: i32 = 18;
/// Drawings beside each other.
const COLUMNS: usize = 2;

/// A plot as a file.
#[derive(Debug, Clone)]
pub struct SvgFile {
    /// `EXPERIMENT-PLOT.svg`.
    pub name: String,
    /// The file's content.
    pub text: String,
}

/// Draws the plots of a report, each as a standalone SVG. Leaves out plots whose subjects were all
/// skipped.
///
/// # Errors
/// [`Error::Field`] if a plot and the rows do not fit, [`Error::Plot`] if it cannot be drawn.
pub fn figures(report: &Report<Row>, plots: &[Plot]) -> Result<Vec<SvgFile>, Error> {
    let mut files = Vec::new();
    for plot in plots {
        let rows = drawings(plot, 0, &report.rows)?;
        if !rows.is_empty() {
            files.push(SvgFile {
                name: file_name(&report.experiment, &plot.title),
                text: compose(plot, &rows, &source_lines(report)),
            });
        }
    }
    Ok(files)
}

/// The file name of a plot: letters and digits of both names, joined by hyphens.
fn file_name(experiment: &str, title: &str) -> String {
    let words = title.split(|c: char| !c.is_ascii_alphanumeric());
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    format!("{experiment}-{}.svg", words.join("-").to_lowercase())
}

/// The command, and the machine with the date.
pub fn source_lines(report: &Report<Row>) -> [String; 2] {
    let of = |key: &str| {
        let value = report.environment.machine.get(key);
        value.map_or_else(String::new, |value| match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        })
    };
    let is_quiet = report.environment.settings.get("quiet");
    let busy = if is_quiet.is_some_and(|quiet| quiet == "yes") {
        ""
    } else {
        ", busy"
    };
    [
        command(report),
        format!(
            "{}, {} cores{busy}, Linux {}, {}",
            of("cpu"),
            of("cores"),
            of("kernel"),
            day(report)
        ),
    ]
}

/// The day of the measurement, UTC.
pub fn day(report: &Report<Row>) -> String {
    let date = date(&report.environment);
    date.split('T').next().unwrap_or_default().to_owned()
}

/// Title, legend, drawings in columns, and source lines, from top to bottom.
fn compose(plot: &Plot, rows: &[Vec<Drawing>], sources: &[String]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(1).min(COLUMNS);
    let (cell, _) = size_of(&rows[0][0].svg);
    let width = MARGIN + pixels(columns) * (cell + MARGIN);
    let mut body = String::new();
    let mut y = MARGIN + LINE;
    text_line(&mut body, y, "font-weight=\"bold\" ", &plot.title);
    for line in legend_lines(rows, width - 2 * MARGIN) {
        y += LINE;
        let _ = write!(
            body,
            "<text x=\"{MARGIN}\" y=\"{y}\" fill=\"{}\">",
            hex(INK)
        );
        for key in line {
            let colour = SERIES_COLOURS[key.series % SERIES_COLOURS.len()];
            let (colour, mark) = (hex(colour), key.mark.unwrap_or('\u{25a0}'));
            let name = escape(&key.name);
            let _ = write!(
                body,
                "<tspan fill=\"{colour}\">{mark}</tspan> {name}\u{2003}"
            );
        }
        body.push_str("</text>\n");
    }
    y += MARGIN / 2;
    for beside in rows.iter().flat_map(|row| row.chunks(columns)) {
        let mut bottom = y;
        for (column, one) in beside.iter().enumerate() {
            let (w, h) = size_of(&one.svg);
            let x = MARGIN + pixels(column) * (cell + MARGIN);
            let (ink, heading) = (hex(INK), escape(&shortened(&one.heading, w)));
            let _ = writeln!(
                body,
                "<text x=\"{x}\" y=\"{}\" fill=\"{ink}\">{heading}</text>",
                y + LINE
            );
            let top = y + LINE + MARGIN / 2;
            let placed = format!("<svg x=\"{x}\" y=\"{top}\" width=\"{w}\" height=\"{h}\" ");
            body.push_str(&one.svg.replacen("<svg ", &placed, 1));
            bottom = bottom.max(top + h);
        }
        y = bottom + MARGIN / 2;
    }
    for line in sources {
        y += LINE;
        text_line(&mut body, y, "font-size=\"11\" ", line);
    }
    let height = y + MARGIN;
    standalone_svg(&format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"{FONT_SIZE}\" \
         role=\"group\" aria-labelledby=\"title about\">\n<title id=\"title\">{}</title>\
         <desc id=\"about\">{}</desc>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"{PAPER}\"/>\n{body}</svg>\n",
        escape(&plot.title),
        escape(&plot.caption),
    ))
}

fn text_line(body: &mut String, y: i32, style: &str, text: &str) {
    let (ink, text) = (hex(INK), escape(text));
    let _ = writeln!(
        body,
        "<text x=\"{MARGIN}\" y=\"{y}\" {style}fill=\"{ink}\">{text}</text>"
    );
}

/// The series of all drawings, in lines of at most `width` pixels.
fn legend_lines(rows: &[Vec<Drawing>], width: i32) -> Vec<Vec<&Key>> {
    let mut keys: Vec<&Key> = rows.iter().flatten().flat_map(|one| &one.legend).collect();
    keys.sort_by_key(|key| key.series);
    keys.dedup_by_key(|key| key.series);
    let mut lines: Vec<Vec<&Key>> = Vec::new();
    let mut used = 0;
    for key in keys {
        let needed = text_width(&key.name) + 40;
        used += needed;
        match lines.last_mut() {
            Some(line) if used <= width => line.push(key),
            _ => {
                lines.push(vec![key]);
                used = needed;
            }
        }
    }
    lines
}

/// Width and height of a drawing, from its `viewBox`.
fn size_of(svg: &str) -> (i32, i32) {
    let view = svg.split("viewBox=\"0 0 ").nth(1).unwrap_or_default();
    let mut sizes = view.split([' ', '"']).map(|size| size.parse().unwrap_or(0));
    (sizes.next().unwrap_or(0), sizes.next().unwrap_or(0))
}

fn shortened(text: &str, pixels: i32) -> String {
    text.chars().take(letters_in(pixels)).collect()
}

/// As plotters writes a colour, which the style sheet selects.
fn hex(colour: plotters::style::RGBColor) -> String {
    format!("#{:02X}{:02X}{:02X}", colour.0, colour.1, colour.2)
}

#[cfg(test)]
mod tests {
    use myelin_metrics::Environment;
    use serde_json::json;

    use super::*;

    fn report() -> Report<Row> {
        let row = |payload: usize, hook: &str, functions: usize| {
            Row::of("round trips")
                .with("payload_bytes", payload)
                .with("hook", hook)
                .with("functions", functions)
                .with("rtt_p50_us", functions as f64 + 3.5)
        };
        let mut rows = Vec::new();
        for payload in [256, 1400] {
            for hook in ["tcx", "<xdp>"] {
                rows.extend([1, 2, 4].map(|functions| row(payload, hook, functions)));
            }
        }
        let machine = json!({ "cpu": "A & B", "cores": 2, "kernel": "6.18.1" });
        let mut environment = Environment::default().with("effort", "quick");
        environment.machine = machine.as_object().unwrap().clone();
        environment.taken_at_unix_s = 1_795_392_000;
        Report {
            experiment: "kernel-chain".to_owned(),
            environment,
            rows,
            claims: Vec::new(),
            ended_early: None,
        }
    }

    fn plot() -> Plot {
        serde_json::from_value(json!({
            "title": "Round trips: \"all\"",
            "caption": "One chain.",
            "kind": "lines",
            "table": "round trips",
            "panels": ["payload_bytes"],
            "along": "functions",
            "series": ["hook"],
            "values": [["rtt_p50_us", ""]],
        }))
        .unwrap()
    }

    #[test]
    fn a_figure_is_standalone_and_names_its_source() {
        let files = figures(&report(), &[plot()]).unwrap();
        let [file] = &files[..] else {
            panic!("{files:?}")
        };
        assert_eq!(file.name, "kernel-chain-round-trips-all.svg");
        assert!(file.text.len() < 60_000, "{} bytes", file.text.len());
        let document = roxmltree::Document::parse(&file.text).unwrap();
        let root = document.root_element();
        let named = |name: &str| root.children().find(|child| child.has_tag_name(name));
        assert_eq!(named("title").unwrap().text(), Some("Round trips: \"all\""));
        assert_eq!(named("desc").unwrap().text(), Some("One chain."));
        assert!(
            named("style")
                .unwrap()
                .text()
                .unwrap()
                .contains("prefers-color-scheme: dark")
        );
        let texts: Vec<String> = root
            .children()
            .filter(|child| child.has_tag_name("text"))
            .map(|text| {
                text.descendants()
                    .filter(roxmltree::Node::is_text)
                    .filter_map(|part| part.text())
                    .collect()
            })
            .collect();
        for expected in [
            "payload 256 B",
            "payload 1400 B",
            "sudo myelin bench kernel-chain --quick",
            "A & B, 2 cores, busy, Linux 6.18.1, 2026-11-23",
        ] {
            assert!(
                texts.iter().any(|text| text == expected),
                "{expected} in {texts:?}"
            );
        }
        assert!(
            texts
                .iter()
                .any(|text| text.contains("tcx") && text.contains("<xdp>"))
        );
        let inner = |name| {
            root.children()
                .filter(move |child| child.has_tag_name(name))
        };
        let right = |svg: &roxmltree::Node<'_, '_>| {
            let number = |name| svg.attribute(name).unwrap().parse::<i32>().unwrap();
            number("x") + number("width")
        };
        let width: i32 = root.attribute("width").unwrap().parse().unwrap();
        assert_eq!(inner("svg").count(), 2);
        assert!(inner("svg").all(|svg| right(&svg) < width));
    }

    #[test]
    fn a_long_legend_has_several_lines_and_skipped_plots_no_file() {
        let mut report = report();
        report.rows = (0..20)
            .map(|number| {
                Row::of("round trips")
                    .with("payload_bytes", 256)
                    .with("hook", format!("a rather long name {number}"))
                    .with("functions", 1)
                    .with("rtt_p50_us", 1.5)
            })
            .collect();
        let rows = drawings(&plot(), 0, &report.rows).unwrap();
        let lines = legend_lines(&rows, 400);
        assert_eq!(lines.iter().flatten().count(), 20);
        assert!(lines.len() > 4 && lines.iter().all(|line| line.len() < 4));
        report.rows = vec![Row::of("skipped").with("variant", "DPDK")];
        assert!(figures(&report, &[plot()]).unwrap().is_empty());
    }
}
