//! The loop: processes packets, applies changes between two batches, and sleeps.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use nix::sys::eventfd::EventFd;

use super::changes::{ChangeReceiver, LoopState, Phase};
use crate::clock::monotonic_ns;
use crate::driver::DrivenPort;
use crate::forwarder::Forwarder;
use crate::idle::{IdlePolicy, IdleStep};
use crate::port::Port;
use crate::stats::Counter;
use crate::sys;
use crate::turns::{Turns, Wake};

/// First and longest sleep if a port lacks frames or has unsent packets, ms.
const RECOVERY_MS: (u64, u64) = (1, 64);
/// Iterations of a busy loop between two readings of the clock, if timers are set.
const ITERATIONS_PER_READING: u32 = 64;

impl<P: DrivenPort> ChangeReceiver<P> {
    /// Runs the loop until a change ends it.
    pub(super) fn run_loop(self, state: &mut LoopState<P>, mut idle: IdlePolicy) {
        while state.phase == Phase::CollectingPorts
            && let Ok(change) = self.changes.recv()
        {
            change(state);
        }
        if state.phase == Phase::Ended {
            return;
        }
        let mut sleeper = Sleeper::default();
        sleeper.watch(state, &self.wake);
        let mut was_busy = true;
        let mut iterations = 0_u32;
        loop {
            if self.has_changes.load(Ordering::Relaxed) {
                self.has_changes.store(false, Ordering::Relaxed);
                self.changes.try_iter().for_each(|change| change(state));
                if let Some(changed) = state.idle.take() {
                    idle = IdlePolicy::new(changed);
                }
                if state.phase == Phase::Ended {
                    return;
                }
                sleeper.watch(state, &self.wake);
            }
            let LoopState {
                forwarder, turns, ..
            } = state;
            if let Some(turns) = turns
                && !turns.has_core()
                && turns.wait(next_time_ns(forwarder), &self.has_changes) == Wake::Other
            {
                serve_times(forwarder);
                continue;
            }
            if forwarder.has_shaped_packets() && forwarder.send_due_packets() > 0 {
                idle.record_work();
                was_busy = true;
            }
            if forwarder.has_timers() {
                // Reading the clock costs as much as several polls.
                iterations = iterations.wrapping_add(1);
                if iterations.is_multiple_of(ITERATIONS_PER_READING) {
                    forwarder.run_timers();
                }
            }
            let (received, may_idle) = match turns {
                Some(turns) => turns.process(forwarder),
                None => (forwarder.process_batches(), true),
            };
            if received > 0 {
                idle.record_work();
                sleeper.reset_recovery();
                was_busy = true;
                continue;
            }
            if !may_idle {
                continue;
            }
            if was_busy || forwarder.has_pending_ports() {
                forwarder.flush_and_refill();
                was_busy = false;
            }
            match idle.next_step(monotonic_ns) {
                // No pause instruction: it takes 40 to 140 cycles, which would delay a packet.
                IdleStep::Poll => forwarder.busy_poll(),
                IdleStep::Sleep => sleep(state, &mut sleeper, &self.wake),
            }
        }
    }
}

/// Sleeps until a packet or a change arrives, or a time comes.
fn sleep<P: DrivenPort>(state: &mut LoopState<P>, sleeper: &mut Sleeper, wake: &EventFd) {
    let LoopState {
        forwarder, turns, ..
    } = state;
    if let Some(turns) = turns {
        turns.set_asleep(true);
    }
    if forwarder.arm() {
        if sleeper.sleep(forwarder.has_pending_ports(), longest_sleep(forwarder)) {
            // A nonblocking read resets the eventfd. The sender sets `has_changes` before it writes
            // the eventfd, so the loop misses no change.
            let _ = wake.read();
        }
        forwarder.count(Counter::Sleeps, 1);
    }
    forwarder.disarm();
    if let Some(turns) = turns {
        turns.set_asleep(false);
    }
    if forwarder.has_timers() {
        forwarder.run_timers();
    }
}

/// Serves the times of a worker that waits for its turn: they need little time, and no turn.
fn serve_times<P: DrivenPort>(forwarder: &mut Forwarder<'_, P>) {
    if forwarder.has_shaped_packets() {
        forwarder.send_due_packets();
    }
    if forwarder.has_timers() {
        forwarder.run_timers();
    }
}

/// Returns the time of the next timer or departure, ns.
fn next_time_ns<P: DrivenPort>(forwarder: &Forwarder<'_, P>) -> Option<u64> {
    let timer_ns = forwarder.next_timer_ns().into_iter();
    timer_ns.chain(forwarder.next_departure_ns()).min()
}

/// Returns the longest sleep of the loop: until the next timer or departure, and at most the
/// port's `MAX_SLEEP`.
fn longest_sleep<P: DrivenPort>(forwarder: &Forwarder<'_, P>) -> Option<Duration> {
    let due_in = next_time_ns(forwarder)
        .map(|due_ns| Duration::from_nanos(due_ns.saturating_sub(monotonic_ns())));
    due_in.into_iter().chain(P::MAX_SLEEP).min()
}

/// The descriptors that the loop sleeps on.
#[derive(Default)]
struct Sleeper {
    /// The ports' descriptors, and the one that wakes the loop for a change.
    fds: Vec<libc::pollfd>,
    recovery_ms: u64,
}

impl Sleeper {
    /// Collects the descriptors. Call this method after each change of the ports.
    fn watch(&mut self, state: &LoopState<impl Port>, wake: &EventFd) {
        let own = state.forwarder.ports().filter_map(Port::readable_fd);
        // While this worker has the core, it sleeps for the others too.
        let foreign = state.turns.iter().flat_map(Turns::foreign_fds);
        self.fds = own
            .chain(foreign)
            .chain([wake.as_fd().as_raw_fd()])
            .map(|fd| libc::pollfd {
                fd,
                events: libc::POLLIN,
                revents: 0,
            })
            .collect();
        self.reset_recovery();
    }

    fn reset_recovery(&mut self) {
        self.recovery_ms = RECOVERY_MS.0;
    }

    /// Sleeps until a packet or a change arrives, at most for `longest`. With pending ports the
    /// sleep is at most the recovery time. Returns whether the wake descriptor is readable.
    fn sleep(&mut self, has_pending_ports: bool, longest: Option<Duration>) -> bool {
        let recovery = has_pending_ports.then(|| Duration::from_millis(self.recovery_ms));
        let timeout = recovery.into_iter().chain(longest).min();
        self.recovery_ms = (self.recovery_ms * 2).min(RECOVERY_MS.1);
        if sys::poll(&mut self.fds, timeout).is_err() {
            return false;
        }
        for watched in &mut self.fds {
            if watched.revents & (libc::POLLERR | libc::POLLNVAL | libc::POLLHUP) != 0 {
                // A descriptor with an error is always ready and would prevent every sleep.
                watched.fd = -1;
            }
        }
        // `watch` puts the wake descriptor last.
        self.fds.last().is_some_and(|wake| wake.revents != 0)
    }
}
