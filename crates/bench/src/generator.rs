//! Sends streams of one frame each from one core, at a rate or as fast as possible.

use std::time::{Duration, Instant};

use myelin_linux::affinity;
use myelin_linux::packet_socket::{MAX_BATCH, PacketSender};
use myelin_measure::clock::now_ns;
use myelin_measure::generator::{self, Late, Pace, Wait};
use myelin_metrics::stats::Estimate;

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

/// What one stream sent.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StreamCounts {
    /// Packets sent.
    pub(crate) packets: u64,
    /// Packets that its rate makes due in the time that the generator took.
    pub(crate) due: f64,
    /// That time, by the generator's stamps, s.
    pub(crate) seconds: f64,
}

impl StreamCounts {
    /// Due packets that the generator forwent: it skipped them after a delay, or was too slow.
    pub(crate) fn forgone(&self) -> f64 {
        (self.due - self.packets as f64).max(0.0)
    }

    /// Share of the due packets that were sent. NaN if none was due.
    pub(crate) fn offered(&self) -> f64 {
        self.packets as f64 / self.due
    }
}

/// The precondition of a claim: the generator offered at least this share of a stream's rate.
pub(crate) fn check_offered(
    stream: &str,
    offered: Option<Estimate>,
    least: f64,
) -> Result<(), String> {
    match offered {
        Some(offered) if offered.value >= least => Ok(()),
        Some(offered) => Err(format!(
            "the generator offered {:.1} % of the {stream}, less than {:.1} %",
            offered.value * 100.0,
            least * 100.0
        )),
        None => Err(format!(
            "it was not measured how much of the {stream} was offered"
        )),
    }
}

/// Sends the streams in turn for `duration` or a little longer, each at its rate, from one core. A
/// slow stream delays the others by at most one batch.
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
        let mut last_ns = start_ns;
        generator::generate(&mut paced, Wait::Spin, |_, ns| {
            last_ns = ns;
            ns < end_ns
        })?;
        let seconds = Duration::from_nanos(last_ns - start_ns).as_secs_f64();
        let both = paced.iter().zip(streams);
        let sent = both.map(|(paced, stream)| StreamCounts {
            packets: paced.sent(),
            due: stream.rate_pps * seconds,
            seconds,
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
pub(crate) fn run_on_core<T>(
    core: usize,
    work: impl FnOnce() -> Result<T, Error>,
) -> Result<T, Error> {
    let before = affinity::get(0)?;
    affinity::set(0, &[core])?;
    let outcome = work();
    affinity::set(0, &before)?;
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forgone_packets_are_due_ones_that_were_not_sent() {
        let counts = |packets| StreamCounts {
            packets,
            due: 400.0,
            seconds: 0.1,
        };
        assert!((counts(300).forgone() - 100.0).abs() < 1e-9);
        assert!(counts(401).forgone().abs() < 1e-9);
        let share = |packets| {
            let value = counts(packets).offered();
            let (interval, samples) = (None, 1);
            Some(Estimate {
                value,
                interval,
                samples,
            })
        };
        assert_eq!(check_offered("flood", share(380), 0.95), Ok(()));
        let reason = check_offered("flood", share(200), 0.95).unwrap_err();
        assert!(reason.contains("offered 50.0 % of the flood"), "{reason}");
        assert!(check_offered("flood", None, 0.95).is_err());
        assert!(StreamCounts::default().offered().is_nan());
    }
}
