//! A chain between two DPDK devices: one worker drives both devices, is the front door, and runs
//! the functions in the mbuf.

use myelin_dataplane::{Direction, SocketId};
use myelin_kernel::Plane;
use myelin_policy::sla::LossCounter;
use myelin_spec::SandboxSpec;

use super::LayoutJob;
use super::worker_door::WorkerDoor;
use crate::api::ApiError;
use crate::node::Parts;
use crate::node::layout::{FrontDoor, GenerationCounts, Layout};
use crate::node::mtu::MTU;
use crate::node::workers::{Key, Worker, WorkerLease, WorkerStart};

/// A generation between two DPDK devices.
pub(super) struct BetweenDevices {
    door: WorkerDoor,
    direction: Direction,
}

/// Starts the worker of the devices, if none runs, and adds the chain to it.
pub(super) fn build(parts: &Parts, job: LayoutJob<'_>) -> Result<BetweenDevices, ApiError> {
    let LayoutJob { chain, plan, .. } = job;
    let failed = |error: ApiError| {
        let (place, name) = (&chain.places.ports, &chain.name);
        ApiError::failed(format!("{place}: chain `{name}`: {error}"))
    };
    let worker = job.worker()?;
    let key = Key::of(worker);
    let sandbox = SandboxSpec::default();
    let start = WorkerStart {
        spec: &chain.worker,
        core: worker.core,
        sandbox: &sandbox,
        mtu: MTU,
        parts,
    };
    let worker = parts.workers.acquire(&key, || {
        let claim = parts.devices.claim(chain)?;
        Worker::start(&key, start, Some(claim))
    });
    let worker = worker.map_err(failed)?;
    worker.check(start).map_err(failed)?;
    let claim = worker.devices.as_ref();
    let claim = claim.ok_or_else(|| failed(ApiError::failed("the worker has no devices")))?;
    let direction = claim.direction(chain).map_err(failed)?;
    let exit = SocketId::of_port(direction.ends().1);
    let door = WorkerDoor::run(job, worker, exit, plan.worker_shaping()).map_err(failed)?;
    Ok(BetweenDevices { door, direction })
}

impl Layout for BetweenDevices {
    fn front_door(&self) -> FrontDoor<'_> {
        self.door
            .front_door(SocketId::of_port(self.direction.ends().0))
    }

    fn dropped_fragments(&self) -> u64 {
        self.door.dropped_fragments()
    }

    fn read(&self, _plane: &Plane) -> GenerationCounts {
        self.door.read()
    }

    fn loss_counters(&self) -> Vec<LossCounter> {
        Vec::new()
    }

    fn workers(&self) -> Vec<&WorkerLease> {
        vec![&self.door.worker]
    }
}
