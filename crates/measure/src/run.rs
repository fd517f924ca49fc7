//! Runs the two ends of a probe on threads, and collects the result.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use myelin_linux::affinity;
use myelin_metrics::{Mode, ProbeResult};
use nix::sys::prctl::set_timerslack;

use crate::Error;
use crate::client::{Client, Outcome};
use crate::clock::{nanos, now_ns};
use crate::config::Config;
use crate::control::{Control, Watch};
use crate::echo::{Echo, SharedState};
use crate::payload::Codec;
use crate::socket::{Sockets, forbid_fragments};

/// Longest sleep in a socket call, between two checks of deadline and cancel flag.
const LONGEST_WAIT: Duration = Duration::from_millis(20);

/// Measures round trips from `sockets.client` to `sockets.server` and back.
///
/// Takes at most `config.deadline` and a fifth of a second. Polls on one core in inline mode, on
/// two cores in spin mode, and on no core in blocking mode. Allocates nothing while packets are in
/// flight. A probe without any answer is a result ([`Stop::NoAnswer`](crate::Stop::NoAnswer)), not
/// an error.
///
/// # Errors
/// [`Error::Option`] for options out of range, [`Error::System`] if a socket or a core fails.
pub fn probe(
    config: &Config,
    sockets: &Sockets,
    control: Control<'_>,
) -> Result<ProbeResult, Error> {
    config.validate()?;
    prepare_sockets(config, sockets)?;
    let deadline_ns = now_ns().saturating_add(nanos(config.deadline));
    let run = random_run_id();
    let shared = SharedState::default();
    let watch = Watch::new(control, deadline_ns, &shared.done);
    let echo = Echo::new(
        &sockets.server,
        Codec::new(run, config.forward_key, config.payload_bytes),
        &shared,
    );
    let outcome = run_ends(config, sockets, run, echo, &shared, watch)?;
    Ok(collect_result(config, outcome))
}

fn collect_result(config: &Config, outcome: Outcome) -> ProbeResult {
    let us = |bound: Option<Duration>| bound.map(|b| b.as_nanos() as f64 / 1000.0);
    let recorder = outcome.recorder;
    // The result has no curve for the reverse path, because it would equal the curve of the forward
    // path.
    let reply = recorder.reply.summary(None).map(|mut summary| {
        summary.cdf_us.clear();
        summary
    });
    ProbeResult {
        mode: config.mode,
        matching: outcome.matching,
        cores: config.cores,
        payload_bytes: config.payload_bytes,
        interval_us: config.interval.as_nanos() as f64 / 1000.0,
        count: config.count,
        repeats: config.repeats,
        stopped: outcome.stop,
        duration_s: outcome.duration_ns as f64 / 1e9,
        counts: outcome.counts,
        loss_ratio: outcome.counts.lost as f64 / outcome.counts.sent.max(1) as f64,
        rtt: recorder.rtt.summary(us(config.rtt_bound)),
        forward: recorder.forward.summary(us(config.forward_bound)),
        reply,
        samples: recorder.samples,
        rtt_distribution: recorder.rtt,
        forward_distribution: recorder.forward,
        timeline: recorder.timeline,
    }
}

/// Runs each end on a new thread, so that the caller's CPU affinity does not change. In inline mode
/// the client's thread runs both ends.
fn run_ends<'a>(
    config: &'a Config,
    sockets: &'a Sockets,
    run: u32,
    echo: Echo<'a>,
    shared: &'a SharedState,
    watch: Watch<'a>,
) -> Result<Outcome, Error> {
    let (near, far) = if config.mode == Mode::Inline {
        (Some(echo), None)
    } else {
        (None, Some(echo))
    };
    thread::scope(|scope| {
        let serve = |echo: Echo<'a>| {
            let served =
                pin_thread(config.cores.map(|cores| cores.server)).and_then(|()| echo.serve());
            // If the server failed, the client must not wait for answers.
            shared.done.store(true, Ordering::Relaxed);
            served
        };
        let server = far.map(|echo| scope.spawn(move || serve(echo)));
        let client = scope.spawn(move || {
            pin_thread(config.cores.map(|cores| cores.client))?;
            // The default slack would delay every send by up to 50 us.
            let _ = set_timerslack(1);
            Client::new(config, &sockets.client, run, near, shared, watch).run()
        });
        let outcome = client.join();
        shared.done.store(true, Ordering::Relaxed);
        if config.mode == Mode::Blocking {
            // A last datagram ends the server's sleep. If that datagram is lost, the read timeout
            // ends the sleep.
            let last = vec![0; config.payload_bytes];
            let _ = sockets.client.send_to(&last, config.destination);
        }
        if let Some(server) = server {
            server.join().map_err(|_| Error::Thread("server"))??;
        }
        outcome.map_err(|_| Error::Thread("client"))?
    })
}

/// Sets blocking mode and timeouts of the sockets, and discards datagrams of earlier measurements.
fn prepare_sockets(config: &Config, sockets: &Sockets) -> Result<(), Error> {
    let set = || -> io::Result<()> {
        for socket in [&sockets.client, &sockets.server] {
            forbid_fragments(socket)?;
            socket.set_nonblocking(true)?;
            let mut datagram = [0; 1];
            // The loop is bounded, so that a flood does not delay the probe.
            for _ in 0..10_000 {
                if socket.recv_from(&mut datagram).is_err() {
                    break;
                }
            }
        }
        if config.mode == Mode::Blocking {
            // A lost answer may delay the client's next sends by about this time.
            let client_waits = match config.interval {
                Duration::ZERO => LONGEST_WAIT,
                interval => interval.clamp(Duration::from_millis(1), LONGEST_WAIT),
            };
            for (socket, wait) in [
                (&sockets.client, client_waits),
                (&sockets.server, LONGEST_WAIT),
            ] {
                socket.set_nonblocking(false)?;
                socket.set_read_timeout(Some(wait))?;
                socket.set_write_timeout(Some(LONGEST_WAIT))?;
            }
        }
        Ok(())
    };
    set().map_err(|error| {
        Error::system(
            "prepare the probe's sockets",
            error,
            "check that both sockets are open UDP sockets",
        )
    })
}

/// Binds the calling thread to a core.
pub(crate) fn pin_thread(core: Option<usize>) -> Result<(), Error> {
    core.map_or(Ok(()), |core| {
        affinity::set(0, &[core]).map_err(Error::Linux)
    })
}

/// Returns a number that distinguishes the packets of this run from packets of other runs.
pub(crate) fn random_run_id() -> u32 {
    RandomState::new().hash_one(now_ns()) as u32
}
