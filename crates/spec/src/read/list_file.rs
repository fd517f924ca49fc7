//! Reads lists that stand in a file of their own.

use super::field::Field;
use crate::error::{Fault, Report};
use crate::files::FileResolver;
use crate::printable::Printable;
use crate::yaml;

/// What the list is made of, for errors.
pub(super) struct Described {
    /// The list, in words.
    pub(super) list: &'static str,
    /// The name of such a file.
    pub(super) file: &'static str,
    /// What to do about a second document.
    pub(super) one_list: &'static str,
}

/// The path of the file that `field` names, and its text.
pub(super) fn text<'n>(
    field: &Field<'n>,
    files: &dyn FileResolver,
    report: &mut Report<'_>,
    example: &str,
) -> Option<(&'n str, String)> {
    const EXPECTED: &str =
        "the path of a readable file, relative to the directory of the chain file";
    let path = field.text(report, EXPECTED, &format!("write for example {example}"))?;
    match files.read(path) {
        Ok(text) => Some((path, text)),
        Err(reason) => {
            let fault = Fault::new(
                format!("cannot read `{}`: {}", Printable(path), Printable(&reason)),
                EXPECTED,
                "correct the path, or make the file readable",
            );
            field.fault(report, fault);
            None
        }
    }
}

/// Reads the file that `field` names with `read`; faults in it carry its name and its lines.
pub(super) fn read<T>(
    field: &Field<'_>,
    files: &dyn FileResolver,
    report: &mut Report<'_>,
    described: &Described,
    read: impl FnOnce(&Field<'_>, &mut Report<'_>) -> Vec<T>,
) -> Vec<T> {
    let Some((path, text)) = text(field, files, report, described.file) else {
        return Vec::new();
    };
    let mut inner = Report::new(path, &text);
    inner.object.clone_from(&report.object);
    let items = match yaml::load(&text).as_deref() {
        Ok([]) => Vec::new(),
        Ok([document]) => {
            let mut top = Field::top(document);
            top.path.clone_from(&field.path);
            read(&top, &mut inner)
        }
        Ok([_, second, ..]) => {
            let fault = Fault::new("a second document", described.list, described.one_list);
            inner.add(&field.path, second.span, fault);
            Vec::new()
        }
        Err(error) => {
            let fault = Fault::new(error.message.clone(), error.expected, error.help);
            inner.add(&field.path, error.span, fault);
            Vec::new()
        }
    };
    report.absorb(inner);
    items
}
