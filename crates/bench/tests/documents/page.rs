//! A page's generated parts, which come from envelopes.
//!
//! Comments mark these parts. A word that contains spaces is quoted.
//!
//! ```text
//! <!-- results: NAME claims -->               a table of the experiment's claims
//! <!-- results: NAME rows TABLE COLUMN... FIELD=VALUE... -->   a table of rows
//! <!-- results: all -->                       a table of all experiments
//! <!-- end of results -->                     ends these parts
//! <!-- figure: NAME row TABLE COLUMN FIELD=VALUE... -->1.05<!-- end -->   a figure, within text
//! <!-- not measured: WHY -->                  the figures of this paragraph are in no envelope
//! ```

use std::collections::BTreeMap;
use std::ops::Range;

use myelin_bench::{Report, Row};
use myelin_report::experiment::plain;
use regex::Regex;
use serde_json::Value;

use crate::tables;

/// Reports by the name of their experiment.
pub(crate) type Envelopes = BTreeMap<String, Report<Row>>;

pub(crate) const END_OF_RESULTS: &str = "<!-- end of results -->";
pub(crate) const END_OF_FIGURE: &str = "<!-- end -->";
const USAGE: &str = "crates/bench/tests/documents/page.rs shows the markers";

/// A regular expression that is compiled once.
macro_rules! regex {
    ($text:expr) => {{
        static REGEX: std::sync::LazyLock<regex::Regex> =
            std::sync::LazyLock::new(|| regex::Regex::new($text).unwrap());
        &*REGEX
    }};
}
pub(crate) use regex;

pub(crate) struct Page<'a> {
    /// Within the repository.
    pub(crate) path: &'a str,
    text: &'a str,
    /// The text with spaces in place of code.
    pub(crate) prose: String,
    pub(crate) envelopes: &'a Envelopes,
}

/// A generated part.
pub(crate) struct Part {
    line: usize,
    is_figure: bool,
    /// The words of its marker.
    pub(crate) words: Vec<String>,
    /// Its place between its markers.
    content: Range<usize>,
}

impl<'a> Page<'a> {
    pub(crate) fn new(path: &'a str, text: &'a str, envelopes: &'a Envelopes) -> Self {
        let without_blocks = blank(text, regex!("(?ms)^ *```.*?^ *```"));
        Self {
            path,
            text,
            prose: blank(&without_blocks, regex!("`(?:[^`\n]|\n[^`\n])+`")),
            envelopes,
        }
    }

    /// The page with its new generated parts, or its faults.
    pub(crate) fn generate(&self) -> Result<String, Vec<String>> {
        let (mut faults, mut generated, mut copied) = (Vec::new(), String::new(), 0);
        for part in self.parts() {
            match part.and_then(|part| Ok((self.generate_part(&part)?, part.content))) {
                Ok((made, content)) => {
                    generated.push_str(&self.text[copied..content.start]);
                    generated.push_str(&made);
                    copied = content.end;
                }
                Err(fault) => faults.push(fault),
            }
        }
        generated.push_str(&self.text[copied..]);
        if faults.is_empty() {
            Ok(generated)
        } else {
            Err(faults)
        }
    }

    /// A fault of the page: its place, and the remedy.
    pub(crate) fn fault(&self, line: usize, problem: &str, remedy: &str) -> String {
        format!("{}:{line}: {problem}; {remedy}", self.path)
    }

    pub(crate) fn line_of(&self, place: usize) -> usize {
        self.text[..place].matches('\n').count() + 1
    }

    /// Its generated parts, in order.
    pub(crate) fn parts(&self) -> impl Iterator<Item = Result<Part, String>> {
        let start = regex!(r"(?s)<!-- (results|figure):(.*?)-->");
        start.captures_iter(&self.prose).map(move |found| {
            let marker = found.get_match();
            let is_figure = &found[1] == "figure";
            let line = self.line_of(marker.start());
            let rest = &self.prose[marker.end()..];
            let ends = [END_OF_RESULTS, END_OF_FIGURE];
            let end = ends[usize::from(is_figure)];
            let next = start.find(rest).map_or(rest.len(), |next| next.start());
            let Some(length) = rest[..next].find(end) else {
                return Err(self.fault(line, "a marker has no end", &format!("add `{end}`")));
            };
            // CommonMark takes a line that begins with a comment for HTML.
            let before = self.text[..marker.start()].rsplit('\n').next();
            if is_figure && !before.is_some_and(|line| line.contains(char::is_alphanumeric)) {
                let problem = "a line begins with the marker of a figure";
                return Err(self.fault(line, problem, "put a word before it"));
            }
            Ok(Part {
                line,
                is_figure,
                words: split_words(&found[2]),
                content: marker.end()..marker.end() + length,
            })
        })
    }

    fn generate_part(&self, part: &Part) -> Result<String, String> {
        let words: Vec<&str> = part.words.iter().map(String::as_str).collect();
        let made = match (part.is_figure, words.as_slice()) {
            (false, ["all"]) => tables::experiments(self.path, self.envelopes),
            (false, [name, "claims"]) => tables::claims(self.path, self.envelope(name, part)?),
            (false, [name, "rows", table, choice @ ..]) => {
                let (rows, columns) = self.rows(name, table, choice, part)?;
                tables::rows(&rows, &columns)
            }
            (true, [name, "row", table, choice @ ..]) => {
                let (rows, columns) = self.rows(name, table, choice, part)?;
                let ([row], [column]) = (rows.as_slice(), columns.as_slice()) else {
                    let problem = format!("{} rows, {} columns", rows.len(), columns.len());
                    let remedy = "choose one column, and one row with FIELD=VALUE";
                    return Err(self.fault(part.line, &problem, remedy));
                };
                let figure = row.get(column).and_then(Value::as_f64);
                return Ok(figure.map_or_else(|| "not measured".to_owned(), tables::short));
            }
            _ => return Err(self.fault(part.line, "an unknown marker", USAGE)),
        };
        Ok(format!("\n\n{}\n\n", made.trim_end()))
    }

    fn envelope(&self, name: &str, part: &Part) -> Result<&'a Report<Row>, String> {
        self.envelopes.get(name).ok_or_else(|| {
            let problem = format!("there is no {}", tables::file(name));
            let remedy = format!("`sudo myelin bench {name} --quick --results docs/results`");
            self.fault(part.line, &problem, &remedy)
        })
    }

    /// The rows of a table, and the chosen columns. A word with `=` chooses rows, all others are
    /// columns.
    fn rows(
        &self,
        name: &str,
        table: &str,
        choice: &[&str],
        part: &Part,
    ) -> Result<(Vec<&'a Row>, Vec<String>), String> {
        let all = &self.envelope(name, part)?.rows;
        let mut rows: Vec<&Row> = all.iter().filter(|row| row.table() == table).collect();
        let mut columns = Vec::new();
        for word in choice {
            let (field, wanted) = word.split_once('=').unzip();
            let field = field.unwrap_or(word);
            if let Some(row) = rows.iter().find(|row| row.get(field).is_none()) {
                let fields = row.fields().map(|(name, _)| name).collect::<Vec<_>>();
                let problem = format!("table `{table}` has no field `{field}`");
                let remedy = format!("its fields are: {}", fields.join(", "));
                return Err(self.fault(part.line, &problem, &remedy));
            }
            match wanted {
                None => columns.push(field.to_owned()),
                Some(wanted) => {
                    rows.retain(|row| row.get(field).map(plain).as_deref() == Some(wanted));
                }
            }
        }
        if rows.is_empty() {
            let mut tables: Vec<&str> = all.iter().map(Row::table).collect();
            tables.dedup();
            let remedy = format!("its tables are: {}", tables.join(" | "));
            return Err(self.fault(part.line, "no row of the envelope matches", &remedy));
        }
        Ok((rows, columns))
    }
}

/// Words between spaces. Quotes keep spaces; a quoted word may continue on the next line.
fn split_words(text: &str) -> Vec<String> {
    let words = regex!(r#"(?:"[^"]*"|[^ \n"])+"#).find_iter(text);
    let spaces = regex!("[ \n]+");
    words
        .map(|word| spaces.replace_all(word.as_str(), " ").replace('"', ""))
        .collect()
}

/// The text with spaces in place of all matches. Places and lines stay.
pub(crate) fn blank(text: &str, pattern: &Regex) -> String {
    let blanks = |found: &regex::Captures<'_>| -> String {
        let keep = |byte: u8| if byte == b'\n' { '\n' } else { ' ' };
        found[0].bytes().map(keep).collect()
    };
    pattern.replace_all(text, blanks).into_owned()
}
