//! The error of this crate. An error names the failed action with its object, the cause, and the
//! remedy.

use std::fmt;
use std::io;

/// Result of every fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failed operation. The error's text is `cannot <action>: <cause>; <remedy>`.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action}: {cause}{}", Remedy(remedy.as_deref()))]
pub struct Error {
    action: String,
    kind: ErrorKind,
    cause: String,
    remedy: Option<String>,
    source: Option<io::Error>,
}

/// The kind of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The object does not exist.
    NotFound,
    /// An object of that name exists already.
    Exists,
    /// A capability is missing.
    Denied,
    /// The kernel lacks the feature, because the kernel is too old or a build option is off.
    Unsupported,
    /// The request is invalid: an invalid name, or a value out of range.
    Invalid,
    /// The object is in use.
    Busy,
    /// Any other failure.
    Other,
}

struct Remedy<'a>(Option<&'a str>);

impl fmt::Display for Remedy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(remedy) => write!(f, "; {remedy}"),
            None => Ok(()),
        }
    }
}

impl ErrorKind {
    fn of(error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENODEV | libc::ESRCH | libc::ENXIO) => Self::NotFound,
            Some(libc::EEXIST) => Self::Exists,
            Some(libc::EPERM | libc::EACCES) => Self::Denied,
            Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::EAFNOSUPPORT | libc::EPROTONOSUPPORT) => {
                Self::Unsupported
            }
            Some(libc::EINVAL | libc::ERANGE | libc::ENAMETOOLONG | libc::EADDRNOTAVAIL) => {
                Self::Invalid
            }
            Some(libc::EBUSY | libc::EADDRINUSE) => Self::Busy,
            _ => Self::Other,
        }
    }
}

impl Error {
    /// Makes an error from the error of a system call. `action` completes "cannot ..." and names
    /// the object.
    pub fn os(action: impl Into<String>, source: impl Into<io::Error>) -> Self {
        let source = source.into();
        let kind = ErrorKind::of(&source);
        let cause = match kind {
            ErrorKind::NotFound => "the object does not exist".to_owned(),
            ErrorKind::Exists => "the object exists already".to_owned(),
            ErrorKind::Unsupported => "this kernel does not support the operation".to_owned(),
            _ => describe(&source),
        };
        let remedy = (kind == ErrorKind::Denied).then(|| "run as root".to_owned());
        Self {
            action: action.into(),
            kind,
            cause,
            remedy,
            source: Some(source),
        }
    }

    /// Makes an error from a failed check, without a system call. `action` completes "cannot ...".
    pub fn new(action: impl Into<String>, kind: ErrorKind, cause: impl Into<String>) -> Self {
        Self {
            action: action.into(),
            kind,
            cause: cause.into(),
            remedy: None,
            source: None,
        }
    }

    /// Replaces the cause, for example by the kernel's message (netlink extended acknowledgement).
    #[must_use]
    pub fn because(mut self, cause: impl Into<String>) -> Self {
        self.cause = cause.into();
        self
    }

    /// Adds a remedy: what the user can do.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// Returns the kind of the failure.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns the error number, if a system call failed.
    pub fn errno(&self) -> Option<i32> {
        self.source.as_ref().and_then(io::Error::raw_os_error)
    }

    /// Returns the cause without the action.
    pub fn cause(&self) -> &str {
        &self.cause
    }

    /// Returns whether the object did not exist. Removals treat this as success.
    pub fn is_not_found(&self) -> bool {
        self.kind == ErrorKind::NotFound
    }
}

/// Returns the error's message without its number, `(os error 3)`.
fn describe(error: &io::Error) -> String {
    let text = error.to_string();
    let words = text.split(" (os error").next().unwrap_or(&text);
    let mut letters = words.chars();
    letters.next().map_or_else(String::new, |first| {
        first.to_lowercase().chain(letters).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_action_cause_and_remedy() {
        let denied = Error::os(
            "create veth `my0`",
            io::Error::from_raw_os_error(libc::EPERM),
        );
        assert_eq!(
            denied.to_string(),
            "cannot create veth `my0`: operation not permitted; run as root"
        );
        assert_eq!(denied.kind(), ErrorKind::Denied);
        let missing = Error::os(
            "set link `x` up",
            io::Error::from_raw_os_error(libc::ENODEV),
        );
        assert_eq!(
            missing.to_string(),
            "cannot set link `x` up: the object does not exist"
        );
        assert!(missing.is_not_found());
        assert_eq!(missing.errno(), Some(libc::ENODEV));
        let custom = Error::new(
            "name link `x`",
            ErrorKind::Invalid,
            "the name is longer than 15 bytes",
        )
        .remedy("choose a shorter name");
        assert_eq!(
            custom.to_string(),
            "cannot name link `x`: the name is longer than 15 bytes; choose a shorter name"
        );
    }
}
