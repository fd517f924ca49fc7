//! Sends the flows of a part to several next parts, which hold replicas of a function.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use libbpf_rs::MapType;
use myelin_packet::maglev::{MaglevTable, TABLE_BYTES};

use crate::attach::{AttachTarget, Attachment, XdpMode};
use crate::map::{create, create_filled, put};
use crate::object::SPLIT;
use crate::resources::PlaneResources;
use crate::{Error, Hook, lock};

/// Most targets: `MAX_TARGETS` of `split.bpf.c`.
const MAX_TARGETS: u32 = 16;

/// The program at the far end of an exit link that sends each flow into the exit link of one path.
///
/// The drop detaches the program. If the plane is pinned, it stays until [`WireSplit::detach`].
#[derive(Debug)]
pub struct WireSplit {
    attachment: Mutex<Option<Attachment>>,
    program: OwnedFd,
    far: AttachTarget,
    shared: Arc<PlaneResources>,
}

impl WireSplit {
    pub(crate) fn new(
        shared: &Arc<PlaneResources>,
        (interface, ifindex): (&str, u32),
        targets: &[(&str, u32)],
    ) -> Result<Self, Error> {
        let names: Vec<&str> = targets.iter().map(|(name, _)| *name).collect();
        let table = MaglevTable::of_names(&names);
        let mut bytes = bytemuck::cast_slice(&table.entries).to_vec();
        bytes.resize(TABLE_BYTES, 0);
        let maglev = create_filled("maglev", TABLE_BYTES, &bytes)?;
        let number = size_of::<u32>();
        let links = create("targets", MapType::Array, number, number, MAX_TARGETS, 0)?;
        for (number, (_, near)) in (0_u32..).zip(targets) {
            let action = ("targets", "add a path to");
            put(&links, action, &number.to_ne_bytes(), &near.to_ne_bytes())?;
        }
        let maps = [("maglev", maglev.as_fd()), ("targets", links.as_fd())];
        Ok(Self {
            attachment: Mutex::default(),
            program: SPLIT.load(Hook::Xdp, &[], &maps)?,
            far: AttachTarget {
                interface: interface.to_owned(),
                ifindex,
            },
            shared: Arc::clone(shared),
        })
    }

    /// Attaches the program. Does nothing if it is attached.
    pub fn attach(&self) -> Result<(), Error> {
        let mut attachment = lock(&self.attachment);
        if attachment.is_none() {
            let pin = self.far.pin_path(self.shared.pin_dir.as_deref(), "xdp");
            let program = self.program.as_fd();
            let attached = Attachment::attach_xdp(program, &self.far, XdpMode::Native, pin)?;
            *attachment = Some(attached);
        }
        Ok(())
    }

    /// Detaches the program, pinned or not.
    pub fn detach(&self) -> Result<(), Error> {
        let attachment = lock(&self.attachment).take();
        attachment.map_or(Ok(()), Attachment::detach)
    }

    /// Returns the program, for test runs.
    #[doc(hidden)]
    pub fn program(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }
}
