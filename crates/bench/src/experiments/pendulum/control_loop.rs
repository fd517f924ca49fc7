//! Runs control loops in real time: pendulums that send their angle, and controllers that answer.
//!
//! One thread has the sockets of both ends of all loops, and sleeps between datagrams. All
//! datagrams pass the network between the hosts of these sockets.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use myelin_linux::sched::{self, Policy};
use myelin_measure::clock::now_ns;
use myelin_simulator::pendulum::{Controller, Pendulum};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

use super::lab::Ends;
use crate::Error;

/// Time between two angles of a trace, ns.
pub(super) const TRACE_NS: u64 = 25_000_000;
/// Priority of the thread.
const PRIORITY: u8 = 50;

/// What happened to a pendulum.
#[derive(Debug, Clone, Default)]
pub(super) struct Trace {
    /// Its angle every [`TRACE_NS`].
    pub(super) angles_deg: Vec<f64>,
    /// From each sample until the motor had the answer.
    pub(super) delays_ns: Vec<u64>,
    /// Datagrams of the sensor, and of the controller.
    pub(super) samples: usize,
    pub(super) answers: usize,
}

impl Trace {
    /// Datagrams that either end sent.
    pub(super) fn sent(&self) -> usize {
        self.samples + self.answers
    }

    /// Samples whose answers were lost, or under way at the end.
    pub(super) fn unanswered(&self) -> usize {
        self.samples.saturating_sub(self.delays_ns.len())
    }

    /// The largest angle in the last quarter.
    pub(super) fn last_deg(&self) -> f64 {
        let last = &self.angles_deg[self.angles_deg.len() * 3 / 4..];
        last.iter().fold(0.0, |most, angle| angle.abs().max(most))
    }

    /// The time after which all angles are within this one; all the time if none is.
    pub(super) fn settled_s(&self, angle_deg: f64) -> f64 {
        let is_outside = |angle: &f64| angle.abs() > angle_deg;
        let outside = self.angles_deg.iter().rposition(is_outside);
        let angles = outside.map_or(0, |place| place + 1);
        angles as f64 * TRACE_NS as f64 / 1e9
    }
}

/// A loop that runs.
pub(super) struct ControlLoop<'a> {
    ends: &'a Ends,
    interval_ns: u64,
    pendulum: Pendulum,
    controller: Controller,
    /// The pendulum's state is of this time.
    now_ns: u64,
    next_sample_ns: u64,
    next_trace_ns: u64,
    trace: Trace,
}

impl<'a> ControlLoop<'a> {
    pub(super) fn new(ends: &'a Ends, start_deg: f64, interval_ns: u64) -> Self {
        Self {
            ends,
            interval_ns,
            pendulum: Pendulum::released_at(start_deg.to_radians()),
            controller: Controller::default(),
            now_ns: 0,
            next_sample_ns: 0,
            next_trace_ns: 0,
            trace: Trace::default(),
        }
    }

    fn start(&mut self, start_ns: u64) {
        self.now_ns = start_ns;
        self.next_sample_ns = start_ns;
        self.next_trace_ns = start_ns;
    }

    /// Takes all datagrams that arrived, and sends the sample that is due.
    fn step(&mut self) -> io::Result<()> {
        while let Some((time_ns, angle)) = receive(&self.ends.controller)? {
            if let Some(answer) = self.controller.answer(time_ns as f64 / 1e9, angle) {
                send(&self.ends.controller, time_ns, answer)?;
                self.trace.answers += 1;
            }
        }
        while let Some((time_ns, acceleration)) = receive(&self.ends.plant)? {
            let now = self.advance();
            self.pendulum.accelerate(acceleration);
            self.trace.delays_ns.push(now.saturating_sub(time_ns));
        }
        if now_ns() >= self.next_sample_ns {
            let now = self.advance();
            send(&self.ends.plant, now, self.pendulum.angle())?;
            self.trace.samples += 1;
            // A late sample is not followed by an early one.
            self.next_sample_ns = (self.next_sample_ns + self.interval_ns).max(now);
        }
        Ok(())
    }

    /// Moves the pendulum until now.
    fn advance(&mut self) -> u64 {
        let now = now_ns();
        while self.next_trace_ns <= now {
            self.advance_to(self.next_trace_ns);
            let angle_deg = self.pendulum.angle().to_degrees();
            self.trace.angles_deg.push(angle_deg);
            self.next_trace_ns += TRACE_NS;
        }
        self.advance_to(now);
        now
    }

    fn advance_to(&mut self, now_ns: u64) {
        let seconds = now_ns.saturating_sub(self.now_ns) as f64 / 1e9;
        self.pendulum.advance(seconds);
        self.now_ns = now_ns;
    }
}

/// Runs the loops under a real-time priority, so that other programs do not delay their ends.
pub(super) fn run(
    mut loops: Vec<ControlLoop<'_>>,
    duration: Duration,
    cancelled: &AtomicBool,
) -> Result<Vec<Trace>, Error> {
    let run = || {
        sched::set(0, Policy::Fifo(PRIORITY))?;
        let failed = |cause| Error::system("run a control loop", cause);
        let start_ns = now_ns();
        let end_ns = start_ns + duration.as_nanos() as u64;
        for one in &mut loops {
            one.start(start_ns);
        }
        while now_ns() < end_ns {
            if cancelled.load(Ordering::Relaxed) {
                return Err(Error::Cancelled);
            }
            for one in &mut loops {
                one.step().map_err(failed)?;
            }
            wait(&loops).map_err(failed)?;
        }
        Ok(loops.into_iter().map(|one| one.trace).collect())
    };
    thread::scope(|scope| scope.spawn(run).join().unwrap_or(Err(Error::Cancelled)))
}

/// Sleeps until a datagram arrives or a sample is due.
fn wait(loops: &[ControlLoop<'_>]) -> io::Result<()> {
    let sockets = loops.iter();
    let sockets = sockets.flat_map(|one| [&one.ends.plant, &one.ends.controller]);
    let mut waited: Vec<PollFd<'_>> = sockets
        .map(|socket| PollFd::new(socket.as_fd(), PollFlags::POLLIN))
        .collect();
    let due_ns = loops.iter().map(|one| one.next_sample_ns).min();
    let left_ns = due_ns.unwrap_or(0).saturating_sub(now_ns());
    let left = TimeSpec::from_duration(Duration::from_nanos(left_ns));
    match ppoll(&mut waited, Some(left), None) {
        Ok(_) | Err(nix::Error::EINTR) => Ok(()),
        Err(cause) => Err(cause.into()),
    }
}

/// Sends the time of a sample, and the angle or the answer.
fn send(socket: &UdpSocket, time_ns: u64, value: f64) -> io::Result<()> {
    let mut datagram = [0; 16];
    datagram[..8].copy_from_slice(&time_ns.to_be_bytes());
    datagram[8..].copy_from_slice(&value.to_be_bytes());
    socket.send(&datagram).map(drop)
}

/// Returns the content of the next datagram that arrived.
fn receive(socket: &UdpSocket) -> io::Result<Option<(u64, f64)>> {
    let mut datagram = [0; 16];
    match socket.recv(&mut datagram) {
        Ok(_) => {
            let [time, value] = [&datagram[..8], &datagram[8..]]
                .map(|half| u64::from_be_bytes(half.try_into().unwrap_or_default()));
            Ok(Some((time, f64::from_bits(value))))
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_tells_how_it_ended() {
        let trace = Trace {
            angles_deg: vec![5.0, -4.0, 2.0, -1.0, 0.5, -0.05, 0.05, 0.0],
            delays_ns: vec![1; 3],
            samples: 5,
            answers: 4,
        };
        assert!((trace.last_deg() - 0.05).abs() < 1e-9);
        assert!((trace.settled_s(0.1) - 0.125).abs() < 1e-9);
        assert!((trace.settled_s(0.01) - 0.175).abs() < 1e-9);
        assert!((trace.settled_s(9.0)).abs() < 1e-9);
        assert_eq!((trace.sent(), trace.unanswered()), (9, 2));
    }
}
