//! Floods a chain, to show the effect on other chains. The chain's client host sends several times
//! the rate of the chain's profile.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use myelin_linux::sched;
use myelin_metrics::chain::Flood;
use myelin_packet::traffic::Profile;

use crate::clock::{nanos, now_ns};
use crate::generator::{Late, Pace, SendOutcome, Stream, Wait, generate};
use crate::{Error, Sockets};

/// Niceness of the generator. A probe on the same core gets nine tenths of the core's time.
const NICENESS: i32 = 10;
/// Sleep between two clusters of packets.
const PAUSE: Duration = Duration::from_micros(500);
/// The generator skips packets that are later than this time. So no large burst follows a time
/// without a core.
const MAX_LATENESS: Duration = Duration::from_millis(20);
/// Longest wait for packets in flight after the end of the flood.
const MAX_DRAIN: Duration = Duration::from_millis(500);

/// The traffic of a flood.
#[derive(Debug, Clone)]
pub struct FloodLoad {
    /// The chain's name.
    pub chain: String,
    /// The chain's profile.
    pub profile: Profile,
    /// Rate of the flood, as a multiple of the profile's rate.
    pub times: f64,
    /// Destination of the packets.
    pub destination: SocketAddr,
    /// UDP payload, bytes.
    pub payload_bytes: usize,
    /// Longest duration of the flood.
    pub limit: Duration,
}

/// Packet counters of a chain.
#[derive(Debug, Clone, Copy, Default)]
pub struct ChainCounters {
    /// Packets that the front door received.
    pub packets_in: u64,
    /// Packets that the policer dropped.
    pub policed: u64,
    /// Packets that functions and shaper dropped.
    pub drops: u64,
    /// Packets that left at the egress.
    pub passed: u64,
}

/// A running flood. The flood ends when this value is dropped, or after the limit of its load.
#[derive(Debug)]
pub struct RunningFlood {
    load: FloodLoad,
    agreed_pps: f64,
    before: ChainCounters,
    generator: Generator,
    /// Receives the packets without reading them. Without this socket, the server's kernel would
    /// answer each packet with an ICMP error.
    _sink: UdpSocket,
}

impl RunningFlood {
    /// Starts the flood. `before` are the chain's counters at the start.
    ///
    /// # Errors
    /// The profile has no rate, or the system refuses a socket or a thread.
    pub fn start(load: FloodLoad, sockets: Sockets, before: ChainCounters) -> Result<Self, Error> {
        let bytes = frame_bytes(load.payload_bytes, load.destination.is_ipv6());
        let agreed_pps = compute_agreed_pps(&load.profile, bytes)
            .ok_or_else(|| Error::option("times", load.times, "the chain's profile has no rate"))?;
        let Sockets { client, server } = sockets;
        let generator = client
            .connect(load.destination)
            .and_then(|()| client.set_nonblocking(true))
            .and_then(|()| {
                let pps = agreed_pps * load.times;
                Generator::start(client, load.payload_bytes, pps, load.limit)
            });
        Ok(Self {
            generator: generator.map_err(|error| {
                Error::system(
                    "start the flood",
                    error,
                    "check that the client host's namespace still exists",
                )
            })?,
            load,
            agreed_pps,
            before,
            _sink: server,
        })
    }

    /// Requests the end of the flood. Does not wait for the end.
    pub fn request_stop(&self) {
        self.generator.stop.store(true, Ordering::Relaxed);
    }

    /// Ends the flood and reports its result. `read` reads the chain's counters.
    ///
    /// # Errors
    /// The outer error is that of `read`, the inner error that of the sender.
    pub fn stop<E>(
        mut self,
        mut read: impl FnMut() -> Result<ChainCounters, E>,
    ) -> Result<Result<Flood, Error>, E> {
        self.request_stop();
        let (sent, duration) = match self.generator.join() {
            Ok(sent) => sent,
            Err(error) => {
                return Ok(Err(Error::system(
                    "send the packets of the flood",
                    error,
                    "check that the client host's link is up",
                )));
            }
        };
        let drain_end = Instant::now() + MAX_DRAIN;
        let counts = loop {
            let counts = read()?.since(&self.before);
            if counts.in_flight() == 0 || Instant::now() > drain_end {
                break counts;
            }
            thread::sleep(Duration::from_millis(10));
        };
        let duration_s = duration.as_secs_f64();
        let per_second = |packets: u64| {
            if duration_s > 0.0 {
                packets as f64 / duration_s
            } else {
                0.0
            }
        };
        Ok(Ok(Flood {
            chain: self.load.chain,
            times: self.load.times,
            payload_bytes: self.load.payload_bytes,
            duration_s,
            agreed_pps: self.agreed_pps,
            sent,
            packets_in: counts.packets_in,
            policed: counts.policed,
            drops: counts.drops,
            passed: counts.passed,
            sent_pps: per_second(sent),
            passed_pps: per_second(counts.passed),
            profile_share: per_second(counts.passed) / self.agreed_pps,
        }))
    }
}

impl ChainCounters {
    fn since(self, before: &Self) -> Self {
        Self {
            packets_in: self.packets_in.saturating_sub(before.packets_in),
            policed: self.policed.saturating_sub(before.policed),
            drops: self.drops.saturating_sub(before.drops),
            passed: self.passed.saturating_sub(before.passed),
        }
    }

    /// Packets in flight, or lost without a counter.
    fn in_flight(&self) -> u64 {
        let known = self.policed + self.drops + self.passed;
        self.packets_in.saturating_sub(known)
    }
}

/// Frame length of a UDP packet, including the Ethernet header but not the frame check sequence. A
/// profile in bits counts these bytes.
fn frame_bytes(payload: usize, is_ipv6: bool) -> usize {
    14 + if is_ipv6 { 40 } else { 20 } + 8 + payload
}

/// Returns the rate that a profile allows for frames of this length, packets a second. This is the
/// lowest of the profile's limits; `None` without a limit.
fn compute_agreed_pps(profile: &Profile, frame_bytes: usize) -> Option<f64> {
    let packets = profile.packets.map(|packets| packets.rate() as f64);
    let bits = profile
        .bits
        .map(|bits| bits.rate() as f64 / (frame_bytes * 8) as f64);
    [packets, bits].into_iter().flatten().min_by(f64::total_cmp)
}

/// A thread that sends packets at a given rate.
#[derive(Debug)]
struct Generator {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<io::Result<(u64, Duration)>>>,
}

impl Generator {
    fn start(
        socket: UdpSocket,
        payload_bytes: usize,
        pps: f64,
        limit: Duration,
    ) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stop_request = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name("flood".to_owned())
            .spawn(move || send(&socket, payload_bytes, pps, limit, &stop_request))?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }

    /// Waits for the end of the thread, after the caller has set [`Self::stop`]. Returns the number
    /// of sent packets and the duration.
    fn join(&mut self) -> io::Result<(u64, Duration)> {
        let ended = self.thread.take().map(JoinHandle::join);
        ended
            .and_then(Result::ok)
            .unwrap_or_else(|| Err(io::Error::other("the flood's thread panicked")))
    }
}

impl Drop for Generator {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if self.thread.is_some() {
            // A caller that drops the flood without its result reports another error.
            let _ = self.join();
        }
    }
}

fn send(
    socket: &UdpSocket,
    payload_bytes: usize,
    pps: f64,
    limit: Duration,
    stop: &AtomicBool,
) -> io::Result<(u64, Duration)> {
    sched::set_nice(0, NICENESS).map_err(io::Error::other)?;
    let payload = make_payload(payload_bytes);
    let max_late = (pps * MAX_LATENESS.as_secs_f64()).max(1.0) as u64;
    let start = now_ns();
    let send = |due, _| {
        let mut packets = 0;
        while packets < due {
            match socket.send(&payload) {
                Ok(_) => packets += 1,
                // The queue is full. Skip the due packets instead of waiting.
                Err(error) if is_queue_full(&error) => break,
                Err(error) => return Err(error),
            }
        }
        let refused = due - packets;
        Ok(SendOutcome { packets, refused })
    };
    let pace = Pace::new(Some(pps), Late::Skip(max_late), start);
    let mut stream = [Stream::new(pace, send)];
    let mut last = start;
    generate(&mut stream, Wait::Sleep(PAUSE), |_, now| {
        last = now;
        !stop.load(Ordering::Relaxed) && now - start < nanos(limit)
    })?;
    Ok((stream[0].sent(), Duration::from_nanos(last - start)))
}

/// Makes a payload of pseudo-random letters, so that functions that inspect payloads have realistic
/// work.
fn make_payload(bytes: usize) -> Vec<u8> {
    // A linear congruential generator (Numerical Recipes). Its upper bits are the most random.
    let next = |state: &mut u32| {
        *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        b'a' + (*state >> 28) as u8
    };
    let mut state = 1;
    (0..bytes).map(|_| next(&mut state)).collect()
}

fn is_queue_full(error: &io::Error) -> bool {
    error.kind() == ErrorKind::WouldBlock || error.raw_os_error() == Some(libc::ENOBUFS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use myelin_packet::traffic::Bucket;

    #[test]
    fn lowest_limit_is_the_rate() {
        let rate = |packets: Option<u64>, bits: Option<u64>| {
            let bucket = |limit: u64| Bucket::new(limit, 1 << 20).unwrap();
            let profile = Profile {
                packets: packets.map(bucket),
                bits: bits.map(bucket),
            };
            compute_agreed_pps(&profile, frame_bytes(958, false))
        };
        assert_eq!(frame_bytes(958, false), 1000);
        assert_eq!(frame_bytes(938, true), 1000);
        assert_eq!(rate(None, None), None);
        assert_eq!(rate(Some(2000), None), Some(2000.0));
        assert_eq!(rate(None, Some(8_000_000)), Some(1000.0));
        assert_eq!(rate(Some(2000), Some(8_000_000)), Some(1000.0));
    }

    fn connected_pair() -> (UdpSocket, UdpSocket) {
        let [from, to] = [0, 1].map(|_| UdpSocket::bind("127.0.0.1:0").unwrap());
        from.connect(to.local_addr().unwrap()).unwrap();
        from.set_nonblocking(true).unwrap();
        to.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        (from, to)
    }

    #[test]
    fn a_generator_sends_until_it_is_dropped() {
        let (from, to) = connected_pair();
        let generator = Generator::start(from, 100, 10_000.0, Duration::MAX).unwrap();
        let mut buffer = [0; 200];
        for _ in 0..100 {
            assert_eq!(to.recv(&mut buffer).unwrap(), 100);
        }
        drop(generator);
        to.set_nonblocking(true).unwrap();
        while to.recv(&mut buffer).is_ok() {}
        thread::sleep(Duration::from_millis(50));
        assert!(to.recv(&mut buffer).is_err(), "the generator still sends");
    }

    #[test]
    fn a_generator_ends_at_its_limit() {
        let (from, to) = connected_pair();
        // Long, because the thread may get its first turn late.
        let limit = Duration::from_secs(1);
        let mut generator = Generator::start(from, 1, 1000.0, limit).unwrap();
        let (packets, duration) = generator.join().unwrap();
        assert!(duration >= limit);
        assert!(
            (1..=duration.as_millis() as u64).contains(&packets),
            "{}",
            packets
        );
        drop(to);
    }
}
