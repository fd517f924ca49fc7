//! What waits for a worker in the rings of its sockets.

use super::evaluate::{Evaluator, Unbounded};
use super::way::Resource;

/// Packets that the receiving ring of a worker's socket holds: what a burst at full rate fills in about a millisecond.
pub const RING: u32 = 1024;
/// The same where the interface has several receive queues, each of which has a socket, so that the packet memory suffices for all.
pub const SMALL_RING: u32 = 256;

impl Evaluator<'_> {
    /// Whether each ring of a worker holds what may wait in it, where nobody stays longer than `delay_fs`: what is there came to the
    /// port within the delays before and here. All may have come by one receive queue.
    pub(super) fn check_rings(&self, worker: usize, delay_fs: u128) -> Result<(), Unbounded> {
        let resource = self.resource(worker)?;
        if !matches!(resource, Resource::Worker { devices: false, .. }) {
            return Ok(());
        }
        let beyond = || Unbounded::Beyond(resource.clone());
        // Those of one port stand together, but for the way that is tried.
        let mut waiting: Vec<(usize, u128)> = Vec::new();
        for group in self.groups_at(worker) {
            let way = self.group(group)?.servers;
            let index = way.iter().position(|one| *one == worker);
            let before_fs = self.before_fs(group, index.ok_or_else(beyond)?)?;
            let within_fs = before_fs.checked_add(delay_fs).ok_or_else(beyond)?;
            let packets = self
                .group(group)?
                .sums
                .count
                .at(within_fs)
                .ok_or_else(beyond)?;
            let is_new = self.own() == Some(group);
            let place = if is_new {
                waiting.iter().position(|(port, _)| *port == way[0])
            } else {
                waiting
                    .len()
                    .checked_sub(1)
                    .filter(|last| waiting[*last].0 == way[0])
            };
            match place {
                Some(place) => waiting[place].1 = waiting[place].1.saturating_add(packets),
                None => waiting.push((way[0], packets)),
            }
        }
        for (port, packets) in waiting {
            let port = self.resource(port)?;
            let ring = u128::from(match port {
                Resource::Port { queues, .. } if *queues > 1 => SMALL_RING,
                _ => RING,
            });
            if packets > ring {
                return Err(Unbounded::Overflow {
                    at: resource.clone(),
                    port: Box::new(port.clone()),
                    packets,
                    ring,
                });
            }
        }
        Ok(())
    }
}
