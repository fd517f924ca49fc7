//! Checks chains whose functions run on nodes of a topology (`functions[].node`).

use crate::chain::Ports;
use crate::function::FunctionSpec;
use crate::keys::field::Fields;

/// Logs a fault for each key that a chain over nodes lacks or excludes.
pub(super) fn check(spec: &Fields<'_>, functions: &[FunctionSpec], ports: Option<&Ports>) {
    let is_placed = |function: &&FunctionSpec| function.node.is_some();
    let Some(field) = spec.get("functions") else {
        return;
    };
    let Some(placed) = functions.iter().find(is_placed) else {
        return;
    };
    if let Some(other) = functions.iter().find(|function| function.node.is_none()) {
        let (name, node) = (&other.name, placed.node.as_deref().unwrap_or_default());
        field.fault(
            format!(
                "the function `{name}` names no node, but `{}` does",
                placed.name
            ),
            "a node for each function, or for none",
            format!("add for example `node: {node}` to `{name}`"),
        );
    }
    let hosts = ports.map(|ports| {
        [&ports.ingress, &ports.egress].map(|port| Ports::topology_host(port).map(|host| host.0))
    });
    match hosts {
        Some([Some(one), Some(other)]) if one == other => {}
        _ => spec.get("ports").unwrap_or(field).fault(
            "the functions run on nodes, but the ports are not two hosts of one topology",
            "`ports` with two hosts of the topology of the nodes",
            "write for example `ports: { ingress: lab/h1, egress: lab/h2 }`",
        ),
    }
    for key in ["part", "reverse"] {
        if let Some(field) = spec.get(key) {
            field.fault(
                format!("a chain over nodes has no `{key}`"),
                format!("either `node` at the functions, or `{key}`"),
                format!("remove `{key}`; a chain of the other direction is a chain of its own"),
            );
        }
    }
}
