//! Defines enums whose values are words of the chain file.

/// Defines an enum by its words. Chain files, JSON and tables use the same word.
macro_rules! word_enum {
    (
        $(#[$attribute:meta])*
        pub enum $name:ident { $($(#[$variant_attribute:meta])* $variant:ident = $word:literal,)+ }
    ) => {
        $(#[$attribute])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, ::serde::Serialize, ::serde::Deserialize)]
        #[cfg_attr(feature = "schema", derive(::schemars::JsonSchema))]
        pub enum $name {
            $($(#[$variant_attribute])* #[serde(rename = $word)] $variant,)+
        }

        impl $name {
            /// The words with their values.
            pub const WORDS: &[(&str, Self)] = &[$(($word, Self::$variant)),+];

            /// A key whose value is one of the words.
            #[allow(dead_code, reason = "not every such enum is the value of a key")]
            pub(crate) const KEY: $crate::keys::ConfigKey =
                $crate::keys::ConfigKey::new($crate::keys::ValueType::Choice(&[$($word),+]));

            /// Returns the word of this value.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }

        impl $crate::keys::Readable for $name {
            fn read(
                field: &$crate::keys::field::Field<'_>,
                _: &$crate::keys::ConfigKey,
            ) -> Option<Self> {
                field.read_word(Self::WORDS)
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}
pub(crate) use word_enum;
