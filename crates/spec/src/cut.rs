//! Writes the parts of a chain over nodes as objects of their own, from the text of its file.
//!
//! An object keeps the keys of the chain's file, in JSON, which is YAML too. So a part means what
//! the file means, and its agent parses it as any chain.

use std::fmt::Write as _;
use std::ops::Range;

use crate::error::Span;
use crate::part::{PartSpec, PeerSpec, Way};
use crate::units;
use crate::yaml::{self, Key, Node, Value};

/// A part of a chain over nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartObject {
    /// The name of the object, unique on its node.
    pub name: String,
    /// The positions of its functions in the whole chain.
    pub functions: Range<usize>,
    /// The interface where the chain's packets arrive; `None` if they come from another node.
    pub ingress: Option<String>,
    /// The interface where the chain's packets depart; `None` if they go to another node.
    pub egress: Option<String>,
    /// The place in the whole chain; `None` if the part is the whole.
    pub part: Option<PartSpec>,
    /// The part's share of the contract's latency, ns.
    pub latency_ns: Option<u64>,
}

/// Writes a part of the chain `chain` of the file `text`. Returns `None` if the file has no such
/// chain.
pub fn write_part(text: &str, chain: &str, object: &PartObject) -> Option<String> {
    let documents = yaml::load(text).ok()?;
    let is_named = |node: &&Node| {
        let name = node
            .get("metadata")
            .and_then(|metadata| metadata.get("name"));
        let kind = node.get("kind").and_then(Node::text);
        kind == Some("ServiceChain") && name.and_then(Node::text) == Some(chain)
    };
    let document = documents.iter().find(is_named)?;
    let changed = change_entries(document, &|key, node| match key {
        "metadata" => Some(change_entries(node, &|key, node| match key {
            "name" => Some(scalar(&object.name)),
            "namespace" => Some(node.clone()),
            _ => None,
        })),
        "spec" => Some(change_spec(node, object)),
        _ => Some(node.clone()),
    });
    let mut written = String::new();
    write_json(&changed, &mut written);
    written.push('\n');
    Some(written)
}

fn change_spec(spec: &Node, object: &PartObject) -> Node {
    let has_from = object.part.as_ref().is_some_and(|part| part.from.is_some());
    let mut changed = change_entries(spec, &|key, node| match key {
        "match" if has_from => None,
        "ports" | "part" | "reverse" | "placement" => None,
        "functions" => Some(change_functions(node, &object.functions)),
        "sla" => Some(change_entries(
            node,
            &|key, node| match (key, object.latency_ns) {
                ("latency", Some(ns)) => Some(scalar(&units::DURATION.format(ns))),
                // Only the hosts of the whole chain see a round trip.
                ("roundTrip", _) => None,
                _ => Some(node.clone()),
            },
        )),
        _ => Some(node.clone()),
    });
    let ports = [("ingress", &object.ingress), ("egress", &object.egress)];
    let ports = ports
        .into_iter()
        .filter_map(|(key, port)| Some((key, scalar(port.as_ref()?))));
    let ports: Vec<_> = ports.collect();
    if let Value::Map(entries) = &mut changed.value {
        if !ports.is_empty() {
            entries.push((key("ports"), map(ports)));
        }
        if let Some(part) = &object.part {
            entries.push((key("part"), part_node(part)));
        }
    }
    changed
}

/// Keeps the functions at these positions, without the keys that place them.
fn change_functions(functions: &Node, positions: &Range<usize>) -> Node {
    let Value::List(items) = &functions.value else {
        return functions.clone();
    };
    let own = items.get(positions.clone()).unwrap_or_default().iter();
    let places = |key: &str| ["node", "antiAffinity", "replicas"].contains(&key);
    let without_node = |key: &str, node: &Node| (!places(key)).then(|| node.clone());
    let own = own.map(|function| change_entries(function, &without_node));
    node(Value::List(own.collect()))
}

fn part_node(part: &PartSpec) -> Node {
    let mut entries = vec![
        ("path", scalar(&part.path.to_string())),
        ("first", scalar(&part.first.to_string())),
        ("length", scalar(&part.length.to_string())),
    ];
    let before = part.before_ns.map(|ns| units::DURATION.format(ns));
    entries.extend(before.map(|before| ("before", scalar(&before))));
    entries.extend(part.whole.as_ref().map(|whole| ("whole", scalar(whole))));
    // Of a part whose flows split, `to` is the first branch.
    let to = part.to.as_ref().filter(|_| part.split.is_empty());
    let peers = [("from", part.from.as_ref()), ("to", to)];
    entries.extend(
        peers
            .into_iter()
            .filter_map(|(key, peer)| Some((key, map(peer_entries(peer?))))),
    );
    if !part.split.is_empty() {
        let branches = part.split.iter().map(|branch| {
            let mut entries = vec![
                ("name", scalar(&branch.name)),
                ("path", scalar(&branch.path.to_string())),
            ];
            entries.extend(peer_entries(&branch.peer));
            map(entries)
        });
        entries.push(("split", node(Value::List(branches.collect()))));
    }
    map(entries)
}

fn peer_entries(peer: &PeerSpec) -> Vec<(&'static str, Node)> {
    let way = match &peer.way {
        Way::Ethernet(address) => ("peer", scalar(&address.to_string())),
        Way::Vxlan(vxlan) => (
            "vxlan",
            map(vec![
                ("local", scalar(&vxlan.local.to_string())),
                ("remote", scalar(&vxlan.remote.to_string())),
                ("vni", scalar(&vxlan.vni.to_string())),
            ]),
        ),
    };
    vec![("interface", scalar(&peer.interface)), way]
}

/// Returns the mapping with each value that `change` returns, without the others.
fn change_entries(mapping: &Node, change: &dyn Fn(&str, &Node) -> Option<Node>) -> Node {
    let Value::Map(entries) = &mapping.value else {
        return mapping.clone();
    };
    let changed = entries.iter().filter_map(|(key, node)| {
        let changed = change(&key.name, node)?;
        Some((key.clone(), changed))
    });
    node(Value::Map(changed.collect()))
}

fn node(value: Value) -> Node {
    Node {
        span: Span::START,
        value,
    }
}

fn key(name: &str) -> Key {
    Key {
        name: name.to_owned(),
        span: Span::START,
    }
}

fn scalar(text: &str) -> Node {
    node(Value::Scalar(text.to_owned()))
}

fn map(entries: Vec<(&str, Node)>) -> Node {
    let entries = entries.into_iter().map(|(name, node)| (key(name), node));
    node(Value::Map(entries.collect()))
}

/// Writes the node. A scalar is a string: the readers take the spelling of numbers.
fn write_json(node: &Node, out: &mut String) {
    match &node.value {
        Value::Null => out.push_str("null"),
        Value::Scalar(text) => write_text(text, out),
        Value::List(items) => {
            out.push('[');
            for (position, item) in items.iter().enumerate() {
                out.push_str(if position > 0 { "," } else { "" });
                write_json(item, out);
            }
            out.push(']');
        }
        Value::Map(entries) => {
            out.push('{');
            for (position, (key, value)) in entries.iter().enumerate() {
                out.push_str(if position > 0 { "," } else { "" });
                write_text(&key.name, out);
                out.push(':');
                write_json(value, out);
            }
            out.push('}');
        }
    }
}

fn write_text(text: &str, out: &mut String) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => out.extend(['\\', character]),
            ' '..='~' => out.push(character),
            _ => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
        }
    }
    out.push('"');
}
