//! The programs of a delay line: they lead the packets of impaired links over an internal link to
//! the line's worker, and deliver the packets that come back. `delay.h` has the way of a packet.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use bytemuck::{Pod, Zeroable};
use libbpf_rs::{MapHandle, MapType};

use crate::attach::{AttachTarget, Attachment, TrafficDirection, XdpMode};
use crate::counters::{COUNTERS, CounterLine, Counting};
use crate::map::{create, put};
use crate::numbers::NumberRange;
use crate::object::{DELAY_ENTER, DELAY_LEAVE, DELAY_STAMP};
use crate::resources::PlaneResources;
use crate::sockets::Sockets;
use crate::{Error, Hook, lock};

/// Largest number of a direction: the largest VLAN identifier of a tag. The smallest one is 1.
pub const MAX_DIRECTION: u16 = 4094;

/// Counter lines of an internal link: packets to the worker, packets from the worker.
const LINES: u32 = 2;

/// `struct delay_enter`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct EnterInstance {
    counting: Counting,
    line: u32,
    near: u32,
    direction: u32,
    padding: u32,
}

/// `struct delay_leave` and `struct delay_stamp`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct LineInstance {
    counting: Counting,
    line: u32,
    padding: u32,
}

/// `struct direction_end`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
struct DirectionEnd {
    ifindex: u32,
    flags: u32,
}

/// The place where a packet continues after the delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The interface with this index transmits the packet.
    Transmit(u32),
    /// The packet arrives at the interface with this index.
    Receive(u32),
}

impl From<Delivery> for DirectionEnd {
    fn from(delivery: Delivery) -> Self {
        match delivery {
            Delivery::Transmit(ifindex) => Self { ifindex, flags: 0 },
            Delivery::Receive(ifindex) => Self {
                ifindex,
                flags: libbpf_sys::BPF_F_INGRESS,
            },
        }
    }
}

/// The counters of an internal link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DelayCounters {
    /// Packets to the worker. `drops` has those without room for the time of arrival.
    pub to_worker: CounterLine,
    /// Packets from the worker. `drops` has those without the number of an existing direction.
    pub from_worker: CounterLine,
}

/// The internal link of a delay line.
///
/// The drop detaches the programs. If the plane is pinned, they stay until [`DelayLink::detach`].
#[derive(Debug)]
pub struct DelayLink {
    attachments: Mutex<Vec<Attachment>>,
    stamp: OwnedFd,
    leave: OwnedFd,
    ends: MapHandle,
    sockets: Sockets,
    lines: NumberRange,
    near: AttachTarget,
    far: AttachTarget,
    shared: Arc<PlaneResources>,
}

impl DelayLink {
    pub(crate) fn new(
        shared: &Arc<PlaneResources>,
        near: (&str, u32),
        far: (&str, u32),
    ) -> Result<Self, Error> {
        let number = size_of::<u32>();
        let entries = u32::from(MAX_DIRECTION) + 1;
        let end = size_of::<DirectionEnd>();
        let ends = create("ends", MapType::Array, number, end, entries, 0)?;
        let sockets = Sockets::new(1)?;
        let lines = shared.counters.allocate(LINES)?;
        let instance = |line| LineInstance {
            counting: shared.counters.counting(),
            line: lines.start() + line,
            padding: 0,
        };
        let counters = (COUNTERS, shared.counters.as_fd());
        let stamp = DELAY_STAMP.load(
            Hook::Xdp,
            bytemuck::bytes_of(&instance(0)),
            &[counters, ("sockets", sockets.0.as_fd())],
        )?;
        let leave = DELAY_LEAVE.load(
            Hook::Tcx,
            bytemuck::bytes_of(&instance(1)),
            &[counters, ("ends", ends.as_fd())],
        )?;
        let target = |(name, ifindex): (&str, u32)| AttachTarget {
            interface: name.to_owned(),
            ifindex,
        };
        Ok(Self {
            attachments: Mutex::default(),
            stamp,
            leave,
            ends,
            sockets,
            lines,
            near: target(near),
            far: target(far),
            shared: Arc::clone(shared),
        })
    }

    /// Attaches the programs of both ends. Does nothing if they are attached.
    pub fn attach(&self) -> Result<(), Error> {
        let mut attachments = lock(&self.attachments);
        if !attachments.is_empty() {
            return Ok(());
        }
        let pin_dir = self.shared.pin_dir.as_deref();
        let leave = Attachment::attach_tc(self.leave.as_fd(), &self.near, pin_dir)?;
        attachments.push(leave);
        let pin = self.far.pin_path(pin_dir, "xdp");
        let (stamp, native) = (self.stamp.as_fd(), XdpMode::Native);
        attachments.push(Attachment::attach_xdp(stamp, &self.far, native, pin)?);
        Ok(())
    }

    /// Detaches the programs, pinned or not.
    pub fn detach(&self) -> Result<(), Error> {
        let attachments = std::mem::take(&mut *lock(&self.attachments));
        let results = attachments.into_iter().map(Attachment::detach);
        results.collect::<Vec<_>>().into_iter().collect()
    }

    /// Returns the AF_XDP sockets of the far end.
    pub fn sockets(&self) -> Sockets {
        self.sockets.clone()
    }

    /// Returns the counters.
    pub fn counters(&self) -> DelayCounters {
        let read = |line| self.shared.counters.read(self.lines.start() + line);
        DelayCounters {
            to_worker: read(0),
            from_worker: read(1),
        }
    }

    /// Loads the program of direction `number`. Attaches no program yet. No two directions may have
    /// the same number at the same time.
    ///
    /// # Errors
    /// The number is not in 1 to [`MAX_DIRECTION`], or the kernel refuses a step.
    pub fn load_direction(self: &Arc<Self>, number: u16) -> Result<DelayDirection, Error> {
        if !(1..=MAX_DIRECTION).contains(&number) {
            return Err(Error::Direction { number });
        }
        let line = self.shared.counters.allocate(1)?;
        let instance = EnterInstance {
            counting: self.shared.counters.counting(),
            line: line.start(),
            near: self.near.ifindex,
            direction: number.into(),
            padding: 0,
        };
        let counters = (COUNTERS, self.shared.counters.as_fd());
        let enter = DELAY_ENTER.load(Hook::Tcx, bytemuck::bytes_of(&instance), &[counters])?;
        Ok(DelayDirection {
            attachment: Mutex::default(),
            enter,
            number,
            line,
            link: Arc::clone(self),
        })
    }

    fn set_end(&self, number: u16, end: DirectionEnd) -> Result<(), Error> {
        let ends = ("ends", "set the end of a direction in");
        let key = u32::from(number).to_ne_bytes();
        put(&self.ends, ends, &key, bytemuck::bytes_of(&end))
    }

    /// Returns the program at the far end, for test runs.
    #[doc(hidden)]
    pub fn stamp_program(&self) -> BorrowedFd<'_> {
        self.stamp.as_fd()
    }

    /// Returns the program at the near end, for test runs.
    #[doc(hidden)]
    pub fn leave_program(&self) -> BorrowedFd<'_> {
        self.leave.as_fd()
    }
}

/// One direction of an impaired link.
///
/// The drop detaches the program and drops packets that still come from the worker. If the plane is
/// pinned, the program stays until [`DelayDirection::detach`].
#[derive(Debug)]
pub struct DelayDirection {
    attachment: Mutex<Option<Attachment>>,
    enter: OwnedFd,
    number: u16,
    line: NumberRange,
    link: Arc<DelayLink>,
}

impl DelayDirection {
    /// Returns the number of the direction.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Leads the packets of an interface through the delay line. `side` is the side of the
    /// interface that the packets pass. The worker must know the direction, because it drops
    /// packets of other directions.
    ///
    /// # Errors
    /// The kernel refuses a step. Packets then pass the interface without delay.
    pub fn attach(
        &self,
        (interface, ifindex): (&str, u32),
        side: TrafficDirection,
        delivery: Delivery,
    ) -> Result<(), Error> {
        self.set_delivery(delivery)?;
        let target = AttachTarget {
            interface: interface.to_owned(),
            ifindex,
        };
        let pin_dir = self.link.shared.pin_dir.as_deref();
        let attached = Attachment::attach_outermost(self.enter.as_fd(), &target, side, pin_dir)?;
        *lock(&self.attachment) = Some(attached);
        Ok(())
    }

    /// Detaches the program, pinned or not. Packets then pass the interface without delay.
    pub fn detach(&self) -> Result<(), Error> {
        let attachment = lock(&self.attachment).take();
        attachment.map_or(Ok(()), Attachment::detach)
    }

    /// Changes the place where packets continue after the delay.
    pub fn set_delivery(&self, delivery: Delivery) -> Result<(), Error> {
        self.link.set_end(self.number, delivery.into())
    }

    /// Returns the counters of the packets that entered. `drops` has those without room for the
    /// tag.
    pub fn counters(&self) -> CounterLine {
        self.link.shared.counters.read(self.line.start())
    }

    /// Returns the program, for test runs.
    #[doc(hidden)]
    pub fn program(&self) -> BorrowedFd<'_> {
        self.enter.as_fd()
    }
}

impl Drop for DelayDirection {
    fn drop(&mut self) {
        let stays_attached = self.link.shared.pin_dir.is_some() && lock(&self.attachment).is_some();
        if !stays_attached {
            // A remaining end is harmless: only the delay line's worker sends packets to it.
            let _ = self.link.set_end(self.number, DirectionEnd::default());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::assert_same_layout;

    #[test]
    fn instances_and_ends_match_their_c_layout() {
        assert_same_layout!(
            DELAY_ENTER,
            "delay_enter",
            EnterInstance {
                counting,
                line,
                near,
                direction,
                padding
            }
        );
        let line = |program, name| {
            let (size, members) = crate::tests::layout(program, name);
            assert_eq!(size, size_of::<LineInstance>());
            assert_eq!(members["line"], std::mem::offset_of!(LineInstance, line));
        };
        line(&DELAY_LEAVE, "delay_leave");
        line(&DELAY_STAMP, "delay_stamp");
        assert_same_layout!(
            DELAY_LEAVE,
            "direction_end",
            DirectionEnd { ifindex, flags }
        );
    }
}
