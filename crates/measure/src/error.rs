//! Errors that name the object, the cause and the remedy.

use std::io;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option is out of range.
    #[error("probe option `{option}` is {value}: {expected}")]
    Option {
        /// The option's name as in [`crate::Config`] or [`crate::bandwidth::Load`].
        option: &'static str,
        /// The option's value.
        value: String,
        /// The valid values.
        expected: String,
    },
    /// A system call of the probe failed.
    #[error("cannot {action}: {source}; {remedy}")]
    System {
        /// The failed action, with the object's name.
        action: String,
        /// The system's error.
        source: io::Error,
        /// The remedy.
        remedy: &'static str,
    },
    /// A helper thread ended in a panic: a defect of this crate.
    #[error("the probe's {0} thread panicked; please report it")]
    Thread(&'static str),
    /// The configuration of a measured function is invalid: a defect of the caller.
    #[error("cannot parse the configuration of a measured function: {0}; please report it")]
    FunctionConfig(String),
    /// A request to the kernel failed.
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
