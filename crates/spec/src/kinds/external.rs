//! `external`: any program as a function, a black box.

use super::prelude::*;
use crate::keys::cores::{CORES, read_cores_of};
use crate::sharing::{SHARING, SharingPolicy, SharingSpec, read_sharing};
use std::collections::BTreeMap;

/// The interface in a black box's namespace where packets arrive.
pub const INGRESS: &str = "ingress";
/// The interface where the black box sends packets.
pub const EGRESS: &str = "egress";
/// The prefix of the variables that Myelin sets.
const RESERVED: &str = "MYELIN_";
/// The longest startup time of a program, ns. The chain's `up` waits for it.
const MAX_STARTUP_NS: u64 = 60_000_000_000;

const COMMAND: &str = "a program and its arguments";
const EXAMPLE: &str =
    r#"write for example [dpdk-testpmd, --no-huge, "--vdev=net_af_packet0,iface={ingress}"]"#;
const STARTUP: ConfigKey = DURATION.with_default("1s").with_hint("2s");

config! {
    /// Configuration of an `external` function. The `Default` has no command.
    pub struct ExternalConfig {
        /// The program, as an absolute path or a name in PATH, and its arguments. Myelin replaces
        /// `{ingress}` and `{egress}` by the names of its interfaces, and sets MYELIN_INGRESS,
        /// MYELIN_EGRESS, MYELIN_CHAIN and MYELIN_FUNCTION. The program is root in its own network
        /// namespace, and must stay in the foreground.
        "command" command: Vec<String> = ConfigKey::new(ValueType::Command).required(), from read_command;
        /// Further environment variables.
        "environment" environment: BTreeMap<String, String> = ConfigKey::new(ValueType::Environment), from read_environment;
        /// The longest startup time, at most 60s. Packets reach the program once it has opened both
        /// interfaces (packet socket, bridge, XDP program or promiscuous mode), or after this time.
        /// If it exits before, the chain does not come up.
        "startup" startup_ns: u64 = STARTUP, from read_startup;
        /// The core of all threads of the program, a list of one; by default the program chooses.
        "cores" core: Option<u32> = CORES, from read_core;
        /// How the program shares its core with other black boxes and workers: os (the operating
        /// system's scheduler), or a policy of turns: round-robin, load-based, unis, deadline. All
        /// black boxes and workers of a core need the same value.
        "sharing" sharing: SharingSpec = SHARING.with_default("os"), from read_turns;
        /// Packets for which the program has room at its interface `ingress`, such as the frames of
        /// its packet socket's ring. Only for `sharing`.
        "ring" ring: u32 = integer(1, 1 << 20, "a number of packets").with_default("512");
    }
}

impl ExternalConfig {
    /// Returns the command with `{ingress}` and `{egress}` replaced by the names of the interfaces.
    pub fn command_line(&self) -> Vec<String> {
        let fill = |text: &String| {
            text.replace("{ingress}", INGRESS)
                .replace("{egress}", EGRESS)
        };
        self.command.iter().map(fill).collect()
    }

    /// Returns the command as one line, without replacements. Functions with the same line have the
    /// same measured cost.
    pub fn command_text(&self) -> String {
        self.command.join(" ")
    }

    /// Returns the environment variables of the function `function` of the chain `chain`.
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

/// `external`. Advanced, the class for user space, because it is a program.
pub static EXTERNAL: Kind = Kind {
    name: "external",
    class: Class::Advanced,
    // The cost is unknown. The planner warns and leaves the cost out of its predictions.
    user: Some(Cost::new(0.0, 0.0)),
    works_on: PacketParts::HeaderAndPayload,
    state: State::Unknown,
    config: ExternalConfig::KEYS,
    description: "Runs any program as a function (a black box). The program takes packets from the interface \
                  `ingress` and sends them at `egress`, in its own network namespace. Myelin starts, \
                  watches and limits it, and restarts it when it exits. Myelin knows neither its effect on \
                  packets nor its cost. Needs `mapping: distributed`, which `mapping: auto` chooses.",
    example: "{ name: bump, kind: external, config: { command: [bump-in-the-wire, \"{ingress}\", \"{egress}\"] } }",
    read: |fields| FunctionConfig::External(ExternalConfig::from_fields(fields)),
    ..Kind::BASE
};

fn read_startup(fields: &Fields<'_>) -> u64 {
    let startup_ns = fields.value(&STARTUP.named("startup", ""));
    if let Some(field) = fields
        .get("startup")
        .filter(|_| startup_ns > MAX_STARTUP_NS)
    {
        field.fault(
            "the startup time is too long",
            "at most 60s",
            "write 60s or less",
        );
    }
    startup_ns
}

/// Reads `cores`. All threads of a black box have one core, so a second one is a fault.
fn read_core(fields: &Fields<'_>) -> Option<u32> {
    let cores = read_cores_of(fields);
    if let (Some(field), [first, _, ..]) = (fields.get("cores"), &cores[..]) {
        field.fault(
            format!("{} cores for a black box", cores.len()),
            "one core, for all threads of the program",
            format!("write for example [{first}]; without `cores` the program chooses its own"),
        );
    }
    cores.first().copied()
}

/// Reads `sharing`. A black box yields to nobody, so cooperative turns are refused, and turns need
/// a core.
fn read_turns(fields: &Fields<'_>) -> SharingSpec {
    let spec = read_sharing(fields);
    let Some(field) = fields.get("sharing") else {
        return spec;
    };
    if spec.policy == SharingPolicy::Cooperative {
        field.fault(
            "a black box never hands its core over, so it takes no cooperative turns",
            "os, round-robin, load-based, unis or deadline",
            "write for example `sharing: unis`",
        );
    } else if spec.hands_over() && fields.get("cores").is_none() {
        field.fault(
            "turns are those of one core, but the function has none",
            "`cores` beside `sharing`",
            "write for example `cores: [1]`",
        );
    }
    spec
}

fn read_command(fields: &Fields<'_>) -> Vec<String> {
    let Some(field) = fields.get("command") else {
        return Vec::new();
    };
    let Some(items) = field.list(COMMAND) else {
        return Vec::new();
    };
    let words: Vec<_> = items.iter().map(|item| read_argument(item)).collect();
    match (items.first(), words.first()) {
        (Some(first), Some(Some(program)))
            if !program.starts_with('/') && (program.is_empty() || program.contains('/')) =>
        {
            first.fault(
                format!(
                    "`{}` is neither an absolute path nor a plain name",
                    Printable(program)
                ),
                "a program such as `/usr/bin/python3`, or `python3` from PATH",
                "write its absolute path: the agent starts it in the directory `/`",
            );
        }
        (None, _) => field.fault("an empty list", COMMAND, EXAMPLE),
        _ => {}
    }
    words.into_iter().flatten().collect()
}

/// Reads an argument or the value of a variable: a text without a zero byte (execve(2)).
fn read_argument(field: &Field<'_>) -> Option<String> {
    const WORDS: &str = "a text without a zero byte";
    let text = field.text(WORDS, "write it in quotes")?;
    if text.contains('\0') {
        field.fault("a zero byte", WORDS, "remove it");
        return None;
    }
    Some(text.to_owned())
}

fn read_environment(fields: &Fields<'_>) -> BTreeMap<String, String> {
    let Some(field) = fields.get("environment") else {
        return BTreeMap::new();
    };
    let mut environment = BTreeMap::new();
    for (name, value) in field.entries("names and their values, such as { LEVEL: 3 }") {
        let Some(text) = read_argument(&value) else {
            continue;
        };
        let message = if name.is_empty() || name.contains(['=', '\0']) {
            format!("`{}` is not the name of a variable", Printable(name))
        } else if name.starts_with(RESERVED) {
            format!("Myelin sets `{}` itself", Printable(name))
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
    fn placeholders_are_replaced_and_other_braces_stay() {
        let config = ExternalConfig {
            command: ["bridge", "{ingress},{egress}", "${HOME} {x} {}"]
                .map(str::to_owned)
                .to_vec(),
            ..ExternalConfig::default()
        };
        let filled = ["bridge", "ingress,egress", "${HOME} {x} {}"];
        assert_eq!(config.command_line(), filled);
    }

    #[test]
    fn variables_name_interfaces_chain_and_function() {
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
