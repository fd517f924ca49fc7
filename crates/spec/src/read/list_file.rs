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
        report: &mut Report<'_>,
        mut element: impl FnMut(&Field<'_>, &mut Report<'_>) -> Option<T>,
    ) -> Vec<T> {
        let mut elements = Vec::new();
        let mut list = |field: &Field<'_>, report: &mut Report<'_>| {
            for item in field.list(report, self.expected).unwrap_or_default() {
                elements.extend(element(&item, report));
            }
        };
        let [listed, filed] = self.keys.map(|key| fields.get(key));
        if let Some(field) = &listed {
            list(field, report);
        }
        if let Some(field) = &filed {
            self.read_file(field, report, list);
        }
        let (count, what, most) = (elements.len(), self.keys[0], self.most);
        if let Some(field) = filed.or(listed).filter(|_| count > most) {
            let fault = Fault::new(
                format!("{count} {what}"),
                format!("at most {most} {what} in one {}", self.of),
                self.too_many,
            );
            field.fault(report, fault);
        }
        elements
    }

    fn read_file(
        &self,
        field: &Field<'_>,
        report: &mut Report<'_>,
        mut list: impl FnMut(&Field<'_>, &mut Report<'_>),
    ) {
        let Some((path, text)) = text(field, report, self.file) else {
            return;
        };
        let mut inner = Report::new(path, &text);
        inner.object.clone_from(&report.object);
        match yaml::load(&text).as_deref() {
            Ok([]) => {}
            Ok([document]) => {
                let mut top = Field::top(document);
                top.path.clone_from(&field.path);
                list(&top, &mut inner);
            }
            Ok([_, second, ..]) => {
                let help = format!("put all {} into one list", self.keys[0]);
                let fault = Fault::new("a second document", self.expected, help);
                inner.add(&field.path, second.span, fault);
            }
            Err(error) => {
                let fault = Fault::new(error.message.clone(), error.expected, error.help);
                inner.add(&field.path, error.span, fault);
            }
        }
        report.absorb(inner);
    }
}

/// The path of the file that `field` names, and its text.
pub(crate) fn text<'n>(
    field: &Field<'n>,
    report: &mut Report<'_>,
    example: &str,
) -> Option<(&'n str, String)> {
    const EXPECTED: &str =
        "the path of a readable file, relative to the directory of the chain file";
    let path = field.text(report, EXPECTED, &format!("write for example {example}"))?;
    match report.files.read(path) {
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
