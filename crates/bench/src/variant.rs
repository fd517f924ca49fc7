//! A variant: whatever joins a client to a server. All variants are measured by the same probe in the same way.

use std::any::Any;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use myelin_api::ApiError;
use myelin_linux::affinity;
use myelin_linux::pm_qos::CpuLatency;
use myelin_linux::procfs::{self, CpuTimes};
use myelin_measure::bandwidth::{Load, RateSearch, TrialResult, run_trial};
use myelin_measure::cpu::CpuMeter;
use myelin_measure::{Config, Control, Cores, Mode, Sockets, probe};
use myelin_metrics::Distribution;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::manner::{self, Manner};
use crate::rounds::Rounds;
use crate::{Effort, Error, Session};

/// Packets before those that count: they bring back what other variants drove out of the caches.
const WARM_UP: u32 = 30;
/// Most trials of a load in a round: one that comes through whole is found by then, if there is one.
const TRIALS: u32 = 24;
/// How often a trial is tried in which nothing comes through.
const ATTEMPTS: u32 = 5;
/// Rounds of a deployment.
pub(crate) const ROUNDS: usize = 10;
/// UDP payloads that are measured, bytes.
pub(crate) const PAYLOADS: [usize; 2] = [256, 1400];

/// What joins a client to a server.
pub(crate) struct Variant {
    pub(crate) name: String,
    /// What it is, for the reader of the table.
    pub(crate) about: String,
    // The order is that of the end: processes must run to hear that they are to end.
    pollers: Pollers,
    sockets: Sockets,
    destination: SocketAddr,
    /// What its functions leave on every byte of the payload, by exclusive or.
    key: u8,
    /// What the variant is made of.
    _parts: Vec<Box<dyn Any + Send>>,
}

impl Variant {
    /// `pollers` are its processes that poll: they are stopped while other variants are measured, since all of them have
    /// the same core.
    pub(crate) fn new(
        name: impl Into<String>,
        about: impl Into<String>,
        sockets: Sockets,
        pollers: Vec<u32>,
        parts: Vec<Box<dyn Any + Send>>,
    ) -> Result<Self, Error> {
        let destination = sockets
            .server
            .local_addr()
            .map_err(|cause| Error::system("tell where the probe's server listens", cause))?;
        let pollers = Pollers(pollers);
        pollers.signal(Signal::SIGSTOP);
        Ok(Self {
            name: name.into(),
            about: about.into(),
            pollers,
            sockets,
            destination,
            key: 0,
            _parts: parts,
        })
    }

    /// The variant under another name.
    pub(crate) fn named(self, name: &str) -> Self {
        Self {
            name: name.to_owned(),
            ..self
        }
    }

    /// The variant whose functions leave `key` on the payload: only then can the probe read it.
    pub(crate) fn keyed(self, key: u8) -> Self {
        Self { key, ..self }
    }

    /// Does some work while the variant is at work too.
    pub(crate) fn awake<T>(&self, work: impl FnOnce() -> T) -> T {
        self.pollers.signal(Signal::SIGCONT);
        let outcome = work();
        self.pollers.signal(Signal::SIGSTOP);
        outcome
    }

    /// Round trips, nanoseconds, of `packets` packets one after the other.
    pub(crate) fn round_trips_ns(
        &self,
        mode: Mode,
        payload: usize,
        packets: u32,
        session: Session<'_>,
    ) -> Result<Vec<u32>, Error> {
        let config = Config {
            interval: Duration::ZERO,
            warm_up: WARM_UP,
            deadline: Duration::from_secs(20),
            keep_samples: true,
            ..self.probe(mode, payload, packets)?
        };
        let result = self.awake(|| probe(&config, &self.sockets, control(session)))?;
        session.check()?;
        let counts = result.counts;
        // A lost packet counts as the longest one, so that losses on a busy machine do not flatter the median.
        let mut answered = result
            .samples
            .map(|samples| samples.rtt_ns)
            .unwrap_or_default();
        if answered.len() <= packets as usize / 2 {
            return Err(self.lost(counts.lost, counts.sent, payload));
        }
        answered.resize(packets as usize, u32::MAX);
        Ok(answered)
    }

    /// The fastest trial whose packets came through whole and in order; where none did, the last one. `rate_search` tells what to offer, and
    /// learns from it.
    pub(crate) fn carried(
        &self,
        (payload, packets, burst): (usize, u32, u16),
        rate_search: &mut RateSearch,
        session: Session<'_>,
    ) -> Result<TrialResult, Error> {
        let load = self.load(payload, packets, burst)?;
        let (mut sent, mut received) = (0, 0);
        let carried = rate_search.round(TRIALS, |offered| {
            let carried = self.trial(&load, offered, session)?;
            sent += carried.sent;
            received += carried.received;
            Ok::<_, Error>(carried)
        })?;
        if received > 0 {
            Ok(carried)
        } else {
            Err(self.lost(sent, sent, payload))
        }
    }

    /// A trial in which the sender goes as fast as it can, whatever is lost, if something comes through: on a machine that starves a process for long enough none of
    /// a short one does.
    pub(crate) fn flooded(
        &self,
        (payload, packets, burst): (usize, u32, u16),
        session: Session<'_>,
    ) -> Result<TrialResult, Error> {
        let load = self.load(payload, packets, burst)?;
        for _ in 0..ATTEMPTS {
            let carried = self.trial(&load, None, session)?;
            if carried.received > 0 {
                return Ok(carried);
            }
        }
        Err(ApiError::failed(format!(
            "none of {packets} packets came through `{}`, {ATTEMPTS} times; repeat on a quiet machine",
            self.name
        ))
        .into())
    }

    fn trial(
        &self,
        load: &Load,
        offered_mpps: Option<f64>,
        session: Session<'_>,
    ) -> Result<TrialResult, Error> {
        let trial = || run_trial(load, &self.sockets, offered_mpps, control(session));
        let carried = self.awake(trial)?;
        session.check()?;
        Ok(carried)
    }

    fn lost(&self, lost: u64, sent: u64, payload: usize) -> Error {
        Error::Lost {
            variant: self.name.clone(),
            lost,
            sent,
            payload,
        }
    }

    /// A probe of so many packets, both of whose ends are on the probing core.
    fn probe(&self, mode: Mode, payload_bytes: usize, count: u32) -> Result<Config, Error> {
        let core = probing_core()?;
        Ok(Config {
            mode,
            payload_bytes,
            count,
            repeats: 1,
            timeout: Duration::from_millis(100),
            forward_key: self.key,
            cores: Some(Cores {
                client: core,
                server: core,
            }),
            ..Config::new(self.destination)
        })
    }

    fn load(&self, payload_bytes: usize, packets: u32, burst: u16) -> Result<Load, Error> {
        Ok(Load {
            destination: self.destination,
            payload_bytes,
            packets,
            burst,
            core: Some(probing_core()?),
        })
    }

    /// The processes that handle its packets.
    pub(crate) fn processes(&self) -> &[u32] {
        &self.pollers.0
    }

    /// What the CPUs did for `window`: with nothing to do, or with a packet to the server and back every `interval`.
    pub(crate) fn cpu_use(
        &self,
        payload: usize,
        interval: Option<Duration>,
        window: Duration,
        session: Session<'_>,
    ) -> Result<Window, Error> {
        self.awake(|| {
            let meter = CpuMeter::start(&[])?;
            let (before, start) = (run_time(self.processes())?, Instant::now());
            match interval {
                None => std::thread::sleep(window),
                Some(interval) => {
                    let count = (window.as_nanos() / interval.as_nanos()) as u32;
                    let config = Config {
                        interval,
                        warm_up: 0,
                        ..self.probe(Mode::Blocking, payload, count)?
                    };
                    probe(&config, &self.sockets, control(session))?;
                }
            }
            let worked = run_time(self.processes())?.saturating_sub(before);
            Ok(Window {
                spent: meter.spent()?,
                cores: worked.as_secs_f64() / start.elapsed().as_secs_f64(),
            })
        })
    }
}

/// What the CPUs did while a variant was watched.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    /// All cores together, hosts included.
    pub(crate) spent: CpuTimes,
    /// CPU time of the variant's processes, in cores.
    pub(crate) cores: f64,
}

/// CPU time of these processes so far; an error when one has ended.
pub(crate) fn run_time(pids: &[u32]) -> Result<Duration, Error> {
    let times = pids.iter().map(|pid| Ok(procfs::run_time(*pid)?));
    times.sum()
}

fn control(session: Session<'_>) -> Control<'_> {
    Control {
        cancel: Some(session.monitor.cancelled),
        progress: None,
    }
}

/// Processes that poll.
struct Pollers(Vec<u32>);

impl Pollers {
    fn signal(&self, signal: Signal) {
        for pid in &self.0 {
            // One that has ended lets no packet through, which the probe sees.
            let _ = kill(Pid::from_raw(pid.cast_signed()), signal);
        }
    }
}

impl Drop for Pollers {
    fn drop(&mut self) {
        self.signal(Signal::SIGCONT);
    }
}

/// The median, exact.
pub(crate) fn median_us(mut rtt_ns: Vec<u32>) -> f64 {
    rtt_ns.sort_unstable();
    let n = rtt_ns.len();
    match n {
        0 => 0.0,
        _ => f64::midpoint(rtt_ns[(n - 1) / 2].into(), rtt_ns[n / 2].into()) / 1e3,
    }
}

/// Measures all variants with all payloads in turns, in several deployments, each made by `build` and gone before the next:
/// where the kernel happens to put a link's queues and a program's code moves a round trip by up to 2 %, for as long as they live.
/// Gives the median round trip of each round, us, with what the last `build` made of `T`.
pub(crate) fn measure<T, M: Copy + Into<Manner>>(
    session: Session<'_>,
    deployments: usize,
    modes: &[M],
    mut build: impl FnMut() -> Result<(Vec<Variant>, T), Error>,
) -> Result<Measured<T>, Error> {
    let mut all = Rounds::default();
    let mut distributions = Vec::new();
    for deployment in 1..=deployments {
        let (variants, rest) = build()?;
        let stage = format!("round trips, deployment {deployment} of {deployments}");
        let subjects = variants.len() * PAYLOADS.len() * modes.len();
        distributions.resize_with(subjects, Distribution::new);
        for (awake, some) in manner::phases(subjects, modes) {
            let _limit = awake.then(|| CpuLatency::limit(0)).transpose()?;
            let of_phase = (&some[..], subjects);
            all.extend(
                session.measure_some(&stage, of_phase, (ROUNDS, ROUNDS), |subject| {
                    let case = subject / modes.len();
                    let Manner { mode, .. } = modes[subject % modes.len()].into();
                    let payload = PAYLOADS[case % PAYLOADS.len()];
                    let variant = &variants[case / PAYLOADS.len()];
                    let packets = packets(mode, session.effort);
                    let trips = variant.round_trips_ns(mode, payload, packets, session)?;
                    for ns in &trips {
                        distributions[subject].record(u64::from(*ns));
                    }
                    Ok(median_us(trips))
                })?,
            );
        }
        if deployment == deployments {
            return Ok(Measured {
                rounds: all,
                distributions,
                variants: variants.iter().map(About::of).collect(),
                modes: modes.len(),
                rest,
            });
        }
    }
    Err(Error::Cancelled)
}

/// What was measured.
pub(crate) struct Measured<T> {
    /// Medians of the rounds, us.
    pub(crate) rounds: Rounds,
    /// All round trips of a subject.
    pub(crate) distributions: Vec<Distribution>,
    /// What they were measured of.
    pub(crate) variants: Vec<About>,
    modes: usize,
    /// What else was made.
    pub(crate) rest: T,
}

impl<T> Measured<T> {
    /// The subject that is a variant with one of [`PAYLOADS`] in one of the modes, each by its number.
    pub(crate) fn subject(&self, variant: usize, payload: usize, mode: usize) -> usize {
        (variant * PAYLOADS.len() + payload) * self.modes + mode
    }

    /// The number of the variant of that name.
    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        self.variants
            .iter()
            .position(|variant| variant.name == name)
    }
}

/// Packets of a round. A wake-up takes some ten times as long as all the rest.
fn packets(mode: Mode, effort: Effort) -> u32 {
    match mode {
        Mode::Inline | Mode::Spin => effort.packets(),
        Mode::Blocking => effort.packets().div_ceil(5),
    }
}

/// What a variant is, when it is gone.
pub(crate) struct About {
    pub(crate) name: String,
    pub(crate) about: String,
}

impl About {
    pub(crate) fn of(variant: &Variant) -> Self {
        Self {
            name: variant.name.clone(),
            about: variant.about.clone(),
        }
    }
}

/// The core that the probe, or a traffic generator, runs on: the first one.
pub(crate) fn probing_core() -> Result<usize, Error> {
    Ok(affinity::get(0)?.first().copied().unwrap_or_default())
}

/// The core that workers and reference programs poll on: the last one, away from the probe's where there are two.
pub(crate) fn polling_core() -> Result<usize, Error> {
    Ok(affinity::get(0)?.last().copied().unwrap_or_default())
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "exact by construction")]
mod tests {
    use super::*;

    #[test]
    fn medians_are_exact() {
        assert_eq!(median_us(vec![3000, 1000, 2000]), 2.0);
        assert_eq!(median_us(vec![4000, 1000, 3000, 2000]), 2.5);
        assert_eq!(median_us(vec![]), 0.0);
    }
}
