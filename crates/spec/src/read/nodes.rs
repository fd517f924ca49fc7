//! Checks chains over nodes of a topology: `placement`, and `node` and `antiAffinity` of functions.

use std::collections::HashMap;

use crate::chain::Ports;
use crate::keys::field::{Field, Fields};
use crate::yaml::Value;

/// The keys of a function that place it.
const NODE: &str = "node";
const ANTI_AFFINITY: &str = "antiAffinity";

/// Logs a fault for each key that a chain over nodes lacks or excludes, and for functions with the
/// same `antiAffinity` on the same `node`.
pub(super) fn check(spec: &Fields<'_>, ports: Option<&Ports>) {
    let functions = spec.get("functions");
    let functions = functions.filter(|field| matches!(field.node.value, Value::List(_)));
    let functions = functions
        .and_then(|field| field.list(""))
        .unwrap_or_default();
    let of_functions = functions
        .iter()
        .flat_map(|function| [NODE, ANTI_AFFINITY].map(|key| function.get(key)));
    let placed = std::iter::once(spec.get("placement")).chain(of_functions);
    let Some(first) = placed.flatten().next() else {
        return;
    };
    let hosts = ports.map(|ports| {
        [&ports.ingress, &ports.egress].map(|port| Ports::topology_host(port).map(|host| host.0))
    });
    match hosts {
        Some([Some(one), Some(other)]) if one == other => {}
        // The other chain of a pair may have them, so the check across chains follows.
        None if spec.get("ports").is_none() => {}
        _ => spec.get("ports").unwrap_or(first).fault(
            "the functions run on nodes, but the ports are not two hosts of one topology",
            "`ports` with two hosts of the topology of the nodes",
            "write for example `ports: { ingress: lab/h1, egress: lab/h2 }`",
        ),
    }
    if let Some(field) = spec.get("part") {
        field.fault(
            "a chain over nodes has no `part`",
            "either `node` at the functions or `placement`, or `part`",
            "remove `part`",
        );
    }
    check_groups(&functions);
}

fn check_groups(functions: &[Field<'_>]) {
    let mut taken: HashMap<[&str; 2], usize> = HashMap::new();
    for function in functions {
        let keys = [NODE, ANTI_AFFINITY].map(|key| function.get(key));
        let [Some(node), Some(group)] = &keys else {
            continue;
        };
        let (Some(name), Some(key)) = (node.node.text(), group.node.text()) else {
            continue;
        };
        if let Some(line) = taken.insert([name, key], node.span.line) {
            node.fault(
                format!(
                    "a function with the same `antiAffinity` is on the node `{name}` (line {line})"
                ),
                "another node for each function of an `antiAffinity`",
                "name another node, or remove `node` or `antiAffinity`",
            );
        }
    }
}
