//! Sends streams of one frame each from one core, at a rate or as fast as possible.

use std::time::{Duration, Instant};

use myelin_linux::affinity;
use myelin_linux::packet_socket::{MAX_BATCH, PacketSender};
use myelin_measure::clock::now_ns;
use myelin_measure::generator::{self, Late, Pace, Wait};

use crate::Error;

/// One stream.
pub(crate) struct Stream<'a> {
    pub(crate) sender: &'a PacketSender,
    /// Packets a second.
    pub(crate) rate_pps: f64,
    /// Packets of one cluster.
    pub(crate) cluster: usize,
    /// Most late packets that the generator sends at once after a delay; it skips the others. So
    /// the stream conforms to a profile with this burst, even if the machine stalls.
    pub(crate) burst: u64,
}

/// Packets of a stream.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StreamCounts {
    /// Packets sent.
    pub(crate) packets: u64,
    /// Due packets that the generator skipped after a delay.
    pub(crate) skipped: u64,
}

impl StreamCounts {
    /// Share of due packets that were skipped.
    pub(crate) fn skipped_share(&self) -> f64 {
        self.skipped as f64 / (self.packets + self.skipped).max(1) as f64
    }
}

/// Sends the streams in turn for `duration`, each at its rate, from one core. A slow stream delays
/// the others by at most one batch.
pub(crate) fn generate(
    streams: &[Stream<'_>],
    duration: Duration,
    core: usize,
) -> Result<Vec<StreamCounts>, Error> {
    run_on_core(core, || {
        let start_ns = now_ns();
        let paced = streams.iter().map(|stream| {
            let pace = Pace::new(Some(stream.rate_pps), Late::Skip(stream.burst), start_ns);
            generator::Stream::new(pace, move |due: u64, _| {
                let clusters = due as usize / stream.cluster * stream.cluster;
                let packets = send(stream.sender, clusters.min(MAX_BATCH.max(stream.cluster)))?;
                Ok::<_, Error>(generator::SendOutcome {
                    packets,
                    refused: 0,
                })
            })
        });
        let mut paced: Vec<_> = paced.collect();
        let end_ns = start_ns + duration.as_nanos() as u64;
        generator::generate(&mut paced, Wait::Spin, |_, ns| ns < end_ns)?;
        let sent = paced.iter().map(|stream| StreamCounts {
            packets: stream.sent(),
            skipped: stream.pace().skipped(),
        });
        Ok(sent.collect())
    })
}

/// Sends `count` packets as fast as possible. Returns the time it took.
pub(crate) fn send_all(sender: &PacketSender, count: u64, core: usize) -> Result<Duration, Error> {
    run_on_core(core, || {
        let start = Instant::now();
        let mut sent = 0;
        while sent < count {
            sent += send(sender, (count - sent).min(MAX_BATCH as u64) as usize)?;
        }
        Ok(start.elapsed())
    })
}

fn send(sender: &PacketSender, count: usize) -> Result<u64, Error> {
    let mut sent = 0;
    while sent < count {
        sent += sender
            .send(count - sent)
            .map_err(|cause| Error::system("send frames", cause))?;
    }
    Ok(sent as u64)
}

/// Runs `work` on one core, and then restores the thread's cores.
fn run_on_core<T>(core: usize, work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    let before = affinity::get(0)?;
    affinity::set(0, &[core])?;
    let outcome = work();
    affinity::set(0, &before)?;
    outcome
}
