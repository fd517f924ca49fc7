//! How late a worker lets a packet go that it shapes.

use super::evaluate::{Evaluator, Order, Unbounded, longest_busy};
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
            let service = self.service(worker)?;
            let total = self.total(worker, self.order(worker)?)?;
            let busy_fs = longest_busy(&total, &service);
            let turn_fs = self.turn_fs(worker, &service)?;
            let least_fs = busy_fs.into_iter().chain(turn_fs).min();
            least_fs.ok_or_else(|| self.at(worker, Unbounded::Full))
        };
        self.known_late(worker, find)
    }

    /// A turn of its loop; `None` where nothing is known of it: functions hold packets back that may all go at once, or others have
    /// the core as long as they have work.
    fn turn_fs(&self, worker: usize, service: &RateLatency) -> Result<Option<u128>, Unbounded> {
        let Resource::Worker { batch, devices, .. } = self.resource(worker)? else {
            return Ok(None);
        };
        let visitors = self.visitors(worker)?;
        if visitors.hold || matches!(self.order(worker)?, Order::Shared(_)) {
            return Ok(None);
        }
        let ports = if *devices { 2 } else { visitors.ports };
        let packets = u128::from(ports) * u128::from(*batch);
        let departures = visitors.at_departure;
        let departures = departures.short().rate.min(departures.long().rate);
        let turn = || {
            let in_hand_fs = visitors.dearest_fs.checked_mul(packets)?;
            let work_fs = in_hand_fs.checked_add(visitors.departure_fs)?;
            let left = service.rate.checked_sub(departures)?;
            let latency_fs = mul_div_up(service.latency_fs, service.rate, left)?;
            mul_div_up(work_fs, SECOND, left)?.checked_add(latency_fs)
        };
        Ok(turn())
    }
}
