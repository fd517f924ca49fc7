//! Tables of text.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, ContentArrangement, LineStyle, Table, TableStyle};
use myelin_metrics::Summary;
use textwrap::{Options, WordSplitter};

use super::{Style, format_share, format_us};

/// Formats a table with a head. Columns of figures are right-aligned. Cells wrap within the width.
pub fn table(head: &[&str], rows: &[Vec<String>], style: Style) -> String {
    let line = if style.ascii { '-' } else { '─' };
    let mut table = new_ruled_table(line, style.columns());
    table.set_header(head).add_rows(rows);
    for (i, column) in table.column_iter_mut().enumerate() {
        let mut cells = rows.iter().filter_map(|row| row.get(i)).peekable();
        if cells.peek().is_some() && cells.all(|cell| is_figure(cell)) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

/// Makes an empty table of a width, with a line of `line` characters below the head.
fn new_ruled_table(line: char, width: u16) -> Table {
    let rule = LineStyle::none().fill(line).junction(line);
    let mut table = Table::new();
    table
        .load_style(TableStyle::new().header_separator(rule))
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(width);
    table
}

/// Makes an empty table. A `>` in front of a heading right-aligns the column. Cells wrap within
/// `width` columns.
pub fn grid<'a>(headings: impl IntoIterator<Item = &'a str>, width: u16) -> Table {
    let mut table = new_ruled_table('─', width);
    let headings: Vec<&str> = headings.into_iter().collect();
    table.set_header(
        headings
            .iter()
            .map(|heading| heading.trim_start_matches('>')),
    );
    for (column, heading) in table.column_iter_mut().zip(headings) {
        if heading.starts_with('>') {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// A column of a table: the heading, and the cell for an item.
pub type Column<T> = (&'static str, fn(&T) -> String);

/// Formats a [`grid`] with a row for each item.
pub fn listing<T>(columns: &[Column<T>], items: &[T], width: u16) -> String {
    let mut table = grid(columns.iter().map(|(heading, _)| *heading), width);
    for item in items {
        table.add_row(columns.iter().map(|(_, cell)| cell(item)));
    }
    table.trim_fmt()
}

/// Breaks `text` between words. Each line has at most `width - indent` columns of text; each line
/// after the first begins with `indent` spaces.
pub fn wrap(text: &str, indent: usize, width: u16) -> String {
    let room = usize::from(width).saturating_sub(indent);
    let options = Options::new(room)
        .break_words(false)
        .word_splitter(WordSplitter::NoHyphenation);
    textwrap::wrap(text, options).join(&format!("\n{:indent$}", ""))
}

/// Adds a label and `text`. Further lines of `text` begin below its first word.
pub fn add_field(out: &mut String, label: &str, text: &str, width: u16) {
    // Writing into a String cannot fail.
    let _ = writeln!(out, "  {label:<12}{}", wrap(text, 14, width));
}

/// Returns the headings of columns, and a row of cells for each item.
pub(crate) fn head_and_rows<T>(
    columns: &[Column<T>],
    items: &[T],
) -> (Vec<&'static str>, Vec<Vec<String>>) {
    let row = |item| columns.iter().map(|(_, cell)| cell(item)).collect();
    let head = columns.iter().map(|(heading, _)| *heading).collect();
    (head, items.iter().map(row).collect())
}

/// Formats a figure, or `-` for no figure.
pub(crate) fn or_dash(figure: Option<impl ToString>) -> String {
    figure.map_or_else(|| "-".to_owned(), |figure| figure.to_string())
}

/// Formats a figure with `digits` decimal places, or `-` for no figure.
pub(crate) fn digits_or_dash(digits: usize, figure: Option<f64>) -> String {
    or_dash(figure.map(|figure| format!("{figure:.digits$}")))
}

/// Formats the figures of distributions, microseconds, with a column for each distribution.
pub fn latency_table(columns: &[(&str, &Summary)], style: Style) -> String {
    let mut head = vec!["us"];
    head.extend(columns.iter().map(|(name, _)| *name));
    table(&head, &latency_rows(columns), style)
}

/// Returns the rows of [`latency_table`]: a figure's name, then the values.
pub(crate) fn latency_rows(columns: &[(&str, &Summary)]) -> Vec<Vec<String>> {
    let Some((_, first)) = columns.first() else {
        return Vec::new();
    };
    let row = |name: &str, cell: &dyn Fn(&Summary) -> Option<String>| {
        let missing = || "-".to_owned();
        let cells = columns
            .iter()
            .map(|(_, summary)| cell(summary).unwrap_or_else(missing));
        std::iter::once(name.to_owned()).chain(cells).collect()
    };
    let names = first.figures().map(|(name, _)| name);
    let mut rows: Vec<Vec<String>> = (0..names.len())
        .map(|i| row(names[i], &|s| Some(format_us(s.figures()[i].1))))
        .collect();
    let interval = |s: &Summary| s.mean_ci95_us.or(s.mean_packets_ci95_us);
    rows.insert(2, row("mean, 95 % +-", &|s| interval(s).map(format_us)));
    if columns.iter().any(|(_, s)| s.bound_us.is_some()) {
        rows.push(row("bound", &|s| s.bound_us.map(format_us)));
        rows.push(row("within bound", &|s| {
            s.share_within_bound.map(format_share)
        }));
    }
    rows.push(row("packets", &|s| Some(s.count.to_string())));
    rows
}

/// Returns whether a cell is a number, with or without a unit, or a missing number.
fn is_figure(cell: &str) -> bool {
    let cell = cell.trim();
    cell.is_empty()
        || cell == "-"
        || cell.starts_with(|c: char| c.is_ascii_digit() || "+-<>~".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;
    use myelin_metrics::Distribution;

    fn rows() -> Vec<Vec<String>> {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        vec![
            row(["edge-filter", "0.25", "kernel"]),
            row(["cipher", "12.50", "user"]),
        ]
    }

    #[test]
    fn figures_are_right_aligned_and_words_left_aligned() {
        let text = table(
            &["function", "us", "space"],
            &rows(),
            Style {
                width: 60,
                ascii: true,
            },
        );
        assert_eq!(
            text,
            " function         us   space\n\
             ------------------------------\n \
             edge-filter    0.25   kernel\n \
             cipher        12.50   user"
        );
    }

    #[test]
    fn long_texts_wrap_under_their_label() {
        let mut out = String::new();
        add_field(&mut out, "note", "one two three four", 24);
        assert_eq!(out, "  note        one two\n              three four\n");
        assert_eq!(
            wrap("longer-than-that a b", 2, 8),
            "longer-than-that\n  a b"
        );
    }

    #[test]
    fn the_latency_table_has_a_column_for_each_distribution() {
        let mut distribution = Distribution::new();
        for i in 1..=1000 {
            distribution.record(i * 100);
        }
        let bounded = distribution.summary(Some(90.0)).unwrap();
        let free = distribution.summary(None).unwrap();
        let style = Style {
            width: 60,
            ascii: true,
        };
        let text = latency_table(&[("round trip", &bounded), ("one way", &free)], style);
        let expected = [
            " us              round trip   one way",
            "--------------------------------------",
            " min                  0.100     0.100",
            " mean                 50.05     50.05",
            " mean, 95 % +-         1.79      1.79",
            " p50                  50.02     50.02",
            " p90                  90.05     90.05",
            " p99                  99.01     99.01",
            " p99.9                99.90     99.90",
            " p99.99               100.0     100.0",
            " max                  100.0     100.0",
            " bound                90.00         -",
            " within bound        90.0 %         -",
            " packets               1000      1000",
        ]
        .join("\n");
        assert_eq!(text, expected, "\n{text}");
        for (width, ascii) in [(50, true), (100, false)] {
            let text = latency_table(&[("round trip", &free)], Style { width, ascii });
            assert!(
                text.lines().all(|line| line.chars().count() <= width),
                "{text}"
            );
        }
        assert!(table(&["a"], &[], Style::default()).contains('a'));
    }
}
