//! Events of the links in one network namespace (rtnetlink's multicast group `RTNLGRP_LINK`).
//!
//! The kernel may lose events when a burst fills the socket's buffer. So an event says only that
//! links changed, and the receiver reads the state of its links again. Only removals are reported
//! one by one, because a link may return under its old index before the receiver reads the state.

use std::os::fd::AsFd;
use std::time::Duration;

use netlink_packet_core::NetlinkPayload;
use netlink_packet_route::link::LinkMessage;
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::error::{Error, Result};
use crate::netlink::{RECEIVE_BYTES, take_message};

/// `RTNLGRP_LINK` (rtnetlink.h).
const LINK_GROUP: u32 = 1;

/// Changes of links since the previous call of [`LinkEvents::wait`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LinkChanges {
    /// Whether a link changed, or the kernel lost events.
    pub any: bool,
    /// Indices of links that were deleted, or moved into another namespace.
    pub removed: Vec<u32>,
}

/// A socket that receives the link events of one network namespace.
#[derive(Debug)]
pub struct LinkEvents {
    socket: Socket,
    buffer: Vec<u8>,
}

impl LinkEvents {
    /// Subscribes to the events of the calling thread's namespace.
    pub fn open() -> Result<Self> {
        let failed = |error: std::io::Error| Error::os("subscribe to link events", error);
        let mut socket = Socket::new(NETLINK_ROUTE).map_err(failed)?;
        socket.bind(&SocketAddr::new(0, 0)).map_err(failed)?;
        socket.add_membership(LINK_GROUP).map_err(failed)?;
        socket.set_non_blocking(true).map_err(failed)?;
        Ok(Self {
            socket,
            buffer: Vec::with_capacity(RECEIVE_BYTES),
        })
    }

    /// Waits for events, at most `timeout`. Returns all changes that the socket has received.
    pub fn wait(&mut self, timeout: Duration) -> Result<LinkChanges> {
        let failed = |errno: Errno| Error::os("wait for link events", errno);
        let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
        let mut descriptors = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        match poll(&mut descriptors, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(failed(errno)),
        }
        let mut changes = LinkChanges::default();
        loop {
            self.buffer.clear();
            let received = self.socket.recv(&mut self.buffer, 0);
            match received.map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(0))) {
                Ok(_) => changes.add(&self.buffer),
                Err(Errno::EAGAIN) => return Ok(changes),
                // The kernel lost events.
                Err(Errno::ENOBUFS) => changes.any = true,
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(failed(errno)),
            }
        }
    }
}

impl LinkChanges {
    /// Adds the messages of a datagram. A malformed message is a change of unknown links.
    fn add(&mut self, mut datagram: &[u8]) {
        self.any = true;
        while let Some(Ok(message)) = take_message(&mut datagram) {
            if let NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelLink(link)) =
                message.payload
            {
                self.removed.extend(removed_index(&link));
            }
        }
    }
}

/// Returns the index of a removed link. A bridge reports a port that leaves the bridge as a removal
/// in its own address family, and the link stays.
fn removed_index(message: &LinkMessage) -> Option<u32> {
    let is_link = message.header.interface_family == AddressFamily::Unspec;
    is_link.then_some(message.header.index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::{self, VethEnd};
    use crate::netlink::Netlink;
    use crate::tests::{Namespace, root_or_skip};

    const PATIENCE: Duration = Duration::from_secs(30);

    #[test]
    fn changes_and_removals_are_reported_and_a_port_that_leaves_its_bridge_is_no_removal() {
        if !root_or_skip("changes_and_removals_are_reported") {
            return;
        }
        let namespace = Namespace::new("events");
        let mut netlink = Netlink::open_in(&namespace).unwrap();
        let mut events = namespace.enter(LinkEvents::open).unwrap().unwrap();
        let quiet = events.wait(Duration::from_millis(1)).unwrap();
        assert_eq!(quiet, LinkChanges::default());
        let (one, two) = (VethEnd::named("one"), VethEnd::named("two"));
        netlink
            .apply([
                link::create_bridge("br0").unwrap(),
                link::create_veth(&one, &two).unwrap(),
            ])
            .unwrap();
        let [bridge, one, two] = ["br0", "one", "two"].map(|name| netlink.link(name).unwrap());
        netlink
            .apply([link::enslave(&one.id(), &bridge.id())])
            .unwrap();
        let made = events.wait(PATIENCE).unwrap();
        assert!(made.any && made.removed.is_empty(), "{made:?}");
        netlink.apply([link::delete(&bridge.id())]).unwrap();
        let changes = events.wait(PATIENCE).unwrap();
        assert_eq!(changes.removed, [bridge.index], "{changes:?}");
        netlink.apply([link::delete(&one.id())]).unwrap();
        let mut removed = events.wait(PATIENCE).unwrap().removed;
        removed.sort_unstable();
        let mut expected = [one.index, two.index];
        expected.sort_unstable();
        assert_eq!(removed, expected);
    }
}
