//! The kernel's hooks at which a front door runs.

use std::fmt;

/// Where in the kernel a program takes packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hook {
    /// In or directly after the driver, before the kernel makes an skb.
    Xdp,
    /// At traffic control, ingress, on the skb: tcx, or clsact before Linux 6.6.
    Tcx,
}

impl Hook {
    /// Both hooks.
    pub const ALL: [Self; 2] = [Self::Xdp, Self::Tcx];

    /// Returns the value of `enum hook`.
    pub(crate) const fn number(self) -> u8 {
        match self {
            Self::Xdp => 1,
            Self::Tcx => 2,
        }
    }

    /// Returns the verdict that passes a packet: `XDP_PASS`, `TC_ACT_UNSPEC` (equal to `TCX_NEXT`).
    pub const fn pass(self) -> u32 {
        match self {
            Self::Xdp => 2,
            Self::Tcx => u32::MAX,
        }
    }

    /// Returns the verdict that drops a packet: `XDP_DROP`, `TC_ACT_SHOT`.
    pub const fn drop(self) -> u32 {
        match self {
            Self::Xdp => 1,
            Self::Tcx => 2,
        }
    }

    /// Returns the verdict that redirects a packet: `XDP_REDIRECT`, `TC_ACT_REDIRECT`.
    pub const fn redirect(self) -> u32 {
        match self {
            Self::Xdp => 4,
            Self::Tcx => 7,
        }
    }
}

impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Xdp => "xdp",
            Self::Tcx => "tcx",
        })
    }
}
