//! The lateness of a worker's shaper.

use super::evaluate::{Evaluator, Unbounded, longest_busy_period};
use super::order::Order;
use super::path::Resource;
use crate::calculus::{RateLatency, SECOND, mul_div_up};

impl Evaluator<'_> {
    /// Returns the longest time from a packet's due time to its departure, fs.
    ///
    /// The core may stall, and the worker must wake up or get its turn. The worker may then first
    /// process a batch of each port, and the departures of other shapers: one packet of each chain,
    /// and more at the chains' rates. A due departure is work, so the lateness is at most a busy
    /// period.
    /// Theorem 9 of `docs/guarantees/proofs.md`.
    pub(super) fn shaper_lateness(&self, worker: usize) -> Result<u128, Unbounded> {
        let compute = || {
            let (order, service) = self.order(worker)?;
            // A worker without packets gets no turn while others have packets.
            if let Order::Deadline { busy_fs, .. } = order {
                return Ok(busy_fs);
            }
            let busy_fs = match self.batch_stay(worker)? {
                // A packet that arrived at the departure time would leave later.
                Some((stay_fs, _)) => Some(stay_fs),
                // The total does not count the cost of batches.
                None if self.batch_fs(worker)? > 0 && matches!(order, Order::Fcfs(_)) => None,
                None => longest_busy_period(&self.total(worker, order)?, &service),
            };
            let turn_fs = self.turn_fs(worker, &service)?;
            let least_fs = busy_fs.into_iter().chain(turn_fs).min();
            least_fs.ok_or_else(|| self.error_at(worker, Unbounded::Overload))
        };
        self.get_or_compute(worker, |cache| &mut cache.lateness_fs, compute)
    }

    /// Returns the longest turn of the worker's loop, fs. There is no bound (`None`) if functions
    /// release all held packets at once, or if other processes keep the core while they have work.
    fn turn_fs(&self, worker: usize, service: &RateLatency) -> Result<Option<u128>, Unbounded> {
        let Resource::Worker { batch, devices, .. } = self.resource(worker)? else {
            return Ok(None);
        };
        let batch_fs = self.batch_fs(worker)?;
        let worker_chains = self.worker_chains(worker)?;
        if worker_chains.holds_packets || matches!(self.order(worker)?, (Order::Shared(_), _)) {
            return Ok(None);
        }
        let ports = if *devices { 2 } else { worker_chains.ports };
        let packets = u128::from(ports) * u128::from(*batch);
        let departures = worker_chains.at_departure;
        let departures = departures.short().rate.min(departures.long().rate);
        let turn = || {
            let packets_fs = worker_chains.max_packet_fs.checked_mul(packets)?;
            let batches_fs = batch_fs.checked_mul(ports.into())?;
            let work_fs = packets_fs.checked_add(batches_fs)?;
            let work_fs = work_fs.checked_add(worker_chains.departure_fs)?;
            let left = service.rate.checked_sub(departures)?;
            let latency_fs = mul_div_up(service.latency_fs, service.rate, left)?;
            mul_div_up(work_fs, SECOND, left)?.checked_add(latency_fs)
        };
        Ok(turn())
    }

    fn batch_fs(&self, worker: usize) -> Result<u128, Unbounded> {
        match self.resource(worker)? {
            Resource::Worker { batch_fs, .. } => Ok(*batch_fs),
            _ => Ok(0),
        }
    }
}
