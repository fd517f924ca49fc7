//! What the two threads of a worker say to each other: the control thread asks for changes, the loop makes them and tells what came of them.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use myelin_functions::FlowPage;
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::chain::SocketId;
use crate::clock::monotonic_ns;
use crate::control::Reply;
use crate::forwarder::MAX_DRAIN_NS;
use crate::idle::Idle;
use crate::named::Told;
use crate::segment::Segment;
use crate::umem::Borrower;
use crate::worker_port::WorkerPort;

/// How often a control thread looks whether a shaper is empty.
const LOOK_EVERY: Duration = Duration::from_micros(500);

/// A function: path identifier, generation, position.
pub(super) type Place = (u32, u16, u8);

/// Named counters that a chain is expected to have at most: 32 functions with 16 each.
const COUNTERS: usize = 512;

/// A change that the loop makes between two batches.
pub(super) enum Change {
    AddPort(SocketId, Box<WorkerPort>),
    RemovePort(SocketId),
    TakeFramesOf(Borrower),
    Grant(Borrower, usize),
    SetIdle(Idle),
    AddSegments(Vec<Segment>),
    RemoveSegments(u32, u16),
    ReadFlows(Place, FlowPage),
    ReadCounters(u32, u16, Vec<Told>),
    CountWaiting(u32, u16),
    Start,
    Stop,
}

/// What came of a change; parts that were taken out go back to the control thread to be freed.
pub(super) enum Outcome {
    Done,
    Refused(&'static str),
    Port(Box<WorkerPort>),
    Segments(Vec<Segment>),
    Flows(FlowPage),
    Counters(Vec<Told>),
    Waiting(u64),
}

/// The loop's end of the connection between the two threads.
pub(super) struct Mailbox {
    pub(super) changes: Receiver<Change>,
    pub(super) outcomes: Sender<Outcome>,
    pub(super) waiting: Arc<AtomicBool>,
    pub(super) wake: Arc<EventFd>,
    /// An idle mode that was asked for and is not in force yet.
    pub(super) idle: Cell<Option<Idle>>,
}

/// The control thread's end.
pub(super) struct Outbox {
    changes: Sender<Change>,
    outcomes: Receiver<Outcome>,
    waiting: Arc<AtomicBool>,
    wake: Arc<EventFd>,
}

/// Both ends of a connection.
pub(super) fn mailboxes() -> nix::Result<(Mailbox, Outbox)> {
    let (to_loop, changes) = channel();
    let (outcomes, from_loop) = channel();
    let waiting = Arc::new(AtomicBool::new(false));
    let wake = Arc::new(EventFd::from_flags(
        EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK,
    )?);
    let mailbox = Mailbox {
        changes,
        outcomes,
        waiting: Arc::clone(&waiting),
        wake: Arc::clone(&wake),
        idle: Cell::new(None),
    };
    let outbox = Outbox {
        changes: to_loop,
        outcomes: from_loop,
        waiting,
        wake,
    };
    Ok((mailbox, outbox))
}

impl Outbox {
    /// Has the loop make a change, and frees what it took out.
    pub(super) fn change(&self, change: Change) -> Reply {
        match self.ask(change)? {
            Outcome::Done | Outcome::Waiting(_) => Ok(()),
            Outcome::Refused(reason) => Err(reason.into()),
            Outcome::Port(port) => {
                port.close();
                Ok(())
            }
            Outcome::Segments(segments) => {
                drop(segments);
                Ok(())
            }
            Outcome::Flows(page) => {
                drop(page);
                Ok(())
            }
            Outcome::Counters(told) => {
                drop(told);
                Ok(())
            }
        }
    }

    /// Has the loop copy a page of the flows that a function knows.
    pub(super) fn read_flows(&self, place: Place, page: FlowPage) -> Result<FlowPage, String> {
        match self.ask(Change::ReadFlows(place, page))? {
            Outcome::Flows(page) => Ok(page),
            _ => Err("the loop answered another question".into()),
        }
    }

    /// Has the loop tell what the functions of a chain count.
    pub(super) fn read_counters(&self, spi: u32, generation: u16) -> Result<Vec<Told>, String> {
        // Room for all, so that the loop does not look for memory.
        let room = Vec::with_capacity(COUNTERS);
        match self.ask(Change::ReadCounters(spi, generation, room))? {
            Outcome::Counters(told) => Ok(told),
            _ => Err("the loop answered another question".into()),
        }
    }

    /// Waits until what waits in the shaper of a generation has left, while the loop goes on.
    pub(super) fn outlast_shaper(&self, spi: u32, generation: u16) -> Reply {
        let until_ns = monotonic_ns().saturating_add(MAX_DRAIN_NS);
        while let Outcome::Waiting(1..) = self.ask(Change::CountWaiting(spi, generation))? {
            if monotonic_ns() >= until_ns {
                break;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    fn ask(&self, change: Change) -> Result<Outcome, String> {
        let gone = "the forwarding loop has ended";
        self.changes.send(change).map_err(|_| gone)?;
        self.waiting.store(true, Ordering::Release);
        self.wake
            .write(1)
            .map_err(|errno| format!("wake the loop: {errno}"))?;
        Ok(self.outcomes.recv().map_err(|_| gone)?)
    }
}
