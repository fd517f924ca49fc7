//! Reads the state of links for [`super::links`]. Keeps its sockets open, so the agent needs no
//! further descriptor while it reads.

use myelin_linux::Result;
use myelin_linux::ethtool::Ethtool;
use myelin_linux::link::Link;
use myelin_linux::netlink::Netlink;

use crate::node::port_state::LinkState;

/// Reads links of one network namespace.
pub(crate) struct LinkReader {
    netlink: Netlink,
    ethtool: Ethtool,
}

impl LinkReader {
    /// Opens the sockets in the calling thread's namespace.
    pub(crate) fn open() -> Result<Self> {
        Ok(Self {
            netlink: Netlink::open()?,
            ethtool: Ethtool::open()?,
        })
    }

    /// Reads the link with this name; `None` if no link has the name.
    pub(crate) fn by_name(&mut self, name: &str) -> Result<Option<LinkState>> {
        let found = find(self.netlink.link(name))?;
        Ok(found.map(|link| self.complete(link)))
    }

    /// Reads the link with this index; `None` if no link has the index.
    pub(crate) fn by_index(&mut self, index: u32) -> Result<Option<LinkState>> {
        let found = find(self.netlink.link_by_index(index))?;
        Ok(found.map(|link| self.complete(link)))
    }

    fn complete(&self, link: Link) -> LinkState {
        // Drivers without queues report none.
        let queues = self.ethtool.receive_queues(&link.name);
        LinkState {
            queues: queues.ok().flatten().unwrap_or(1),
            index: link.index,
            name: link.name,
            is_up: link.up,
            has_carrier: link.carrier,
            mtu: link.mtu,
        }
    }
}

fn find(found: Result<Link>) -> Result<Option<Link>> {
    match found {
        Ok(link) => Ok(Some(link)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}
