//! Reads lists that stand in the chain file, in a file of their own, or in both.

use super::field::{Field, Fields};
use crate::error::{Fault, Report};
use crate::printable::Printable;
use crate::yaml;

/// A list of a function's configuration, in the words of errors.
pub(crate) struct Listed {
    /// The key of the list, which says what it is of, and that of the file.
    pub(crate) keys: [&'static str; 2],
    pub(crate) expected: &'static str,
    /// The name of such a file.
    pub(crate) file: &'static str,
    /// Elements at most, of one function of this kind, and the remedy for more.
    pub(crate) most: usize,
    pub(crate) of: &'static str,
    pub(crate) too_many: &'static str,
}

impl Listed {
    /// The elements in the chain file, then those in the other. Faults there carry that file's name and its lines.
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
        let (count, what, most) = (elements.len(), self.keys[0], self.most);
        if let Some(field) = filed.or(listed).filter(|_| count > most) {
            let expected = format!("at most {most} {what} in one {}", self.of);
            field.fault(format!("{count} {what}"), expected, self.too_many);
        }
        elements
    }

    fn read_file(&self, field: &Field<'_>, list: impl FnOnce(&Field<'_>)) {
        let Some((path, text)) = text(field, self.file) else {
            return;
        };
        let inner = Report::within(field.report, path, &text);
        match yaml::load(&text).as_deref() {
            Ok([]) => {}
            Ok([document]) => list(&Field {
                path: field.path.clone(),
                ..Field::top(document, &inner)
            }),
            Ok([_, second, ..]) => {
                let help = format!("put all {} into one list", self.keys[0]);
                let fault = Fault::new("a second document", self.expected, help);
                inner.add(&field.path, second.span, fault);
            }
            Err((span, fault)) => inner.add(&field.path, *span, fault.clone()),
        }
        field.report.absorb(inner);
    }
}

/// The path of the file that `field` names, and its text.
pub(crate) fn text<'a>(field: &Field<'a>, example: &str) -> Option<(&'a str, String)> {
    const EXPECTED: &str =
        "the path of a readable file, relative to the directory of the chain file";
    let path = field.text(EXPECTED, format_args!("write for example {example}"))?;
    let read = field.report.files.read(path).map_err(|reason| {
        let message = format!("cannot read `{}`: {}", Printable(path), Printable(&reason));
        field.fault(
            message,
            EXPECTED,
            "correct the path, or make the file readable",
        );
    });
    Some((path, read.ok()?))
}
