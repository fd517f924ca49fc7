//! A chain between ports in memory: one worker replays the frames, is the front door, runs the
//! functions, and discards the packets.

use myelin_dataplane::SocketId;
use myelin_dataplane::replay_port::Replay;
use myelin_kernel::Plane;
use myelin_policy::sla::{LossCounter, LossPlace};
use myelin_spec::{SandboxSpec, ServiceChain};

use super::LayoutJob;
use super::worker_door::WorkerDoor;
use crate::api::ApiError;
use crate::node::Parts;
use crate::node::layout::{FrontDoor, GenerationCounts, Layout};
use crate::node::mtu::MTU;
use crate::node::workers::{Key, Worker, WorkerLease, WorkerStart};

/// A generation between ports in memory.
pub(super) struct InMemory {
    door: WorkerDoor,
    /// The port that receives and transmits.
    port: SocketId,
}

/// Starts the chain's worker with its port, if it does not run, and adds the generation to it.
pub(super) fn build(parts: &Parts, job: LayoutJob<'_>) -> Result<InMemory, ApiError> {
    let LayoutJob { chain, plan, .. } = job;
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
    let worker = parts
        .workers
        .acquire(&key, || start_worker(&key, start, chain))?;
    worker.check(start)?;
    let port = worker.state().handle().first_replay();
    let port = port.ok_or_else(|| ApiError::failed("the chain's worker has no replay port"))?;
    let door = WorkerDoor::run(job, worker, port, plan.worker_shaping())?;
    Ok(InMemory { door, port })
}

/// Starts a worker with a port that replays the frames of the chain.
fn start_worker(
    key: &Key,
    start: WorkerStart<'_>,
    chain: &ServiceChain,
) -> Result<Worker, ApiError> {
    let replay = chain.replay();
    let replay = replay.ok_or_else(|| ApiError::failed("the chain's ports have no frames"))?;
    let worker = Worker::start(key, start, None)?;
    let added = worker.state().handle().add_replay(Replay {
        packets: replay.frames.clone(),
        chain: None,
        times: replay.times.clone(),
        end: replay.packets,
        ring: chain.worker.ring,
    });
    added.map_err(ApiError::failed)?;
    Ok(worker)
}

impl Layout for InMemory {
    fn front_door(&self) -> FrontDoor<'_> {
        self.door.front_door(self.port)
    }

    fn dropped_fragments(&self) -> u64 {
        self.door.dropped_fragments()
    }

    fn missed(&self) -> u64 {
        let door = self.door.worker.stats.door(self.door.spi);
        door.map_or(0, |door| door.missed)
    }

    fn read(&self, _plane: &Plane) -> GenerationCounts {
        self.door.read()
    }

    fn loss_counters(&self) -> Vec<LossCounter> {
        let worker = &self.door.worker;
        vec![LossCounter {
            place: LossPlace::Sockets {
                worker: format!("{:?}", worker.key),
                interface: 0,
            },
            next_position: Some(0),
            lost: worker.stats.door(self.door.spi).map_or(0, |door| door.lost),
        }]
    }

    fn workers(&self) -> Vec<&WorkerLease> {
        vec![&self.door.worker]
    }
}
