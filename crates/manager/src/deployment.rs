//! Makes, changes and removes all parts of a chain as one.
//!
//! The first part alone decides which packets enter the chain, and which generation they take. So
//! all other parts come up before it, and go down after it.

use std::thread;
use std::time::{Duration, Instant};

use myelin_api::{ApiError, ChainStatus, ChainUp, UpRequest};

/// Longest time that packets of a generation may take to leave a part.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Time without a packet after which a part is empty, besides the delay of the links.
const QUIET: Duration = Duration::from_millis(20);

/// The agents of the nodes.
pub trait PartTakers: Sync {
    /// Takes a part, or changes it live. An agent takes all of it, or nothing.
    ///
    /// # Errors
    /// The agent refuses the part, fails, or has ended.
    fn take(&self, node: &str, request: &UpRequest) -> Result<ChainUp, ApiError>;

    /// Removes a part. A missing part is no error. If the agent has ended, removes what it left.
    ///
    /// # Errors
    /// The part cannot be removed.
    fn remove(&self, node: &str, part: &str) -> Result<(), ApiError>;

    /// Reads the status of a part; `None` if the node has no such part.
    ///
    /// # Errors
    /// The agent has ended, or does not answer.
    fn status(&self, node: &str, part: &str) -> Result<Option<ChainStatus>, ApiError>;
}

/// A part of a running chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacedPart {
    /// The node.
    pub node: String,
    /// The name of the part on its node.
    pub name: String,
}

/// The parts of a running chain, in order.
#[derive(Debug, Clone)]
pub struct Deployment {
    /// The parts.
    pub parts: Vec<PlacedPart>,
    /// What each agent answered.
    pub ups: Vec<ChainUp>,
    /// The longest delay of the links between the parts.
    pub links: Duration,
}

/// A part to take.
#[derive(Debug, Clone)]
pub struct NewPart {
    /// The node and the name.
    pub at: PlacedPart,
    /// The object.
    pub request: UpRequest,
}

/// Makes all parts, or none. With a previous generation, packets enter the new parts from one
/// moment on, and the old parts go when their packets have left.
///
/// # Errors
/// A part cannot be taken. The previous generation then remains.
pub fn bring_up(
    takers: &dyn PartTakers,
    new: &[NewPart],
    links: Duration,
    previous: Option<&Deployment>,
) -> Result<Deployment, ApiError> {
    let Some((first, others)) = new.split_first() else {
        return Err(ApiError::usage("the chain has no functions"));
    };
    let mut ups = prepare(takers, others)?;
    match take(takers, first) {
        Ok(up) => ups.insert(0, up),
        Err(error) => {
            remove_all(takers, others.iter().map(|part| &part.at));
            // Without an answer it is unknown whether the agent took the part.
            let changes = |old: &Deployment| old.parts.first() == Some(&first.at);
            if !previous.is_some_and(changes) {
                remove_all(takers, [&first.at]);
            }
            return Err(error);
        }
    }
    if let Some(previous) = previous {
        retire(takers, previous, new);
    }
    Ok(Deployment {
        parts: new.iter().map(|part| part.at.clone()).collect(),
        ups,
        links,
    })
}

/// Takes all parts but the first, at the same time. After a failure, none remains.
fn prepare(takers: &dyn PartTakers, parts: &[NewPart]) -> Result<Vec<ChainUp>, ApiError> {
    let taken: Vec<Result<ChainUp, ApiError>> = thread::scope(|scope| {
        let threads: Vec<_> = parts
            .iter()
            .map(|part| scope.spawn(|| take(takers, part)))
            .collect();
        let ended = threads.into_iter().map(|thread| {
            let failed = |_| Err(ApiError::failed("a thread that prepares a part ended"));
            thread.join().unwrap_or_else(failed)
        });
        ended.collect()
    });
    let taken: Result<Vec<_>, _> = taken.into_iter().collect();
    taken.inspect_err(|_| remove_all(takers, parts.iter().map(|part| &part.at)))
}

fn take(takers: &dyn PartTakers, part: &NewPart) -> Result<ChainUp, ApiError> {
    let node = &part.at.node;
    takers.take(node, &part.request).map_err(|error| ApiError {
        message: format!("node `{node}`: {}", error.message),
        ..error
    })
}

/// Removes parts at the same time. Logs failures: each node is tried.
fn remove_all<'p>(takers: &dyn PartTakers, parts: impl IntoIterator<Item = &'p PlacedPart>) {
    thread::scope(|scope| {
        for PlacedPart { node, name } in parts {
            scope.spawn(move || {
                if let Err(error) = takers.remove(node, name) {
                    tracing::warn!(node, part = name, %error, "cannot remove a part");
                }
            });
        }
    });
}

/// Removes the parts of the previous generation that the new one does not use, after their packets
/// have left.
fn retire(takers: &dyn PartTakers, previous: &Deployment, new: &[NewPart]) {
    let is_used = |old: &&PlacedPart| new.iter().any(|part| part.at == **old);
    let old = previous.parts.iter().filter(|old| !is_used(old));
    let old: Vec<&PlacedPart> = old.collect();
    for part in &old {
        drain(takers, part, previous.links);
    }
    remove_all(takers, old);
}

/// Removes all parts. The first part goes first, then the others when their packets have left.
///
/// # Errors
/// The first part that cannot be removed; all others are removed.
pub fn take_down(takers: &dyn PartTakers, deployment: &Deployment) -> Result<(), ApiError> {
    let Some((first, others)) = deployment.parts.split_first() else {
        return Ok(());
    };
    let mut outcome = takers.remove(&first.node, &first.name);
    for part in others {
        drain(takers, part, deployment.links);
        outcome = outcome.and(takers.remove(&part.node, &part.name));
    }
    outcome
}

/// Waits until as many packets have left a part as have entered it, and none comes.
fn drain(takers: &dyn PartTakers, part: &PlacedPart, links: Duration) {
    let deadline = Instant::now() + DRAIN_TIMEOUT + links;
    let mut before = None;
    while Instant::now() < deadline {
        let Ok(Some(status)) = takers.status(&part.node, &part.name) else {
            // Nobody has the part.
            return;
        };
        let entered = status.account.packets_in;
        if before == Some(entered) && status.account.under_way == 0 {
            return;
        }
        before = Some(entered);
        thread::sleep(links + QUIET);
    }
    tracing::warn!(
        node = part.node,
        part = part.name,
        "a part still has packets: it is removed"
    );
}
