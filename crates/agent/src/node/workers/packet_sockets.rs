//! The packet sockets of a worker for super-packets.

use std::collections::btree_map::Entry;

use myelin_dataplane::{PacketSocket, SocketId};

use super::{OpenPort, WorkerLease, WorkerState};
use crate::api::ApiError;
use crate::node::ports::{PortLease, QueueClaim};

impl OpenPort {
    /// Opens the far end of the entry link of `ingress`, where packets arrive, for one more
    /// generation of a chain. All chains of the worker share the socket. Replies to the senders
    /// leave at `ingress`.
    pub(crate) fn open_receiver(
        worker: &WorkerLease,
        port: &PortLease,
        ingress: &PortLease,
    ) -> Result<Self, ApiError> {
        Self::open_packet_socket(worker, port, Some(ingress))
    }

    /// Opens an egress port, where packets leave, for one more generation of a chain.
    pub(crate) fn open_sender(worker: &WorkerLease, port: &PortLease) -> Result<Self, ApiError> {
        Self::open_packet_socket(worker, port, None)
    }

    fn open_packet_socket(
        worker: &WorkerLease,
        port: &PortLease,
        ingress: Option<&PortLease>,
    ) -> Result<Self, ApiError> {
        let socket = worker.state().open_packet_port(port, ingress)?;
        Ok(Self {
            worker: worker.clone(),
            ifindex: port.ifindex,
            socket,
        })
    }
}

impl WorkerState {
    fn open_packet_port(
        &mut self,
        port: &PortLease,
        ingress: Option<&PortLease>,
    ) -> Result<SocketId, ApiError> {
        match self.users.entry(port.ifindex) {
            Entry::Occupied(mut users) => users.get_mut().0 += 1,
            Entry::Vacant(users) => {
                // Each receiving socket gets every packet, so a port has one worker that receives.
                let claim = ingress.map(|_| QueueClaim::claim(port.clone(), &self.key));
                users.insert((1, claim.transpose()?));
            }
        }
        let opened = self.open_packet_socket(port, ingress);
        if opened.is_err() {
            self.close_port(port.ifindex);
        }
        opened
    }

    fn open_packet_socket(
        &mut self,
        port: &PortLease,
        ingress: Option<&PortLease>,
    ) -> Result<SocketId, ApiError> {
        let number = (port.ifindex, 0);
        if let Some(id) = self.sockets.get(&number) {
            return Ok(*id);
        }
        let sender = |port: &PortLease| PacketSocket::sender(&port.name, port.ifindex);
        let opened = match ingress {
            Some(ingress) => sender(ingress).and_then(|replies| {
                let receiver = PacketSocket::receiver(&port.name, port.ifindex)?;
                Ok(receiver.with_replies_over(&replies))
            }),
            None => sender(port),
        };
        let socket = opened.map_err(ApiError::failed)?;
        let added = self.handle().add_packet_socket(socket);
        let id = added.map_err(|error| self.explain(error))?;
        self.sockets.insert(number, id);
        Ok(id)
    }
}
