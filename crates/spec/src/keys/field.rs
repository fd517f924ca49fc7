//! Reads the values of a YAML tree and logs their faults.

use std::fmt::Display;
use std::ops::RangeInclusive;

use super::ConfigKey;
use crate::error::{Fault, FaultLog, FileLocation, Span};
use crate::printable::Printable;
use crate::suggest::{nearest, synonym};
use crate::units::Dimension;
use crate::yaml::{Key, Node, Value};

/// A value with the path of its key, and the log for its faults.
#[derive(Clone)]
pub(crate) struct Field<'a> {
    /// The path from the top of the object, for example `spec.functions[1].config.key`.
    pub(crate) path: String,
    /// The span that errors mark: a scalar itself, or the key of any other value.
    pub(crate) span: Span,
    pub(crate) node: &'a Node,
    pub(crate) faults: &'a FaultLog<'a>,
}

/// A mapping with known keys only.
pub(crate) struct Fields<'a> {
    path: String,
    /// The span that an error about a missing key marks.
    pub(crate) span: Span,
    entries: &'a [(Key, Node)],
    pub(crate) faults: &'a FaultLog<'a>,
}

impl<'a> Field<'a> {
    /// Creates the field of a value without a key: a document.
    pub(crate) fn top(node: &'a Node, faults: &'a FaultLog<'a>) -> Self {
        Self {
            path: String::new(),
            span: node.span,
            node,
            faults,
        }
    }

    /// Logs a fault of this value: the message, the values expected, and the remedy.
    pub(crate) fn fault(
        &self,
        message: impl Into<String>,
        expected: impl Into<String>,
        help: impl Into<String>,
    ) {
        self.add(Fault::new(message, expected, help));
    }

    /// Logs a fault of this value.
    pub(crate) fn add(&self, fault: Fault) {
        self.faults.add(&self.path, self.span, fault);
    }

    /// Logs that the value has the wrong type.
    fn mismatch(&self, expected: &str, help: &str) {
        let found = match &self.node.value {
            Value::Null => "no value".to_owned(),
            Value::Scalar(text) => format!("`{}`", Printable(text)),
            Value::List(_) => "a list".to_owned(),
            Value::Map(_) => "a mapping".to_owned(),
        };
        self.fault(format!("found {found}"), expected, help);
    }

    /// Reads a mapping. Logs unknown keys and skips them.
    pub(crate) fn mapping(&self, keys: &[ConfigKey]) -> Option<Fields<'a>> {
        let known = || keys.iter().map(|key| key.key).collect::<Vec<_>>();
        let Value::Map(entries) = &self.node.value else {
            let known = known();
            self.any_mapping(&match known[..] {
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
                [] => "an empty mapping".to_owned(),
                _ => one_of(&known),
            };
            let message = format!("unknown key `{}`", Printable(&key.name));
            let help = match synonym(&key.name, &known) {
                Some(known) => format!("write `{known}`"),
                None => (self.faults.suggest_for_unknown_key.get())(&self.path, &key.name)
                    .unwrap_or_else(|| match nearest(&key.name, &known) {
                        Some(near) => format!("write `{near}`"),
                        None => "remove it".to_owned(),
                    }),
            };
            let fault = Fault::new(message, expected, help);
            self.faults.add(&self.path, key.span, fault);
        }
        Some(Fields {
            path: self.path.clone(),
            span: self.span,
            entries,
            faults: self.faults,
        })
    }

    /// Returns the value of a key of a mapping. Checks no other key.
    pub(crate) fn get(&self, key: &str) -> Option<Self> {
        let Value::Map(entries) = &self.node.value else {
            return None;
        };
        let fields = Fields {
            path: self.path.clone(),
            span: self.span,
            entries,
            faults: self.faults,
        };
        fields.get(key)
    }

    /// Reads a mapping with any keys.
    pub(crate) fn any_mapping(&self, expected: &str) -> Option<&'a [(Key, Node)]> {
        if let Value::Map(entries) = &self.node.value {
            return Some(entries);
        }
        let help = match self.node.value {
            Value::Null => "indent its keys below it, or remove the key",
            Value::List(_) => "remove the brackets or the `- `: write KEY: VALUE pairs",
            _ => "write KEY: VALUE pairs, or remove the key",
        };
        self.mismatch(expected, help);
        None
    }

    /// Reads a mapping with any keys, as names and fields.
    pub(crate) fn entries(&self, expected: &str) -> impl Iterator<Item = (&'a str, Field<'a>)> {
        let entry = |(key, node): &'a (Key, Node)| {
            let field = Field {
                path: format!("{}.{}", self.path, key.name),
                span: key.span,
                node,
                faults: self.faults,
            };
            (&*key.name, field)
        };
        self.any_mapping(expected).into_iter().flatten().map(entry)
    }

    /// Reads a list.
    pub(crate) fn list(&self, expected: &str) -> Option<Vec<Field<'a>>> {
        let Value::List(items) = &self.node.value else {
            // YAML reads `-name: f` as a mapping with the key `-name`.
            let without_space = match &self.node.value {
                Value::Map(entries) => entries.iter().find(|(key, _)| key.name.starts_with('-')),
                _ => None,
            };
            let Some((key, _)) = without_space else {
                let help = "write each element on a line after `- `, or all of them in brackets";
                self.mismatch(expected, help);
                return None;
            };
            let message = format!("no space after the `-` of `{}`", Printable(&key.name));
            let help = format!("write `- {}`", Printable(&key.name[1..]));
            self.faults
                .add(&self.path, key.span, Fault::new(message, expected, help));
            return None;
        };
        let element = |(index, node): (usize, &'a Node)| Field {
            path: format!("{}[{index}]", self.path),
            span: node.span,
            node,
            faults: self.faults,
        };
        Some(items.iter().enumerate().map(element).collect())
    }

    /// Reads a list, or one value as a list of one.
    pub(crate) fn one_or_list(&self, expected: &str) -> Vec<Field<'a>> {
        match &self.node.value {
            Value::List(_) => self.list(expected).unwrap_or_default(),
            _ => vec![self.clone()],
        }
    }

    /// Whether the value is a mapping.
    pub(crate) fn is_mapping(&self) -> bool {
        matches!(self.node.value, Value::Map(_))
    }

    /// Reads a text. Returns a number as the digits in the file.
    pub(crate) fn text(&self, expected: &str, help: impl Display) -> Option<&'a str> {
        let text = self.node.text();
        if text.is_none() {
            self.mismatch(expected, &help.to_string());
        }
        text
    }

    /// Reads a text and converts it with `read`; logs the message of an error.
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

    /// Reads one of several words.
    pub(crate) fn read_word<T: Copy>(&self, words: &[(&str, T)]) -> Option<T> {
        let text = self.node.text();
        let found = words.iter().find(|(name, _)| Some(*name) == text);
        if found.is_none() {
            let names: Vec<_> = words.iter().map(|(name, _)| *name).collect();
            let choice = one_of(&names);
            let near = text.and_then(|text| nearest(text, &names));
            let help = near.map_or("write one of these words".to_owned(), |near| {
                format!("write `{near}`")
            });
            self.mismatch(&choice, &help);
        }
        found.map(|(_, value)| *value)
    }

    /// Reads a whole number, decimal or hexadecimal.
    pub(crate) fn integer(&self, range: RangeInclusive<u64>, description: &str) -> Option<u64> {
        let number = self.node.text().and_then(whole_number);
        let number = number.filter(|number| range.contains(number));
        if number.is_none() {
            let (min, max) = (range.start(), range.end());
            let octal = self.node.text().and_then(|text| text.strip_prefix("0o"));
            let octal = octal.and_then(|digits| u64::from_str_radix(digits, 8).ok());
            let help = match octal {
                Some(number) => {
                    format!("write it in decimal ({number}) or hexadecimal ({number:#x})")
                }
                None => format!("write a whole number from {min} to {max}"),
            };
            self.mismatch(&format!("{description}, {min} to {max}"), &help);
        }
        number
    }

    /// Reads a quantity with a unit.
    pub(crate) fn unit<T>(
        &self,
        read: impl FnOnce(&str) -> Result<T, Fault>,
        expected: &str,
        example: &str,
    ) -> Option<T> {
        let text = self.text(expected, format_args!("write for example {example}"))?;
        read(text).map_err(|fault| self.add(fault)).ok()
    }

    /// Reads a quantity with a unit, above zero.
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
    /// Creates an empty mapping.
    pub(crate) fn empty(faults: &'a FaultLog<'a>) -> Self {
        Self {
            path: String::new(),
            span: Span::START,
            entries: &[],
            faults,
        }
    }

    /// Returns the field of a key, if the file has the key.
    pub(crate) fn get(&self, key: &str) -> Option<Field<'a>> {
        let (span, node) = self.entry(key)?;
        Some(Field {
            span,
            ..self.field_at_mapping(key, node)
        })
    }

    /// Returns the value of a key, and the span that errors mark.
    fn entry(&self, key: &str) -> Option<(Span, &'a Node)> {
        let (name, node) = self.entries.iter().find(|(name, _)| name.name == key)?;
        let span = match node.value {
            Value::Scalar(_) => node.span,
            Value::Null | Value::List(_) | Value::Map(_) => name.span,
        };
        Some((span, node))
    }

    /// Returns the field of a required key. Logs a fault if the file lacks the key.
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
            self.faults.add(&self.path, self.span, fault);
        }
        field
    }

    /// Returns the location of a key's value. If the key is absent, returns the mapping's location.
    pub(crate) fn place_of(&self, key: &str) -> FileLocation {
        let span = self.entry(key).map_or(self.span, |(span, _)| span);
        self.faults.place(span)
    }

    /// Creates a field for the key with the value `node`, at the location of the mapping.
    pub(crate) fn field_at_mapping<'m>(&self, key: &str, node: &'m Node) -> Field<'m>
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
            faults: self.faults,
        }
    }
}

/// Lists words for an error.
fn one_of(words: &[&str]) -> String {
    match words {
        [only] => format!("`{only}`"),
        _ => format!("one of {}", words.join(", ")),
    }
}

/// Parses a whole number in decimal or, after `0x`, in hexadecimal digits.
pub(crate) fn whole_number(text: &str) -> Option<u64> {
    let hexadecimal = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let (digits, radix) = hexadecimal.map_or((text, 10), |digits| (digits, 16));
    // `from_str_radix` accepts a sign.
    let plain = digits.bytes().all(|digit| digit.is_ascii_alphanumeric());
    u64::from_str_radix(digits, radix).ok().filter(|_| plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_are_decimal_or_hexadecimal() {
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
