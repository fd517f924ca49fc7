//! Checks that an envelope has each figure that a page names.

use std::collections::BTreeSet;

use myelin_bench::{Report, Row};
use serde_json::Value;

use crate::PAGES;
use crate::page::{Envelopes, Page, blank, regex};

/// Physical dimension of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dimension {
    Time,
    Rate,
    BitRate,
    Memory,
    Number,
}

/// Unit in texts, suffix of fields, dimension, size.
type Unit = (&'static str, &'static str, Dimension, f64);
const UNITS: [Unit; 13] = [
    ("ns", "_ns", Dimension::Time, 1.0),
    ("us", "_us", Dimension::Time, 1e3),
    ("ms", "_ms", Dimension::Time, 1e6),
    ("kpps", "_kpps", Dimension::Rate, 1e3),
    ("Mpps", "_mpps", Dimension::Rate, 1e6),
    ("Mops", "_mops", Dimension::Rate, 1e6),
    ("Mbit/s", "_mbit_s", Dimension::BitRate, 1.0),
    ("Gbit/s", "_gbit_s", Dimension::BitRate, 1e3),
    ("s", "_s", Dimension::Time, 1e9),
    ("KiB", "_kib", Dimension::Memory, 1.0),
    ("MiB", "_mib", Dimension::Memory, 1024.0),
    ("%", "_percent", Dimension::Number, 0.01),
    ("times", "_times", Dimension::Number, 1.0),
];
/// Units of measured figures on pages without results.
const MEASURED: [&str; 9] = [
    "ns", "us", "kpps", "Mpps", "Mops", "Mbit/s", "Gbit/s", "MiB", "%",
];
const NUMBER: (Dimension, f64) = (Dimension::Number, 1.0);
/// Words before a number that is no figure.
const VERSIONED: [&str; 6] = ["DPDK", "Fig.", "Linux", "Section", "version", "vSwitch"];

/// A figure with its dimension and the size of its unit.
#[derive(Debug, Clone, Copy)]
struct Quantity {
    figure: f64,
    unit: (Dimension, f64),
}

/// Finds figures of a page that none of its envelopes has. Its envelopes are that of its own name,
/// and those that its markers name. On a page of results, all figures with a unit and all numbers
/// with a decimal point are checked. Elsewhere, most of these are constants (buffers, timeouts,
/// versions), so only figures with one of the [`MEASURED`] units are. Generated parts, code, and
/// paragraphs with `<!-- not measured: WHY -->` are not checked.
pub(crate) fn check_figures(path: &str, text: &str, envelopes: &Envelopes) -> Vec<String> {
    let page = Page::new(path, text, envelopes);
    let (known, names) = quantities(&page);
    let generated =
        regex!(r"(?s)<!-- results:.*?<!-- end of results -->|<!-- figure:.*?<!-- end -->");
    let prose = blank(&page.prose, generated);
    let mut faults = Vec::new();
    for paragraph in regex!(r"(?: *[^ \n][^\n]*\n?)+").find_iter(&prose) {
        let (line, paragraph) = (page.line_of(paragraph.start()), paragraph.as_str());
        let mut figures = named_figures(&blank(paragraph, regex!(r"(?s)<!--.*?-->|\]\([^)]*\)")));
        let is_measured = |figure: &NamedFigure| MEASURED.iter().any(|unit| figure.has(unit));
        figures.retain(|figure| path.starts_with(PAGES) || is_measured(figure));
        if regex!(r"(?s)<!-- not measured: .*?[A-Za-z].*?-->").is_match(paragraph) {
            if figures.is_empty() {
                let problem = "`not measured` in a paragraph without a figure";
                faults.push(page.fault(line, problem, "remove the comment"));
            }
            continue;
        }
        for figure in figures.iter().filter(|figure| !figure.is_known(&known)) {
            let line = line + paragraph[..figure.place].matches('\n').count();
            let problem = format!("`{}` is in no envelope of this page ({names})", figure.text);
            let remedy = "correct it, generate it with a `figure` marker, or say in its paragraph \
                          `<!-- not measured: WHY -->`";
            faults.push(page.fault(line, &problem, remedy));
        }
    }
    faults
}

/// A figure in a text.
struct NamedFigure {
    text: String,
    place: usize,
    quantity: Quantity,
    /// Half of its last digit.
    tolerance: f64,
}

impl NamedFigure {
    fn has(&self, unit: &str) -> bool {
        self.text.split(' ').next_back() == Some(unit)
    }

    /// Whether one of these figures rounds to it.
    fn is_known(&self, known: &[Quantity]) -> bool {
        let (dimension, size) = self.quantity.unit;
        let same = known.iter().filter(|one| one.unit.0 == dimension);
        let mut figures = same.map(|one| one.figure * one.unit.1 / size);
        figures.any(|figure| (figure - self.quantity.figure).abs() <= self.tolerance * 1.000_001)
    }
}

/// The figures with a unit and the numbers with a decimal point.
fn named_figures(text: &str) -> Vec<NamedFigure> {
    // In `2 to 5 us` and `2, 3; 5 us`, the unit is that of all.
    let unit = regex!(&format!(
        r"^(?:[;,]?[ \n]+(?:(?:to|and|or)[ \n]+)?-?[0-9][0-9,.]*)*[ \n]?({})(?:[^A-Za-z0-9_/]|$)",
        UNITS.map(|(name, ..)| name).join("|")
    ));
    let mut named = Vec::new();
    for found in regex!(r"[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?").find_iter(text) {
        let (before, after) = (&text[..found.start()], &text[found.end()..]);
        let (before, sign) = match before.strip_suffix('-') {
            Some(before) if !before.ends_with(char::is_alphanumeric) => (before, -1.0),
            _ => (before, 1.0),
        };
        let unit = unit.captures(after).map(|unit| unit[1].to_owned());
        let is_decimal = found.as_str().contains('.')
            && !after.starts_with(|c: char| c.is_alphanumeric() || c == '_')
            && !is_version(before, after);
        if before.ends_with(|c: char| c.is_alphanumeric() || "_./-:#".contains(c))
            || (unit.is_none() && !is_decimal)
        {
            continue;
        }
        let digits = found.as_str().replace(',', "");
        let decimals = digits
            .split_once('.')
            .map_or(0, |(_, decimals)| decimals.len());
        named.push(NamedFigure {
            text: format!("{} {}", found.as_str(), unit.as_deref().unwrap_or(""))
                .trim()
                .to_owned(),
            place: found.start(),
            quantity: Quantity {
                figure: digits.parse::<f64>().unwrap() * sign,
                unit: unit.map_or(NUMBER, |name| unit_where(|one| one.0 == name)),
            },
            tolerance: 0.5 * 10_f64.powf(-(decimals as f64)),
        });
    }
    named
}

/// `Linux 6.18`, `1.2.3`.
fn is_version(before: &str, after: &str) -> bool {
    let word = before.split_whitespace().last().unwrap_or_default();
    let mut after = after.chars();
    (before.ends_with(char::is_whitespace) && VERSIONED.contains(&word))
        || (after.next() == Some('.') && after.next().is_some_and(|c| c.is_ascii_digit()))
}

fn unit_where(is_it: impl Fn(&&Unit) -> bool) -> (Dimension, f64) {
    let unit = UNITS.iter().find(is_it);
    unit.map_or(NUMBER, |(_, _, dimension, size)| (*dimension, *size))
}

/// The figures of the page's envelopes, and the envelopes' names.
fn quantities(page: &Page<'_>) -> (Vec<Quantity>, String) {
    let own = page.path.rsplit('/').next().unwrap_or_default();
    let mut names = BTreeSet::from([own.trim_end_matches(".md").to_owned()]);
    let parts = page.parts().flatten();
    names.extend(parts.filter_map(|part| part.words.into_iter().next()));
    names.retain(|name| page.envelopes.contains_key(name));
    let reports = names.iter().map(|name| &page.envelopes[name]);
    let all = reports.flat_map(of_report).collect();
    match names.into_iter().collect::<Vec<_>>().join(", ") {
        names if names.is_empty() => (all, "it has none".to_owned()),
        names => (all, names),
    }
}

/// The figures of rows, claims, bounds and settings.
fn of_report(report: &Report<Row>) -> Vec<Quantity> {
    let mut all = Vec::new();
    let of_field = |field: &str| unit_where(|unit| field.ends_with(unit.1));
    // An end of an interval is no measured figure.
    let fields = report.rows.iter().flat_map(Row::fields);
    for (field, value) in fields.filter(|(name, _)| !name.contains("ci95_")) {
        collect(value, of_field(field), &mut all);
    }
    for claim in &report.claims {
        // A share in a name, such as `10 % loss`, is not the unit of the figure.
        let words = claim.id.split([' ', ',']);
        let mut units = words.map(|word| unit_where(|unit| unit.0 == word));
        let unit = units
            .find(|unit| unit.0 != Dimension::Number)
            .unwrap_or(NUMBER);
        let measured = claim
            .figure()
            .map_or_else(|| claim.measured.clone(), Value::from);
        for value in [&measured, &claim.paper, &claim.bound] {
            collect(value, unit, &mut all);
        }
    }
    for (field, text) in &report.environment.settings {
        collect(&Value::from(text.as_str()), of_field(field), &mut all);
    }
    all
}

/// Adds the figures of a value: a number, the members of an object, the figures of a text.
fn collect(value: &Value, unit: (Dimension, f64), all: &mut Vec<Quantity>) {
    match value {
        Value::Number(figure) => {
            all.extend(figure.as_f64().map(|figure| Quantity { figure, unit }));
        }
        Value::Object(figures) => figures.values().for_each(|value| collect(value, unit, all)),
        Value::String(text) => {
            let bound = text.trim_start_matches(['<', '>', '=', ' ']).parse::<f64>();
            all.extend(bound.ok().map(|figure| Quantity { figure, unit }));
            all.extend(named_figures(text).into_iter().map(|named| named.quantity));
        }
        _ => {}
    }
}
