//! Enums whose values are words of the chain file.

/// Defines an enum by its words: the same word in a chain file, in JSON and in a table.
macro_rules! word_enum {
    (
        $(#[$attribute:meta])*
        pub enum $name:ident { $($(#[$variant_attribute:meta])* $variant:ident = $word:literal,)+ }
    ) => {
        $(#[$attribute])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, ::serde::Serialize, ::serde::Deserialize)]
        pub enum $name {
            $($(#[$variant_attribute])* #[serde(rename = $word)] $variant,)+
        }

        impl $name {
            /// Every word with its value.
            pub const WORDS: &[(&str, Self)] = &[$(($word, Self::$variant)),+];

            /// The word.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
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
