//! Names: of chains, owners, functions and interfaces.

use super::field::{Field, Fields};
use crate::chain::MAX_NAME;
use crate::error::{Fault, Report};
use crate::printable::Printable;

/// Longest name of an interface: the kernel's IFNAMSIZ without the closing zero.
const MAX_INTERFACE: usize = 15;

/// Reads a name that must be given.
pub(super) fn required(
    fields: &Fields<'_>,
    key: &str,
    example: &str,
    report: &mut Report<'_>,
) -> Option<String> {
    let field = fields.required(report, key, "a name", example)?;
    label(&field, report)
}

/// Reads a DNS label (RFC 1123, section 2.1), shorter than DNS allows.
pub(super) fn label(field: &Field<'_>, report: &mut Report<'_>) -> Option<String> {
    let expected =
        format!("a name of a-z, 0-9 and `-`, at most {MAX_NAME} characters, no `-` at either end");
    let text = field.text(report, &expected, "write for example tactile")?;
    let plain = text
        .bytes()
        .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-');
    if plain
        && !text.is_empty()
        && text.len() <= MAX_NAME
        && !text.starts_with('-')
        && !text.ends_with('-')
    {
        return Some(text.to_owned());
    }
    let message = if plain && text.len() > MAX_NAME {
        format!("`{}` has {} characters", Printable(text), text.len())
    } else {
        format!("`{}` is not a name", Printable(text))
    };
    let mended: String = text
        .to_ascii_lowercase()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .take(MAX_NAME)
        .collect();
    let mended = mended.trim_matches('-');
    let help = if mended.is_empty() {
        "write for example tactile".to_owned()
    } else {
        format!("write for example {mended}")
    };
    field.fault(report, Fault::new(message, expected, help));
    None
}

/// Reads the name of an interface.
pub(super) fn interface(field: &Field<'_>, report: &mut Report<'_>) -> Option<String> {
    const EXPECTED: &str = "the name of an interface, at most 15 characters";
    const HELP: &str = "write for example eth1; `ip link` lists the interfaces";
    let text = field.text(report, EXPECTED, HELP)?;
    // What the kernel's dev_valid_name() takes.
    let valid = (1..=MAX_INTERFACE).contains(&text.len())
        && text != "."
        && text != ".."
        && !text
            .chars()
            .any(|c| c == '/' || c == ':' || c.is_whitespace() || c.is_control());
    if valid {
        return Some(text.to_owned());
    }
    let message = format!("`{}` cannot be the name of an interface", Printable(text));
    field.fault(report, Fault::new(message, EXPECTED, HELP));
    None
}
