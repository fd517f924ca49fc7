//! Reads lists that are in the chain file, in another file, or in both.

use super::field::{Field, Fields};
use crate::error::{Fault, FaultLog};
use crate::files;
use crate::printable::Printable;
use crate::yaml;

/// Describes a list of a function's configuration, which may be in the chain file or in another
/// file.
pub(crate) struct ListOrFile {
    /// The key of the list, which also names its elements, and the key of the file.
    pub(crate) keys: [&'static str; 2],
    /// The value that the list needs, for errors.
    pub(crate) expected: &'static str,
    /// An example of a file name.
    pub(crate) file: &'static str,
    /// The most elements of one function.
    pub(crate) max_elements: usize,
    /// The function's kind.
    pub(crate) kind: &'static str,
    /// The remedy for too many elements.
    pub(crate) too_many_help: &'static str,
}

impl ListOrFile {
    /// Reads the elements in the chain file, then those in the other file. A fault in the other
    /// file has the name and the line of that file.
    pub(crate) fn read<T>(
        &self,
        fields: &Fields<'_>,
        mut element: impl FnMut(&Field<'_>) -> Option<T>,
    ) -> Vec<T> {
        let mut elements = Vec::new();
        let mut list = |field: &Field<'_>| {
            let items = field.list(self.expected).unwrap_or_default();
            elements.extend(items.iter().filter_map(&mut element));
        };
        let [listed, filed] = self.keys.map(|key| fields.get(key));
        if let Some(field) = &listed {
            list(field);
        }
        if let Some(field) = &filed {
            self.read_file(field, list);
        }
        let (count, key, max) = (elements.len(), self.keys[0], self.max_elements);
        if let Some(field) = filed.or(listed).filter(|_| count > max) {
            let expected = format!("at most {max} {key} in one {}", self.kind);
            field.fault(format!("{count} {key}"), expected, self.too_many_help);
        }
        elements
    }

    fn read_file(&self, field: &Field<'_>, list: impl FnOnce(&Field<'_>)) {
        let Some((path, text)) = read_text(field, self.file) else {
            return;
        };
        let inner = FaultLog::for_named_file(field.faults, path, &text);
        match yaml::load(&text).as_deref() {
            Ok([]) => {}
            Ok([document]) => list(&Field {
                path: field.path.clone(),
                ..Field::top(document, &inner)
            }),
            Ok([_, second, ..]) => {
                let help = format!("put all {} into one list", self.keys[0]);
                let fault = Fault::new("the file has a second document", self.expected, help);
                inner.add(&field.path, second.span, fault);
            }
            Err((span, fault)) => inner.add(&field.path, *span, fault.clone()),
        }
        field.faults.append(inner);
    }
}

/// Reads the file that `field` names. Returns the path and the text.
pub(crate) fn read_text<'a>(field: &Field<'a>, example: &str) -> Option<(&'a str, String)> {
    const EXPECTED: &str = "the path of a readable file, relative to the chain file";
    let path = field.text(EXPECTED, format_args!("write for example {example}"))?;
    let read = files::read_text(field.faults.files, path).map_err(|reason| {
        let message = format!("cannot read `{}`: {}", Printable(path), Printable(&reason));
        field.fault(
            message,
            EXPECTED,
            "correct the path, which starts at the chain file's directory, or make the file readable",
        );
    });
    Some((path, read.ok()?))
}
