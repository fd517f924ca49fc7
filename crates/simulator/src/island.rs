//! Cores that rings join, with their rings and sources. No other island affects them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::core::Core;
use crate::result::ChainResult;
use crate::ring::{Ring, Run};
use crate::source::RunningSource;

/// Rings, their sources, and the cores that read or write them. All numbers in it are its own.
#[derive(Debug, Clone, Default)]
pub(crate) struct Island {
    pub(crate) world: World,
    pub(crate) cores: Vec<Core>,
    /// Time of the next event of each core, ns.
    next_ns: Vec<u64>,
    /// The core that reads each ring.
    readers: Vec<Option<usize>>,
    /// Whether `readers` and what cores know of their rings are up to date.
    is_linked: bool,
    /// The machine's numbers of its parts.
    pub(crate) numbers: Numbers,
}

/// The machine's numbers of an island's parts, in the island's order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Numbers {
    pub(crate) rings: Vec<usize>,
    pub(crate) chains: Vec<usize>,
    pub(crate) cores: Vec<usize>,
}

/// What the cores of an island share.
#[derive(Debug, Clone, Default)]
pub(crate) struct World {
    pub(crate) rings: Vec<Ring>,
    /// Whether packets are dropped before the ring.
    pub(crate) sheds: Vec<bool>,
    /// Delay budget of each chain, ns.
    pub(crate) budgets: Vec<Option<u64>>,
    pub(crate) sources: Vec<RunningSource>,
    /// The sources of each ring. A source is a chain.
    pub(crate) sources_of: Vec<Vec<usize>>,
    pub(crate) chains: Vec<ChainResult>,
    /// Rings of other cores that got packets, and the time of the packets.
    arrivals: Vec<(usize, u64)>,
}

impl World {
    /// Lets the sources of a ring send until `now_ns`, in the order of their packets.
    #[inline]
    pub(crate) fn emit(&mut self, ring: usize, now_ns: u64) {
        if let [chain] = self.sources_of[ring][..] {
            self.emit_chain(ring, chain, now_ns.saturating_mul(1000));
            return;
        }
        loop {
            let sources = self.sources_of[ring].iter();
            let sources = sources.map(|chain| (self.sources[*chain].next_ps, *chain));
            let Some(first) = sources.clone().min() else {
                return;
            };
            let now_ps = now_ns.saturating_mul(1000);
            if first.0 > now_ps {
                return;
            }
            // Of packets of one time, those of the lower chain come first.
            let others = sources.filter(|other| *other != first);
            let until_ps = others.map(|(ps, chain)| ps - u64::from(chain < first.1));
            let until_ps = until_ps.min().unwrap_or(u64::MAX).min(now_ps);
            self.emit_chain(ring, first.1, until_ps);
        }
    }

    #[inline]
    fn emit_chain(&mut self, ring: usize, chain: usize, until_ps: u64) {
        let (rings, result) = (&mut self.rings, &mut self.chains[chain]);
        let sheds = self.sheds[ring];
        self.sources[chain].emit(chain, until_ps, |run| {
            result.offered += u64::from(run.packets);
            if sheds {
                result.shed += u64::from(run.packets);
            } else {
                result.lost_at_entry += u64::from(rings[ring].push(run));
            }
        });
    }

    /// Whether all packets that come until `end_ns` fit into the ring as it is.
    #[inline]
    pub(crate) fn fits(&self, ring: usize, end_ns: u64) -> bool {
        let sources = self.sources_of[ring].iter();
        let packets = sources.map(|chain| self.sources[*chain].most_until(end_ns));
        packets.fold(0, u64::saturating_add) <= self.rings[ring].room().into()
    }

    /// The next time after `now_ns` at which packets enter a ring without the reader's doing.
    pub(crate) fn next_arrival_ns(&self, ring: usize, now_ns: u64) -> Option<u64> {
        let sources = self.sources_of[ring].iter();
        let sent = sources.map(|source| self.sources[*source].next_ns());
        let ready = self.rings[ring].first_ready_ns();
        sent.chain(ready).filter(|at_ns| *at_ns > now_ns).min()
    }

    /// Passes packets to the next ring, or out of the machine.
    #[inline]
    pub(crate) fn pass(&mut self, mut run: Run, egress: Option<usize>, now_ns: u64) {
        let result = &mut self.chains[run.chain];
        let Some(ring) = egress else {
            result.deliver(&run, now_ns);
            return;
        };
        run.ready_ns = now_ns;
        result.lost_inside += u64::from(self.rings[ring].push(run));
        if self.rings[ring].crosses_cores {
            self.arrivals.push((ring, now_ns));
        }
    }
}

impl Island {
    pub(crate) fn add_ring(&mut self, capacity: u32, number: usize) {
        self.world.rings.push(Ring::new(capacity));
        self.world.sheds.push(false);
        self.world.sources_of.push(Vec::new());
        self.numbers.rings.push(number);
        self.is_linked = false;
    }

    pub(crate) fn add_source(&mut self, source: RunningSource, number: usize) {
        let chain = self.world.sources.len();
        self.world.sources_of[source.source.ring].push(chain);
        self.world.budgets.push(source.source.budget_ns);
        self.world.chains.push(ChainResult::default());
        self.world.sources.push(source);
        self.numbers.chains.push(number);
        self.is_linked = false;
    }

    pub(crate) fn add_core(&mut self, core: Core, now_ns: u64, number: usize) {
        self.cores.push(core);
        self.next_ns.push(now_ns);
        self.numbers.cores.push(number);
        self.is_linked = false;
    }

    /// Adds all parts of another island behind those of this one.
    pub(crate) fn absorb(&mut self, mut other: Self) {
        let (rings, chains) = (self.world.rings.len(), self.world.chains.len());
        for core in &mut other.cores {
            core.move_rings(rings);
        }
        for ring in &mut other.world.rings {
            ring.move_chains(chains);
        }
        for source in other.world.sources_of.iter_mut().flatten() {
            *source += chains;
        }
        for source in &mut other.world.sources {
            source.source.ring += rings;
        }
        let world = &mut self.world;
        world.rings.append(&mut other.world.rings);
        world.sheds.append(&mut other.world.sheds);
        world.budgets.append(&mut other.world.budgets);
        world.sources.append(&mut other.world.sources);
        world.sources_of.append(&mut other.world.sources_of);
        world.chains.append(&mut other.world.chains);
        self.cores.append(&mut other.cores);
        self.next_ns.append(&mut other.next_ns);
        self.numbers.rings.append(&mut other.numbers.rings);
        self.numbers.chains.append(&mut other.numbers.chains);
        self.numbers.cores.append(&mut other.numbers.cores);
        self.is_linked = false;
    }

    /// Finds the readers of rings, and marks rings that another core writes.
    fn link(&mut self) {
        self.is_linked = true;
        self.readers = vec![None; self.world.rings.len()];
        for (index, core) in self.cores.iter().enumerate() {
            for ring in core.read_rings() {
                self.readers[ring] = Some(index);
            }
        }
        for (index, core) in self.cores.iter().enumerate() {
            for ring in core.written_rings() {
                self.world.rings[ring].crosses_cores |= self.readers[ring] != Some(index);
            }
        }
        let cores = self.cores.len();
        for core in &mut self.cores {
            core.link(cores, &self.world);
        }
    }

    /// Runs until the time `end_ns`.
    pub(crate) fn run(&mut self, end_ns: u64) {
        if !self.is_linked {
            self.link();
        }
        if let ([core], [next_ns]) = (&mut self.cores[..], &mut self.next_ns[..]) {
            if *next_ns < end_ns {
                *next_ns = core.step(*next_ns, end_ns, &mut self.world);
            }
        } else {
            self.run_by_events(end_ns);
        }
        for ring in 0..self.world.rings.len() {
            self.world.emit(ring, end_ns);
        }
    }

    /// Runs several cores in the order of their events.
    fn run_by_events(&mut self, end_ns: u64) {
        let times = self.next_ns.iter().copied().zip(0..);
        let mut events: BinaryHeap<_> = times.map(Reverse).collect();
        while let Some(Reverse((now_ns, index))) = events.pop() {
            if now_ns >= end_ns {
                break;
            }
            if self.next_ns[index] != now_ns {
                continue;
            }
            let next_ns = self.cores[index].step(now_ns, end_ns, &mut self.world);
            self.next_ns[index] = next_ns;
            events.push(Reverse((next_ns, index)));
            while let Some((ring, at_ns)) = self.world.arrivals.pop() {
                let wake_ns = at_ns.max(now_ns);
                let Some(reader) = self.readers[ring].filter(|reader| self.cores[*reader].waits)
                else {
                    continue;
                };
                if wake_ns < self.next_ns[reader] {
                    self.next_ns[reader] = wake_ns;
                    events.push(Reverse((wake_ns, reader)));
                }
            }
        }
    }
}
