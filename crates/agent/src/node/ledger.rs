//! The node's ledger: what the running chains were promised, and what they take.
//!
//! A file's chains are decided in one step, all or none. While a chain changes its form, the ledger holds both forms, so no other
//! chain is promised what one of them takes until the change is settled.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use myelin_planner::admission::{self, Booking, Ledger, Site};
use myelin_planner::{Costs, Machine, Plan};
use myelin_spec::ServiceChain;

use crate::api::ApiError;
use crate::pool::lock;

/// How often a waiting request checks whether it was called off.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The ledger of a node; its clones are the same one.
#[derive(Default, Clone)]
pub(crate) struct NodeLedger(Arc<Shared>);

#[derive(Default)]
struct Shared {
    entered: Mutex<Entered>,
    settled: Condvar,
}

#[derive(Default)]
struct Entered {
    ledger: Ledger,
    /// Changes of running chains that are not settled: each is about to give back what one of two forms takes.
    changes: usize,
}

/// A chain that asks to be admitted.
pub(crate) struct Candidate<'a> {
    pub(crate) chain: &'a ServiceChain,
    /// Takes the decision.
    pub(crate) plan: &'a mut Plan,
    pub(crate) machine: &'a Machine,
    pub(crate) site: &'a Site,
}

/// The bookings of a file's chains until they are settled. Dropping it puts everything back as it was.
pub(crate) struct Admission {
    ledger: NodeLedger,
    /// Each chain with what it was entered with before.
    chains: Vec<(String, Option<Booking>)>,
    is_settled: bool,
}

/// Under this name the ledger holds the former form of a chain that changes: no chain has a name with a space in it.
fn former(chain: &str) -> String {
    format!("{chain} (former form)")
}

impl NodeLedger {
    /// Decides whether the chains of a file fit beside all others, and enters them. `decide` sees each plan with its decision and
    /// may refuse. What a chain has now is free for the new forms, wherever in the file they stand.
    ///
    /// # Errors
    /// The first refusal; then nothing is entered.
    pub(crate) fn admit(
        &self,
        costs: &Costs,
        candidates: &mut [Candidate<'_>],
        is_called_off: &dyn Fn() -> bool,
        mut decide: impl FnMut(&ServiceChain, &mut Plan) -> Result<(), ApiError>,
    ) -> Result<Admission, ApiError> {
        let mut entered = lock(&self.0.entered);
        loop {
            let ledger = &mut entered.ledger;
            let leave = |one: &Candidate<'_>| {
                let name = &one.chain.name;
                (name.clone(), ledger.remove(name))
            };
            let chains: Vec<_> = candidates.iter().map(leave).collect();
            let decided = candidates.iter_mut().try_for_each(|one| {
                let node = admission::Node {
                    costs,
                    machine: one.machine,
                    ledger,
                };
                let booking = admission::review(one.plan, one.chain, &node, one.site);
                decide(one.chain, one.plan)?;
                ledger.insert(booking);
                Ok(())
            });
            let Err(error) = decided else {
                for (name, booking) in &chains {
                    if let Some(mut booking) = booking.clone() {
                        booking.chain = former(name);
                        ledger.insert(booking);
                    }
                }
                let admission = Admission {
                    ledger: self.clone(),
                    chains,
                    is_settled: false,
                };
                entered.changes += usize::from(admission.is_change());
                return Ok(admission);
            };
            restore(ledger, chains);
            if entered.changes == 0 || is_called_off() {
                return Err(error);
            }
            // It may fit once a change under way is settled.
            let waited = self.0.settled.wait_timeout(entered, LOOK_EVERY);
            entered = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// A chain has gone.
    pub(crate) fn remove(&self, chain: &str) {
        lock(&self.0.entered).ledger.remove(chain);
    }
}

impl Admission {
    fn is_change(&self) -> bool {
        self.chains.iter().any(|(_, booking)| booking.is_some())
    }

    /// The chains run in their new forms: what the former ones took is free.
    pub(crate) fn settle(mut self) {
        self.is_settled = true;
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        let is_change = self.is_change();
        let mut entered = lock(&self.ledger.0.entered);
        for (name, _) in &self.chains {
            entered.ledger.remove(&former(name));
        }
        if !self.is_settled {
            restore(&mut entered.ledger, std::mem::take(&mut self.chains));
        }
        entered.changes -= usize::from(is_change);
        drop(entered);
        self.ledger.0.settled.notify_all();
    }
}

fn restore(ledger: &mut Ledger, chains: Vec<(String, Option<Booking>)>) {
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
        parse(&text, &Source::new("tried.yaml"), &NoFiles)
            .unwrap_or_else(|errors| panic!("{errors}"))
            .remove(0)
    }

    fn enter(ledger: &NodeLedger, chains: &[(&str, u32)]) -> Result<Admission, ApiError> {
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
        });
        let mut candidates: Vec<_> = candidates.collect();
        let decide = |_: &ServiceChain, plan: &mut Plan| {
            let refusal = (!plan.admitted).then(|| ApiError::refused("refused"));
            refusal.map_or(Ok(()), Err)
        };
        ledger.admit(&costs, &mut candidates, &|| false, decide)
    }

    fn entered(ledger: &NodeLedger) -> Ledger {
        lock(&ledger.0.entered).ledger.clone()
    }

    #[test]
    fn a_file_that_is_not_deployed_leaves_the_ledger_as_it_was() {
        let ledger = NodeLedger::default();
        enter(&ledger, &[("one", 64), ("two", 64)])
            .unwrap()
            .settle();
        let before = entered(&ledger);
        let freed = enter(&ledger, &[("two", 120), ("one", 4)]).unwrap();
        drop(freed);
        assert_eq!(entered(&ledger), before);
        assert!(enter(&ledger, &[("two", 4), ("three", 200)]).is_err());
        assert_eq!(entered(&ledger), before);
        assert!(enter(&ledger, &[("three", 120)]).is_err());
        ledger.remove("two");
        enter(&ledger, &[("three", 64)]).unwrap().settle();
    }

    #[test]
    fn what_either_form_of_a_changing_chain_takes_is_nobody_else_s() {
        let ledger = NodeLedger::default();
        enter(&ledger, &[("one", 120)]).unwrap().settle();
        let change = enter(&ledger, &[("one", 4)]).unwrap();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| enter(&ledger, &[("two", 120)]).map(Admission::settle));
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(
                !other.is_finished(),
                "it is not refused before the change is settled"
            );
            change.settle();
            other.join().unwrap().unwrap();
        });
        let change = enter(&ledger, &[("one", 2)]).unwrap();
        drop(change);
        assert!(
            entered(&ledger)
                .get("one")
                .is_some_and(|one| one.chain == "one")
        );
    }
}
