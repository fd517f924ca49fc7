//! Requests of programs that build chains and topologies in code: the contents of a text, and
//! leases.

use serde::{Deserialize, Serialize};

/// Request to parse a text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TextRequest {
    /// The file's name as the user gave it, for error messages.
    pub name: String,
    /// The YAML text.
    pub text: String,
}

/// The contents of a text. The agent has not checked the objects: `up` does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TextContents {
    /// The documents of the text as JSON.
    pub objects: Vec<serde_json::Value>,
    /// The files that the text names. The client reads them with the rights of its user, and sends
    /// them with the text.
    pub files: Vec<NamedFile>,
}

/// A file that a text names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NamedFile {
    /// The path in the text. A relative path starts at the directory of the text's file.
    pub path: String,
    /// Whether the file holds a secret. The client then refuses a file that other users can read.
    pub is_secret: bool,
}

/// The first and only line of `POST /v2/leases`. The lease ends when the connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Lease {
    /// The number that `up` takes as `lease`.
    pub lease: u64,
}
