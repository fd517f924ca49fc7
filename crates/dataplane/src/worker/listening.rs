//! The control thread: serves the agent's requests, and sends changes to the loop.

use std::fs::File;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use myelin_functions::States;
use nix::sys::signalfd::SignalFd;

use super::changes::{ChangeSender, LoopState, Phase};
use crate::chain::{SocketId, UserChain};
use crate::clock::monotonic_ns;
use crate::door::ChainRedirect;
use crate::driver::{DrivenPort, Driver};
use crate::flows;
use crate::forwarder::MAX_DRAIN_NS;
use crate::named_counters;
use crate::protocol::{NewPort, NewPortKind, Reply, Request, receive_request, send_reply};
use crate::segment::Segment;
use crate::stats::StatsFile;
use crate::sys;
use crate::turns::Turns;
use crate::umem::{Borrower, FrameMemory};

/// Longest time of a packet from the front door to a ring: another core may be in a receive poll.
const DOOR_TO_RING_TIME: Duration = Duration::from_millis(5);

/// Interval between two checks of whether a shaper is empty.
const SHAPER_CHECK_INTERVAL: Duration = Duration::from_micros(500);
/// Expected number of named counters in a chain: 32 functions with 16 each.
const EXPECTED_COUNTERS: usize = 512;

/// The control thread.
pub(super) struct ControlThread<D: Driver> {
    pub(super) socket: OwnedFd,
    pub(super) signals: SignalFd,
    pub(super) memory: &'static FrameMemory,
    pub(super) stats: StatsFile,
    /// States of the functions in the loop. This thread only passes them to new functions, and
    /// frees them.
    pub(super) states: States,
    pub(super) sender: ChangeSender<D::Port>,
    pub(super) driver: PhantomData<fn() -> D>,
}

impl<D: Driver> ControlThread<D> {
    /// Serves requests until the agent or a signal ends the worker.
    pub(super) fn serve(mut self) {
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
                let _ = self.stop();
                return;
            }
            if fds[0].revents == 0 {
                continue;
            }
            match receive_request(self.socket.as_fd()) {
                Ok(Some((request, fds))) => {
                    let stop = request.body == Request::Shutdown;
                    let reply = self.handle_request(request.body, fds);
                    // If the agent closed the connection, the next receive reports it.
                    let _ = send_reply(self.socket.as_fd(), request.number, &reply);
                    if stop {
                        return;
                    }
                }
                // The agent closed the connection. Continue to wait for a signal.
                Ok(None) | Err(_) => fds[0].fd = -1,
            }
        }
    }

    fn handle_request(&mut self, request: Request, mut fds: Vec<OwnedFd>) -> Reply {
        match request {
            Request::Setup(_) => Err("the worker is already set up".into()),
            Request::AddSocket {
                id,
                info,
                replaces_closed_socket,
            } => {
                let fd = fds.pop().ok_or("the request has no socket descriptor")?;
                self.add_port(
                    id,
                    NewPortKind::Socket {
                        fd,
                        info,
                        replaces_closed_socket,
                    },
                )
            }
            Request::AddRing { id, side } => {
                let (Some(wake_fd), Some(ring)) = (fds.pop(), fds.pop()) else {
                    return Err("the request has no ring descriptors".into());
                };
                self.add_port(
                    id,
                    NewPortKind::Ring {
                        ring,
                        wake_fd,
                        side,
                    },
                )
            }
            Request::AddPacketSocket { id, receives } => self.add_packet_socket(id, receives, fds),
            Request::AddReplay { id, replay } => self.add_port(id, NewPortKind::Replay(replay)),
            Request::TakeFrames { id } => self.take_frames(id),
            Request::Grant { id, frames } => {
                let holder = Borrower::of(id)?;
                let granted = self
                    .sender
                    .apply(move |state| state.forwarder.grant(holder, frames as usize));
                granted.map(drop)
            }
            Request::RemoveSocket { id } => {
                let port = self
                    .sender
                    .apply(move |state| state.forwarder.remove_port(id.0.into()))?;
                // Closing the port releases its frames.
                port.ok_or("the worker has no such socket or ring")?.close();
                self.take_frames(id)
            }
            Request::AddChain { chain, block } => self.add_chain(&chain, block),
            Request::RemoveChain { spi, generation } => self.remove_chain(spi, generation),
            Request::RedirectChain { chain, row } => self.redirect_chain(chain, row),
            Request::StopRedirect { spi, ingress } => self.sender.apply(move |state| {
                if let Some(port) = state.forwarder.port_mut(ingress.0.into()) {
                    port.stop_redirect(spi);
                }
            }),
            Request::ReadFlows {
                spi,
                generation,
                position,
            } => {
                let fd = fds.pop().ok_or("the request has no flow file")?;
                self.read_flows(fd, spi, generation, position)
            }
            Request::ReadCounters { spi, generation } => {
                let fd = fds.pop().ok_or("the request has no counter file")?;
                self.read_counters(fd, spi, generation)
            }
            Request::Share(setup) => {
                let turns = setup.map(|setup| Turns::open(setup, fds)).transpose()?;
                self.sender.set_turns(turns)
            }
            Request::SetIdle(idle) => self.sender.apply(move |state| state.idle = Some(idle)),
            Request::Start => self.sender.apply(|state| {
                state.forwarder.start();
                state.phase = Phase::Forwarding;
            }),
            Request::Shutdown => self.stop(),
        }
    }

    fn add_chain(&mut self, chain: &UserChain, block: u32) -> Reply {
        let counters = self
            .stats
            .chain_counters(block)
            .map_err(|e| e.to_string())?;
        counters.count_predecessor_loss();
        let segments = Segment::build(chain, &Arc::new(counters), &mut self.states)?;
        self.sender
            .apply(|state| state.forwarder.add_segments(segments))
    }

    fn add_packet_socket(&self, id: SocketId, receives: bool, fds: Vec<OwnedFd>) -> Reply {
        let mut fds = fds.into_iter();
        let fd = fds.next().ok_or("the request has no socket descriptor")?;
        let sender = fds.next();
        let kind = NewPortKind::PacketSocket {
            fd,
            sender,
            receives,
        };
        self.add_port(id, kind)
    }

    fn redirect_chain(&self, chain: ChainRedirect, row: u32) -> Reply {
        let counters = self.stats.door_counters(row).map_err(|e| e.to_string())?;
        self.sender.apply(move |state| {
            let port = state.forwarder.port_mut(chain.ingress.0.into());
            port.ok_or("the worker has no such port")?
                .redirect(&chain, counters)
        })?
    }

    fn remove_chain(&mut self, spi: u32, generation: u16) -> Reply {
        std::thread::sleep(DOOR_TO_RING_TIME);
        self.drain_shaper(spi, generation)?;
        let removed = self
            .sender
            .apply(move |state| state.forwarder.remove_segments(spi, generation))?;
        drop(removed);
        self.states.prune();
        Ok(())
    }

    fn read_flows(&self, fd: OwnedFd, spi: u32, generation: u16, position: u8) -> Reply {
        flows::write(&mut File::from(fd), |mut page| {
            self.sender.apply(move |state| {
                let forwarder = &state.forwarder;
                forwarder.read_flows(spi, generation, position, &mut page);
                page
            })
        })
    }

    fn read_counters(&self, fd: OwnedFd, spi: u32, generation: u16) -> Reply {
        // Reserve room for all counters here, so that the loop allocates nothing.
        let mut readings = Vec::with_capacity(EXPECTED_COUNTERS);
        let readings = self.sender.apply(move |state| {
            let forwarder = &state.forwarder;
            forwarder.read_counters(spi, generation, &mut readings);
            readings
        })?;
        named_counters::write(&mut File::from(fd), &readings)
    }

    fn stop(&self) -> Reply {
        self.sender.apply(|state| state.phase = Phase::Ended)
    }

    fn take_frames(&self, id: SocketId) -> Reply {
        let borrower = Borrower::of(id)?;
        self.sender
            .apply(move |state| state.forwarder.take_frames_of(borrower))
    }

    /// Waits until all packets of a generation have left the shaper, while the loop continues.
    fn drain_shaper(&self, spi: u32, generation: u16) -> Reply {
        let until_ns = monotonic_ns().saturating_add(MAX_DRAIN_NS);
        let is_empty = move |state: &mut LoopState<D::Port>| {
            state.forwarder.shaped_packets(spi, generation) == 0
        };
        while !self.sender.apply(is_empty)? && monotonic_ns() < until_ns {
            std::thread::sleep(SHAPER_CHECK_INTERVAL);
        }
        Ok(())
    }

    fn add_port(&self, id: SocketId, kind: NewPortKind) -> Reply {
        let borrower = Borrower::of(id)?;
        let port = D::open(NewPort { borrower, kind }, self.memory)?;
        self.sender
            .apply(move |state| state.forwarder.add_port(id.0.into(), port))
    }
}
