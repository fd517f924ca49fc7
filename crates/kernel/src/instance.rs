//! One kernel function of one chain: a program of its own, whose read-only data says where the packet goes next.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bytemuck::{Pod, Zeroable};
use myelin_spec::FunctionConfig;

use crate::object::{FIREWALL, FORWARD, XOR};
use crate::{Error, Hook, firewall};

/// `struct hop`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Hop {
    /// Counter lines a CPU.
    pub(crate) lines: u32,
    /// The function's line.
    pub(crate) line: u32,
    exit: u32,
    slot: u32,
    ifindex: u32,
    egress_line: u32,
    fallback: u32,
    position: u32,
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
}

impl Hop {
    /// `fallback` is the hook's verdict when the next function or the socket is not there.
    pub(crate) fn new(lines: u32, line: u32, way: Way, fallback: u32) -> Self {
        let hop = Self {
            lines,
            line,
            fallback,
            ..Self::zeroed()
        };
        match way {
            Way::Next { slot } => Self {
                exit: 1,
                slot,
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
                position: position.into(),
                ..hop
            },
        }
    }
}

/// The read-only data of an `xor`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Xor {
    hop: Hop,
    key: u64,
}

/// Loads the function at `position`; `maps` are those that every function has.
pub(crate) fn load(
    hook: Hook,
    position: u8,
    config: &FunctionConfig,
    hop: Hop,
    maps: &[(&str, BorrowedFd<'_>)],
) -> Result<OwnedFd, Error> {
    match config {
        FunctionConfig::Forward => FORWARD.load(hook, bytemuck::bytes_of(&hop), maps),
        FunctionConfig::Xor(xor) => {
            let instance = Xor {
                hop,
                key: u64::from_ne_bytes([xor.key; 8]),
            };
            XOR.load(hook, bytemuck::bytes_of(&instance), maps)
        }
        FunctionConfig::Firewall(config) => {
            let tables =
                firewall::Tables::new(config).map_err(|cause| Error::Rules { position, cause })?;
            let map = tables.map()?;
            let mut maps = maps.to_vec();
            maps.push(("tables", map.as_fd()));
            FIREWALL.load(hook, bytemuck::bytes_of(&tables.instance(hop)), &maps)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::twin::assert_twins;

    #[test]
    fn instances_lie_as_in_c() {
        assert_twins!(
            FORWARD,
            "hop",
            Hop {
                lines,
                line,
                exit,
                slot,
                ifindex,
                egress_line,
                fallback,
                position
            }
        );
        assert_twins!(XOR, "xor", Xor { hop, key });
    }
}
