//! The configuration of an `external` function: a program that Myelin knows nothing of, a black box.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The interface in a black box's namespace where packets come in.
pub const INGRESS: &str = "ingress";
/// The one where it sends them on.
pub const EGRESS: &str = "egress";
/// What the names of the variables that Myelin sets begin with.
pub const RESERVED: &str = "MYELIN_";
/// The longest time that a program may take to come up, ns: the chain's `up` waits for it.
pub const MAX_STARTUP_NS: u64 = 60_000_000_000;

/// Configuration of an `external` function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExternalConfig {
    /// The program, absolute or to be found in `PATH`, and its arguments; at least the program. They may hold placeholders.
    pub command: Vec<String>,
    /// What it finds in its environment beside what Myelin sets.
    pub environment: BTreeMap<String, String>,
    /// How long it may take until it has taken its interfaces, ns; then packets are led to it in any case.
    pub startup_ns: u64,
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

/// What a file need not say; without a command.
impl Default for ExternalConfig {
    fn default() -> Self {
        Self {
            command: Vec::new(),
            environment: BTreeMap::new(),
            startup_ns: 1_000_000_000,
        }
    }
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
