//! The receive rings of a worker's sockets.

use super::evaluate::{Evaluator, Unbounded};
use super::path::Resource;

impl Evaluator<'_> {
    /// Checks that each ring of a worker holds the packets that may wait there, if no packet stays
    /// at the worker longer than `delay_fs`. All waiting packets arrived at the port within the
    /// sum of the earlier delays and `delay_fs`, possibly in one receive queue. Theorem 10 of
    /// `docs/guarantees/proofs.md`.
    pub(super) fn check_rings(&self, worker: usize, delay_fs: u128) -> Result<(), Unbounded> {
        let resource = self.resource(worker)?;
        let Resource::Worker {
            devices: false,
            rings,
            ..
        } = resource
        else {
            return Ok(());
        };
        let not_computable = || Unbounded::NotComputable(resource.clone());
        // Groups of one port are adjacent, except the new chain's.
        let mut waiting: Vec<(usize, u128)> = Vec::new();
        for group in self.groups_at(worker) {
            let path = self.group(group)?.servers;
            let index = path.iter().position(|server| *server == worker);
            let before_fs = self.delay_before_fs(group, index.ok_or_else(not_computable)?)?;
            let within_fs = before_fs.checked_add(delay_fs).ok_or_else(not_computable)?;
            let packets = self
                .group(group)?
                .sums
                .packet_count
                .at(within_fs)
                .ok_or_else(not_computable)?;
            let is_new = self.new_group() == Some(group);
            let place = if is_new {
                waiting.iter().position(|(port, _)| *port == path[0])
            } else {
                waiting
                    .len()
                    .checked_sub(1)
                    .filter(|last| waiting[*last].0 == path[0])
            };
            match place {
                Some(place) => waiting[place].1 = waiting[place].1.saturating_add(packets),
                None => waiting.push((path[0], packets)),
            }
        }
        for (port, packets) in waiting {
            let port = self.resource(port)?;
            let has_several = matches!(port, Resource::Port { queues, .. } if *queues > 1);
            let ring = u128::from(rings[usize::from(has_several)]);
            if packets > ring {
                return Err(Unbounded::Overflow {
                    at: Box::new(resource.clone()),
                    port: Box::new(port.clone()),
                    packets,
                    ring,
                });
            }
        }
        Ok(())
    }
}
