//! The entry link of a port: the veth pair over which packets of a virtual interface reach a front
//! door.
//!
//! A virtual interface passes on super-packets, packets whose checksum is left to the card, and
//! VLAN tags beside the frame. The near end of an entry link has no offloads. So the kernel
//! segments packets, completes checksums and inserts tags before the packets reach the far end.
//!
//! A link for super-packets keeps the offloads of checksums and of TCP segmentation. A packet
//! socket takes the packets at its far end.

use myelin_kernel::ReplyPath;
use myelin_linux::ethtool;
use myelin_linux::journal::{Resource, ResourceGuard};
use myelin_linux::link::{self, Link, VethEnd};
use myelin_linux::netlink::Netlink;

use crate::api::{ApiError, short_hash};
use crate::node::Parts;

/// The two service tags that carry the stamp over the link (`relay.h`), bytes.
const TAGS: u32 = 8;

/// An internal link to a front door. Dropping the value removes the link.
pub(crate) struct EntryLink {
    /// Index of the near end, where packets leave the port.
    pub(crate) near: u32,
    /// Transmits the replies of functions at the port. `None` if packets come from another node,
    /// because a function that answers senders stands before the wire.
    replies: Option<ReplyPath>,
    _made: ResourceGuard,
}

impl EntryLink {
    /// Makes the link of the interface `port`. Returns the link and its far end.
    pub(crate) fn make(
        port: &Link,
        super_packets: bool,
        parts: &Parts,
    ) -> Result<(Self, Link), ApiError> {
        let kind = if super_packets { "bulk" } else { "entry" };
        let name = format!("{kind} {}", port.index);
        let made = InternalVeth::make(parts, &name, port.mtu + TAGS, super_packets)?;
        let near = (made.near.name.as_str(), made.near.index);
        let replies = parts.plane.add_reply_path(near, port.index);
        let link = Self {
            near: made.near.index,
            replies: Some(replies.map_err(ApiError::failed)?),
            _made: made.guard,
        };
        Ok((link, made.far))
    }

    /// Uses an internal link from the interface that leads to another node.
    pub(crate) fn from_wire(made: InternalVeth) -> (Self, Link) {
        let link = Self {
            near: made.near.index,
            replies: None,
            _made: made.guard,
        };
        (link, made.far)
    }
}

/// A veth pair of the agent without offloads.
pub(crate) struct InternalVeth {
    pub(crate) near: Link,
    pub(crate) far: Link,
    /// Removes the pair when dropped.
    pub(crate) guard: ResourceGuard,
}

impl InternalVeth {
    /// Makes a pair. `name` distinguishes it from the agent's other pairs. With `super_packets` the
    /// pair keeps the offloads of checksums and of TCP segmentation.
    pub(crate) fn make(
        parts: &Parts,
        name: &str,
        mtu: u32,
        super_packets: bool,
    ) -> Result<Self, ApiError> {
        // The process number distinguishes this agent's links from links of a killed agent.
        let id = format!("{} {} {name}", parts.run_id, std::process::id());
        let base = format!("my{}", short_hash(id.as_bytes()));
        let (near, far) = (format!("{base}a"), format!("{base}b"));
        let name = near.clone();
        let guard = parts.journal.guard(Resource::Link { name });
        let guard = guard.map_err(ApiError::failed)?;
        let ends = make_link([&near, &far], mtu, super_packets);
        let (near, far) = ends.map_err(ApiError::failed)?;
        Ok(Self { near, far, guard })
    }
}

impl Drop for EntryLink {
    fn drop(&mut self) {
        // A pinned program outlives a killed agent, so detach it explicitly.
        let detached = self.replies.as_ref().map_or(Ok(()), ReplyPath::detach);
        if let Err(error) = detached {
            tracing::warn!(link = self.near, %error, "cannot detach the program of an entry link");
        }
    }
}

fn make_link(
    [near, far]: [&str; 2],
    mtu: u32,
    super_packets: bool,
) -> myelin_linux::Result<(Link, Link)> {
    let mut netlink = Netlink::open()?;
    let end = |name| VethEnd {
        mtu: Some(mtu),
        ..VethEnd::named(name)
    };
    netlink.apply([link::create_veth(&end(near), &end(far))?])?;
    for name in [far, near] {
        let id = netlink.link(name)?.id();
        if super_packets {
            ethtool::set_up_for_super_packets(&mut netlink, &id)?;
        } else {
            ethtool::set_up_without_offloads(&mut netlink, &id)?;
        }
    }
    Ok((netlink.link(near)?, netlink.link(far)?))
}
