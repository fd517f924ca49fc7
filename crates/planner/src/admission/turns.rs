//! What remains of a core for a worker that hands it over to others in a fixed order.

use std::collections::BTreeSet;

use myelin_spec::{ServiceChain, SharingPolicy};
use serde::{Deserialize, Serialize};

use super::evaluate::{Evaluator, Unbounded};
use super::flow::Work;
use super::path::Resource;
use super::site::{NS, wake_up_fs, worst_case_work};
use crate::calculus::{RateLatency, SECOND, Turn, mul_div_up, round_robin};
use crate::costs::{Costs, InBurst};
use crate::plan::Plan;

/// The turns of a worker that hands its core over to others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum WorkerTurn {
    /// A turn ends after a number of reads, or after a read without packets.
    Reads {
        /// The reads.
        reads: u32,
        /// Least cost of a packet, fs.
        least_packet_fs: u128,
        /// Cost of a switch, fs.
        switch_fs: u128,
    },
    /// A turn ends after a time, at the end of a read.
    Slice {
        /// The time, fs.
        slice_fs: u128,
        /// Cost of a switch, fs.
        switch_fs: u128,
    },
    /// The worker whose packet has the earliest deadline is next, at least after a time.
    Deadline {
        /// The time, fs.
        longest_fs: u128,
        /// Cost of a switch, fs.
        switch_fs: u128,
    },
}

impl WorkerTurn {
    /// Returns the turns of a chain's worker, if they have a bound. A switch counts as a worker's
    /// wake-up.
    pub(super) fn of(
        chain: &ServiceChain,
        plan: &Plan,
        costs: &Costs,
        in_burst: Option<InBurst>,
    ) -> Option<Self> {
        let switch_fs = wake_up_fs(costs);
        match plan.sharing.as_ref()?.policy {
            SharingPolicy::Cooperative => {
                let entry = costs.steps.enter_user;
                let least = in_burst.map_or(entry, |in_burst| in_burst.worker);
                Some(Self::Reads {
                    reads: chain.worker.sharing.reads,
                    least_packet_fs: worst_case_work(costs, least).packet_fs,
                    switch_fs,
                })
            }
            SharingPolicy::RoundRobin => Some(Self::Slice {
                slice_fs: u128::from(chain.worker.sharing.slice_ns) * NS,
                switch_fs,
            }),
            SharingPolicy::Deadline => Some(Self::Deadline {
                longest_fs: u128::from(chain.worker.sharing.longest_turn_ns?) * NS,
                switch_fs,
            }),
            _ => None,
        }
    }

    /// Returns the cost of a switch to a worker whose shaper has a due packet: the worker sends it
    /// without a turn.
    pub(super) fn of_departure(chain: &ServiceChain, plan: &Plan, costs: &Costs) -> Work {
        match Self::of(chain, plan, costs, None) {
            Some(
                Self::Reads { switch_fs, .. }
                | Self::Slice { switch_fs, .. }
                | Self::Deadline { switch_fs, .. },
            ) => Work {
                packet_fs: switch_fs,
                byte_fs: 0,
            },
            None => Work::default(),
        }
    }
}

impl Evaluator<'_> {
    /// Returns the service of a core for one of its workers, of which each may use all of its
    /// turns. Theorem 14 of `docs/guarantees/proofs.md`.
    pub(super) fn leftover_of_turns(
        &self,
        server: usize,
        workers: &BTreeSet<usize>,
        stall_fs: u128,
    ) -> Result<RateLatency, Unbounded> {
        let service = RateLatency::core(stall_fs);
        let not_computable = || self.error_at(server, Unbounded::NotComputable);
        let own = match self.resource(server)? {
            Resource::Worker {
                batch,
                turn: Some(turn),
                ..
            } => (**turn, *batch),
            _ => return Err(not_computable()),
        };
        let leftover = match own {
            (
                WorkerTurn::Reads {
                    reads,
                    least_packet_fs,
                    ..
                },
                batch,
            ) => {
                let own = Turn {
                    batches: reads.into(),
                    packets: batch.into(),
                    packet_fs: least_packet_fs,
                };
                let round = self.round(server, workers)?;
                own.time_fs()
                    .and_then(|least_fs| round.leftover(&service, least_fs))
            }
            (
                WorkerTurn::Slice {
                    slice_fs,
                    switch_fs,
                },
                _,
            ) => {
                let mut slices_fs = Some(switch_fs);
                for other in workers.iter().filter(|worker| **worker != server) {
                    let read_fs = self.longest_turn(*other)?.time_fs();
                    let turn_fs = |sum_fs: u128| {
                        // A turn ends with its read.
                        let turn_fs = slice_fs.checked_add(read_fs?)?.checked_add(switch_fs)?;
                        turn_fs.checked_add(sum_fs)
                    };
                    slices_fs = slices_fs.and_then(turn_fs);
                }
                // The slice begins before the switch.
                let quantum_fs = slice_fs.saturating_sub(switch_fs);
                slices_fs.and_then(|others_fs| round_robin(&service, quantum_fs, others_fs))
            }
            (WorkerTurn::Deadline { .. }, _) => None,
        };
        let leftover = leftover.ok_or_else(not_computable)?;
        let others = workers.iter().filter(|worker| **worker != server);
        self.without_departures(leftover, others)?
            .ok_or_else(not_computable)
    }

    /// Takes the time from a service in which other workers send due packets of their shapers,
    /// which they do without a turn.
    fn without_departures<'w>(
        &self,
        service: RateLatency,
        others: impl Iterator<Item = &'w usize>,
    ) -> Result<Option<RateLatency>, Unbounded> {
        let (mut rate, mut burst_fs) = (SECOND, 0_u128);
        for other in others {
            let departures = self.worker_chains(*other)?.departures();
            rate = rate.saturating_sub(departures.rate);
            burst_fs = burst_fs.saturating_add(departures.burst);
        }
        if rate == SECOND && burst_fs == 0 {
            return Ok(Some(service));
        }
        let reduce = || {
            let latency_fs = service.latency_fs.checked_add(burst_fs)?;
            let latency_fs = mul_div_up(latency_fs, SECOND, Some(rate).filter(|rate| *rate > 0)?)?;
            let rate = service.rate.checked_mul(rate)? / SECOND;
            Some(RateLatency::new(rate, latency_fs))
        };
        Ok(reduce())
    }

    /// Returns the longest turn of a worker. Each read costs at most as much as a full batch.
    pub(super) fn longest_turn(&self, worker: usize) -> Result<Turn, Unbounded> {
        let resource = self.resource(worker)?;
        let Resource::Worker {
            batch,
            batch_fs,
            turn: Some(turn),
            ..
        } = resource
        else {
            return Err(self.unknown_turns(worker)?);
        };
        let reads = match &**turn {
            WorkerTurn::Reads { reads, .. } => *reads,
            WorkerTurn::Slice { .. } | WorkerTurn::Deadline { .. } => 1,
        };
        let chains = self.worker_chains(worker)?;
        let share_fs = batch_fs.div_ceil(u128::from(*batch).max(1));
        // A read takes a batch from each port.
        Ok(Turn {
            batches: u64::from(reads) * u64::from(chains.ports.max(1)),
            packets: (*batch).into(),
            packet_fs: chains.max_packet_fs.saturating_add(share_fs),
        })
    }

    /// Returns the reason why the cost of a worker's turns is unknown.
    pub(super) fn unknown_turns(&self, worker: usize) -> Result<Unbounded, Unbounded> {
        let at = self.resource(worker)?.clone();
        let mut groups = self.groups_at(worker);
        let group = groups.next().map(|group| self.group(group)).transpose()?;
        let chain = group.and_then(|group| group.sums.unpoliced.clone());
        Ok(match chain {
            Some(chain) => Unbounded::Unpoliced {
                chain,
                at: Box::new(at),
            },
            None => Unbounded::NotComputable(at),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::calculus::{ArrivalCurve, LeakyBucket, Round, delay};

    /// Femtoseconds of a microsecond.
    const US: u128 = SECOND / 1_000_000;

    /// A worker among others that always have packets: batch, reads of a turn, cost of a packet,
    /// and the time of the others' turns with all switches of a round, us.
    #[derive(Debug, Clone, Copy)]
    struct Shared {
        batch: usize,
        reads: u32,
        packet_us: u128,
        others_us: u128,
    }

    /// Returns the longest stay of a packet, us. The worker's turn has just ended at time 0.
    fn simulate(shared: Shared, arrivals_us: &[u128]) -> u128 {
        let (mut now, mut next, mut longest) = (0, 0, 0);
        while next < arrivals_us.len() {
            now += shared.others_us;
            for _ in 0..shared.reads {
                let waiting = arrivals_us[next..].iter();
                let waiting = waiting.take_while(|at| **at <= now).count();
                let batch = &arrivals_us[next..next + waiting.min(shared.batch)];
                if batch.is_empty() {
                    break;
                }
                now += shared.packet_us * batch.len() as u128;
                longest = batch.iter().map(|at| now - at).fold(longest, u128::max);
                next += batch.len();
            }
        }
        longest
    }

    proptest! {
        #[test]
        fn no_packet_waits_longer_than_the_leftover_of_turns_allows(
            gaps in prop::collection::vec(prop_oneof![Just(0_u128), 0_u128..60], 1..200),
            burst in 1_u128..40, period in 5_u128..80, batch in 1_usize..9, reads in 1_u32..6,
            packet_us in 1_u128..4, turns in prop::collection::vec(1_u128..40, 1..4), switch_us in 0_u128..5,
        ) {
            let mut arrivals_us: Vec<u128> = Vec::new();
            let mut at = 0;
            for gap in gaps {
                at += gap;
                let earliest = |before: usize| {
                    let number = arrivals_us.len() - before + 1;
                    arrivals_us[before] + period * (number as u128).saturating_sub(burst)
                };
                at = (0..arrivals_us.len()).map(earliest).fold(at, u128::max);
                arrivals_us.push(at);
            }
            let own = Turn { batches: reads.into(), packets: batch as u64, packet_fs: packet_us * US };
            let own_fs = own.time_fs().unwrap();
            let round = Round {
                arrivals_fs: own_fs,
                others_fs: turns.iter().sum::<u128>() * US,
                switches_fs: (turns.len() as u128 + 1) * switch_us * US,
                interleaved_fs: 0,
            };
            let service = round.leftover(&RateLatency::core(0), own_fs).unwrap();
            let cost_fs = packet_us * US;
            let rate = (cost_fs * SECOND).div_ceil(period * US);
            prop_assume!(rate <= service.rate);
            // Packets leave with their batch (theorem 6).
            let later_fs = mul_div_up(cost_fs * (batch as u128 - 1), SECOND, service.rate).unwrap();
            let service = RateLatency::new(service.rate, service.latency_fs + later_fs);
            let curve = ArrivalCurve::of(LeakyBucket::new(burst * cost_fs, rate));
            let bound_fs = delay(&curve, &service).unwrap();
            let shared = Shared {
                batch,
                reads,
                packet_us,
                others_us: turns.iter().sum::<u128>() + (turns.len() as u128 + 1) * switch_us,
            };
            let longest_fs = simulate(shared, &arrivals_us) * US;
            prop_assert!(longest_fs <= bound_fs, "{} above {}", longest_fs, bound_fs);
        }
    }
}
