//! Floods a chain, to show what that does to the others: its client host sends several times the rate that the chain agreed.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use myelin_linux::sched;
use myelin_measure::Sockets;
use myelin_metrics::chain::Flood;
use myelin_spec::Sla;

use crate::api::{ApiError, ChainStatus, FloodRequest, ProbeOptions};
use crate::engine::Engine;
use crate::measure::{self, Target};
use crate::status;

/// How the generator gives way: to a probe that wants the same core it leaves nine tenths of it.
const NICENESS: i32 = 10;
/// How long it sleeps between clusters.
const PAUSE: Duration = Duration::from_micros(500);
/// What is due and this late is never sent: after a time without a core there is no avalanche.
const MOST_BEHIND: Duration = Duration::from_millis(20);
/// How long packets that are under way may take to arrive when the flood has ended.
const SETTLING: Duration = Duration::from_millis(500);

/// The flood of one chain. It ends when this is dropped, and by itself when a measurement can last no longer.
pub(crate) struct Running {
    request: FloodRequest,
    payload_bytes: usize,
    agreed_pps: f64,
    before: ChainStatus,
    generator: Generator,
    /// Takes what comes through, and reads none of it: without it the server's kernel would answer each packet that nobody listens.
    sink: UdpSocket,
}

/// Starts all of them, each with packets of the largest payload that the measurement asks for.
///
/// # Errors
/// A chain without end hosts, or one that takes no UDP; a socket or a thread that the system refused.
pub(crate) fn start(
    engine: &Engine,
    floods: &[FloodRequest],
    options: &ProbeOptions,
) -> Result<Vec<Running>, ApiError> {
    let rows = options.modes.len() * options.payloads.len();
    let limit = measure::deadline(options).saturating_mul(rows.try_into().unwrap_or(u32::MAX));
    let payload_bytes = options
        .payloads
        .iter()
        .copied()
        .max()
        .unwrap_or_default()
        .into();
    let start = |request: &FloodRequest| {
        let name = &request.chain;
        let refuse = |cause: &dyn std::fmt::Display| {
            ApiError::failed(format!("cannot flood chain `{name}`: {cause}"))
        };
        let target = engine
            .with_state(|state| Target::of(state, name))
            .map_err(|error| refuse(&error))?;
        let tuple = target.five_tuple();
        let Sockets { client, server } = target.sockets().map_err(|error| refuse(&error))?;
        let destination = SocketAddr::new(
            tuple.destination,
            tuple.destination_port.unwrap_or_default(),
        );
        client
            .connect(destination)
            .and_then(|()| client.set_nonblocking(true))
            .map_err(|error| refuse(&error))?;
        let agreed_pps = agreed_pps(
            &target.chain.sla,
            frame_bytes(payload_bytes, destination.is_ipv6()),
        )
        .ok_or_else(|| refuse(&"it agreed no rate"))?;
        let before = counts(engine, name)?;
        let generator = Generator::start(client, payload_bytes, agreed_pps * request.times, limit)
            .map_err(|error| refuse(&error))?;
        Ok(Running {
            request: request.clone(),
            payload_bytes,
            agreed_pps,
            before,
            generator,
            sink: server,
        })
    };
    floods.iter().map(start).collect()
}

/// Ends them all; what became of each.
///
/// # Errors
/// A chain that was removed meanwhile; packets that could not be sent.
pub(crate) fn stop(engine: &Engine, floods: Vec<Running>) -> Result<Vec<Flood>, ApiError> {
    // All at once, so that none goes on while another settles.
    for flood in &floods {
        flood.generator.stop.store(true, Ordering::Relaxed);
    }
    floods.into_iter().map(|flood| flood.stop(engine)).collect()
}

impl Running {
    fn stop(self, engine: &Engine) -> Result<Flood, ApiError> {
        let Self {
            request,
            payload_bytes,
            agreed_pps,
            before,
            mut generator,
            sink: _sink,
        } = self;
        let chain = &request.chain;
        let sent = generator.join().map_err(|error| {
            ApiError::failed(format!(
                "the flood of chain `{chain}` ended before its time: cannot send: {error}"
            ))
        })?;
        let settled = Instant::now() + SETTLING;
        let counts = loop {
            let now = counts(engine, chain)?;
            let counts = Counts::since(&now, &before);
            if counts.under_way() == 0 || Instant::now() > settled {
                break counts;
            }
            thread::sleep(Duration::from_millis(10));
        };
        let duration_s = sent.duration.as_secs_f64();
        let a_second = |packets: u64| {
            if duration_s > 0.0 {
                packets as f64 / duration_s
            } else {
                0.0
            }
        };
        Ok(Flood {
            chain: chain.clone(),
            times: request.times,
            payload_bytes,
            duration_s,
            agreed_pps,
            sent: sent.packets,
            packets_in: counts.packets_in,
            policed: counts.policed,
            drops: counts.drops,
            passed: counts.passed,
            sent_pps: a_second(sent.packets),
            passed_pps: a_second(counts.passed),
            profile_share: a_second(counts.passed) / agreed_pps,
        })
    }
}

fn counts(engine: &Engine, name: &str) -> Result<ChainStatus, ApiError> {
    engine.with_state(|state| {
        let deployed = state.chains.get(name).ok_or_else(|| {
            ApiError::failed(format!("chain `{name}` was removed while it was flooded"))
        })?;
        Ok(status::of(deployed, &state.node))
    })
}

/// What became of a flood's packets.
struct Counts {
    packets_in: u64,
    policed: u64,
    drops: u64,
    passed: u64,
}

impl Counts {
    fn since(now: &ChainStatus, before: &ChainStatus) -> Self {
        let of = |count: fn(&ChainStatus) -> u64| count(now).saturating_sub(count(before));
        Self {
            packets_in: of(|status| status.packets_in),
            policed: of(|status| status.policed),
            drops: of(|status| status.drops),
            passed: of(|status| status.packets_out),
        }
    }

    /// Packets of which nothing is known yet, or that were lost where nobody counts.
    fn under_way(&self) -> u64 {
        let known = self.policed + self.drops + self.passed;
        self.packets_in.saturating_sub(known)
    }
}

/// Bytes of a UDP packet's frame, with its Ethernet header, without check sequence: as a profile in bits counts it.
fn frame_bytes(payload: usize, is_ipv6: bool) -> usize {
    14 + if is_ipv6 { 40 } else { 20 } + 8 + payload
}

/// The rate that a profile allows frames of this length, a second: the least of its limits. None without a limit.
fn agreed_pps(sla: &Sla, frame_bytes: usize) -> Option<f64> {
    let profile = sla.profile();
    let packets = profile.packets.map(|packets| packets.rate() as f64);
    let bits = profile
        .bits
        .map(|bits| bits.rate() as f64 / (frame_bytes * 8) as f64);
    [packets, bits].into_iter().flatten().min_by(f64::total_cmp)
}

/// How many packets are due. What could not be sent in time is forgone.
struct Pace {
    pps: f64,
    done: u64,
}

impl Pace {
    /// Packets to be sent now, so long after the start; they count as done, whatever comes of them.
    fn due(&mut self, elapsed: Duration) -> u64 {
        let due = (elapsed.as_secs_f64() * self.pps) as u64;
        let behind = due.saturating_sub(self.done);
        self.done = self.done.max(due);
        behind.min((self.pps * MOST_BEHIND.as_secs_f64()).max(1.0) as u64)
    }
}

/// What a generator did.
struct Sent {
    packets: u64,
    duration: Duration,
}

/// A thread that sends packets at a rate.
struct Generator {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<io::Result<Sent>>>,
}

impl Generator {
    fn start(
        socket: UdpSocket,
        payload_bytes: usize,
        pps: f64,
        limit: Duration,
    ) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name("flood".to_owned())
            .spawn(move || generate(&socket, payload_bytes, pps, limit, &told))?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }

    /// Waits for its end, which it must have been told of.
    fn join(&mut self) -> io::Result<Sent> {
        let ended = self.thread.take().map(JoinHandle::join);
        ended
            .and_then(Result::ok)
            .unwrap_or_else(|| Err(io::Error::other("its thread failed")))
    }
}

impl Drop for Generator {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if self.thread.is_some() {
            // Whoever did not ask for the outcome has an error of their own to tell.
            let _ = self.join();
        }
    }
}

fn generate(
    socket: &UdpSocket,
    payload_bytes: usize,
    pps: f64,
    limit: Duration,
    stop: &AtomicBool,
) -> io::Result<Sent> {
    sched::set_nice(0, NICENESS).map_err(io::Error::other)?;
    let payload = payload(payload_bytes);
    let mut pace = Pace { pps, done: 0 };
    let mut packets = 0;
    let start = Instant::now();
    loop {
        let elapsed = start.elapsed();
        if stop.load(Ordering::Relaxed) || elapsed >= limit {
            return Ok(Sent {
                packets,
                duration: elapsed,
            });
        }
        for _ in 0..pace.due(elapsed) {
            match socket.send(&payload) {
                Ok(_) => packets += 1,
                // The link has no room: what is due is forgone, for a flood waits for nobody.
                Err(error) if has_no_room(&error) => break,
                Err(error) => return Err(error),
            }
        }
        thread::sleep(PAUSE);
    }
}

/// Letters without order: as text, neither all the same nor random, so that functions that look into packets have work with it.
fn payload(bytes: usize) -> Vec<u8> {
    // Numerical Recipes' linear congruential generator; its upper bits are the good ones.
    let next = |state: &mut u32| {
        *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        b'a' + (*state >> 28) as u8
    };
    let mut state = 1;
    (0..bytes).map(|_| next(&mut state)).collect()
}

fn has_no_room(error: &io::Error) -> bool {
    error.kind() == ErrorKind::WouldBlock || error.raw_os_error() == Some(nix::libc::ENOBUFS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tighter_limit_is_the_rate() {
        let of = |rate_pps, rate_bps| {
            let sla = Sla {
                rate_pps,
                rate_bps,
                ..Sla::default()
            };
            agreed_pps(&sla, frame_bytes(958, false))
        };
        assert_eq!(frame_bytes(958, false), 1000);
        assert_eq!(frame_bytes(938, true), 1000);
        assert_eq!(of(None, None), None);
        assert_eq!(of(Some(2000), None), Some(2000.0));
        assert_eq!(of(None, Some(8_000_000)), Some(1000.0));
        assert_eq!(of(Some(2000), Some(8_000_000)), Some(1000.0));
    }

    #[test]
    fn what_is_late_is_forgone() {
        let mut pace = Pace {
            pps: 10_000.0,
            done: 0,
        };
        let ms = Duration::from_millis;
        assert_eq!(
            [
                pace.due(ms(0)),
                pace.due(ms(1)),
                pace.due(ms(1)),
                pace.due(ms(3))
            ],
            [0, 10, 0, 20]
        );
        // 997 ms are 9970 packets, of which those of 20 ms are sent.
        assert_eq!([pace.due(ms(1000)), pace.due(ms(1000))], [200, 0]);
        let mut slow = Pace { pps: 1.0, done: 0 };
        assert_eq!(
            [slow.due(ms(999)), slow.due(ms(1000)), slow.due(ms(1999))],
            [0, 1, 0]
        );
    }

    fn pair() -> (UdpSocket, UdpSocket) {
        let [from, to] = [0, 1].map(|_| UdpSocket::bind("127.0.0.1:0").unwrap());
        from.connect(to.local_addr().unwrap()).unwrap();
        from.set_nonblocking(true).unwrap();
        to.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        (from, to)
    }

    #[test]
    fn a_generator_sends_until_it_is_dropped() {
        let (from, to) = pair();
        let generator = Generator::start(from, 100, 10_000.0, Duration::MAX).unwrap();
        let mut buffer = [0; 200];
        for _ in 0..100 {
            assert_eq!(to.recv(&mut buffer).unwrap(), 100);
        }
        drop(generator);
        to.set_nonblocking(true).unwrap();
        while to.recv(&mut buffer).is_ok() {}
        thread::sleep(Duration::from_millis(50));
        assert!(to.recv(&mut buffer).is_err(), "it still sends");
    }

    #[test]
    fn a_generator_ends_by_itself() {
        let (from, to) = pair();
        let limit = Duration::from_millis(100);
        let mut generator = Generator::start(from, 1, 1000.0, limit).unwrap();
        let sent = generator.join().unwrap();
        assert!(sent.duration >= limit);
        assert!(
            (1..=sent.duration.as_millis() as u64).contains(&sent.packets),
            "{}",
            sent.packets
        );
        drop(to);
    }
}
