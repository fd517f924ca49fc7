//! Faults of a chain file. Each has a location, the value found, the values expected and a remedy.

use std::cell::{Cell, RefCell};
use std::fmt;

use serde::{Deserialize, Serialize};
use textwrap::{Options, WordSplitter};

use crate::files::{FileResolver, NoFiles};

/// A location in a file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FileLocation {
    /// The file's name as the caller gave it.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column, from 1, in characters.
    pub column: usize,
}

impl fmt::Display for FileLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

/// The location and width of a node of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    /// Line, from 1.
    pub(crate) line: usize,
    /// Column, from 1, in characters.
    pub(crate) column: usize,
    /// Characters of the node on that line; at least 1.
    pub(crate) width: usize,
}

impl Span {
    /// The beginning of a text.
    pub(crate) const START: Self = Self {
        line: 1,
        column: 1,
        width: 1,
    };
}

/// One fault of a chain file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpecError {
    /// The location of the fault.
    pub place: FileLocation,
    /// The object with the fault, for example ``ServiceChain `tactile` ``. Empty if the text is not
    /// YAML.
    pub object: String,
    /// The path of the key, for example `spec.sla.latency`; may be empty.
    pub key: String,
    /// The value found.
    pub message: String,
    /// The values that the key takes.
    pub expected: String,
    /// The remedy: what to write.
    pub help: String,
    /// The text of the line with the fault.
    pub(crate) line_text: String,
    /// Characters to mark, from the column on.
    pub(crate) width: usize,
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = format!("{}: error: {}", self.place, self.message);
        writeln!(f, "{}", wrap(&first, INDENT))?;
        let number = self.place.line.to_string();
        let margin = " ".repeat(number.len());
        let (line, before, width) = visible_part(&self.line_text, self.place.column, self.width);
        writeln!(f, "{margin} |")?;
        writeln!(f, "{number} | {line}")?;
        write!(f, "{margin} | {}{}", " ".repeat(before), "^".repeat(width))?;
        let key = match (self.object.as_str(), self.key.as_str()) {
            (object, "") => object.to_owned(),
            (object, key) => format!("{key} of {object}"),
        };
        let notes = [
            ("in", &key),
            ("expected", &self.expected),
            ("help:", &self.help),
        ];
        for (label, text) in notes.into_iter().filter(|(_, text)| !text.is_empty()) {
            write!(
                f,
                "\n{}",
                wrap(&format!("{margin} = {label} {text}"), INDENT)
            )?;
        }
        Ok(())
    }
}

impl std::error::Error for SpecError {}

/// The longest line of an error, columns.
const COLUMNS: usize = 100;

/// The indentation of a line that continues the previous one.
const INDENT: &str = "       ";

/// Breaks `line` between words into lines of at most [`COLUMNS`]. All but the first begin with
/// `indent`.
fn wrap(line: &str, indent: &str) -> String {
    let options = Options::new(COLUMNS)
        .subsequent_indent(indent)
        .break_words(false)
        .word_splitter(WordSplitter::NoHyphenation);
    textwrap::fill(line, options)
}

/// Returns the visible part of a line, the number of characters before the fault, and the number of
/// characters to mark.
fn visible_part(line: &str, column: usize, width: usize) -> (String, usize, usize) {
    const LONGEST: usize = COLUMNS - 14;
    const BEFORE: usize = LONGEST / 2;
    const CUT: &str = "...";
    let length = line.chars().count();
    let at = column - 1;
    let skip = if length > LONGEST {
        at.saturating_sub(BEFORE)
    } else {
        0
    };
    let shown: String = line.chars().skip(skip).take(LONGEST).collect();
    let room = shown.chars().count().saturating_sub(at - skip);
    let (left, right) = (
        if skip > 0 { CUT } else { "" },
        if length > skip + LONGEST { CUT } else { "" },
    );
    let before = at - skip + left.len();
    (
        format!("{left}{}{right}", one_line(shown.trim_end())),
        before,
        width.min(room).max(1),
    )
}

/// Replaces each control character by a space, so that a file's text cannot break a line of an
/// error or control the terminal.
fn one_line(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

/// All faults of a chain file, in the order of the file; at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpecErrors(pub(crate) Vec<SpecError>);

impl SpecErrors {
    /// The faults.
    pub fn iter(&self) -> std::slice::Iter<'_, SpecError> {
        self.0.iter()
    }
}

impl<'e> IntoIterator for &'e SpecErrors {
    type Item = &'e SpecError;
    type IntoIter = std::slice::Iter<'e, SpecError>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Display for SpecErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n\n")?;
            }
            write!(f, "{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for SpecErrors {}

/// A fault without its location.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}; {help}")]
pub struct Fault {
    /// The value found.
    pub message: String,
    /// The values that the key takes.
    pub expected: String,
    /// The remedy: what to write.
    pub help: String,
}

impl Fault {
    pub(crate) fn new(
        message: impl Into<String>,
        expected: impl Into<String>,
        help: impl Into<String>,
    ) -> Self {
        Self {
            message: message.into(),
            expected: expected.into(),
            help: help.into(),
        }
    }
}

/// The file that the parser reads, and the faults found so far.
pub(crate) struct FaultLog<'t> {
    file: String,
    text: &'t str,
    /// The contents of the files that this file names.
    pub(crate) files: &'t dyn FileResolver,
    /// Returns the remedy for an unknown key that belongs to another mapping. Takes the path of the
    /// key's mapping and the key.
    pub(crate) suggest_for_unknown_key: Cell<fn(&str, &str) -> Option<String>>,
    /// The object that the parser reads, for [`SpecError::object`].
    pub(crate) object: RefCell<String>,
    errors: RefCell<Vec<SpecError>>,
}

impl<'t> FaultLog<'t> {
    /// Creates the log of a file that names no other file.
    pub(crate) fn new(file: &str, text: &'t str) -> Self {
        Self::with_files(file, text, &NoFiles)
    }

    /// Creates the log of a file. `files` returns the contents of the files that this file names.
    pub(crate) fn with_files(file: &str, text: &'t str, files: &'t dyn FileResolver) -> Self {
        Self {
            file: one_line(file),
            text,
            files,
            suggest_for_unknown_key: Cell::new(|_, _| None),
            object: RefCell::default(),
            errors: RefCell::default(),
        }
    }

    /// Creates the log of a file that an object in the file of `outer` names.
    pub(crate) fn for_named_file(outer: &FaultLog<'_>, file: &str, text: &'t str) -> Self {
        Self {
            object: outer.object.clone(),
            ..Self::new(file, text)
        }
    }

    pub(crate) fn place(&self, span: Span) -> FileLocation {
        FileLocation {
            file: self.file.clone(),
            line: span.line,
            column: span.column,
        }
    }

    /// Returns the span of the word at a location of this file.
    pub(crate) fn span(&self, place: &FileLocation) -> Span {
        let line = self.text.lines().nth(place.line - 1).unwrap_or("");
        let word = line
            .chars()
            .skip(place.column - 1)
            .take_while(|c| !c.is_whitespace() && !",:[]{}".contains(*c));
        Span {
            line: place.line,
            column: place.column,
            width: word.count().max(1),
        }
    }

    pub(crate) fn add(&self, key: &str, span: Span, fault: Fault) {
        let line_text = self.text.lines().nth(span.line - 1).unwrap_or("");
        self.errors.borrow_mut().push(SpecError {
            place: self.place(span),
            object: self.object.borrow().clone(),
            key: key.to_owned(),
            message: fault.message,
            expected: fault.expected,
            help: fault.help,
            line_text: line_text.to_owned(),
            width: span.width,
        });
    }

    /// Appends the faults of a file that this file names.
    pub(crate) fn append(&self, inner: FaultLog<'_>) {
        self.errors.borrow_mut().extend(inner.errors.into_inner());
    }

    pub(crate) fn count(&self) -> usize {
        self.errors.borrow().len()
    }

    /// Returns the faults of this file in line order, then the faults of the files that it names.
    pub(crate) fn finish(self) -> Option<SpecErrors> {
        let mut errors = self.errors.into_inner();
        errors.sort_by_key(|error| {
            let is_own = error.place.file == self.file;
            let order = (error.place.line, error.place.column);
            (!is_own, if is_own { order } else { (0, 0) })
        });
        (!errors.is_empty()).then_some(SpecErrors(errors))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_line_is_cut_around_the_fault() {
        let line = format!("{}bad{}", "x".repeat(500), "y".repeat(500));
        let (shown, before, width) = visible_part(&line, 501, 3);
        let marked: String = shown.chars().skip(before).take(width).collect();
        assert_eq!(marked, "bad");
        assert!(shown.starts_with("...") && shown.ends_with("..."));
        assert!(shown.chars().count() <= COLUMNS - 8);
    }

    #[test]
    fn column_past_the_end_of_the_line_gets_a_caret() {
        assert_eq!(visible_part("ab", 5, 3), ("ab".to_owned(), 4, 1));
        assert_eq!(visible_part("", 1, 1), (String::new(), 0, 1));
    }
}
