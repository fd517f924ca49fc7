//! The worker process: a loop that forwards, and a thread that listens to the agent.
//!
//! The control thread does whatever takes time (it compiles rule tables, maps rings, frees memory); the loop only puts a finished part in or takes
//! one out, between two batches. While there is nothing to put in it costs the loop one relaxed load a turn.
//!
//! When the agent's end of the connection closes, the worker goes on forwarding with what it has: a crashed agent does not stop traffic.
//! It ends on SIGTERM, or when the agent asks.

mod changes;
mod forwarding;
mod listening;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::exit;

use myelin_functions::States;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::SignalFd;
use nix::unistd::Pid;

use self::changes::mailboxes;
use self::listening::Control;
use crate::chain::SocketId;
use crate::clock::monotonic_ns;
use crate::control::{Request, Setup, receive_request, send_reply};
use crate::forwarder::Forwarder;
use crate::idle::IdleClock;
use crate::stats::StatsFile;
use crate::umem::{Borrower, FrameMemory, Umem};

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

fn borrower(id: SocketId) -> Result<Borrower, String> {
    Borrower::new(id.0.into()).ok_or_else(|| format!("socket number {} is too large", id.0))
}
