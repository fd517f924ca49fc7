//! A port's relay of a chain over the entry link to the front door behind it. `relay.h` has the
//! way of a packet.

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};

use crate::attach::{AttachTarget, Attachment};
use crate::chain::ChainEntry;
use crate::classifier::ChainTarget;
use crate::counters::CounterLine;
use crate::map::put;
use crate::numbers::NumberRange;
use crate::reentry::load_leave;
use crate::resources::PlaneResources;
use crate::{Error, Hook, lock};

/// Sends a chain's packets from the port where they arrive over an entry link. The chain's own
/// front door is at the link's far end. Remove the relay's matches before you drop it.
#[derive(Debug)]
pub struct Relay {
    target: Arc<ChainTarget>,
    line: Arc<NumberRange>,
    shared: Arc<PlaneResources>,
}

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
        let line = Arc::new(shared.counters.allocate(1)?);
        let number = NumberRange::allocate(&shared.chain_numbers, 1)?;
        let entry = ChainEntry::relay(spi, line.start(), near);
        // The XDP door passes the packets of an entry at tcx.
        for hook in Hook::ALL {
            let key = number.start().to_ne_bytes();
            let chains = ("chains", "add a relay to");
            put(
                shared.chains(hook),
                chains,
                &key,
                bytemuck::bytes_of(&entry),
            )?;
        }
        Ok(Self {
            target: Arc::new(ChainTarget::new(spi, number, vec![Arc::clone(&line)])),
            line,
            shared: Arc::clone(shared),
        })
    }

    /// Returns the counters of the packets that arrived at the port. Each segment of a super-packet
    /// counts. `drops` has the packets that had no room for the stamp.
    pub fn counters(&self) -> CounterLine {
        self.shared.counters.read(self.line.start())
    }

    pub(crate) fn target(&self) -> &Arc<ChainTarget> {
        &self.target
    }
}
