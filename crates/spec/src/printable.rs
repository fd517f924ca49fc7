//! Makes the text of a file safe to print in a message.

use std::fmt;

/// Text from a file. When printed, control characters are escaped, and long text is cut.
pub(crate) struct Printable<'t>(pub(crate) &'t str);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const LONGEST: usize = 60;
        for (count, c) in self.0.chars().enumerate() {
            if count == LONGEST {
                return f.write_str("...");
            }
            if c.is_control() {
                write!(f, "{}", c.escape_default())?;
            } else {
                write!(f, "{c}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(Printable("a\x1b[2Jb\n").to_string(), "a\\u{1b}[2Jb\\n");
        let long = Printable(&"x".repeat(1000)).to_string();
        assert_eq!(long.len(), 63);
    }
}
