//! Runs a policer and a conformance monitor in the kernel, over traces of arrival times.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use myelin_kernel::test_run::{self, TestRun, run};
use myelin_kernel::{ConformConfig, ConformReport, Conformance, Error, Hook, Plane, Policer};

/// Largest number of arrivals in one run.
pub(crate) const MAX_ARRIVALS: usize = 200;

/// Packets that arrive together: `struct arrival`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Arrival {
    /// Arrival time, ns. With 0 the program reads the clock and stores the clock reading here. A
    /// shaper stores the departure time here.
    pub(crate) at_ns: u64,
    /// Number of packets.
    pub(crate) packets: u32,
    /// Bytes of the packets. The program stores 1 here if the packets conform, else 0.
    pub(crate) bytes: u32,
}

/// A program that polices arrivals.
pub(crate) struct PolicerTrial {
    program: OwnedFd,
    _policer: Arc<Policer>,
}

impl PolicerTrial {
    /// Creates a trial of a policer. With `single_cpu`, the program takes no lock, as if only one
    /// CPU at a time ran the door.
    pub(crate) fn new(
        plane: &Plane,
        policer: &Arc<Policer>,
        single_cpu: bool,
    ) -> Result<Self, Error> {
        Self::load(plane, policer, single_cpu, false)
    }

    /// Creates a trial of a shaper, which computes each departure time. Time 0 means that the
    /// shaper drops the packet.
    pub(crate) fn for_shaper(plane: &Plane, shaper: &Arc<Policer>) -> Result<Self, Error> {
        Self::load(plane, shaper, false, true)
    }

    fn load(
        plane: &Plane,
        policer: &Arc<Policer>,
        single_cpu: bool,
        shapes: bool,
    ) -> Result<Self, Error> {
        Ok(Self {
            program: test_run::load_policer(plane, policer, single_cpu, shapes)?,
            _policer: Arc::clone(policer),
        })
    }

    /// Polices at most [`MAX_ARRIVALS`] arrivals. Stores the time and the verdict in each arrival.
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

/// A monitor that reads the time from the packets.
pub(crate) struct MonitorTrial {
    program: OwnedFd,
    monitor: Conformance,
}

impl MonitorTrial {
    /// Creates an empty monitor.
    pub(crate) fn new(config: &ConformConfig) -> Result<Self, Error> {
        let (program, monitor) = Conformance::load_unattached(config)?;
        Ok(Self { program, monitor })
    }

    /// Passes a frame that arrives at [`TestRun::arrival_ns`] to the monitor. Returns the monitor's
    /// verdict.
    pub(crate) fn observe(&self, frame: &TestRun<'_>) -> Result<u32, Error> {
        Ok(run(self.program.as_fd(), Hook::Tcx, frame)?.verdict)
    }

    /// Returns the monitor's report.
    pub(crate) fn report(&self) -> Result<ConformReport, Error> {
        self.monitor.read()
    }
}
