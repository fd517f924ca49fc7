//! Checks the keys that place functions on nodes: `placement`, `node` and `antiAffinity`.

use std::collections::HashMap;

use crate::chain::Ports;
use crate::keys::field::Fields;
use crate::yaml::Value;

/// The keys of a function that place it.
const NODE: &str = "node";
const ANTI_AFFINITY: &str = "antiAffinity";

/// Logs keys that place functions if the chain's ports name no topology, and functions with the
/// same `antiAffinity` on the same `node`.
pub(super) fn check(spec: &Fields<'_>, ports: Option<&Ports>) {
    let functions = spec.get("functions");
    let functions = functions.filter(|field| matches!(field.node.value, Value::List(_)));
    let functions = functions
        .and_then(|field| field.list(""))
        .unwrap_or_default();
    let over_topology = ports.is_some_and(|ports| {
        [&ports.ingress, &ports.egress].map(|port| Ports::topology_host(port).is_some())
            == [true, true]
    });
    if !over_topology && (ports.is_some() || spec.get("reverse").is_none()) {
        let of_functions = functions
            .iter()
            .flat_map(|function| [NODE, ANTI_AFFINITY].map(|key| function.get(key)));
        for field in std::iter::once(spec.get("placement"))
            .chain(of_functions)
            .flatten()
        {
            field.fault(
                "a key of placement, but the chain's ports name no topology",
                "`ports` with two hosts of a topology with nodes",
                "write `ports: { ingress: TOPOLOGY/HOST, egress: TOPOLOGY/HOST }`, or remove the key",
            );
        }
    }
    let mut taken: HashMap<[&str; 2], usize> = HashMap::new();
    for function in &functions {
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
