//! Reads `spec.functions`.

use super::field::{Field, Fields};
use super::{
    aes, compression, dpi, external, firewall, flow_tracker, isolation, load_balancer, lossy_link,
    name, nat, rlnc, router,
};
use crate::catalogue::{self, ConfigKey, Kind, REVERSE_OF, ValueType};
use crate::chain::MAX_FUNCTIONS;
use crate::error::{Fault, Report};
use crate::files::FileResolver;
use crate::function::{FunctionConfig, FunctionSpec, MonitorConfig, Space, XorConfig};
use crate::isolation::Isolation;
use crate::nat::NatConfig;
use crate::printable::Printable;
use crate::suggest::nearest;
use crate::yaml::{Node, Value};

const KEYS: &[&str] = &[
    "name",
    "kind",
    "config",
    "space",
    "isolation",
    "limits",
    "rootfs",
];
const FUNCTIONS: &str = "a list of functions such as { name: pass-on, kind: forward }";

pub(super) fn read(
    field: &Field<'_>,
    isolation: Isolation,
    files: &dyn FileResolver,
    report: &mut Report<'_>,
) -> Option<Vec<FunctionSpec>> {
    let items = field.list(report, FUNCTIONS)?;
    if items.is_empty() || items.len() > MAX_FUNCTIONS {
        let count = items.len();
        let help = match count {
            0 => "add a function, for example { name: pass-on, kind: forward }",
            _ => "split the chain into two, one after the other",
        };
        let expected = format!("1 to {MAX_FUNCTIONS} functions");
        field.fault(
            report,
            Fault::new(format!("{count} functions"), expected, help),
        );
    }
    let mut functions: Vec<FunctionSpec> = Vec::new();
    for item in &items {
        let Some(function) = function(item, isolation, files, report) else {
            continue;
        };
        if let Some(twin) = functions.iter().find(|other| other.name == function.name) {
            let fault = Fault::new(
                format!(
                    "the function `{}` was already named on line {}",
                    function.name, twin.place.line
                ),
                "names that differ within a chain",
                "rename one of the two",
            );
            item.fault(report, fault);
        }
        functions.push(function);
    }
    Some(functions)
}

fn function(
    field: &Field<'_>,
    of_chain: Isolation,
    files: &dyn FileResolver,
    report: &mut Report<'_>,
) -> Option<FunctionSpec> {
    let fields = field.map(report, KEYS)?;
    let name = name::required(&fields, "name", "coder", report);
    let kind = kind(&fields, report);
    let space = fields.get("space");
    let pin = space
        .as_ref()
        .and_then(|space| space.word(report, Space::WORDS));
    if let (Some(kind), Some(pin), Some(space)) = (kind, pin, &space) {
        check_pin(kind, pin, space, report);
    }
    let sandbox = isolation::read(&fields, kind, pin, of_chain, report);
    let (config, reverse_of) = config(kind?, &fields, files, report)?;
    Some(FunctionSpec {
        name: name?,
        config,
        reverse_of,
        paired: false,
        space: pin,
        sandbox,
        place: report.place(field.span),
    })
}

fn kind(fields: &Fields<'_>, report: &mut Report<'_>) -> Option<&'static Kind> {
    let names: Vec<_> = catalogue::kinds().map(|kind| kind.name).collect();
    let expected = format!("one of {}", names.join(", "));
    let field = fields.required(report, "kind", &expected, "forward")?;
    let text = field.text(report, &expected, "write for example `forward`")?;
    let kind = catalogue::kind(text);
    if kind.is_none() {
        let help = match nearest(text, &names) {
            Some(near) => format!("write `{near}`"),
            None => "`myelin functions` lists the kinds and their configuration".to_owned(),
        };
        let message = format!("unknown kind `{}`", Printable(text));
        field.fault(report, Fault::new(message, expected, help));
    }
    kind
}

fn check_pin(kind: &Kind, pin: Space, field: &Field<'_>, report: &mut Report<'_>) {
    let spaces: Vec<_> = kind.spaces().collect();
    if let Some(other) = spaces.first().filter(|_| !spaces.contains(&pin)) {
        let fault = Fault::new(
            format!("`{}` does not exist in the {pin} space", kind.name),
            format!("`space: {other}`"),
            format!("remove `space`, or write `space: {other}`"),
        );
        field.fault(report, fault);
    }
}

/// Reads the configuration by the keys that the catalogue gives for the kind.
fn config(
    kind: &Kind,
    fields: &Fields<'_>,
    files: &dyn FileResolver,
    report: &mut Report<'_>,
) -> Option<(FunctionConfig, Option<String>)> {
    let keys: Vec<_> = kind.config.iter().map(|key| key.key).collect();
    // A configuration that is not given is an empty one.
    let empty = Node {
        span: fields.span,
        value: Value::Map(Vec::new()),
    };
    let field = fields
        .get("config")
        .unwrap_or_else(|| fields.stand_in("config", &empty));
    let config = field.map(report, &keys)?;
    let reverse_of = reverse_of(kind, &config, report);
    let missing = kind
        .config
        .iter()
        .filter(|key| key.required && reverse_of.is_none() && config.get(key.key).is_none());
    let mut complete = true;
    for key in missing {
        complete = false;
        let fault = Fault::new(
            format!("the {} needs `{}`", kind.name, key.key),
            format!("`{}`: {}", key.key, key.doc),
            format!("write for example {}", kind.example),
        );
        field.fault(report, fault);
    }
    let config = match kind.name {
        "forward" => Some(FunctionConfig::Forward),
        "timestamp" => Some(FunctionConfig::Timestamp),
        "monitor" => Some(FunctionConfig::Monitor(MonitorConfig {
            flows: flows(kind, &config, report)?,
        })),
        "flow-tracker" => {
            let flows = flows(kind, &config, report)?;
            let tracker = flow_tracker::read(&config, flows, report);
            Some(FunctionConfig::FlowTracker(tracker))
        }
        "xor" => {
            let key = config
                .get("key")?
                .integer(report, range(&kind.config[0]), "a byte")?;
            Some(FunctionConfig::Xor(XorConfig { key: key as u8 }))
        }
        "firewall" => Some(FunctionConfig::Firewall(firewall::read(
            &config, files, report,
        ))),
        "load-balancer" => Some(FunctionConfig::LoadBalancer(load_balancer::read(
            &config, report,
        ))),
        "router" => Some(FunctionConfig::Router(router::read(&config, files, report))),
        "external" => external::read(&config, report).map(FunctionConfig::External),
        // The configuration of a reply side comes with the other side's: see `check`.
        "nat" if reverse_of.is_some() => Some(FunctionConfig::Nat(NatConfig::default())),
        "nat" => nat::read(&config, report).map(FunctionConfig::Nat),
        "aes-encrypt" => aes::encrypt(&config, files, report).map(FunctionConfig::AesEncrypt),
        "aes-decrypt" => aes::decrypt(&config, files, report).map(FunctionConfig::AesDecrypt),
        "lossy-link" => lossy_link::read(&config, report).map(FunctionConfig::LossyLink),
        "dpi" => dpi::read(&config, files, report).map(FunctionConfig::Dpi),
        "compress" => {
            let compress = compression::compress(&config, files, report);
            Some(FunctionConfig::Compress(compress))
        }
        "decompress" => {
            let decompress = compression::decompress(&config, files, report);
            Some(FunctionConfig::Decompress(decompress))
        }
        "rlnc-encode" => Some(FunctionConfig::RlncEncode(rlnc::encode(&config, report))),
        "rlnc-recode" => Some(FunctionConfig::RlncRecode(rlnc::recode(&config, report))),
        "rlnc-decode" => Some(FunctionConfig::RlncDecode(rlnc::decode(&config, report))),
        _ => None,
    };
    Some((config.filter(|_| complete)?, reverse_of))
}

/// The function that this one undoes. The key stands alone.
fn reverse_of(kind: &Kind, config: &Fields<'_>, report: &mut Report<'_>) -> Option<String> {
    let field = config
        .get(REVERSE_OF.key)
        .filter(|_| kind.config.contains(&REVERSE_OF))?;
    let others = kind.config.iter().filter(|key| key.key != REVERSE_OF.key);
    for other in others.filter_map(|key| config.get(key.key).map(|field| (key, field))) {
        let (key, field) = other;
        let fault = Fault::new(
            format!("`{}` beside `reverseOf`", key.key),
            "`reverseOf` alone: the configuration is that of the function it names",
            format!("remove `{}`", key.key),
        );
        field.fault(report, fault);
    }
    name::label(&field, report)
}

/// The value of the key `flows`.
fn flows(kind: &Kind, config: &Fields<'_>, report: &mut Report<'_>) -> Option<u32> {
    const DEFAULT: u32 = 4096;
    let key = kind.config.iter().find(|key| key.key == "flows")?;
    let Some(field) = config.get(key.key) else {
        return Some(DEFAULT);
    };
    let flows = field.integer(report, range(key), "a number of flows")?;
    Some(flows as u32)
}

/// The range of an integer key.
fn range(key: &ConfigKey) -> std::ops::RangeInclusive<u64> {
    match key.value {
        ValueType::Integer { min, max } => min..=max,
        _ => 0..=u64::MAX,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::catalogue::FORWARD;
    use crate::files::NoFiles;
    use crate::yaml;

    /// Every kind of the catalogue can be configured, and its example is a valid one.
    #[test]
    fn the_example_of_every_kind_is_read() {
        let files = BTreeMap::from([("tactile.key".to_owned(), "5a".repeat(32))]);
        for kind in catalogue::kinds() {
            let documents = yaml::load(kind.example).unwrap();
            let mut report = Report::new("example", kind.example);
            let function = function(
                &Field::top(&documents[0]),
                Isolation::Process,
                &files,
                &mut report,
            );
            assert_eq!(report.finish(), None, "{}", kind.name);
            assert_eq!(function.unwrap().kind(), kind);
        }
    }

    /// What the catalogue says of a default is what is taken.
    #[test]
    fn defaults_are_those_of_the_catalogue() {
        let read = |text: &str| {
            let documents = yaml::load(text).unwrap();
            let mut report = Report::new("file", text);
            let function = function(
                &Field::top(&documents[0]),
                Isolation::Process,
                &NoFiles,
                &mut report,
            );
            assert_eq!(report.finish(), None, "{text}");
            function.unwrap().config
        };
        for kind in [
            &catalogue::MONITOR,
            &catalogue::FLOW_TRACKER,
            &catalogue::RLNC_ENCODE,
            &catalogue::RLNC_RECODE,
            &catalogue::RLNC_DECODE,
        ] {
            let keys = kind.config.iter();
            let written: Vec<String> = keys
                .filter_map(|key| Some(format!("{}: {}", key.key, key.default?)))
                .collect();
            let name = kind.name;
            let with = format!(
                "{{ name: a, kind: {name}, config: {{ {} }} }}",
                written.join(", ")
            );
            assert_eq!(read(&with), read(&format!("{{ name: a, kind: {name} }}")));
        }
    }

    #[test]
    fn a_pin_needs_the_kind_to_exist_there() {
        let kernel_only = Kind {
            user: None,
            ..FORWARD.clone()
        };
        let documents = yaml::load("user").unwrap();
        let mut report = Report::new("file", "user");
        check_pin(
            &kernel_only,
            Space::User,
            &Field::top(&documents[0]),
            &mut report,
        );
        let errors = report.finish().unwrap();
        let error = errors.iter().next().unwrap();
        assert_eq!(error.message, "`forward` does not exist in the user space");
        assert_eq!(error.help, "remove `space`, or write `space: kernel`");

        let mut report = Report::new("file", "user");
        check_pin(
            &FORWARD,
            Space::User,
            &Field::top(&documents[0]),
            &mut report,
        );
        assert_eq!(report.finish(), None);
    }
}
