//! Cuts a chain where neighbouring functions are on different nodes.

use std::ops::Range;

use myelin_spec::ServiceChain;

/// Neighbouring functions on one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// The node.
    pub node: String,
    /// The positions of the functions in the whole chain.
    pub functions: Range<usize>,
}

/// Cuts the chain. A node that the chain visits several times has several sections. A function
/// without a node stays with the function before it.
pub fn cut(chain: &ServiceChain) -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    for (position, function) in chain.functions.iter().enumerate() {
        match (sections.last_mut(), &function.node) {
            (Some(last), None) => last.functions.end = position + 1,
            (Some(last), Some(node)) if last.node == *node => last.functions.end = position + 1,
            (_, node) => sections.push(Section {
                node: node.clone().unwrap_or_default(),
                functions: position..position + 1,
            }),
        }
    }
    sections
}
