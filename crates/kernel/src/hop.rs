//! The exit of a kernel function: the first part of each function's read-only data.

use bytemuck::{Pod, Zeroable};

use crate::Hook;
use crate::counters::Counting;

/// `struct hop`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Hop {
    counting: Counting,
    /// The function's counter line.
    pub(crate) line: u32,
    exit: u32,
    next: u32,
    ifindex: u32,
    egress_line: u32,
    fallback: u32,
}

/// The exit of a kernel function.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HopExit {
    /// To the kernel function in this slot.
    Next { slot: u32 },
    /// Out of the chain at an interface, or directly at the interface's peer. `line` is the counter
    /// line of the egress.
    Out { ifindex: u32, peer: bool, line: u32 },
    /// Out of the chain at an interface, by the stack's transmit path: tc transmits. XDP only.
    Stack { ifindex: u32, line: u32 },
    /// Out of the chain over an exit link to another node, with the stamp.
    Wire { ifindex: u32, line: u32 },
    /// To the AF_XDP socket of the receive queue, for the function at `position`.
    User { position: u8 },
    /// Over a link to a function in another namespace.
    Link { ifindex: u32 },
    /// [`Self::Out`] or [`Self::Link`] from the namespace of a function. `device` is the index of
    /// the interface in `devices`.
    OtherNamespace { device: u32, out: Option<u32> },
}

impl HopExit {
    /// Returns the exit at an interface. `peer` applies to tcx only, `by_stack` to XDP only.
    pub(crate) fn at_egress(
        hook: Hook,
        ifindex: u32,
        (peer, by_stack): (bool, bool),
        line: u32,
    ) -> Self {
        match hook {
            Hook::Xdp if by_stack => Self::Stack { ifindex, line },
            Hook::Xdp | Hook::Tcx => Self::Out {
                ifindex,
                peer: peer && hook == Hook::Tcx,
                line,
            },
        }
    }

    /// Returns the same exit, for a program in another namespace. `device` is the index of the
    /// interface in `devices`.
    pub(crate) fn for_other_namespace(self, device: u32) -> Self {
        match self {
            Self::Out { line, .. } => Self::OtherNamespace {
                device,
                out: Some(line),
            },
            Self::Link { .. } => Self::OtherNamespace { device, out: None },
            exit => exit,
        }
    }
}

impl Hop {
    /// `fallback` is the hook's verdict if the next function or socket is missing.
    pub(crate) fn new(counting: Counting, line: u32, exit: HopExit, fallback: u32) -> Self {
        let hop = Self {
            counting,
            line,
            fallback,
            ..Self::zeroed()
        };
        match exit {
            HopExit::Next { slot } => Self {
                exit: 1,
                next: slot,
                ..hop
            },
            HopExit::Out {
                ifindex,
                peer,
                line,
            } => Self {
                exit: if peer { 3 } else { 2 },
                ifindex,
                egress_line: line,
                ..hop
            },
            HopExit::Stack { ifindex, line } => Self {
                exit: 8,
                ifindex,
                egress_line: line,
                ..hop
            },
            HopExit::Wire { ifindex, line } => Self {
                exit: 9,
                ifindex,
                egress_line: line,
                ..hop
            },
            HopExit::User { position } => Self {
                exit: 4,
                next: position.into(),
                ..hop
            },
            HopExit::Link { ifindex } => Self {
                exit: 5,
                ifindex,
                ..hop
            },
            HopExit::OtherNamespace { device, out } => Self {
                exit: if out.is_some() { 7 } else { 6 },
                next: device,
                egress_line: out.unwrap_or_default(),
                ..hop
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::FORWARD;
    use crate::tests::assert_same_layout;

    #[test]
    fn hops_match_their_c_layout() {
        assert_same_layout!(
            FORWARD,
            "hop",
            Hop {
                counting,
                line,
                exit,
                next,
                ifindex,
                egress_line,
                fallback
            }
        );
    }
}
