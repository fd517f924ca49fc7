//! The stages of a pipeline, whose processes take turns on one core in a fixed order.

use std::collections::BTreeSet;

use myelin_spec::{AddedPackets, Mapping, ServiceChain, SharingPolicy, Space};
use serde::{Deserialize, Serialize};

use super::evaluate::{Evaluator, Unbounded};
use super::order::Order;
use super::path::Resource;
use super::site::Site;
use super::turns::WorkerTurn;
use crate::calculus::{Round, SECOND, mul_div_up};
use crate::plan::{Plan, ShaperPlace};

/// Most frames that a stage returns to the first process behind a batch
/// (`dataplane/src/ring_port.rs`). With smaller batches a stage keeps no frame of a dropped packet.
const RETURNED_FRAMES: u16 = 64;
/// The largest ring of a chain file.
const LARGEST_RING: u128 = 16_384;

/// The turns in one round of a chain's processes, besides the arrivals at the first one. All are
/// zero without stages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stages {
    /// The number of stages.
    pub(super) processes: u32,
    /// Longest turns of the stages in sum, fs.
    pub(super) turns_fs: u128,
    /// Longest work of the first process on packets that come back, in one turn, fs.
    pub(super) returned_fs: u128,
}

impl Stages {
    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            processes: self.processes.saturating_add(other.processes),
            turns_fs: self.turns_fs.saturating_add(other.turns_fs),
            returned_fs: self.returned_fs.saturating_add(other.returned_fs),
        }
    }

    pub(super) fn minus(self, other: Self) -> Self {
        Self {
            processes: self.processes.saturating_sub(other.processes),
            turns_fs: self.turns_fs.saturating_sub(other.turns_fs),
            returned_fs: self.returned_fs.saturating_sub(other.returned_fs),
        }
    }
}

/// The turns of a chain's processes behind the first one, along the path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct StageTurns {
    pub(super) stages: Stages,
    /// Times that a packet comes back to the first process.
    pub(super) rounds: u32,
    /// Whether the packet is in a stage.
    is_in_stage: bool,
}

impl StageTurns {
    /// Adds the next step, in a stage or back in the first process, with its longest time in a
    /// turn.
    pub(super) fn add(&mut self, is_stage: bool, turn_fs: u128) {
        self.rounds += u32::from(self.is_in_stage && !is_stage);
        self.is_in_stage = is_stage;
        let (turns_fs, returned_fs) = if is_stage { (turn_fs, 0) } else { (0, turn_fs) };
        self.stages = self.stages.plus(Stages {
            processes: is_stage.into(),
            turns_fs,
            returned_fs,
        });
    }
}

/// Returns the packets that a process of the chain takes in a turn from one ring.
pub(super) fn packets_of_turn(chain: &ServiceChain) -> u128 {
    let reads = chain.worker.sharing.reads;
    u128::from(reads) * u128::from(chain.worker.batch)
}

/// Returns the reason why a planned pipeline has no bound; `None` without stages. Theorem 15 of
/// `docs/guarantees/proofs.md` has the conditions.
pub(super) fn why_no_rounds(chain: &ServiceChain, plan: &Plan, site: &Site) -> Option<String> {
    if plan.mapping != Mapping::Pipeline || plan.own_processes == 0 {
        return None;
    }
    let policy = plan.sharing.as_ref().map(|sharing| sharing.policy);
    if policy != Some(SharingPolicy::Cooperative) {
        return Some(
            "in mapping `pipeline` packets return to the first process; with `worker: { sharing: cooperative }` this \
             has a bound, and so has `mapping: compact`"
                .to_owned(),
        );
    }
    why_rings_stay_full(chain, site).or_else(|| why_packets_stay(chain, plan))
}

/// Returns the reason why a process may leave packets in its ring when its turn ends.
fn why_rings_stay_full(chain: &ServiceChain, site: &Site) -> Option<String> {
    let worker = &chain.worker;
    let batch = u128::from(worker.batch.max(1));
    // In the last read of a turn, another chain of the process may look for room for a batch.
    let packets = packets_of_turn(chain) + batch;
    if worker.batch > RETURNED_FRAMES {
        return Some(format!(
            "with batches of up to {} packets a process of the pipeline may keep frames of dropped packets for a \
             later turn; write `batch: {RETURNED_FRAMES}` at most",
            worker.batch
        ));
    }
    if packets > u128::from(worker.ring) {
        let ring = packets.next_power_of_two();
        let larger = (ring <= LARGEST_RING).then(|| format!("`ring: {ring}` in `worker`"));
        let reads = (u128::from(worker.ring) / batch).saturating_sub(1);
        let fewer = match reads {
            0 => "a smaller `batch`".to_owned(),
            reads => format!("`sharing: {{ policy: cooperative, reads: {reads} }}`"),
        };
        let remedies: Vec<String> = larger.into_iter().chain([fewer]).collect();
        return Some(format!(
            "the ring to the next process ({} descriptors) has no room for a turn of the first process ({} batches of \
             up to {} packets) and one more batch, so a packet may need any number of turns; write {}",
            worker.ring,
            worker.sharing.reads,
            worker.batch,
            remedies.join(", or ")
        ));
    }
    (site.queues > 1).then(|| {
        format!(
            "{} has {} receive queues, and a turn of the first process takes packets of each, more than the next \
             process takes in its turn; write `mapping: compact`, or give the interface one queue (`ethtool -L`)",
            site.ingress, site.queues
        )
    })
}

/// Returns the reason why packets may need further turns.
fn why_packets_stay(chain: &ServiceChain, plan: &Plan) -> Option<String> {
    let users = chain.functions.iter().zip(&plan.hops);
    let mut users = users.filter(|(_, hop)| hop.space == Space::User);
    let changes_count = users.find(|(function, _)| {
        let effect = function.config.effect();
        effect.held_ns.is_some()
            || effect.released > 0
            || effect.added_packets != AddedPackets::default()
    });
    if let Some((function, _)) = changes_count {
        return Some(format!(
            "`{}` holds or creates packets, so a turn of its process may bring more packets than the next process \
             takes; write `mapping: compact`",
            function.name
        ));
    }
    let segments = plan.segments.iter();
    let segments = segments.filter(|segment| segment.space == Space::User);
    if segments.count() > 1 {
        return Some(
            "packets of the pipeline return from the kernel to its first process; place its user functions next to \
             each other, or write `mapping: compact`"
                .to_owned(),
        );
    }
    let shaper = plan.shaper.as_ref();
    let shapes = shaper.is_some_and(|shaper| shaper.place == ShaperPlace::Worker);
    shapes.then(|| {
        "the first process of the pipeline sends packets from its shaper in the turns of the others; write \
         `sla: { enforce: policer }`, or `mapping: compact`"
            .to_owned()
    })
}

impl Evaluator<'_> {
    /// Sums up the stages of a worker's chains.
    fn stages_of(&self, worker: usize) -> Result<Stages, Unbounded> {
        let mut all = Stages::default();
        for group in self.groups_at(worker) {
            all = all.plus(self.group(group)?.sums.stages);
        }
        Ok(all)
    }

    /// Whether pipelines have stages beside the workers of a core.
    pub(super) fn has_stages(&self, workers: &BTreeSet<usize>) -> Result<bool, Unbounded> {
        for worker in workers {
            if self.stages_of(*worker)?.processes > 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the longest turns of a round of the core, for the arrivals at the worker `server`.
    pub(super) fn round(
        &self,
        server: usize,
        workers: &BTreeSet<usize>,
    ) -> Result<Round, Unbounded> {
        let not_computable = || self.error_at(server, Unbounded::NotComputable);
        let name_of = |worker: usize| match self.resource(worker) {
            Ok(Resource::Worker { name, .. }) => Some(name),
            _ => None,
        };
        let mut round = Round::default();
        for worker in workers {
            let turn_fs = self.longest_turn(*worker)?.time_fs();
            let turn_fs = turn_fs.ok_or_else(not_computable)?;
            let stages = self.stages_of(*worker)?;
            let part = if *worker == server {
                round.arrivals_fs = turn_fs;
                round.interleaved_fs = round.interleaved_fs.saturating_add(stages.returned_fs);
                0
            } else {
                turn_fs.saturating_add(stages.returned_fs)
            };
            // The chains of one process in other mappings are another server.
            let whole = if name_of(*worker) == name_of(server) {
                &mut round.interleaved_fs
            } else {
                &mut round.others_fs
            };
            *whole = whole.saturating_add(part);
            round.others_fs = round.others_fs.saturating_add(stages.turns_fs);
            let switches = 1 + u128::from(stages.processes);
            let switches_fs = self.switch_fs(*worker)?.saturating_mul(switches);
            round.switches_fs = round.switches_fs.saturating_add(switches_fs);
        }
        Ok(round)
    }

    fn switch_fs(&self, worker: usize) -> Result<u128, Unbounded> {
        Ok(match self.resource(worker)? {
            Resource::Worker {
                turn: Some(turn), ..
            } => match **turn {
                WorkerTurn::Reads { switch_fs, .. }
                | WorkerTurn::Slice { switch_fs, .. }
                | WorkerTurn::Deadline { switch_fs, .. } => switch_fs,
            },
            _ => 0,
        })
    }

    /// Returns the order of a worker whose packets pass stages after their first turn. Theorem 15
    /// of `docs/guarantees/proofs.md`.
    pub(super) fn order_in_rounds(
        &self,
        server: usize,
        workers: &BTreeSet<usize>,
        first: Order,
    ) -> Result<Order, Unbounded> {
        let mut rounds = 0;
        for group in self.groups_at(server) {
            rounds = rounds.max(self.group(group)?.route.rounds);
        }
        if rounds == 0 {
            return Ok(first);
        }
        let not_computable = || self.error_at(server, Unbounded::NotComputable);
        // A worker sends a packet that is due in its shaper without a turn.
        let (mut rate, mut burst_fs) = (SECOND, 0_u128);
        for worker in workers {
            let departures = self.worker_chains(*worker)?.departures();
            rate = rate.saturating_sub(departures.rate);
            burst_fs = burst_fs.saturating_add(departures.burst);
        }
        let time_fs = self.round(server, workers)?.time_fs();
        let time_fs = time_fs
            .and_then(|time_fs| time_fs.checked_mul(rounds.into()))
            .and_then(|time_fs| mul_div_up(time_fs.checked_add(burst_fs)?, SECOND, rate));
        Ok(Order::InRounds {
            service: first.service(),
            is_fcfs: matches!(first, Order::Fcfs(_)),
            rounds_fs: time_fs.ok_or_else(not_computable)?,
        })
    }
}
