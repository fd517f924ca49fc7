//! Resolves `reverseOf`: a function that undoes the work of a function of the reverse chain, for
//! the replies.

use crate::chain::ServiceChain;
use crate::error::{Fault, FaultLog};

/// Checks each function with `reverseOf` against the function that `reverseOf` names. Both get the
/// configuration of the named function. If one of the two is pinned to a space, so is the other.
pub(crate) fn resolve_reverse_of(chains: &mut [ServiceChain], faults: &FaultLog<'_>) {
    for index in 0..chains.len() {
        // A part has the configuration of the named function, which another object has.
        let part = chains[index].part.as_ref();
        if part.is_some_and(|part| part.reverse.is_some()) {
            continue;
        }
        for position in 0..chains[index].functions.len() {
            let Some(undone) = chains[index].functions[position].reverse_of.clone() else {
                continue;
            };
            match find_named_function(chains, index, position, &undone) {
                Ok(named) => share_config(chains, (index, position), named),
                Err(fault) => {
                    let chain = &chains[index];
                    *faults.object.borrow_mut() = format!("ServiceChain `{}`", chain.name);
                    let place = faults.span(&chain.functions[position].place);
                    faults.add("spec.functions", place, fault);
                }
            }
        }
    }
}

/// Returns the chain and the position of the function to undo.
fn find_named_function(
    chains: &[ServiceChain],
    index: usize,
    position: usize,
    undone: &str,
) -> Result<(usize, usize), Fault> {
    let chain = &chains[index];
    let own = &chain.functions[position];
    let kind = own.kind().name;
    let prefix = format!("`{}` has `reverseOf: {undone}`", own.name);
    let Some(reverse) = &chain.reverse else {
        return Err(Fault::new(
            format!("{prefix}, but no other chain names this chain in `reverse`"),
            "`spec.reverse`: the chain of the other direction",
            "write `reverse: CHAIN` into `spec`, with the chain that has the function",
        ));
    };
    // Other checks report chains that are faulty or missing.
    let other = chains.iter().position(|other| other.name == *reverse);
    let found = other.and_then(|other| {
        let functions = &chains[other].functions;
        let at = functions
            .iter()
            .position(|function| function.name == undone)?;
        Some((other, at))
    });
    let Some((other, at)) = found else {
        return Err(Fault::new(
            format!("{prefix}, but the chain `{reverse}` of this file has no such function"),
            format!("the name of a `{kind}` of the chain `{reverse}`"),
            "correct the name: it must be a function of the chain that `spec.reverse` names",
        ));
    };
    let named = &chains[other].functions[at];
    if named.kind() != own.kind() {
        return Err(Fault::new(
            format!("{prefix}, which is a `{}`", named.kind().name),
            format!("a `{kind}`: only a function of the same kind undoes it"),
            format!("name a `{kind}` of the chain `{reverse}`"),
        ));
    }
    if named.reverse_of.is_some() {
        return Err(Fault::new(
            format!("{prefix}, which has `reverseOf` itself"),
            "a function with its own configuration",
            "give one of the two its own configuration",
        ));
    }
    if chains[other].namespace != chain.namespace {
        return Err(Fault::new(
            format!("{prefix} of another owner, `{}`", chains[other].namespace),
            "two chains of one owner: owners share no state",
            format!(
                "write `namespace: {}` into the metadata",
                chains[other].namespace
            ),
        ));
    }
    let super_packets = chains[other].worker.super_packets;
    if super_packets != chain.worker.super_packets {
        return Err(Fault::new(
            format!("{prefix}, whose worker has `superPackets: {super_packets}`"),
            "two chains of one worker: both functions share one state",
            format!("write `worker: {{ superPackets: {super_packets} }}` into `spec`"),
        ));
    }
    if own.node.is_some() && own.node != named.node {
        return Err(Fault::new(
            format!("{prefix}, which is not on the same `node`"),
            "one node for both: they share one state",
            "give both the same `node`, or remove it here",
        ));
    }
    match (own.space, named.space) {
        (Some(own), Some(space)) if own != space => Err(Fault::new(
            format!("{prefix}, which has `space: {space}`"),
            format!("`space: {space}`: both share one state"),
            "give both the same `space`, or remove it here",
        )),
        _ => Ok((other, at)),
    }
}

/// Copies the configuration of the function `named` to `reply`, and pins both to the same space.
fn share_config(chains: &mut [ServiceChain], reply: (usize, usize), named: (usize, usize)) {
    let function = &chains[named.0].functions[named.1];
    let (config, pin) = (function.config.clone(), function.space);
    let own = &mut chains[reply.0].functions[reply.1];
    own.config = config;
    own.space = own.space.or(pin);
    own.paired = true;
    let pin = own.space;
    let function = &mut chains[named.0].functions[named.1];
    function.space = pin;
    function.paired = true;
}
