//! From the YAML tree to chains.
//!
//! Each file here reads one part of a chain file and reports all that is wrong with it before anything is given up.

pub(crate) mod address;
pub(crate) mod chain;
pub(crate) mod field;
pub(crate) mod function;
mod isolation;
pub(crate) mod list_file;
pub(crate) mod matching;
mod name;
mod ports;
mod profile;
mod sla;
mod worker;

use field::Field;
use myelin_packet::Match;

use crate::catalogue::{ConfigKey, ValueType};
use crate::chain::{ServiceChain, Sla};
use crate::error::{Fault, Report};
use crate::keys::keys;
use crate::printable::Printable;
use crate::suggest::nearest;
use crate::yaml::{Node, Value};

const API_VERSION: &str = "myelin.dev/v1alpha1";
const CHAIN: &str = "ServiceChain";
const TOPOLOGY: &str = "Topology";

keys! {
    /// Keys of a ServiceChain.
    KEYS {
        /// the version of this form
        "apiVersion" = ConfigKey::new(ValueType::Choice(&[API_VERSION])).required();
        /// what the object is
        "kind" = ConfigKey::new(ValueType::Choice(&[CHAIN])).required();
        /// name and owner
        "metadata" = ConfigKey::new(ValueType::Map(chain::METADATA_KEYS)).required();
        /// which traffic, which functions, and what the chain is owed
        "spec" = ConfigKey::new(ValueType::Map(chain::KEYS)).required();
    }
}

/// Reads an SLA that stands alone.
pub(crate) fn sla(node: &Node, report: &mut Report<'_>) -> Option<Sla> {
    sla::read(&Field::top(node), report)
}

/// Reads a match that stands alone.
pub(crate) fn packets(node: &Node, report: &mut Report<'_>) -> Option<Match> {
    matching::read(&Field::top(node), report)
}

/// Reads one document; `number` counts from 1.
pub(crate) fn document(
    node: &Node,
    number: usize,
    report: &mut Report<'_>,
) -> Option<ServiceChain> {
    report.object = object(node, number);
    // The kind decides which keys are known, so it is looked at first.
    let kind = node.get("kind").and_then(|kind| match &kind.value {
        Value::Scalar(text) => Some((text.as_str(), kind.span)),
        _ => None,
    });
    match kind {
        Some((TOPOLOGY, span)) => {
            let fault = Fault::new(
                "`Topology` is not supported by this release",
                format!("`kind: {CHAIN}`"),
                "remove the object; a chain without `spec.ports` gets a client and a server by itself",
            );
            report.add("kind", span, fault);
            return None;
        }
        Some((other, span)) if other != CHAIN => {
            let help = match nearest(other, &[CHAIN, TOPOLOGY]) {
                Some(near) => format!("write `kind: {near}`"),
                None => format!("write `kind: {CHAIN}`, or remove the object"),
            };
            let message = format!("unknown kind `{}`", Printable(other));
            report.add(
                "kind",
                span,
                Fault::new(message, format!("`kind: {CHAIN}`"), help),
            );
            return None;
        }
        _ => {}
    }
    let before = report.count();
    let top = Field::top(node).map(report, KEYS)?;
    let expected = format!("`apiVersion: {API_VERSION}`");
    let version = top.required(report, "apiVersion", &expected, API_VERSION);
    if let Some(version) = version {
        version.word(report, &[(API_VERSION, ())]);
    }
    if let Some(kind) = top.required(report, "kind", &format!("`kind: {CHAIN}`"), CHAIN) {
        kind.word(report, &[(CHAIN, ())]);
    }
    chain::read(&top, report).filter(|_| report.count() == before)
}

/// What errors call the object: its kind and name, else its number.
fn object(node: &Node, number: usize) -> String {
    let name = node
        .get("metadata")
        .and_then(|metadata| metadata.get("name"));
    match name.map(|name| &name.value) {
        Some(Value::Scalar(text)) => {
            let kind = match node.get("kind").map(|kind| &kind.value) {
                Some(Value::Scalar(text)) => text,
                _ => "object",
            };
            format!("{} `{}`", Printable(kind), Printable(text))
        }
        _ => format!("object {number}"),
    }
}
