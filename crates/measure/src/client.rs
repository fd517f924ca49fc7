//! The client end of a probe. The client sends on an absolute timeline and matches answers. In
//! inline mode its thread also runs the server end. One loop serves all modes.

use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use myelin_metrics::{Counts, Matching, Mode, Stop};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

use crate::Error;
use crate::clock::{nanos, now_ns};
use crate::config::Config;
use crate::control::Watch;
use crate::echo::{Echo, LARGEST_DATAGRAM, SharedState, receive};
use crate::payload::{Codec, Header};
use crate::recorder::Recorder;
use crate::tracker::{Times, Tracker};

/// Repeat number of the warm-up packets, which come before the measurement.
const WARM_UP: u32 = u32::MAX - 16;
/// Repeat number of the first hello packet.
const HELLO: u32 = WARM_UP + 1;
/// Number of hello packets, which the client sends first, one by one. They show whether both ends
/// can read the payload.
const HELLOS: u32 = 3;
/// Number of refused sends in a row that fails the measurement.
const MAX_REFUSALS: u32 = 8;
/// Number of lost packets, without any answer, that ends the run with [`Stop::NoAnswer`].
const MAX_UNANSWERED: u64 = 20;
/// Longest sleep between two checks of the cancel flag, nanoseconds.
const LONGEST_SLEEP_NS: u64 = 50_000_000;

/// Result of the client's run.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) matching: Matching,
    pub(crate) stop: Option<Stop>,
    pub(crate) counts: Counts,
    pub(crate) recorder: Recorder,
    pub(crate) duration_ns: u64,
}

#[derive(Debug)]
pub(crate) struct Client<'a> {
    config: &'a Config,
    socket: &'a UdpSocket,
    /// The server end, in inline mode.
    echo: Option<Echo<'a>>,
    /// Inline mode: one more than the highest id of this repeat that the server end has sent back.
    echoed: u64,
    shared: &'a SharedState,
    watch: Watch<'a>,
    writer: Codec,
    reader: Codec,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
    tracker: Tracker,
    recorder: Recorder,
    interval_ns: u64,
    timeout_ns: u64,
    /// Matching by order: time before which the client does not send, so a late answer is not
    /// matched with the next packet.
    held_until: u64,
    /// The round trip of the last answer, an estimate for the next round trip.
    last_rtt_ns: u64,
    refusals: u32,
    has_answer: bool,
    /// Whether the current packets are part of the measurement.
    counting: bool,
}

impl<'a> Client<'a> {
    pub(crate) fn new(
        config: &'a Config,
        socket: &'a UdpSocket,
        run: u32,
        echo: Option<Echo<'a>>,
        shared: &'a SharedState,
        watch: Watch<'a>,
    ) -> Self {
        let writer = Codec::new(run, 0, config.payload_bytes);
        let capacity = config.count.max(config.warm_up).max(1) as usize;
        let timeout_ns = nanos(config.timeout);
        Self {
            config,
            socket,
            echo,
            echoed: 0,
            shared,
            watch,
            outgoing: writer.template(),
            writer,
            reader: Codec::new(
                run,
                config.forward_key ^ config.reply_key,
                config.payload_bytes,
            ),
            incoming: vec![0; LARGEST_DATAGRAM],
            tracker: Tracker::new(capacity, timeout_ns),
            recorder: Recorder::new(config.total(), config.keep_samples),
            interval_ns: nanos(config.interval),
            timeout_ns,
            held_until: 0,
            last_rtt_ns: u64::MAX,
            refusals: 0,
            has_answer: false,
            counting: false,
        }
    }

    /// Runs hello, warm-up and all repeats.
    pub(crate) fn run(mut self) -> Result<Outcome, Error> {
        let mut stop = self.send_hellos()?;
        if stop.is_none() {
            stop = self.run_repeat(WARM_UP, self.config.warm_up)?;
        }
        // Packets before the first repeat count only if no packet is answered.
        if stop != Some(Stop::NoAnswer) {
            self.tracker.counts = Counts::default();
        }
        self.shared.foreign.store(0, Ordering::Relaxed);
        self.shared.send_errors.store(0, Ordering::Relaxed);
        self.counting = true;
        let start = now_ns();
        self.recorder.start(start);
        let mut repeat = 0;
        while stop.is_none() && repeat < self.config.repeats {
            stop = self.run_repeat(repeat, self.config.count)?;
            self.recorder.record_repeat(&self.tracker);
            repeat += 1;
        }
        let end = now_ns();
        let (sent, total) = (self.tracker.counts.sent, self.config.total());
        self.watch
            .report_progress(end, if stop.is_none() { total } else { sent }, total);
        let mut counts = self.tracker.counts;
        counts.foreign += self.shared.foreign.load(Ordering::Relaxed);
        counts.send_errors += self.shared.send_errors.load(Ordering::Relaxed);
        Ok(Outcome {
            matching: self.matching(),
            stop,
            counts,
            recorder: self.recorder,
            duration_ns: end - start,
        })
    }

    fn matching(&self) -> Matching {
        if self.matches_by_order() {
            Matching::ByOrder
        } else {
            Matching::ById
        }
    }

    fn matches_by_order(&self) -> bool {
        self.shared.by_order.load(Ordering::Relaxed)
    }

    /// Sends the first packets one by one, and decides how to match answers.
    fn send_hellos(&mut self) -> Result<Option<Stop>, Error> {
        for attempt in 0..2 * HELLOS {
            if let Some(stop) = self.run_repeat(HELLO + attempt, 1)? {
                return Ok(Some(stop));
            }
            if self.tracker.counts.received > 0 {
                return Ok(None);
            }
            let is_unreadable =
                self.tracker.counts.foreign + self.shared.foreign.load(Ordering::Relaxed) > 0;
            if is_unreadable {
                self.shared.by_order.store(true, Ordering::Relaxed);
            } else if attempt + 1 >= HELLOS {
                break;
            }
        }
        // No answer with either matching: count losses by id.
        self.shared.by_order.store(false, Ordering::Relaxed);
        Ok(None)
    }

    /// Sends `count` packets with the repeat number `repeat`, and waits until each packet is
    /// answered or lost.
    fn run_repeat(&mut self, repeat: u32, count: u32) -> Result<Option<Stop>, Error> {
        let count = count as usize;
        self.tracker.begin_repeat();
        self.echoed = 0;
        let start = now_ns();
        loop {
            let now = now_ns();
            if let Some(stop) = self.stop_reason(now) {
                self.tracker.forget_in_flight();
                return Ok(Some(stop));
            }
            if self.tracker.expire(now) && self.matches_by_order() {
                self.held_until = now + self.timeout_ns;
            }
            let left = self.tracker.sent() < count;
            if left && now >= self.next_send_ns(start) {
                self.send(repeat, start)?;
            } else if self.tracker.outstanding() == 0 {
                if !left {
                    return Ok(None);
                }
                if self.counting {
                    let total = self.config.total();
                    self.watch
                        .report_progress(now, self.tracker.counts.sent, total);
                }
            }
            let left = self.tracker.sent() < count;
            if self.config.mode != Mode::Blocking || self.wait_for_socket(now, left, start)? {
                self.receive_due(repeat)?;
            }
        }
    }

    fn stop_reason(&self, now: u64) -> Option<Stop> {
        if !self.has_answer && self.tracker.counts.lost >= MAX_UNANSWERED {
            return Some(Stop::NoAnswer);
        }
        self.watch.stop_reason(now)
    }

    /// Returns the time of the next send; `u64::MAX` while the client must wait for an answer
    /// first.
    fn next_send_ns(&self, start: u64) -> u64 {
        let one_by_one = self.interval_ns == 0 || self.matches_by_order();
        if one_by_one && self.tracker.outstanding() > 0 {
            return u64::MAX;
        }
        let due = start + self.tracker.sent() as u64 * self.interval_ns;
        due.max(self.held_until)
    }

    fn send(&mut self, repeat: u32, start: u64) -> Result<(), Error> {
        let id = self.tracker.sent() as u64;
        let due = start + id * self.interval_ns;
        let now = now_ns();
        if self.interval_ns > 0 && now > due + self.interval_ns {
            self.tracker.counts.behind_schedule += 1;
        }
        let header = Header::at_send(id, repeat, now);
        self.writer.write(&mut self.outgoing, &header);
        self.tracker.record_send(now);
        match self.socket.send_to(&self.outgoing, self.config.destination) {
            Ok(_) => self.refusals = 0,
            Err(error) => {
                self.tracker.counts.send_errors += 1;
                self.refusals += 1;
                // One refused send is a loss. Several refused sends in a row are an error.
                let limit = if self.counting { MAX_REFUSALS } else { HELLOS };
                if self.refusals >= limit {
                    let action = format!(
                        "send {} bytes to {}",
                        self.config.payload_bytes, self.config.destination
                    );
                    return Err(Error::system(
                        action,
                        error,
                        "check the route and the link's MTU",
                    ));
                }
            }
        }
        Ok(())
    }

    /// Blocking mode: sleeps until a datagram arrives, or the next send or timeout is due. Returns
    /// whether to receive now.
    ///
    /// If the answer is due well before the next send, the receive call itself sleeps, as in a
    /// plain application. The socket's read timeout ends the sleep if the answer is lost. That
    /// timeout counts in jiffies (4 ms at 250 Hz), too coarse for a timeline. So all other waits
    /// use ppoll, which costs one more system call in the round trip.
    fn wait_for_socket(&self, now: u64, packets_left: bool, start: u64) -> Result<bool, Error> {
        let next_send = if packets_left {
            self.next_send_ns(start)
        } else {
            u64::MAX
        };
        let answer_due = now.saturating_add(self.last_rtt_ns.saturating_mul(2));
        if self.tracker.outstanding() > 0 && answer_due < next_send {
            return Ok(true);
        }
        let expiry = self
            .tracker
            .next_expiry()
            .map_or(u64::MAX, |t| t.saturating_add(1));
        let wake = next_send.min(expiry).min(now + LONGEST_SLEEP_NS);
        let wait = wake.saturating_sub(now);
        let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        let timeout = TimeSpec::from_duration(Duration::from_nanos(wait));
        match ppoll(&mut fds, Some(timeout), None) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::EINTR) => Ok(false),
            Err(errno) => Err(Error::system(
                "wait for answers to the probe",
                errno,
                "please report it",
            )),
        }
    }

    /// Polls the end where the next packet is due, or both ends if no packet is due. An empty poll
    /// of the other end would add to the measured round trip.
    fn receive_due(&mut self, repeat: u32) -> Result<(), Error> {
        if let Some(echo) = &mut self.echo {
            let sent = self.tracker.sent() as u64;
            let at_server = self.echoed < sent;
            let at_client = self.tracker.next_expected() < self.echoed as usize;
            if at_server || !at_client {
                if echo.serve_one()? {
                    self.echoed = if self.shared.by_order.load(Ordering::Relaxed) {
                        sent
                    } else {
                        echo.next_id(repeat)
                    };
                } else if at_server && !at_client {
                    return Ok(());
                }
            }
        }
        let received = receive(self.socket, &mut self.incoming, "the probe's client")?;
        let Some((length, peer)) = received else {
            return Ok(());
        };
        let client_receive = now_ns();
        if self.matches_by_order() {
            let known = peer == self.config.destination && self.tracker.sent() > 0;
            self.match_by_order(known, client_receive);
        } else {
            self.match_by_id(repeat, length, client_receive);
        }
        self.has_answer |= self.tracker.counts.received > 0;
        Ok(())
    }

    fn match_by_order(&mut self, known: bool, client_receive: u64) {
        if !known {
            self.tracker.counts.foreign += 1;
            return;
        }
        let server_send = self.shared.send_ns.load(Ordering::Acquire);
        let times = Times {
            server_receive: self.shared.receive_ns.load(Ordering::Relaxed),
            server_send,
            client_receive,
        };
        let id = self.tracker.sent() as u64 - 1;
        self.tracker.record_answer(id, times);
        self.last_rtt_ns = self.tracker.age(id, client_receive);
        self.held_until = 0;
    }

    fn match_by_id(&mut self, repeat: u32, length: usize, client_receive: u64) {
        let datagram = &self.incoming[..length];
        match self.reader.read(datagram) {
            Some(header) if header.repeat == repeat => {
                let order = [
                    header.client_send_ns,
                    header.server_receive_ns,
                    header.server_send_ns,
                    client_receive,
                ];
                let in_order = order.is_sorted();
                let clamp =
                    |t: u64| t.clamp(header.client_send_ns.min(client_receive), client_receive);
                let times = Times {
                    server_receive: clamp(header.server_receive_ns),
                    server_send: clamp(header.server_send_ns),
                    client_receive,
                };
                if !self.tracker.record_answer(header.id, times) {
                    self.tracker.counts.foreign += 1;
                    return;
                }
                self.last_rtt_ns = self.tracker.age(header.id, client_receive);
                if !in_order || !self.reader.is_intact(datagram) {
                    self.tracker.counts.corrupted += 1;
                }
            }
            // Packets before the measurement are not counted.
            Some(header) if header.repeat < WARM_UP => self.tracker.record_earlier_answer(),
            Some(_) => {}
            None => self.tracker.counts.foreign += 1,
        }
    }
}
