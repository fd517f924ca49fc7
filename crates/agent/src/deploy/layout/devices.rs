//! A chain between two DPDK devices: one worker drives both devices, is the front door, and runs
//! the functions in the mbuf.

use myelin_dataplane::{Direction, SocketId, UserChain, UserExit, UserSegment};
use myelin_kernel::{CounterLine, Plane};
use myelin_packet::HopCounters;
use myelin_packet::traffic::Profile;
use myelin_policy::sla::LossCounter;
use myelin_spec::SandboxSpec;

use super::LayoutJob;
use crate::api::ApiError;
use crate::node::Parts;
use crate::node::circuit::MTU;
use crate::node::layout::{FrontDoor, GenerationCounts, Layout};
use crate::node::stages::RunningSegments;
use crate::node::workers::{Key, Worker, WorkerLease, WorkerStart};

/// A generation between two DPDK devices.
pub(super) struct BetweenDevices {
    // Fields drop in this order.
    _running: RunningSegments,
    worker: WorkerLease,
    direction: Direction,
    policing: Profile,
    spi: u32,
    generation: u16,
    functions: usize,
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
    let functions = job.functions(0..chain.functions.len());
    let user = UserChain {
        spi: job.spi,
        generation: job.generation,
        positions: functions.len() as u8,
        segments: vec![UserSegment {
            first_position: 0,
            functions,
            exit: UserExit::Port(SocketId::of_port(direction.ends().1)),
            shaping: plan.worker_shaping(),
        }],
    };
    let running = RunningSegments::run(&worker, plan, user).map_err(failed)?;
    Ok(BetweenDevices {
        _running: running,
        worker,
        direction,
        policing: plan.policing.unwrap_or_default(),
        spi: job.spi,
        generation: job.generation,
        functions: chain.functions.len(),
    })
}

impl Layout for BetweenDevices {
    fn front_door(&self) -> FrontDoor<'_> {
        let ingress = SocketId::of_port(self.direction.ends().0);
        FrontDoor::Worker(&self.worker, ingress, self.policing)
    }

    fn dropped_fragments(&self) -> u64 {
        self.worker.stats.worker().dropped_fragments
    }

    fn read(&self, _plane: &Plane) -> GenerationCounts {
        let stats = &self.worker.stats;
        let door = stats.door(self.spi).unwrap_or_default();
        let door = CounterLine {
            packets: door.packets,
            bytes: door.bytes,
            policed: door.policed,
            policed_bytes: door.policed_bytes,
            last_ns: door.last_ns,
            ..CounterLine::default()
        };
        let Some(chain) = stats.chain(self.spi, self.generation) else {
            return GenerationCounts {
                door,
                hops: vec![HopCounters::default(); self.functions],
                ..GenerationCounts::default()
            };
        };
        GenerationCounts {
            door,
            hops: chain.positions,
            packets_out: chain.transmitted,
            sections: vec![chain.sojourn],
            shaper: chain.shaper,
            ..GenerationCounts::default()
        }
    }

    fn loss_counters(&self) -> Vec<LossCounter> {
        Vec::new()
    }

    fn workers(&self) -> Vec<&WorkerLease> {
        vec![&self.worker]
    }
}
