//! The process of a delay line. One thread serves the agent's requests and moves packets.
//!
//! Until a packet is due soon, the thread sleeps. It wakes up [`LEAD_NS`] before the departure and
//! then polls, because a wake-up may be late by that much.
//!
//! When the agent closes its connection, the worker keeps delaying packets. It ends on SIGTERM or
//! on request.

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::process::exit;
use std::time::Duration;

use nix::sched::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use nix::sys::prctl;
use nix::sys::signalfd::SignalFd;
use nix::unistd::Pid;

use super::line::Line;
use super::placement::Placement;
use super::table::{Counter, LineTable};
use crate::clock::monotonic_ns;
use crate::idle::{IdlePolicy, IdleStep};
use crate::port::Port;
use crate::protocol::{PortSetup, Reply, Request, Setup, receive_request, send_reply};
use crate::sys;
use crate::umem::{Borrower, FrameMemory, Umem};
use crate::worker::{block_termination, pin_to_core};
use crate::xdp_port::XdpPort;

/// Time between the end of a sleep and the departure, ns. On a virtual machine 99 % of the wake-ups
/// are less than 100 us late.
const LEAD_NS: u64 = 150_000;
/// Longest time without a sleep, ns, and the sleep after it. The agent gives the worker a real-time
/// priority, so a busy worker leaves this share of its core to all others. The share is above that
/// which the kernel takes from real-time threads, in one piece of 50 ms
/// (`/proc/sys/kernel/sched_rt_runtime_us`).
const LONGEST_TURN_NS: u64 = 1_500_000;
const REST: Duration = Duration::from_micros(100);
/// Longest sleep while the port lacks frames or has unsent packets.
const RECOVERY: Duration = Duration::from_millis(4);

/// Runs the worker of a delay line until the agent or a signal stops it. `control` is the
/// connection to the agent ([`DelayLine`](crate::DelayLine) passes it as standard input, see
/// [`control_from_stdin`](crate::control_from_stdin)).
///
/// Never returns. The process ends with status 0 on request, or with status 1 and a message on
/// standard error if the set-up fails.
pub fn delay_line_main(control: OwnedFd) -> ! {
    match run(control) {
        Ok(()) => exit(0),
        Err(message) => {
            eprintln!("myelin-worker: {message}");
            exit(1)
        }
    }
}

fn run(control: OwnedFd) -> Result<(), String> {
    // Ignore a failure: the command line names the worker too.
    let _ = prctl::set_name(c"myelin-worker");
    let mut requests = Requests {
        signals: block_termination()?,
        is_open: true,
        control,
    };
    let (setup, memory, table) = set_up(&requests)?;
    let Some((port, ring_size)) = requests.serve_until_start(&memory)? else {
        return Ok(());
    };
    // By default the kernel may add 50 us to each sleep.
    let _ = prctl::set_timerslack(1);
    let line = Line::new(&memory, port, table, ring_size);
    run_loop(line, IdlePolicy::new(setup.idle), &mut requests);
    Ok(())
}

/// Serves the first request, which contains the settings of the worker.
fn set_up(requests: &Requests) -> Result<(Setup, FrameMemory, LineTable), String> {
    let control = requests.control.as_fd();
    let (request, fds) = receive_request(control)
        .map_err(|error| format!("cannot receive the set-up from the agent: {error}"))?
        .ok_or("the agent closed the connection before the set-up")?;
    let Request::Setup(setup) = request.body else {
        return Err("the first request is not the set-up".into());
    };
    let opened = open_memory(&setup, fds);
    let reply = opened.as_ref().map(drop).map_err(Clone::clone);
    send_reply(control, request.number, &reply)
        .map_err(|error| format!("cannot answer the agent: {error}"))?;
    let (memory, table) = opened?;
    Ok((setup, memory, table))
}

fn open_memory(setup: &Setup, fds: Vec<OwnedFd>) -> Result<(FrameMemory, LineTable), String> {
    let PortSetup::DelayLine { frames, frame_size } = setup.ports else {
        return Err("this program is a delay line".into());
    };
    let mut fds = fds.into_iter();
    let (Some(table), Some(umem)) = (fds.next(), fds.next()) else {
        return Err("the set-up request has no table or no UMEM".into());
    };
    pin_to_core(setup)?;
    let memory = Umem::open(umem, frames, frame_size).and_then(|umem| FrameMemory::map(&umem));
    let memory = memory.map_err(|error| error.to_string())?;
    let table = LineTable::open(table).map_err(|error| error.to_string())?;
    Ok((memory, table))
}

/// The agent's connection and the signals that end the worker.
struct Requests {
    control: OwnedFd,
    signals: SignalFd,
    /// Whether the agent has not closed the connection.
    is_open: bool,
}

/// The request that ends a phase of the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Start,
    Stop,
}

impl Requests {
    /// Returns the descriptors to wait for; -1 for none.
    fn fds(&self) -> [RawFd; 2] {
        let control = if self.is_open {
            self.control.as_raw_fd()
        } else {
            -1
        };
        [control, self.signals.as_fd().as_raw_fd()]
    }

    /// Waits for a request or a signal, at most for `timeout`.
    fn wait(
        &mut self,
        timeout: Option<Duration>,
        handle: impl FnOnce(Request, Vec<OwnedFd>) -> Reply,
    ) -> Option<End> {
        let mut fds = self.fds().map(watch);
        // After an error no descriptor is ready, so the caller tries again.
        sys::poll(&mut fds, timeout).ok()?;
        self.serve(fds.map(|fd| fd.revents != 0), handle)
    }

    /// Serves a request if the connection is ready. Returns the end of the phase.
    fn serve(
        &mut self,
        [request, signal]: [bool; 2],
        handle: impl FnOnce(Request, Vec<OwnedFd>) -> Reply,
    ) -> Option<End> {
        if signal {
            return Some(End::Stop);
        }
        if !request {
            return None;
        }
        let Ok(Some((request, fds))) = receive_request(self.control.as_fd()) else {
            self.is_open = false;
            return None;
        };
        let end = match request.body {
            Request::Start => Some(End::Start),
            Request::Shutdown => Some(End::Stop),
            _ => None,
        };
        let reply = if end.is_some() {
            Ok(())
        } else {
            handle(request.body, fds)
        };
        // If the agent closed the connection, the next receive reports it.
        let _ = send_reply(self.control.as_fd(), request.number, &reply);
        end
    }

    /// Serves requests until the loop may start. Returns the port and the size of its rings; `None`
    /// if the worker shall end.
    fn serve_until_start(
        &mut self,
        memory: &FrameMemory,
    ) -> Result<Option<(XdpPort, u32)>, String> {
        let mut socket = None;
        while self.is_open {
            let handle = |request, fds| {
                socket = Some(open_socket(request, fds, memory)?);
                Ok(())
            };
            match self.wait(None, handle) {
                Some(End::Start) => {
                    return socket
                        .map(Some)
                        .ok_or_else(|| "the agent sent no socket".into());
                }
                Some(End::Stop) => return Ok(None),
                None => {}
            }
        }
        Err("the agent closed the connection before the start".into())
    }
}

/// Opens the socket of an `AddSocket` request.
fn open_socket(
    request: Request,
    mut fds: Vec<OwnedFd>,
    memory: &FrameMemory,
) -> Result<(XdpPort, u32), String> {
    let Request::AddSocket {
        id,
        info,
        replaces_closed_socket,
    } = request
    else {
        return refuse();
    };
    let fd = fds.pop().ok_or("the request has no socket descriptor")?;
    let borrower = Borrower::of(id)?;
    if replaces_closed_socket {
        memory.take_back_all_but(borrower, std::iter::empty());
    }
    let port = XdpPort::new(fd, &info, borrower, memory).map_err(|error| error.to_string())?;
    let ring_size = info.config.ring_size;
    Ok((port.keep_full(ring_size), ring_size))
}

fn refuse<T>() -> Result<T, String> {
    Err("a delay line does not serve this request".into())
}

fn watch(fd: RawFd) -> libc::pollfd {
    libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    }
}

/// Moves packets until a request or a signal ends the worker.
fn run_loop(mut line: Line<'_, XdpPort>, mut idle: IdlePolicy, requests: &mut Requests) {
    let mut socket = line.port().readable_fd().unwrap_or(-1);
    let mut slept_ns = monotonic_ns();
    let mut placement = Placement::new(slept_ns);
    line.flush_and_refill();
    loop {
        let now_ns = monotonic_ns();
        if line.step(now_ns) > 0 {
            idle.record_work();
            if now_ns - slept_ns > LONGEST_TURN_NS {
                if requests.wait(Some(REST), |_, _| refuse()) == Some(End::Stop) {
                    return;
                }
                slept_ns = end_sleep(&mut line, &mut placement, now_ns);
            }
            continue;
        }
        let next_ns = line.next_departure_ns();
        if next_ns.is_some_and(|next_ns| next_ns <= now_ns + LEAD_NS)
            || idle.next_step(|| now_ns) == IdleStep::Poll
        {
            continue;
        }
        let recovery = line.flush_and_refill().then_some(RECOVERY);
        let due = next_ns.map(|at_ns| Duration::from_nanos(at_ns - LEAD_NS - now_ns));
        let timeout = due.into_iter().chain(recovery).min();
        line.table().add(Counter::Sleeps, 1);
        let [control, signals] = requests.fds();
        let mut fds = [socket, control, signals].map(watch);
        let polled = sys::poll(&mut fds, timeout);
        slept_ns = end_sleep(&mut line, &mut placement, now_ns);
        if polled.is_err() {
            continue;
        }
        let [arrival, ready @ ..] = fds.map(|fd| fd.revents);
        if arrival & (libc::POLLERR | libc::POLLNVAL | libc::POLLHUP) != 0 {
            // A descriptor with an error is always ready and would prevent every sleep.
            socket = -1;
        }
        if requests.serve(ready.map(|events| events != 0), |_, _| refuse()) == Some(End::Stop) {
            return;
        }
    }
}

/// Records a sleep since `from_ns`, and leaves the CPU if senders wait for it. Returns the time of
/// the end.
fn end_sleep(line: &mut Line<'_, XdpPort>, placement: &mut Placement, from_ns: u64) -> u64 {
    let to_ns = monotonic_ns();
    let sleep = [from_ns, to_ns];
    let arrivals = line.record_sleep(sleep);
    if placement.record_sleep(sleep, arrivals) {
        placement.record_move(to_ns, move_to_next_cpu().unwrap_or(1));
    }
    to_ns
}

/// Moves this thread to the next CPU on which it may run, and keeps the set of these. Returns their
/// number.
fn move_to_next_cpu() -> nix::Result<usize> {
    let this_thread = Pid::from_raw(0);
    let allowed = sched_getaffinity(this_thread)?;
    let present = sched_getcpu()?;
    let cpus = 0..CpuSet::count();
    let cpus: Vec<usize> = cpus
        .filter(|cpu| allowed.is_set(*cpu) == Ok(true))
        .collect();
    let next = cpus.iter().find(|cpu| **cpu > present).or(cpus.first());
    if let Some(next) = next {
        let mut only = CpuSet::new();
        only.set(*next)?;
        sched_setaffinity(this_thread, &only)?;
        sched_setaffinity(this_thread, &allowed)?;
    }
    Ok(cpus.len())
}
