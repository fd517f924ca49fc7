//! What packets cost that come in a burst: a worker, or a thread that does a port's receive work, is kept from its core while they come, and then let go.
//!
//! A packet that comes alone pays for being noticed and for a system call of its own. Those of a burst share both, so they cost less, and the bound of a burst
//! may count on that (`myelin_planner::admission`).

use std::time::Duration;

use myelin_linux::affinity;
use myelin_linux::netlink::Netlink;
use myelin_linux::netns::Netns;
use myelin_linux::packet_socket::{MAX_BATCH, PacketSender};
use myelin_planner::Cost;
use myelin_probe::clock::now_ns;

use super::{FRAMES, at_least_nothing, frame, median};
use crate::api::ApiError;
use crate::hold::Hold;

/// Packets of a short and of a long burst; a link's ring holds 256.
const BURSTS: [usize; 2] = [32, 224];
/// Bursts of each length and frame in a round.
const REPEAT: usize = 8;
/// When a packet of a burst is taken to be lost.
const PATIENCE: Duration = Duration::from_millis(50);

/// Costs in bursts.
pub(super) struct Bursts {
    /// What sending a packet takes by frame, with all that the port does of it in the sender's system call, ns.
    pub(super) sent_ns: [f64; 2],
    /// What the worker, or the port's thread, takes for it, ns.
    pub(super) each: Cost,
    /// By frame, how long the slowest of a round's long bursts takes, in the middle of the rounds, and the burst in the middle, ns.
    pub(super) slowest_ns: Vec<(f64, f64)>,
}

/// Between these two hosts, through a chain whose worker polls on that core, or whose port is served there, and that calls one function. `left` tells how many packets have left the chain so far,
/// `dispatch_ns` what the call takes. `None` where one core is all there is, or the thread that keeps the core may not.
pub(super) fn measure(
    [client, server]: [&Netns; 2],
    core: usize,
    rounds: usize,
    dispatch_ns: f64,
    left: &dyn Fn() -> Result<u64, ApiError>,
) -> Result<Option<Bursts>, ApiError> {
    let before = affinity::get(0).map_err(ApiError::failed)?;
    let Some(&here) = before.iter().find(|one| **one != core) else {
        return Ok(None);
    };
    let hold = Hold::of(core, false);
    if hold.take().is_err() {
        return Ok(None);
    }
    hold.release();
    let senders = senders([client, server])?;
    affinity::set(0, &[here]).map_err(ApiError::failed)?;
    let figures = all(&senders, &hold, rounds, left);
    affinity::set(0, &before).map_err(ApiError::failed)?;
    Ok(Some(summary(figures?, dispatch_ns)))
}

/// What sending a packet takes by frame into a chain that drops it at its front door, ns: the system call, the link, and the port's work up to the door.
pub(super) fn dropped(
    hosts: [&Netns; 2],
    core: usize,
    rounds: usize,
) -> Result<[f64; 2], ApiError> {
    let before = affinity::get(0).map_err(ApiError::failed)?;
    let here = before.iter().copied().find(|one| *one != core);
    affinity::set(0, &[here.unwrap_or(core)]).map_err(ApiError::failed)?;
    let mut figures = [Vec::new(), Vec::new()];
    for _ in 0..rounds * REPEAT {
        for (sender, sent) in senders(hosts)?.iter().zip(&mut figures) {
            sent.push(send(sender, BURSTS[1])? as f64 / BURSTS[1] as f64);
        }
    }
    affinity::set(0, &before).map_err(ApiError::failed)?;
    Ok(figures.map(median))
}

/// One for each frame.
fn senders([client, server]: [&Netns; 2]) -> Result<Vec<PacketSender>, ApiError> {
    let mac = server.enter(|| Ok::<_, myelin_linux::Error>(Netlink::open()?.link("eth0")?.mac));
    let mac = mac.map_err(ApiError::failed)?.map_err(ApiError::failed)?;
    let senders = FRAMES.map(|bytes| {
        let mut frame = frame(bytes);
        if let Some(mac) = mac {
            frame[..6].copy_from_slice(&mac.0);
        }
        let open = || PacketSender::new(Netlink::open()?.link("eth0")?.id().index, &frame);
        let sender = client.enter(open).map_err(ApiError::failed)?;
        sender.map_err(ApiError::failed)
    });
    senders.into_iter().collect()
}

/// How long that takes, ns.
fn send(sender: &PacketSender, packets: usize) -> Result<u64, ApiError> {
    let start_ns = now_ns();
    let mut offered = 0;
    while offered < packets {
        let count = (packets - offered).min(MAX_BATCH);
        offered += sender.send(count).map_err(ApiError::failed)?;
    }
    Ok(now_ns() - start_ns)
}

/// By frame: what sending one packet took, and by burst how long the worker took, ns.
type Figures = [(Vec<f64>, [Vec<f64>; 2]); 2];

fn all(
    senders: &[PacketSender],
    hold: &Hold,
    rounds: usize,
    left: &dyn Fn() -> Result<u64, ApiError>,
) -> Result<Figures, ApiError> {
    let mut figures = Figures::default();
    for _ in 0..rounds * REPEAT {
        for (sender, (sent, worked)) in senders.iter().zip(&mut figures) {
            for (packets, worked) in BURSTS.into_iter().zip(worked) {
                let before = left()?;
                hold.take()?;
                let sent_ns = send(sender, packets)?;
                let released_ns = hold.release();
                let until_ns = released_ns + PATIENCE.as_nanos() as u64;
                let mut ns = now_ns();
                while left()? < before + packets as u64 && ns < until_ns {
                    ns = now_ns();
                }
                if ns < until_ns {
                    sent.push(sent_ns as f64 / packets as f64);
                    worked.push(ns.saturating_sub(released_ns) as f64);
                }
            }
        }
    }
    if figures
        .iter()
        .any(|(_, worked)| worked.iter().any(Vec::is_empty))
    {
        return Err(ApiError::failed(
            "no burst came whole through a chain; `myelin doctor` may say why",
        ));
    }
    Ok(figures)
}

fn summary(figures: Figures, dispatch_ns: f64) -> Bursts {
    let more = (BURSTS[1] - BURSTS[0]) as f64;
    // One look at the slowest of all is one at the rarest gap; those of each round have what bursts differ by.
    let slowest_ns = figures.iter().map(|(_, [_, long])| {
        let rounds = long.chunks(REPEAT);
        let slowest = rounds.map(|round| round.iter().copied().fold(0.0, f64::max));
        (median(slowest.collect()), median(long.clone()))
    });
    let slowest_ns = slowest_ns.collect();
    let [one, other] = figures.map(|(sent, [short, long])| {
        let each = (median(long) - median(short)) / more - dispatch_ns;
        (median(sent), each)
    });
    Bursts {
        sent_ns: [one.0, other.0],
        each: at_least_nothing([one.1, other.1]),
        slowest_ns,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_more_is_the_difference_of_bursts() {
        // 5 us, and 700 ns a packet, of which the call takes 100.
        let burst = |packets: usize| vec![5000.0 + 700.0 * packets as f64; 100];
        let figures = || (vec![800.0; 9], BURSTS.map(burst));
        let mut slow = figures();
        // One in each round, and a gap in one of them.
        slow.1[1]
            .iter_mut()
            .step_by(REPEAT)
            .for_each(|ns| *ns *= 2.0);
        slow.1[1][3] *= 30.0;
        let bursts = summary([figures(), slow], 100.0);
        let at = |cost: myelin_planner::Cost| cost.at_ns(FRAMES[0] as u64).round() as u64;
        assert_eq!(at(bursts.each), 600);
        assert!(bursts.sent_ns.iter().all(|ns| (ns - 800.0).abs() < 1e-9));
        let times: Vec<f64> = bursts
            .slowest_ns
            .iter()
            .map(|(slow, mid)| slow / mid)
            .collect();
        assert!((times[0] - 1.0).abs() < 1e-9);
        assert!((times[1] - 2.0).abs() < 1e-9, "a rare gap is left out");
    }
}
