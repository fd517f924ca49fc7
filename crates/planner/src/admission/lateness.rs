//! How late a worker lets a packet go that it shapes.

use super::evaluate::{Evaluator, Unbounded, longest_busy};
use super::order::Order;
use super::way::Resource;
use crate::calculus::{RateLatency, SECOND, mul_div_up};

impl Evaluator<'_> {
    /// The longest after its departure has come, fs.
    ///
    /// The core may stand still, and the worker must wake up or get its turn. Then it may have a batch of each port in hand, and what other
    /// shapers let go goes first: one packet of each chain, and what their rates bring meanwhile. In any case it is no longer
    /// than the worker works without a pause, for a packet whose departure has come is work.
    pub(super) fn late_at(&self, worker: usize) -> Result<u128, Unbounded> {
        let find = || {
            let (order, service) = self.order(worker)?;
            let busy_fs = match self.without_pause(worker)? {
                // A packet that came when the departure did would leave behind it.
                Some((pause_fs, _)) => Some(pause_fs),
                // Work in which batches do not count by themselves.
                None if self.batch_fs(worker)? > 0 && matches!(order, Order::Fcfs(_)) => None,
                None => longest_busy(&self.total(worker, order)?, &service),
            };
            let turn_fs = self.turn_fs(worker, &service)?;
            let least_fs = busy_fs.into_iter().chain(turn_fs).min();
            least_fs.ok_or_else(|| self.at(worker, Unbounded::Full))
        };
        self.known(worker, |known| &mut known.late_fs, find)
    }

    /// A turn of its loop; `None` where nothing is known of it: functions hold packets back that may all go at once, or others have
    /// the core as long as they have work.
    fn turn_fs(&self, worker: usize, service: &RateLatency) -> Result<Option<u128>, Unbounded> {
        let Resource::Worker { batch, devices, .. } = self.resource(worker)? else {
            return Ok(None);
        };
        let batch_fs = self.batch_fs(worker)?;
        let visitors = self.visitors(worker)?;
        if visitors.hold || matches!(self.order(worker)?, (Order::Shared(_), _)) {
            return Ok(None);
        }
        let ports = if *devices { 2 } else { visitors.ports };
        let packets = u128::from(ports) * u128::from(*batch);
        let departures = visitors.at_departure;
        let departures = departures.short().rate.min(departures.long().rate);
        let turn = || {
            let in_hand_fs = visitors.dearest_fs.checked_mul(packets)?;
            let batches_fs = batch_fs.checked_mul(ports.into())?;
            let work_fs = in_hand_fs.checked_add(batches_fs)?;
            let work_fs = work_fs.checked_add(visitors.departure_fs)?;
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
