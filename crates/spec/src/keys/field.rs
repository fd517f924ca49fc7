//! Taking a YAML tree apart, one value at a time, with a report of what does not fit.

use std::fmt::Display;
use std::ops::RangeInclusive;

use super::ConfigKey;
use crate::error::{Fault, Place, Report, Span};
use crate::printable::Printable;
use crate::suggest::nearest;
use crate::units::Dimension;
use crate::yaml::{Key, Node, Value};

/// A value, the key it stands at, and the report that its faults go to.
#[derive(Clone)]
pub(crate) struct Field<'a> {
    /// From the top of the object, for example `spec.functions[1].config.key`.
    pub(crate) path: String,
    /// What errors point at: the value where it is a scalar, else its key.
    pub(crate) span: Span,
    pub(crate) node: &'a Node,
    pub(crate) report: &'a Report<'a>,
}

/// A mapping whose keys are all known.
pub(crate) struct Fields<'a> {
    path: String,
    /// What errors on a missing key point at.
    pub(crate) span: Span,
    entries: &'a [(Key, Node)],
    pub(crate) report: &'a Report<'a>,
}

impl<'a> Field<'a> {
    /// A value that stands at no key: a document.
    pub(crate) fn top(node: &'a Node, report: &'a Report<'a>) -> Self {
        Self {
            path: String::new(),
            span: node.span,
            node,
            report,
        }
    }

    /// Reports a fault of this value.
    pub(crate) fn fault(
        &self,
        message: impl Into<String>,
        expected: impl Into<String>,
        help: impl Into<String>,
    ) {
        self.add(Fault::new(message, expected, help));
    }

    /// Reports a fault of this value.
    pub(crate) fn add(&self, fault: Fault) {
        self.report.add(&self.path, self.span, fault);
    }

    /// Reports that the value is of another shape.
    fn mismatch(&self, expected: &str, help: &str) {
        let found = match &self.node.value {
            Value::Null => "no value".to_owned(),
            Value::Scalar(text) => format!("`{}`", Printable(text)),
            Value::List(_) => "a list".to_owned(),
            Value::Map(_) => "a mapping".to_owned(),
        };
        self.fault(format!("found {found}"), expected, help);
    }

    /// The mapping that the value is. Unknown keys are reported and left out.
    pub(crate) fn map(&self, keys: &[ConfigKey]) -> Option<Fields<'a>> {
        let known = || keys.iter().map(|key| key.key).collect::<Vec<_>>();
        let Value::Map(entries) = &self.node.value else {
            let known = known();
            self.any_map(&match known[..] {
                [] => "an empty mapping".to_owned(),
                [only] => format!("a mapping with the key `{only}`"),
                _ => format!("a mapping with the keys {}", known.join(", ")),
            });
            return None;
        };
        let is_known = |name: &str| keys.iter().any(|key| key.key == name);
        for (key, _) in entries.iter().filter(|(key, _)| !is_known(&key.name)) {
            let known = known();
            let expected = match known[..] {
                [] => "no keys here".to_owned(),
                _ => one_of(&known),
            };
            let help = nearest(&key.name, &known);
            let help =
                help.map_or_else(|| "remove it".to_owned(), |near| format!("write `{near}`"));
            let message = format!("unknown key `{}`", Printable(&key.name));
            let fault = Fault::new(message, expected, help);
            self.report.add(&self.path, key.span, fault);
        }
        Some(Fields {
            path: self.path.clone(),
            span: self.span,
            entries,
            report: self.report,
        })
    }

    /// The entries of the mapping that the value is, whatever its keys.
    pub(crate) fn any_map(&self, expected: &str) -> Option<&'a [(Key, Node)]> {
        if let Value::Map(entries) = &self.node.value {
            return Some(entries);
        }
        self.mismatch(expected, "write KEY: VALUE pairs, or remove the key");
        None
    }

    /// The names and values of the mapping that the value is, whatever its keys.
    pub(crate) fn entries(&self, expected: &str) -> impl Iterator<Item = (&'a str, Field<'a>)> {
        let entry = |(key, node): &'a (Key, Node)| {
            let field = Field {
                path: format!("{}.{}", self.path, key.name),
                span: key.span,
                node,
                report: self.report,
            };
            (&*key.name, field)
        };
        self.any_map(expected).into_iter().flatten().map(entry)
    }

    /// The elements of the list that the value is.
    pub(crate) fn list(&self, expected: &str) -> Option<Vec<Field<'a>>> {
        let Value::List(items) = &self.node.value else {
            self.mismatch(
                expected,
                "write the elements in brackets, or one a line after `- `",
            );
            return None;
        };
        let element = |(index, node): (usize, &'a Node)| Field {
            path: format!("{}[{index}]", self.path),
            span: node.span,
            node,
            report: self.report,
        };
        Some(items.iter().enumerate().map(element).collect())
    }

    /// The elements of the list that the value is, or the value itself.
    pub(crate) fn one_or_list(&self, expected: &str) -> Vec<Field<'a>> {
        match &self.node.value {
            Value::List(_) => self.list(expected).unwrap_or_default(),
            _ => vec![self.clone()],
        }
    }

    /// Whether the value is a mapping.
    pub(crate) fn is_map(&self) -> bool {
        matches!(self.node.value, Value::Map(_))
    }

    /// The text that the value is; a number counts as its text.
    pub(crate) fn text(&self, expected: &str, help: impl Display) -> Option<&'a str> {
        let text = self.node.text();
        if text.is_none() {
            self.mismatch(expected, &help.to_string());
        }
        text
    }

    /// What `read` makes of the text that the value is, or the fault that it says.
    pub(crate) fn parsed<T, E: Display>(
        &self,
        expected: &str,
        help: &str,
        read: impl FnOnce(&'a str) -> Result<T, E>,
    ) -> Option<T> {
        match read(self.text(expected, help)?) {
            Ok(value) => Some(value),
            Err(message) => {
                self.fault(message.to_string(), expected, help);
                None
            }
        }
    }

    /// The value of one of several words.
    pub(crate) fn word<T: Copy>(&self, words: &[(&str, T)]) -> Option<T> {
        let text = self.node.text();
        let found = words.iter().find(|(name, _)| Some(*name) == text);
        if found.is_none() {
            let names: Vec<_> = words.iter().map(|(name, _)| *name).collect();
            let choice = one_of(&names);
            let near = text.and_then(|text| nearest(text, &names));
            let better = near.map_or_else(|| choice.clone(), |near| format!("`{near}`"));
            self.mismatch(&choice, &format!("write {better}"));
        }
        found.map(|(_, value)| *value)
    }

    /// The whole number, decimal or hexadecimal, that the value is.
    pub(crate) fn integer(&self, range: RangeInclusive<u64>, what: &str) -> Option<u64> {
        let number = self.node.text().and_then(whole_number);
        let number = number.filter(|number| range.contains(number));
        if number.is_none() {
            let (least, most) = (range.start(), range.end());
            let help = format!("write a whole number from {least} to {most}");
            self.mismatch(&format!("{what}, {least} to {most}"), &help);
        }
        number
    }

    /// The written quantity that the value is.
    pub(crate) fn unit<T>(
        &self,
        read: impl FnOnce(&str) -> Result<T, Fault>,
        expected: &str,
        example: &str,
    ) -> Option<T> {
        let text = self.text(expected, format_args!("write for example {example}"))?;
        read(text).map_err(|fault| self.add(fault)).ok()
    }

    /// The written quantity that the value is, above zero.
    pub(crate) fn quantity(&self, dimension: &Dimension, example: &str) -> Option<u64> {
        let read = |text: &str| dimension.parse(text);
        let value = self.unit(read, "a number with a unit", example)?;
        if value == 0 {
            let help = format!("write for example {example}, or remove the key");
            self.mismatch("more than zero", &help);
        }
        Some(value).filter(|value| *value > 0)
    }
}

impl<'a> Fields<'a> {
    /// A mapping without any key.
    pub(crate) fn none(report: &'a Report<'a>) -> Self {
        Self {
            path: String::new(),
            span: Span::START,
            entries: &[],
            report,
        }
    }

    /// The value of a key, where it is given.
    pub(crate) fn get(&self, key: &str) -> Option<Field<'a>> {
        let (span, node) = self.entry(key)?;
        Some(Field {
            span,
            ..self.stand_in(key, node)
        })
    }

    /// The value of a key, and what errors point at.
    fn entry(&self, key: &str) -> Option<(Span, &'a Node)> {
        let (name, node) = self.entries.iter().find(|(name, _)| name.name == key)?;
        let span = match node.value {
            Value::Scalar(_) => node.span,
            Value::Null | Value::List(_) | Value::Map(_) => name.span,
        };
        Some((span, node))
    }

    /// The value of a key that must be given.
    pub(crate) fn required(
        &self,
        key: &str,
        expected: impl Display,
        example: &str,
    ) -> Option<Field<'a>> {
        let field = self.get(key);
        if field.is_none() {
            let message = format!("`{key}` is missing");
            let help = format!("add `{key}: {example}`");
            let fault = Fault::new(message, expected.to_string(), help);
            self.report.add(&self.path, self.span, fault);
        }
        field
    }

    /// Where the value of a key stands, else the mapping.
    pub(crate) fn place_of(&self, key: &str) -> Place {
        let span = self.entry(key).map_or(self.span, |(span, _)| span);
        self.report.place(span)
    }

    /// `node` as the value of a key that is not given.
    pub(crate) fn stand_in<'m>(&self, key: &str, node: &'m Node) -> Field<'m>
    where
        'a: 'm,
    {
        let path = match &*self.path {
            "" => key.to_owned(),
            path => format!("{path}.{key}"),
        };
        Field {
            path,
            span: self.span,
            node,
            report: self.report,
        }
    }
}

/// One of several words, as it is written in errors.
fn one_of(words: &[&str]) -> String {
    match words {
        [only] => format!("`{only}`"),
        _ => format!("one of {}", words.join(", ")),
    }
}

/// A whole number written in decimal or, after `0x`, in hexadecimal digits.
pub(crate) fn whole_number(text: &str) -> Option<u64> {
    let hexadecimal = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let (digits, radix) = hexadecimal.map_or((text, 10), |digits| (digits, 16));
    // `from_str_radix` would take a sign.
    let plain = digits.bytes().all(|digit| digit.is_ascii_alphanumeric());
    u64::from_str_radix(digits, radix).ok().filter(|_| plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers() {
        assert_eq!(whole_number("90"), Some(90));
        assert_eq!(whole_number("0x5a"), Some(90));
        assert_eq!(whole_number("0X5A"), Some(90));
        for text in [
            "",
            "-1",
            "+1",
            "0x",
            "0x+1",
            "1.0",
            "1e3",
            "five",
            "99999999999999999999",
        ] {
            assert_eq!(whole_number(text), None, "{text}");
        }
    }
}
