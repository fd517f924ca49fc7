//! The worker process: a loop that forwards, and a thread that listens to the agent.
//!
//! The control thread does whatever takes time (it compiles rule tables, maps rings, frees memory); the loop only puts a finished part in or takes
//! one out, between two batches. While there is nothing to put in it costs the loop one relaxed load a turn.
//!
//! When the agent's end of the connection closes, the worker goes on forwarding with what it has: a crashed agent does not stop traffic.
//! It ends on SIGTERM, or when the agent asks.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::exit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use myelin_functions::{FlowPage, States};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::SignalFd;
use nix::unistd::Pid;

use crate::chain::SocketId;
use crate::clock::monotonic_ns;
use crate::control::{Reply, Request, Setup, receive_request, send_reply};
use crate::flows;
use crate::forwarder::{Forwarder, MAX_DRAIN_NS};
use crate::idle::{Idle, IdleClock, Step};
use crate::named::{self, Told};
use crate::port::Port;
use crate::ring_port::RingPort;
use crate::segment::Segment;
use crate::stats::{Counter, StatsFile};
use crate::sys;
use crate::umem::{Borrower, FrameMemory, Umem};
use crate::worker_port::WorkerPort;
use crate::xdp_port::XdpPort;

/// How long a packet that passed the front door may take to appear in a ring: a receive poll under way on another core.
const STRAGGLERS: Duration = Duration::from_millis(5);
/// How often a control thread looks whether a shaper is empty.
const LOOK_EVERY: Duration = Duration::from_micros(500);
/// First and longest sleep of a worker that waits for a port to recover, ms.
const RECOVERY_MS: (u64, u64) = (1, 64);

/// Turns of a busy loop between two looks at the clock, where functions want to be called by time.
const TURNS_PER_READING: u32 = 64;

/// Runs the worker until it is told to stop. `control` is the connection to the agent
/// ([`WorkerHandle`](crate::WorkerHandle) passes it as standard input, see [`control_from_stdin`]).
///
/// Never returns: the process ends with status 0 when it was told to, and 1 with a message on standard error when the set-up fails.
pub fn worker_main(control: OwnedFd) -> ! {
    match run(control) {
        Ok(()) => exit(0),
        Err(message) => {
            eprintln!("myelin-worker: {message}");
            exit(1)
        }
    }
}

/// The agent's connection, as a worker process finds it.
pub fn control_from_stdin() -> io::Result<OwnedFd> {
    io::stdin().as_fd().try_clone_to_owned()
}

fn run(control: OwnedFd) -> Result<(), String> {
    // Cosmetic: the command line names the worker too.
    let _ = prctl::set_name(c"myelin-worker");
    let mut terminate = SigSet::empty();
    terminate.add(Signal::SIGTERM);
    // Before the control thread exists, so that it inherits the mask.
    terminate
        .thread_block()
        .map_err(|errno| format!("block SIGTERM: {errno}"))?;
    let signals = SignalFd::new(&terminate).map_err(|errno| format!("signalfd: {errno}"))?;

    let (setup, memory, stats) = set_up(&control)?;
    let memory: &'static FrameMemory = Box::leak(Box::new(memory));
    let counters = stats.worker_counters().map_err(|e| e.to_string())?;
    let (mailbox, outbox) = mailboxes().map_err(|errno| format!("eventfd: {errno}"))?;
    let control = Control {
        socket: control,
        signals,
        memory,
        stats,
        states: States::default(),
        outbox,
    };
    let control_thread = std::thread::Builder::new()
        .name("myelin-control".into())
        .stack_size(512 * 1024)
        .spawn(move || control.serve())
        .map_err(|error| format!("start the control thread: {error}"))?;
    // Only this thread: the control thread compiles rules, which must not hold packets up.
    if let Some(core) = setup.core
        && let Err(errno) = pin(core)
    {
        let problem = format!("bind to core {core}: {errno}; does it exist?");
        if !setup.restarted {
            return Err(problem);
        }
        // It was there. Whoever looks after this worker binds it when the core comes back.
        eprintln!("myelin-worker: {problem}");
    }
    // A packet that is shaped leaves when its time has come: by default the kernel may add 50 us to each sleep.
    let _ = prctl::set_timerslack(1);
    let mut forwarder = Forwarder::new(memory, setup.batch, counters, monotonic_ns);
    mailbox.forward(&mut forwarder, IdleClock::new(setup.idle));
    // It still has to answer the agent.
    let _ = control_thread.join();
    Ok(())
}

/// The first request brings what the rest of the process is built on.
fn set_up(control: &OwnedFd) -> Result<(Setup, FrameMemory, StatsFile), String> {
    let (request, mut fds) = receive_request(control.as_fd())
        .map_err(|error| format!("control connection: {error}"))?
        .ok_or("the agent closed the connection before the set-up")?;
    let Request::Setup(setup) = request.body else {
        return Err("the first request is not the set-up".into());
    };
    let (Some(stats), Some(umem)) = (fds.pop(), fds.pop()) else {
        return Err("the set-up came without its descriptors".into());
    };
    let holder = setup.holder.map(borrower).transpose()?;
    let built = Umem::open(umem, setup.frames, setup.frame_size)
        .and_then(|umem| match holder {
            Some(holder) => FrameMemory::map_as(&umem, holder),
            None => FrameMemory::map(&umem),
        })
        .and_then(|memory| Ok((memory, StatsFile::open(stats)?)))
        .map_err(|error| error.to_string());
    let reply = built.as_ref().map(drop).map_err(Clone::clone);
    send_reply(control.as_fd(), request.number, &reply)
        .map_err(|error| format!("control connection: {error}"))?;
    let (memory, stats) = built?;
    Ok((setup, memory, stats))
}

fn pin(core: u32) -> nix::Result<()> {
    let mut cores = CpuSet::new();
    cores.set(core as usize)?;
    sched_setaffinity(Pid::from_raw(0), &cores)
}

/// A function: path identifier, generation, position.
type Place = (u32, u16, u8);

/// Named counters that a chain is expected to have at most: 32 functions with 16 each.
const COUNTERS: usize = 512;

/// A change that the loop makes between two batches.
enum Change {
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
enum Outcome {
    Done,
    Refused(&'static str),
    Port(Box<WorkerPort>),
    Segments(Vec<Segment>),
    Flows(FlowPage),
    Counters(Vec<Told>),
    Waiting(u64),
}

/// The loop's end of the connection between the two threads.
struct Mailbox {
    changes: Receiver<Change>,
    outcomes: Sender<Outcome>,
    waiting: Arc<AtomicBool>,
    wake: Arc<EventFd>,
    /// An idle mode that was asked for and is not in force yet.
    idle: Cell<Option<Idle>>,
}

/// The control thread's end.
struct Outbox {
    changes: Sender<Change>,
    outcomes: Receiver<Outcome>,
    waiting: Arc<AtomicBool>,
    wake: Arc<EventFd>,
}

fn mailboxes() -> nix::Result<(Mailbox, Outbox)> {
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

/// Whether the loop goes on.
#[derive(PartialEq, Eq)]
enum Life {
    On,
    Over,
}

impl Mailbox {
    /// The loop.
    fn forward(&self, forwarder: &mut Forwarder<'static, WorkerPort>, mut idle: IdleClock) {
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

/// The thread that listens.
struct Control {
    socket: OwnedFd,
    signals: SignalFd,
    memory: &'static FrameMemory,
    stats: StatsFile,
    /// Of the functions in the loop; this thread only hands them to further functions, and frees them.
    states: States,
    outbox: Outbox,
}

impl Control {
    fn serve(mut self) {
        let mut fds = [self.socket.as_fd(), self.signals.as_fd()].map(|fd| libc::pollfd {
            fd: fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        });
        loop {
            if sys::poll(&mut fds, None).is_err() {
                return;
            }
            if fds[1].revents != 0 {
                let _ = self.outbox.change(Change::Stop);
                return;
            }
            if fds[0].revents == 0 {
                continue;
            }
            match receive_request(self.socket.as_fd()) {
                Ok(Some((request, fds))) => {
                    let stop = request.body == Request::Shutdown;
                    let reply = self.obey(request.body, fds);
                    // When the agent is gone the next receive tells.
                    let _ = send_reply(self.socket.as_fd(), request.number, &reply);
                    if stop {
                        return;
                    }
                }
                // Without an agent only the signal is left.
                Ok(None) | Err(_) => fds[0].fd = -1,
            }
        }
    }

    fn obey(&mut self, request: Request, mut fds: Vec<OwnedFd>) -> Reply {
        match request {
            Request::Setup(_) => Err("the worker is set up already".into()),
            Request::AddSocket { id, info, succeeds } => {
                let fd = fds.pop().ok_or("no descriptor came with the socket")?;
                let borrower = borrower(id)?;
                if succeeds {
                    self.memory.take_back_all_but(borrower, std::iter::empty());
                }
                let port = XdpPort::new(fd, &info, borrower, self.memory)
                    .map_err(|error| error.to_string())?;
                let port = Box::new(WorkerPort::Xdp(port));
                self.outbox.change(Change::AddPort(id, port))
            }
            Request::AddRing { id, side } => {
                let (Some(bell), Some(ring)) = (fds.pop(), fds.pop()) else {
                    return Err("the ring came without its descriptors".into());
                };
                let port = RingPort::new(ring, bell, side, borrower(id)?, self.memory)
                    .map_err(|error| error.to_string())?;
                let port = Box::new(WorkerPort::Ring(port));
                self.outbox.change(Change::AddPort(id, port))
            }
            Request::TakeFrames { id } => self.outbox.change(Change::TakeFramesOf(borrower(id)?)),
            Request::Grant { id, frames } => {
                let change = Change::Grant(borrower(id)?, frames as usize);
                self.outbox.change(change)
            }
            Request::RemoveSocket { id } => {
                let borrower = borrower(id)?;
                // Closes the socket; only then are the frames in it nobody's.
                self.outbox.change(Change::RemovePort(id))?;
                self.outbox.change(Change::TakeFramesOf(borrower))
            }
            Request::AddChain { chain, block } => {
                let counters = self
                    .stats
                    .chain_counters(block)
                    .map_err(|e| e.to_string())?;
                counters.succeed();
                let segments = Segment::build(&chain, &Arc::new(counters), &mut self.states)?;
                self.outbox.change(Change::AddSegments(segments))
            }
            Request::RemoveChain { spi, generation } => {
                std::thread::sleep(STRAGGLERS);
                self.outbox.outlast_shaper(spi, generation)?;
                let removed = self.outbox.change(Change::RemoveSegments(spi, generation));
                self.states.prune();
                removed
            }
            Request::ReadFlows {
                spi,
                generation,
                position,
            } => {
                let fd = fds.pop().ok_or("no file came for the flows")?;
                let place = (spi, generation, position);
                flows::write(&mut File::from(fd), |page| {
                    self.outbox.read_flows(place, page)
                })
            }
            Request::ReadCounters { spi, generation } => {
                let fd = fds.pop().ok_or("no file came for the counters")?;
                let told = self.outbox.read_counters(spi, generation)?;
                named::write(&mut File::from(fd), &told)
            }
            Request::SetIdle(idle) => self.outbox.change(Change::SetIdle(idle)),
            Request::Start => self.outbox.change(Change::Start),
            Request::Shutdown => self.outbox.change(Change::Stop),
        }
    }
}

fn borrower(id: SocketId) -> Result<Borrower, String> {
    Borrower::new(id.0.into()).ok_or_else(|| format!("socket number {} is too large", id.0))
}

impl Outbox {
    /// Has the loop make a change, and frees what it took out.
    fn change(&self, change: Change) -> Reply {
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
    fn read_flows(&self, place: Place, page: FlowPage) -> Result<FlowPage, String> {
        match self.ask(Change::ReadFlows(place, page))? {
            Outcome::Flows(page) => Ok(page),
            _ => Err("the loop answered another question".into()),
        }
    }

    /// Has the loop tell what the functions of a chain count.
    fn read_counters(&self, spi: u32, generation: u16) -> Result<Vec<Told>, String> {
        // Room for all, so that the loop does not look for memory.
        let room = Vec::with_capacity(COUNTERS);
        match self.ask(Change::ReadCounters(spi, generation, room))? {
            Outcome::Counters(told) => Ok(told),
            _ => Err("the loop answered another question".into()),
        }
    }

    /// Waits until what waits in the shaper of a generation has left, while the loop goes on.
    fn outlast_shaper(&self, spi: u32, generation: u16) -> Reply {
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
