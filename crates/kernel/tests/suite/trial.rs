//! A policer and a conformance monitor run over traces of times, as the kernel runs them at an interface.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use myelin_kernel::test_run::{self, TestRun, run};
use myelin_kernel::{ConformConfig, ConformReport, Conformance, Error, Hook, Plane, Policer};

/// Arrivals of one run at most.
pub(crate) const MAX_ARRIVALS: usize = 200;

/// Packets that come together: `struct arrival`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Arrival {
    /// When, ns; 0: now, and what the clock said is here afterwards; with a shaper when it may leave.
    pub(crate) at_ns: u64,
    /// How many.
    pub(crate) packets: u32,
    /// Their bytes; afterwards 1 when they conformed, 0 when not.
    pub(crate) bytes: u32,
}

/// A program that runs a policer over arrivals.
pub(crate) struct PolicerTrial {
    program: OwnedFd,
    _policer: Arc<Policer>,
}

impl PolicerTrial {
    /// Of this policer; `alone`: as where only one CPU at a time is at the door.
    pub(crate) fn new(plane: &Plane, policer: &Arc<Policer>, alone: bool) -> Result<Self, Error> {
        Self::load(plane, policer, alone, false)
    }

    /// Of this shaper: tells when each arrival may leave; 0 for never.
    pub(crate) fn of_shaper(plane: &Plane, shaper: &Arc<Policer>) -> Result<Self, Error> {
        Self::load(plane, shaper, false, true)
    }

    fn load(
        plane: &Plane,
        policer: &Arc<Policer>,
        alone: bool,
        shapes: bool,
    ) -> Result<Self, Error> {
        Ok(Self {
            program: test_run::policer(plane, policer, alone, shapes)?,
            _policer: Arc::clone(policer),
        })
    }

    /// At most [`MAX_ARRIVALS`] arrivals; in their place afterwards when each was and whether it conformed.
    pub(crate) fn police(&self, arrivals: &mut [Arrival]) -> Result<(), Error> {
        let frame = bytemuck::cast_slice(arrivals);
        let outcome = run(self.program.as_fd(), Hook::Xdp, &TestRun::new(frame))?;
        let bytes = outcome.frame.chunks_exact(size_of::<Arrival>());
        for (arrival, bytes) in arrivals.iter_mut().zip(bytes) {
            *arrival = bytemuck::pod_read_unaligned(bytes);
        }
        Ok(())
    }
}

/// A monitor that takes the time from the packets.
pub(crate) struct MonitorTrial {
    program: OwnedFd,
    monitor: Conformance,
}

impl MonitorTrial {
    /// One that has seen nothing.
    pub(crate) fn new(watch: &ConformConfig) -> Result<Self, Error> {
        let (program, monitor) = Conformance::detached(watch)?;
        Ok(Self { program, monitor })
    }

    /// Shows it a frame that arrives at [`TestRun::arrival_ns`]; what it lets the kernel do with it.
    pub(crate) fn see(&self, frame: &TestRun<'_>) -> Result<u32, Error> {
        Ok(run(self.program.as_fd(), Hook::Tcx, frame)?.verdict)
    }

    /// What it has seen.
    pub(crate) fn seen(&self) -> Result<ConformReport, Error> {
        self.monitor.read()
    }
}
