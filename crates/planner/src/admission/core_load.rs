//! The load of a core, for the placement of further chains.

use super::evaluate::{Evaluator, Unbounded};
use super::ledger::Ledger;
use super::order::Order;
use super::site::Platform;
use crate::calculus::{ArrivalCurve, RateLatency, delay};

/// The work of a core's workers, and the delay up to which all promises hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CoreLoad {
    /// Work of the admitted chains, in fs of the core's time.
    pub load: ArrivalCurve,
    /// Longest delay at the core with which all promises of its chains hold, fs; `None` without
    /// promises. Further work may add as much delay as the tightest promise leaves.
    pub longest_fs: Option<u128>,
}

impl Ledger {
    /// Returns the load of a core; `None` if no chain with a promise may use the core, because a
    /// chain without a rate does.
    pub fn core_load(&self, core: u32, platform: &Platform) -> Option<CoreLoad> {
        self.sum_core(core, platform).ok().flatten()
    }

    fn sum_core(&self, core: u32, platform: &Platform) -> Result<Option<CoreLoad>, Unbounded> {
        let evaluator = Evaluator::new(self, platform, None);
        let (mut load, mut slack_fs) = (ArrivalCurve::default(), None);
        for server in self.workers_on(core) {
            let (order, _) = evaluator.order(server)?;
            let here = evaluator.total(server, order)?.curve;
            // With processes in unknown order, the total of each has the work of all.
            load = match order {
                Order::Shared(_) => here,
                _ => match load.plus(&here) {
                    Some(sum) => sum,
                    None => return Ok(None),
                },
            };
            for group in evaluator.groups_at(server) {
                load = match load.plus(&evaluator.arrivals_in_rounds(group, server)?) {
                    Some(sum) => sum,
                    None => return Ok(None),
                };
                let promise = self
                    .group(group)
                    .and_then(|group| group.tightest_promise(0));
                if let Some((promise_fs, _)) = promise {
                    let left_fs =
                        promise_fs.saturating_sub(evaluator.worst_case(group)?.bound_fs());
                    slack_fs = Some(slack_fs.map_or(left_fs, |least: u128| least.min(left_fs)));
                }
            }
        }
        let now_fs = delay(&load, &RateLatency::core(platform.stall_fs(core)));
        Ok(now_fs.map(|now_fs| CoreLoad {
            load,
            longest_fs: slack_fs.map(|slack_fs| now_fs.saturating_add(slack_fs)),
        }))
    }
}
