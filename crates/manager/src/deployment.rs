//! Makes, changes and removes all parts of a chain as one.
//!
//! The first part alone decides which packets enter the chain, and which path they take. So all
//! other parts come up before it, and go down after it. A change gives the chain a new path: its
//! parts come up beside those of the previous path, then the first part leads packets into the new
//! path, and the parts of the previous path go when their packets have left ([`retire`]). Until
//! then, [`undo`] leads packets back.
//!
//! If packets enter at another place after the change, the new path has a first part of its own,
//! and both paths take their packets until the previous one goes.

use std::time::Duration;

use myelin_api::{ApiError, ChainStatus, ChainUp, Change, UpRequest};

use crate::drain::drain;
use crate::parallel::in_parallel;

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

/// The place of a part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacedPart {
    /// The node.
    pub node: String,
    /// The name of the part on its node.
    pub name: String,
    /// Whether it is the first part of a branch, behind a part that splits the flows.
    pub begins_branch: bool,
}

/// A part to take.
#[derive(Debug, Clone)]
pub struct NewPart {
    /// The node and the name.
    pub at: PlacedPart,
    /// The object.
    pub request: UpRequest,
}

/// The parts of a running chain, in order.
#[derive(Debug, Clone)]
pub struct Deployment {
    /// The parts, as the agents took them.
    pub parts: Vec<NewPart>,
    /// What each agent answered.
    pub ups: Vec<ChainUp>,
    /// The longest delay of the links between the parts.
    pub links: Duration,
}

/// The packets of a path that has ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EndedPath {
    /// The packets at the first part.
    pub first: EndedEntrance,
    /// Packets that left the last part.
    pub left: u64,
}

/// The packets at the first part of a path that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndedEntrance {
    /// The other path has the same first part, which counts on. So many packets left it on the
    /// ended path.
    Stays(u64),
    /// The first part has gone.
    Gone {
        /// Packets that entered it.
        entered: u64,
        /// Of these, packets that its policer dropped.
        policed: u64,
    },
}

impl Default for EndedEntrance {
    fn default() -> Self {
        Self::Stays(0)
    }
}

impl Deployment {
    /// The first part, where packets enter.
    fn entrance(&self) -> Option<&PlacedPart> {
        self.parts.first().map(|part| &part.at)
    }

    /// Returns the packets that left the first part on the previous path, since that part was last
    /// changed; `None` if the previous path has another first part.
    pub fn left_previous_entrance(&self) -> Option<u64> {
        self.ups.first().and_then(|up| up.previous_packets_out)
    }

    /// Whether packets enter both paths at the same part.
    fn enters_with(&self, other: &Self) -> bool {
        self.entrance() == other.entrance()
    }

    /// The parts behind the first one.
    fn later(&self) -> Vec<&PlacedPart> {
        self.parts.iter().skip(1).map(|part| &part.at).collect()
    }
}

/// Makes all parts, or none. With a previous path, packets enter the new path from one moment on.
/// The parts of the previous path remain, for [`retire`] or [`undo`]; if it has another first part,
/// they still take the packets that enter there.
///
/// # Errors
/// A part cannot be taken. The previous path then remains, if the agent of the first part runs.
pub fn bring_up(
    takers: &dyn PartTakers,
    new: Vec<NewPart>,
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
            // Without an answer it is unknown whether the agent took the part.
            lead_back(takers, first, others, links, previous);
            return Err(error);
        }
    }
    let parts = new;
    Ok(Deployment { parts, ups, links })
}

/// Takes all parts but the first, at the same time. After a failure, none remains.
fn prepare(takers: &dyn PartTakers, parts: &[NewPart]) -> Result<Vec<ChainUp>, ApiError> {
    let taken = in_parallel(parts, |part| take(takers, part)).into_iter();
    let failed = || Err(ApiError::failed("a thread that prepares a part ended"));
    let taken: Result<Vec<_>, _> = taken.map(|taken| taken.unwrap_or_else(failed)).collect();
    taken.inspect_err(|_| {
        // The caller gets the first error.
        let _ = remove_all(takers, parts.iter().map(|part| &part.at));
    })
}

fn take(takers: &dyn PartTakers, part: &NewPart) -> Result<ChainUp, ApiError> {
    let node = &part.at.node;
    takers.take(node, &part.request).map_err(|error| ApiError {
        message: format!("node `{node}`: {}", error.message),
        ..error
    })
}

/// Removes new parts whose first part did not come up. Packets stay in the previous path.
fn lead_back(
    takers: &dyn PartTakers,
    first: &NewPart,
    others: &[NewPart],
    links: Duration,
    previous: Option<&Deployment>,
) {
    let others: Vec<_> = others.iter().map(|part| &part.at).collect();
    let old = previous.and_then(|previous| previous.parts.first());
    let Some(old) = old.filter(|old| old.at == first.at) else {
        // The caller gets the first error.
        let _ = end_path(takers, &first.at, &others, links);
        return;
    };
    match take(takers, old) {
        Ok(up) if up.change == Change::Changed => {
            drain(takers, &others, links, up.previous_packets_out);
        }
        Ok(_) => {}
        Err(error) => {
            let part = &first.at.name;
            tracing::error!(part, %error, "cannot lead packets back to the previous path");
        }
    }
    let _ = remove_all(takers, others);
}

/// Removes parts at the same time, and logs each failure.
///
/// # Errors
/// The first part that cannot be removed; all others are removed.
fn remove_all<'p>(
    takers: &dyn PartTakers,
    parts: impl IntoIterator<Item = &'p PlacedPart>,
) -> Result<(), ApiError> {
    let parts: Vec<&PlacedPart> = parts.into_iter().collect();
    // Waits for all threads before it looks for an error.
    let removed = in_parallel(&parts, |PlacedPart { node, name, .. }| {
        let removed = takers.remove(node, name);
        removed.inspect_err(|error| {
            tracing::warn!(node, part = name, %error, "cannot remove a part");
        })
    });
    let failed = || Err(ApiError::failed("a thread that removes a part ended"));
    let mut removed = removed.into_iter();
    removed.try_for_each(|removed| removed.unwrap_or_else(failed))
}

/// Removes the parts of the previous path after their packets have left, and logs failures. Returns
/// the packets of that path. `resumed`: packets that left its first part before undone changes,
/// after which the first part counts the packets of the path from zero.
pub fn retire(
    takers: &dyn PartTakers,
    previous: &Deployment,
    new: &Deployment,
    resumed: u64,
) -> EndedPath {
    let first = previous.entrance();
    if let Some(first) = first.filter(|_| !previous.enters_with(new)) {
        return end_path(takers, first, &previous.later(), previous.links).0;
    }
    let entered = new.left_previous_entrance();
    end_later(takers, previous, entered.map(|entered| entered + resumed))
}

/// Removes a new chain. With a previous path, first leads packets back to that path, whose parts
/// remain. Returns the packets of the removed path.
///
/// # Errors
/// The first part does not change back, or a part of a new chain cannot be removed.
pub fn undo(
    takers: &dyn PartTakers,
    new: &Deployment,
    previous: Option<&Deployment>,
) -> Result<EndedPath, ApiError> {
    let Some(previous) = previous else {
        return take_down(takers, new).map(|()| EndedPath::default());
    };
    if let Some(first) = new.entrance().filter(|_| !previous.enters_with(new)) {
        // The previous path takes its packets, whatever remains of the new one.
        return Ok(end_path(takers, first, &new.later(), new.links).0);
    }
    let first = previous.parts.first();
    let up = first.map(|first| take(takers, first)).transpose()?;
    let entered = up.and_then(|up| up.previous_packets_out);
    // Packets are back in the previous path, whatever remains of the new one.
    Ok(end_later(takers, new, entered))
}

/// Removes the parts of a path behind its first part, into which no packet goes any more, when
/// these `entered` packets have left them.
fn end_later(takers: &dyn PartTakers, path: &Deployment, entered: Option<u64>) -> EndedPath {
    let later = path.later();
    let left = drain(takers, &later, path.links, entered).left;
    let _ = remove_all(takers, later);
    EndedPath {
        first: EndedEntrance::Stays(entered.unwrap_or_default()),
        left: left.unwrap_or_default(),
    }
}

/// Removes all parts. The first part goes first, then the others when their packets have left.
///
/// # Errors
/// The first part that cannot be removed; all others are removed.
pub fn take_down(takers: &dyn PartTakers, deployment: &Deployment) -> Result<(), ApiError> {
    let Some(first) = deployment.entrance() else {
        return Ok(());
    };
    end_path(takers, first, &deployment.later(), deployment.links).1
}

/// Removes the first part of a path, then the others when their packets have left. Returns the
/// packets of the path, and the first error of a removal.
fn end_path(
    takers: &dyn PartTakers,
    first: &PlacedPart,
    later: &[&PlacedPart],
    links: Duration,
) -> (EndedPath, Result<(), ApiError>) {
    // An agent that does not answer has no counts.
    let counts = takers.status(&first.node, &first.name).ok().flatten();
    let removed = remove_all(takers, [first]);
    let drained = drain(takers, later, links, None);
    let removed = removed.and(remove_all(takers, later.iter().copied()));
    let entered = counts.as_ref().map_or(0, |counts| {
        let account = &counts.account;
        let passed = account.packets_out + account.under_way;
        let kept = account.packets_in.saturating_sub(passed);
        // Packets may have entered since the first part was asked. The next part has received them.
        let received = drained.received.map_or(0, |received| received + kept);
        counts.packets_in.max(received)
    });
    let policed = counts.as_ref().map_or(0, |counts| counts.account.policed);
    let left = match later {
        [] => counts.map(|counts| counts.packets_out),
        _ => drained.left,
    };
    let ended = EndedPath {
        first: EndedEntrance::Gone { entered, policed },
        left: left.unwrap_or_default(),
    };
    (ended, removed)
}
