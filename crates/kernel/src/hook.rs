//! The two places where a front door may stand.

use std::fmt;

/// Where a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hook {
    /// In the driver (or right behind it), before the kernel makes an skb.
    Xdp,
    /// At traffic control, ingress, on the skb: tcx, or clsact before Linux 6.6.
    Tcx,
}

impl Hook {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Xdp, Self::Tcx];

    /// `enum hook` of the eBPF side.
    pub(crate) const fn number(self) -> u8 {
        match self {
            Self::Xdp => 1,
            Self::Tcx => 2,
        }
    }

    /// The verdict that lets a packet go its way: `XDP_PASS`, `TC_ACT_UNSPEC` (which is `TCX_NEXT`).
    pub const fn pass(self) -> u32 {
        match self {
            Self::Xdp => 2,
            Self::Tcx => u32::MAX,
        }
    }

    /// The verdict that drops it: `XDP_DROP`, `TC_ACT_SHOT`.
    pub const fn drop(self) -> u32 {
        match self {
            Self::Xdp => 1,
            Self::Tcx => 2,
        }
    }

    /// The verdict that sends it elsewhere: `XDP_REDIRECT`, `TC_ACT_REDIRECT`.
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
