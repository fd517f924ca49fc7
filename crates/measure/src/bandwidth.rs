//! The highest rate of UDP packets that comes through without loss or reordering, by binary search.
//!
//! CALVIN's bandwidth (iperf's highest such rate). A trial sends for a fixed time at a steady rate; the first sends as fast as
//! the sender can. If even that comes through whole, the sender is the limit and says so: on veth links the sender's core does the
//! work of the whole way, so this is the usual case there.
//!
//! [`carry`] is one trial without that second core, for ways that are compared with each other; [`Ladder`] tells it which rate to try.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use myelin_metrics::{Cores, Stop};
use serde::Serialize;

use crate::Error;
use crate::clock::{nanos, now_ns};
use crate::config::{check_deadline, check_payload, check_two_pollers};
use crate::control::{Control, Watch};
use crate::payload::Codec;
use crate::run::{fresh_run, pin};
use crate::socket::{Sockets, forbid_fragments, widen_receive_buffer};

mod bracket;
mod carry;
mod ladder;
mod trial;

use bracket::Bracket;
pub use carry::{Carried, Load, MAX_BURST, MAX_PACKETS, carry};
pub use ladder::Ladder;
pub use trial::Trial;

/// Most packets of one trial; their arrival is kept in a bit each.
const MAX_TRIAL_PACKETS: usize = 1 << 22;
/// The share of the rate asked for that the sender must reach.
const RATE_KEPT: f64 = 0.95;
/// The receiver's socket buffer, bytes: room for what arrives while its core is taken away for some milliseconds.
const RECEIVE_BUFFER: usize = 8 << 20;

/// A bandwidth measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Where the client sends to.
    pub destination: SocketAddr,
    /// UDP payload, bytes.
    pub payload_bytes: usize,
    /// Largest IP packet of the way, bytes.
    pub mtu: usize,
    /// Length of one trial.
    pub trial: Duration,
    /// Times that a rate may fail before it counts as too high: a vCPU taken away for a moment is not the chain's loss.
    pub attempts: u32,
    /// The search ends when the rate is known to this share of itself.
    pub resolution: f64,
    /// Share (0 to 1) of packets that may be lost.
    pub loss_allowed: f64,
    /// After this the search ends with what it has.
    pub deadline: Duration,
    /// The key that the chain's xor functions leave on the payload.
    pub forward_key: u8,
    /// Where sender and receiver run; they poll, so on two cores.
    pub cores: Option<Cores>,
}

impl Config {
    /// 1400 B, trials of 200 ms, two attempts, to 2 %, no loss, 15 s at most.
    pub fn new(destination: SocketAddr) -> Self {
        Self {
            destination,
            payload_bytes: 1400,
            mtu: 1500,
            trial: Duration::from_millis(200),
            attempts: 2,
            resolution: 0.02,
            loss_allowed: 0.0,
            deadline: Duration::from_secs(15),
            forward_key: 0,
            cores: None,
        }
    }

    /// Whether the machine can run it.
    ///
    /// # Errors
    /// [`Error::Option`] with the option, its value and its range.
    pub fn validate(&self) -> Result<(), Error> {
        check_payload(self.destination, self.payload_bytes, self.mtu)?;
        check_deadline(self.deadline)?;
        if self.trial < Duration::from_millis(10) || self.trial > Duration::from_secs(60) {
            return Err(Error::option(
                "trial",
                format!("{:?}", self.trial),
                "expected 10 ms to 1 min",
            ));
        }
        if self.attempts == 0 {
            return Err(Error::option("attempts", 0, "expected at least 1"));
        }
        if !(0.001..=0.5).contains(&self.resolution) {
            return Err(Error::option(
                "resolution",
                self.resolution,
                "expected 0.001 to 0.5",
            ));
        }
        if !(0.0..1.0).contains(&self.loss_allowed) {
            return Err(Error::option(
                "loss_allowed",
                self.loss_allowed,
                "expected 0 to below 1",
            ));
        }
        check_two_pollers(self.cores)
    }
}

/// What keeps the rate from being higher.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// The sender: everything it could send came through.
    Sender,
    /// Beyond this rate packets are lost or reordered.
    Loss,
}

/// The highest clean rate.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BandwidthResult {
    /// UDP payload, bytes.
    pub payload_bytes: usize,
    /// Packets, millions a second; 0 when no trial came through clean.
    pub throughput_mpps: f64,
    /// UDP payload, millions of bits a second (iperf's figure).
    pub goodput_mbit_s: f64,
    /// What keeps it from being higher.
    pub limited_by: Limit,
    /// Why the search ended early, if it did; the rate is then a lower bound.
    pub stopped: Option<Stop>,
    /// Every trial, in order.
    pub trials: Vec<Trial>,
}

/// Searches the highest rate from `sockets.client` to `sockets.server` without loss or reordering.
///
/// Two threads poll for the length of the trials. Takes at most `config.deadline` and one trial. Progress is (milliseconds passed, milliseconds
/// of the deadline).
///
/// # Errors
/// [`Error::Option`] for options out of range, [`Error::System`] when a socket cannot be used.
pub fn bandwidth(
    config: &Config,
    sockets: &Sockets,
    control: Control<'_>,
) -> Result<BandwidthResult, Error> {
    config.validate()?;
    prepare(sockets, RECEIVE_BUFFER)?;
    let started = now_ns();
    let never_failed = AtomicBool::new(false);
    let watch = Watch::new(control, started + nanos(config.deadline), &never_failed);
    let mut search = Search {
        config,
        sockets,
        control,
        watch,
        started,
        trials: Vec::new(),
        best_mpps: 0.0,
        stop: None,
    };
    let limited_by = search.run()?;
    Ok(BandwidthResult {
        payload_bytes: config.payload_bytes,
        throughput_mpps: search.best_mpps,
        goodput_mbit_s: search.best_mpps * config.payload_bytes as f64 * 8.0,
        limited_by,
        stopped: search.stop,
        trials: search.trials,
    })
}

/// Makes the sockets fit for a measurement; the server's is to hold so many bytes.
fn prepare(sockets: &Sockets, receive_buffer: usize) -> Result<(), Error> {
    for socket in [&sockets.client, &sockets.server] {
        forbid_fragments(socket)
            .and_then(|()| socket.set_nonblocking(true))
            .map_err(|error| {
                Error::system(
                    "prepare the bandwidth measurement's sockets",
                    error,
                    "are both still open?",
                )
            })?;
    }
    widen_receive_buffer(&sockets.server, receive_buffer);
    Ok(())
}

struct Search<'a> {
    config: &'a Config,
    sockets: &'a Sockets,
    control: Control<'a>,
    watch: Watch<'a>,
    started: u64,
    trials: Vec<Trial>,
    best_mpps: f64,
    stop: Option<Stop>,
}

impl Search<'_> {
    fn run(&mut self) -> Result<Limit, Error> {
        if self.clean_at(None)? {
            return Ok(Limit::Sender);
        }
        let first = self.trials.last();
        // What came through under overload is near the limit.
        let arrived = |t: &Trial| t.sent_mpps * t.received as f64 / t.sent.max(1) as f64;
        let mut bracket = Bracket::below(
            first.map_or(0.0, |t| t.sent_mpps),
            first.map_or(0.0, arrived),
        );
        while let Some(rate) = bracket.next(self.config.resolution) {
            let came_through = self.clean_at(Some(rate))?;
            if self.stop.is_some() {
                break;
            }
            bracket.tried(rate, came_through);
        }
        Ok(Limit::Loss)
    }

    /// Whether one of the attempts at this rate comes through clean.
    fn clean_at(&mut self, offered_mpps: Option<f64>) -> Result<bool, Error> {
        for _ in 0..self.config.attempts {
            let now = now_ns();
            self.stop = self.watch.stopped(now);
            if self.stop.is_some() {
                return Ok(false);
            }
            let trial = self.trial(offered_mpps)?;
            let clean = trial.is_clean(self.config.loss_allowed);
            if clean {
                self.best_mpps = self.best_mpps.max(trial.sent_mpps);
            }
            // A sender that could not keep the rate has not tried it.
            let kept = offered_mpps.is_none_or(|offered| trial.sent_mpps >= RATE_KEPT * offered);
            self.trials.push(trial);
            let total = nanos(self.config.deadline) / 1_000_000;
            let passed = now_ns().saturating_sub(self.started) / 1_000_000;
            self.watch.progress(now_ns(), passed.min(total), total);
            if clean && kept {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn trial(&self, offered_mpps: Option<f64>) -> Result<Trial, Error> {
        let run = fresh_run();
        let progress = trial::Progress::default();
        let end = self.started + nanos(self.config.deadline) + nanos(self.config.trial);
        let codec = |key| Codec::new(run, key, self.config.payload_bytes);
        let (sender_codec, receiver_codec) = (codec(0), codec(self.config.forward_key));
        let cores = self.config.cores;
        thread::scope(|scope| {
            let receiver = scope.spawn(|| {
                let received = pin(cores.map(|c| c.server)).and_then(|()| {
                    let watch = Watch::new(self.control, end, &progress.failed);
                    trial::receive(&self.sockets.server, &receiver_codec, &progress, &watch)
                });
                progress
                    .failed
                    .fetch_or(received.is_err(), Ordering::Relaxed);
                received
            });
            let sender = scope.spawn(|| {
                let sent = pin(cores.map(|c| c.client)).and_then(|()| {
                    let watch = Watch::new(self.control, end, &progress.failed);
                    trial::send(
                        &self.sockets.client,
                        self.config,
                        offered_mpps,
                        &sender_codec,
                        &progress,
                        &watch,
                    )
                });
                progress.failed.fetch_or(sent.is_err(), Ordering::Relaxed);
                sent
            });
            let sent = sender.join().map_err(|_| Error::Thread("sender"))??;
            let arrived = receiver.join().map_err(|_| Error::Thread("receiver"))??;
            Ok(Trial::new(offered_mpps, sent, &arrived))
        })
    }
}
