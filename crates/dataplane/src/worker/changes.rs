//! The messages between the two threads of a worker: the control thread sends a change, and the
//! loop applies it between two batches.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::forwarder::Forwarder;
use crate::idle::Idle;
use crate::turns::{Turns, Waker};

/// The state that a change may modify.
pub(super) struct LoopState<P> {
    pub(super) forwarder: Forwarder<'static, P>,
    pub(super) phase: Phase,
    /// A requested idle mode that the loop has not applied yet.
    pub(super) idle: Option<Idle>,
    /// The worker's share of its core, if it takes turns.
    pub(super) turns: Option<Turns>,
}

/// The phase of the loop.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The loop collects the ports of a predecessor. It takes no frame before it has all ports.
    CollectingPorts,
    Forwarding,
    Ended,
}

type Change<P> = Box<dyn FnOnce(&mut LoopState<P>) + Send>;

/// The loop's end of the connection between the two threads.
pub(super) struct ChangeReceiver<P> {
    pub(super) changes: Receiver<Change<P>>,
    pub(super) has_changes: Arc<AtomicBool>,
    pub(super) wake: Arc<EventFd>,
}

/// The control thread's end.
pub(super) struct ChangeSender<P> {
    changes: Sender<Change<P>>,
    has_changes: Arc<AtomicBool>,
    wake: Arc<EventFd>,
    /// Wakes a loop that waits for its turn.
    turn_waker: RefCell<Option<Waker>>,
}

/// Makes both ends of a connection.
pub(super) fn change_channel<P>() -> nix::Result<(ChangeReceiver<P>, ChangeSender<P>)> {
    let (to_loop, changes) = channel();
    let has_changes = Arc::new(AtomicBool::new(false));
    let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
    let wake = Arc::new(EventFd::from_flags(flags)?);
    let receiver = ChangeReceiver {
        changes,
        has_changes: Arc::clone(&has_changes),
        wake: Arc::clone(&wake),
    };
    let sender = ChangeSender {
        changes: to_loop,
        has_changes,
        wake,
        turn_waker: RefCell::default(),
    };
    Ok((receiver, sender))
}

impl<P> ChangeSender<P> {
    /// Sends the loop a change to apply between two batches, and waits for its result. Do slow work
    /// before or after the change. The calling thread frees the result.
    pub(super) fn apply<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut LoopState<P>) -> T + Send + 'static,
    ) -> Result<T, String> {
        let ended = "the forwarding loop has ended";
        let (result_sender, result) = sync_channel(1);
        let change: Change<P> = Box::new(move |state| {
            // This fails if the control thread has panicked. The loop then continues as without an
            // agent.
            let _ = result_sender.send(change(state));
        });
        self.changes.send(change).map_err(|_| ended)?;
        self.has_changes.store(true, Ordering::Release);
        self.wake
            .write(1)
            .map_err(|errno| format!("cannot wake the loop: {errno}"))?;
        if let Some(waker) = &*self.turn_waker.borrow() {
            waker.wake();
        }
        Ok(result.recv().map_err(|_| ended)?)
    }

    /// Lets the loop take turns, or no longer.
    pub(super) fn set_turns(&self, turns: Option<Turns>) -> Result<(), String> {
        let waker = turns.as_ref().map(Turns::waker);
        // The former share is dropped in the loop, where it gives the core away.
        self.apply(move |state| state.turns = turns)?;
        *self.turn_waker.borrow_mut() = waker;
        Ok(())
    }
}
