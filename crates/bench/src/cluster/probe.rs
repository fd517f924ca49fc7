//! The published probe: UDP datagrams at an interval, whose payload tells which functions they
//! passed.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use myelin_measure::clock::now_ns;

use super::PORT;
use crate::Error;
use crate::generator::run_on_core;

/// Payload of a datagram, bytes, and time between two, unless the user gives another.
pub(crate) const PAYLOAD: usize = 512;
pub(crate) const INTERVAL: Duration = Duration::from_millis(4);
/// Core of the thread that sends and receives.
const CORE: usize = 0;
/// Longest time without a packet that should arrive.
const PATIENCE: Duration = Duration::from_secs(20);
/// Time after which a packet counts as lost.
const LOST: Duration = Duration::from_secs(2);

/// Sockets of a client and a server.
pub(crate) struct Ends {
    client: UdpSocket,
    server: UdpSocket,
}

/// A datagram of the probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Datagram {
    pub(crate) sent_ns: u64,
    /// `None`: lost.
    pub(crate) arrival: Option<Arrival>,
}

/// The arrival of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Arrival {
    pub(crate) ns: u64,
    /// The functions that it passed.
    pub(crate) functions: usize,
}

impl Ends {
    /// Connects the client to the server.
    pub(crate) fn connect(
        (client, server): (UdpSocket, UdpSocket),
        address: Ipv4Addr,
    ) -> Result<Self, Error> {
        let ends = Self { client, server };
        let connected = ends.client.connect(SocketAddr::from((address, PORT)));
        connected.map_err(|cause| Error::system("connect a client and a server", cause))?;
        Ok(ends)
    }

    fn send(&self, number: usize) -> io::Result<u64> {
        let mut payload = [0; PAYLOAD];
        payload[..8].copy_from_slice(&(number as u64).to_ne_bytes());
        let sent_ns = now_ns();
        self.client.send(&payload)?;
        Ok(sent_ns)
    }

    /// Receives a datagram: its number, and its arrival.
    fn receive(&self) -> Option<(usize, Arrival)> {
        let mut payload = [0; PAYLOAD];
        let length = self.server.recv(&mut payload).ok()?;
        parse(payload.get(..length)?, now_ns())
    }

    /// Sends until a datagram has passed this number of functions, so that all addresses are known.
    pub(crate) fn wait_for(&self, functions: usize) -> Result<(), Error> {
        let wait = || {
            let timeout = Duration::from_millis(50);
            self.server.set_nonblocking(false)?;
            self.server.set_read_timeout(Some(timeout))?;
            let start = Instant::now();
            loop {
                self.send(usize::MAX)?;
                let arrived = self.receive().map(|(_, arrival)| arrival.functions);
                if arrived == Some(functions) {
                    break;
                }
                if start.elapsed() > PATIENCE {
                    let reason = format!("no datagram passes {functions} functions: {arrived:?}");
                    return Err(io::Error::other(reason));
                }
            }
            // Late datagrams of the loop.
            while self.receive().is_some() {}
            Ok(())
        };
        wait().map_err(|cause| Error::system("send packets through a chain", cause))
    }

    /// Sends `packets` at an interval, each after the arrival of the one before. Returns the delay
    /// of each from socket to socket, ns; a lost one has the longest. All pass this number of
    /// functions.
    pub(crate) fn delays_ns(
        &self,
        functions: usize,
        (packets, interval): (usize, Duration),
    ) -> Result<Vec<f64>, Error> {
        self.wait_for(functions)?;
        let measure = || {
            self.server.set_nonblocking(true)?;
            let mut delays_ns = Vec::with_capacity(packets);
            for number in 0..packets {
                let start = Instant::now();
                let sent_ns = self.send(number)?;
                let mut arrival = None;
                while arrival.is_none() && start.elapsed() < LOST {
                    let received = self.receive().filter(|(own, _)| *own == number);
                    arrival = received.map(|(_, arrival)| arrival);
                }
                let passed = arrival.map_or(functions, |arrival| arrival.functions);
                if passed != functions {
                    let reason = format!("a packet passed {passed} of {functions} functions");
                    return Err(io::Error::other(reason));
                }
                let longest_ns = sent_ns + LOST.as_nanos() as u64;
                let arrived_ns = arrival.map_or(longest_ns, |arrival| arrival.ns);
                delays_ns.push(arrived_ns.saturating_sub(sent_ns) as f64);
                thread::sleep(interval.saturating_sub(start.elapsed()));
            }
            Ok(delays_ns)
        };
        run_on_core(CORE, || {
            measure().map_err(|cause| Error::system("send packets through a chain", cause))
        })
    }

    /// Sends at an interval until `is_over`. Returns all datagrams.
    pub(crate) fn watch(
        &self,
        interval: Duration,
        is_over: &AtomicBool,
    ) -> Result<Vec<Datagram>, Error> {
        let mut datagrams = Vec::new();
        let mut watch = || {
            self.server.set_nonblocking(false)?;
            let mut due = Instant::now();
            while !is_over.load(Ordering::Relaxed) {
                datagrams.push(Datagram {
                    sent_ns: self.send(datagrams.len())?,
                    arrival: None,
                });
                due += interval;
                self.receive_until(due, &mut datagrams)?;
            }
            let end = due + LOST;
            let is_lost = |one: &Datagram| one.arrival.is_none();
            while datagrams.iter().any(is_lost) && Instant::now() < end {
                self.receive_until(Instant::now() + interval, &mut datagrams)?;
            }
            Ok(())
        };
        let watched: io::Result<()> = watch();
        watched.map_err(|cause| Error::system("send packets through a chain", cause))?;
        Ok(datagrams)
    }

    fn receive_until(&self, due: Instant, datagrams: &mut [Datagram]) -> io::Result<()> {
        loop {
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            self.server.set_read_timeout(Some(left))?;
            if let Some((number, arrival)) = self.receive()
                && let Some(datagram) = datagrams.get_mut(number)
            {
                datagram.arrival = Some(arrival);
            }
        }
    }
}

/// Reads a payload. All its bytes have the key of the last function, and the last byte was 0.
fn parse(payload: &[u8], ns: u64) -> Option<(usize, Arrival)> {
    let key = *payload.last()?;
    let mut number: [u8; 8] = payload.get(..8)?.try_into().ok()?;
    for byte in &mut number {
        *byte ^= key;
    }
    let arrival = Arrival {
        ns,
        functions: key.into(),
    };
    Some((u64::from_ne_bytes(number) as usize, arrival))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_tells_its_number_and_its_functions() {
        let mut payload = [0_u8; PAYLOAD];
        payload[..8].copy_from_slice(&1234_u64.to_ne_bytes());
        let altered = payload.map(|byte| byte ^ 7);
        assert_eq!(parse(&payload, 5).unwrap().0, 1234);
        let (number, arrival) = parse(&altered, 5).unwrap();
        assert_eq!((number, arrival.functions, arrival.ns), (1234, 7, 5));
        assert!(parse(&[], 0).is_none() && parse(&[1; 4], 0).is_none());
    }
}
