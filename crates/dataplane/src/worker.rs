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
use std::marker::PhantomData;
use std::os::fd::{AsFd, OwnedFd};
use std::process::exit;

use myelin_functions::States;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::SignalFd;
use nix::unistd::Pid;

use self::changes::{Loop, Phase, mailboxes};
use self::listening::Control;
use crate::clock::monotonic_ns;
use crate::driver::Driver;
use crate::forwarder::Forwarder;
use crate::idle::IdleClock;
use crate::protocol::{Request, Setup, receive_request, send_reply};
use crate::stats::StatsFile;

/// What the scheduler calls the thread that asks.
const THIS_THREAD: Pid = Pid::from_raw(0);

/// Runs the worker, over the ports that `D` drives, until it is told to stop. `control` is the connection to the agent
/// ([`WorkerHandle`](crate::WorkerHandle) passes it as standard input, see [`control_from_stdin`]).
///
/// Never returns: the process ends with status 0 when it was told to, and 1 with a message on standard error when the set-up fails.
pub fn worker_main<D: Driver>(control: OwnedFd) -> ! {
    match run::<D>(control) {
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

fn run<D: Driver>(control: OwnedFd) -> Result<(), String> {
    // Cosmetic: the command line names the worker too.
    let _ = prctl::set_name(c"myelin-worker");
    let mut terminate = SigSet::empty();
    terminate.add(Signal::SIGTERM);
    // Before any thread exists, a driver's included, so that all inherit the mask.
    terminate
        .thread_block()
        .map_err(|errno| format!("block SIGTERM: {errno}"))?;
    let signals = SignalFd::new(&terminate).map_err(|errno| format!("signalfd: {errno}"))?;
    let cores =
        sched_getaffinity(THIS_THREAD).map_err(|errno| format!("allowed cores: {errno}"))?;

    let (setup, mut driver, stats) = set_up::<D>(&control, &cores)?;
    let counters = stats.worker_counters().map_err(|e| e.to_string())?;
    let (mailbox, outbox) = mailboxes().map_err(|errno| format!("eventfd: {errno}"))?;
    let memory = driver.memory();
    let control = Control::<D> {
        socket: control,
        signals,
        memory,
        stats,
        states: States::default(),
        outbox,
        driver: PhantomData,
    };
    let control_thread = std::thread::Builder::new()
        .name("myelin-control".into())
        .stack_size(512 * 1024)
        .spawn(move || {
            // Only the loop is bound: this thread compiles rules, which must not hold packets up. It fails when these cores were taken from the process
            // meanwhile, and then it has others.
            let _ = sched_setaffinity(THIS_THREAD, &cores);
            control.serve();
        })
        .map_err(|error| format!("start the control thread: {error}"))?;
    // A packet that is shaped leaves when its time has come: by default the kernel may add 50 us to each sleep.
    let _ = prctl::set_timerslack(1);
    let mut state = Loop {
        forwarder: Forwarder::new(memory, setup.batch, counters, monotonic_ns),
        phase: Phase::Gathering,
        idle: None,
    };
    for (index, port) in driver.first_ports().into_iter().enumerate() {
        state.forwarder.add_port(index, port);
    }
    mailbox.forward(&mut state, IdleClock::new(setup.idle));
    // It still has to answer the agent.
    let _ = control_thread.join();
    // Closes the ports.
    drop(state);
    driver.stop();
    Ok(())
}

/// The first request brings what the rest of the process is built on.
fn set_up<D: Driver>(control: &OwnedFd, cores: &CpuSet) -> Result<(Setup, D, StatsFile), String> {
    let (request, fds) = receive_request(control.as_fd())
        .map_err(|error| format!("control connection: {error}"))?
        .ok_or("the agent closed the connection before the set-up")?;
    let Request::Setup(setup) = request.body else {
        return Err("the first request is not the set-up".into());
    };
    let built = build::<D>(&setup, fds, cores);
    let reply = built.as_ref().map(drop).map_err(Clone::clone);
    send_reply(control.as_fd(), request.number, &reply)
        .map_err(|error| format!("control connection: {error}"))?;
    let (driver, stats) = built?;
    Ok((setup, driver, stats))
}

fn build<D: Driver>(
    setup: &Setup,
    mut fds: Vec<OwnedFd>,
    cores: &CpuSet,
) -> Result<(D, StatsFile), String> {
    if fds.is_empty() {
        return Err("the set-up came without its statistics".into());
    }
    let stats = StatsFile::open(fds.remove(0)).map_err(|error| error.to_string())?;
    let core = bind(setup)?;
    let driver = D::start(&setup.ports, core, fds)?;
    if core.is_none() {
        // Anywhere, not on the core that a driver may have chosen.
        let _ = sched_setaffinity(THIS_THREAD, cores);
    }
    Ok((driver, stats))
}

/// Binds the thread of the loop to its core, as far as there is one.
fn bind(setup: &Setup) -> Result<Option<u32>, String> {
    let Some(core) = setup.core else {
        return Ok(None);
    };
    let mut one = CpuSet::new();
    let bound = one
        .set(core as usize)
        .and_then(|()| sched_setaffinity(THIS_THREAD, &one));
    let Err(errno) = bound else {
        return Ok(Some(core));
    };
    let problem = format!("bind to core {core}: {errno}; does it exist?");
    if !setup.restarted {
        return Err(problem);
    }
    // It was there. Whoever looks after this worker binds it when the core comes back.
    eprintln!("myelin-worker: {problem}");
    Ok(None)
}
