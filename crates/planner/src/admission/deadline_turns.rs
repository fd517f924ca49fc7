//! The bounds of workers that take turns on a core by deadline.

use std::collections::BTreeSet;

use myelin_spec::SharingSpec;

use super::booking::Booking;
use super::evaluate::{Evaluator, Unbounded};
use super::order::{Order, WorkerChains};
use super::path::Resource;
use super::site::NS;
use super::turns::WorkerTurn;
use crate::calculus::{
    ArrivalCurve, DeadlineBound, DeadlineTask, RateLatency, SECOND, after_delay, busy_with_turns,
    earliest_deadline, mul_div_up,
};

/// A worker that takes turns by deadline.
struct Worker {
    number: usize,
    /// Work at the worker, each packet with the cost of a batch.
    work: ArrivalCurve,
    packets: ArrivalCurve,
    budget_ns: u64,
    /// Longest time of a batch, fs.
    read_fs: u128,
    longest_fs: u128,
    switch_fs: u128,
    wake_up_fs: u128,
    chains: WorkerChains,
}

/// The time by which a packet's deadline may be other than its arrival and its budget say.
struct Clock {
    /// Longest time between two decisions, fs.
    interval_fs: u128,
    /// Longest time until a packet in a ring has a stamp, fs.
    late_fs: u128,
}

impl Evaluator<'_> {
    /// Returns the order of a worker that shares a core by deadline. Theorem 13 of
    /// `docs/guarantees/proofs.md`.
    pub(super) fn turns_by_deadline(
        &self,
        server: usize,
        workers: &BTreeSet<usize>,
    ) -> Result<Order, Unbounded> {
        let not_computable = || self.error_at(server, Unbounded::NotComputable);
        let at = self.resource(server)?;
        let Resource::Worker { core, .. } = at else {
            return Err(not_computable());
        };
        let stall_fs = self.platform.stall_fs(*core);
        let workers = workers.iter().map(|worker| self.describe_turns(*worker));
        let workers: Vec<Worker> = workers.collect::<Result<_, _>>()?;
        let clock = Clock::of(&workers, stall_fs).ok_or_else(not_computable)?;
        let own = workers.iter().position(|worker| worker.number == server);
        let own = own.ok_or_else(not_computable)?;
        bound(&workers, own, &clock, stall_fs).ok_or_else(|| Unbounded::LateTurns {
            at: at.clone(),
            chains: self.chains_on(*core),
        })
    }

    fn describe_turns(&self, number: usize) -> Result<Worker, Unbounded> {
        let resource = self.resource(number)?;
        let Resource::Worker {
            core,
            batch,
            batch_fs,
            wake_up_fs,
            devices,
            turn: Some(turn),
            ..
        } = resource
        else {
            return Err(self.unknown_turns(number)?);
        };
        let WorkerTurn::Deadline {
            longest_fs,
            switch_fs,
        } = **turn
        else {
            return Err(Unbounded::NotComputable(resource.clone()));
        };
        let chains = self.worker_chains(number)?;
        if *devices || chains.ports > 1 || chains.has_returns || chains.holds_packets {
            return Err(Unbounded::UnorderedTurn {
                at: resource.clone(),
                chains: self.chains_on(*core),
            });
        }
        let not_computable = || Unbounded::NotComputable(resource.clone());
        let order = Order::Any(RateLatency::core(0));
        let mut packets = ArrivalCurve::default();
        let mut budget_ns = None;
        for group in self.groups_at(number) {
            let view = self.group(group)?;
            let index = view.servers.iter().position(|server| *server == number);
            let arrived = self.packets(group, index.ok_or_else(not_computable)?)?;
            packets = packets.plus(&arrived).ok_or_else(not_computable)?;
            let budgets = budget_ns.into_iter().chain(view.sums.least_budget_ns);
            budget_ns = budgets.min();
        }
        let read_fs = chains
            .max_packet_fs
            .checked_mul(u128::from(*batch))
            .and_then(|packets_fs| packets_fs.checked_add(*batch_fs));
        Ok(Worker {
            number,
            work: self.total(number, order)?.curve,
            packets,
            budget_ns: budget_ns.unwrap_or(SharingSpec::DEFAULT_BUDGET_NS),
            read_fs: read_fs.ok_or_else(not_computable)?,
            longest_fs,
            switch_fs,
            wake_up_fs: *wake_up_fs,
            chains,
        })
    }

    /// Returns the admitted chains with a worker on the core.
    fn chains_on(&self, core: u32) -> Vec<String> {
        let is_there = |resource: &Resource| matches!(resource, Resource::Worker { core: on, .. } if *on == core);
        let there = self.bookings().filter(|booking| {
            let mut visits = booking.visits.iter();
            visits.any(|visit| is_there(&visit.resource))
        });
        there.map(|booking| booking.chain.clone()).collect()
    }

    /// Returns the other chains with whose workers a chain's worker takes turns by deadline.
    pub(super) fn chains_in_turns(&self, booking: &Booking) -> Vec<String> {
        let core = booking
            .visits
            .iter()
            .find_map(|visit| match &visit.resource {
                Resource::Worker {
                    core,
                    turn: Some(turn),
                    ..
                } if matches!(**turn, WorkerTurn::Deadline { .. }) => Some(*core),
                _ => None,
            });
        let mut chains = core.map_or_else(Vec::new, |core| self.chains_on(core));
        chains.retain(|chain| *chain != booking.chain);
        chains
    }
}

impl Clock {
    fn of(workers: &[Worker], stall_fs: u128) -> Option<Self> {
        let least_ns = workers.iter().map(|worker| worker.budget_ns).min()?;
        let interval_fs = u128::from(SharingSpec::decision_interval_ns(least_ns)) * NS;
        // A look at the rings follows a decision, a batch and a switch.
        let reads_fs = workers.iter().map(|worker| worker.read_fs).max()?;
        let switches_fs = workers.iter().map(|worker| worker.switch_fs).max()?;
        let parts_fs = [reads_fs, switches_fs, stall_fs, wake_up_fs(workers)?];
        let late_fs = parts_fs
            .into_iter()
            .try_fold(interval_fs, u128::checked_add)?;
        Some(Self {
            interval_fs,
            late_fs,
        })
    }
}

/// Returns the longest wake-up of a worker on the core, fs.
fn wake_up_fs(workers: &[Worker]) -> Option<u128> {
    workers.iter().map(|worker| worker.wake_up_fs).max()
}

/// Returns the order of the worker `own`; `None` without a bound.
fn bound(workers: &[Worker], own: usize, clock: &Clock, stall_fs: u128) -> Option<Order> {
    let service = leftover_of_departures(workers, clock, stall_fs)?;
    let switch_fs = workers.iter().map(|worker| worker.switch_fs).max()?;
    let tasks = workers.iter().map(|worker| {
        let older_fs = u128::from(SharingSpec::mark_spacing_ns(worker.budget_ns)) * NS;
        let moved_fs = clock.late_fs.checked_add(older_fs)?;
        let turn_fs = worker.longest_fs.checked_add(clock.interval_fs)?;
        let turn_fs = turn_fs.checked_add(worker.read_fs)?;
        Some(DeadlineTask {
            arrival: after_delay(&worker.work, moved_fs)?,
            turns: after_delay(&worker.packets, moved_fs)?,
            deadline_fs: u128::from(worker.budget_ns) * NS,
            earlier_fs: older_fs,
            turn_fs,
            tail_fs: turn_fs,
        })
    });
    let tasks: Vec<DeadlineTask> = tasks.collect::<Option<_>>()?;
    let bounds = earliest_deadline(&service, &tasks, switch_fs)?;
    // The marks of a ring reach back for nearly two budgets.
    let has_marks = |(bound, task): (&DeadlineBound, &DeadlineTask)| {
        let reach_fs = 2 * task.deadline_fs - task.earlier_fs;
        bound.from_stamp_fs <= reach_fs
    };
    if !bounds.iter().zip(&tasks).all(has_marks) {
        return None;
    }
    let stay_fs = bounds.get(own)?.at_core_fs.checked_add(clock.late_fs)?;
    // Without regard to stamps, work counts when it arrives.
    let at_core = tasks
        .iter()
        .zip(workers)
        .map(|(task, worker)| DeadlineTask {
            arrival: worker.work,
            turns: worker.packets,
            earlier_fs: 0,
            ..*task
        });
    let at_core: Vec<DeadlineTask> = at_core.collect();
    Some(Order::Deadline {
        service: RateLatency::new(service.rate, service.latency_fs.min(stay_fs)),
        stay_fs,
        busy_fs: busy_with_turns(&service, &at_core, switch_fs)?,
    })
}

/// Returns what the departures of shapers leave of the core: a worker sends a due packet without a
/// turn. `None` if they need more than half of it.
fn leftover_of_departures(
    workers: &[Worker],
    clock: &Clock,
    stall_fs: u128,
) -> Option<RateLatency> {
    let mut latency_fs = stall_fs.checked_add(clock.interval_fs)?;
    latency_fs = latency_fs.checked_add(wake_up_fs(workers)?)?;
    let (mut rate, mut burst_fs) = (SECOND, 0_u128);
    for worker in workers {
        let departures = worker.chains.departures();
        rate = rate.checked_sub(departures.rate)?;
        burst_fs = burst_fs.checked_add(departures.burst)?;
    }
    let all_fs = latency_fs.checked_add(burst_fs)?;
    let latency_fs = mul_div_up(
        all_fs,
        SECOND,
        Some(rate).filter(|rate| *rate >= SECOND / 2)?,
    )?;
    Some(RateLatency::new(rate, latency_fs))
}
