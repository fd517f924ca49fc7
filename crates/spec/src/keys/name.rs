//! Reads names of chains, owners, functions and interfaces.

use super::field::{Field, Fields};
use crate::printable::Printable;

/// The longest name, characters. Network namespaces have the names of chains.
pub const MAX_NAME: usize = 32;

/// The longest name of an interface: the kernel's IFNAMSIZ without the final zero byte.
const MAX_INTERFACE: usize = 15;

/// Reads a required name.
pub(crate) fn read_required(fields: &Fields<'_>, key: &str, example: &str) -> Option<String> {
    read_label(&fields.required(key, "a name", example)?)
}

/// Reads a DNS label (RFC 1123, section 2.1) of at most [`MAX_NAME`] characters.
pub(crate) fn read_label(field: &Field<'_>) -> Option<String> {
    if let Some(text) = field.node.text().filter(|text| is_label(text)) {
        return Some(text.to_owned());
    }
    let expected = format!("a name: 1 to {MAX_NAME} of a-z, 0-9 and `-`, no `-` first or last");
    let text = field.text(&expected, "write for example tactile")?;
    let message = if is_plain(text) && text.len() > MAX_NAME {
        format!(
            "the name `{}` has {} characters",
            Printable(text),
            text.len()
        )
    } else {
        format!("`{}` is not a name", Printable(text))
    };
    let valid: String = text
        .to_ascii_lowercase()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .take(MAX_NAME)
        .collect();
    let valid = Some(valid.trim_matches('-')).filter(|name| !name.is_empty());
    let help = format!("write for example {}", valid.unwrap_or("tactile"));
    field.fault(message, expected, help);
    None
}

/// Whether the text is a DNS label of at most [`MAX_NAME`] characters.
pub(crate) fn is_label(text: &str) -> bool {
    let ends_in_dash = text.starts_with('-') || text.ends_with('-');
    is_plain(text) && (1..=MAX_NAME).contains(&text.len()) && !ends_in_dash
}

fn is_plain(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes.all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-')
}

/// Reads the name of an interface.
pub(crate) fn read_interface(field: &Field<'_>) -> Option<String> {
    const EXPECTED: &str = "the name of an interface: 1 to 15 characters, no space, `/` or `:`";
    const HELP: &str = "write for example eth1; `ip link` lists the interfaces";
    field.parsed(EXPECTED, HELP, |text| {
        // The rule of the kernel's dev_valid_name().
        let is_valid = (1..=MAX_INTERFACE).contains(&text.len())
            && text != "."
            && text != ".."
            && !text
                .contains(|c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control());
        is_valid
            .then(|| text.to_owned())
            .ok_or_else(|| format!("`{}` cannot be the name of an interface", Printable(text)))
    })
}
