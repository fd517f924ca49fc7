//! The files that a chain file names.
//!
//! This crate does no I/O. The caller reads the files with its own rights and passes the contents.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

/// Returns the contents of files that a chain file names.
pub trait FileResolver {
    /// Returns the text of the file at `path`, which is the path in the chain file. Relative paths
    /// start at the chain file's directory. The error is the reason.
    fn read(&self, path: &str) -> Result<String, String>;

    /// Returns the bytes of the file at `path`, for files that need not be text.
    fn read_bytes(&self, path: &str) -> Result<Vec<u8>, String> {
        self.read(path).map(String::into_bytes)
    }
}

/// The contents of a file for JSON: text unchanged, other bytes as base64 (RFC 4648, section 4).
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum FileContents {
    /// UTF-8.
    Text(String),
    /// Other bytes.
    Binary {
        /// The bytes as base64.
        base64: String,
    },
}

/// Hides the contents, which may be keys.
impl fmt::Debug for FileContents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text(_) => "Text(..)",
            Self::Binary { .. } => "Binary(..)",
        })
    }
}

impl From<Vec<u8>> for FileContents {
    fn from(bytes: Vec<u8>) -> Self {
        String::from_utf8(bytes).map_or_else(
            |error| Self::Binary {
                base64: STANDARD.encode(error.as_bytes()),
            },
            Self::Text,
        )
    }
}

const MISSING: &str = "there is no such file, or it cannot be read";

/// Text files by their path in the chain file.
impl FileResolver for BTreeMap<String, String> {
    fn read(&self, path: &str) -> Result<String, String> {
        self.get(path).cloned().ok_or_else(|| MISSING.to_owned())
    }
}

/// Files by their path in the chain file.
impl FileResolver for BTreeMap<String, FileContents> {
    fn read(&self, path: &str) -> Result<String, String> {
        match self.get(path) {
            Some(FileContents::Text(text)) => Ok(text.clone()),
            Some(FileContents::Binary { .. }) => Err("it is not text (UTF-8)".to_owned()),
            None => Err(MISSING.to_owned()),
        }
    }

    fn read_bytes(&self, path: &str) -> Result<Vec<u8>, String> {
        match self.get(path) {
            Some(FileContents::Text(text)) => Ok(text.clone().into_bytes()),
            Some(FileContents::Binary { base64 }) => STANDARD
                .decode(base64)
                .map_err(|error| format!("its base64 is broken: {error}")),
            None => Err(MISSING.to_owned()),
        }
    }
}

/// Reads a text file without a UTF-8 byte order mark, which some editors write at the start.
///
/// # Errors
/// The resolver cannot read the file, or the file is not text. The error is the reason.
pub(crate) fn read_text(files: &dyn FileResolver, path: &str) -> Result<String, String> {
    let mut text = files.read(path)?;
    if text.starts_with('\u{feff}') {
        text.remove(0);
    }
    Ok(text)
}

/// Refuses every file; for chain files that name no file.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoFiles;

impl FileResolver for NoFiles {
    fn read(&self, _: &str) -> Result<String, String> {
        Err("files are not available here".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_of_any_bytes_round_trip_through_json() {
        for bytes in [&b"rules: []"[..], &[], &[0, 0xff, 0x80, 7]] {
            let file = FileContents::from(bytes.to_vec());
            let json = serde_json::to_string(&BTreeMap::from([("a", file)])).unwrap();
            let files: BTreeMap<String, FileContents> = serde_json::from_str(&json).unwrap();
            assert_eq!(files.read_bytes("a").as_deref(), Ok(bytes), "{json}");
            let text = String::from_utf8(bytes.to_vec());
            assert_eq!(files.read("a").ok(), text.ok(), "{json}");
            assert!(files.read("b").is_err() && files.read_bytes("b").is_err());
        }
        // A client may send text as a plain string.
        let files: BTreeMap<String, FileContents> = serde_json::from_str(r#"{"a": "b"}"#).unwrap();
        assert_eq!(files.read("a").as_deref(), Ok("b"));
        let broken = r#"{"a": {"base64": "?"}}"#;
        let files: BTreeMap<String, FileContents> = serde_json::from_str(broken).unwrap();
        assert!(files.read_bytes("a").is_err());
    }

    #[test]
    fn a_text_file_is_read_without_its_byte_order_mark() {
        let marked = "\u{feff}a\u{feff}b";
        let file = FileContents::from(marked.as_bytes().to_vec());
        let files = BTreeMap::from([("a".to_owned(), file)]);
        assert_eq!(read_text(&files, "a").as_deref(), Ok("a\u{feff}b"));
        // A binary file may start with the same bytes.
        assert_eq!(files.read_bytes("a").as_deref(), Ok(marked.as_bytes()));
    }
}
