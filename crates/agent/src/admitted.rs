//! The node's ledger: what the running chains were promised, and what they take.

use myelin_planner::admission::{self, Booking, Ledger, Site};
use myelin_planner::{Costs, Machine, Plan};
use myelin_spec::ServiceChain;

/// The ledger, with the way back while a file is being deployed.
#[derive(Default)]
pub(crate) struct Admitted {
    ledger: Ledger,
    /// What each chain that was touched since [`begin`](Self::begin) was entered with before; the latest last.
    before: Vec<(String, Option<Booking>)>,
}

impl Admitted {
    /// A file is to be deployed. What its chains take now is free for their new forms, wherever in the file they stand.
    pub(crate) fn begin<'a>(&mut self, changed: impl IntoIterator<Item = &'a str>) {
        self.before.clear();
        for chain in changed {
            self.leave(chain);
        }
    }

    /// Decides whether a chain fits beside all others, and enters it. Who is refused and not deployed is taken out by
    /// [`roll_back`](Self::roll_back).
    pub(crate) fn review(
        &mut self,
        plan: &mut Plan,
        chain: &ServiceChain,
        (costs, machine): (&Costs, &Machine),
        site: &Site,
    ) {
        self.leave(&chain.name);
        let node = admission::Node {
            costs,
            machine,
            ledger: &self.ledger,
        };
        let booking = admission::review(plan, chain, &node, site);
        self.ledger.insert(booking);
    }

    /// A chain has gone.
    pub(crate) fn remove(&mut self, chain: &str) {
        self.ledger.remove(chain);
    }

    /// The file was not deployed: all is as it was.
    pub(crate) fn roll_back(&mut self) {
        while let Some((chain, booking)) = self.before.pop() {
            self.ledger.remove(&chain);
            if let Some(booking) = booking {
                self.ledger.insert(booking);
            }
        }
    }

    fn leave(&mut self, chain: &str) {
        let booking = self.ledger.remove(chain);
        self.before.push((chain.to_owned(), booking));
    }
}

#[cfg(test)]
mod tests {
    use myelin_spec::{NoFiles, Source, parse};

    use super::*;

    fn enter(admitted: &mut Admitted, name: &str, burst: u32) -> Plan {
        let text = format!(
            "apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: {{ name: {name} }}\nspec:\n  match: {{}}\n  \
             functions: [ {{ name: f, kind: forward }} ]\n  ports: {{ ingress: eth1, egress: eth2 }}\n  \
             sla: {{ rate: 1kpps, burst: {burst}, latency: 100us }}\n"
        );
        let chain = parse(&text, &Source::new("tried.yaml"), &NoFiles)
            .unwrap_or_else(|errors| panic!("{errors}"))
            .remove(0);
        let (costs, machine) = (Costs::default(), Machine::with_end_hosts(2));
        let mut plan = myelin_planner::plan(&chain, &costs, &machine).unwrap();
        let site = Site::planned(&chain, &machine);
        admitted.review(&mut plan, &chain, (&costs, &machine), &site);
        plan
    }

    #[test]
    fn a_file_that_is_not_deployed_leaves_the_ledger_as_it_was() {
        let mut admitted = Admitted::default();
        admitted.begin([]);
        assert!(enter(&mut admitted, "one", 64).admitted);
        assert!(enter(&mut admitted, "two", 64).admitted);
        let before = admitted.ledger.clone();
        admitted.begin(["one", "two"]);
        assert!(
            enter(&mut admitted, "two", 120).admitted,
            "what `one` had is free"
        );
        assert!(enter(&mut admitted, "one", 4).admitted);
        assert!(!enter(&mut admitted, "three", 200).admitted);
        admitted.roll_back();
        assert_eq!(admitted.ledger, before);
        admitted.begin([]);
        assert!(!enter(&mut admitted, "three", 120).admitted);
        admitted.roll_back();
        admitted.remove("two");
        assert!(enter(&mut admitted, "three", 64).admitted);
    }
}
