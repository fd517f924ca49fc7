//! Mappings of the chain file as structs: what each key is called, takes and means is said once.

pub(crate) mod address;
pub(crate) mod field;
mod key;
pub(crate) mod list_file;
pub(crate) mod matching;
pub(crate) mod name;
pub(crate) mod words;

use crate::error::{Report, Span};
use crate::printable::Printable;
use crate::units;
use crate::yaml::{Node, Value};
use field::{Field, Fields};
pub(crate) use key::{BOOLEAN, DURATION, FILE, FLOWS, REVERSE_OF, TEXT, integer};
pub use key::{ConfigKey, ValueType};

/// A value that a key of the chain file may have.
pub(crate) trait Readable: Sized {
    /// Reads it as `key` describes it; what is wrong with it is reported.
    fn read(field: &Field<'_>, key: &ConfigKey) -> Option<Self>;
}

impl Fields<'_> {
    /// The value of a key. Where the key is not given it is the key's default, else the type's, as it is where the value is faulty.
    pub(crate) fn value<T: Readable + Default>(&self, key: &ConfigKey) -> T {
        let given = self.get(key.key);
        let value = match &given {
            Some(field) => T::read(field, key),
            None => key.default.and_then(|text| {
                let node = Node {
                    span: Span::START,
                    value: Value::Scalar(text.to_owned()),
                };
                T::read(&Field::top(&node, &Report::new("", text)), key)
            }),
        };
        value.unwrap_or_default()
    }

    /// The value of one of these keys, as [`Self::value`] gives it.
    pub(crate) fn of<T: Readable + Default>(&self, keys: &[ConfigKey], name: &str) -> T {
        let key = keys.iter().find(|key| key.key == name);
        key.map_or_else(T::default, |key| self.value(key))
    }
}

/// The whole number that a value stands for, in the unit that the key's type has.
fn number(field: &Field<'_>, key: &ConfigKey) -> Option<u64> {
    let example = key.hint.or(key.default).unwrap_or_default();
    match key.value {
        ValueType::Integer { min, max } => field.integer(min..=max, example),
        ValueType::Cpu => field.quantity(&units::CPU, example),
        ValueType::Memory => field.quantity(&units::MEMORY, example),
        ValueType::Percent => {
            const PPM_PER_PERCENT: f64 = 10_000.0;
            let percent = percent(field, example)?;
            Some((percent * PPM_PER_PERCENT).round() as u64)
        }
        ValueType::Number { max } => millionths(field, max).map(u64::from),
        _ => field.quantity(&units::DURATION, example),
    }
}

/// A percentage, as the number before the sign.
pub(crate) fn percent(field: &Field<'_>, example: &str) -> Option<f64> {
    field.unit(units::parse_percent, "a percentage (0% to 100%)", example)
}

/// Numbers with decimals are kept in so many parts of one.
pub(crate) const PARTS: u32 = 1_000_000;

/// A number with up to six decimals in millionths, read exactly.
fn millionths(field: &Field<'_>, max: u32) -> Option<u32> {
    const HELP: &str = "write for example 0.25, which is one packet for four";
    let expected = format!("a number from 0 to {max} with up to six decimals");
    field.parsed(&expected, HELP, |text| {
        let parts = parts(text).filter(|&parts| parts <= max * PARTS);
        parts.ok_or_else(|| format!("found `{}`", Printable(text)))
    })
}

fn parts(text: &str) -> Option<u32> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let is_plain = |digits: &str| {
        !digits.is_empty() && digits.len() <= 6 && digits.bytes().all(|b| b.is_ascii_digit())
    };
    if !is_plain(whole) || !is_plain(decimals) {
        return None;
    }
    let millionths: u32 = format!("{decimals:0<6}").parse().ok()?;
    let whole: u32 = whole.parse().ok()?;
    whole.checked_mul(PARTS)?.checked_add(millionths)
}

macro_rules! readable_numbers {
    ($($type:ty),*) => { $(
        impl Readable for $type {
            fn read(field: &Field<'_>, key: &ConfigKey, ) -> Option<Self> {
                Self::try_from(number(field, key)?).ok()
            }
        }
    )* };
}
readable_numbers!(u8, u16, u32, u64);

impl Readable for bool {
    fn read(field: &Field<'_>, _: &ConfigKey) -> Option<Self> {
        field.word(&[("true", true), ("false", false)])
    }
}

/// A name ([`name::label`]).
impl Readable for String {
    fn read(field: &Field<'_>, _: &ConfigKey) -> Option<Self> {
        name::label(field)
    }
}

impl<T: Readable> Readable for Option<T> {
    fn read(field: &Field<'_>, key: &ConfigKey) -> Option<Self> {
        T::read(field, key).map(Some)
    }
}

/// Defines a struct that a mapping of the chain file becomes. Each field stands behind its key, below what `myelin functions` says of
/// the key, and before the type of its value: `"timeout" timeout_ns: u64 = DURATION.or("120s");`.
///
/// A field is read by its Rust type ([`Readable`]), or by the function behind `from`, which is given the whole mapping. Keys behind `with`
/// have no field of their own: such a function reads them.
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

            /// Reads the mapping; what is wrong with it is reported, and then the value says nothing.
            pub(crate) fn of(fields: &$crate::keys::field::Fields<'_>) -> Self {
                Self {
                    $($field: $crate::keys::config!(@field fields, $value.named($key, "") $(, $from)?),)*
                }
            }
        }

        /// What a file need not say.
        impl Default for $name {
            fn default() -> Self {
                let report = $crate::error::Report::new("", "");
                Self::of(&$crate::keys::field::Fields::none(&report))
            }
        }

        impl $crate::keys::Readable for $name {
            fn read(
                field: &$crate::keys::field::Field<'_>,
                _: &$crate::keys::ConfigKey,
            ) -> Option<Self> {
                field.map(Self::KEYS).map(|fields| Self::of(&fields))
            }
        }
    };
    (@field $fields:ident, $key:expr) => { $fields.value(const { &$key }) };
    (@field $fields:ident, $key:expr, $from:path) => { $from($fields) };
}
pub(crate) use config;

/// Defines the keys of a mapping of the chain file that no struct has the fields of.
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
    fn decimals_are_read_exactly() {
        for (text, expected) in [
            ("0.25", 250_000),
            ("1", 1_000_000),
            ("0.333333", 333_333),
            ("0", 0),
            ("4.0", 4_000_000),
            ("0.000001", 1),
        ] {
            assert_eq!(parts(text), Some(expected), "{text}");
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
            assert_eq!(parts(text), None, "{text}");
        }
        assert_eq!(parts("999999"), None, "no overflow");
    }
}
