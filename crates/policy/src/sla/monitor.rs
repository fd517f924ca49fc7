//! Monitors all chains of a node, and divides the counters that they share.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use crate::sla::account::{
    Counts, HopCounts, LossCounter, LossPlace, Reading, WorkerTimes, divide_by_weight,
};
use crate::sla::cause::{Context, CoreLoad, WorkerLoad};
use crate::sla::history::{History, Second, TransitLosses};
use crate::sla::{PacketAccount, SlaEvent, SlaSecond, SlaStatus, SlaVerdict};

/// A chain with more than this share of a worker's packets is a neighbour of the worker's other
/// chains.
const MAJORITY: f64 = 0.5;

/// The SLA monitor of a node.
#[derive(Default)]
pub struct SlaMonitor {
    chains: BTreeMap<String, History>,
    /// The shared loss counters at the last reading.
    places: BTreeMap<LossPlace, u64>,
    serial: u64,
}

/// The readings of all chains at one time.
pub struct Round {
    /// Name and service path identifier of every running chain.
    pub running: BTreeSet<(String, u32)>,
    /// The readings. A chain has no reading while its worker restarts.
    pub readings: Vec<Reading>,
    /// The times of the cores since the last round.
    pub cores: Vec<CoreLoad>,
    /// Time of the readings.
    pub end: SystemTime,
}

/// Growth of one chain's counters since its last reading.
struct Delta {
    /// The loss counters of the chain, each with the chain's share of the new losses.
    loss_shares: Vec<(LossCounter, u64)>,
    hops: Vec<HopCounts>,
    missed_at_entry: u64,
    passed_door: u64,
    packets_out: u64,
    conformed: u64,
    length_s: f64,
}

impl SlaMonitor {
    /// Adds a round of readings. Removes the histories of chains that no longer run. A new chain
    /// with an old name gets an empty history. Returns the verdict on each chain with a reading, on
    /// which the caller may act.
    pub fn add_round(&mut self, round: Round) -> Vec<SlaVerdict> {
        let Round {
            running,
            readings,
            cores,
            end,
        } = round;
        self.chains
            .retain(|name, history| running.contains(&(name.clone(), history.last.spi)));
        for reading in &readings {
            self.chains
                .entry(reading.name.clone())
                .or_insert_with(|| History::new(reading));
        }
        let mut deltas: Vec<Delta> = readings
            .iter()
            .map(|reading| self.compute_delta(reading))
            .collect();
        self.divide_losses(&readings, &mut deltas, running.len() == readings.len());
        let context: Vec<Context> = readings
            .iter()
            .zip(&deltas)
            .map(|(reading, delta)| Context {
                workers: self.compute_worker_loads(reading, delta, (&readings, &deltas)),
                cores: cores.clone(),
                usual_ns: self.compute_usual_costs(reading),
                hops: delta.hops.clone(),
                ring: find_worst_ring(delta),
                link: find_worst_link(delta),
            })
            .collect();
        let seconds = readings.into_iter().zip(deltas).zip(context);
        let verdicts = seconds.filter_map(|((reading, delta), context)| {
            let history = self.chains.get_mut(&reading.name)?;
            let second = Second {
                transit: sum_transit_losses(&delta),
                length_s: delta.length_s,
                reading,
                end,
                context,
            };
            Some(history.add_second(second, &mut self.serial))
        });
        verdicts.collect()
    }

    /// The serial number of the last event. Events of chains over nodes have numbers between those
    /// of this monitor.
    pub fn last_serial(&mut self) -> &mut u64 {
        &mut self.serial
    }

    /// Returns the SLA status of one chain.
    pub fn status(&self, name: &str, spi: u32) -> Option<SlaStatus> {
        let history = self.chains.get(name)?;
        (history.last.spi == spi).then(|| history.status())
    }

    /// Accounts for the packets of a chain whose counters are now `counts`.
    pub fn account(&self, name: &str, spi: u32, counts: &Counts) -> PacketAccount {
        let history = self.chains.get(name);
        let history = history.filter(|history| history.last.spi == spi);
        history.map_or_else(
            || History::default().account(counts),
            |history| history.account(counts),
        )
    }

    /// Returns the last `limit` seconds of a chain, the oldest first. Empty before the first
    /// reading.
    pub fn seconds(&self, name: &str, limit: usize) -> Vec<SlaSecond> {
        let history = self.chains.get(name);
        history.map_or_else(Vec::new, |history| history.last_seconds(limit))
    }

    /// Returns violations with a serial above `after`, of one chain or of all, sorted by serial.
    pub fn events(&self, chain: Option<&str>, after: u64) -> Vec<SlaEvent> {
        let wanted = self.chains.iter();
        let wanted = wanted.filter(|(name, _)| chain.is_none_or(|chain| chain == name.as_str()));
        let mut events: Vec<SlaEvent> = wanted
            .flat_map(|(_, history)| history.events_after(after).cloned())
            .collect();
        events.sort_unstable_by_key(|event| event.serial);
        events
    }

    fn compute_delta(&self, reading: &Reading) -> Delta {
        let last = self.chains.get(&reading.name).map(|history| &history.last);
        let is_same = last.is_some_and(|last| last.generation == reading.generation);
        let hops = reading
            .hops
            .iter()
            .enumerate()
            .map(|(index, hop)| {
                let before = last
                    .filter(|_| is_same)
                    .and_then(|last| last.hops.get(index));
                let before = before.map(|before| before.counted.with_held_forwarded());
                HopCounts {
                    counted: hop
                        .counted
                        .with_held_forwarded()
                        .since(&before.unwrap_or_default()),
                    ..hop.clone()
                }
            })
            .collect();
        let counts = match last {
            Some(last) => reading.counts.since(&last.counts),
            None => reading.counts.clone(),
        };
        let since = |read: fn(&Reading) -> u64| {
            let before = last.filter(|_| is_same).map(read);
            read(reading).saturating_sub(before.unwrap_or_default())
        };
        Delta {
            loss_shares: reading
                .loss_counters
                .iter()
                .map(|counter| (counter.clone(), 0))
                .collect(),
            hops,
            missed_at_entry: since(|reading| reading.missed_at_entry),
            passed_door: since(|reading| reading.passed_door),
            packets_out: counts.packets_out,
            conformed: counts.packets_in.saturating_sub(counts.policed),
            length_s: reading.up_s - last.map_or(0.0, |last| last.up_s),
        }
    }

    /// Divides the new losses at each place among the chains there, by the packets that each chain
    /// misses.
    fn divide_losses(&mut self, readings: &[Reading], deltas: &mut [Delta], is_complete: bool) {
        let mut places: BTreeMap<LossPlace, (u64, Vec<(usize, usize)>)> = BTreeMap::new();
        for (chain, reading) in readings.iter().enumerate() {
            for (index, counter) in reading.loss_counters.iter().enumerate() {
                let (lost, users) = places
                    .entry(counter.place.clone())
                    .or_insert((counter.lost, Vec::new()));
                *lost = counter.lost.max(*lost);
                users.push((chain, index));
            }
        }
        for (place, (lost, users)) in &places {
            // A new place counts from zero. So does a place that was made again.
            let before = self.places.get(place).copied();
            let before = before.filter(|before| lost >= before);
            let fresh = lost - before.unwrap_or_default();
            if fresh == 0 {
                continue;
            }
            let weights: Vec<u64> = users
                .iter()
                .map(|&(chain, index)| deltas[chain].missing_before(index))
                .collect();
            // Other senders use the egress too, so a chain loses no more packets than it sent.
            let loss_of_chains = match place {
                LossPlace::Egress { .. } => fresh.min(weights.iter().sum()),
                _ => fresh,
            };
            for (&(chain, index), part) in
                users.iter().zip(divide_by_weight(loss_of_chains, &weights))
            {
                deltas[chain].loss_shares[index].1 = part;
            }
        }
        // If a chain has no reading, keep the counters of its places.
        if is_complete {
            self.places.clear();
        }
        let counted = places.into_iter();
        self.places
            .extend(counted.map(|(place, (lost, _))| (place, lost)));
    }

    fn compute_worker_loads(
        &self,
        reading: &Reading,
        delta: &Delta,
        (readings, deltas): (&[Reading], &[Delta]),
    ) -> Vec<WorkerLoad> {
        let history = self.chains.get(&reading.name);
        let length_ns = (delta.length_s * 1e9).max(1.0);
        let load = |worker: &WorkerTimes| {
            let before = history.and_then(|history| history.worker(worker.pid));
            let since = |now: u64, before: Option<u64>| {
                before.map_or(0, |before| now.saturating_sub(before)) as f64 / length_ns
            };
            let others = readings.iter().zip(deltas);
            let served = others.filter(|(other, _)| {
                other
                    .workers
                    .iter()
                    .any(|candidate| candidate.pid == worker.pid)
            });
            let total: u64 = served.clone().map(|(_, other)| other.conformed).sum();
            let largest = served.max_by_key(|(_, other)| other.conformed);
            let neighbour = largest.and_then(|(other, delta)| {
                let share = delta.conformed as f64 / total.max(1) as f64;
                let is_neighbour = other.name != reading.name && share > MAJORITY;
                is_neighbour.then(|| (other.name.clone(), share))
            });
            WorkerLoad {
                pid: worker.pid,
                core: worker.core,
                is_polling: worker.is_polling,
                restarted: history.is_some_and(|history| history.has_restarted(worker)),
                busy: since(worker.run_ns, before.map(|before| before.run_ns)),
                waited: since(worker.waited_ns, before.map(|before| before.waited_ns)),
                turn_waited: since(
                    worker.turn_wait_ns,
                    before.map(|before| before.turn_wait_ns),
                ),
                binding: worker.binding,
                first_position: worker.first_position,
                neighbour,
            }
        };
        reading.workers.iter().map(load).collect()
    }

    fn compute_usual_costs(&self, reading: &Reading) -> Vec<Option<f64>> {
        let history = self.chains.get(&reading.name);
        let mean = |hop: &HopCounts| {
            let before = history?.hop(reading.generation, hop.position)?;
            before.counted.cost_ns()
        };
        reading.hops.iter().map(mean).collect()
    }
}

impl Delta {
    /// Packets that reached the place of a loss counter but not the function behind the place. At
    /// the egress: packets that left.
    fn missing_before(&self, counter: usize) -> u64 {
        let counter = &self.loss_shares[counter].0;
        let Some(position) = counter.next_position else {
            return match counter.place {
                LossPlace::Entry { .. } => self.missed_at_entry,
                _ => self.packets_out,
            };
        };
        let at = usize::from(position);
        let arrived = self.hops.get(at).map_or(0, |hop| hop.counted.packets_in);
        let left = match at.checked_sub(1) {
            None => self.passed_door,
            Some(before) => self
                .hops
                .get(before)
                .map_or(0, |hop| hop.counted.packets_out()),
        };
        left.saturating_sub(arrived)
    }
}

fn sum_transit_losses(delta: &Delta) -> TransitLosses {
    let mut sum = TransitLosses::default();
    for (counter, lost) in &delta.loss_shares {
        match &counter.place {
            LossPlace::Egress { .. } => sum.egress += lost,
            LossPlace::Entry { .. } | LossPlace::Inner { .. } => sum.inner += lost,
            _ => sum.ring += lost,
        }
    }
    sum
}

fn find_worst_ring(delta: &Delta) -> Option<u8> {
    let rings = delta.loss_shares.iter();
    let rings = rings.filter(|(counter, lost)| counter.place.is_ring() && *lost > 0);
    rings.max_by_key(|(_, lost)| *lost)?.0.next_position
}

fn find_worst_link(delta: &Delta) -> Option<String> {
    let links = delta.loss_shares.iter();
    let links = links.filter(|(counter, lost)| !counter.place.is_ring() && *lost > 0);
    match &links.max_by_key(|(_, lost)| *lost)?.0.place {
        LossPlace::Egress { name, .. } => Some(format!("interface {name}")),
        LossPlace::Entry { .. } => Some("the entry link of the port".to_owned()),
        _ => Some("a link between functions".to_owned()),
    }
}

#[cfg(test)]
mod tests;
