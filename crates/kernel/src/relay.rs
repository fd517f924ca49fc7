//! A port's relay of a chain over the entry link to the front door behind it. `relay.h` has the
//! way of a packet.

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};

use crate::attach::{AttachTarget, Attachment};
use crate::bare_entry::BareEntry;
use crate::chain::ChainEntry;
use crate::classifier::ChainTarget;
use crate::counters::CounterLine;
use crate::reentry::load_leave;
use crate::resources::PlaneResources;
use crate::{Error, lock};

/// Sends a chain's packets from the port where they arrive over an entry link. The chain's own
/// front door is at the link's far end. Remove the relay's matches before you drop it.
#[derive(Debug)]
pub struct Relay(BareEntry);

/// Transmits at a port what comes back over the port's entry link: replies of functions to senders.
///
/// The drop detaches the program. If the plane is pinned, the program stays until
/// [`ReplyPath::detach`].
#[derive(Debug)]
pub struct ReplyPath(Mutex<Option<Attachment>>);

impl ReplyPath {
    pub(crate) fn attach(
        shared: &PlaneResources,
        (interface, near): (&str, u32),
        port: u32,
    ) -> Result<Self, Error> {
        let target = AttachTarget {
            interface: interface.to_owned(),
            ifindex: near,
        };
        let leave = load_leave(shared, port)?;
        let attached = Attachment::attach_tc(leave.as_fd(), &target, shared.pin_dir.as_deref());
        Ok(Self(Mutex::new(Some(attached?))))
    }

    /// Detaches the program, pinned or not.
    pub fn detach(&self) -> Result<(), Error> {
        let attachment = lock(&self.0).take();
        attachment.map_or(Ok(()), Attachment::detach)
    }
}

impl Relay {
    pub(crate) fn new(shared: &Arc<PlaneResources>, spi: u32, near: u32) -> Result<Self, Error> {
        let entry = |line| ChainEntry::relay(spi, line, near);
        BareEntry::add(shared, spi, "add a relay to", entry).map(Self)
    }

    /// Returns the counters of the packets that arrived at the port. Each segment of a super-packet
    /// counts. `drops` has the packets that had no room for the stamp.
    pub fn counters(&self) -> CounterLine {
        self.0.counters()
    }

    pub(crate) fn target(&self) -> &Arc<ChainTarget> {
        self.0.target()
    }
}
