//! Markup: escaped text, tables, figures.

use std::fmt::Write as _;

use super::canvas::SERIES_COLOURS;

/// The number of series colours in the style sheet.
const COLOURS: usize = SERIES_COLOURS.len();

/// Replaces the characters of markup by references, and characters that XML forbids by U+FFFD.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // XML 1.0, production 2.
            '\t' | '\n' | '\r' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'.. => {
                out.push(c);
            }
            _ => out.push('\u{fffd}'),
        }
    }
    out
}

/// Makes a table with a caption. The first cell of a row is the row's heading. Columns of figures
/// are right-aligned.
pub fn table(caption: &str, head: &[&str], rows: &[Vec<String>]) -> String {
    let class = |column: usize| {
        let mut cells = rows.iter().filter_map(|row| row.get(column)).peekable();
        let figures = column > 0 && cells.peek().is_some() && cells.all(|cell| is_figure(cell));
        if figures { " class=\"n\"" } else { "" }
    };
    let mut out = format!(
        "<div class=\"scroll\"><table><caption>{}</caption>\n<thead><tr>",
        escape(caption)
    );
    for (i, cell) in head.iter().enumerate() {
        let _ = write!(out, "<th scope=\"col\"{}>{}</th>", class(i), escape(cell));
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for row in rows {
        out.push_str("<tr>");
        for (i, cell) in row.iter().enumerate() {
            let cell = escape(cell);
            let _ = if i == 0 {
                write!(out, "<th scope=\"row\">{cell}</th>")
            } else {
                write!(out, "<td{}>{cell}</td>", class(i))
            };
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>\n");
    out
}

fn is_figure(cell: &str) -> bool {
    cell.starts_with(|c: char| c.is_ascii_digit() || "-+<".contains(c))
}

/// The entry of a series in a legend.
#[derive(Debug, Clone)]
pub struct Key {
    /// Number of the series.
    pub series: usize,
    /// The mark of the series, if the curve has marks.
    pub mark: Option<char>,
    /// The name of the series.
    pub name: String,
}

/// Makes a figure from a heading, a drawing, a legend of colours and a caption. Omits empty parts.
pub fn figure(heading: &str, svg: &str, legend: &[Key], caption: &str) -> String {
    let mut out = "<figure>".to_owned();
    if !heading.is_empty() {
        let _ = write!(out, "<h4>{}</h4>", escape(heading));
    }
    out.push_str(svg);
    if !legend.is_empty() {
        out.push_str("<ul class=\"legend\">");
        for Key { series, mark, name } in legend {
            let colour = series % COLOURS;
            let sign = match mark {
                Some(mark) => format!("<span class=\"mark m{colour}\">{mark}</span>"),
                None => format!("<span class=\"key k{colour}\"></span>"),
            };
            let _ = write!(out, "<li>{sign}{}</li>", escape(name));
        }
        out.push_str("</ul>");
    }
    if !caption.is_empty() {
        let _ = write!(out, "<figcaption>{}</figcaption>", escape(caption));
    }
    out.push_str("</figure>\n");
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn escaped_text_round_trips(characters in prop::collection::vec(any::<char>(), 0..50)) {
            let text: String = characters.into_iter().collect();
            let document = format!("<p title=\"{0}\">{0}</p>", escape(&text));
            let parsed = roxmltree::Document::parse(&document).unwrap();
            let shown = parsed.root_element().text().unwrap_or_default();
            // XML reads a carriage return as a line feed. `escape` replaces characters that XML
            // forbids.
            let plain = |text: &str| {
                let lines = text.replace("\r\n", "\n").replace('\r', "\n");
                lines.replace(|c: char| c.is_control() && !"\t\n".contains(c) && c < ' ' || c > '\u{fffd}' && c < '\u{10000}', "\u{fffd}")
            };
            prop_assert_eq!(plain(shown), plain(&text));
        }
    }
}
