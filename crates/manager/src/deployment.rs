//! Makes, changes and removes all parts of a chain as one.
//!
//! The first part alone decides which packets enter the chain, and which path they take. So all
//! other parts come up before it, and go down after it. A change gives the chain a new path: its
//! parts come up beside those of the previous path, then the first part leads packets into the new
//! path, and the parts of the previous path go when their packets have left ([`retire`]). Until
//! then, [`undo`] leads packets back.

use std::thread;
use std::time::{Duration, Instant};

use myelin_api::{ApiError, ChainStatus, ChainUp, Change, UpRequest};

/// Longest time that packets of a path may take to leave a part.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Time without a packet after which a part is empty, besides the delay of the links.
const QUIET: Duration = Duration::from_millis(20);
/// Time without a packet after which packets that a previous part has sent count as lost, besides
/// the delay of the links.
const LOST_AFTER: Duration = Duration::from_millis(500);
/// Interval at which the counts of a part are read.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);

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

impl Deployment {
    /// The parts behind the first one.
    fn later(&self) -> impl Iterator<Item = &PlacedPart> {
        self.parts.iter().skip(1).map(|part| &part.at)
    }
}

/// Makes all parts, or none. With a previous path, packets enter the new path from one moment on.
/// The parts of the previous path remain, for [`retire`] or [`undo`].
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

/// Removes new parts whose first part did not come up. Packets stay in the previous path.
fn lead_back(
    takers: &dyn PartTakers,
    first: &NewPart,
    others: &[NewPart],
    links: Duration,
    previous: Option<&Deployment>,
) {
    let old = previous.and_then(|previous| previous.parts.first());
    if let Some(old) = old.filter(|old| old.at == first.at) {
        match take(takers, old) {
            Ok(up) if up.change == Change::Changed => {
                let others = others.iter().map(|part| &part.at);
                drain_path(takers, others, links, up.previous_packets_out);
            }
            Ok(_) => {}
            Err(error) => {
                let part = &first.at.name;
                tracing::error!(part, %error, "cannot lead packets back to the previous path");
            }
        }
        remove_all(takers, others.iter().map(|part| &part.at));
    } else {
        remove_all(
            takers,
            [first].into_iter().chain(others).map(|part| &part.at),
        );
    }
}

/// Removes parts at the same time. Logs failures: each node is tried.
fn remove_all<'p>(takers: &dyn PartTakers, parts: impl IntoIterator<Item = &'p PlacedPart>) {
    thread::scope(|scope| {
        for PlacedPart { node, name, .. } in parts {
            scope.spawn(move || {
                if let Err(error) = takers.remove(node, name) {
                    tracing::warn!(node, part = name, %error, "cannot remove a part");
                }
            });
        }
    });
}

/// Removes the parts of the previous path after their packets have left. Returns the packets that
/// left the previous path.
pub fn retire(takers: &dyn PartTakers, previous: &Deployment, new: &Deployment) -> u64 {
    let entered = new.ups.first().and_then(|up| up.previous_packets_out);
    let left = drain_path(takers, previous.later(), previous.links, entered);
    remove_all(takers, previous.later());
    left.unwrap_or_default()
}

/// Removes a new chain. With a previous path, first leads packets back to that path, whose parts
/// remain.
///
/// # Errors
/// The first part does not change back, or a part of a new chain cannot be removed.
pub fn undo(
    takers: &dyn PartTakers,
    new: &Deployment,
    previous: Option<&Deployment>,
) -> Result<(), ApiError> {
    let Some(previous) = previous else {
        return take_down(takers, new);
    };
    let first = previous.parts.first();
    let up = first.map(|first| take(takers, first)).transpose()?;
    let entered = up.and_then(|up| up.previous_packets_out);
    drain_path(takers, new.later(), new.links, entered);
    remove_all(takers, new.later());
    Ok(())
}

/// Removes all parts. The first part goes first, then the others when their packets have left.
///
/// # Errors
/// The first part that cannot be removed; all others are removed.
pub fn take_down(takers: &dyn PartTakers, deployment: &Deployment) -> Result<(), ApiError> {
    let Some(NewPart { at: first, .. }) = deployment.parts.first() else {
        return Ok(());
    };
    let mut outcome = takers.remove(&first.node, &first.name);
    for part in deployment.later() {
        drain(takers, part, deployment.links, None);
        outcome = outcome.and(takers.remove(&part.node, &part.name));
    }
    outcome
}

/// Waits until `entered` packets have passed each of these neighbouring parts. It is unknown how
/// many of them take each branch. Returns the packets that left the last part, of all branches.
fn drain_path<'p>(
    takers: &dyn PartTakers,
    parts: impl IntoIterator<Item = &'p PlacedPart>,
    links: Duration,
    entered: Option<u64>,
) -> Option<u64> {
    let mut of_ended_branches: Option<u64> = None;
    let mut sent = entered;
    let mut is_in_branch = false;
    for part in parts {
        if part.begins_branch {
            if is_in_branch {
                of_ended_branches = Some(of_ended_branches.unwrap_or(0) + sent.unwrap_or(0));
            }
            is_in_branch = true;
            sent = None;
        }
        sent = drain(takers, part, links, sent);
    }
    match of_ended_branches {
        Some(ended) => Some(ended + sent.unwrap_or(0)),
        None => sent,
    }
}

/// The counts of a part that drains.
#[derive(PartialEq, Eq)]
struct Counts {
    received: u64,
    entered: u64,
    left: u64,
    under_way: u64,
    /// Packets that left to the next node, or that the exit to it dropped.
    at_exit: u64,
}

impl Counts {
    fn of(status: &ChainStatus) -> Self {
        let (account, part) = (&status.account, status.part.as_ref());
        let received = part.and_then(|part| part.received);
        let at_exit = part.and_then(|part| Some(part.sent? + part.too_long + part.unresolved));
        Self {
            received: received.unwrap_or(account.packets_in),
            entered: account.packets_in,
            left: account.packets_out,
            under_way: account.under_way,
            at_exit: at_exit.unwrap_or(account.packets_out),
        }
    }

    /// Whether all of `sent` packets have arrived, and have left the part.
    fn are_complete(&self, sent: u64) -> bool {
        self.received >= sent && self.entered >= self.received && self.at_exit >= self.left
    }
}

/// Waits until as many packets have left a part as the previous part has `sent`; without that
/// number, and after losses, until no packet comes. Returns the packets that left the part, to the
/// next node if there is one.
fn drain(
    takers: &dyn PartTakers,
    part: &PlacedPart,
    links: Duration,
    sent: Option<u64>,
) -> Option<u64> {
    let quiet = links + sent.map_or(QUIET, |_| LOST_AFTER);
    let deadline = Instant::now() + DRAIN_TIMEOUT + links;
    let mut before: Option<Counts> = None;
    let mut last_change = Instant::now();
    loop {
        // Without an answer, nobody has the part.
        let status = takers.status(&part.node, &part.name).ok()??;
        let counts = Counts::of(&status);
        if before.as_ref() != Some(&counts) {
            last_change = Instant::now();
        }
        let is_complete = sent.is_some_and(|sent| counts.are_complete(sent));
        let is_empty = counts.under_way == 0 && (is_complete || last_change.elapsed() > quiet);
        let is_late = Instant::now() > deadline;
        if is_late && !is_empty {
            let PlacedPart { node, name, .. } = part;
            tracing::warn!(node, part = name, "a part still has packets: it is removed");
        }
        if is_empty || is_late {
            let sent = status.part.and_then(|part| part.sent);
            return Some(sent.unwrap_or(counts.left));
        }
        before = Some(counts);
        thread::sleep(CHECK_INTERVAL);
    }
}
