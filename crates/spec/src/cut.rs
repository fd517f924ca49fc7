//! Writes the parts of a chain over nodes as objects of their own, from the text of its file.
//!
//! An object keeps the keys of the chain's file, in JSON, which is YAML too. So a part means what
//! the file means, and its agent parses it as any chain.

use std::fmt::Write as _;
use std::ops::Range;

use crate::error::Span;
use crate::function::Space;
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
    /// The functions that share their state with one of the other direction: their positions in the
    /// whole chain, and the space of both.
    pub pairs: Vec<(usize, Space)>,
    /// The chain of the other direction.
    pub reverse: Option<String>,
}

/// Writes a part of the chain `chain` of the file `text`. Returns `None` if the file has no such
/// chain.
pub fn write_part(text: &str, chain: &str, object: &PartObject) -> Option<String> {
    let documents = yaml::load(text).ok()?;
    let document = find_chain(&documents, chain)?;
    let reverse = object.reverse.as_deref();
    let reverse = reverse.and_then(|reverse| find_chain(&documents, reverse));
    let changed = change_entries(document, &|key, node| match key {
        "metadata" => Some(change_entries(node, &|key, node| match key {
            "name" => Some(scalar(&object.name)),
            "namespace" => Some(node.clone()),
            _ => None,
        })),
        "spec" => Some(change_spec(node, reverse, object)),
        _ => Some(node.clone()),
    });
    let mut written = String::new();
    write_json(&changed, &mut written);
    written.push('\n');
    Some(written)
}

fn find_chain<'n>(documents: &'n [Node], chain: &str) -> Option<&'n Node> {
    let mut documents = documents.iter();
    documents.find(|node| {
        let name = node
            .get("metadata")
            .and_then(|metadata| metadata.get("name"));
        let kind = node.get("kind").and_then(Node::text);
        kind == Some("ServiceChain") && name.and_then(Node::text) == Some(chain)
    })
}

fn change_spec(spec: &Node, reverse: Option<&Node>, object: &PartObject) -> Node {
    let has_from = object.part.as_ref().is_some_and(|part| part.from.is_some());
    let mut changed = change_entries(spec, &|key, node| match key {
        "match" if has_from => None,
        "ports" | "part" | "reverse" | "placement" => None,
        "functions" => Some(change_functions(node, reverse, object)),
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

/// Keeps the functions of the part, without the keys that place them.
fn change_functions(functions: &Node, reverse: Option<&Node>, object: &PartObject) -> Node {
    let Value::List(items) = &functions.value else {
        return functions.clone();
    };
    let positions = object.functions.clone();
    let own = items.get(positions.clone()).unwrap_or_default();
    let own = own.iter().zip(positions).map(|(function, position)| {
        let mut pairs = object.pairs.iter();
        let space = pairs
            .find(|(at, _)| *at == position)
            .map(|(_, space)| space);
        let mut changed = change_entries(function, &|key, node| match key {
            "node" | "antiAffinity" | "replicas" => None,
            "space" if space.is_some() => None,
            "config" => Some(complete_config(node, reverse)),
            _ => Some(node.clone()),
        });
        if let (Some(space), Value::Map(entries)) = (space, &mut changed.value) {
            entries.push((key("space"), scalar(&space.to_string())));
        }
        changed
    });
    node(Value::List(own.collect()))
}

/// Adds the configuration of the function that `reverseOf` names.
fn complete_config(config: &Node, reverse: Option<&Node>) -> Node {
    let undone = config.get("reverseOf").and_then(Node::text);
    let functions = reverse.and_then(|chain| chain.get("spec")?.get("functions"));
    let (Some(undone), Some(Value::List(functions))) = (undone, functions.map(|node| &node.value))
    else {
        return config.clone();
    };
    let is_undone = |node: &&Node| node.get("name").and_then(Node::text) == Some(undone);
    let named = functions.iter().find(is_undone);
    let mut complete = config.clone();
    if let (Some(Value::Map(named)), Value::Map(entries)) = (
        named
            .and_then(|named| named.get("config"))
            .map(|node| &node.value),
        &mut complete.value,
    ) {
        entries.extend(named.iter().cloned());
    }
    complete
}

fn part_node(part: &PartSpec) -> Node {
    let mut entries = vec![
        ("path", scalar(&part.path.to_string())),
        ("first", scalar(&part.first.to_string())),
        ("length", scalar(&part.length.to_string())),
    ];
    let before = part.before_ns.map(|ns| units::DURATION.format(ns));
    entries.extend(before.map(|before| ("before", scalar(&before))));
    let wholes = [("whole", &part.whole), ("reverse", &part.reverse)];
    let wholes = wholes.into_iter();
    entries.extend(wholes.filter_map(|(key, whole)| Some((key, scalar(whole.as_ref()?)))));
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
            map([
                ("local", Some(scalar(&vxlan.local.to_string()))),
                ("remote", Some(scalar(&vxlan.remote.to_string()))),
                ("vni", Some(scalar(&vxlan.vni.to_string()))),
                (
                    "destination",
                    vxlan.destination.map(|mac| scalar(&mac.to_string())),
                ),
            ]
            .into_iter()
            .filter_map(|(key, value)| Some((key, value?)))
            .collect()),
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
