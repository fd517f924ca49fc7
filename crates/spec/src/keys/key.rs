//! What a key of the chain file takes and means, as data.

use std::fmt;

use serde::Serialize;

/// A key of a mapping in the chain file, such as a kind's configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ConfigKey {
    /// Its name.
    pub key: &'static str,
    /// What its value is.
    #[serde(rename = "type")]
    pub value: ValueType,
    /// Whether it must be given.
    pub required: bool,
    /// Its value when it is not given, as it would be written.
    pub default: Option<&'static str>,
    /// What it is for.
    pub doc: &'static str,
    /// In errors: what an integer counts, or a value as an example where the default is none.
    #[serde(skip)]
    pub(crate) hint: Option<&'static str>,
}

impl ConfigKey {
    /// A key that need not be given and has no default.
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

    /// The same that must be given.
    pub(crate) const fn required(mut self) -> Self {
        self.required = true;
        self
    }

    /// The same with a default.
    pub(crate) const fn or(mut self, default: &'static str) -> Self {
        self.default = Some(default);
        self
    }

    /// The same with another example in errors.
    pub(crate) const fn like(mut self, example: &'static str) -> Self {
        self.hint = Some(example);
        self
    }

    /// The same under a name, with what it is for.
    pub(crate) const fn named(mut self, key: &'static str, doc: &'static str) -> Self {
        self.key = key;
        self.doc = doc.trim_ascii_start();
        self
    }
}

/// What the value of a configuration key is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ValueType {
    /// A whole number, decimal or hexadecimal.
    Integer {
        /// The least.
        min: u64,
        /// The greatest.
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
    /// A list of addresses.
    Addresses,
    /// A port or a range of ports.
    Ports,
    /// A written time.
    Duration,
    /// A written percentage.
    Percent,
    /// A program and its arguments.
    Command,
    /// Variables and their values.
    Environment,
    /// The name of a function.
    Function,
    /// The path of a file, relative to the chain file's directory.
    File,
    /// The same of a file that holds secrets: nobody but its owner may have access to it.
    SecretFile,
    /// A list of patterns.
    Patterns(#[serde(skip)] &'static [ConfigKey]),
    /// Where copies of packets go.
    Mirror(#[serde(skip)] &'static [ConfigKey]),
    /// A decimal number from 0 on, with up to six decimals.
    Number {
        /// The greatest.
        max: u32,
    },
    /// A written share of processors.
    Cpu,
    /// A written amount of memory.
    Memory,
    /// A text of another form, which the key describes.
    Text,
    /// A text, or a list of texts, each as the key describes.
    TextOrList,
    /// A mapping with these keys.
    Map(&'static [ConfigKey]),
    /// A mapping with any keys.
    AnyMap,
    /// A text, or a mapping with these keys.
    TextOrMap(&'static [ConfigKey]),
    /// The functions of a chain.
    Functions,
}

/// What such a value looks like.
impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (words, keys): (_, &[ConfigKey]) = match self {
            Self::Integer { min, max } => return write!(f, "{min} to {max}"),
            Self::Number { max } => return write!(f, "number, 0 to {max}"),
            Self::Choice(words) => return f.write_str(&words.join(" | ")),
            Self::Rules(keys) => ("list of rules: ", keys),
            Self::Backends(keys) => ("list of backends: ", keys),
            Self::Routes(keys) => ("list of routes: ", keys),
            Self::Patterns(keys) => ("list of patterns: ", keys),
            Self::Mirror(keys) | Self::Map(keys) | Self::TextOrMap(keys) => ("", keys),
            Self::Addresses => ("list of addresses", &[]),
            Self::Ports => ("port or \"FROM-TO\"", &[]),
            Self::Duration => ("time", &[]),
            Self::Command => ("list: program, arguments", &[]),
            Self::Environment | Self::AnyMap => ("NAME: VALUE pairs", &[]),
            Self::Function => ("name of a function", &[]),
            Self::File => ("path of a file", &[]),
            Self::SecretFile => ("path of a file that only its owner has access to", &[]),
            Self::Percent => ("percentage, such as 5%", &[]),
            Self::Cpu => ("share of the processor, such as 0.5cores", &[]),
            Self::Memory => ("size, such as 256MiB", &[]),
            Self::Text | Self::TextOrList => ("text", &[]),
            Self::Functions => ("list of functions", &[]),
        };
        let names: Vec<_> = keys.iter().map(|key| key.key).collect();
        write!(f, "{words}{}", names.join(", "))
    }
}

/// A written time.
pub(crate) const DURATION: ConfigKey = ConfigKey::new(ValueType::Duration);
/// A key of any text.
pub(crate) const TEXT: ConfigKey = ConfigKey::new(ValueType::Text);
/// The path of a file.
pub(crate) const FILE: ConfigKey = ConfigKey::new(ValueType::File);
/// Yes or no.
pub(crate) const BOOLEAN: ConfigKey = ConfigKey::new(ValueType::Choice(&["true", "false"]));

/// A whole number; `what` says in errors what it counts.
pub(crate) const fn integer(min: u64, max: u64, what: &'static str) -> ConfigKey {
    ConfigKey::new(ValueType::Integer { min, max }).like(what)
}

/// The bound of a table of flows.
pub(crate) const FLOWS: ConfigKey = integer(1, 1_048_576, "a number of flows").or("4096");

/// The key by which a function is the reply side of one in the reverse chain; it stands alone.
pub(crate) const REVERSE_OF: ConfigKey = ConfigKey::new(ValueType::Function).named(
    "reverseOf",
    "alone: this function undoes for the replies what that one does, a function of the chain that `spec.reverse` names; it has \
     that one's configuration and space, and shares its state",
);
