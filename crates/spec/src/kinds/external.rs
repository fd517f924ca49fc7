//! `external`: a program that Myelin knows nothing of, a black box.

use super::prelude::*;
use std::collections::BTreeMap;

/// The interface in a black box's namespace where packets come in.
pub const INGRESS: &str = "ingress";
/// The one where it sends them on.
pub const EGRESS: &str = "egress";
/// What the names of the variables that Myelin sets begin with.
const RESERVED: &str = "MYELIN_";
/// The longest time that a program may take to come up, ns: the chain's `up` waits for it.
const MAX_STARTUP_NS: u64 = 60_000_000_000;

const COMMAND: &str = "a program and its arguments";
const EXAMPLE: &str =
    r#"write for example [dpdk-testpmd, --no-huge, "--vdev=net_af_packet0,iface={ingress}"]"#;
const STARTUP: ConfigKey = DURATION.or("1s").like("2s");

config! {
    /// Configuration of an `external` function. By default it has no command.
    pub struct ExternalConfig {
        /// the program, by its whole path or by a name to be found in PATH, and its arguments; `{ingress}` and `{egress}` in
        /// them become the names of its interfaces, which it also finds in MYELIN_INGRESS and MYELIN_EGRESS, beside
        /// MYELIN_CHAIN and MYELIN_FUNCTION; it is root in a network namespace of its own, and must stay in the
        /// foreground
        "command" command: Vec<String> = ConfigKey::new(ValueType::Command).required(), from command;
        /// further variables: { NAME: VALUE }
        "environment" environment: BTreeMap<String, String> = ConfigKey::new(ValueType::Environment), from environment;
        /// how long it may take until it is up, at most 60s: packets are led to it as soon as it has taken both of its interfaces
        /// (by a packet socket, a bridge, an XDP program or promiscuous mode), and in any case when this time is
        /// over; if it ends before, the chain does not come up
        "startup" startup_ns: u64 = STARTUP, from startup;
    }
}

impl ExternalConfig {
    /// The command with the names of the interfaces in place of `{ingress}` and `{egress}`.
    pub fn filled_in(&self) -> Vec<String> {
        let fill = |text: &String| {
            text.replace("{ingress}", INGRESS)
                .replace("{egress}", EGRESS)
        };
        self.command.iter().map(fill).collect()
    }

    /// The variables that it finds in its environment, as the function `function` of the chain `chain`.
    pub fn variables(&self, chain: &str, function: &str) -> BTreeMap<String, String> {
        let own = [
            ("INGRESS", INGRESS),
            ("EGRESS", EGRESS),
            ("CHAIN", chain),
            ("FUNCTION", function),
        ];
        let own = own.map(|(name, value)| (format!("{RESERVED}{name}"), value.to_owned()));
        self.environment.clone().into_iter().chain(own).collect()
    }
}

/// `external`. Of the class that belongs into user space, since nothing is known of it but that it is a program.
pub static EXTERNAL: Kind = Kind {
    name: "external",
    class: Class::Advanced,
    // Nobody knows its cost: the planner says so, and leaves it out.
    user: Some(Cost::new(0.0, 0.0)),
    touches: Touches::HeaderAndPayload,
    state: State::Unknown,
    config: ExternalConfig::KEYS,
    description: "A black box: any program that takes packets from the interface `ingress` and sends them on at `egress`, in a network \
                  namespace of its own. Nothing is known of what it does; it is started, watched, limited and, when it \
                  ends, started again. Needs `mapping: distributed`, which is chosen by itself.",
    example: "{ name: bump, kind: external, config: { command: [bump-in-the-wire, \"{ingress}\", \"{egress}\"] } }",
    read: |fields| FunctionConfig::External(ExternalConfig::of(fields)),
    ..Kind::BASE
};

fn startup(fields: &Fields<'_>) -> u64 {
    let startup_ns = fields.value(&STARTUP.named("startup", ""));
    if let Some(field) = fields
        .get("startup")
        .filter(|_| startup_ns > MAX_STARTUP_NS)
    {
        field.fault(
            "longer than a chain waits for its function",
            "at most 60s",
            "write 60s or less",
        );
    }
    startup_ns
}

fn command(fields: &Fields<'_>) -> Vec<String> {
    let Some(field) = fields.get("command") else {
        return Vec::new();
    };
    let Some(items) = field.list(COMMAND) else {
        return Vec::new();
    };
    let words: Vec<_> = items.iter().map(|item| word(item)).collect();
    match (items.first(), words.first()) {
        (Some(first), Some(Some(program)))
            if !program.starts_with('/') && (program.is_empty() || program.contains('/')) =>
        {
            first.fault(
                format!(
                    "`{}` is neither an absolute path nor a plain name",
                    Printable(program)
                ),
                "a program such as `/usr/bin/python3`, or `python3`, which is looked for in PATH",
                "the program is started by the agent, in the directory `/`: write its whole path",
            );
        }
        (None, _) => field.fault("an empty list", COMMAND, EXAMPLE),
        _ => {}
    }
    words.into_iter().flatten().collect()
}

/// What the system can hand to a program.
fn word(field: &Field<'_>) -> Option<String> {
    const WORDS: &str = "a text without a zero byte";
    let text = field.text(WORDS, "write it in quotes")?;
    if text.contains('\0') {
        field.fault("a zero byte", WORDS, "remove it");
        return None;
    }
    Some(text.to_owned())
}

fn environment(fields: &Fields<'_>) -> BTreeMap<String, String> {
    let Some(field) = fields.get("environment") else {
        return BTreeMap::new();
    };
    let mut environment = BTreeMap::new();
    for (name, value) in field.entries("names and their values, such as { LEVEL: 3 }") {
        let Some(text) = word(&value) else {
            continue;
        };
        let message = if name.is_empty() || name.contains(['=', '\0']) {
            format!("`{}` is not the name of a variable", Printable(name))
        } else if name.starts_with(RESERVED) {
            format!("`{}` is set by Myelin", Printable(name))
        } else {
            environment.insert(name.to_owned(), text);
            continue;
        };
        let expected = format!("a name without `=` that does not begin with `{RESERVED}`");
        value.fault(message, expected, "rename the variable, or remove it");
    }
    environment
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_become_names_and_other_braces_stay() {
        let config = ExternalConfig {
            command: ["bridge", "{ingress},{egress}", "${HOME} {x} {}"]
                .map(str::to_owned)
                .to_vec(),
            ..ExternalConfig::default()
        };
        let filled = ["bridge", "ingress,egress", "${HOME} {x} {}"];
        assert_eq!(config.filled_in(), filled);
    }

    #[test]
    fn the_program_finds_its_interfaces_and_its_name() {
        let mut config = ExternalConfig::default();
        config.environment.insert("LEVEL".into(), "3".into());
        let variables = config.variables("tactile", "bump");
        let all: Vec<String> = variables
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        assert_eq!(
            all,
            [
                "LEVEL=3",
                "MYELIN_CHAIN=tactile",
                "MYELIN_EGRESS=egress",
                "MYELIN_FUNCTION=bump",
                "MYELIN_INGRESS=ingress"
            ]
        );
    }
}
