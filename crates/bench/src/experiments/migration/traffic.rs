//! The client's datagrams: one every few milliseconds, each with its number. Notes the answers.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use myelin_linux::sched::{self, Policy};
use myelin_measure::clock::now_ns;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

use crate::Error;

/// Time between two datagrams, ns.
pub(super) const INTERVAL_NS: u64 = 5_000_000;
/// Longest wait for the last answers, ns.
const PATIENCE_NS: u64 = 2_000_000_000;
/// Priority of the thread, so that other programs do not delay the client.
const PRIORITY: u8 = 50;

/// What a client sent and received.
#[derive(Debug, Clone, Default)]
pub(super) struct Trace {
    /// When each datagram was sent, ns.
    pub(super) sent_ns: Vec<u64>,
    /// When its answer arrived; `None`: no answer.
    pub(super) answered_ns: Vec<Option<u64>>,
    /// The largest number of datagrams that the service counted.
    pub(super) counted: u64,
}

impl Trace {
    /// Datagrams sent between two times that have no answer.
    pub(super) fn unanswered(&self, (from_ns, to_ns): (u64, u64)) -> usize {
        let both = self.sent_ns.iter().zip(&self.answered_ns);
        let lost =
            both.filter(|(sent, answered)| (from_ns..to_ns).contains(*sent) && answered.is_none());
        lost.count()
    }

    /// The longest time between two answers in a row, of which the second came between two times.
    pub(super) fn interruption_ms(&self, (from_ns, to_ns): (u64, u64)) -> f64 {
        let mut arrivals: Vec<u64> = self.answered_ns.iter().copied().flatten().collect();
        arrivals.sort_unstable();
        let gaps = arrivals
            .windows(2)
            .filter(|pair| (from_ns..to_ns).contains(&pair[1]));
        gaps.map(|pair| pair[1] - pair[0]).max().unwrap_or(0) as f64 / 1e6
    }
}

/// A client that sends until [`Traffic::stop`].
pub(super) struct Traffic {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<Trace, Error>>>,
}

impl Traffic {
    /// Starts to send through a connected socket.
    pub(super) fn start(socket: UdpSocket) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&is_over);
        let thread = thread::spawn(move || {
            sched::set(0, Policy::Fifo(PRIORITY))?;
            run(&socket, &flag).map_err(|cause| Error::system("send datagrams", cause))
        });
        Self {
            is_over,
            thread: Some(thread),
        }
    }

    /// Ends the client after the last answers.
    pub(super) fn stop(mut self) -> Result<Trace, Error> {
        self.is_over.store(true, Ordering::Relaxed);
        let thread = self.thread.take();
        thread.map_or(Err(Error::Cancelled), |thread| {
            thread.join().unwrap_or(Err(Error::Cancelled))
        })
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A failure ended the experiment already.
            let _ = thread.join();
        }
    }
}

fn run(socket: &UdpSocket, is_over: &AtomicBool) -> io::Result<Trace> {
    socket.set_nonblocking(true)?;
    let mut trace = Trace::default();
    let mut next_ns = now_ns();
    let mut missing = 0_usize;
    loop {
        let now = now_ns();
        let is_over = is_over.load(Ordering::Relaxed);
        let last_ns = trace.sent_ns.last().copied().unwrap_or(now);
        if is_over && (missing == 0 || now > last_ns + PATIENCE_NS) {
            return Ok(trace);
        }
        if !is_over && now >= next_ns {
            let number = trace.sent_ns.len() as u64;
            trace.sent_ns.push(now);
            trace.answered_ns.push(None);
            missing += 1;
            ignore_refusal(socket.send(&number.to_be_bytes()))?;
            // A late datagram is not followed by an early one.
            next_ns = (next_ns + INTERVAL_NS).max(now);
        }
        wait(socket, if is_over { now + 1_000_000 } else { next_ns })?;
        missing -= receive(socket, &mut trace)?;
    }
}

/// Takes all answers that arrived. Returns their number.
fn receive(socket: &UdpSocket, trace: &mut Trace) -> io::Result<usize> {
    let mut answers = 0;
    let mut answer = [0; 16];
    while let Some(length) = ignore_refusal(socket.recv(&mut answer))? {
        let ([number, counted], []) = answer.as_chunks::<8>() else {
            continue;
        };
        let place = u64::from_be_bytes(*number) as usize;
        let slot = trace.answered_ns.get_mut(place);
        if let Some(slot) = slot.filter(|slot| slot.is_none() && length == answer.len()) {
            *slot = Some(now_ns());
            trace.counted = trace.counted.max(u64::from_be_bytes(*counted));
            answers += 1;
        }
    }
    Ok(answers)
}

/// A host without the service refuses datagrams: they are lost. `None`: nothing arrived.
fn ignore_refusal(done: io::Result<usize>) -> io::Result<Option<usize>> {
    match done {
        Ok(length) => Ok(Some(length)),
        Err(error) => match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionRefused => Ok(None),
            _ => Err(error),
        },
    }
}

/// Sleeps until an answer arrives, or until this time.
fn wait(socket: &UdpSocket, until_ns: u64) -> io::Result<()> {
    let left = Duration::from_nanos(until_ns.saturating_sub(now_ns()));
    let mut waited = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
    match ppoll(&mut waited, Some(TimeSpec::from_duration(left)), None) {
        Ok(_) | Err(nix::Error::EINTR) => Ok(()),
        Err(cause) => Err(cause.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_datagrams_and_gaps_count_in_their_window() {
        let ms = |ms: u64| ms * 1_000_000;
        let trace = Trace {
            sent_ns: vec![ms(0), ms(5), ms(10), ms(15), ms(20)],
            answered_ns: vec![Some(ms(1)), None, Some(ms(12)), None, Some(ms(52))],
            counted: 3,
        };
        assert_eq!(trace.unanswered((0, ms(100))), 2);
        assert_eq!(trace.unanswered((ms(6), ms(100))), 1);
        assert!((trace.interruption_ms((0, ms(100))) - 40.0).abs() < 1e-9);
        assert!((trace.interruption_ms((0, ms(20))) - 11.0).abs() < 1e-9);
        assert!(trace.interruption_ms((ms(60), ms(100))).abs() < 1e-9);
    }
}
