//! The worst case of each path.

use super::evaluate::{Evaluator, GroupView, Total, Unbounded, longest_delay};
use super::order::Order;
use super::path::Resource;
use crate::calculus::{ArrivalCurve, TandemServer, paper_sum, tandem};

/// The bound of the chains of one path.
pub(super) struct WorstCase {
    /// The bound without hold times and without `late_fs`, fs.
    bound_fs: u128,
    /// The paper's sum without hold times and without `late_fs`, fs.
    sum_fs: Option<u128>,
    /// Lateness of the worker's shaper, fs.
    pub(super) late_fs: u128,
    /// Longest time from the policer to the worker's shaper, including hold times of functions, fs.
    pub(super) to_shaper_fs: Option<u128>,
    pub(super) servers: Vec<ServerResult>,
}

impl WorstCase {
    /// Returns the bound without hold times, fs.
    pub(super) fn bound_fs(&self) -> u128 {
        self.bound_fs.saturating_add(self.late_fs)
    }

    /// Returns the paper's sum without hold times, fs.
    pub(super) fn sum_fs(&self) -> Option<u128> {
        Some(self.sum_fs?.saturating_add(self.late_fs))
    }
}

/// The results at one server.
pub(super) struct ServerResult {
    pub(super) latency_fs: u128,
    pub(super) rate: u128,
    /// All admitted arrivals at the server.
    pub(super) total: ArrivalCurve,
    pub(super) delay_fs: u128,
}

impl Evaluator<'_> {
    /// Computes the worst case of a group.
    pub(super) fn worst_case(&self, group: usize) -> Result<WorstCase, Unbounded> {
        let GroupView {
            route,
            servers: path,
            sums,
        } = self.group(group)?;
        let not_computable = || Unbounded::NotComputable(route.resources[0].clone());
        let mut servers = Vec::with_capacity(path.len());
        let mut tandem_servers = Vec::with_capacity(path.len());
        let mut sum_fs = Some(0_u128);
        let mut added_fs = 0_u128;
        let mut is_fifo = true;
        let (mut late_fs, mut to_shaper_fs) = (0, None);
        for (index, (server, resource)) in path.iter().zip(&route.resources).enumerate() {
            let overload = || Unbounded::Overload(resource.clone());
            let (order, _) = self.order(*server)?;
            let service = order.service();
            let arrived = self.arrivals(group, index)?;
            let all = self.total(*server, order)?;
            let others = all.curve.minus(&arrived).ok_or_else(overload)?;
            // While all servers so far are first come, first served, the group's own arrivals count
            // without upstream burstiness: theorem 8 of docs/guarantees/proofs.md.
            is_fifo &= matches!(order, Order::Fcfs(_));
            let own = if is_fifo { sums.curves[index] } else { arrived };
            // Checks the rings.
            self.delay_at(*server)?;
            let curve = own.plus(&others).ok_or_else(overload)?;
            let total = Total { curve, ..all };
            let in_order_fs = longest_delay(&total, order).ok_or_else(overload)?;
            let (stays_fs, latency_fs) = match self.batch_stay(*server)? {
                Some((stay_fs, latency_fs)) if stay_fs < in_order_fs => (stay_fs, latency_fs),
                _ => {
                    let latency_fs = service.latency_fs.saturating_add(order.rounds_fs());
                    (in_order_fs, latency_fs)
                }
            };
            let delay_fs = stays_fs
                .checked_mul(route.passages(resource))
                .ok_or_else(not_computable)?;
            added_fs = added_fs.checked_add(delay_fs).ok_or_else(not_computable)?;
            if let Order::Fcfs(service) = order {
                tandem_servers.push(TandemServer {
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
                late_fs = self.shaper_lateness(*server)?;
                let tandem_fs = tandem_fs(&sums.max_work, &tandem_servers, index + 1);
                let least_fs = tandem_fs.map_or(added_fs, |once| once.min(added_fs));
                to_shaper_fs = Some(least_fs.saturating_add(route.hold.for_fs));
            }
            servers.push(ServerResult {
                latency_fs,
                rate: service.rate,
                total: curve,
                delay_fs,
            });
        }
        let tandem_fs = tandem_fs(&sums.max_work, &tandem_servers, path.len());
        Ok(WorstCase {
            bound_fs: tandem_fs.map_or(added_fs, |once| once.min(added_fs)),
            sum_fs,
            late_fs,
            to_shaper_fs,
            servers,
        })
    }

    /// Computes a quick and looser bound of a group, the sum of the longest stays at its servers.
    /// Returns this bound and the time to the group's shaper.
    pub(super) fn quick_bound_fs(&self, group: usize) -> Result<(u128, u128), Unbounded> {
        let GroupView {
            route,
            servers: path,
            ..
        } = self.group(group)?;
        let sum_to = |end| {
            let delay_fs = self.delay_before_fs(group, end)?;
            Ok::<_, Unbounded>(delay_fs - route.held_before(end))
        };
        let mut all_fs = sum_to(path.len())?;
        let mut to_shaper_fs = 0;
        if let Some(worker) = route.worker().filter(|_| route.is_shaped) {
            all_fs = all_fs.saturating_add(self.shaper_lateness(path[worker])?);
            to_shaper_fs = self.delay_before_fs(group, worker + 1)?;
        }
        Ok((all_fs, to_shaper_fs))
    }
}

/// Returns the tandem bound of the first servers; `None` unless all are first come, first served.
/// This bound is below the sum unless other chains need nearly the whole rate of a server.
fn tandem_fs(
    max_work: &ArrivalCurve,
    tandem_servers: &[TandemServer],
    servers: usize,
) -> Option<u128> {
    (tandem_servers.len() == servers)
        .then(|| tandem(max_work, tandem_servers))
        .flatten()
}
