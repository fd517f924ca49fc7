//! Measures the cost of packets in a burst. A real-time thread blocks the core of a worker, or of a
//! port's receive thread, while the burst arrives, and then releases it.
//!
//! A single packet pays for its notification and its system call. The packets of a burst share both
//! costs, so each packet costs less. The bound of a burst uses this lower cost
//! (`myelin_planner::admission`).

use std::time::Duration;

use myelin_api::ApiError;
use myelin_linux::netlink::Netlink;
use myelin_linux::netns::Netns;
use myelin_linux::packet_socket::PacketSender;

use super::{FRAMES, Result, frame, median};
use crate::clock::now_ns;
use crate::stall::CoreBlocker;

/// The destination port of the measured frame.
pub(super) const FIRST_PORT: u16 = 9000;
/// Number of packets of a short and of a long burst. A link's ring holds 256 packets.
const BURSTS: [usize; 2] = [32, 224];
/// Number of bursts of each length and frame in a round.
const REPEAT: usize = 8;
/// A packet of a burst is lost after this time.
const LOSS_TIMEOUT: Duration = Duration::from_millis(50);

/// Costs in bursts, by frame.
pub(super) struct BurstCosts {
    /// Cost of sending a packet, including the port's work in the sender's system call, ns.
    pub(super) sent_ns: [f64; FRAMES.len()],
    /// Cost of a packet in the worker or the port's thread until it is at the far end, ns.
    pub(super) each_ns: [f64; FRAMES.len()],
    /// Two times of long bursts, ns: the slowest burst of a round, as the median of all rounds, and
    /// the median burst.
    pub(super) slowest_ns: [(f64, f64); FRAMES.len()],
}

/// Senders by frame. Bursts take their packets from these senders in turn.
pub(super) type Senders = [Vec<PacketSender>; FRAMES.len()];

/// Samples of one frame, ns.
#[derive(Debug, Clone, Default)]
struct FrameSamples {
    /// Time to send one packet.
    sent_ns: Vec<f64>,
    /// By burst, the time from the release of the core to the arrival of the last packet.
    worked_ns: [Vec<f64>; BURSTS.len()],
}

/// Samples of the rounds so far.
#[derive(Debug, Clone)]
pub(super) struct BurstSamples {
    /// Number of packets of a short and of a long burst.
    bursts: [usize; BURSTS.len()],
    by_frame: [FrameSamples; FRAMES.len()],
}

impl Default for BurstSamples {
    fn default() -> Self {
        Self::of_bursts(BURSTS)
    }
}

impl BurstSamples {
    /// Starts without samples, with bursts of these numbers of packets, the shorter first.
    pub(super) fn of_bursts(bursts: [usize; BURSTS.len()]) -> Self {
        Self {
            bursts,
            by_frame: <[FrameSamples; FRAMES.len()]>::default(),
        }
    }

    /// Measures one more round. The caller's thread must run on another core than the blocked core.
    /// `arrived` counts the packets at the far end.
    pub(super) fn measure_round(
        &mut self,
        senders: &Senders,
        blocker: &CoreBlocker,
        arrived: &mut dyn FnMut() -> Result<u64>,
    ) -> Result<()> {
        for _ in 0..REPEAT {
            for (senders, figures) in senders.iter().zip(&mut self.by_frame) {
                for (packets, worked_ns) in self.bursts.into_iter().zip(&mut figures.worked_ns) {
                    let before = arrived()?;
                    blocker.block()?;
                    let sent_ns = send(senders, packets);
                    let released_ns = blocker.release();
                    let sent_ns = sent_ns?;
                    let until_ns = released_ns + LOSS_TIMEOUT.as_nanos() as u64;
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

    /// Whether a burst of each length and frame has arrived completely.
    pub(super) fn is_complete(&self) -> bool {
        let mut worked_ns = self.by_frame.iter().flat_map(|figures| &figures.worked_ns);
        !worked_ns.any(Vec::is_empty)
    }

    /// Computes the costs from all rounds.
    ///
    /// # Errors
    /// No burst of one length arrived completely.
    pub(super) fn compute_costs(self) -> Result<BurstCosts> {
        if !self.is_complete() {
            return Err(ApiError::failed(
                "no burst arrived completely through a chain; `myelin doctor` may show the cause",
            )
            .into());
        }
        let extra_packets = (self.bursts[1] - self.bursts[0]) as f64;
        // The slowest burst of all rounds shows the rarest gap. The slowest burst of each round
        // shows how much bursts usually differ.
        let slowest_ns = self.by_frame.each_ref().map(|figures| {
            let long_ns = &figures.worked_ns[1];
            let rounds = long_ns.chunks(REPEAT);
            let slowest = rounds.map(|round| round.iter().copied().fold(0.0, f64::max));
            (median(slowest.collect()), median(long_ns.clone()))
        });
        let each_ns = self.by_frame.each_ref().map(|figures| {
            let [short_ns, long_ns] = figures.worked_ns.each_ref().map(|ns| median(ns.clone()));
            (long_ns - short_ns) / extra_packets
        });
        Ok(BurstCosts {
            sent_ns: self.by_frame.map(|figures| median(figures.sent_ns)),
            each_ns,
            slowest_ns,
        })
    }
}

/// Measures the cost, by frame, of sending a packet into a chain that drops all packets, ns. The
/// cost contains the system call, the link, and the port's work up to the front door.
pub(super) fn measure_dropped_packet_ns(
    senders: &Senders,
    rounds: usize,
) -> Result<[f64; FRAMES.len()]> {
    let mut figures: [Vec<f64>; FRAMES.len()] = Default::default();
    for _ in 0..rounds * REPEAT {
        for (senders, sent_ns) in senders.iter().zip(&mut figures) {
            sent_ns.push(send(senders, BURSTS[1])? as f64 / BURSTS[1] as f64);
        }
    }
    Ok(figures.map(median))
}

/// Sends packets. Returns the duration, ns.
fn send(senders: &[PacketSender], packets: usize) -> Result<u64> {
    let start_ns = now_ns();
    for sender in senders.iter().cycle().take(packets) {
        sender.send(1)?;
    }
    Ok(now_ns() - start_ns)
}

/// Makes one sender for each frame and port.
pub(super) fn create_senders(
    client: &Netns,
    mac: Option<[u8; 6]>,
    ports: &[u16],
) -> Result<Senders> {
    let create = |bytes: usize| {
        client.enter(|| {
            let link = Netlink::open()?.link("eth0")?.id().index;
            let frames = ports.iter().map(|port| make_frame_to(bytes, *port, mac));
            frames
                .map(|frame| PacketSender::new(link, &frame))
                .collect::<myelin_linux::Result<_>>()
        })?
    };
    let [short, long] = FRAMES.map(create);
    Ok([short?, long?])
}

/// Makes the measured frame with another port. Also changes the frame's last word, so the checksum
/// stays valid.
fn make_frame_to(bytes: usize, port: u16, mac: Option<[u8; 6]>) -> Vec<u8> {
    let mut frame = frame(bytes);
    if let Some(mac) = mac {
        frame[..6].copy_from_slice(&mac);
    }
    let difference = port - FIRST_PORT;
    let last = bytes - 2;
    for (offset, word) in [(36, port), (last, 0x5555 - difference)] {
        frame[offset..offset + 2].copy_from_slice(&word.to_be_bytes());
    }
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packet_cost_is_the_difference_between_bursts() {
        // A burst takes 5 us, and 700 ns a packet.
        let burst = |packets: usize| vec![5000.0 + 700.0 * packets as f64; 100];
        let figures = || FrameSamples {
            sent_ns: vec![800.0; 9],
            worked_ns: BURSTS.map(burst),
        };
        let mut slow = figures();
        // One slow burst in each round, and a rare gap in one round.
        let long_ns = &mut slow.worked_ns[1];
        long_ns.iter_mut().step_by(REPEAT).for_each(|ns| *ns *= 2.0);
        long_ns[3] *= 30.0;
        let samples = BurstSamples {
            by_frame: [figures(), slow],
            ..BurstSamples::default()
        };
        let bursts = samples.compute_costs().unwrap();
        assert!(bursts.each_ns.iter().all(|ns| (ns - 700.0).abs() < 1e-6));
        assert!(bursts.sent_ns.iter().all(|ns| (ns - 800.0).abs() < 1e-9));
        let times = bursts.slowest_ns.map(|(slow, middle)| slow / middle);
        assert!((times[0] - 1.0).abs() < 1e-9);
        assert!(
            (times[1] - 2.0).abs() < 1e-9,
            "the median ignores a rare gap"
        );
    }

    #[test]
    fn missing_bursts_are_an_error() {
        let error = BurstSamples::default().compute_costs().err().unwrap();
        assert!(error.to_string().contains("doctor"), "{error}");
    }

    #[test]
    fn frames_to_other_ports_are_valid() {
        for bytes in FRAMES {
            for port in [FIRST_PORT, FIRST_PORT + 1, FIRST_PORT + 16] {
                let frame = make_frame_to(bytes, port, None);
                let headers = myelin_packet::parse(&frame).expect("parses");
                assert_eq!(
                    myelin_packet::checksum::l4_is_valid(&frame, &headers),
                    Some(true)
                );
                assert_eq!(frame[36..38], port.to_be_bytes());
            }
        }
    }
}
