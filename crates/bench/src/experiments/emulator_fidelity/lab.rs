//! A topology with impaired links, and real packets between its hosts.

use std::io;
use std::net::UdpSocket;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use myelin_api::{ApiError, DirectionStatus};
use myelin_linux::priorities;
use myelin_linux::sched::{self, Policy};
use myelin_measure::clock::now_ns;
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, ClockNanosleepFlags, clock_nanosleep};

use crate::Error;
use crate::generator::run_on_core;
use crate::lab::{self, Lab};

/// Links between a host and the switch, in the order of the hosts: the first host of a pair is at
/// the link of the pair's name, the second at a link without impairment.
const PAIRS: [&str; 5] = ["delayed", "limited", "lossy", "flooded", "chained"];
/// Core of the sender, which also receives.
const CORE: usize = 0;
/// Class of the timer thread, and of the thread that sends over the delayed link: that of the delay
/// line.
const CLASS: Policy = Policy::Fifo(priorities::DELAY_LINE);
/// Time before a packet that a thread sleeps at most, ns. It then polls.
const LEAD_NS: u64 = 200_000;
/// Time after which a packet counts as lost, ns.
const LOST_NS: u64 = 500_000_000;
/// Datagrams of one system call, which the kernel segments, and their payload, bytes.
const SEGMENTS: usize = 32;
const SMALL: usize = 64;
const SMALL_BYTES: i32 = 64;
/// Payload of the datagrams through the limited link, and the bytes of their headers.
const LARGE: usize = 1000;
const HEADERS: usize = 14 + 20 + 8;
/// Time after which no packet is on the way.
const PAUSE: Duration = Duration::from_millis(20);
/// Time of a flood, and of the measurement of the rate.
const FLOOD: Duration = Duration::from_millis(200);
const RATE_TIME: Duration = Duration::from_secs(1);

/// A running topology with five pairs of hosts, and a chain between the hosts of the last pair.
pub(super) struct Pairs(Lab);

/// Two hosts: one sends, the other receives.
pub(super) struct Pair {
    sender: UdpSocket,
    receiver: UdpSocket,
}

impl Pairs {
    pub(super) fn start(program: &Path, delay_ns: u64) -> Result<Self, Error> {
        Lab::start(program, |name| lab_text(name, delay_ns)).map(Self)
    }

    pub(super) fn delayed(&self) -> Result<Pair, Error> {
        self.pair(0)
    }

    pub(super) fn limited(&self) -> Result<Pair, Error> {
        self.pair(1)
    }

    pub(super) fn lossy(&self) -> Result<Pair, Error> {
        self.pair(2)
    }

    pub(super) fn flooded(&self) -> Result<Pair, Error> {
        self.pair(3)
    }

    pub(super) fn chained(&self) -> Result<Pair, Error> {
        self.pair(4)
    }

    fn pair(&self, number: usize) -> Result<Pair, Error> {
        let (from, to) = (2 * number, 2 * number + 1);
        let pair = Pair {
            sender: self.0.socket(from, 0)?,
            receiver: self.0.socket(to, 0)?,
        };
        let failed = |cause| Error::system("connect two hosts", cause);
        pair.connect(to).map_err(failed)?;
        Ok(pair)
    }

    /// Returns the counters of a link, from its host to the switch.
    pub(super) fn counters(&self, link: &str) -> Result<DirectionStatus, Error> {
        let mut links = self.0.status()?.links.into_iter();
        let found = links.find(|found| found.name == link);
        let directions = found.and_then(|link| link.directions);
        let [there, _] =
            directions.ok_or_else(|| ApiError::failed("the link passes no delay line"))?;
        Ok(there)
    }

    /// Returns the counters when no packet waits or arrives any more.
    pub(super) fn settled_counters(&self, link: &str) -> Result<DirectionStatus, Error> {
        let mut before = self.counters(link)?;
        loop {
            thread::sleep(PAUSE);
            let now = self.counters(link)?;
            if now.waiting == 0 && now.arrived == before.arrived {
                return Ok(now);
            }
            before = now;
        }
    }

    /// The scheduling class of the delay line.
    pub(super) fn class(&self) -> Result<String, Error> {
        let line = self.0.status()?.delay_line;
        let line = line.ok_or_else(|| ApiError::failed("the topology has no delay line"))?;
        Ok(sched::get(line.pid)?.to_string())
    }

    /// Returns the number of packets that left the chain, when no packet leaves any more.
    pub(super) fn packets_of_chain(&self) -> Result<u64, Error> {
        self.0.packets_of_chains(PAUSE)
    }
}

fn lab_text(name: &str, delay_ns: u64) -> String {
    let impairments = [
        format!("delay: {}us", delay_ns / 1000),
        "bandwidth: 20Mbit".to_owned(),
        "loss: 1%".to_owned(),
        "delay: 1ms".to_owned(),
        String::new(),
    ];
    let links = PAIRS.iter().zip(impairments);
    let links: Vec<String> = links
        .map(|(pair, impairment)| {
            format!(
                "    - {{ ends: [ {pair}-a, s ], name: {pair}, {impairment} }}\n    - {{ ends: [ {pair}-b, s ] }}\n"
            )
        })
        .collect();
    let hosts: Vec<String> = PAIRS
        .iter()
        .map(|pair| format!("{pair}-a, {pair}-b"))
        .collect();
    format!(
        "apiVersion: myelin.dev/v1alpha1\nkind: Topology\nmetadata: {{ name: {name} }}\nspec:\n  \
         hosts: [ {} ]\n  switches: [ s ]\n  links:\n{}---\n\
         apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: {{ name: {name}-chain }}\nspec:\n  \
         match: {{ protocol: udp }}\n  functions: [ {{ name: f, kind: forward, space: user }} ]\n  \
         worker: {{ batch: 64 }}\n  ports: {{ ingress: {name}/chained-a, egress: {name}/chained-b }}\n",
        hosts.join(", "),
        links.concat()
    )
}

impl Pair {
    /// Connects the sender to the receiver's host. All addresses are then known.
    fn connect(&self, host: usize) -> io::Result<()> {
        let port = self.receiver.local_addr()?.port();
        self.sender.connect((lab::address_of(host), port))?;
        lab::greet(&self.sender, &self.receiver)?;
        lab::drain(&self.receiver)
    }

    /// Sends packets at an interval. Returns by how much each arrived later than after `delay_ns`.
    pub(super) fn lateness_ns(
        &self,
        delay_ns: u64,
        (packets, interval_ns): (usize, u64),
    ) -> Result<Vec<f64>, Error> {
        let measure = || {
            let mut sent_ns = Vec::with_capacity(packets);
            let mut late_ns = Vec::with_capacity(packets);
            let mut due_ns = now_ns();
            let mut number = [0; 8];
            while late_ns.len() < packets {
                let next_ns = [
                    (sent_ns.len() < packets).then_some(due_ns),
                    sent_ns.get(late_ns.len()).map(|sent| sent + delay_ns),
                ];
                // Packets arrive in their order.
                if let Some(next_ns) = next_ns.into_iter().flatten().min()
                    && next_ns > now_ns() + 2 * LEAD_NS
                {
                    sleep_until(next_ns - LEAD_NS)?;
                }
                let now = now_ns();
                if sent_ns.len() < packets && now >= due_ns {
                    self.sender.send(&sent_ns.len().to_ne_bytes())?;
                    sent_ns.push(now);
                    due_ns = now + interval_ns;
                }
                if self.receiver.recv(&mut number).is_ok()
                    && let Some(sent) = sent_ns.get(usize::from_ne_bytes(number))
                {
                    late_ns.push(now_ns() as f64 - *sent as f64 - delay_ns as f64);
                }
                let last_ns = sent_ns.last().copied().unwrap_or(now);
                if now.saturating_sub(last_ns) > delay_ns + LOST_NS {
                    return Err(io::Error::other("a packet was lost"));
                }
            }
            Ok(late_ns)
        };
        run_exactly(|| {
            measure().map_err(|cause| Error::system("send packets over a delayed link", cause))
        })
    }

    /// Sends twice the rate of the link. Returns the rate at which packets arrive, bits a second.
    pub(super) fn rate_bps(&self, rate_bps: u64) -> Result<f64, Error> {
        let frame_bits = ((LARGE + HEADERS) * 8) as f64;
        let payload = [0; LARGE];
        let measure = || {
            let (mut sent, mut arrivals) = (0_u64, Vec::<f64>::new());
            let start_ns = now_ns();
            loop {
                let now = now_ns();
                let spent_s = (now - start_ns) as f64 / 1e9;
                if now - start_ns > RATE_TIME.as_nanos() as u64 {
                    break;
                }
                if sent as f64 * frame_bits < 2.0 * rate_bps as f64 * spent_s {
                    self.sender.send(&payload)?;
                    sent += 1;
                }
                if self.receiver.recv(&mut [0; LARGE]).is_ok() {
                    arrivals.push((now_ns() - start_ns) as f64);
                }
            }
            match arrivals.len() {
                0 | 1 => Err(io::Error::other("no packets arrived")),
                _ => Ok(frame_bits * 1e9 / interval_ns(&arrivals)),
            }
        };
        let rate = run_on_core(CORE, || {
            measure().map_err(|cause| Error::system("send packets over a limited link", cause))
        })?;
        // The packets that still wait would count in the next measurement.
        thread::sleep(2 * FLOOD);
        while self.receiver.recv(&mut [0; LARGE]).is_ok() {}
        Ok(rate)
    }

    /// Sends this number of packets, with a pause after each system call until most arrived.
    pub(super) fn send_paced(&self, packets: usize) -> Result<(), Error> {
        const WAIT: Duration = Duration::from_micros(200);
        let send = || {
            self.segment()?;
            for _ in 0..packets.div_ceil(SEGMENTS) {
                self.sender.send(&[0; SEGMENTS * SMALL])?;
                let (start, mut arrived) = (Instant::now(), 0);
                while arrived < SEGMENTS && start.elapsed() < WAIT {
                    arrived += usize::from(self.receiver.recv(&mut [0; SMALL]).is_ok());
                }
            }
            Ok(())
        };
        run_on_core(CORE, || {
            send().map_err(|cause| Error::system("send packets over a lossy link", cause))
        })
    }

    /// Sends as many packets as possible. Returns the time, s.
    pub(super) fn flood(&self) -> Result<f64, Error> {
        let send = || {
            self.segment()?;
            let start = Instant::now();
            while start.elapsed() < FLOOD {
                self.sender.send(&[0; SEGMENTS * SMALL])?;
            }
            Ok(start.elapsed().as_secs_f64())
        };
        run_on_core(CORE, || {
            send().map_err(|cause| Error::system("flood a link", cause))
        })
    }

    /// Lets the kernel make datagrams of [`SMALL`] bytes of each system call.
    fn segment(&self) -> io::Result<()> {
        Ok(setsockopt(
            &self.sender,
            sockopt::UdpGsoSegment,
            &SMALL_BYTES,
        )?)
    }
}

/// Returns the time between two arrivals, ns: the slope of the line with the least squares, because
/// single arrivals may be read late.
fn interval_ns(arrivals_ns: &[f64]) -> f64 {
    let middle = (arrivals_ns.len() - 1) as f64 / 2.0;
    let (mut both, mut squares) = (0.0, 0.0);
    for (number, arrival_ns) in arrivals_ns.iter().enumerate() {
        let from_middle = number as f64 - middle;
        both += from_middle * arrival_ns;
        squares += from_middle * from_middle;
    }
    both / squares
}

/// Sleeps until absolute times in a real-time thread. Returns by how much each wake-up was late.
pub(super) fn timer_lateness_ns(wakeups: usize, interval_ns: u64) -> Result<Vec<f64>, Error> {
    run_exactly(|| {
        let mut due_ns = now_ns();
        let mut late_ns = Vec::with_capacity(wakeups);
        for _ in 0..wakeups {
            due_ns += interval_ns;
            sleep_until(due_ns).map_err(|cause| Error::system("sleep", cause))?;
            late_ns.push(now_ns() as f64 - due_ns as f64);
        }
        Ok(late_ns)
    })
}

fn sleep_until(due_ns: u64) -> io::Result<()> {
    let due = TimeSpec::from_duration(Duration::from_nanos(due_ns));
    let flags = ClockNanosleepFlags::TIMER_ABSTIME;
    clock_nanosleep(ClockId::CLOCK_MONOTONIC, flags, &due)?;
    Ok(())
}

/// Runs `work` in a thread of [`CLASS`].
fn run_exactly<T: Send>(work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            sched::set(0, CLASS)?;
            run_on_core(CORE, work)
        });
        thread.join().unwrap_or(Err(Error::Cancelled))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lab_is_valid() {
        let text = lab_text("lab", 10_000_000);
        let objects = crate::agents::chain_source(text).parse_objects().unwrap();
        let lab = &objects.topologies[0];
        assert_eq!((lab.hosts.len(), lab.links.len()), (10, 10));
        let delayed = lab.link("delayed").unwrap().impairments;
        assert_eq!(delayed.delay_ns, 10_000_000);
        for (number, host) in lab.hosts.iter().enumerate() {
            assert_eq!(host.addresses[0].address, lab::address_of(number));
        }
    }

    #[test]
    fn the_interval_is_that_of_even_arrivals() {
        let mut arrivals_ns: Vec<f64> = (0..1000).map(|n| 7.0 + 250.0 * f64::from(n)).collect();
        assert!((interval_ns(&arrivals_ns) - 250.0).abs() < 1e-9);
        // A hundredth of them is read late.
        arrivals_ns[..10].fill(3000.0);
        assert!((interval_ns(&arrivals_ns) - 250.0).abs() < 0.3);
    }

    #[test]
    fn a_timer_is_never_early() {
        if !nix::unistd::geteuid().is_root() {
            println!("SKIP: a real-time thread needs root");
            return;
        }
        let late_ns = timer_lateness_ns(20, 1_000_000).unwrap();
        assert_eq!(late_ns.len(), 20);
        assert!(late_ns.iter().all(|late| *late >= 0.0), "{late_ns:?}");
    }
}
