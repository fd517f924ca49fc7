//! Reads one pattern of a `dpi`: a literal with escapes, or `/REGEX/FLAGS`.

use std::fmt::Write;

use super::{DpiAction, MAX_PATTERN_BYTES, Pattern};
use crate::error::Fault;
use crate::printable::Printable;

/// A malformed pattern.
pub(super) struct BadPattern {
    /// The position of the fault in the pattern, characters.
    pub(super) at: usize,
    pub(super) fault: Fault,
}

/// Reads a pattern. With `nocase`, the letters of a literal match in either case. For a regular
/// expression, its flag `i` decides.
pub(super) fn parse(
    text: &str,
    line: usize,
    action: DpiAction,
    nocase: bool,
) -> Result<Pattern, BadPattern> {
    let expression = text.strip_prefix('/');
    let (regex, flags) = match expression {
        Some(rest) => regex(rest)?,
        None => (as_regex(&literal(text)?), ""),
    };
    Ok(Pattern {
        line,
        action,
        regex,
        literal: expression.is_none(),
        caseless: match expression {
            Some(_) => flags.contains('i'),
            None => nocase,
        },
        multiline: flags.contains('m'),
        dotall: flags.contains('s'),
    })
}

/// Parses a regular expression and its flags after the first slash.
fn regex(rest: &str) -> Result<(String, &str), BadPattern> {
    const LITERAL: &str =
        "for a literal, write a backslash before the first slash, as in \\/etc/passwd";
    let bad = |at, message: String, expected: &str, help: &str| {
        let fault = Fault::new(message, expected, help);
        Err(BadPattern { at, fault })
    };
    let Some((expression, flags)) = rest.rsplit_once('/') else {
        let message = "the regular expression has no end".to_owned();
        return bad(
            0,
            message,
            "/REGEX/FLAGS",
            &format!("add a slash at the end; {LITERAL}"),
        );
    };
    if let Some(flag) = flags.chars().find(|flag| !"ism".contains(*flag)) {
        let at = 2 + expression.chars().count();
        let message = format!("unknown flag `{}`", Printable(&flag.to_string()));
        let help = format!("remove it; {LITERAL}");
        return bad(
            at,
            message,
            "the flags i, s and m after the last slash",
            &help,
        );
    }
    if expression.is_empty() {
        let message = "the regular expression is empty".to_owned();
        return bad(
            0,
            message,
            "at least one byte",
            "remove the pattern, or write one",
        );
    }
    if expression.contains('\0') {
        let at = 1 + expression.chars().take_while(|c| *c != '\0').count();
        let message = "a null character".to_owned();
        return bad(
            at,
            message,
            "text without a null character",
            "write \\x00 instead",
        );
    }
    // Unicode flags require UTF-8 payloads, but payloads have any bytes.
    if expression.starts_with("(*") {
        let message = "a regular expression that begins with `(*`".to_owned();
        return bad(
            1,
            message,
            "none of PCRE's control verbs: payloads are bytes",
            "remove the verb",
        );
    }
    check_length(expression.len())?;
    Ok((expression.to_owned(), flags))
}

/// Parses the bytes of a literal.
fn literal(text: &str) -> Result<Vec<u8>, BadPattern> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let (byte, taken) = match rest.strip_prefix('\\') {
            Some(escape) => escaped(escape).ok_or_else(|| {
                let shown: String = rest.chars().take(4).collect();
                BadPattern {
                    at: text[..text.len() - rest.len()].chars().count(),
                    fault: Fault::new(
                        format!("unknown escape `{}`", Printable(&shown)),
                        "\\xNN with two hexadecimal digits, \\t, \\n, \\r, or a backslash before \\, / or #",
                        "write \\\\ for a backslash, and slashes around a regular expression",
                    ),
                }
            })?,
            None => (None, c.len_utf8()),
        };
        match byte {
            Some(byte) => bytes.push(byte),
            None => bytes.extend_from_slice(&rest.as_bytes()[..taken]),
        }
        rest = &rest[taken..];
    }
    if bytes.is_empty() {
        let fault = Fault::new(
            "the pattern is empty",
            "at least one byte",
            "remove the pattern, or write one",
        );
        return Err(BadPattern { at: 0, fault });
    }
    check_length(bytes.len())?;
    Ok(bytes)
}

/// Parses an escape after its backslash. Returns the byte, and the length with the backslash.
fn escaped(escape: &str) -> Option<(Option<u8>, usize)> {
    let byte = match escape.as_bytes() {
        [b'x', high, low, ..] => {
            let digit = |digit: u8| (digit as char).to_digit(16);
            let byte = digit(*high)? << 4 | digit(*low)?;
            return Some((Some(byte as u8), 4));
        }
        [b't', ..] => b'\t',
        [b'n', ..] => b'\n',
        [b'r', ..] => b'\r',
        [same @ (b'\\' | b'/' | b'#'), ..] => *same,
        _ => return None,
    };
    Some((Some(byte), 2))
}

/// Returns the regular expression that matches exactly these bytes.
fn as_regex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut regex, byte| {
        if byte.is_ascii_alphanumeric() {
            regex.push((*byte).into());
        } else {
            let _ = write!(regex, "\\x{byte:02x}"); // into a string, which cannot fail
        }
        regex
    })
}

fn check_length(len: usize) -> Result<(), BadPattern> {
    if len <= MAX_PATTERN_BYTES {
        return Ok(());
    }
    let fault = Fault::new(
        format!("a pattern of {len} bytes"),
        format!("at most {MAX_PATTERN_BYTES} bytes"),
        "search for a part of the pattern",
    );
    Err(BadPattern { at: 0, fault })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Result<String, (usize, String)> {
        match parse(text, 7, DpiAction::Mark, false) {
            Ok(pattern) => {
                assert_eq!((pattern.line, pattern.action), (7, DpiAction::Mark));
                Ok(pattern.regex)
            }
            Err(bad) => Err((bad.at, bad.fault.message)),
        }
    }

    #[test]
    fn literals_become_expressions_of_their_bytes() {
        for (text, regex) in [
            ("abc", "abc"),
            ("a.b", "a\\x2eb"),
            ("\\/etc/passwd", "\\x2fetc\\x2fpasswd"),
            ("\\# no comment", "\\x23\\x20no\\x20comment"),
            ("\\x00\\xFf\\\\", "\\x00\\xff\\x5c"),
            ("a\\r\\n\\t", "a\\x0d\\x0a\\x09"),
            ("\u{e9}", "\\xc3\\xa9"),
        ] {
            assert_eq!(read(text), Ok(regex.to_owned()), "{text}");
        }
    }

    #[test]
    fn regular_expressions_keep_their_text_and_flags() {
        let flags = |text: &str| {
            let pattern = parse(text, 1, DpiAction::Drop, false).ok().unwrap();
            (
                pattern.regex,
                [pattern.caseless, pattern.dotall, pattern.multiline],
            )
        };
        assert_eq!(flags("/a.b/"), ("a.b".to_owned(), [false; 3]));
        assert_eq!(flags("/a/b/i"), ("a/b".to_owned(), [true, false, false]));
        assert_eq!(
            flags("/\\/x$/ms"),
            ("\\/x$".to_owned(), [false, true, true])
        );
    }

    #[test]
    fn nocase_applies_to_literals_and_the_flag_i_to_expressions() {
        for (text, nocase, caseless) in [
            ("abc", false, false),
            ("abc", true, true),
            ("/abc/", true, false),
            ("/abc/i", false, true),
        ] {
            let pattern = parse(text, 1, DpiAction::Drop, nocase).ok().unwrap();
            assert_eq!(pattern.caseless, caseless, "{text}, {nocase}");
        }
    }

    #[test]
    fn faults_have_a_position_in_the_pattern() {
        let long = "x".repeat(MAX_PATTERN_BYTES + 1);
        for (text, at, words) in [
            ("", 0, "empty"),
            ("\u{e9}\\q", 1, "unknown escape `\\q`"),
            ("ab\\x4", 2, "unknown escape"),
            ("ab\\x4\u{e9}", 2, "unknown escape"),
            ("ab\\", 2, "unknown escape"),
            ("/abc", 0, "no end"),
            ("//", 0, "empty"),
            ("/etc/passwd", 5, "unknown flag `p`"),
            ("/a\0/", 2, "null"),
            ("/(*UTF8)a/", 1, "begins with `(*`"),
            (&long, 0, "1025 bytes"),
            (&format!("/{long}/"), 0, "1025 bytes"),
        ] {
            let (found, message) = read(text).unwrap_err();
            assert!(
                found == at && message.contains(words),
                "{text}: {found} {message}"
            );
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn literal_can_have_any_bytes(bytes in prop::collection::vec(any::<u8>(), 1..100)) {
            let escaped: Vec<_> = bytes.iter().map(|byte| format!("\\x{byte:02X}")).collect();
            let text = escaped.concat();
            prop_assert_eq!(literal(&text).ok(), Some(bytes));
        }

        #[test]
        fn no_pattern_panics(text in "([/\\\\xism#(*é]|[0-9a-f]|\\PC|[\\x00-\\x1f]){0,30}") {
            let _ = read(&text);
        }
    }
}
