//! Streams of one frame each from one core, by the clock or as fast as they go.

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
    /// Packets that come together.
    pub(crate) cluster: usize,
    /// Most packets that are sent at once when the generator was held up; what was due beyond them is never sent. So a stream
    /// keeps to a profile of this burst, whatever the machine does.
    pub(crate) burst: u64,
}

/// What became of a stream.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sent {
    /// Packets that were sent.
    pub(crate) packets: u64,
    /// Packets that were due and never sent, since the generator was held up.
    pub(crate) forgone: u64,
}

impl Sent {
    /// Share of what was due that was not sent.
    pub(crate) fn short(&self) -> f64 {
        self.forgone as f64 / (self.packets + self.forgone).max(1) as f64
    }
}

/// Sends the streams side by side for so long, each at its rate, from one core; what became of each.
///
/// A stream that cannot be sent as fast as it should holds the others up by a batch at most.
pub(crate) fn generate(
    streams: &[Stream<'_>],
    duration: Duration,
    core: usize,
) -> Result<Vec<Sent>, Error> {
    on_core(core, || {
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
        let sent = paced.iter().map(|stream| Sent {
            packets: stream.sent(),
            forgone: stream.pace().skipped(),
        });
        Ok(sent.collect())
    })
}

/// Sends so many packets as fast as they go; how long it took.
pub(crate) fn pump(sender: &PacketSender, count: u64, core: usize) -> Result<Duration, Error> {
    on_core(core, || {
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

/// Runs on one core, and gives the thread its cores back.
fn on_core<T>(core: usize, what: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    let before = affinity::get(0)?;
    affinity::set(0, &[core])?;
    let done = what();
    affinity::set(0, &before)?;
    done
}
