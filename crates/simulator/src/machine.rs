//! Several cores, the rings between them, and their sources.

use std::sync::Mutex;

use myelin_policy::sharing::Sharing;

use crate::core::Core;
use crate::island::Island;
use crate::result::{ChainResult, CoreResult};
use crate::setup::CoreSetup;
use crate::source::{LAST_NS, RunningSource, Source};

/// Islands that a thread takes at once.
const ISLANDS: usize = 64;

/// A machine that is simulated. Build it from rings, sources and cores, then [`Machine::run`] it.
///
/// ```
/// use myelin_policy::sharing::Parameters;
/// use myelin_simulator::{CoreSetup, LaneSetup, Machine, Mechanism, Pattern, Scheduler, Source};
///
/// let mut machine = Machine::new(7);
/// let ring = machine.add_ring(2048);
/// let lane = LaneSetup {
///     task: 0, ingress: ring, egress: None, cost_ps: 50_000, assumed_cost_ps: 50_000,
/// };
/// let mechanism = Mechanism {
///     switch_ns: 1000, decision_ns: 0, between_batches: true, batch: 64, read_ns: 20,
/// };
/// let setup = CoreSetup { lanes: vec![lane], mechanism, scheduler: Scheduler::Policy };
/// let shared = setup.shared_core(|_| 2048);
/// machine.add_core(setup, Parameters::Cooperative { reads: 8 }.policy(shared));
/// let chain = machine.add_source(Source {
///     ring, rate_pps: 1e6, pattern: Pattern::Even, budget_ns: None,
/// });
/// machine.run(10_000_000);
/// assert!(machine.chain(chain).delivered >= 9_990);
/// ```
#[derive(Debug, Clone)]
pub struct Machine {
    /// Empty where another island absorbed it.
    islands: Vec<Island>,
    rings: Vec<Place>,
    chains: Vec<Place>,
    cores: Vec<Place>,
    now_ns: u64,
    seed: u64,
}

/// Where a ring, chain or core is.
#[derive(Debug, Clone, Copy)]
struct Place {
    island: usize,
    /// Its number there.
    index: usize,
}

impl Machine {
    /// Creates an empty machine. Equal seeds give equal runs.
    pub fn new(seed: u64) -> Self {
        Self {
            islands: Vec::new(),
            rings: Vec::new(),
            chains: Vec::new(),
            cores: Vec::new(),
            now_ns: 0,
            seed,
        }
    }

    /// Adds a ring of `capacity` packets. Returns its number.
    pub fn add_ring(&mut self, capacity: u32) -> usize {
        let number = self.rings.len();
        let mut island = Island::default();
        island.add_ring(capacity, number);
        self.rings.push(Place {
            island: self.islands.len(),
            index: 0,
        });
        self.islands.push(island);
        number
    }

    /// Adds a source. Returns the number of its chain.
    ///
    /// # Panics
    ///
    /// If the machine has no such ring.
    pub fn add_source(&mut self, source: Source) -> usize {
        let number = self.chains.len();
        let seed = self.seed ^ (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let Place { island, index } = self.rings[source.ring];
        let source = Source {
            ring: index,
            ..source
        };
        let home = &mut self.islands[island];
        self.chains.push(Place {
            island,
            index: home.numbers.chains.len(),
        });
        home.add_source(RunningSource::new(source, seed), number);
        number
    }

    /// Adds a core. Returns its number. Without a policy, the scheduler must be the kernel's, or no
    /// task ever runs.
    ///
    /// # Panics
    ///
    /// If the machine has not all rings of the lanes.
    pub fn add_core(&mut self, setup: CoreSetup, policy: Option<Sharing>) -> usize {
        let number = self.cores.len();
        let rings = setup.rings();
        let first = rings.first().map(|ring| self.rings[*ring].island);
        let island = first.unwrap_or_else(|| {
            self.islands.push(Island::default());
            self.islands.len() - 1
        });
        for ring in rings {
            self.join(island, self.rings[ring].island);
        }
        let core = Core::new(setup, policy, |ring| self.rings[ring].index);
        let home = &mut self.islands[island];
        self.cores.push(Place {
            island,
            index: home.cores.len(),
        });
        home.add_core(core, self.now_ns, number);
        number
    }

    /// Makes one island of two.
    fn join(&mut self, island: usize, other: usize) {
        if other == island {
            return;
        }
        let absorbed = std::mem::take(&mut self.islands[other]);
        let home = &mut self.islands[island];
        let rings = home.numbers.rings.len();
        let chains = home.numbers.chains.len();
        let cores = home.numbers.cores.len();
        home.absorb(absorbed);
        let places = [
            (&home.numbers.rings, rings, &mut self.rings),
            (&home.numbers.chains, chains, &mut self.chains),
            (&home.numbers.cores, cores, &mut self.cores),
        ];
        for (numbers, before, places) in places {
            for (index, number) in numbers.iter().enumerate().skip(before) {
                places[*number] = Place { island, index };
            }
        }
    }

    /// Runs until the time `end_ns`, at most 106 days.
    pub fn run(&mut self, end_ns: u64) {
        self.run_on(1, end_ns);
    }

    /// Runs until the time `end_ns`, at most 106 days, on `threads` threads. Their number does not
    /// change the result: each thread runs cores that no ring joins to those of others.
    pub fn run_on(&mut self, threads: usize, end_ns: u64) {
        let end_ns = end_ns.clamp(self.now_ns, LAST_NS);
        let islands = Mutex::new(self.islands.chunks_mut(ISLANDS));
        let work = || {
            let next = || islands.lock().ok()?.next();
            while let Some(islands) = next() {
                for island in islands {
                    island.run(end_ns);
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..threads {
                scope.spawn(work);
            }
            work();
        });
        self.now_ns = end_ns;
    }

    /// The packets of a chain so far.
    ///
    /// # Panics
    ///
    /// If the machine has no such chain.
    pub fn chain(&self, chain: usize) -> &ChainResult {
        let Place { island, index } = self.chains[chain];
        &self.islands[island].world.chains[index]
    }

    /// The time of a core so far.
    ///
    /// # Panics
    ///
    /// If the machine has no such core.
    pub fn core(&self, core: usize) -> &CoreResult {
        let Place { island, index } = self.cores[core];
        &self.islands[island].cores[index].result
    }

    /// Packets in all rings.
    pub fn waiting(&self) -> u64 {
        let rings = self.islands.iter().flat_map(|island| &island.world.rings);
        rings.map(|ring| ring.written - ring.read).sum()
    }
}
