//! Floods a chain, to show what that does to the others: its client host sends several times the rate that the chain agreed.

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
use crate::generator::{Late, Pace, Sent, Stream, Wait, generate};
use crate::{Error, Sockets};

/// How the generator gives way: to a probe that wants the same core it leaves nine tenths of it.
const NICENESS: i32 = 10;
/// How long it sleeps between clusters.
const PAUSE: Duration = Duration::from_micros(500);
/// What is due and this late is never sent: after a time without a core there is no avalanche.
const MOST_BEHIND: Duration = Duration::from_millis(20);
/// How long packets that are under way may take to arrive when the flood has ended.
const SETTLING: Duration = Duration::from_millis(500);

/// What a flood sends.
#[derive(Debug, Clone)]
pub struct Load {
    /// The chain's name.
    pub chain: String,
    /// Its profile.
    pub profile: Profile,
    /// How many times the profile's rate is sent.
    pub times: f64,
    /// Where to.
    pub destination: SocketAddr,
    /// UDP payload, bytes.
    pub payload_bytes: usize,
    /// The flood ends by itself after so long.
    pub limit: Duration,
}

/// The counters of a chain so far, packets.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    /// Seen by its front door.
    pub packets_in: u64,
    /// Dropped by its policer.
    pub policed: u64,
    /// Dropped by its functions and its shaper.
    pub drops: u64,
    /// Left at its egress.
    pub passed: u64,
}

/// A flood under way. It ends when this is dropped, and by itself at its limit.
#[derive(Debug)]
pub struct Running {
    load: Load,
    agreed_pps: f64,
    before: Counts,
    generator: Generator,
    /// Takes what comes through, and reads none of it: without it the server's kernel would answer each packet that nobody listens.
    _sink: UdpSocket,
}

impl Running {
    /// Starts it; `before` is what the chain's counters say.
    ///
    /// # Errors
    /// A profile without a rate; a socket or a thread that the system refused.
    pub fn start(load: Load, sockets: Sockets, before: Counts) -> Result<Self, Error> {
        let bytes = frame_bytes(load.payload_bytes, load.destination.is_ipv6());
        let agreed_pps = agreed_pps(&load.profile, bytes)
            .ok_or_else(|| Error::option("times", load.times, "the chain agreed no rate"))?;
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
                Error::system("send at a rate", error, "is its namespace still there?")
            })?,
            load,
            agreed_pps,
            before,
            _sink: server,
        })
    }

    /// Tells it to end, without waiting.
    pub fn end(&self) {
        self.generator.stop.store(true, Ordering::Relaxed);
    }

    /// Ends it; what became of its packets, by what `read` gives of the chain's counters.
    ///
    /// # Errors
    /// What `read` fails with; within it, packets that could not be sent.
    pub fn stop<E>(
        mut self,
        mut read: impl FnMut() -> Result<Counts, E>,
    ) -> Result<Result<Flood, Error>, E> {
        self.end();
        let (sent, duration) = match self.generator.join() {
            Ok(sent) => sent,
            Err(error) => return Ok(Err(Error::system("send", error, "is its link still up?"))),
        };
        let settled = Instant::now() + SETTLING;
        let counts = loop {
            let counts = read()?.since(&self.before);
            if counts.under_way() == 0 || Instant::now() > settled {
                break counts;
            }
            thread::sleep(Duration::from_millis(10));
        };
        let duration_s = duration.as_secs_f64();
        let a_second = |packets: u64| {
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
            sent_pps: a_second(sent),
            passed_pps: a_second(counts.passed),
            profile_share: a_second(counts.passed) / self.agreed_pps,
        }))
    }
}

impl Counts {
    fn since(self, before: &Self) -> Self {
        Self {
            packets_in: self.packets_in.saturating_sub(before.packets_in),
            policed: self.policed.saturating_sub(before.policed),
            drops: self.drops.saturating_sub(before.drops),
            passed: self.passed.saturating_sub(before.passed),
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
fn agreed_pps(profile: &Profile, frame_bytes: usize) -> Option<f64> {
    let packets = profile.packets.map(|packets| packets.rate() as f64);
    let bits = profile
        .bits
        .map(|bits| bits.rate() as f64 / (frame_bytes * 8) as f64);
    [packets, bits].into_iter().flatten().min_by(f64::total_cmp)
}

/// A thread that sends packets at a rate.
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
        let told = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name("flood".to_owned())
            .spawn(move || send(&socket, payload_bytes, pps, limit, &told))?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }

    /// Waits for its end, which it must have been told of: packets sent, and how long that took.
    fn join(&mut self) -> io::Result<(u64, Duration)> {
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
            // A caller that did not ask for the result reports an error of its own.
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
    let payload = payload(payload_bytes);
    let most = (pps * MOST_BEHIND.as_secs_f64()).max(1.0) as u64;
    let start = now_ns();
    let send = |due, _| {
        let mut packets = 0;
        while packets < due {
            match socket.send(&payload) {
                Ok(_) => packets += 1,
                // The link has no room: what is due is forgone, for a flood waits for nobody.
                Err(error) if has_no_room(&error) => break,
                Err(error) => return Err(error),
            }
        }
        let refused = due - packets;
        Ok(Sent { packets, refused })
    };
    let pace = Pace::new(Some(pps), Late::Forgo(most), start);
    let mut stream = [Stream::new(pace, send)];
    let mut last = start;
    generate(&mut stream, Wait::Sleep(PAUSE), |_, now| {
        last = now;
        !stop.load(Ordering::Relaxed) && now - start < nanos(limit)
    })?;
    Ok((stream[0].sent(), Duration::from_nanos(last - start)))
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
    error.kind() == ErrorKind::WouldBlock || error.raw_os_error() == Some(libc::ENOBUFS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use myelin_packet::traffic::Bucket;

    #[test]
    fn the_tighter_limit_is_the_rate() {
        let of = |packets: Option<u64>, bits: Option<u64>| {
            let bucket = |rate: u64| Bucket::new(rate, 1 << 20).unwrap();
            let profile = Profile {
                packets: packets.map(bucket),
                bits: bits.map(bucket),
            };
            agreed_pps(&profile, frame_bytes(958, false))
        };
        assert_eq!(frame_bytes(958, false), 1000);
        assert_eq!(frame_bytes(938, true), 1000);
        assert_eq!(of(None, None), None);
        assert_eq!(of(Some(2000), None), Some(2000.0));
        assert_eq!(of(None, Some(8_000_000)), Some(1000.0));
        assert_eq!(of(Some(2000), Some(8_000_000)), Some(1000.0));
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
