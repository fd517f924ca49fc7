//! A policer run over a trace of times, as the kernel runs it at the front door.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use bytemuck::{Pod, Zeroable};

use super::{TestRun, run};
use crate::object::POLICER;
use crate::{Error, Hook, Plane, Policer};

/// Arrivals of one run at most.
pub const MAX_ARRIVALS: usize = 200;

/// `struct trial`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Instance {
    number: u32,
    alone: u32,
    shapes: u32,
}

/// Packets that come together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Arrival {
    /// When, ns; 0: now, and what the clock said is here afterwards; with a shaper when it may leave.
    pub at_ns: u64,
    /// How many.
    pub packets: u32,
    /// Their bytes; afterwards 1 when they conformed, 0 when not.
    pub bytes: u32,
}

/// A program that runs a policer over arrivals.
#[derive(Debug)]
pub struct Trial {
    program: OwnedFd,
    _policer: Arc<Policer>,
}

impl Trial {
    /// Of this policer; `alone`: as where only one CPU at a time is at the door.
    pub fn new(plane: &Plane, policer: &Arc<Policer>, alone: bool) -> Result<Self, Error> {
        let instance = Instance {
            number: policer.number(),
            alone: alone.into(),
            shapes: 0,
        };
        Self::load(plane, policer, instance)
    }

    /// Of this shaper: tells when each arrival may leave; 0 for never.
    pub fn of_shaper(plane: &Plane, shaper: &Arc<Policer>) -> Result<Self, Error> {
        let instance = Instance {
            number: shaper.number(),
            alone: 0,
            shapes: 1,
        };
        Self::load(plane, shaper, instance)
    }

    fn load(plane: &Plane, policer: &Arc<Policer>, instance: Instance) -> Result<Self, Error> {
        let maps = [("policers", plane.policers())];
        Ok(Self {
            program: POLICER.load(Hook::Xdp, bytemuck::bytes_of(&instance), &maps)?,
            _policer: Arc::clone(policer),
        })
    }

    /// At most [`MAX_ARRIVALS`] arrivals; in their place afterwards when each was and whether it conformed.
    pub fn police(&self, arrivals: &mut [Arrival]) -> Result<(), Error> {
        let frame = bytemuck::cast_slice(arrivals);
        let outcome = run(self.program.as_fd(), Hook::Xdp, &TestRun::new(frame))?;
        let bytes = outcome.frame.chunks_exact(size_of::<Arrival>());
        for (arrival, bytes) in arrivals.iter_mut().zip(bytes) {
            *arrival = bytemuck::pod_read_unaligned(bytes);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::twin::assert_twins;

    #[test]
    fn instances_lie_as_in_c() {
        assert_twins!(
            POLICER,
            "trial",
            Instance {
                number,
                alone,
                shapes
            }
        );
    }
}
