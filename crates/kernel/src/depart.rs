//! The way out of a chain whose traffic the egress interface's queueing discipline shapes.

use bytemuck::{Pod, Zeroable};

use crate::hop::Hop;

/// The program's read-only data (`depart.bpf.c`).
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Depart {
    pub(crate) hop: Hop,
    /// The class: major number of the discipline and minor number, as `skb->priority` has them.
    pub(crate) class: u32,
    /// Number of the shaper that tells the departure time, where the interface waits for that; else 0.
    pub(crate) shaper: u32,
}

// As the compiler lays it out in C: no padding, the class behind the hop.
const _: () = assert!(std::mem::offset_of!(Depart, class) == size_of::<Hop>());
const _: () = assert!(size_of::<Depart>() == size_of::<Hop>() + 8);
