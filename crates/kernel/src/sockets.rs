//! The AF_XDP sockets of an interface.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use libbpf_rs::{MapHandle, MapType};

use crate::Error;
use crate::map::{create, put};

/// AF_XDP sockets by receive queue. A function that redirects packets to user space needs the
/// sockets of the packets' ingress interface.
#[derive(Clone, Debug)]
pub struct Sockets(pub(crate) Arc<MapHandle>);

impl Sockets {
    /// Creates a map for `queues` receive queues.
    pub(crate) fn new(queues: u32) -> Result<Self, Error> {
        let number = size_of::<u32>();
        let map = create("sockets", MapType::Xskmap, number, number, queues, 0)?;
        Ok(Self(Arc::new(map)))
    }

    /// Redirects the packets of a receive queue to this AF_XDP socket, which is bound to that
    /// queue.
    pub fn set(&self, queue: u32, socket: BorrowedFd<'_>) -> Result<(), Error> {
        let action = ("sockets", "put an AF_XDP socket into");
        let socket = socket.as_raw_fd().to_ne_bytes();
        put(&self.0, action, &queue.to_ne_bytes(), &socket)
    }
}
