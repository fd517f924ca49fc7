//! The worker process: a loop that forwards, and a thread that serves the agent's requests.
//!
//! The control thread does all slow work: it compiles rule tables, maps rings and frees memory.
//! Between two batches, the loop only adds a finished port or segment, or removes one. The check
//! for a change costs the loop one relaxed load per iteration.
//!
//! When the agent closes its connection, the worker keeps forwarding: a crash of the agent does not
//! stop traffic. The worker ends on SIGTERM or on request.

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

use self::changes::{LoopState, Phase, change_channel};
use self::listening::ControlThread;
use crate::clock::monotonic_ns;
use crate::driver::Driver;
use crate::forwarder::Forwarder;
use crate::idle::IdlePolicy;
use crate::protocol::{Request, Setup, receive_request, send_reply};
use crate::stats::StatsFile;

/// The scheduler's identifier for the calling thread.
const THIS_THREAD: Pid = Pid::from_raw(0);

/// Runs the worker over the ports of `D` until the agent or a signal stops it. `control` is the
/// connection to the agent ([`WorkerHandle`](crate::WorkerHandle) passes it as standard input, see
/// [`control_from_stdin`]).
///
/// Never returns. The process ends with status 0 on request, or with status 1 and a message on
/// standard error if the set-up fails.
pub fn worker_main<D: Driver>(control: OwnedFd) -> ! {
    match run::<D>(control) {
        Ok(()) => exit(0),
        Err(message) => {
            eprintln!("myelin-worker: {message}");
            exit(1)
        }
    }
}

/// Returns the agent's connection from standard input.
pub fn control_from_stdin() -> io::Result<OwnedFd> {
    io::stdin().as_fd().try_clone_to_owned()
}

fn run<D: Driver>(control: OwnedFd) -> Result<(), String> {
    // Ignore a failure: the command line names the worker too.
    let _ = prctl::set_name(c"myelin-worker");
    // Before any thread exists, also of a driver, so that all inherit the mask.
    let signals = block_termination()?;
    let cores = sched_getaffinity(THIS_THREAD)
        .map_err(|errno| format!("cannot read the allowed cores: {errno}"))?;

    let (setup, mut driver, stats) = set_up::<D>(&control, &cores)?;
    let counters = stats.worker_counters().map_err(|e| e.to_string())?;
    let (receiver, sender) =
        change_channel().map_err(|errno| format!("cannot create an eventfd: {errno}"))?;
    let memory = driver.memory();
    let control = ControlThread::<D> {
        socket: control,
        signals,
        memory,
        stats,
        states: States::default(),
        sender,
        driver: PhantomData,
    };
    let control_thread = std::thread::Builder::new()
        .name("myelin-control".into())
        .stack_size(512 * 1024)
        .spawn(move || {
            // Only the loop is pinned. This thread compiles rules, which must not delay packets.
            // If the process may no longer use these cores, the call fails. The thread then uses
            // the remaining cores.
            let _ = sched_setaffinity(THIS_THREAD, &cores);
            control.serve();
        })
        .map_err(|error| format!("cannot start the control thread: {error}"))?;
    // By default the kernel may add 50 us to each sleep, so shaped packets would leave late.
    let _ = prctl::set_timerslack(1);
    let mut state = LoopState {
        forwarder: Forwarder::new(memory, setup.batch, counters, monotonic_ns),
        phase: Phase::CollectingPorts,
        idle: None,
        turns: None,
    };
    for (index, port) in driver.first_ports().into_iter().enumerate() {
        state.forwarder.add_port(index, port);
    }
    receiver.run_loop(&mut state, IdlePolicy::new(setup.idle));
    // The control thread may still answer the agent.
    let _ = control_thread.join();
    // Close the ports.
    drop(state);
    driver.stop();
    Ok(())
}

/// Blocks SIGTERM in this thread. Returns the descriptor that becomes readable with the signal.
pub(crate) fn block_termination() -> Result<SignalFd, String> {
    let mut terminate = SigSet::empty();
    terminate.add(Signal::SIGTERM);
    terminate
        .thread_block()
        .map_err(|errno| format!("cannot block SIGTERM: {errno}"))?;
    SignalFd::new(&terminate).map_err(|errno| format!("cannot create a signalfd: {errno}"))
}

/// Serves the first request, which contains the settings of the worker.
fn set_up<D: Driver>(control: &OwnedFd, cores: &CpuSet) -> Result<(Setup, D, StatsFile), String> {
    let (request, fds) = receive_request(control.as_fd())
        .map_err(|error| format!("cannot receive the set-up from the agent: {error}"))?
        .ok_or("the agent closed the connection before the set-up")?;
    let Request::Setup(setup) = request.body else {
        return Err("the first request is not the set-up".into());
    };
    let started = start_driver::<D>(&setup, fds, cores);
    let reply = started.as_ref().map(drop).map_err(Clone::clone);
    send_reply(control.as_fd(), request.number, &reply)
        .map_err(|error| format!("cannot answer the agent: {error}"))?;
    let (driver, stats) = started?;
    Ok((setup, driver, stats))
}

fn start_driver<D: Driver>(
    setup: &Setup,
    mut fds: Vec<OwnedFd>,
    cores: &CpuSet,
) -> Result<(D, StatsFile), String> {
    if fds.is_empty() {
        return Err("the set-up request has no statistics file".into());
    }
    let stats = StatsFile::open(fds.remove(0)).map_err(|error| error.to_string())?;
    let core = pin_to_core(setup)?;
    let driver = D::start(&setup.ports, core, fds)?;
    if core.is_none() {
        // A driver may have pinned the thread to a core of its choice.
        let _ = sched_setaffinity(THIS_THREAD, cores);
    }
    Ok((driver, stats))
}

/// Pins the thread of the loop to its core, if one is set.
pub(crate) fn pin_to_core(setup: &Setup) -> Result<Option<u32>, String> {
    let Some(core) = setup.core else {
        return Ok(None);
    };
    let mut only_core = CpuSet::new();
    let result = only_core
        .set(core as usize)
        .and_then(|()| sched_setaffinity(THIS_THREAD, &only_core));
    let Err(errno) = result else {
        return Ok(Some(core));
    };
    let problem =
        format!("cannot pin the worker to core {core}: {errno}; check that the core exists");
    if !setup.restarted {
        return Err(problem);
    }
    // The core existed before. The supervisor pins the worker when the core returns.
    eprintln!("myelin-worker: {problem}");
    Ok(None)
}
