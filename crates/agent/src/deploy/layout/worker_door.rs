//! A chain whose worker is its front door, with all functions in one segment. The layouts on
//! super-packets and between devices use it.

use myelin_dataplane::{ChainStats, SocketId, UserChain, UserExit, UserSegment};
use myelin_kernel::CounterLine;
use myelin_packet::HopCounters;
use myelin_packet::traffic::Profile;
use myelin_spec::Shaping;

use super::LayoutJob;
use crate::api::ApiError;
use crate::node::layout::{FrontDoor, GenerationCounts};
use crate::node::stages::RunningSegments;
use crate::node::workers::WorkerLease;

/// A generation in its worker.
pub(super) struct WorkerDoor {
    // Fields drop in this order.
    _running: RunningSegments,
    pub(super) worker: WorkerLease,
    policing: Profile,
    pub(super) spi: u32,
    pub(super) generation: u16,
    functions: usize,
}

impl WorkerDoor {
    /// Adds the chain to the worker. Its packets leave over the socket `exit`.
    pub(super) fn run(
        job: LayoutJob<'_>,
        worker: WorkerLease,
        exit: SocketId,
        shaping: Option<Shaping>,
    ) -> Result<Self, ApiError> {
        let LayoutJob { chain, plan, .. } = job;
        let functions = job.functions(0..chain.functions.len());
        let count = functions.len();
        let user = UserChain {
            spi: job.spi,
            generation: job.generation,
            positions: count as u8,
            segments: vec![UserSegment {
                first_position: 0,
                functions,
                exit: UserExit::Port(exit),
                shaping,
            }],
        };
        Ok(Self {
            _running: RunningSegments::run(&worker, plan, user)?,
            worker,
            policing: plan.policing.unwrap_or_default(),
            spi: job.spi,
            generation: job.generation,
            functions: count,
        })
    }

    /// The front door of packets that arrive at the socket `ingress`.
    pub(super) fn front_door(&self, ingress: SocketId) -> FrontDoor<'_> {
        FrontDoor::Worker(&self.worker, ingress, self.policing)
    }

    pub(super) fn dropped_fragments(&self) -> u64 {
        self.worker.stats.worker().dropped_fragments
    }

    pub(super) fn stats(&self) -> Option<ChainStats> {
        self.worker.stats.chain(self.spi, self.generation)
    }

    pub(super) fn read(&self) -> GenerationCounts {
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
            shaper: chain.shaper,
            ..GenerationCounts::default()
        }
    }
}
