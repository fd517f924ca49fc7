//! All chains of a node, second by second. This file divides what chains share.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use crate::sla::{PacketAccount, SlaEvent, SlaSecond, SlaStatus};

use crate::sla::account::{Counts, Crossing, HopCounts, Reading, Station, WorkerTimes, divide};
use crate::sla::cause::{Circumstances, CoreLoad, WorkerLoad};
use crate::sla::history::{Between, History, Second};

/// Another chain that has more than this share of a worker's packets fills it.
const MOSTLY: f64 = 0.5;

/// All chains of a node.
#[derive(Default)]
pub struct SlaMonitor {
    chains: BTreeMap<String, History>,
    /// What stations had counted when they were last read.
    stations: BTreeMap<Station, u64>,
    serial: u64,
}

/// What was read at about the same time.
pub struct Round {
    /// Name and path identifier of every chain that runs.
    pub running: BTreeSet<(String, u32)>,
    /// What was read of them; of one whose worker is being started again nothing is.
    pub readings: Vec<Reading>,
    /// How the cores fared since the round before.
    pub cores: Vec<CoreLoad>,
    /// When it was read.
    pub end: SystemTime,
}

/// What one chain did since it was last read.
struct Difference {
    /// What it had at its stations, each with what got lost there in its share.
    at_stations: Vec<(Crossing, u64)>,
    hops: Vec<HopCounts>,
    entered: u64,
    packets_out: u64,
    conformed: u64,
    length_s: f64,
}

impl SlaMonitor {
    /// Takes a round of readings in. Chains that run no longer are forgotten, and so is one that came up anew under its name.
    pub fn take(&mut self, round: Round) {
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
        let mut differences: Vec<Difference> = readings
            .iter()
            .map(|reading| self.difference(reading))
            .collect();
        self.divide_losses(&readings, &mut differences, running.len() == readings.len());
        let around: Vec<Circumstances> = readings
            .iter()
            .zip(&differences)
            .map(|(reading, difference)| Circumstances {
                workers: self.workers(reading, difference, (&readings, &differences)),
                cores: cores.clone(),
                usual_ns: self.usual(reading),
                hops: difference.hops.clone(),
                ring: worst_ring(difference),
                link: lossy_link(difference),
            })
            .collect();
        for ((reading, difference), around) in readings.into_iter().zip(differences).zip(around) {
            if let Some(history) = self.chains.get_mut(&reading.name) {
                let second = Second {
                    between: between(&difference),
                    length_s: difference.length_s,
                    reading,
                    end,
                    around,
                };
                history.take(second, &mut self.serial);
            }
        }
    }

    /// What is told of one chain.
    pub fn status(&self, name: &str, spi: u32) -> Option<SlaStatus> {
        let history = self.chains.get(name)?;
        (history.last.spi == spi).then(|| history.status())
    }

    /// Where the packets of a chain are that has these counts now.
    pub fn account(&self, name: &str, spi: u32, counts: &Counts) -> PacketAccount {
        let history = self.chains.get(name);
        let history = history.filter(|history| history.last.spi == spi);
        history.map_or_else(
            || History::default().account(counts),
            |history| history.account(counts),
        )
    }

    /// The last `most` seconds of a chain, the oldest first; none of one that was not read yet.
    pub fn seconds(&self, name: &str, most: usize) -> Vec<SlaSecond> {
        let history = self.chains.get(name);
        history.map_or_else(Vec::new, |history| history.last_seconds(most))
    }

    /// Violations with numbers above that one, of one chain or of all of them, in the order of their beginning.
    pub fn events(&self, chain: Option<&str>, after: u64) -> Vec<SlaEvent> {
        let wanted = self.chains.iter();
        let wanted = wanted.filter(|(name, _)| chain.is_none_or(|chain| chain == name.as_str()));
        let mut events: Vec<SlaEvent> = wanted
            .flat_map(|(_, history)| history.events_after(after).cloned())
            .collect();
        events.sort_unstable_by_key(|event| event.serial);
        events
    }

    fn difference(&self, reading: &Reading) -> Difference {
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
                let before = before.map(|before| before.counted.settled());
                HopCounts {
                    counted: hop.counted.settled().since(&before.unwrap_or_default()),
                    ..hop.clone()
                }
            })
            .collect();
        let counts = match last {
            Some(last) => reading.counts.since(&last.counts),
            None => reading.counts.clone(),
        };
        let entered_before = last.filter(|_| is_same).map(|last| last.entered);
        Difference {
            at_stations: reading
                .crossings
                .iter()
                .map(|crossing| (crossing.clone(), 0))
                .collect(),
            hops,
            entered: reading
                .entered
                .saturating_sub(entered_before.unwrap_or_default()),
            packets_out: counts.packets_out,
            conformed: counts.packets_in.saturating_sub(counts.policed),
            length_s: reading.up_s - last.map_or(0.0, |last| last.up_s),
        }
    }

    /// What each station lost is divided among the chains that use it, by the packets of each that did not come through.
    fn divide_losses(
        &mut self,
        readings: &[Reading],
        differences: &mut [Difference],
        is_complete: bool,
    ) {
        let mut stations: BTreeMap<Station, (u64, Vec<(usize, usize)>)> = BTreeMap::new();
        for (chain, reading) in readings.iter().enumerate() {
            for (index, crossing) in reading.crossings.iter().enumerate() {
                let (lost, users) = stations
                    .entry(crossing.station.clone())
                    .or_insert((crossing.lost, Vec::new()));
                *lost = crossing.lost.max(*lost);
                users.push((chain, index));
            }
        }
        for (station, (lost, users)) in &stations {
            let before = self.stations.get(station).copied();
            let fresh = match before {
                Some(before) if *lost >= before => lost - before,
                // A socket that was made anew counts from zero; an interface may be older than its first chain.
                None if matches!(station, Station::Egress { .. }) => 0,
                _ => *lost,
            };
            if fresh == 0 {
                continue;
            }
            let weights: Vec<u64> = users
                .iter()
                .map(|&(chain, index)| differences[chain].weight(index))
                .collect();
            // Others send there too: a chain has lost no more than it sent, and an idle one nothing.
            let of_chains = match station {
                Station::Egress { .. } => fresh.min(weights.iter().sum()),
                _ => fresh,
            };
            for (&(chain, index), part) in users.iter().zip(divide(of_chains, &weights)) {
                differences[chain].at_stations[index].1 = part;
            }
        }
        // What was not read this time is still there.
        if is_complete {
            self.stations.clear();
        }
        let counted = stations.into_iter();
        self.stations
            .extend(counted.map(|(station, (lost, _))| (station, lost)));
    }

    fn workers(
        &self,
        reading: &Reading,
        difference: &Difference,
        (readings, differences): (&[Reading], &[Difference]),
    ) -> Vec<WorkerLoad> {
        let history = self.chains.get(&reading.name);
        let length_ns = (difference.length_s * 1e9).max(1.0);
        let load = |worker: &WorkerTimes| {
            let before = history.and_then(|history| history.worker(worker.pid));
            let since = |now: u64, before: Option<u64>| {
                before.map_or(0, |before| now.saturating_sub(before)) as f64 / length_ns
            };
            let others = readings.iter().zip(differences);
            let served =
                others.filter(|(other, _)| other.workers.iter().any(|one| one.pid == worker.pid));
            let all: u64 = served.clone().map(|(_, other)| other.conformed).sum();
            let most = served.max_by_key(|(_, other)| other.conformed);
            let neighbour = most.and_then(|(other, its)| {
                let share = its.conformed as f64 / all.max(1) as f64;
                let fills = other.name != reading.name && share > MOSTLY;
                fills.then(|| (other.name.clone(), share))
            });
            WorkerLoad {
                pid: worker.pid,
                core: worker.core,
                polls: worker.polls,
                restarted: history.is_some_and(|history| history.has_restarted(worker)),
                busy: since(worker.run_ns, before.map(|before| before.run_ns)),
                waited: since(worker.waited_ns, before.map(|before| before.waited_ns)),
                binding: worker.binding,
                first: worker.first,
                neighbour,
            }
        };
        reading.workers.iter().map(load).collect()
    }

    fn usual(&self, reading: &Reading) -> Vec<Option<f64>> {
        let history = self.chains.get(&reading.name);
        let mean = |hop: &HopCounts| {
            let before = history?.hop(reading.generation, hop.position)?;
            before.counted.cost_ns()
        };
        reading.hops.iter().map(mean).collect()
    }
}

impl Difference {
    /// Packets that got to the station before a crossing and not to the one behind it; at the way out those that left.
    fn weight(&self, crossing: usize) -> u64 {
        let Some(position) = self.at_stations[crossing].0.leads_to else {
            return self.packets_out;
        };
        let at = usize::from(position);
        let came = self.hops.get(at).map_or(0, |hop| hop.counted.packets_in);
        let left = match at.checked_sub(1) {
            None => self.entered,
            Some(before) => self
                .hops
                .get(before)
                .map_or(0, |hop| hop.counted.packets_out()),
        };
        left.saturating_sub(came)
    }
}

fn between(difference: &Difference) -> Between {
    let mut sum = Between::default();
    for (crossing, lost) in &difference.at_stations {
        match &crossing.station {
            Station::Egress { .. } => sum.egress += lost,
            Station::Inner { .. } => sum.inner += lost,
            _ => sum.ring += lost,
        }
    }
    sum
}

fn worst_ring(difference: &Difference) -> Option<u8> {
    let rings = difference.at_stations.iter();
    let rings = rings.filter(|(crossing, lost)| crossing.station.is_ring() && *lost > 0);
    rings.max_by_key(|(_, lost)| *lost)?.0.leads_to
}

fn lossy_link(difference: &Difference) -> Option<String> {
    let links = difference.at_stations.iter();
    let links = links.filter(|(crossing, lost)| !crossing.station.is_ring() && *lost > 0);
    match &links.max_by_key(|(_, lost)| *lost)?.0.station {
        Station::Egress { name, .. } => Some(format!("interface {name}")),
        _ => Some("a link between functions".to_owned()),
    }
}

#[cfg(test)]
mod tests;
