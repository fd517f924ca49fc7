//! Parses YAML into a tree whose nodes have locations.
//!
//! Deserialising directly into the chain types would stop at the first wrong value, and would lose
//! the spelling of numbers. So this module builds a small tree first. [`crate::read`] reads the
//! tree and reports all faults.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Error, Location, MessageFormatter, Spanned, UserMessageFormatter};

use crate::error::{Fault, Span};

/// The value of a node.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Null,
    /// The text of the file, without quotes.
    Scalar(String),
    List(Vec<Node>),
    Map(Vec<(Key, Node)>),
}

/// A key of a mapping.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Key {
    pub(crate) name: String,
    pub(crate) span: Span,
}

/// A node of the tree.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Node {
    pub(crate) span: Span,
    pub(crate) value: Value,
}

impl Node {
    /// Returns the text of a scalar; `None` for other nodes.
    pub(crate) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the value of `key` in a mapping; `None` if the node is no mapping or lacks the key.
    pub(crate) fn get(&self, key: &str) -> Option<&Node> {
        match &self.value {
            Value::Map(entries) => entries
                .iter()
                .find(|(name, _)| name.name == key)
                .map(|(_, node)| node),
            _ => None,
        }
    }
}

impl Node {
    /// Returns the node as JSON. Numbers and booleans become those of JSON if JSON spells them in
    /// the same way; all other scalars become strings.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        match &self.value {
            Value::Null => serde_json::Value::Null,
            Value::Scalar(text) => scalar_to_json(text),
            Value::List(items) => items.iter().map(Self::to_json).collect(),
            Value::Map(entries) => entries
                .iter()
                .map(|(key, node)| (key.name.clone(), node.to_json()))
                .collect(),
        }
    }
}

fn scalar_to_json(text: &str) -> serde_json::Value {
    let (integer, fraction) = (text.parse::<i64>(), text.parse::<f64>());
    match (text, integer, fraction) {
        ("true", ..) => true.into(),
        ("false", ..) => false.into(),
        (_, Ok(number), _) if number.to_string() == text => number.into(),
        (_, _, Ok(number)) if number.is_finite() && number.to_string() == text => number.into(),
        _ => text.into(),
    }
}

/// An error of YAML syntax: location and reason.
type SyntaxError = (Span, Fault);

/// Reads all documents of `text`. Skips empty documents.
pub(crate) fn load(text: &str) -> Result<Vec<Node>, SyntaxError> {
    let options = serde_saphyr::options! {
        // Enough for the longest list of routes, each a mapping with three keys.
        budget: serde_saphyr::budget! {
            max_nodes: 1_000_000,
            max_events: 1_200_000,
        },
        with_snippet: false,
        reject_unsupported_tags: true,
        non_finite_float_policy: serde_saphyr::NonFiniteFloatPolicy::AsString,
        strict_booleans: true,
    };
    let documents: Vec<Spanned<Raw>> =
        serde_saphyr::from_multiple_with_options(text, options).map_err(|e| syntax_error(&e))?;
    documents
        .into_iter()
        .map(|document| convert(document, text))
        .collect()
}

/// The tree that serde builds. [`Node`] adds the spelling of numbers and booleans, which serde does
/// not keep.
enum Raw {
    Null,
    Number,
    Text(String),
    List(Vec<Spanned<Raw>>),
    Map(Vec<(Spanned<Raw>, Spanned<Raw>)>),
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawVisitor)
    }
}

struct RawVisitor;

impl<'de> Visitor<'de> for RawVisitor {
    type Value = Raw;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any YAML value")
    }

    fn visit_unit<E>(self) -> Result<Raw, E> {
        Ok(Raw::Null)
    }

    fn visit_none<E>(self) -> Result<Raw, E> {
        Ok(Raw::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Raw, E> {
        Ok(Raw::Text(value.to_string()))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Raw, E> {
        Ok(Raw::Number)
    }

    fn visit_i128<E>(self, _: i128) -> Result<Raw, E> {
        Ok(Raw::Number)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Raw, E> {
        Ok(Raw::Number)
    }

    fn visit_u128<E>(self, _: u128) -> Result<Raw, E> {
        Ok(Raw::Number)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Raw, E> {
        Ok(Raw::Number)
    }

    fn visit_str<E>(self, value: &str) -> Result<Raw, E> {
        Ok(Raw::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Raw, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = seq.next_element()? {
            list.push(item);
        }
        Ok(Raw::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Raw, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Raw::Map(entries))
    }
}

fn convert(raw: Spanned<Raw>, text: &str) -> Result<Node, SyntaxError> {
    let written = source_text(raw.defined, text);
    let first_line = written.and_then(|written| written.lines().next());
    let span = span(
        raw.defined,
        first_line.map_or(1, |line| line.chars().count()),
    );
    let value = match raw.value {
        Raw::Null => Value::Null,
        Raw::Number => Value::Scalar(written.unwrap_or_default().to_owned()),
        Raw::Text(value) => Value::Scalar(value),
        Raw::List(items) => {
            let items: Result<_, _> = items.into_iter().map(|item| convert(item, text)).collect();
            Value::List(items?)
        }
        Raw::Map(entries) => {
            let entries: Result<_, _> = entries
                .into_iter()
                .map(|(key, node)| Ok((convert_key(key, text)?, convert(node, text)?)))
                .collect();
            Value::Map(entries?)
        }
    };
    Ok(Node { span, value })
}

fn convert_key(raw: Spanned<Raw>, text: &str) -> Result<Key, SyntaxError> {
    let Node { span, value } = convert(raw, text)?;
    match value {
        Value::Scalar(name) => Ok(Key { name, span }),
        Value::Null | Value::List(_) | Value::Map(_) => {
            let fault = Fault::new(
                "a key is not a plain word",
                "keys that are words, as in `name: tactile`",
                "write the key as one word, followed by a colon and a space",
            );
            Err((span, fault))
        }
    }
}

/// Returns the text of a node; `None` if the YAML parser does not give the byte range.
fn source_text(location: Location, text: &str) -> Option<&str> {
    let start = usize::try_from(location.span().byte_offset()?).ok()?;
    let len = usize::try_from(location.span().byte_len()?).ok()?;
    Some(text.get(start..start.checked_add(len)?)?.trim())
}

fn span(location: Location, width: usize) -> Span {
    Span {
        line: (location.line() as usize).max(1),
        column: (location.column() as usize).max(1),
        width: width.max(1),
    }
}

/// Parts of the parser's messages, each with its remedy.
const REMEDIES: &[(&str, &str)] = &[
    ("tab", "indent with spaces: replace each tab by two spaces"),
    (
        "unknown value",
        "define the anchor (`&name`) above its alias (`*name`), or write the value",
    ),
    (
        "mapping values",
        "put the value in quotes if it holds `: `, or begin the key on a new line",
    ),
    (
        "',' or '}'",
        "write a comma between the keys, or close the bracket `{` above with `}`",
    ),
    (
        "',' or ']'",
        "write a comma between the elements, or close the bracket `[` above with `]`",
    ),
    ("unclosed bracket", "close the bracket"),
    ("quote", "close the quote, on the same line"),
    (
        "block mapping",
        "indent the line like the other keys of its mapping",
    ),
    (
        "block collection",
        "begin the line with `- `, indented like the other elements",
    ),
];

fn syntax_error(error: &Error) -> SyntaxError {
    let error = error.without_snippet();
    let location = error.location().unwrap_or(Location::UNKNOWN);
    let fault = if let Error::DuplicateMappingKey { key, .. } = error {
        let message = key.as_ref().map_or_else(
            || "a key is given twice".to_owned(),
            |key| format!("the key `{key}` is given twice"),
        );
        let help = match key.as_deref() {
            Some("apiVersion") => {
                "write a line `---` before the second `apiVersion`, to begin another object"
            }
            _ => "remove one of the two keys, or put both values under one key",
        };
        Fault::new(message, "each key once in a mapping", help)
    } else {
        let message = UserMessageFormatter.format_message(error);
        let remedy = REMEDIES.iter().find(|(part, _)| message.contains(part));
        let usual = "check indentation, colons, brackets and quotes";
        let remedy = remedy.map_or(usual, |(_, remedy)| remedy);
        Fault::new(message, "well-formed YAML", remedy)
    };
    (span(location, 1), fault)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scalar<'n>(node: &'n Node, key: &str) -> (&'n str, Span) {
        let node = node.get(key).unwrap();
        match &node.value {
            Value::Scalar(scalar) => (scalar, node.span),
            other => panic!("{key}: {other:?}"),
        }
    }

    #[test]
    fn scalar_keeps_its_spelling_and_location() {
        let text = "a: 0x5a\nb: { c: 1.50, d: \"20\" }\né: ü\n";
        let documents = load(text).unwrap();
        let (a, span) = scalar(&documents[0], "a");
        assert_eq!(a, "0x5a");
        assert_eq!((span.line, span.column, span.width), (1, 4, 4));
        let b = documents[0].get("b").unwrap();
        assert_eq!(scalar(b, "c").0, "1.50");
        let (d, span) = scalar(b, "d");
        assert_eq!(d, "20");
        assert_eq!((span.line, span.column, span.width), (2, 18, 4));
        // Columns count characters, not bytes.
        assert_eq!(scalar(&documents[0], "é").1.column, 4);
    }

    #[test]
    fn empty_documents_are_skipped_and_their_lines_count() {
        let documents = load("a: 1\n---\n---\nb: 2\n").unwrap();
        assert_eq!(documents.len(), 2);
        assert_eq!(scalar(&documents[1], "b").1.line, 4);
    }

    #[test]
    fn alias_has_the_location_of_its_anchor() {
        let documents = load("a: &x 77\nb: *x\n").unwrap();
        let (b, span) = scalar(&documents[0], "b");
        assert_eq!((b, span.line, span.column), ("77", 1, 7));
    }

    #[test]
    fn syntax_errors_have_a_location() {
        let cases = [
            ("a: 1\na: 2\n", 2, 1, "the key `a` is given twice"),
            ("a:\n\tb: 1", 2, 2, "tabs"),
            ("? [a]\n: 3\n", 1, 3, "plain word"),
            ("a: !foo 3", 1, 9, "unsupported tag `!foo`"),
        ];
        for (text, line, column, words) in cases {
            let (span, fault) = load(text).unwrap_err();
            assert_eq!((span.line, span.column), (line, column), "{text}");
            assert!(fault.message.contains(words), "{fault}");
        }
    }

    #[test]
    fn a_document_becomes_json_with_the_spelling_of_its_numbers() {
        let text = "{ a: 12, b: 0x5a, c: 1e3, i: 99.9, n: .nan, m: -inf, d: true, e: [ ~, 007 ], f: 10ms }\n---\n\"g\": h\n";
        let documents = load(text).unwrap();
        let json: Vec<_> = documents.iter().map(Node::to_json).collect();
        let first = serde_json::json!({
            "a": 12, "b": "0x5a", "c": "1e3", "i": 99.9, "n": ".nan", "m": "-inf", "d": true, "e": [null, "007"], "f": "10ms"
        });
        assert_eq!(json, [first, serde_json::json!({ "g": "h" })]);
    }

    #[test]
    fn alias_bombs_and_deep_nesting_are_refused() {
        let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for level in 1..12 {
            let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
            let line = format!("a{level}: &a{level} [{aliases}]\n");
            bomb.push_str(&line);
        }
        assert!(load(&bomb).is_err());
        assert!(load(&"[".repeat(100_000)).is_err());
        assert!(load(&"- ".repeat(100_000)).is_err());
    }
}
