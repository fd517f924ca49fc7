//! The node's ledger: the contracts of running chains, and the resources that they take.
//!
//! The ledger decides on the chains of a file in one step, all or none. While a chain changes, the
//! ledger holds both generations, so no other chain gets resources that either generation needs.
//!
//! Other agents of the machine may share its cores (`peers`): their bookings count too.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use myelin_planner::admission::{self, Booking, Ledger, Site};
use myelin_planner::{Costs, Machine, Plan};
use myelin_spec::ServiceChain;

use crate::api::ApiError;
use crate::node::peers::{Peers, PeersGuard};
use crate::pool::lock;

/// Interval at which a waiting request checks for its cancellation.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// The ledger of a node. Clones share the same ledger.
#[derive(Default, Clone)]
pub(crate) struct NodeLedger(Arc<SharedLedger>);

#[derive(Default)]
struct SharedLedger {
    state: Mutex<LedgerState>,
    changed: Condvar,
    /// The other agents of the machine; `None` without any.
    peers: Option<Peers>,
}

#[derive(Default)]
struct LedgerState {
    ledger: Ledger,
    /// Uncommitted changes of running chains: each will free the resources of one generation.
    open_changes: usize,
    /// Whether other agents may share the cores.
    is_shared: bool,
}

/// A chain to admit.
pub(crate) struct Candidate<'a> {
    pub(crate) chain: &'a ServiceChain,
    /// Receives the decision.
    pub(crate) plan: &'a mut Plan,
    pub(crate) machine: &'a Machine,
    pub(crate) site: &'a Site,
    /// Admitted chains whose packets this chain will take. They keep their bookings.
    pub(crate) takes_over: &'a [String],
}

/// The bookings of a file's chains until the commit. Dropping the value without a commit restores
/// the earlier bookings.
pub(crate) struct Admission {
    ledger: NodeLedger,
    /// Each chain with its earlier booking.
    chains: Vec<(String, Option<Booking>)>,
    is_committed: bool,
}

/// The ledger's name for the previous generation of a changing chain. Chain names contain no space.
fn previous_name(chain: &str) -> String {
    format!("{chain} (previous generation)")
}

impl NodeLedger {
    /// Creates the ledger of an agent. That of a topology's node shares its cores from the start,
    /// and so does that of a machine where nodes of a killed agent may run.
    ///
    /// # Errors
    /// The bookings cannot be written.
    pub(crate) fn with_peers(peers: Peers) -> Result<Self, ApiError> {
        let is_shared = peers.may_run();
        let ledger = Self(Arc::new(SharedLedger {
            peers: Some(peers),
            ..SharedLedger::default()
        }));
        if is_shared {
            ledger.share()?;
        }
        Ok(ledger)
    }

    /// Tells other agents the bookings from now on, and counts theirs.
    ///
    /// # Errors
    /// The bookings cannot be written.
    pub(crate) fn share(&self) -> Result<(), ApiError> {
        let mut state = lock(&self.0.state);
        state.is_shared = true;
        publish(&state, self.hold_peers(&state)?)
    }

    /// Keeps other agents from decisions until the guard is dropped; `None` without other agents.
    fn hold_peers(&self, state: &LedgerState) -> Result<Option<PeersGuard<'_>>, ApiError> {
        let peers = self.0.peers.as_ref().filter(|_| state.is_shared);
        peers.map(Peers::hold).transpose()
    }

    /// Tells other agents that resources are free.
    fn publish_less(&self, state: &LedgerState) {
        let held = self.hold_peers(state);
        if let Err(error) = held.and_then(|held| publish(state, held)) {
            // Other agents count too much until the next change.
            tracing::error!(%error, "cannot free the bookings of a chain for other agents");
        }
    }

    /// Returns the bookings of all agents of the machine.
    ///
    /// # Errors
    /// The bookings of another agent cannot be read.
    pub(crate) fn of_machine(&self) -> Result<Ledger, ApiError> {
        let state = lock(&self.0.state);
        let mut all = state.ledger.clone();
        let held = self.hold_peers(&state)?;
        let others = held.map_or(Ok(Vec::new()), |held| held.read())?;
        for booking in others {
            all.insert(booking);
        }
        Ok(all)
    }

    /// Decides whether the chains of a file fit next to all others, and books the chains. `decide`
    /// gets each plan with the ledger's decision, and may refuse the plan. The new generations may
    /// use the resources of the chains' current generations, in any order of the file.
    ///
    /// # Errors
    /// The first refusal. Nothing is booked then.
    pub(crate) fn admit(
        &self,
        costs: &Costs,
        candidates: &mut [Candidate<'_>],
        is_cancelled: &dyn Fn() -> bool,
        mut decide: impl FnMut(&ServiceChain, &mut Plan) -> Result<(), ApiError>,
    ) -> Result<Admission, ApiError> {
        let mut state = lock(&self.0.state);
        loop {
            let held = self.hold_peers(&state)?;
            let others = held.as_ref().map_or(Ok(Vec::new()), PeersGuard::read)?;
            let others: Vec<Booking> = others
                .into_iter()
                .filter(|booking| !is_previous_path(booking, candidates))
                .collect();
            let ledger = &mut state.ledger;
            let remove = |candidate: &Candidate<'_>| {
                let name = &candidate.chain.name;
                (name.clone(), ledger.remove(name))
            };
            let chains: Vec<_> = candidates.iter().map(remove).collect();
            let taken_over = candidates.iter().flat_map(|candidate| candidate.takes_over);
            let taken_over: Vec<_> = taken_over.filter_map(|name| ledger.remove(name)).collect();
            for booking in &others {
                ledger.insert(booking.clone());
            }
            let decided = candidates.iter_mut().try_for_each(|candidate| {
                let node = admission::Node {
                    costs,
                    machine: candidate.machine,
                    ledger,
                };
                let booking =
                    admission::review(candidate.plan, candidate.chain, &node, candidate.site);
                let sharers = held
                    .as_ref()
                    .and_then(|held| held.describe_sharers(&booking, &others))
                    .unwrap_or_default();
                refuse_core_conflict(ledger, candidate, &sharers)?;
                if let Some(refusal) = &mut candidate.plan.refusal {
                    refusal.push_str(&sharers);
                }
                decide(candidate.chain, candidate.plan)?;
                ledger.insert(booking);
                Ok(())
            });
            for booking in taken_over {
                ledger.insert(booking);
            }
            for booking in &others {
                ledger.remove(&booking.chain);
            }
            let Err(error) = decided else {
                for (name, booking) in &chains {
                    if let Some(mut booking) = booking.clone() {
                        booking.chain = previous_name(name);
                        ledger.insert(booking);
                    }
                }
                let admission = Admission {
                    ledger: self.clone(),
                    chains,
                    is_committed: false,
                };
                state.open_changes += usize::from(admission.is_change());
                let published = publish(&state, held);
                // Without an answer to other agents, the drop of `admission` restores all.
                drop(state);
                return published.map(|()| admission);
            };
            restore_bookings(ledger, chains);
            if state.open_changes == 0 || is_cancelled() {
                return Err(error);
            }
            drop(held);
            // The chain may fit after another change is committed.
            let waited = self.0.changed.wait_timeout(state, CHECK_INTERVAL);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Removes the booking of a chain.
    pub(crate) fn remove(&self, chain: &str) {
        let mut state = lock(&self.0.state);
        if state.ledger.remove(chain).is_some() {
            self.publish_less(&state);
        }
    }
}

impl Admission {
    fn is_change(&self) -> bool {
        self.chains.iter().any(|(_, booking)| booking.is_some())
    }

    /// Commits the new generations, and frees the resources of the previous generations.
    pub(crate) fn commit(mut self) {
        self.is_committed = true;
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        let is_change = self.is_change();
        let mut state = lock(&self.ledger.0.state);
        for (name, _) in &self.chains {
            state.ledger.remove(&previous_name(name));
        }
        if !self.is_committed {
            restore_bookings(&mut state.ledger, std::mem::take(&mut self.chains));
        }
        state.open_changes -= usize::from(is_change);
        if is_change || !self.is_committed {
            self.ledger.publish_less(&state);
        }
        drop(state);
        self.ledger.0.changed.notify_all();
    }
}

/// Tells other agents the bookings.
fn publish(state: &LedgerState, held: Option<PeersGuard<'_>>) -> Result<(), ApiError> {
    held.map_or(Ok(()), |held| held.publish(&state.ledger))
}

/// Whether a booking of another agent is of a chain over nodes that a candidate continues on
/// another path: its packets leave that path.
fn is_previous_path(booking: &Booking, candidates: &[Candidate<'_>]) -> bool {
    candidates.iter().any(|candidate| {
        let part = candidate.chain.part.as_ref();
        part.is_some_and(|part| booking.is_other_path_of(candidate.chain.whole(), part.path))
    })
}

/// Refuses a chain whose worker cannot share its core with those there. `--force` changes nothing
/// about that.
fn refuse_core_conflict(
    ledger: &Ledger,
    candidate: &Candidate<'_>,
    sharers: &str,
) -> Result<(), ApiError> {
    let chain = candidate.chain;
    let conflict = ledger.find_core_conflict(chain, candidate.plan);
    conflict.map_or(Ok(()), |why| {
        let (place, name) = (&chain.places.worker, &chain.name);
        Err(ApiError::refused(format!(
            "{place}: chain `{name}`: {why}{sharers}"
        )))
    })
}

fn restore_bookings(ledger: &mut Ledger, chains: Vec<(String, Option<Booking>)>) {
    for (name, booking) in chains {
        ledger.remove(&name);
        if let Some(booking) = booking {
            ledger.insert(booking);
        }
    }
}

#[cfg(test)]
mod tests {
    use myelin_spec::{NoFiles, Source, parse};

    use super::*;

    fn chain(name: &str, burst: u32) -> ServiceChain {
        let text = format!(
            "apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: {{ name: {name} }}\nspec:\n  match: {{}}\n  \
             functions: [ {{ name: f, kind: forward }} ]\n  ports: {{ ingress: eth1, egress: eth2 }}\n  \
             sla: {{ rate: 1kpps, burst: {burst}, latency: 100us }}\n"
        );
        parse(&text, &Source::new("test.yaml"), &NoFiles)
            .unwrap_or_else(|errors| panic!("{errors}"))
            .remove(0)
    }

    fn admit(ledger: &NodeLedger, chains: &[(&str, u32)]) -> Result<Admission, ApiError> {
        let costs = Costs::default();
        let chains: Vec<_> = chains
            .iter()
            .map(|(name, burst)| chain(name, *burst))
            .collect();
        let machine = Machine::with_end_hosts(2);
        let plan = |chain| {
            let plan = myelin_planner::plan(chain, &costs, &machine).unwrap();
            (chain, plan, Site::planned(chain, &machine))
        };
        let mut plans: Vec<_> = chains.iter().map(plan).collect();
        let candidates = plans.iter_mut().map(|(chain, plan, site)| Candidate {
            chain,
            plan,
            machine: &machine,
            site,
            takes_over: &[],
        });
        let mut candidates: Vec<_> = candidates.collect();
        let decide = |_: &ServiceChain, plan: &mut Plan| {
            let refusal = (!plan.admitted).then(|| ApiError::refused("refused"));
            refusal.map_or(Ok(()), Err)
        };
        ledger.admit(&costs, &mut candidates, &|| false, decide)
    }

    fn bookings(ledger: &NodeLedger) -> Ledger {
        lock(&ledger.0.state).ledger.clone()
    }

    #[test]
    fn a_refused_or_dropped_admission_leaves_the_ledger_unchanged() {
        let ledger = NodeLedger::default();
        admit(&ledger, &[("one", 64), ("two", 64)])
            .unwrap()
            .commit();
        let before = bookings(&ledger);
        let freed = admit(&ledger, &[("two", 120), ("one", 4)]).unwrap();
        drop(freed);
        assert_eq!(bookings(&ledger), before);
        assert!(admit(&ledger, &[("two", 4), ("three", 200)]).is_err());
        assert_eq!(bookings(&ledger), before);
        assert!(admit(&ledger, &[("three", 120)]).is_err());
        ledger.remove("two");
        admit(&ledger, &[("three", 64)]).unwrap().commit();
    }

    #[test]
    fn a_changing_chain_keeps_the_resources_of_both_generations() {
        let ledger = NodeLedger::default();
        admit(&ledger, &[("one", 120)]).unwrap().commit();
        let change = admit(&ledger, &[("one", 4)]).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| admit(&ledger, &[("two", 120)]).map(Admission::commit));
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(
                !waiting.is_finished(),
                "chain `two` must wait until the change is committed"
            );
            change.commit();
            waiting.join().unwrap().unwrap();
        });
        let change = admit(&ledger, &[("one", 2)]).unwrap();
        drop(change);
        assert!(
            bookings(&ledger)
                .get("one")
                .is_some_and(|booking| booking.chain == "one")
        );
    }
}
