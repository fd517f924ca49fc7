//! The loop: packets, changes between two batches, and sleep.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use nix::sys::eventfd::EventFd;

use super::changes::{Change, Mailbox, Outcome};
use crate::clock::monotonic_ns;
use crate::forwarder::Forwarder;
use crate::idle::{IdleClock, Step};
use crate::port::Port;
use crate::stats::Counter;
use crate::sys;
use crate::worker_port::WorkerPort;

/// First and longest sleep of a worker that waits for a port to recover, ms.
const RECOVERY_MS: (u64, u64) = (1, 64);
/// Turns of a busy loop between two looks at the clock, where functions want to be called by time.
const TURNS_PER_READING: u32 = 64;

/// Whether the loop goes on.
#[derive(PartialEq, Eq)]
enum Life {
    On,
    Over,
}

impl Mailbox {
    /// The loop.
    pub(super) fn forward(
        &self,
        forwarder: &mut Forwarder<'static, WorkerPort>,
        mut idle: IdleClock,
    ) {
        // Until the start the ports of a predecessor are gathered; no frame may be taken before all are known.
        while let Ok(change) = self.changes.recv() {
            let started = matches!(change, Change::Start);
            if self.make(forwarder, change) == Life::Over {
                return;
            }
            if started {
                break;
            }
        }
        let mut sleeper = Sleeper::default();
        sleeper.watch(forwarder, &self.wake);
        let mut was_busy = true;
        let mut turns = 0_u32;
        loop {
            if self.waiting.load(Ordering::Relaxed) {
                if self.make_all(forwarder) == Life::Over {
                    return;
                }
                if let Some(changed) = self.idle.take() {
                    idle = IdleClock::new(changed);
                }
                sleeper.watch(forwarder, &self.wake);
            }
            if forwarder.is_shaping() && forwarder.release() > 0 {
                idle.busy();
                was_busy = true;
            }
            if forwarder.has_timers() {
                // A reading of the clock costs as much as several looks.
                turns = turns.wrapping_add(1);
                if turns.is_multiple_of(TURNS_PER_READING) {
                    forwarder.expire();
                }
            }
            if forwarder.turn() > 0 {
                idle.busy();
                sleeper.recovered();
                was_busy = true;
                continue;
            }
            if was_busy || forwarder.is_unsettled() {
                forwarder.settle();
                was_busy = false;
            }
            match idle.nothing(monotonic_ns) {
                // No pause instruction: it takes 40 to 140 cycles, which a packet would wait for.
                Step::Look => forwarder.busy_poll(),
                Step::Sleep => {
                    if forwarder.arm() {
                        let due = forwarder.due_ns().into_iter();
                        let due_in_ns = due
                            .chain(forwarder.departs_ns())
                            .min()
                            .map(|due_ns| due_ns.saturating_sub(monotonic_ns()));
                        if sleeper.sleep(forwarder.is_unsettled(), due_in_ns) {
                            // Nonblocking; it makes the descriptor quiet again. `waiting` was set before it was written, so no change is missed.
                            let _ = self.wake.read();
                        }
                        forwarder.count(Counter::Sleeps, 1);
                    }
                    forwarder.disarm();
                    if forwarder.has_timers() {
                        forwarder.expire();
                    }
                }
            }
        }
    }

    fn make_all(&self, forwarder: &mut Forwarder<'static, WorkerPort>) -> Life {
        self.waiting.store(false, Ordering::Relaxed);
        while let Ok(change) = self.changes.try_recv() {
            if self.make(forwarder, change) == Life::Over {
                return Life::Over;
            }
        }
        Life::On
    }

    fn make(&self, forwarder: &mut Forwarder<'static, WorkerPort>, change: Change) -> Life {
        let mut life = Life::On;
        let outcome = match change {
            Change::AddPort(id, port) => {
                forwarder.add_port(id.0.into(), *port);
                Outcome::Done
            }
            Change::RemovePort(id) => match forwarder.remove_port(id.0.into()) {
                Some(port) => Outcome::Port(Box::new(port)),
                None => Outcome::Refused("there is no such socket"),
            },
            Change::TakeFramesOf(port) => {
                forwarder.take_frames_of(port);
                Outcome::Done
            }
            Change::Grant(holder, frames) => {
                forwarder.grant(holder, frames);
                Outcome::Done
            }
            Change::SetIdle(idle) => {
                self.idle.set(Some(idle));
                Outcome::Done
            }
            Change::AddSegments(segments) => {
                forwarder.add_segments(segments);
                Outcome::Done
            }
            Change::RemoveSegments(spi, generation) => {
                Outcome::Segments(forwarder.remove_segments(spi, generation))
            }
            Change::ReadFlows((spi, generation, position), mut page) => {
                forwarder.read_flows(spi, generation, position, &mut page);
                Outcome::Flows(page)
            }
            Change::ReadCounters(spi, generation, mut told) => {
                forwarder.read_counters(spi, generation, &mut told);
                Outcome::Counters(told)
            }
            Change::CountWaiting(spi, generation) => {
                Outcome::Waiting(forwarder.waiting(spi, generation))
            }
            Change::Start => {
                forwarder.start();
                Outcome::Done
            }
            Change::Stop => {
                life = Life::Over;
                Outcome::Done
            }
        };
        // Nobody listens when the control thread has failed; the loop goes on as it does without an agent.
        let _ = self.outcomes.send(outcome);
        life
    }
}

/// Where the loop waits when it has nothing to do.
#[derive(Default)]
struct Sleeper {
    /// The ports' descriptors, and the one that wakes the loop for a change.
    fds: Vec<libc::pollfd>,
    patience_ms: u64,
}

impl Sleeper {
    /// Looks up what to wait for, after the ports changed.
    fn watch(&mut self, forwarder: &Forwarder<'_, impl Port>, wake: &EventFd) {
        let watched = forwarder.ports().filter_map(Port::readable_fd);
        self.fds = watched
            .chain([wake.as_fd().as_raw_fd()])
            .map(|fd| libc::pollfd {
                fd,
                events: libc::POLLIN,
                revents: 0,
            })
            .collect();
        self.recovered();
    }

    fn recovered(&mut self) {
        self.patience_ms = RECOVERY_MS.0;
    }

    /// Sleeps until a packet or a change is there, until a function wants to be called, or for a while when a port has to recover. Returns whether the
    /// wake descriptor is readable.
    fn sleep(&mut self, unsettled: bool, due_in_ns: Option<u64>) -> bool {
        let recovery = unsettled.then(|| Duration::from_millis(self.patience_ms));
        let due = due_in_ns.map(Duration::from_nanos);
        let timeout = recovery.into_iter().chain(due).min();
        self.patience_ms = (self.patience_ms * 2).min(RECOVERY_MS.1);
        if sys::poll(&mut self.fds, timeout).is_err() {
            return false;
        }
        for watched in &mut self.fds {
            if watched.revents & (libc::POLLERR | libc::POLLNVAL | libc::POLLHUP) != 0 {
                // A descriptor that is always ready would turn sleep into a spin.
                watched.fd = -1;
            }
        }
        // `watch` puts it last.
        self.fds.last().is_some_and(|wake| wake.revents != 0)
    }
}
