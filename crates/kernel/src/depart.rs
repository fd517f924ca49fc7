//! The exit of a chain whose egress interface shapes the traffic by a queueing discipline.

use bytemuck::{Pod, Zeroable};

use crate::hop::Hop;

/// The read-only data of the program `depart.bpf.c`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct DepartInstance {
    pub(crate) hop: Hop,
    /// The class: major number of the discipline and minor number, as in `skb->priority`.
    pub(crate) class: u32,
    /// Number of the shaper that computes the departure time; 0 if the class shapes.
    pub(crate) shaper: u32,
}

// The C layout: no padding, the class after the hop.
const _: () = assert!(std::mem::offset_of!(DepartInstance, class) == size_of::<Hop>());
const _: () = assert!(size_of::<DepartInstance>() == size_of::<Hop>() + 8);
