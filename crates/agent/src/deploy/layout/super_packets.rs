//! A chain on super-packets: a worker receives them from a packet socket at the far end of the
//! entry link, is the front door, and transmits over a packet socket at the egress port.

use myelin_dataplane::{ChainStats, UserChain, UserExit, UserSegment};
use myelin_kernel::{CounterLine, Plane};
use myelin_packet::HopCounters;
use myelin_packet::traffic::Profile;
use myelin_policy::sla::{LossCounter, LossPlace};
use myelin_spec::SandboxSpec;

use super::LayoutJob;
use crate::api::ApiError;
use crate::node::Parts;
use crate::node::layout::{FrontDoor, GenerationCounts, Layout};
use crate::node::stages::RunningSegments;
use crate::node::workers::{Key, OpenPort, Worker, WorkerLease, WorkerStart};

/// A generation on super-packets.
pub(super) struct OnSuperPackets {
    // Fields drop in this order: the chain leaves the worker before its sockets close.
    _running: RunningSegments,
    /// The sockets where packets arrive and leave.
    ports: [OpenPort; 2],
    worker: WorkerLease,
    policing: Profile,
    spi: u32,
    generation: u16,
    functions: usize,
}

/// Starts the owner's worker for super-packets, if none runs, opens its sockets, and adds the
/// chain.
pub(super) fn build(parts: &Parts, job: LayoutJob<'_>) -> Result<OnSuperPackets, ApiError> {
    let LayoutJob { chain, plan, .. } = job;
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
    let functions = job.functions(0..chain.functions.len());
    let user = UserChain {
        spi: job.spi,
        generation: job.generation,
        positions: functions.len() as u8,
        segments: vec![UserSegment {
            first_position: 0,
            functions,
            exit: UserExit::Port(sender.socket),
            shaping: None,
        }],
    };
    let running = RunningSegments::run(&worker, plan, user)?;
    Ok(OnSuperPackets {
        _running: running,
        ports: [receiver, sender],
        worker,
        policing: plan.policing.unwrap_or_default(),
        spi: job.spi,
        generation: job.generation,
        functions: chain.functions.len(),
    })
}

impl OnSuperPackets {
    fn stats(&self) -> Option<ChainStats> {
        self.worker.stats.chain(self.spi, self.generation)
    }
}

impl Layout for OnSuperPackets {
    fn front_door(&self) -> FrontDoor<'_> {
        FrontDoor::Worker(&self.worker, self.ports[0].socket, self.policing)
    }

    fn dropped_fragments(&self) -> u64 {
        self.worker.stats.worker().dropped_fragments
    }

    fn read(&self, _plane: &Plane) -> GenerationCounts {
        let door = self.worker.stats.door(self.spi).unwrap_or_default();
        let door = CounterLine {
            packets: door.packets,
            bytes: door.bytes,
            policed: door.policed,
            policed_bytes: door.policed_bytes,
            last_ns: door.last_ns,
            ..CounterLine::default()
        };
        let Some(chain) = self.stats() else {
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
            ..GenerationCounts::default()
        }
    }

    fn loss_counters(&self) -> Vec<LossCounter> {
        let received = LossCounter {
            place: LossPlace::Sockets {
                worker: format!("{:?}", self.worker.key),
                interface: self.ports[0].ifindex,
            },
            next_position: Some(0),
            lost: self.worker.count_overflows(&[self.ports[0].socket]),
        };
        let transmitted = LossCounter {
            place: LossPlace::Transmit {
                spi: self.spi,
                generation: self.generation,
                position: 0,
            },
            next_position: None,
            lost: self.stats().map_or(0, |chain| chain.transmit_drops),
        };
        vec![received, transmitted]
    }

    fn workers(&self) -> Vec<&WorkerLease> {
        vec![&self.worker]
    }
}
