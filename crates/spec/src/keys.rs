//! Maps chain-file mappings to structs. One description of a key gives its name, type and meaning.

pub(crate) mod address;
pub(crate) mod cores;
pub(crate) mod field;
mod key;
pub(crate) mod list_file;
pub(crate) mod matching;
pub(crate) mod name;
pub(crate) mod words;

use crate::error::{FaultLog, Span};
use crate::printable::Printable;
use crate::units;
use crate::yaml::{Node, Value};
use field::{Field, Fields};
pub(crate) use key::{BOOLEAN, DURATION, FILE, FLOWS, REVERSE_OF, TEXT, integer};
pub use key::{ConfigKey, ValueType, flatten};

/// A Rust type that a key of the chain file can be read into.
pub(crate) trait Readable: Sized {
    /// Reads the value as `key` describes it, and logs its faults.
    fn read(field: &Field<'_>, key: &ConfigKey) -> Option<Self>;
}

impl Fields<'_> {
    /// Reads the value of a key. If the file lacks the key, returns the key's default. If there is
    /// no such default, or the value is faulty, returns the type's default.
    pub(crate) fn value<T: Readable + Default>(&self, key: &ConfigKey) -> T {
        let given = self.get(key.key);
        let value = match &given {
            Some(field) => T::read(field, key),
            None => key.default.and_then(|text| {
                let node = Node {
                    span: Span::START,
                    value: Value::Scalar(text.to_owned()),
                };
                T::read(&Field::top(&node, &FaultLog::new("", text)), key)
            }),
        };
        value.unwrap_or_default()
    }

    /// Reads the key `name` of `keys`, like [`Self::value`].
    pub(crate) fn read<T: Readable + Default>(&self, keys: &[ConfigKey], name: &str) -> T {
        let key = keys.iter().find(|key| key.key == name);
        key.map_or_else(T::default, |key| self.value(key))
    }
}

/// Reads a number in the base unit of the key's type.
fn read_number(field: &Field<'_>, key: &ConfigKey) -> Option<u64> {
    let example = key.hint.or(key.default).unwrap_or_default();
    match key.value {
        ValueType::Integer { min, max } => field.integer(min..=max, example),
        ValueType::Cpu => field.quantity(&units::CPU, example),
        ValueType::Memory => field.quantity(&units::MEMORY, example),
        ValueType::Percent => {
            const PPM_PER_PERCENT: f64 = 10_000.0;
            let percent = read_percent(field, example)?;
            Some((percent * PPM_PER_PERCENT).round() as u64)
        }
        ValueType::Number { max } => read_millionths(field, max).map(u64::from),
        _ => field.quantity(&units::DURATION, example),
    }
}

/// Reads a percentage and returns the number before the `%`.
pub(crate) fn read_percent(field: &Field<'_>, example: &str) -> Option<f64> {
    field.unit(units::parse_percent, "a percentage (0% to 100%)", example)
}

/// The factor of stored numbers: the parser stores a number with decimals in millionths.
pub(crate) const MILLIONTHS: u32 = 1_000_000;

/// Reads a number with up to six decimals, in millionths, without rounding.
fn read_millionths(field: &Field<'_>, max: u32) -> Option<u32> {
    const HELP: &str = "write for example 0.25: one packet for every four";
    let expected = format!("a number from 0 to {max} with up to six decimals");
    field.parsed(&expected, HELP, |text| {
        let number = parse_millionths(text).filter(|&number| number <= max * MILLIONTHS);
        number.ok_or_else(|| format!("found `{}`", Printable(text)))
    })
}

fn parse_millionths(text: &str) -> Option<u32> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let is_plain = |digits: &str| {
        !digits.is_empty() && digits.len() <= 6 && digits.bytes().all(|b| b.is_ascii_digit())
    };
    if !is_plain(whole) || !is_plain(decimals) {
        return None;
    }
    let millionths: u32 = format!("{decimals:0<6}").parse().ok()?;
    let whole: u32 = whole.parse().ok()?;
    whole.checked_mul(MILLIONTHS)?.checked_add(millionths)
}

macro_rules! readable_numbers {
    ($($type:ty),*) => { $(
        impl Readable for $type {
            fn read(field: &Field<'_>, key: &ConfigKey) -> Option<Self> {
                Self::try_from(read_number(field, key)?).ok()
            }
        }
    )* };
}
readable_numbers!(u8, u16, u32, u64);

impl Readable for bool {
    fn read(field: &Field<'_>, _: &ConfigKey) -> Option<Self> {
        field.read_word(&[("true", true), ("false", false)])
    }
}

/// A name ([`name::read_label`]).
impl Readable for String {
    fn read(field: &Field<'_>, _: &ConfigKey) -> Option<Self> {
        name::read_label(field)
    }
}

impl<T: Readable> Readable for Option<T> {
    fn read(field: &Field<'_>, key: &ConfigKey) -> Option<Self> {
        T::read(field, key).map(Some)
    }
}

/// Defines a struct for a mapping of the chain file. A field has the key's meaning as a doc
/// comment, the key, the field's name and Rust type, and the type of the key's value:
/// `"timeout" timeout_ns: u64 = DURATION.with_default("120s");`.
///
/// The field's Rust type reads the value ([`Readable`]), or the function after `from` reads it from
/// the whole mapping. Keys after `with` have no field; the function after `from` reads them.
macro_rules! config {
    (
        $(#[$attribute:meta])*
        $vis:vis struct $name:ident { $(
            $(#[doc = $doc:literal])*
            $key:literal $field:ident: $type:ty = $value:expr $(, from $from:path)? $(, with $also:expr)*;
        )* }
    ) => {
        $(#[$attribute])*
        #[derive(Debug, Clone, PartialEq, Eq, ::serde::Serialize, ::serde::Deserialize)]
        $vis struct $name {
            $($(#[doc = $doc])* pub $field: $type,)*
        }

        impl $name {
            /// The keys of the mapping.
            pub(crate) const KEYS: &'static [$crate::keys::ConfigKey] = &[
                $($value.named($key, concat!($($doc),*)), $($also,)*)*
            ];

            /// Reads the mapping and logs its faults. After a fault, the returned value is
            /// meaningless.
            pub(crate) fn from_fields(fields: &$crate::keys::field::Fields<'_>) -> Self {
                Self {
                    $($field: $crate::keys::config!(@field fields, $value.named($key, "") $(, $from)?),)*
                }
            }
        }

        /// The values of an empty mapping.
        impl Default for $name {
            fn default() -> Self {
                let faults = $crate::error::FaultLog::new("", "");
                Self::from_fields(&$crate::keys::field::Fields::empty(&faults))
            }
        }

        impl $crate::keys::Readable for $name {
            fn read(
                field: &$crate::keys::field::Field<'_>,
                _: &$crate::keys::ConfigKey,
            ) -> Option<Self> {
                field.mapping(Self::KEYS).map(|fields| Self::from_fields(&fields))
            }
        }
    };
    (@field $fields:ident, $key:expr) => { $fields.value(const { &$key }) };
    (@field $fields:ident, $key:expr, $from:path) => { $from($fields) };
}
pub(crate) use config;

/// Defines the keys of a mapping without a struct.
macro_rules! keys {
    ($(#[$attribute:meta])* $name:ident { $($(#[doc = $doc:literal])* $key:literal = $value:expr;)* }) => {
        $(#[$attribute])*
        pub(crate) const $name: &[$crate::keys::ConfigKey] =
            &[$($value.named($key, concat!($($doc),*))),*];
    };
}
pub(crate) use keys;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_not_rounded() {
        for (text, expected) in [
            ("0.25", 250_000),
            ("1", 1_000_000),
            ("0.333333", 333_333),
            ("0", 0),
            ("4.0", 4_000_000),
            ("0.000001", 1),
        ] {
            assert_eq!(parse_millionths(text), Some(expected), "{text}");
        }
        for text in [
            "",
            ".",
            ".5",
            "1.",
            "-1",
            "1e3",
            "25%",
            "0.1234567",
            "9999999",
            "a",
        ] {
            assert_eq!(parse_millionths(text), None, "{text}");
        }
        assert_eq!(parse_millionths("999999"), None, "no overflow");
    }
}
