//! Reads `spec.functions`.

use super::field::{Field, Fields};
use super::{firewall, name};
use crate::catalogue::{self, ConfigKey, Kind, ValueType};
use crate::chain::MAX_FUNCTIONS;
use crate::error::{Fault, Report};
use crate::files::FileResolver;
use crate::function::{FunctionConfig, FunctionSpec, Space, XorConfig};
use crate::printable::Printable;
use crate::suggest::nearest;
use crate::yaml::{Node, Value};

const KEYS: &[&str] = &["name", "kind", "config", "space"];
const FUNCTIONS: &str = "a list of functions such as { name: pass-on, kind: forward }";

pub(super) fn read(
    field: &Field<'_>,
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
        let Some(function) = function(item, files, report) else {
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
    let config = config(kind?, &fields, files, report);
    Some(FunctionSpec {
        name: name?,
        config: config?,
        space: pin,
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
) -> Option<FunctionConfig> {
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
    let missing = kind
        .config
        .iter()
        .filter(|key| key.required && config.get(key.key).is_none());
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
    match kind.name {
        "forward" => Some(FunctionConfig::Forward),
        "xor" => {
            let key = config
                .get("key")?
                .integer(report, range(&kind.config[0]), "a byte")?;
            Some(FunctionConfig::Xor(XorConfig { key: key as u8 }))
        }
        "firewall" => Some(FunctionConfig::Firewall(firewall::read(
            &config, files, report,
        ))),
        _ => None,
    }
    .filter(|_| complete)
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
    use super::*;
    use crate::catalogue::FORWARD;
    use crate::files::NoFiles;
    use crate::yaml;

    /// Every kind of the catalogue can be configured, and its example is a valid one.
    #[test]
    fn the_example_of_every_kind_is_read() {
        for kind in catalogue::kinds() {
            let documents = yaml::load(kind.example).unwrap();
            let mut report = Report::new("example", kind.example);
            let function = function(&Field::top(&documents[0]), &NoFiles, &mut report);
            assert_eq!(report.finish(), None, "{}", kind.name);
            assert_eq!(function.unwrap().kind(), kind);
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
