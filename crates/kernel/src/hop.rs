//! Where a packet goes after a kernel function: the head of each function's read-only data.

use bytemuck::{Pod, Zeroable};

use crate::counters::Counting;

/// `struct hop`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Hop {
    counting: Counting,
    /// The function's line.
    pub(crate) line: u32,
    exit: u32,
    next: u32,
    ifindex: u32,
    egress_line: u32,
    fallback: u32,
}

/// Where a packet goes after a kernel function.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    /// To the kernel function in this slot.
    Next { slot: u32 },
    /// Out at an interface, or straight to its peer; `line` is the egress's.
    Out { ifindex: u32, peer: bool, line: u32 },
    /// To the AF_XDP socket of the receive queue, and there to the function at `position`.
    User { position: u8 },
    /// Over a link to a function in another namespace.
    Link { ifindex: u32 },
    /// As [`Self::Out`] or [`Self::Link`], from a function's namespace, to the interface at that place of its `devices`.
    Across { device: u32, out: Option<u32> },
}

impl Way {
    /// The same way from another namespace; `device` is the place of its interface.
    pub(crate) fn across(self, device: u32) -> Self {
        match self {
            Self::Out { line, .. } => Self::Across {
                device,
                out: Some(line),
            },
            Self::Link { .. } => Self::Across { device, out: None },
            way => way,
        }
    }
}

impl Hop {
    /// `fallback` is the hook's verdict when the next function or the socket is not there.
    pub(crate) fn new(counting: Counting, line: u32, way: Way, fallback: u32) -> Self {
        let hop = Self {
            counting,
            line,
            fallback,
            ..Self::zeroed()
        };
        match way {
            Way::Next { slot } => Self {
                exit: 1,
                next: slot,
                ..hop
            },
            Way::Out {
                ifindex,
                peer,
                line,
            } => Self {
                exit: if peer { 3 } else { 2 },
                ifindex,
                egress_line: line,
                ..hop
            },
            Way::User { position } => Self {
                exit: 4,
                next: position.into(),
                ..hop
            },
            Way::Link { ifindex } => Self {
                exit: 5,
                ifindex,
                ..hop
            },
            Way::Across { device, out } => Self {
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
    use crate::tests::assert_twins;

    #[test]
    fn hops_lie_as_in_c() {
        assert_twins!(
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
