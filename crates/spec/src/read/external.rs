//! Reads the configuration of an `external`.

use std::collections::BTreeMap;

use super::field::{Field, Fields};
use crate::error::{Fault, Report};
use crate::external::{ExternalConfig, MAX_STARTUP_NS, RESERVED};
use crate::printable::Printable;
use crate::units::parse_duration_ns;

const COMMAND: &str = "a program and its arguments";
const EXAMPLE: &str =
    r#"write for example [dpdk-testpmd, --no-huge, "--vdev=net_af_packet0,iface={ingress}"]"#;
const WORDS: &str = "a text without a zero byte";

/// `None` when there is no usable command; what else is wrong is reported.
pub(super) fn read(fields: &Fields<'_>, report: &mut Report<'_>) -> Option<ExternalConfig> {
    let command = command(&fields.get("command")?, report);
    let environment = fields
        .get("environment")
        .map_or_else(BTreeMap::new, |field| environment(&field, report));
    let startup = fields.get("startup");
    let startup_ns = startup
        .as_ref()
        .and_then(|field| field.quantity(report, parse_duration_ns, "2s"));
    if let Some(field) = startup.filter(|_| startup_ns > Some(MAX_STARTUP_NS)) {
        let fault = Fault::new(
            "longer than a chain waits for its function",
            "at most 60s",
            "write 60s or less",
        );
        field.fault(report, fault);
    }
    Some(ExternalConfig {
        command: command?,
        environment,
        startup_ns: startup_ns.unwrap_or(ExternalConfig::default().startup_ns),
    })
}

fn command(field: &Field<'_>, report: &mut Report<'_>) -> Option<Vec<String>> {
    let items = field.list(report, COMMAND)?;
    let Some(first) = items.first() else {
        field.fault(report, Fault::new("an empty list", COMMAND, EXAMPLE));
        return None;
    };
    let words = items
        .iter()
        .map(|item| word(item, report))
        .collect::<Option<Vec<String>>>()?;
    if !(words[0].starts_with('/') || is_plain(&words[0])) {
        let fault = Fault::new(
            format!(
                "`{}` is neither an absolute path nor a plain name",
                Printable(&words[0])
            ),
            "a program such as `/usr/bin/python3`, or `python3`, which is looked for in PATH",
            "the program is started by the agent, in the directory `/`: write its whole path",
        );
        first.fault(report, fault);
        return None;
    }
    Some(words)
}

/// A program's name that `PATH` is searched for.
fn is_plain(program: &str) -> bool {
    !program.is_empty() && !program.contains('/')
}

/// What the system can hand to a program.
fn word(field: &Field<'_>, report: &mut Report<'_>) -> Option<String> {
    let help = "write it in quotes";
    let text = field.text(report, WORDS, help)?;
    if text.contains('\0') {
        field.fault(report, Fault::new("a zero byte", WORDS, "remove it"));
        return None;
    }
    Some(text.to_owned())
}

fn environment(field: &Field<'_>, report: &mut Report<'_>) -> BTreeMap<String, String> {
    let entries = field.entries(report, "names and their values, such as { LEVEL: 3 }");
    let mut environment = BTreeMap::new();
    for (name, value) in entries {
        let Some(text) = word(&value, report) else {
            continue;
        };
        let message = if name.is_empty() || name.contains(['=', '\0']) {
            format!("`{}` is not the name of a variable", Printable(&name))
        } else if name.starts_with(RESERVED) {
            format!("`{}` is set by Myelin", Printable(&name))
        } else {
            environment.insert(name, text);
            continue;
        };
        let expected = format!("a name without `=` that does not begin with `{RESERVED}`");
        value.fault(
            report,
            Fault::new(message, expected, "rename the variable, or remove it"),
        );
    }
    environment
}
