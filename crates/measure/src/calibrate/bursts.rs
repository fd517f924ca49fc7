//! What packets cost that come in a burst: a worker, or a thread that does a port's receive work, is kept from its core while they come, and then let go.
//!
//! A packet that comes alone pays for being noticed and for a system call of its own. Those of a burst share both, so they cost less, and the bound of a burst
//! may count on that (`myelin_planner::admission`).

use std::time::Duration;

use myelin_api::ApiError;
use myelin_linux::packet_socket::PacketSender;

use super::{FRAMES, Result, median};
use crate::clock::now_ns;
use crate::stall::CoreBlocker;

/// Packets of a short and of a long burst; a link's ring holds 256.
const BURSTS: [usize; 2] = [32, 224];
/// Bursts of each length and frame in a round.
const REPEAT: usize = 8;
/// When a packet of a burst is taken to be lost.
const PATIENCE: Duration = Duration::from_millis(50);

/// Costs in bursts, by frame.
pub(super) struct Bursts {
    /// What sending a packet takes, with all that the port does of it in the sender's system call, ns.
    pub(super) sent_ns: [f64; FRAMES.len()],
    /// What the worker, or the port's thread, takes for it until it is at the far end, ns.
    pub(super) each_ns: [f64; FRAMES.len()],
    /// How long the slowest of a round's long bursts takes, in the middle of the rounds, and the burst in the middle, ns.
    pub(super) slowest_ns: [(f64, f64); FRAMES.len()],
}

/// Who sends, by frame: packets of these in turn.
pub(super) type Senders = [Vec<PacketSender>; FRAMES.len()];

/// What was seen of one frame: what sending one packet took, and by burst how long it took from when the core was let go until the last packet was there, ns.
#[derive(Debug, Clone, Default)]
struct Figures {
    sent_ns: Vec<f64>,
    worked_ns: [Vec<f64>; BURSTS.len()],
}

/// What was seen so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen([Figures; FRAMES.len()]);

impl Seen {
    /// A round more, by a thread on another core than the one that is held. `arrived` tells how many packets have come to the far end so far.
    pub(super) fn round(
        &mut self,
        senders: &Senders,
        blocker: &CoreBlocker,
        arrived: &mut dyn FnMut() -> Result<u64>,
    ) -> Result<()> {
        for _ in 0..REPEAT {
            for (senders, figures) in senders.iter().zip(&mut self.0) {
                for (packets, worked_ns) in BURSTS.into_iter().zip(&mut figures.worked_ns) {
                    let before = arrived()?;
                    blocker.block()?;
                    let sent_ns = send(senders, packets);
                    let released_ns = blocker.release();
                    let sent_ns = sent_ns?;
                    let until_ns = released_ns + PATIENCE.as_nanos() as u64;
                    let mut ns = now_ns();
                    while arrived()? < before + packets as u64 && ns < until_ns {
                        ns = now_ns();
                    }
                    if ns < until_ns {
                        figures.sent_ns.push(sent_ns as f64 / packets as f64);
                        worked_ns.push(ns.saturating_sub(released_ns) as f64);
                    }
                }
            }
        }
        Ok(())
    }

    /// What was found.
    ///
    /// # Errors
    /// None of the bursts of one length came whole.
    pub(super) fn summary(self) -> Result<Bursts> {
        let mut worked_ns = self.0.iter().flat_map(|figures| &figures.worked_ns);
        if worked_ns.any(Vec::is_empty) {
            return Err(ApiError::failed(
                "no burst came whole through a chain; `myelin doctor` may say why",
            )
            .into());
        }
        let more = (BURSTS[1] - BURSTS[0]) as f64;
        // One look at the slowest of all is one at the rarest gap; those of each round have what bursts differ by.
        let slowest_ns = self.0.each_ref().map(|figures| {
            let long_ns = &figures.worked_ns[1];
            let rounds = long_ns.chunks(REPEAT);
            let slowest = rounds.map(|round| round.iter().copied().fold(0.0, f64::max));
            (median(slowest.collect()), median(long_ns.clone()))
        });
        let each_ns = self.0.each_ref().map(|figures| {
            let [short_ns, long_ns] = figures.worked_ns.each_ref().map(|ns| median(ns.clone()));
            (long_ns - short_ns) / more
        });
        Ok(Bursts {
            sent_ns: self.0.map(|figures| median(figures.sent_ns)),
            each_ns,
            slowest_ns,
        })
    }
}

/// What sending a packet takes by frame into a chain that drops it at its front door, ns: the system call, the link, and the port's work up to the door.
pub(super) fn dropped(senders: &Senders, rounds: usize) -> Result<[f64; FRAMES.len()]> {
    let mut figures: [Vec<f64>; FRAMES.len()] = Default::default();
    for _ in 0..rounds * REPEAT {
        for (senders, sent_ns) in senders.iter().zip(&mut figures) {
            sent_ns.push(send(senders, BURSTS[1])? as f64 / BURSTS[1] as f64);
        }
    }
    Ok(figures.map(median))
}

/// Sends so many packets; how long that takes, ns.
fn send(senders: &[PacketSender], packets: usize) -> Result<u64> {
    let start_ns = now_ns();
    for sender in senders.iter().cycle().take(packets) {
        sender.send(1)?;
    }
    Ok(now_ns() - start_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_more_is_the_difference_of_bursts() {
        // 5 us, and 700 ns a packet.
        let burst = |packets: usize| vec![5000.0 + 700.0 * packets as f64; 100];
        let figures = || Figures {
            sent_ns: vec![800.0; 9],
            worked_ns: BURSTS.map(burst),
        };
        let mut slow = figures();
        // One in each round, and a gap in one of them.
        let long_ns = &mut slow.worked_ns[1];
        long_ns.iter_mut().step_by(REPEAT).for_each(|ns| *ns *= 2.0);
        long_ns[3] *= 30.0;
        let bursts = Seen([figures(), slow]).summary().unwrap();
        assert!(bursts.each_ns.iter().all(|ns| (ns - 700.0).abs() < 1e-6));
        assert!(bursts.sent_ns.iter().all(|ns| (ns - 800.0).abs() < 1e-9));
        let times = bursts.slowest_ns.map(|(slow, middle)| slow / middle);
        assert!((times[0] - 1.0).abs() < 1e-9);
        assert!((times[1] - 2.0).abs() < 1e-9, "a rare gap is left out");
    }

    #[test]
    fn bursts_that_never_came_are_no_cost() {
        let error = Seen::default().summary().err().unwrap();
        assert!(error.to_string().contains("doctor"), "{error}");
    }
}
