//! The configuration of a chain in a worker: the user-space segments and their exits.

use myelin_packet::meta::MAX_SPI;
use myelin_spec::{FunctionInstance, Shaping};
use serde::{Deserialize, Serialize};

use crate::stats::MAX_POSITIONS;

/// The number of a socket, ring or process in a worker. Adding a socket returns its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SocketId(pub(crate) u16);

impl SocketId {
    /// Returns the number of the port at `index`, for a forwarder in this process.
    pub fn of_port(index: u16) -> Self {
        Self(index)
    }
}

/// The part of one generation of a chain that runs in a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserChain {
    /// Service path identifier, 24 bits.
    pub spi: u32,
    /// Generation.
    pub generation: u16,
    /// Number of functions in the whole chain, including functions in the kernel.
    pub positions: u8,
    /// The segments in user space, in order.
    pub segments: Vec<UserSegment>,
}

/// A longest sequence of consecutive functions in user space.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserSegment {
    /// Index in the chain of the first function.
    pub first_position: u8,
    /// The functions in order, each with the key of its state. At least one function.
    pub functions: Vec<FunctionInstance>,
    /// The exit of the segment.
    pub exit: UserExit,
    /// The shaper of the packets at the exit; `None` without a shaper.
    #[serde(default)]
    pub shaping: Option<Shaping>,
}

/// The exit of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum UserExit {
    /// Packets leave the chain through this socket.
    Port(SocketId),
    /// Packets leave the chain through this socket, behind an NSH header with the stamp, over an
    /// exit link to another node.
    Wire(SocketId),
    /// Packets continue at the kernel function at `position`, over an internal link, behind an NSH
    /// header. If `position` is the chain's length, an SFF at the far end of the link forwards them
    /// out of the chain.
    Internal {
        /// The socket on the worker's end of the link.
        socket: SocketId,
        /// Index of the next function.
        position: u8,
    },
    /// Packets continue at `position` in another worker process, through a ring. Only
    /// [`Pipeline`](crate::Pipeline) makes such exits.
    Stage {
        /// The number of the ring.
        socket: SocketId,
        /// Index of the next function, or the chain's length.
        position: u8,
    },
}

impl UserExit {
    /// Returns the socket that transmits the packets.
    pub fn socket(&self) -> SocketId {
        match *self {
            Self::Port(socket)
            | Self::Wire(socket)
            | Self::Internal { socket, .. }
            | Self::Stage { socket, .. } => socket,
        }
    }
}

impl UserChain {
    /// Checks the chain. The error completes the sentence "the chain ...".
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        if self.spi > MAX_SPI {
            return Err("has a path identifier of more than 24 bits");
        }
        if usize::from(self.positions) > MAX_POSITIONS {
            return Err("has more than 32 functions");
        }
        if self.segments.is_empty() {
            return Err("has no function in user space");
        }
        let mut next = 0;
        for segment in &self.segments {
            let first = usize::from(segment.first_position);
            let end = first + segment.functions.len();
            if segment.functions.is_empty() {
                return Err("has a segment without functions");
            }
            if first < next || end > usize::from(self.positions) {
                return Err("has segments that overlap or reach beyond its functions");
            }
            let exits_at_next = match segment.exit {
                UserExit::Port(_) | UserExit::Wire(_) => end == usize::from(self.positions),
                UserExit::Internal { position, .. } => usize::from(position) == end,
                // Only `Pipeline` makes such exits, after it has checked the chain.
                UserExit::Stage { .. } => false,
            };
            if !exits_at_next {
                return Err("has a segment whose exit does not lead to the next function");
            }
            // At least one kernel function lies between two segments.
            next = end + 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use myelin_spec::FunctionConfig;

    use super::*;

    fn segment(first_position: u8, functions: usize, exit: UserExit) -> UserSegment {
        UserSegment {
            first_position,
            functions: vec![FunctionConfig::Forward.into(); functions],
            exit,
            shaping: None,
        }
    }

    fn chain(positions: u8, segments: Vec<UserSegment>) -> UserChain {
        UserChain {
            spi: 1,
            generation: 0,
            positions,
            segments,
        }
    }

    const OUT: UserExit = UserExit::Port(SocketId(0));

    fn inward(position: u8) -> UserExit {
        UserExit::Internal {
            socket: SocketId(1),
            position,
        }
    }

    #[test]
    fn valid_chains_are_accepted() {
        assert_eq!(chain(1, vec![segment(0, 1, OUT)]).check(), Ok(()));
        assert_eq!(chain(32, vec![segment(30, 2, OUT)]).check(), Ok(()));
        let twice = vec![segment(0, 2, inward(2)), segment(3, 1, OUT)];
        assert_eq!(chain(4, twice).check(), Ok(()));
        assert_eq!(chain(3, vec![segment(1, 1, inward(2))]).check(), Ok(()));
        assert_eq!(chain(2, vec![segment(1, 1, inward(2))]).check(), Ok(()));
    }

    #[test]
    fn invalid_chains_are_refused_with_a_reason() {
        for (bad, word) in [
            (chain(1, vec![]), "no function"),
            (chain(33, vec![segment(0, 33, OUT)]), "more than 32"),
            (chain(1, vec![segment(0, 0, OUT)]), "without functions"),
            (chain(2, vec![segment(1, 2, OUT)]), "beyond"),
            (chain(2, vec![segment(0, 1, OUT)]), "exit"),
            (chain(3, vec![segment(0, 1, inward(2))]), "exit"),
            (
                chain(3, vec![segment(0, 1, inward(1)), segment(1, 2, OUT)]),
                "overlap",
            ),
            (
                UserChain {
                    spi: 1 << 24,
                    ..chain(1, vec![segment(0, 1, OUT)])
                },
                "24 bits",
            ),
        ] {
            let problem = bad.check().unwrap_err();
            assert!(problem.contains(word), "{problem}");
        }
    }
}
