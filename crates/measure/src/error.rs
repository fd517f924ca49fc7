//! What can go wrong, in words that name the object, the cause and the remedy.

use std::io;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option out of its range.
    #[error("probe option `{option}` is {value}: {expected}")]
    Option {
        /// The option's name as in [`crate::Config`] or [`crate::bandwidth::Load`].
        option: &'static str,
        /// What it was.
        value: String,
        /// What it may be.
        expected: String,
    },
    /// A system call of the probe failed.
    #[error("cannot {action}: {source}; {remedy}")]
    System {
        /// What was attempted, with the object's name.
        action: String,
        /// The system's answer.
        source: io::Error,
        /// What to try.
        remedy: &'static str,
    },
    /// A helper thread ended in a panic: a defect of this crate.
    #[error("the probe's {0} thread panicked; please report it")]
    Thread(&'static str),
    /// A function that is to be measured.
    #[error("the measurement's own chain file: {0}; please report it")]
    Snippet(String),
    /// The machine did not give what was asked of it.
    #[error(transparent)]
    Linux(#[from] myelin_linux::Error),
}

impl Error {
    pub(crate) fn option(
        option: &'static str,
        value: impl std::fmt::Display,
        expected: impl Into<String>,
    ) -> Self {
        Self::Option {
            option,
            value: format!("{value}"),
            expected: expected.into(),
        }
    }

    pub(crate) fn system(
        action: impl Into<String>,
        source: impl Into<io::Error>,
        remedy: &'static str,
    ) -> Self {
        Self::System {
            action: action.into(),
            source: source.into(),
            remedy,
        }
    }
}
