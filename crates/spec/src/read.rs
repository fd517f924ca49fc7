//! Reads chains and topologies from the YAML tree.
//!
//! Each file reads one part of a chain file and logs all faults of that part.

mod chain;
mod excess;
mod files;
mod function;
mod isolation;
mod nodes;
mod ports;
mod profile;
mod replay;
mod sla;
mod topology;

pub use files::{ReferencedFile, referenced_files};

use crate::Objects;
use crate::error::{Fault, FaultLog};
use crate::keys::field::Field;
use crate::keys::{ConfigKey, ValueType, flatten, keys};
use crate::kinds::catalogue::{Kind, kinds};
use crate::printable::Printable;
use crate::suggest::nearest;
use crate::yaml::Node;

const API_VERSION: &str = "myelin.dev/v1alpha1";
const CHAIN: &str = "ServiceChain";
const TOPOLOGY: &str = "Topology";

keys! {
    /// Keys of a ServiceChain.
    KEYS {
        /// The version of the format.
        "apiVersion" = ConfigKey::new(ValueType::Choice(&[API_VERSION])).required();
        /// The type of the object.
        "kind" = ConfigKey::new(ValueType::Choice(&[CHAIN])).required();
        /// Name and owner of the chain.
        "metadata" = ConfigKey::new(ValueType::Map(chain::METADATA_KEYS)).required();
        /// Traffic, functions and contract of the chain.
        "spec" = ConfigKey::new(ValueType::Map(chain::KEYS)).required();
    }
}

keys! {
    /// Keys of a Topology.
    TOPOLOGY_KEYS {
        /// The version of the format.
        "apiVersion" = ConfigKey::new(ValueType::Choice(&[API_VERSION])).required();
        /// The type of the object.
        "kind" = ConfigKey::new(ValueType::Choice(&[TOPOLOGY])).required();
        /// Name and owner of the topology.
        "metadata" = ConfigKey::new(ValueType::Map(chain::METADATA_KEYS)).required();
        /// Hosts, routers, switches and links of the topology.
        "spec" = ConfigKey::new(ValueType::Map(topology::KEYS)).required();
    }
}

/// Finds the mapping where the unknown key `key` of the mapping at `path` belongs. Of several
/// mappings, returns the one with the longest common path.
fn suggest_mapping(path: &str, key: &str) -> Option<String> {
    // The keys of `config` depend on the kind.
    let is_config = |kind: &Kind| kind.config.iter().any(|config| config.key == key);
    if path.starts_with("spec.functions[") && path.ends_with(']') && kinds().any(is_config) {
        return Some("move it into `config` of the function".to_owned());
    }
    suggest_among(KEYS, path, key)
}

fn suggest_mapping_of_topology(path: &str, key: &str) -> Option<String> {
    suggest_among(TOPOLOGY_KEYS, path, key)
}

/// Finds the mapping of an object with these keys where `key` belongs.
fn suggest_among(keys: &'static [ConfigKey], path: &str, key: &str) -> Option<String> {
    let common_bytes = |mapping: &str| {
        let pairs = mapping.bytes().zip(path.bytes());
        pairs.take_while(|(a, b)| a == b).count()
    };
    let all = flatten(keys, "");
    // `max_by_key` returns the last of equal mappings. After `rev`, that is the first of the file.
    let mappings = all
        .iter()
        .rev()
        .filter_map(|(known, _)| match known.rsplit_once('.') {
            Some((mapping, name)) => (name == key).then_some(mapping),
            None => (known == key).then_some(""),
        });
    Some(
        match mappings.max_by_key(|mapping| common_bytes(mapping))? {
            "" => "move it to the top of the object, without indentation".to_owned(),
            "spec.functions[]" => {
                "move it out of `config`, to the function's other keys".to_owned()
            }
            mapping => format!("move it into `{mapping}`"),
        },
    )
}

/// Reads the object of one document; `number` counts documents from 1.
pub(crate) fn document(node: &Node, number: usize, faults: &FaultLog<'_>, objects: &mut Objects) {
    *faults.object.borrow_mut() = object_name(node, number);
    // The kind decides which keys are known.
    let kind = node.get("kind");
    let text = kind.and_then(Node::text);
    let is_topology = text == Some(TOPOLOGY);
    if let (Some(node), Some(text)) = (kind, text)
        && ![CHAIN, TOPOLOGY].contains(&text)
    {
        let help = match nearest(text, &[CHAIN, TOPOLOGY]) {
            Some(near) => format!("write `kind: {near}`"),
            None => format!("write `kind: {CHAIN}`, or remove the object"),
        };
        let message = format!("unknown kind `{}`", Printable(text));
        let expected = format!("`kind: {CHAIN}` or `kind: {TOPOLOGY}`");
        faults.add("kind", node.span, Fault::new(message, expected, help));
        return;
    }
    faults.suggest_for_unknown_key.set(if is_topology {
        suggest_mapping_of_topology
    } else {
        suggest_mapping
    });
    let before = faults.count();
    let (keys, kind) = if is_topology {
        (TOPOLOGY_KEYS, TOPOLOGY)
    } else {
        (KEYS, CHAIN)
    };
    let Some(top) = Field::top(node, faults).mapping(keys) else {
        return;
    };
    for (key, word) in [("apiVersion", API_VERSION), ("kind", kind)] {
        if let Some(field) = top.required(key, format_args!("`{key}: {word}`"), word) {
            field.read_word(&[(word, ())]);
        }
    }
    if is_topology {
        let topology = topology::read(&top).filter(|_| faults.count() == before);
        objects.topologies.extend(topology);
    } else {
        let chain = chain::read(&top).filter(|_| faults.count() == before);
        objects.chains.extend(chain);
    }
}

/// Returns the object's name for errors: kind and name, else the number.
fn object_name(node: &Node, number: usize) -> String {
    let name = node
        .get("metadata")
        .and_then(|metadata| metadata.get("name"))
        .and_then(Node::text);
    let kind = node.get("kind").and_then(Node::text).unwrap_or("object");
    name.map_or_else(
        || format!("object {number}"),
        |name| format!("{} `{}`", Printable(kind), Printable(name)),
    )
}
