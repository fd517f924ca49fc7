//! Packets of wire size from end hosts that Myelin made.
//!
//! The links of end hosts have the kernel's default offloads, so kernel functions at tcx get
//! super-packets whole. While a chain needs packets of wire size with whole checksums, the offloads
//! of the sending host are off.

use std::sync::{Arc, Mutex};

use myelin_emulator::Host;
use myelin_linux::ethtool::Ethtool;
use myelin_linux::netns::Netns;

use crate::api::ApiError;
use crate::pool::lock;

/// The link of an end host that sends to a port.
pub(crate) struct Sender {
    netns: Netns,
    link: String,
    /// Number of chains that need packets of wire size.
    users: Mutex<u32>,
}

impl Sender {
    /// The sender on this host.
    pub(crate) fn on(host: &Host) -> myelin_linux::Result<Self> {
        Ok(Self {
            netns: host.netns.try_clone()?,
            link: host.link.name.clone(),
            users: Mutex::default(),
        })
    }

    fn set_offloads(&self, on: bool) -> myelin_linux::Result<()> {
        let set = || Ethtool::open()?.set_transmit_offloads(&self.link, on);
        self.netns.enter(set)?
    }
}

/// A chain's need for packets of wire size from a sender. Dropping the last need turns the sender's
/// offloads on again. While XDP is attached to the port, the kernel keeps segmentation off.
pub(crate) struct WireSize(Arc<Sender>);

impl WireSize {
    /// Adds a chain. For the first chain, turns the sender's offloads off.
    pub(crate) fn demand(sender: Arc<Sender>) -> Result<Self, ApiError> {
        let mut users = lock(&sender.users);
        if *users == 0 {
            sender.set_offloads(false).map_err(ApiError::failed)?;
        }
        *users += 1;
        drop(users);
        Ok(Self(sender))
    }
}

impl Drop for WireSize {
    fn drop(&mut self) {
        let mut users = lock(&self.0.users);
        *users -= 1;
        if *users == 0
            && let Err(error) = self.0.set_offloads(true)
        {
            // Packets of wire size pass every function; they only cost more.
            tracing::debug!(link = self.0.link, %error, "cannot turn offloads on again");
        }
    }
}
