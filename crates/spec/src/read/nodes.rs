//! Checks chains over nodes of a topology: `placement`, and `node`, `antiAffinity` and `replicas`
//! of functions.

use std::collections::HashMap;

use crate::chain::Ports;
use crate::keys::field::{Field, Fields};
use crate::yaml::Value;

/// The keys of a function that place it.
const NODE: &str = "node";
const ANTI_AFFINITY: &str = "antiAffinity";
const REPLICAS: &str = "replicas";

/// Logs a fault for each key that a chain over nodes lacks or excludes, for functions with the same
/// `antiAffinity` on the same `node`, and for replicas that flows cannot reach.
pub(super) fn check(spec: &Fields<'_>, ports: Option<&Ports>) {
    let functions = spec.get("functions");
    let functions = functions.filter(|field| matches!(field.node.value, Value::List(_)));
    let functions = functions
        .and_then(|field| field.list(""))
        .unwrap_or_default();
    let of_functions = functions
        .iter()
        .flat_map(|function| [NODE, ANTI_AFFINITY, REPLICAS].map(|key| function.get(key)));
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
    check_replicas(&functions);
}

/// Flows split where they leave the node of the function before.
fn check_replicas(functions: &[Field<'_>]) {
    let mut first: Option<usize> = None;
    for (position, function) in functions.iter().enumerate() {
        let Some(replicas) = function.get(REPLICAS) else {
            continue;
        };
        for key in [NODE, ANTI_AFFINITY] {
            if let Some(field) = function.get(key) {
                field.fault(
                    format!("the function has `replicas` and `{key}`"),
                    "no such key: placement chooses another node for each replica",
                    format!("remove `{key}`, or `replicas`"),
                );
            }
        }
        if ["0", "1"].contains(&replicas.node.text().unwrap_or("0")) {
            continue;
        }
        if position == 0 {
            replicas.fault(
                "the first function has replicas",
                "a function before it, whose node splits the flows",
                "put a function in front, for example `{ name: entry, kind: forward }`",
            );
        }
        if let Some(line) = first.replace(replicas.span.line) {
            replicas.fault(
                format!("another function has replicas too (line {line})"),
                "one function with replicas in a chain",
                "remove `replicas` here, or split the chain into two chains in series",
            );
        }
    }
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
