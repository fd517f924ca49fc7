//! Descriptions of the keys of a chain file, as data.

use std::fmt;

use serde::Serialize;

/// A key of a mapping in the chain file, such as a kind's configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ConfigKey {
    /// Name of the key.
    pub key: &'static str,
    /// Type of the key's value.
    #[serde(rename = "type")]
    pub value: ValueType,
    /// Whether the mapping must have the key.
    pub required: bool,
    /// The value that applies without the key, in the syntax of a chain file.
    pub default: Option<&'static str>,
    /// Meaning of the key, for documents.
    pub doc: &'static str,
    /// For errors: the unit of an integer, or an example for another type without a default.
    #[serde(skip)]
    pub(crate) hint: Option<&'static str>,
}

impl ConfigKey {
    /// Creates an optional key without a default.
    pub(crate) const fn new(value: ValueType) -> Self {
        Self {
            key: "",
            value,
            required: false,
            default: None,
            doc: "",
            hint: None,
        }
    }

    /// Makes the key required.
    pub(crate) const fn required(mut self) -> Self {
        self.required = true;
        self
    }

    /// Sets the default.
    pub(crate) const fn with_default(mut self, default: &'static str) -> Self {
        self.default = Some(default);
        self
    }

    /// Sets the hint for errors.
    pub(crate) const fn with_hint(mut self, hint: &'static str) -> Self {
        self.hint = Some(hint);
        self
    }

    /// Sets the name and the meaning of the key.
    pub(crate) const fn named(mut self, key: &'static str, doc: &'static str) -> Self {
        self.key = key;
        self.doc = doc.trim_ascii_start();
        self
    }
}

/// Returns the keys and the keys of nested mappings, each with its path: `rules`, `rules[].action`.
pub fn flatten(keys: &'static [ConfigKey], parent: &str) -> Vec<(String, &'static ConfigKey)> {
    let with_nested = |key: &'static ConfigKey| {
        let path = format!("{parent}{}", key.key);
        let (list, nested) = key.value.nested();
        let nested = flatten(nested, &format!("{path}{list}."));
        std::iter::once((path, key)).chain(nested)
    };
    keys.iter().flat_map(with_nested).collect()
}

/// The type of a key's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ValueType {
    /// A whole number, decimal or hexadecimal.
    Integer {
        /// The least value.
        min: u64,
        /// The greatest value.
        max: u64,
    },
    /// One of several words.
    Choice(&'static [&'static str]),
    /// A list of firewall rules.
    Rules(#[serde(skip)] &'static [ConfigKey]),
    /// A list of routes.
    Routes(#[serde(skip)] &'static [ConfigKey]),
    /// A list of backends.
    Backends(#[serde(skip)] &'static [ConfigKey]),
    /// An address, or a list of addresses.
    Addresses,
    /// A port or a range of ports.
    Ports,
    /// A duration with a unit.
    Duration,
    /// A percentage.
    Percent,
    /// A program and its arguments.
    Command,
    /// Variables and their values.
    Environment,
    /// The name of a function.
    Function,
    /// The path of a file, relative to the chain file's directory.
    File,
    /// The path of a file with secrets: only its owner may have access to it.
    SecretFile,
    /// A list of patterns.
    Patterns(#[serde(skip)] &'static [ConfigKey]),
    /// The destination of mirrored packets.
    Mirror(#[serde(skip)] &'static [ConfigKey]),
    /// A decimal number from 0 on, with up to six decimals.
    Number {
        /// The greatest value.
        max: u32,
    },
    /// A share of the processor with a unit.
    Cpu,
    /// An amount of memory with a unit.
    Memory,
    /// A text. The key's meaning describes its form.
    Text,
    /// A text, or a list of texts. The key's meaning describes their form.
    TextOrList,
    /// A list of texts and lists of texts. The key's meaning describes their form.
    TextLists,
    /// A mapping with these keys.
    Map(&'static [ConfigKey]),
    /// A mapping with any keys.
    AnyMap,
    /// A text, or a mapping with these keys.
    TextOrMap(&'static [ConfigKey]),
    /// The functions of a chain, each a mapping with these keys.
    Functions(&'static [ConfigKey]),
    /// The hosts or switches of a topology, each a name or a mapping with these keys.
    Hosts(#[serde(skip)] &'static [ConfigKey]),
    /// The routers of a topology, each a mapping with these keys.
    Routers(#[serde(skip)] &'static [ConfigKey]),
    /// The links of a topology, each a mapping with these keys.
    Links(#[serde(skip)] &'static [ConfigKey]),
    /// The next parts of a part, each a mapping with these keys.
    Branches(#[serde(skip)] &'static [ConfigKey]),
    /// The two nodes that a link joins.
    Ends,
}

impl ValueType {
    /// Returns the suffix of the path and the nested keys: of the mapping itself, or with the
    /// suffix `[]` of each element of a list.
    pub fn nested(self) -> (&'static str, &'static [ConfigKey]) {
        match self {
            Self::Map(keys) | Self::Mirror(keys) | Self::TextOrMap(keys) => ("", keys),
            Self::Rules(keys)
            | Self::Routes(keys)
            | Self::Backends(keys)
            | Self::Patterns(keys)
            | Self::Hosts(keys)
            | Self::Routers(keys)
            | Self::Links(keys)
            | Self::Branches(keys)
            | Self::Functions(keys) => ("[]", keys),
            _ => ("", &[]),
        }
    }
}

/// The form of the value, with its units.
impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Integer { min, max } => return write!(f, "{min} to {max}"),
            Self::Number { max } => return write!(f, "0 to {max}, decimals"),
            Self::Choice(words) => return f.write_str(&words.join(" | ")),
            Self::Rules(_) => "list of rules",
            Self::Backends(_) => "list of backends",
            Self::Routes(_) => "list of routes",
            Self::Patterns(_) => "list of patterns",
            Self::Mirror(_) | Self::Map(_) => "mapping",
            Self::TextOrMap(_) => "text or mapping",
            Self::Addresses => "address, or a list",
            Self::Ports => "port or \"FROM-TO\"",
            Self::Duration => "duration: ns, us, ms, s",
            Self::Command => "list: program, arguments",
            Self::Environment | Self::AnyMap => "NAME: VALUE pairs",
            Self::Function => "name of a function",
            Self::File => "path of a file",
            Self::SecretFile => "path of a private file",
            Self::Percent => "percentage: 5%",
            Self::Cpu => "0.5cores, 500m",
            Self::Memory => "256MiB, 1GiB",
            Self::Text => "text",
            Self::TextOrList => "text, or a list",
            Self::TextLists => "list of texts or lists",
            Self::Functions(_) => "list of functions",
            Self::Hosts(_) => "list of names or mappings",
            Self::Routers(_) => "list of routers",
            Self::Links(_) => "list of links",
            Self::Branches(_) => "list of next parts",
            Self::Ends => "list of two names",
        })
    }
}

/// A duration with a unit.
pub(crate) const DURATION: ConfigKey = ConfigKey::new(ValueType::Duration);
/// A text.
pub(crate) const TEXT: ConfigKey = ConfigKey::new(ValueType::Text);
/// The path of a file.
pub(crate) const FILE: ConfigKey = ConfigKey::new(ValueType::File);
/// `true` or `false`.
pub(crate) const BOOLEAN: ConfigKey = ConfigKey::new(ValueType::Choice(&["true", "false"]));

/// Creates the key of a whole number. `description` names the number in errors.
pub(crate) const fn integer(min: u64, max: u64, description: &'static str) -> ConfigKey {
    ConfigKey::new(ValueType::Integer { min, max }).with_hint(description)
}

/// The size of a table of flows.
pub(crate) const FLOWS: ConfigKey = integer(1, 1_048_576, "a number of flows").with_default("4096");

/// The key that names the function to undo. It excludes all other keys of the configuration.
pub(crate) const REVERSE_OF: ConfigKey = ConfigKey::new(ValueType::Function).named(
    "reverseOf",
    "The function of the chain `spec.reverse` whose work this function undoes for the replies. \
     Excludes all other keys: configuration, space and state are those of the named function.",
);
