//! A chain on super-packets: a worker receives them from a packet socket at the far end of the
//! entry link, is the front door, and transmits over a packet socket at the egress port.

use myelin_kernel::Plane;
use myelin_policy::sla::{LossCounter, LossPlace};
use myelin_spec::SandboxSpec;

use super::LayoutJob;
use super::worker_door::WorkerDoor;
use crate::api::ApiError;
use crate::node::Parts;
use crate::node::layout::{FrontDoor, GenerationCounts, Layout};
use crate::node::workers::{Key, OpenPort, Worker, WorkerLease, WorkerStart};

/// A generation on super-packets.
pub(super) struct OnSuperPackets {
    // Fields drop in this order: the chain leaves the worker before its sockets close, and these
    // close before the worker can end.
    door: WorkerDoor,
    /// The sockets where packets arrive and leave.
    ports: [OpenPort; 2],
    _worker: WorkerLease,
}

/// Starts the owner's worker for super-packets, if none runs, opens its sockets, and adds the
/// chain.
pub(super) fn build(parts: &Parts, job: LayoutJob<'_>) -> Result<OnSuperPackets, ApiError> {
    let LayoutJob { chain, .. } = job;
    let (_, ingress, egress) = job.ports.kernel_ports()?;
    let worker = job.worker()?;
    let key = Key::of(worker);
    let sandbox = SandboxSpec::default();
    let start = WorkerStart {
        spec: &chain.worker,
        core: worker.core,
        sandbox: &sandbox,
        mtu: job.longest_mtu()?,
        parts,
    };
    let worker = parts
        .workers
        .acquire(&key, || Worker::start(&key, start, None))?;
    worker.check(start)?;
    let receiver = OpenPort::open_receiver(&worker, job.door()?, ingress)?;
    let sender = OpenPort::open_sender(&worker, egress)?;
    Ok(OnSuperPackets {
        door: WorkerDoor::run(job, worker.clone(), sender.socket, None)?,
        ports: [receiver, sender],
        _worker: worker,
    })
}

impl Layout for OnSuperPackets {
    fn front_door(&self) -> FrontDoor<'_> {
        self.door.front_door(self.ports[0].socket)
    }

    fn dropped_fragments(&self) -> u64 {
        self.door.dropped_fragments()
    }

    fn read(&self, _plane: &Plane) -> GenerationCounts {
        self.door.read()
    }

    fn loss_counters(&self) -> Vec<LossCounter> {
        let worker = &self.door.worker;
        let received = LossCounter {
            place: LossPlace::Sockets {
                worker: format!("{:?}", worker.key),
                interface: self.ports[0].ifindex,
            },
            next_position: Some(0),
            lost: worker.count_overflows(&[self.ports[0].socket]),
        };
        let transmitted = LossCounter {
            place: LossPlace::Transmit {
                spi: self.door.spi,
                generation: self.door.generation,
                position: 0,
            },
            next_position: None,
            lost: self.door.stats().map_or(0, |chain| chain.transmit_drops),
        };
        vec![received, transmitted]
    }

    fn workers(&self) -> Vec<&WorkerLease> {
        vec![&self.door.worker]
    }
}
