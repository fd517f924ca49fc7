//! The worst case of each way.

use super::evaluate::{Evaluator, Total, Unbounded, View, longest};
use super::order::Order;
use super::way::Resource;
use crate::calculus::{ArrivalCurve, Passage, paper_sum, tandem};

/// The bound of the chains of one way.
pub(super) struct Worst {
    /// Without what is held back on purpose, and without `late_fs`.
    bound_fs: u128,
    /// By the paper's sum, the same.
    sum_fs: Option<u128>,
    /// How late the worker may let a packet go that it shapes.
    pub(super) late_fs: u128,
    /// The longest until a packet is at the shaper of the worker; what functions hold back is in it.
    pub(super) to_shaper_fs: Option<u128>,
    pub(super) servers: Vec<Served>,
}

impl Worst {
    /// Without what is held back on purpose, fs.
    pub(super) fn bound_fs(&self) -> u128 {
        self.bound_fs.saturating_add(self.late_fs)
    }

    /// The same by the paper's sum.
    pub(super) fn sum_fs(&self) -> Option<u128> {
        Some(self.sum_fs?.saturating_add(self.late_fs))
    }
}

/// The same at one server.
pub(super) struct Served {
    pub(super) latency_fs: u128,
    pub(super) rate: u128,
    /// All that is promised there.
    pub(super) total: ArrivalCurve,
    pub(super) delay_fs: u128,
}

impl Evaluator<'_> {
    /// The worst case of a group.
    pub(super) fn worst(&self, group: usize) -> Result<Worst, Unbounded> {
        let View {
            route,
            servers: way,
            sums,
        } = self.group(group)?;
        let beyond = || Unbounded::Beyond(route.resources[0].clone());
        let mut servers = Vec::with_capacity(way.len());
        let mut passages = Vec::with_capacity(way.len());
        let mut sum_fs = Some(0_u128);
        let mut added_fs = 0_u128;
        let mut ordered = true;
        let (mut late_fs, mut to_shaper_fs) = (0, None);
        for (index, (server, resource)) in way.iter().zip(&route.resources).enumerate() {
            let full = || Unbounded::Full(resource.clone());
            let (order, _) = self.order(*server)?;
            let (Order::Fcfs(service) | Order::Any(service) | Order::Shared(service)) = order;
            let arrived = self.arrived(group, index)?;
            let all = self.total(*server, order)?;
            let others = all.curve.minus(&arrived).ok_or_else(full)?;
            // Its own as it was sent: to move a flow's packets back in time until they keep to their profile again makes none of them
            // leave earlier. That needs first come, first served, here and before.
            ordered &= matches!(order, Order::Fcfs(_));
            let own = if ordered { sums.curves[index] } else { arrived };
            // Whether the rings hold what waits.
            self.delay_at(*server)?;
            let curve = own.plus(&others).ok_or_else(full)?;
            let total = Total { curve, ..all };
            let in_order_fs = longest(&total, order).ok_or_else(full)?;
            let (stays_fs, latency_fs) = match self.without_pause(*server)? {
                Some((pause_fs, latency_fs)) if pause_fs < in_order_fs => (pause_fs, latency_fs),
                _ => (in_order_fs, service.latency_fs),
            };
            let delay_fs = stays_fs
                .checked_mul(route.passages(resource))
                .ok_or_else(beyond)?;
            added_fs = added_fs.checked_add(delay_fs).ok_or_else(beyond)?;
            if let Order::Fcfs(service) = order {
                passages.push(Passage {
                    service,
                    others,
                    packet: sums.packets_fs[index],
                });
                let short = curve.short().rate <= service.rate;
                let burst =
                    |curve: &ArrivalCurve| if short { curve.short() } else { curve.long() }.burst;
                let bursts = [burst(&own), burst(&others)];
                let here_fs = paper_sum(bursts, service.rate, service.latency_fs);
                sum_fs = sum_fs
                    .zip(here_fs)
                    .and_then(|(sum, here)| sum.checked_add(here));
            } else {
                sum_fs = None;
            }
            if route.is_shaped && matches!(resource, Resource::Worker { .. }) {
                late_fs = self.late_at(*server)?;
                let once_fs = once_fs(&sums.most, &passages, index + 1);
                let least_fs = once_fs.map_or(added_fs, |once| once.min(added_fs));
                to_shaper_fs = Some(least_fs.saturating_add(route.hold.for_fs));
            }
            servers.push(Served {
                latency_fs,
                rate: service.rate,
                total: curve,
                delay_fs,
            });
        }
        let once_fs = once_fs(&sums.most, &passages, way.len());
        Ok(Worst {
            bound_fs: once_fs.map_or(added_fs, |once| once.min(added_fs)),
            sum_fs,
            late_fs,
            to_shaper_fs,
            servers,
        })
    }

    /// A bound on the delay of a group that is quickly found, and not the best: of all servers, the longest that anybody stays. And of
    /// that what is until the shaper.
    pub(super) fn rough_fs(&self, group: usize) -> Result<(u128, u128), Unbounded> {
        let View {
            route,
            servers: way,
            ..
        } = self.group(group)?;
        let until = |end| {
            let delay_fs = self.before_fs(group, end)?;
            Ok::<_, Unbounded>(delay_fs - route.held_before(end))
        };
        let mut all_fs = until(way.len())?;
        let mut to_shaper_fs = 0;
        if let Some(worker) = route.worker().filter(|_| route.is_shaped) {
            all_fs = all_fs.saturating_add(self.late_at(way[worker])?);
            to_shaper_fs = self.before_fs(group, worker + 1)?;
        }
        Ok((all_fs, to_shaper_fs))
    }
}

/// The bound with the burst once, of the first so many servers; `None` where they are not all first come, first served. It is below the
/// sum, unless the others need nearly all of a server.
fn once_fs(most: &ArrivalCurve, passages: &[Passage], servers: usize) -> Option<u128> {
    (passages.len() == servers)
        .then(|| tandem(most, passages))
        .flatten()
}
