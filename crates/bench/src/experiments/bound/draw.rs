//! Sets of chains at random that admission takes.

use myelin_api::{ApiError, ChainSource};
use myelin_planner::admission::{self, Booking, Ledger, Node, Platform, Site};
use myelin_planner::costs::DEFAULT_STALL_NS;
use myelin_planner::{Bound, Costs, Machine, Plan};
use myelin_spec::ServiceChain;

use crate::frames::Scatter;
use crate::network::{CLIENT_LINK, SERVER_LINK, SERVER_PORT};
use crate::{Error, stand};

/// Chains of a pool, of which each set takes some.
pub(super) const POOL: usize = 6;
/// Packets that all bursts of a set have together at most: what a virtual link's ring holds, with some to spare.
const RING: u64 = 240;
/// Shortest and longest frames without frame check sequence, bytes.
const FRAMES: [u64; 2] = [60, 1514];
/// Packets a second of a chain.
const RATES: [u64; 2] = [2000, 20_000];
/// Packets of a burst.
const BURSTS: [u64; 2] = [4, 40];
/// Promises, microseconds: beyond the time that cores are known to stand still, of which a way has some more than once.
const LATENCIES_US: [u64; 2] = [100, 10_000];
const STALLS: u64 = 3;
/// Most functions of a chain.
const FUNCTIONS: u64 = 16;
/// How often a set is drawn before something must be wrong.
const ATTEMPTS: usize = 1000;

/// Where the chains of a pool run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// In the kernel at XDP, in the receive work of the ingress port.
    Kernel,
    /// In one worker, which polls.
    Worker,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Worker => "worker",
        }
    }
}

/// What a chain of a set may send, and what it is promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Contract {
    pub(super) rate_pps: u64,
    pub(super) burst: u64,
    pub(super) frame_bytes: u64,
    pub(super) latency_ns: u64,
}

impl Contract {
    /// Of a chain whose packets may take so many places of the link's ring, with cores that stand still for so long.
    fn draw(scatter: &mut Scatter, places: u64, stall_ns: u64) -> Self {
        let mut between = |[least, most]: [u64; 2]| least + scatter.below(most - least + 1);
        let burst = between([BURSTS[0], BURSTS[1].min(places * 2 / 3)]);
        // Who sends while a core stands still, and while it stands still again, fills the ring.
        let most_pps = ((places - burst) * 1_000_000_000 / (2 * stall_ns.max(1))).max(1);
        Self {
            rate_pps: between(RATES.map(|pps| pps.min(most_pps))),
            burst,
            frame_bytes: between(FRAMES),
            latency_ns: between(LATENCIES_US) * 1000 + STALLS * stall_ns,
        }
    }

    /// In packets and in bits, since the sender knows its frames.
    fn sla(&self) -> String {
        let bits = self.frame_bytes * 8;
        format!(
            "rate: [ {}pps, {}bit ], burst: [ {}, {}bit ]",
            self.rate_pps,
            self.rate_pps * bits,
            self.burst,
            self.burst * bits
        )
    }
}

/// A set that was admitted.
#[derive(Debug, Clone)]
pub(super) struct Set {
    /// The members, by their place in the pool.
    pub(super) members: Vec<Member>,
    /// How many were drawn and refused before.
    pub(super) refused: usize,
}

#[derive(Debug, Clone)]
pub(super) struct Member {
    pub(super) place: usize,
    pub(super) contract: Contract,
    pub(super) bound: Bound,
}

/// The chains that sets are drawn from: their functions are drawn once.
#[derive(Debug, Clone)]
pub(super) struct Pool {
    pub(super) kind: Kind,
    core: usize,
    functions: Vec<Vec<&'static str>>,
}

/// Functions that keep the headers' length and the ports, so that packets are known at the end of the way.
const KINDS: [&str; 5] = [
    "kind: forward",
    "kind: xor, config: { key: 90 }",
    "kind: firewall, config: { rules: [ { action: deny, source: 192.0.2.0/24 } ] }",
    "kind: monitor",
    "kind: flow-tracker",
];

impl Pool {
    pub(super) fn draw(kind: Kind, core: usize, scatter: &mut Scatter) -> Self {
        let functions = (0..POOL).map(|_| {
            let count = 1 + scatter.below(FUNCTIONS);
            (0..count)
                .map(|_| KINDS[scatter.below(KINDS.len() as u64) as usize])
                .collect()
        });
        Self {
            kind,
            core,
            functions: functions.collect(),
        }
    }

    /// The chains' text, all of them: those that have a contract with it, the others as best effort.
    pub(super) fn text(&self, names: &[String], contracts: &[Option<Contract>]) -> String {
        let chains = self.functions.iter().zip(names).zip(contracts).enumerate();
        let texts = chains.map(|(place, ((functions, name), contract))| {
            let packets = format!("destination: 10.0.0.2/32, destinationPort: {}", port(place));
            let sla = contract.map_or_else(|| "enforce: none".to_owned(), |one| one.sla());
            let (space, more) = match self.kind {
                Kind::Kernel => ("kernel", "  hook: xdp\n".to_owned()),
                Kind::Worker => {
                    let core = self.core;
                    ("user", format!("  worker: {{ idle: spin, core: {core} }}\n"))
                }
            };
            let more = format!(
                "  mapping: compact\n  ports: {{ ingress: {CLIENT_LINK}, egress: {SERVER_LINK} }}\n  sla: {{ {sla} }}\n{more}"
            );
            let functions: Vec<_> = functions.iter().map(|kind| (*kind, space)).collect();
            stand::chain_for(&packets, name, &functions, &more)
        });
        texts.collect::<Vec<_>>().join("---\n")
    }

    /// A set of `count` chains that admission takes.
    pub(super) fn set(
        &self,
        count: usize,
        node: &Judge,
        scatter: &mut Scatter,
    ) -> Result<Set, Error> {
        let stalls = node.costs.stalls.values().map(|stall| stall.stall_ns);
        let stall_ns = stalls.max().unwrap_or(DEFAULT_STALL_NS);
        for refused in 0..ATTEMPTS {
            let mut contracts = [None; POOL];
            for _ in 0..count {
                let place = loop {
                    let place = scatter.below(POOL as u64) as usize;
                    if contracts[place].is_none() {
                        break place;
                    }
                };
                let contract = Contract::draw(scatter, RING / count as u64, stall_ns);
                contracts[place] = Some(contract);
            }
            if let Some(members) = node.admit(self, &contracts)? {
                return Ok(Set { members, refused });
            }
        }
        Err(ApiError::failed(format!(
            "admission refused {ATTEMPTS} random sets of {count} {} chains one after the other, with cores that stand still for {} us \
             and costs that grow to {:.1} times their mean as calibrated just now; repeat on a quiet machine",
            self.kind.name(),
            stall_ns / 1000,
            node.costs.worst_case,
        ))
        .into())
    }
}

/// Where the packets of that place of a pool go.
pub(super) fn port(place: usize) -> u16 {
    SERVER_PORT + place as u16
}

/// The planner, for ports between virtual links.
#[derive(Debug, Clone)]
pub(super) struct Judge {
    pub(super) costs: Costs,
    pub(super) machine: Machine,
}

impl Judge {
    /// The members in the form in which admission takes them; `None`: it does not.
    fn admit(
        &self,
        pool: &Pool,
        contracts: &[Option<Contract>],
    ) -> Result<Option<Vec<Member>>, Error> {
        let names: Vec<String> = (0..POOL).map(|place| format!("c{place}")).collect();
        let source = ChainSource {
            name: "<bench>".to_owned(),
            text: pool.text(&names, contracts),
            ..ChainSource::default()
        };
        let chains = source.parse()?;
        let mut ledger = Ledger::default();
        let mut admitted: Vec<(usize, Contract, Booking)> = Vec::new();
        for (place, (mut chain, contract)) in chains.into_iter().zip(contracts).enumerate() {
            let Some(contract) = *contract else { continue };
            chain.sla.latency_ns = Some(contract.latency_ns);
            let (plan, booking) = self.review(&chain, &ledger)?;
            if !plan.admitted {
                return Ok(None);
            }
            ledger.insert(booking.clone());
            admitted.push((place, contract, booking));
        }
        // Each beside all others, whichever came first.
        let platform = Platform::new(&self.costs);
        let member = |(place, contract, booking): (usize, Contract, Booking)| {
            let decision = admission::admit(&ledger, &booking, &platform);
            let bound = decision.bound.filter(|_| decision.refusal.is_none());
            bound.map(|bound| Member {
                place,
                contract,
                bound,
            })
        };
        Ok(admitted.into_iter().map(member).collect())
    }

    fn review(&self, chain: &ServiceChain, ledger: &Ledger) -> Result<(Plan, Booking), Error> {
        let (costs, machine) = (&self.costs, &self.machine);
        let mut plan = myelin_planner::plan(chain, costs, machine)
            .map_err(|error| ApiError::failed(error.to_string()))?;
        let site = Site::planned(chain, machine);
        let node = Node {
            costs,
            machine,
            ledger,
        };
        let booking = admission::review(&mut plan, chain, &node, &site);
        Ok((plan, booking))
    }
}

#[cfg(test)]
mod tests {
    use myelin_planner::PortKind;

    use super::*;

    fn judge() -> Judge {
        let machine = Machine {
            ingress: PortKind::Virtual,
            egress: PortKind::Virtual,
            ..Machine::with_end_hosts(2)
        };
        Judge {
            costs: Costs::default(),
            machine,
        }
    }

    #[test]
    fn sets_are_admitted_and_keep_within_the_ring() {
        let (judge, mut scatter) = (judge(), Scatter(7));
        let mut refused = 0;
        for kind in [Kind::Kernel, Kind::Worker] {
            let pool = Pool::draw(kind, 1, &mut scatter);
            for count in 2..=POOL {
                let set = pool.set(count, &judge, &mut scatter).unwrap();
                assert_eq!(set.members.len(), count);
                let burst: u64 = set.members.iter().map(|one| one.contract.burst).sum();
                assert!(burst <= RING);
                for member in &set.members {
                    assert!(
                        member.bound.bound_ns <= member.contract.latency_ns,
                        "{member:?}"
                    );
                }
                refused += set.refused;
            }
        }
        assert!(
            refused > 0,
            "promises are tight enough for some to be refused"
        );
    }

    #[test]
    fn a_set_is_the_same_for_the_same_seed() {
        let drawn = || {
            let mut scatter = Scatter(3);
            let pool = Pool::draw(Kind::Worker, 1, &mut scatter);
            let set = pool.set(4, &judge(), &mut scatter).unwrap();
            let contracts = set.members.iter().map(|one| (one.place, one.contract));
            contracts.collect::<Vec<_>>()
        };
        assert_eq!(drawn(), drawn());
    }

    #[test]
    fn the_bound_of_each_knows_all_others() {
        let (judge, mut scatter) = (judge(), Scatter(5));
        let pool = Pool::draw(Kind::Kernel, 1, &mut scatter);
        let contract = Contract {
            rate_pps: 2000,
            burst: 20,
            frame_bytes: 60,
            latency_ns: 10_000_000,
        };
        let bound = |count: usize| {
            let contracts: Vec<_> = (0..POOL)
                .map(|place| (place < count).then_some(contract))
                .collect();
            let members = judge.admit(&pool, &contracts).unwrap().unwrap();
            members[0].bound.bound_ns
        };
        assert!(bound(2) > bound(1), "the first was admitted alone");
    }
}
