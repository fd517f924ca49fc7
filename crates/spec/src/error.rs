//! What is wrong with a chain file: each fault with its place, what was found, what was expected, and a remedy.

use std::cell::RefCell;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::files::{FileResolver, NoFiles};

/// A place in a file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Place {
    /// The file's name as the caller gave it.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column, from 1, in characters.
    pub column: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

/// Where a node stands in the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    /// Line, from 1.
    pub(crate) line: usize,
    /// Column, from 1, in characters.
    pub(crate) column: usize,
    /// Characters that the node takes on that line; at least 1.
    pub(crate) width: usize,
}

impl Span {
    /// The very beginning of a text.
    pub(crate) const START: Self = Self {
        line: 1,
        column: 1,
        width: 1,
    };
}

/// One fault of a chain file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpecError {
    /// Where.
    pub place: Place,
    /// The object it is in, for example ``ServiceChain `tactile` ``; empty when the text is no YAML at all.
    pub object: String,
    /// The key it is at, from the top of the object, for example `spec.sla.latency`; may be empty.
    pub key: String,
    /// What was found.
    pub message: String,
    /// What the place takes.
    pub expected: String,
    /// What to do about it.
    pub help: String,
    /// The line in question, and how many of its characters from the column on are at fault.
    pub(crate) line_text: String,
    pub(crate) width: usize,
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: error: ", self.place)?;
        match (self.object.is_empty(), self.key.is_empty()) {
            (true, _) => {}
            (false, true) => write!(f, "{}: ", self.object)?,
            (false, false) => write!(f, "{}, {}: ", self.object, self.key)?,
        }
        writeln!(f, "{}", self.message)?;
        let number = self.place.line.to_string();
        let margin = " ".repeat(number.len());
        let (line, before, width) = visible(&self.line_text, self.place.column, self.width);
        writeln!(f, "{margin} |")?;
        writeln!(f, "{number} | {line}")?;
        writeln!(f, "{margin} | {}{}", " ".repeat(before), "^".repeat(width))?;
        writeln!(f, "{margin} = expected {}", self.expected)?;
        write!(f, "{margin} = help: {}", self.help)
    }
}

impl std::error::Error for SpecError {}

/// The part of a line that is shown, how many characters stand before the fault, and how many are marked.
fn visible(line: &str, column: usize, width: usize) -> (String, usize, usize) {
    const LONGEST: usize = 120;
    const BEFORE: usize = 60;
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

/// Text with each control character as a space, so that a file can neither break a line nor steer a terminal.
fn one_line(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

/// Every fault that was found in a chain file, in the order of the file; at least one.
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

/// What is wrong, without the place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}; {help}")]
pub struct Fault {
    /// What was found.
    pub message: String,
    /// What the place takes.
    pub expected: String,
    /// What to do about it.
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

/// One file while it is read: its text, the files that it names, and the faults that were found.
pub(crate) struct Report<'t> {
    file: String,
    text: &'t str,
    /// Gives the files that it names.
    pub(crate) files: &'t dyn FileResolver,
    /// The object being read, as [`SpecError::object`] has it.
    pub(crate) object: RefCell<String>,
    errors: RefCell<Vec<SpecError>>,
}

impl<'t> Report<'t> {
    /// A file that names no other file.
    pub(crate) fn new(file: &str, text: &'t str) -> Self {
        Self::with_files(file, text, &NoFiles)
    }

    pub(crate) fn with_files(file: &str, text: &'t str, files: &'t dyn FileResolver) -> Self {
        Self {
            file: one_line(file),
            text,
            files,
            object: RefCell::default(),
            errors: RefCell::default(),
        }
    }

    /// A file of which an object of `outer` names the path.
    pub(crate) fn within(outer: &Report<'_>, file: &str, text: &'t str) -> Self {
        Self {
            object: outer.object.clone(),
            ..Self::new(file, text)
        }
    }

    pub(crate) fn place(&self, span: Span) -> Place {
        Place {
            file: self.file.clone(),
            line: span.line,
            column: span.column,
        }
    }

    /// The word at a place of this file.
    pub(crate) fn span(&self, place: &Place) -> Span {
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

    /// Takes over the faults of a file that this one names.
    pub(crate) fn absorb(&self, other: Report<'_>) {
        self.errors.borrow_mut().extend(other.errors.into_inner());
    }

    pub(crate) fn count(&self) -> usize {
        self.errors.borrow().len()
    }

    /// The faults of this file in the order of its lines; those of files it names follow.
    pub(crate) fn finish(self) -> Option<SpecErrors> {
        let mut errors = self.errors.into_inner();
        errors.sort_by_key(|error| {
            let own = error.place.file == self.file;
            let order = (error.place.line, error.place.column);
            (!own, if own { order } else { (0, 0) })
        });
        (!errors.is_empty()).then_some(SpecErrors(errors))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_at_the_end_of_a_long_line_is_still_shown() {
        let line = format!("{}bad{}", "x".repeat(500), "y".repeat(500));
        let (shown, before, width) = visible(&line, 501, 3);
        let marked: String = shown.chars().skip(before).take(width).collect();
        assert_eq!(marked, "bad");
        assert!(shown.starts_with("...") && shown.ends_with("..."));
        assert!(shown.chars().count() <= 126);
    }

    #[test]
    fn a_column_past_the_end_still_gets_a_caret() {
        assert_eq!(visible("ab", 5, 3), ("ab".to_owned(), 4, 1));
        assert_eq!(visible("", 1, 1), (String::new(), 0, 1));
    }
}
