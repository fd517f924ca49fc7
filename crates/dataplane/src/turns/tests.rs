//! The order of turns by deadline, from what the rings of a core say.

use std::os::fd::OwnedFd;

use myelin_policy::sharing::{DeadlineParameters, Lane, Parameters, SharedCore};

use super::{RingKind, Table, TableFile, TurnSetup, Turns};
use crate::clock::monotonic_ns;
use crate::port::{Buffer, FramePool, Port};
use crate::ring_link::RingLink;
use crate::ring_port::{RingPort, RingSide};
use crate::umem::{Borrower, FrameMemory, Umem};

const TASKS: usize = 3;
const BUDGET_NS: u64 = 1_000_000_000;

/// A core with three tasks, each with a pipeline's ring. Task 0 has the core.
struct Bed {
    turns: Turns,
    table: Table,
    senders: Vec<RingPort>,
    memory: FrameMemory,
    pool: FramePool,
}

impl Bed {
    fn new() -> Self {
        let lane = |task| Lane {
            task,
            ingress: task,
            egress: None,
        };
        let core = SharedCore {
            tasks: TASKS,
            lanes: (0..TASKS).map(lane).collect(),
            capacities: vec![64; TASKS],
        };
        let file = TableFile::create(&core).unwrap();
        let umem = Umem::create(256, 2048).unwrap();
        let memory = FrameMemory::map(&umem).unwrap();
        let links: Vec<_> = (0..TASKS).map(|_| RingLink::create(64).unwrap()).collect();
        let copy = |link: &RingLink| link.fds().map(|fd| fd.try_clone_to_owned().unwrap());
        let senders = links.iter().enumerate().map(|(number, link)| {
            let [ring, wake] = copy(link);
            let borrower = Borrower::new(number).unwrap();
            RingPort::new(ring, wake, RingSide::Send, borrower, &memory).unwrap()
        });
        let senders = senders.collect();
        let rings = links.iter().map(|link| copy(link)[0].try_clone().unwrap());
        let own = std::iter::once(file.fd().try_clone_to_owned().unwrap());
        let fds: Vec<OwnedFd> = own.chain(rings).collect();
        let table = Table::map(file.fd(), &core).unwrap();
        let setup = TurnSetup {
            core,
            policy: Parameters::Deadline(DeadlineParameters::default()),
            task: 0,
            rings: vec![RingKind::Pipeline; TASKS],
            budgets_ns: vec![BUDGET_NS; TASKS],
            ports: Vec::new(),
        };
        let pool = FramePool::new(memory.held_frames(), 256);
        let mut turns = Turns::open(setup, fds).unwrap();
        (0..TASKS).for_each(|task| table.set_alive(task, true));
        assert!(table.take(None, 0));
        turns.begin();
        Self {
            turns,
            table,
            senders,
            memory,
            pool,
        }
    }

    /// Puts a packet into the ring of a task, which the holder then sees.
    fn send(&mut self, task: usize, stamp_ns: u64) {
        let buffer = Buffer {
            frame: self.pool.take().unwrap(),
            offset: 256,
            len: 60,
        };
        let sender = &mut self.senders[task];
        sender
            .transmit_stamped(&self.memory, buffer, stamp_ns)
            .unwrap();
        sender.flush(&self.memory);
        self.turns.look(monotonic_ns());
    }

    /// The task that the holder gives the core.
    fn next(mut self) -> Option<usize> {
        self.turns.decide(0, true, monotonic_ns());
        self.table.running()
    }
}

#[test]
fn in_a_pipeline_the_budget_counts_from_the_stamp_and_not_from_the_ring() {
    let now_ns = monotonic_ns();
    // Task 2 has a packet first, but that of task 1 has been in its chain for longer.
    let mut bed = Bed::new();
    bed.send(2, now_ns - 10_000_000);
    bed.send(1, now_ns - 400_000_000);
    assert_eq!(bed.next(), Some(1));
    let mut bed = Bed::new();
    bed.send(2, now_ns - 400_000_000);
    bed.send(1, now_ns - 10_000_000);
    assert_eq!(bed.next(), Some(2));
    // Without stamps, the first look counts.
    let mut bed = Bed::new();
    bed.send(2, 0);
    std::thread::sleep(std::time::Duration::from_micros(200));
    bed.send(1, 0);
    assert_eq!(bed.next(), Some(2));
    // A stamp of another process counts for one budget at most.
    let mut bed = Bed::new();
    bed.send(2, now_ns - 900_000_000);
    bed.send(1, now_ns.saturating_sub(3_000_000_000_000).max(2048));
    assert_eq!(bed.next(), Some(1));
}
