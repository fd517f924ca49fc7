//! Taking a YAML tree apart, one value at a time, with a report of what does not fit.

use std::ops::RangeInclusive;

use crate::catalogue::ConfigKey;
use crate::error::{Fault, Report};
use crate::printable::Printable;
use crate::suggest::nearest;
use crate::units::UnitError;
use crate::yaml::{Key, Node, Span, Value};

/// A value and the key it stands at.
#[derive(Clone)]
pub(crate) struct Field<'n> {
    /// From the top of the object, for example `spec.functions[1].config.key`.
    pub(crate) path: String,
    /// What errors point at: the value where it is a scalar, else its key.
    pub(crate) span: Span,
    pub(crate) node: &'n Node,
}

/// A mapping whose keys are all known.
pub(crate) struct Fields<'n> {
    path: String,
    /// What errors on a missing key point at.
    pub(crate) span: Span,
    entries: &'n [(Key, Node)],
}

impl<'n> Field<'n> {
    /// A value that stands at no key: a document.
    pub(crate) fn top(node: &'n Node) -> Self {
        Self {
            path: String::new(),
            span: node.span,
            node,
        }
    }

    /// What the value is, in words.
    fn found(&self) -> String {
        match &self.node.value {
            Value::Null => "no value".to_owned(),
            Value::Scalar(text) => format!("`{}`", Printable(text)),
            Value::List(_) => "a list".to_owned(),
            Value::Map(_) => "a mapping".to_owned(),
        }
    }

    /// Reports a fault of this value.
    pub(crate) fn fault(&self, report: &mut Report<'_>, fault: Fault) {
        report.add(&self.path, self.span, fault);
    }

    /// Reports that the value is of another shape.
    fn mismatch(&self, report: &mut Report<'_>, expected: &str, help: &str) {
        let message = format!("found {}", self.found());
        self.fault(report, Fault::new(message, expected, help));
    }

    /// The mapping that the value is. Unknown keys are reported and left out.
    pub(crate) fn map(&self, report: &mut Report<'_>, keys: &[ConfigKey]) -> Option<Fields<'n>> {
        let known = || -> Vec<_> { keys.iter().map(|key| key.key).collect() };
        let Value::Map(entries) = &self.node.value else {
            let expected = match known()[..] {
                [] => "an empty mapping".to_owned(),
                [only] => format!("a mapping with the key `{only}`"),
                ref known => format!("a mapping with the keys {}", known.join(", ")),
            };
            self.mismatch(
                report,
                &expected,
                "write KEY: VALUE pairs, or remove the key",
            );
            return None;
        };
        for (key, _) in entries {
            if !keys.iter().any(|known| known.key == key.name) {
                self.unknown_key(report, key, &known());
            }
        }
        Some(Fields {
            path: self.path.clone(),
            span: self.span,
            entries,
        })
    }

    fn unknown_key(&self, report: &mut Report<'_>, key: &Key, known: &[&str]) {
        let name = Printable(&key.name);
        let expected = match known {
            [] => "no keys here".to_owned(),
            [only] => format!("`{only}`"),
            _ => format!("one of {}", known.join(", ")),
        };
        let help = match nearest(&key.name, known) {
            Some(near) => format!("write `{near}`"),
            None => "remove it".to_owned(),
        };
        let message = format!("unknown key `{name}`");
        report.add(&self.path, key.span, Fault::new(message, expected, help));
    }

    /// The mapping that the value is, whatever its keys.
    pub(crate) fn any_map(&self, report: &mut Report<'_>, expected: &str) {
        if !matches!(self.node.value, Value::Map(_)) {
            self.mismatch(
                report,
                expected,
                "write KEY: VALUE pairs, or remove the key",
            );
        }
    }

    /// The entries of the mapping that the value is, whatever its keys.
    pub(crate) fn entries(
        &self,
        report: &mut Report<'_>,
        expected: &str,
    ) -> Vec<(String, Field<'n>)> {
        self.any_map(report, expected);
        let Value::Map(entries) = &self.node.value else {
            return Vec::new();
        };
        let entry = |(key, node): &'n (Key, Node)| {
            let field = Field {
                path: format!("{}.{}", self.path, key.name),
                span: key.span,
                node,
            };
            (key.name.clone(), field)
        };
        entries.iter().map(entry).collect()
    }

    /// The elements of the list that the value is.
    pub(crate) fn list(&self, report: &mut Report<'_>, expected: &str) -> Option<Vec<Field<'n>>> {
        let Value::List(items) = &self.node.value else {
            self.mismatch(
                report,
                expected,
                "write the elements in brackets, or one a line after `- `",
            );
            return None;
        };
        let element = |(index, node): (usize, &'n Node)| Field {
            path: format!("{}[{index}]", self.path),
            span: node.span,
            node,
        };
        Some(items.iter().enumerate().map(element).collect())
    }

    /// Whether the value is a list.
    pub(crate) fn is_list(&self) -> bool {
        matches!(self.node.value, Value::List(_))
    }

    /// Whether the value is a mapping.
    pub(crate) fn is_map(&self) -> bool {
        matches!(self.node.value, Value::Map(_))
    }

    /// The text that the value is, if it is one; nothing is reported.
    pub(crate) fn plain_text(&self) -> Option<&'n str> {
        match &self.node.value {
            Value::Scalar(text) => Some(text),
            _ => None,
        }
    }

    /// The text that the value is; a number counts as its text.
    pub(crate) fn text(
        &self,
        report: &mut Report<'_>,
        expected: &str,
        help: &str,
    ) -> Option<&'n str> {
        if let Value::Scalar(text) = &self.node.value {
            return Some(text);
        }
        self.mismatch(report, expected, help);
        None
    }

    /// The value of one of several words.
    pub(crate) fn word<T: Copy>(&self, report: &mut Report<'_>, words: &[(&str, T)]) -> Option<T> {
        let names: Vec<_> = words.iter().map(|(name, _)| *name).collect();
        let choice = match names[..] {
            [only] => format!("`{only}`"),
            _ => format!("one of {}", names.join(", ")),
        };
        let help = format!("write {choice}");
        let text = self.text(report, &choice, &help)?;
        let found = words.iter().find(|(name, _)| *name == text);
        if found.is_none() {
            let near = nearest(text, &names).map(|near| format!("write `{near}`"));
            self.mismatch(report, &choice, &near.unwrap_or(help));
        }
        found.map(|(_, value)| *value)
    }

    /// The whole number, decimal or hexadecimal, that the value is.
    pub(crate) fn integer(
        &self,
        report: &mut Report<'_>,
        range: RangeInclusive<u64>,
        what: &str,
    ) -> Option<u64> {
        let expected = format!("{what}, {} to {}", range.start(), range.end());
        let help = format!(
            "write a whole number from {} to {}",
            range.start(),
            range.end()
        );
        let text = self.text(report, &expected, &help)?;
        let number = whole_number(text).filter(|number| range.contains(number));
        if number.is_none() {
            self.mismatch(report, &expected, &help);
        }
        number
    }

    /// The written quantity that the value is, above zero.
    pub(crate) fn quantity(
        &self,
        report: &mut Report<'_>,
        read: fn(&str) -> Result<u64, UnitError>,
        example: &str,
    ) -> Option<u64> {
        let expected = "a number with a unit";
        let text = self.text(report, expected, &format!("write for example {example}"))?;
        match read(text) {
            Ok(0) => {
                let help = format!("write for example {example}, or remove the key");
                self.mismatch(report, "more than zero", &help);
                None
            }
            Ok(value) => Some(value),
            Err(error) => {
                self.unit_fault(report, error);
                None
            }
        }
    }

    /// Reports a text that is no quantity.
    pub(crate) fn unit_fault(&self, report: &mut Report<'_>, error: UnitError) {
        self.fault(
            report,
            Fault::new(error.found, error.expected, error.remedy),
        );
    }
}

impl Fields<'static> {
    /// A mapping without any key.
    pub(crate) const NONE: Self = Self {
        path: String::new(),
        span: Span::START,
        entries: &[],
    };
}

impl<'n> Fields<'n> {
    /// The value of a key, where it is given.
    pub(crate) fn get(&self, key: &str) -> Option<Field<'n>> {
        let (name, node) = self.entries.iter().find(|(name, _)| name.name == key)?;
        let span = match node.value {
            Value::Scalar(_) => node.span,
            Value::Null | Value::List(_) | Value::Map(_) => name.span,
        };
        Some(Field {
            path: self.path_of(key),
            span,
            node,
        })
    }

    /// The value of a key that must be given.
    pub(crate) fn required(
        &self,
        report: &mut Report<'_>,
        key: &str,
        expected: &str,
        example: &str,
    ) -> Option<Field<'n>> {
        let field = self.get(key);
        if field.is_none() {
            let message = format!("`{key}` is missing");
            let help = format!("add `{key}: {example}`");
            report.add(&self.path, self.span, Fault::new(message, expected, help));
        }
        field
    }

    /// `node` as the value of a key that is not given.
    pub(crate) fn stand_in<'m>(&self, key: &str, node: &'m Node) -> Field<'m> {
        Field {
            path: self.path_of(key),
            span: self.span,
            node,
        }
    }

    fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.path)
        }
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
