//! Draws random sets of chains that admission accepts.

use myelin_api::{ApiError, ChainSource};
use myelin_planner::admission::{self, Booking, Ledger, Node, Platform, Site};
use myelin_planner::costs::DEFAULT_STALL_NS;
use myelin_planner::{Bound, Costs, Machine, Plan};
use myelin_spec::ServiceChain;

use crate::frames::SplitMix;
use crate::network::{CLIENT_LINK, SERVER_LINK, SERVER_PORT};
use crate::{Error, agents};

/// Chains of a pool. Each set uses some of them.
pub(super) const POOL: usize = 6;
/// Most packets of all bursts of a set together: slightly less than a virtual link's ring holds.
const RING: u64 = 240;
/// Shortest and longest frames without frame check sequence, bytes.
const FRAMES: [u64; 2] = [60, 1514];
/// Lowest and highest rate of a chain, packets a second.
const RATES: [u64; 2] = [2000, 20_000];
/// Smallest and largest burst, packets.
const BURSTS: [u64; 2] = [4, 40];
/// Shortest and longest latency in a contract, us, beyond [`STALLS`] times the calibrated stall,
/// because a path may contain several stalls.
const LATENCIES_US: [u64; 2] = [100, 10_000];
const STALLS: u64 = 3;
/// Most functions of a chain.
const FUNCTIONS: u64 = 16;
/// Most attempts to draw a set.
const ATTEMPTS: usize = 1000;

/// Space of a pool's chains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PoolKind {
    /// In the kernel at XDP, in the receive work of the ingress port.
    Kernel,
    /// In one polling worker.
    Worker,
}

impl PoolKind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Worker => "worker",
        }
    }
}

/// Profile and latency of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Contract {
    pub(super) rate_pps: u64,
    pub(super) burst: u64,
    pub(super) frame_bytes: u64,
    pub(super) latency_ns: u64,
}

impl Contract {
    /// Draws a contract. `slots` are the chain's slots in the link's ring, `stall_ns` is the
    /// cores' stall.
    fn draw(random: &mut SplitMix, slots: u64, stall_ns: u64) -> Self {
        let mut between = |[least, most]: [u64; 2]| least + random.draw_below(most - least + 1);
        let burst = between([BURSTS[0], BURSTS[1].min(slots * 2 / 3)]);
        // Packets sent during two stalls must fit into the ring.
        let most_pps = ((slots - burst) * 1_000_000_000 / (2 * stall_ns.max(1))).max(1);
        Self {
            rate_pps: between(RATES.map(|pps| pps.min(most_pps))),
            burst,
            frame_bytes: between(FRAMES),
            latency_ns: between(LATENCIES_US) * 1000 + STALLS * stall_ns,
        }
    }

    /// In packets and in bits, because all frames have the same length.
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

/// An admitted set.
#[derive(Debug, Clone)]
pub(super) struct Set {
    /// The members, by index in the pool.
    pub(super) members: Vec<Member>,
    /// Refused sets before this one.
    pub(super) refused: usize,
}

#[derive(Debug, Clone)]
pub(super) struct Member {
    pub(super) index: usize,
    pub(super) contract: Contract,
    pub(super) bound: Bound,
}

/// The chains of all sets. Their functions are drawn once.
#[derive(Debug, Clone)]
pub(super) struct Pool {
    pub(super) kind: PoolKind,
    core: usize,
    functions: Vec<Vec<&'static str>>,
}

/// Functions that do not change header lengths and ports, so that the far end can identify packets.
const KINDS: [&str; 5] = [
    "kind: forward",
    "kind: xor, config: { key: 90 }",
    "kind: firewall, config: { rules: [ { action: deny, source: 192.0.2.0/24 } ] }",
    "kind: monitor",
    "kind: flow-tracker",
];

impl Pool {
    pub(super) fn draw(kind: PoolKind, core: usize, random: &mut SplitMix) -> Self {
        let functions = (0..POOL).map(|_| {
            let count = 1 + random.draw_below(FUNCTIONS);
            (0..count)
                .map(|_| KINDS[random.draw_below(KINDS.len() as u64) as usize])
                .collect()
        });
        Self {
            kind,
            core,
            functions: functions.collect(),
        }
    }

    /// The chain file of all chains, with their contracts. Chains without a contract are best
    /// effort.
    pub(super) fn text(&self, names: &[String], contracts: &[Option<Contract>]) -> String {
        let chains = self.functions.iter().zip(names).zip(contracts).enumerate();
        let texts = chains.map(|(index, ((functions, name), contract))| {
            let packets = format!(
                "protocol: udp, destination: 10.0.0.2/32, destinationPort: {}",
                port(index)
            );
            let sla = contract.map_or_else(|| "enforce: none".to_owned(), |one| one.sla());
            let (space, more) = match self.kind {
                PoolKind::Kernel => ("kernel", "  hook: xdp\n".to_owned()),
                PoolKind::Worker => {
                    let core = self.core;
                    ("user", format!("  worker: {{ idle: spin, cores: [{core}] }}\n"))
                }
            };
            let more = format!(
                "  mapping: compact\n  ports: {{ ingress: {CLIENT_LINK}, egress: {SERVER_LINK} }}\n  sla: {{ {sla} }}\n{more}"
            );
            let functions: Vec<_> = functions.iter().map(|kind| (*kind, space)).collect();
            agents::chain_text_for(&packets, name, &functions, &more)
        });
        texts.collect::<Vec<_>>().join("---\n")
    }

    /// Draws a set of `count` chains that admission accepts.
    pub(super) fn draw_set(
        &self,
        count: usize,
        node: &AdmissionCheck,
        random: &mut SplitMix,
    ) -> Result<Set, Error> {
        let stalls = node.costs.stalls.values().map(|stall| stall.stall_ns);
        let stall_ns = stalls.max().unwrap_or(DEFAULT_STALL_NS);
        for refused in 0..ATTEMPTS {
            let mut contracts = [None; POOL];
            for _ in 0..count {
                let index = loop {
                    let index = random.draw_below(POOL as u64) as usize;
                    if contracts[index].is_none() {
                        break index;
                    }
                };
                let contract = Contract::draw(random, RING / count as u64, stall_ns);
                contracts[index] = Some(contract);
            }
            if let Some(members) = node.admit(self, &contracts)? {
                return Ok(Set { members, refused });
            }
        }
        Err(ApiError::failed(format!(
            "admission refused {ATTEMPTS} random sets of {count} {} chains in succession. The calibration found stalls of {} us and \
             worst-case costs of {:.1} times the mean; repeat on a quiet machine",
            self.kind.name(),
            stall_ns / 1000,
            node.costs.worst_case,
        ))
        .into())
    }
}

/// Destination port of the pool's chain with this index.
pub(super) fn port(index: usize) -> u16 {
    SERVER_PORT + index as u16
}

/// Plans and admits sets for ports between virtual links.
#[derive(Debug, Clone)]
pub(super) struct AdmissionCheck {
    pub(super) costs: Costs,
    pub(super) machine: Machine,
}

impl AdmissionCheck {
    /// Admits the members. `None` if admission refuses one.
    fn admit(
        &self,
        pool: &Pool,
        contracts: &[Option<Contract>],
    ) -> Result<Option<Vec<Member>>, Error> {
        let names: Vec<String> = (0..POOL).map(|index| format!("c{index}")).collect();
        let source = ChainSource {
            name: "<bench>".to_owned(),
            text: pool.text(&names, contracts),
            ..ChainSource::default()
        };
        let chains = source.parse()?;
        let mut ledger = Ledger::default();
        let mut admitted: Vec<(usize, Contract, Booking)> = Vec::new();
        for (index, (mut chain, contract)) in chains.into_iter().zip(contracts).enumerate() {
            let Some(contract) = *contract else { continue };
            chain.sla.latency_ns = Some(contract.latency_ns);
            let (plan, booking) = self.review(&chain, &ledger)?;
            if !plan.admitted {
                return Ok(None);
            }
            ledger.insert(booking.clone());
            admitted.push((index, contract, booking));
        }
        // Checks each member together with all others, in any order.
        let platform = Platform::new(&self.costs);
        let member = |(index, contract, booking): (usize, Contract, Booking)| {
            let decision = admission::admit(&ledger, &booking, &platform);
            let bound = decision.bound.filter(|_| decision.refusal.is_none());
            bound.map(|bound| Member {
                index,
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

    fn admission() -> AdmissionCheck {
        let machine = Machine {
            ingress: PortKind::Virtual,
            egress: PortKind::Virtual,
            ..Machine::with_end_hosts(2)
        };
        AdmissionCheck {
            costs: Costs::default(),
            machine,
        }
    }

    #[test]
    fn sets_are_admitted_and_fit_into_the_ring() {
        let (admission, mut random) = (admission(), SplitMix(7));
        let mut refused = 0;
        for kind in [PoolKind::Kernel, PoolKind::Worker] {
            let pool = Pool::draw(kind, 1, &mut random);
            for count in 2..=POOL {
                let set = pool.draw_set(count, &admission, &mut random).unwrap();
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
            "admission refused no set: the contracts are too loose for this test"
        );
    }

    #[test]
    fn equal_seeds_draw_equal_sets() {
        let drawn = || {
            let mut random = SplitMix(3);
            let pool = Pool::draw(PoolKind::Worker, 1, &mut random);
            let set = pool.draw_set(4, &admission(), &mut random).unwrap();
            let contracts = set.members.iter().map(|one| (one.index, one.contract));
            contracts.collect::<Vec<_>>()
        };
        assert_eq!(drawn(), drawn());
    }

    #[test]
    fn each_bound_includes_all_other_chains() {
        let (admission, mut random) = (admission(), SplitMix(5));
        let pool = Pool::draw(PoolKind::Kernel, 1, &mut random);
        let contract = Contract {
            rate_pps: 2000,
            burst: 20,
            frame_bytes: 60,
            latency_ns: 10_000_000,
        };
        let bound = |count: usize| {
            let contracts: Vec<_> = (0..POOL)
                .map(|index| (index < count).then_some(contract))
                .collect();
            let members = admission.admit(&pool, &contracts).unwrap().unwrap();
            members[0].bound.bound_ns
        };
        assert!(
            bound(2) > bound(1),
            "the bound of the first chain ignores the second"
        );
    }
}
