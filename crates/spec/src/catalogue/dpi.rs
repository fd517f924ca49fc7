//! `dpi` in the catalogue.

use super::{Class, ConfigKey, DefaultCost, Kind, State, Touches, ValueType};

/// Keys of a pattern.
pub const PATTERN_KEYS: &[&str] = &["pattern", "action", "nocase"];

/// Keys of where copies go.
pub const MIRROR_KEYS: &[&str] = &["address", "port", "source", "mac", "sourceMac"];

/// `dpi`. Its cost is that of ten thousand literals; a hundred patterns take a third of it.
pub static DPI: Kind = Kind {
    name: "dpi",
    class: Class::Advanced,
    kernel: None,
    user: Some(DefaultCost {
        per_packet_ns: 25.0,
        per_byte_ns: 0.35,
    }),
    touches: Touches::Payload,
    state: State::None,
    guards: true,
    config: &[
        ConfigKey {
            key: "patterns",
            value: ValueType::Patterns,
            required: false,
            default: Some("[]"),
            doc: "what to look for: a literal, or /REGEX/FLAGS with the flags i (either case), s (. matches line breaks) and m (^ and $ \
                  match at line breaks); or { pattern: PATTERN, action: drop|mark|mirror, nocase: true|false }. A literal writes \\xNN for any byte, \
                  \\\\ for a backslash, \\/ for a slash at its beginning. At most 65536 with those of patternsFile, 1024 of them \
                  regular expressions, of 1024 bytes each",
        },
        ConfigKey {
            key: "patternsFile",
            value: ValueType::File,
            required: false,
            default: None,
            doc: "a text file with further patterns, one a line; empty lines are skipped, and those that begin with #",
        },
        ConfigKey {
            key: "action",
            value: ValueType::Choice(&["drop", "mark", "mirror"]),
            required: false,
            default: Some("drop"),
            doc: "what happens to a packet with a pattern that has no action of its own: it is dropped, or goes on with the \
                  DSCP `dscp`, or goes on while a copy goes to `mirror`. With several actions all apply",
        },
        ConfigKey {
            key: "nocase",
            value: ValueType::Choice(&["true", "false"]),
            required: false,
            default: Some("false"),
            doc: "whether the letters A to Z of a literal that says nothing of it match in either case; regular expressions have the \
                  flag i instead",
        },
        ConfigKey {
            key: "dscp",
            value: ValueType::Integer { min: 0, max: 63 },
            required: false,
            default: Some("8"),
            doc: "the DSCP of marked packets",
        },
        ConfigKey {
            key: "mirror",
            value: ValueType::Mirror,
            required: false,
            default: None,
            doc: "where copies go: { address: IP, port: PORT, source: IP, mac: MAC, sourceMac: MAC }; as TZSP over UDP, to port 37008 \
                  unless `port` says otherwise, out of the chain's egress; `source` is the address they come from; Ethernet \
                  addresses that are left out are the packet's",
        },
        ConfigKey {
            key: "fragments",
            value: ValueType::Choice(&["drop", "pass"]),
            required: false,
            default: Some("drop"),
            doc: "fragments are dropped, or inspected each by itself, so that a pattern spread over two of them is not seen",
        },
    ],
    description: "Looks for literals and regular expressions in the payload of each packet and drops, marks or mirrors those that \
                  hold one. Patterns that are spread over several packets are not seen. Needs libhs.so.5 (Hyperscan or \
                  Vectorscan) where it runs.",
    example: "{ name: ids, kind: dpi, config: { patterns: [ cmd.exe, '/select.+from/i' ] } }",
};
