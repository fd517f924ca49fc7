//! Reads `spec.functions`.

use super::isolation;
use crate::chain::MAX_FUNCTIONS;
use crate::function::{FunctionSpec, Space};
use crate::isolation::{Isolation, Limits};
use crate::keys::field::{Field, Fields};
use crate::keys::{ConfigKey, REVERSE_OF, TEXT, ValueType, integer, keys, name};
use crate::kinds::FunctionConfig;
use crate::kinds::catalogue::{self, Kind};
use crate::part::MAX_REPLICAS;
use crate::printable::Printable;
use crate::suggest::nearest;
use crate::yaml::{Node, Value};

keys! {
    /// Keys of an element of `spec.functions`.
    KEYS {
        /// The name of the function, unique in its chain.
        "name" = TEXT.required();
        /// The kind of the function. `myelin functions` lists them.
        "kind" = TEXT.required();
        /// The configuration. `myelin functions KIND` lists its keys.
        "config" = ConfigKey::new(ValueType::AnyMap);
        /// The space of the function. Default: the planner chooses.
        "space" = Space::KEY;
        /// The sandbox of the function, with `mapping: distributed`. Default: `isolation` of the
        /// chain.
        "isolation" = Isolation::KEY;
        /// The limits of the function's process.
        "limits" = ConfigKey::new(ValueType::Map(Limits::KEYS));
        /// The absolute path of the container's root file system. Only for the kind external.
        "rootfs" = TEXT;
        /// The node of the ports' topology that runs the function. Default: `placement` of the
        /// chain chooses.
        "node" = TEXT;
        /// A name. Functions with the same name run on different nodes.
        "antiAffinity" = TEXT;
        /// The number of instances of the function, on as many nodes of the ports' topology. Each
        /// flow passes one of them. Excludes `node` and `antiAffinity`.
        "replicas" = integer(1, MAX_REPLICAS as u64, "a number of replicas");
    }
}
/// The key of the shaper's drops in the counters of a chain, next to the names of functions.
const SHAPER: &str = "shaper";
const FUNCTIONS: &str = "a list of functions such as { name: pass-on, kind: forward }";

pub(super) fn read(
    field: &Field<'_>,
    isolation: Isolation,
    is_reply: bool,
) -> Option<Vec<FunctionSpec>> {
    let items = field.list(FUNCTIONS)?;
    if items.is_empty() || items.len() > MAX_FUNCTIONS {
        let count = items.len();
        let help = match count {
            0 => "add a function, for example { name: pass-on, kind: forward }",
            _ => "split the chain into two chains in series",
        };
        let expected = format!("1 to {MAX_FUNCTIONS} functions");
        field.fault(format!("{count} functions"), expected, help);
    }
    let mut functions: Vec<FunctionSpec> = Vec::new();
    for item in &items {
        let Some(function) = function(item, isolation, is_reply) else {
            continue;
        };
        if let Some(other) = functions.iter().find(|other| other.name == function.name) {
            item.fault(
                format!(
                    "the function `{}` was already named on line {}",
                    function.name, other.place.line
                ),
                "names that differ within a chain",
                "rename one of the two",
            );
        }
        functions.push(function);
    }
    Some(functions)
}

fn function(field: &Field<'_>, of_chain: Isolation, is_reply: bool) -> Option<FunctionSpec> {
    let fields = field.mapping(KEYS)?;
    let name = name::read_required(&fields, "name", "coder");
    if name.as_deref() == Some(SHAPER)
        && let Some(field) = fields.get("name")
    {
        field.fault(
            format!("a function has the name `{SHAPER}`"),
            "another name, because counters list drops of the chain's shaper under this one",
            "rename the function",
        );
    }
    let kind = kind(&fields);
    let space = fields.get("space");
    let pin = space
        .as_ref()
        .and_then(|space| space.read_word(Space::WORDS));
    if let (Some(kind), Some(pin), Some(space)) = (kind, pin, &space) {
        check_pin(kind, pin, space);
    }
    let sandbox = isolation::read(&fields, kind, pin, of_chain);
    let anti_affinity = fields.read(KEYS, "antiAffinity");
    let replicas = fields
        .get("replicas")
        .map(|_| fields.read(KEYS, "replicas"));
    let node = fields.get("node");
    let node = node.map(|field| name::read_label(&field));
    let (config, reverse_of) = config(kind?, &fields, is_reply)?;
    Some(FunctionSpec {
        node: node.map_or(Some(None), |node| node.map(Some))?,
        name: name?,
        config,
        reverse_of,
        paired: false,
        space: pin,
        sandbox,
        anti_affinity,
        replicas,
        place: field.faults.place(field.span),
    })
}

fn kind(fields: &Fields<'_>) -> Option<&'static Kind> {
    let given = fields.get("kind").and_then(|field| field.node.text());
    if let Some(kind) = given.and_then(catalogue::kind) {
        return Some(kind);
    }
    let names: Vec<_> = catalogue::kinds().map(|kind| kind.name).collect();
    let expected = "a function kind, such as firewall; `myelin functions` lists them";
    let field = fields.required("kind", expected, "forward")?;
    let text = field.text(expected, "write for example `forward`")?;
    let help = match nearest(text, &names) {
        Some(near) => format!("write `{near}`"),
        None => {
            "write a kind that `myelin functions` lists, or `external` for a program".to_owned()
        }
    };
    let message = format!("unknown kind `{}`", Printable(text));
    field.fault(message, expected, help);
    None
}

fn check_pin(kind: &Kind, pin: Space, field: &Field<'_>) {
    let spaces: Vec<_> = kind.spaces().collect();
    if let Some(other) = spaces.first().filter(|_| !spaces.contains(&pin)) {
        field.fault(
            format!("`{}` does not exist in the {pin} space", kind.name),
            format!("`space: {other}`"),
            format!("remove `space`, or write `space: {other}`"),
        );
    }
}

/// Reads the configuration with the keys of the kind. In a part whose chain has replies of another
/// one (`is_reply`), a function with `reverseOf` has a configuration of its own.
fn config(
    kind: &Kind,
    fields: &Fields<'_>,
    is_reply: bool,
) -> Option<(FunctionConfig, Option<String>)> {
    // An absent configuration is an empty one.
    let empty = Node {
        span: fields.span,
        value: Value::Map(Vec::new()),
    };
    let field = fields
        .get("config")
        .unwrap_or_else(|| fields.field_at_mapping("config", &empty));
    let config = field.mapping(kind.config)?;
    let reverse_of = reverse_of(kind, &config, is_reply);
    let missing = kind
        .config
        .iter()
        .filter(|key| key.required && (is_reply || reverse_of.is_none()))
        .filter(|key| config.get(key.key).is_none());
    let mut is_complete = true;
    for key in missing {
        is_complete = false;
        field.fault(
            format!("the {} needs `{}`", kind.name, key.key),
            format!("`{}`: {}", key.key, key.doc),
            format!("write for example {}", kind.example),
        );
    }
    // `replies::resolve_reverse_of` copies the configuration of the named function.
    let config = (kind.read)(&config);
    is_complete.then_some((config, reverse_of))
}

/// Reads `reverseOf`, the function to undo. Logs a fault for each other key, except in a part.
fn reverse_of(kind: &Kind, config: &Fields<'_>, is_reply: bool) -> Option<String> {
    let field = config
        .get(REVERSE_OF.key)
        .filter(|_| kind.config.contains(&REVERSE_OF))?;
    let others = kind.config.iter().filter(|_| !is_reply);
    let others = others.filter(|key| key.key != REVERSE_OF.key);
    for (key, field) in others.filter_map(|key| Some((key, config.get(key.key)?))) {
        field.fault(
            format!("`{}` together with `reverseOf`", key.key),
            "only `reverseOf`: the configuration is that of the named function",
            format!("remove `{}`", key.key),
        );
    }
    name::read_label(&field)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::FaultLog;
    use crate::kinds::FORWARD;
    use crate::yaml;

    #[test]
    fn pin_to_a_missing_space_is_refused() {
        let mut kernel_only = FORWARD.clone();
        kernel_only.user = None;
        let documents = yaml::load("user").unwrap();
        let faults = FaultLog::new("file", "user");
        check_pin(
            &kernel_only,
            Space::User,
            &Field::top(&documents[0], &faults),
        );
        let errors = faults.finish().unwrap();
        let error = errors.iter().next().unwrap();
        assert_eq!(error.message, "`forward` does not exist in the user space");
        assert_eq!(error.help, "remove `space`, or write `space: kernel`");

        let faults = FaultLog::new("file", "user");
        check_pin(&FORWARD, Space::User, &Field::top(&documents[0], &faults));
        assert_eq!(faults.finish(), None);
    }
}
