//! A variant: a way to join a client to a server. The same probe measures all variants.

use std::any::Any;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use myelin_api::ApiError;
use myelin_linux::affinity;
use myelin_linux::procfs::{self, CpuTimes};
use myelin_measure::bandwidth::{Load, RateSearch, TrialResult, run_trial};
use myelin_measure::cpu::CpuMeter;
use myelin_measure::{Config, Control, Cores, Mode, Sockets, probe};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::round_trips::VariantLabel;
use crate::{Error, Session};

/// Packets before the measured ones. They refill the caches after other variants.
const WARM_UP: u32 = 30;
/// Most trials of a load in a round, enough to find a clean one.
const TRIALS: u32 = 24;
/// Attempts of a trial in which no packet arrives.
const ATTEMPTS: u32 = 5;

/// A way to join a client to a server.
pub(crate) struct Variant {
    pub(crate) name: String,
    /// Its description in the table.
    pub(crate) about: String,
    // Fields drop in this order: the processes must run to receive the request to end.
    pollers: Pollers,
    sockets: Sockets,
    destination: SocketAddr,
    /// The xor of all keys that its functions apply to the payload.
    key: u8,
    /// Objects of the variant.
    _parts: Vec<Box<dyn Any + Send>>,
}

impl Variant {
    /// `pollers` are its polling processes. They are stopped while other variants are measured,
    /// because all of them use the same core.
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
            .map_err(|cause| Error::system("read the address of the probe's server", cause))?;
        Ok(Self {
            name: name.into(),
            about: about.into(),
            pollers: Pollers::stop(pollers),
            sockets,
            destination,
            key: 0,
            _parts: parts,
        })
    }

    /// Renames the variant.
    pub(crate) fn with_name(self, name: &str) -> Self {
        Self {
            name: name.to_owned(),
            ..self
        }
    }

    /// Sets the key that its functions apply to the payload, so that the probe can read it.
    pub(crate) fn with_key(self, key: u8) -> Self {
        Self { key, ..self }
    }

    /// Runs `work` while the variant's processes run.
    pub(crate) fn while_running<T>(&self, work: impl FnOnce() -> T) -> T {
        self.pollers.run(work)
    }

    /// Round trips of `packets` packets, one after another, nanoseconds.
    pub(crate) fn round_trips_ns(
        &self,
        mode: Mode,
        payload: usize,
        packets: u32,
        session: Session<'_>,
    ) -> Result<Vec<u32>, Error> {
        let config = Config {
            interval: session.interval,
            warm_up: WARM_UP,
            deadline: Duration::from_secs(20),
            keep_samples: true,
            ..self.probe_config(mode, payload, packets)?
        };
        let result = self.while_running(|| probe(&config, &self.sockets, control(session)))?;
        session.check()?;
        let counts = result.counts;
        // A lost packet counts as the longest, so that losses do not improve the median.
        let mut answered = result
            .samples
            .map(|samples| samples.rtt_ns)
            .unwrap_or_default();
        if answered.len() <= packets as usize / 2 {
            return Err(self.loss_error(counts.lost, counts.sent, payload));
        }
        answered.resize(packets as usize, u32::MAX);
        Ok(answered)
    }

    /// The fastest clean trial, or the last trial if none is clean. `rate_search` chooses the
    /// rates.
    pub(crate) fn best_trial(
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
            Err(self.loss_error(sent, sent, payload))
        }
    }

    /// A trial at the sender's highest rate, with any loss. Repeats it if no packet arrives, which
    /// can happen on a busy machine.
    pub(crate) fn overload_trial(
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
            "variant `{}` lost all {packets} packets in each of {ATTEMPTS} trials; repeat on a quiet machine",
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
        let carried = self.while_running(trial)?;
        session.check()?;
        Ok(carried)
    }

    fn loss_error(&self, lost: u64, sent: u64, payload: usize) -> Error {
        Error::Lost {
            variant: self.name.clone(),
            lost,
            sent,
            payload,
        }
    }

    /// A probe of `count` packets with both ends on the probing core.
    fn probe_config(&self, mode: Mode, payload_bytes: usize, count: u32) -> Result<Config, Error> {
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

    pub(crate) fn label(&self) -> VariantLabel {
        VariantLabel {
            name: self.name.clone(),
            about: self.about.clone(),
        }
    }

    /// Its packet-processing processes.
    pub(crate) fn processes(&self) -> &[u32] {
        &self.pollers.0
    }

    /// CPU use during `window`: idle, or with one packet to the server and back every `interval`.
    pub(crate) fn cpu_use(
        &self,
        payload: usize,
        interval: Option<Duration>,
        window: Duration,
        session: Session<'_>,
    ) -> Result<CpuWindow, Error> {
        self.while_running(|| {
            let meter = CpuMeter::start(&[])?;
            let (before, start) = (run_time(self.processes())?, Instant::now());
            match interval {
                None => std::thread::sleep(window),
                Some(interval) => {
                    let count = (window.as_nanos() / interval.as_nanos()) as u32;
                    let config = Config {
                        interval,
                        warm_up: 0,
                        ..self.probe_config(Mode::Blocking, payload, count)?
                    };
                    probe(&config, &self.sockets, control(session))?;
                }
            }
            let worked = run_time(self.processes())?.saturating_sub(before);
            Ok(CpuWindow {
                spent: meter.spent()?,
                cores: worked.as_secs_f64() / start.elapsed().as_secs_f64(),
            })
        })
    }
}

/// CPU use during a window.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CpuWindow {
    /// Times of all cores, including the hosts.
    pub(crate) spent: CpuTimes,
    /// CPU time of the variant's processes, in cores.
    pub(crate) cores: f64,
}

/// CPU time of the processes. An ended process is an error.
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

/// Processes that poll. They are stopped while others are measured.
pub(crate) struct Pollers(Vec<u32>);

impl Pollers {
    pub(crate) fn stop(pids: Vec<u32>) -> Self {
        let pollers = Self(pids);
        pollers.signal(Signal::SIGSTOP);
        pollers
    }

    /// Runs `work` while the processes run.
    pub(crate) fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        self.signal(Signal::SIGCONT);
        let outcome = work();
        self.signal(Signal::SIGSTOP);
        outcome
    }

    fn signal(&self, signal: Signal) {
        for pid in &self.0 {
            // If a process has ended, the probe detects the loss, or the counters show it.
            let _ = kill(Pid::from_raw(pid.cast_signed()), signal);
        }
    }
}

impl Drop for Pollers {
    fn drop(&mut self) {
        // A stopped process cannot handle the request to end.
        self.signal(Signal::SIGCONT);
    }
}

/// The exact median.
pub(crate) fn median_us(mut rtt_ns: Vec<u32>) -> f64 {
    rtt_ns.sort_unstable();
    let n = rtt_ns.len();
    match n {
        0 => 0.0,
        _ => f64::midpoint(rtt_ns[(n - 1) / 2].into(), rtt_ns[n / 2].into()) / 1e3,
    }
}

/// The core of the probe or the traffic generator: the first one.
pub(crate) fn probing_core() -> Result<usize, Error> {
    Ok(affinity::get(0)?.first().copied().unwrap_or_default())
}

/// The core of workers and reference programs: the last one, if possible another than the probe's.
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
