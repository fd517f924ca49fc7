//! Simulated cores of the experiments on core sharing: the schedulers, chains of functions, and
//! what both cost.
//!
//! No figure here depends on the machine. Functions and links are those of UNiS's authors (Anthony
//! et al. 2020, Section 5.1): cycles at 3.3 GHz, 64-byte packets at 10 Gbit/s. Switches cost what
//! a core with pollers lost on a virtual machine of this kind, per switch. A deployment draws the
//! costs of its switches within 10 % of these, as flips from another core differed (8 to 10 us),
//! and the times at which its sources start.

use std::collections::BTreeMap;

use myelin_packet::sojourn::Histogram;
use myelin_policy::sharing::{DeadlineParameters, LoadBasedParameters, Parameters, UnisParameters};
use myelin_simulator::{
    ChainResult, CoreSetup, LaneSetup, Machine, Mechanism, Pattern, Scheduler, Source,
};

use crate::{Effort, Findings};

/// Time of a cycle at 3.3 GHz, ps.
const CYCLE_PS: f64 = 1e3 / 3.3;
/// Ring to ring with DPDK's `rte_ring`, from its costs with batches of 1 and 32: for each packet,
/// ps, and for each read, ns.
const PACKET_MOVE_PS: u64 = 750;
const READ_NS: u64 = 4;
/// 64-byte packets of a 10 Gbit/s link in a second.
pub(crate) const LINE_RATE_PPS: f64 = 14_880_952.0;

/// Packets that a ring holds, and packets of a batch, as published.
pub(crate) const RING: u32 = 2048;
pub(crate) const BATCH: u32 = 64;

/// Cost of a switch, ns: `sched_yield` between real-time tasks, a futex that wakes the next worker,
/// priorities that another core changes.
pub(crate) const YIELD_NS: u64 = 1000;
pub(crate) const HAND_OVER_NS: u64 = 3000;
pub(crate) const FLIP_NS: u64 = 9000;
/// A decision of a policy that runs on the shared core, ns.
const DECISION_NS: u64 = 150;
/// Half a round trip of an eventfd on one core, ns.
const WAKE_NS: u64 = 3000;
/// The shortest slice of the kernel's fair class, ns (Section 3).
pub(crate) const FAIR_SLICE_NS: u64 = 100_000;
/// Part of the cost of a switch by which deployments differ.
const SPREAD: f64 = 0.1;
/// Delay budget of chains, ns, unless they have none.
const BUDGET_NS: u64 = 350_000;

/// A kind of function, or functions that take turns along a chain: cycles of a packet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    cycles: &'static [u64],
}

const fn kind(name: &'static str, cycles: &'static [u64]) -> Kind {
    Kind { name, cycles }
}

/// The published kinds (Sections 5.1.2 and 5.3).
pub(crate) const KINDS: [Kind; 4] = [
    kind("light", &[50]),
    kind("medium", &[150]),
    kind("heavy", &[250]),
    kind("mixed", &[150, 250]),
];
pub(crate) const LIGHT: usize = 0;
pub(crate) const MEDIUM: usize = 1;
pub(crate) const HEAVY: usize = 2;
pub(crate) const MIXED: usize = 3;

impl Kind {
    /// Cost of a packet in the function at this place, with its way from ring to ring, ps.
    pub(crate) fn cost_ps(self, place: usize) -> u64 {
        let cycles = self.cycles[place % self.cycles.len()];
        (cycles as f64 * CYCLE_PS) as u64 + PACKET_MOVE_PS
    }

    /// Mean cost of its functions, ps.
    pub(crate) fn mean_cost_ps(self) -> u64 {
        let count = self.cycles.len();
        (0..count).map(|place| self.cost_ps(place)).sum::<u64>() / count as u64
    }
}

/// Who chooses the next function of a core, and what that costs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CoreScheduler {
    pub(crate) name: &'static str,
    parameters: Option<Parameters>,
    scheduler: Scheduler,
    mechanism: Mechanism,
}

impl CoreScheduler {
    /// A policy that decides on another core, with functions that know nothing of it.
    fn outside(name: &'static str, parameters: Parameters) -> Self {
        Self {
            name,
            parameters: Some(parameters),
            scheduler: Scheduler::Policy,
            mechanism: Mechanism {
                switch_ns: FLIP_NS,
                decision_ns: 0,
                between_batches: false,
                batch: BATCH,
                read_ns: READ_NS,
            },
        }
    }

    /// UNiS: another core changes priorities.
    pub(crate) fn unis(name: &'static str, parameters: UnisParameters) -> Self {
        Self::outside(name, Parameters::Unis(parameters))
    }

    /// Fixed slices, by the mechanism of UNiS.
    pub(crate) fn round_robin(name: &'static str, slice_ns: u64) -> Self {
        Self::outside(name, Parameters::RoundRobin { slice_ns })
    }

    /// Functions that yield after `reads` batches, or after an empty read.
    pub(crate) fn cooperative(name: &'static str, reads: u32) -> Self {
        Self::outside(name, Parameters::Cooperative { reads })
            .between_batches()
            .with_switch(YIELD_NS)
    }

    /// Workers that hand the core over by deadlines.
    pub(crate) fn deadline() -> Self {
        let parameters = Parameters::Deadline(DeadlineParameters::default());
        let mut own = Self::outside("deadline", parameters.for_hand_over(BUDGET_NS))
            .between_batches()
            .with_switch(HAND_OVER_NS);
        own.mechanism.decision_ns = DECISION_NS;
        own
    }

    /// Workers that hand the core over between batches; a switch costs this, ns.
    pub(crate) fn hand_over(name: &'static str, parameters: Parameters, switch_ns: u64) -> Self {
        Self::outside(name, parameters)
            .between_batches()
            .with_switch(switch_ns)
    }

    /// The kernel's fair class, with functions that poll.
    pub(crate) fn fair(name: &'static str, slice_ns: u64) -> Self {
        Self {
            name,
            parameters: None,
            scheduler: Scheduler::Fair {
                slice_ns,
                wake_ns: WAKE_NS,
                polls: true,
            },
            ..Self::cooperative(name, 1)
        }
        .at_any_time()
    }

    /// The kernel's fair class with weights and backpressure, and functions that sleep without
    /// packets.
    pub(crate) fn load_based() -> Self {
        let parameters = LoadBasedParameters::default();
        Self {
            parameters: Some(Parameters::LoadBased(parameters)),
            scheduler: Scheduler::Fair {
                slice_ns: FAIR_SLICE_NS,
                wake_ns: WAKE_NS,
                polls: false,
            },
            ..Self::fair("load-based", FAIR_SLICE_NS)
        }
    }

    fn between_batches(mut self) -> Self {
        self.mechanism.between_batches = true;
        self
    }

    fn at_any_time(mut self) -> Self {
        self.mechanism.between_batches = false;
        self
    }

    /// With switches that cost this, ns.
    pub(crate) fn with_switch(mut self, switch_ns: u64) -> Self {
        self.mechanism.switch_ns = switch_ns;
        self
    }

    /// With functions that read at most `batch` packets at once, and policies that know it.
    pub(crate) fn with_batch(mut self, batch: u32) -> Self {
        self.mechanism.batch = batch;
        match &mut self.parameters {
            Some(Parameters::Unis(unis)) => *unis = UnisParameters::for_batch(batch),
            Some(Parameters::Deadline(deadline)) => deadline.batch = batch,
            _ => {}
        }
        self
    }

    /// Whether it is UNiS.
    pub(crate) fn is_unis(&self) -> bool {
        matches!(self.parameters, Some(Parameters::Unis(_)))
    }

    /// With other parameters of UNiS; no change to other policies.
    pub(crate) fn with_unis(mut self, change: impl FnOnce(&mut UnisParameters)) -> Self {
        if let Some(Parameters::Unis(parameters)) = &mut self.parameters {
            change(parameters);
        }
        self
    }

    /// With fixed slices of this length in place of its policy, ns.
    pub(crate) fn with_fixed_slices(mut self, slice_ns: u64) -> Self {
        self.parameters = Some(Parameters::RoundRobin { slice_ns });
        self
    }
}

/// A function of a chain.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlacedFunction {
    /// The core that it shares.
    pub(crate) core: usize,
    pub(crate) cost_ps: u64,
    /// The cost that the policy assumes, ps.
    pub(crate) assumed_cost_ps: u64,
}

/// A chain and its traffic.
#[derive(Debug, Clone)]
pub(crate) struct SimulatedChain {
    pub(crate) functions: Vec<PlacedFunction>,
    pub(crate) rate_pps: f64,
}

impl SimulatedChain {
    /// A chain of functions of one kind on one core.
    pub(crate) fn on_one_core(kind: Kind, functions: usize, rate_pps: f64) -> Self {
        let place = |place| PlacedFunction {
            core: 0,
            cost_ps: kind.cost_ps(place),
            assumed_cost_ps: kind.cost_ps(place),
        };
        Self {
            functions: (0..functions).map(place).collect(),
            rate_pps,
        }
    }
}

/// Cores with one scheduler, and their chains.
#[derive(Debug, Clone)]
pub(crate) struct Testbed {
    pub(crate) scheduler: CoreScheduler,
    pub(crate) ring: u32,
    /// Delay budget of the chains, ns. Only `deadline` reads it.
    pub(crate) budget_ns: Option<u64>,
    pub(crate) chains: Vec<SimulatedChain>,
}

/// A span of simulated time, ns: what comes before the figures, and what they are of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    pub(crate) before_ns: u64,
    pub(crate) window_ns: u64,
}

impl Span {
    /// Tens of turns of the longest rings.
    pub(crate) fn of(effort: Effort) -> Self {
        Self {
            before_ns: effort.choose(1, 5, 20) * 1_000_000,
            window_ns: effort.choose(2, 20, 100) * 1_000_000,
        }
    }

    /// A longer span, for longer rings.
    pub(crate) fn times(self, factor: u64) -> Self {
        Self {
            before_ns: self.before_ns * factor,
            window_ns: self.window_ns * factor,
        }
    }
}

impl Testbed {
    /// Chains on one core with published rings.
    pub(crate) fn of(scheduler: CoreScheduler, chains: Vec<SimulatedChain>) -> Self {
        Self {
            scheduler,
            ring: RING,
            budget_ns: Some(BUDGET_NS),
            chains,
        }
    }

    /// The machine, with the chains in their order.
    pub(crate) fn build(&self, seed: u64) -> Machine {
        let mut machine = Machine::new(seed);
        self.add_to(&mut machine, seed);
        machine
    }

    /// Adds the cores and chains to a machine.
    pub(crate) fn add_to(&self, machine: &mut Machine, seed: u64) {
        let functions = self.chains.iter().flat_map(|chain| &chain.functions);
        let cores = functions.map(|function| function.core + 1).max();
        let mut lanes: Vec<Vec<LaneSetup>> = vec![Vec::new(); cores.unwrap_or(0)];
        for chain in &self.chains {
            let functions = chain.functions.iter();
            let rings: Vec<usize> = functions.map(|_| machine.add_ring(self.ring)).collect();
            for (place, function) in chain.functions.iter().enumerate() {
                let lanes = &mut lanes[function.core];
                lanes.push(LaneSetup {
                    task: lanes.len(),
                    ingress: rings[place],
                    egress: rings.get(place + 1).copied(),
                    cost_ps: function.cost_ps,
                    assumed_cost_ps: function.assumed_cost_ps,
                });
            }
            machine.add_source(Source {
                ring: rings[0],
                rate_pps: chain.rate_pps,
                pattern: Pattern::Even,
                budget_ns: self.budget_ns,
            });
        }
        let mut mechanism = self.scheduler.mechanism;
        let draw = 2.0 * fastrand::Rng::with_seed(seed).f64() - 1.0;
        mechanism.switch_ns = (mechanism.switch_ns as f64 * (1.0 + SPREAD * draw)) as u64;
        for lanes in lanes {
            let setup = CoreSetup {
                lanes,
                mechanism,
                scheduler: self.scheduler.scheduler,
            };
            let shared = setup.shared_core(|_| self.ring);
            let parameters = self.scheduler.parameters;
            let policy = parameters.and_then(|parameters| parameters.policy(shared));
            machine.add_core(setup, policy);
        }
    }

    /// Runs a new machine. Returns what happens in the window.
    pub(crate) fn observe(&self, seed: u64, span: Span) -> Observation {
        let mut machine = self.build(seed);
        let chains = 0..self.chains.len();
        machine.run(span.before_ns);
        let before: Vec<ChainResult> = chains.clone().map(|at| machine.chain(at).clone()).collect();
        let core_before = *machine.core(0);
        machine.run(span.before_ns + span.window_ns);
        let chains = chains.zip(&before);
        Observation {
            seconds: span.window_ns as f64 / 1e9,
            chains: chains
                .map(|(at, before)| since(machine.chain(at), before))
                .collect(),
            switches: machine.core(0).switches - core_before.switches,
            busy_ns: machine.core(0).busy_ns - core_before.busy_ns,
        }
    }
}

/// The packets after an earlier result.
pub(crate) fn since(now: &ChainResult, before: &ChainResult) -> ChainResult {
    ChainResult {
        offered: now.offered - before.offered,
        shed: now.shed - before.shed,
        lost_at_entry: now.lost_at_entry - before.lost_at_entry,
        lost_inside: now.lost_inside - before.lost_inside,
        delivered: now.delivered - before.delivered,
        sojourn: now.sojourn.since(&before.sojourn),
    }
}

/// What happened in a window.
#[derive(Debug, Clone)]
pub(crate) struct Observation {
    seconds: f64,
    pub(crate) chains: Vec<ChainResult>,
    /// Changes of the running function of the first core.
    switches: u64,
    /// Time that its functions processed packets, ns.
    busy_ns: u64,
}

impl Observation {
    /// Delivered packets of a chain.
    pub(crate) fn throughput_mpps(&self, chain: usize) -> f64 {
        self.chains[chain].delivered as f64 / self.seconds / 1e6
    }

    /// Whether no packet of a chain was lost.
    pub(crate) fn is_lossless(&self, chain: usize) -> bool {
        let chain = &self.chains[chain];
        chain.shed + chain.lost_at_entry + chain.lost_inside == 0
    }

    /// Packets that were lost behind the first ring, of delivered ones.
    pub(crate) fn lost_inside(&self, chain: usize) -> f64 {
        let chain = &self.chains[chain];
        chain.lost_inside as f64 / chain.delivered.max(1) as f64
    }

    pub(crate) fn switches_per_s(&self) -> f64 {
        self.switches as f64 / self.seconds
    }

    /// Part of the time in which functions processed packets.
    pub(crate) fn work_share(&self) -> f64 {
        self.busy_ns as f64 / 1e9 / self.seconds
    }

    pub(crate) fn sojourn(&self, chain: usize) -> &Histogram {
        &self.chains[chain].sojourn
    }
}

/// Seeds of the rounds of subjects. All subjects of a round have the same one.
#[derive(Debug, Default)]
pub(crate) struct Seeds<const N: usize>(BTreeMap<[usize; N], u64>);

impl<const N: usize> Seeds<N> {
    /// The seed of the next round of this subject.
    pub(crate) fn next(&mut self, subject: [usize; N]) -> u64 {
        let round = self.0.entry(subject).or_insert(0);
        *round += 1;
        *round
    }
}

/// Adds the settings on which simulated figures depend.
pub(crate) fn describe(findings: &mut Findings) {
    findings.set(
        "clock",
        "simulated: cores, switches and packets of a model, no measurement",
    );
    findings.set("clock_ghz", 3.3);
    findings.set("move_of_a_packet_ns", PACKET_MOVE_PS as f64 / 1e3);
    findings.set("read_ns", READ_NS);
    findings.set("switch_yield_us", YIELD_NS as f64 / 1e3);
    findings.set("switch_hand_over_us", HAND_OVER_NS as f64 / 1e3);
    findings.set("switch_flip_us", FLIP_NS as f64 / 1e3);
    findings.set("decision_of_deadline_ns", DECISION_NS);
    findings.set("wake_up_us", WAKE_NS as f64 / 1e3);
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPAN: Span = Span {
        before_ns: 5_000_000,
        window_ns: 20_000_000,
    };

    #[test]
    fn costs_are_those_of_the_kinds() {
        assert_eq!(KINDS[LIGHT].cost_ps(3), 15_151 + PACKET_MOVE_PS);
        assert_eq!(KINDS[MIXED].cost_ps(1), KINDS[HEAVY].cost_ps(0));
        assert_eq!(KINDS[MIXED].cost_ps(2), KINDS[MEDIUM].cost_ps(0));
        let both = KINDS[MEDIUM].cost_ps(0) + KINDS[HEAVY].cost_ps(0);
        assert_eq!(KINDS[MIXED].mean_cost_ps(), both / 2);
    }

    #[test]
    fn a_core_carries_what_its_costs_allow() {
        for kind in KINDS {
            // 20 functions, so that the line is no limit: each turn is 8 batches and a switch.
            let chain = SimulatedChain::on_one_core(kind, 20, LINE_RATE_PPS);
            let scheduler = CoreScheduler::cooperative("k = 8", 8);
            let seen = Testbed::of(scheduler, vec![chain]).observe(1, SPAN);
            let packet_ns = kind.mean_cost_ps() as f64 / 1e3 + READ_NS as f64 / f64::from(BATCH);
            let all_ns = 20.0 * (packet_ns + YIELD_NS as f64 / f64::from(8 * BATCH));
            let ratio = seen.throughput_mpps(0) * all_ns / 1e3;
            assert!((0.9..1.1).contains(&ratio), "{}: {ratio}", kind.name);
        }
    }

    #[test]
    fn rounds_of_all_subjects_have_the_same_seeds_and_differ() {
        let mut seeds = Seeds::default();
        assert_eq!([seeds.next([0]), seeds.next([1])], [1, 1]);
        assert_eq!(seeds.next([0]), 2);
        let chain = SimulatedChain::on_one_core(KINDS[LIGHT], 5, LINE_RATE_PPS);
        let unis = CoreScheduler::unis("unis", UnisParameters::default());
        let bed = Testbed::of(unis, vec![chain]);
        let delivered = |seed| bed.observe(seed, SPAN).chains[0].delivered;
        assert_eq!(delivered(1), delivered(1));
        assert_ne!(delivered(1), delivered(2));
    }
}
