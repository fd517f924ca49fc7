//! Parses `rate`, `burst` and `match` as arguments of a command, with the rules and the errors of a
//! chain file.

use std::fmt;

use myelin_packet::FragmentHandling;

use crate::error::{Fault, FaultLog, Span};
use crate::keys::field::Field;
use crate::keys::{Readable, TEXT};
use crate::printable::Printable;
use crate::yaml::{Key, Node, Value};
use crate::{Match, Sla};

/// The faults of arguments, one per line: argument, value found, values expected, remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArgumentErrors(Vec<String>);

impl fmt::Display for ArgumentErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl std::error::Error for ArgumentErrors {}

/// Reads a rate (`20kpps`, `100Mbit`, `20kpps,100Mbit`) and a burst (`32`, `64kbit`, `32,64kbit`).
/// All other values of the SLA are absent. [`Sla::profile`] adds the default burst.
///
/// # Errors
/// The rate or the burst is malformed, or the burst has no rate.
pub fn parse_profile(rate: &str, burst: Option<&str>) -> Result<Sla, ArgumentErrors> {
    let quantities = [Some(("rate", rate)), burst.map(|burst| ("burst", burst))];
    let entries = quantities.into_iter().flatten().map(|(name, text)| {
        let parts = text.split(',').map(|part| scalar(part.trim())).collect();
        (key(name), node(Value::List(parts)))
    });
    read(
        Value::Map(entries.collect()),
        FaultLog::new("", ""),
        |key| {
            // An argument is one line, so its name without the list index suffices.
            format!("--{}", key.split('[').next().unwrap_or(key))
        },
    )
}

/// Reads a match: `protocol=udp,destinationPort=9000`, with the keys of `spec.match`.
///
/// # Errors
/// A key or a value is malformed, or no packet can have all values.
pub fn parse_match(text: &str) -> Result<Match, ArgumentErrors> {
    let faults = FaultLog::new("", "");
    let add_fault = |found: String, help: &str| {
        let fault = Fault::new(found, "KEY=VALUE, joined by commas", help);
        faults.add("", Span::START, fault);
    };
    let mut entries: Vec<(Key, Node)> = Vec::new();
    for part in text.split(',') {
        let Some((name, value)) = part.split_once('=') else {
            let found = format!("`{}` has no `=`", Printable(part.trim()));
            add_fault(found, "write for example protocol=udp,destinationPort=9000");
            continue;
        };
        let name = name.trim();
        if entries.iter().any(|(key, _)| key.name == name) {
            let found = format!("`{}` is given twice", Printable(name));
            add_fault(found, "remove one of the two");
            continue;
        }
        entries.push((key(name), scalar(value.trim())));
    }
    read(Value::Map(entries), faults, |key| match key {
        "" => "--match".to_owned(),
        key => format!("--match {key}"),
    })
}

/// Formats a match as [`parse_match`] reads it; empty if it matches all packets.
pub fn format_match(matches: &Match) -> String {
    let fragments = match matches.fragments {
        FragmentHandling::Follow => None,
        FragmentHandling::Drop => Some("drop".to_owned()),
        FragmentHandling::Pass => Some("pass".to_owned()),
    };
    let entries = [
        (
            "protocol",
            matches.protocol.map(|number| number.to_string()),
        ),
        ("source", matches.source.map(|prefix| prefix.to_string())),
        (
            "destination",
            matches.destination.map(|prefix| prefix.to_string()),
        ),
        (
            "sourcePort",
            matches.source_port.map(|port| port.to_string()),
        ),
        (
            "destinationPort",
            matches.destination_port.map(|port| port.to_string()),
        ),
        ("fragments", fragments),
    ];
    let entries = entries
        .into_iter()
        .filter_map(|(key, value)| Some((key, value?)));
    let entries: Vec<_> = entries
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    entries.join(",")
}

fn key(name: &str) -> Key {
    Key {
        name: name.to_owned(),
        span: Span::START,
    }
}

fn scalar(text: &str) -> Node {
    node(Value::Scalar(text.to_owned()))
}

fn node(value: Value) -> Node {
    Node {
        span: Span::START,
        value,
    }
}

/// Reads `value`. For errors, `argument` maps a key to the name of its argument.
fn read<T: Readable>(
    value: Value,
    faults: FaultLog<'_>,
    argument: impl Fn(&str) -> String,
) -> Result<T, ArgumentErrors> {
    let read = T::read(&Field::top(&node(value), &faults), &TEXT);
    let errors = faults.finish();
    if let (None, Some(value)) = (&errors, read) {
        return Ok(value);
    }
    let line = |error: &crate::SpecError| {
        let crate::SpecError {
            message,
            expected,
            help,
            ..
        } = error;
        format!(
            "{}: {message}; expected {expected}; {help}",
            argument(&error.key)
        )
    };
    Err(ArgumentErrors(errors.iter().flatten().map(line).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_and_burst_parse_like_a_chain_file() {
        let read = |rate, burst| {
            let profile = parse_profile(rate, burst).unwrap().profile();
            let parts = |bucket: myelin_packet::traffic::Bucket| (bucket.rate(), bucket.burst());
            (profile.packets.map(parts), profile.bits.map(parts))
        };
        assert_eq!(read("20kpps", Some("8")), (Some((20_000, 8)), None));
        assert_eq!(
            read("100Mbit, 20kpps", Some("32,64kbit")),
            (Some((20_000, 32)), Some((100_000_000, 64_000)))
        );
        assert_eq!(read("1kpps", None), (Some((1000, 32)), None));
    }

    #[test]
    fn faults_name_the_argument() {
        let error_of = |rate, burst| parse_profile(rate, burst).unwrap_err().to_string();
        assert_eq!(
            error_of("20kps", None),
            "--rate: `20kps` has the unknown unit `kps`; expected a rate in packets (units pps, kpps, Mpps, Gpps) or in bits a \
             second (bit, kbit, Mbit, Gbit); write for example 20kpps"
        );
        let error = error_of("20kpps", Some("64kbit"));
        assert!(error.starts_with("--burst: a burst in bits has no effect"));
        assert!(error_of("20kpps,30kpps", None).contains("is the second value in packets"));
        assert!(error_of("", None).starts_with("--rate: "));
        assert!(error_of("0pps", Some("0")).contains("\n--burst: "));
    }

    #[test]
    fn match_parses_like_a_chain_file() {
        let found =
            parse_match("protocol=udp, destinationPort=9000,destination=10.0.0.0/24").unwrap();
        assert_eq!(
            (found.protocol, found.destination_port),
            (Some(17), Some(9000))
        );
        assert_eq!(found.destination, "10.0.0.0/24".parse().ok());
        let error_of = |text| parse_match(text).unwrap_err().to_string();
        assert!(
            error_of("protocol=upd").contains("write `udp`"),
            "{}",
            error_of("protocol=upd")
        );
        assert!(error_of("sourcPort=1").contains("write `sourcePort`"));
        assert!(error_of("udp").starts_with("--match: `udp` has no `=`"));
        assert!(error_of("protocol=udp,protocol=tcp").contains("twice"));
        assert!(error_of("destinationPort=70000").starts_with("--match destinationPort: "));
        assert!(error_of("protocol=icmp,sourcePort=1").starts_with("--match protocol: "));
    }

    proptest::proptest! {
        #[test]
        fn any_text_gives_a_value_or_an_error(text: String, burst: String) {
            let errors = [parse_profile(&text, Some(&burst)).err(), parse_match(&text).err()];
            for text in errors.into_iter().flatten() {
                proptest::prop_assert!(!text.to_string().is_empty());
            }
        }
    }

    #[test]
    fn a_formatted_match_parses_to_itself() {
        for text in [
            "protocol=17,source=10.0.0.0/8,destination=10.0.0.2,destinationPort=9000",
            "protocol=6,sourcePort=80,fragments=drop",
            "destination=2001:db8::/32",
        ] {
            let matches = parse_match(text).unwrap();
            assert_eq!(parse_match(&format_match(&matches)).unwrap(), matches);
        }
        assert_eq!(format_match(&Match::default()), "");
    }
}
