//! What the framework itself costs: chains of 1 to 32 `forward` functions over a port without a device, one packet or 32 at once.
//!
//! `cargo bench -p myelin-dataplane`: the difference between two chain lengths, divided by the difference in functions and packets, is the cost of a
//! function; the intercept is the loop, the port and the clock.

use std::collections::VecDeque;
use std::hint::black_box;
use std::os::fd::RawFd;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use myelin_dataplane::port::{Buffer, FramePool, Port};
use myelin_dataplane::umem::{Borrower, FrameMemory, HEADROOM};
use myelin_dataplane::{Forwarder, SocketId, Stats, Umem, UserChain, UserExit, UserSegment};
use myelin_packet::fixtures::build;
use myelin_packet::{Meta, parse};
use myelin_spec::FunctionConfig;

const FRAMES: u32 = 512;

/// Every frame it is lent holds the same packet, which arrives at once; what is transmitted is gone at once.
struct Replay {
    borrower: Borrower,
    packet: Vec<u8>,
    meta: Meta,
    written: Vec<bool>,
    arrivals: VecDeque<u64>,
    sent: Vec<u64>,
}

impl Replay {
    fn new() -> Self {
        let packet = build::udp(build::client_v4(), build::server_v4(), &build::payload(200));
        let headers = parse(&packet).expect("a packet");
        Self {
            borrower: Borrower::new(0).expect("a number"),
            meta: Meta::new(1, 1, 0, 0, &headers),
            packet,
            written: vec![false; FRAMES as usize],
            arrivals: VecDeque::with_capacity(FRAMES as usize),
            sent: Vec::with_capacity(FRAMES as usize),
        }
    }
}

impl Port for Replay {
    #[inline]
    fn arrived(&mut self, limit: u32) -> u32 {
        limit.min(self.arrivals.len() as u32)
    }

    #[inline]
    fn take(&mut self, memory: &FrameMemory) -> Option<Buffer> {
        let address = self.arrivals.pop_front()?;
        let (frame, offset) = memory.take_back(address, self.borrower)?;
        let len = self.packet.len() as u32;
        Some(Buffer { frame, offset, len })
    }

    #[inline]
    fn release(&mut self) {}

    #[inline]
    fn transmit(&mut self, memory: &FrameMemory, buffer: Buffer) -> Result<(), Buffer> {
        let address = memory.lend(buffer.frame, buffer.offset, self.borrower);
        self.sent.push(address);
        Ok(())
    }

    #[inline]
    fn flush(&mut self, _memory: &FrameMemory) -> u64 {
        0
    }

    fn is_backlogged(&self) -> bool {
        false
    }

    #[inline]
    fn reclaim(&mut self, memory: &FrameMemory, pool: &mut FramePool) {
        for address in self.sent.drain(..) {
            if let Some((frame, _)) = memory.take_back(address, self.borrower) {
                pool.give(frame);
            }
        }
    }

    #[inline]
    fn refill(&mut self, memory: &FrameMemory, pool: &mut FramePool) -> bool {
        while let Some(mut frame) = pool.take_for_receive() {
            let start = HEADROOM as usize;
            let number = (memory.frame_number(&frame)) as usize;
            if !self.written[number] {
                self.written[number] = true;
                let bytes = memory.bytes_mut(&mut frame);
                let meta = self.meta.to_bytes();
                bytes[start - meta.len()..start].copy_from_slice(&meta);
                bytes[start..][..self.packet.len()].copy_from_slice(&self.packet);
            }
            self.arrivals
                .push_back(memory.lend(frame, HEADROOM, self.borrower));
        }
        true
    }

    fn waiting(&self) -> u32 {
        self.arrivals.len() as u32
    }

    fn readable_fd(&self) -> Option<RawFd> {
        None
    }
}

fn chains(criterion: &mut Criterion) {
    for batch in [1_u16, 32] {
        let mut group = criterion.benchmark_group(format!("forward/batch-{batch}"));
        group.throughput(Throughput::Elements(batch.into()));
        for functions in [1_u8, 2, 8, 32] {
            let umem = Umem::create(FRAMES, 2048).expect("memory");
            let memory = FrameMemory::map(&umem).expect("a mapping");
            let mut stats = Stats::create().expect("statistics");
            let mut forwarder = Forwarder::in_process(&memory, batch, &stats).expect("a forwarder");
            let chain = UserChain {
                spi: 1,
                generation: 0,
                positions: functions,
                segments: vec![UserSegment {
                    first_position: 0,
                    functions: vec![FunctionConfig::Forward.into(); functions.into()],
                    exit: UserExit::Port(SocketId::of_port(0)),
                }],
            };
            forwarder.deploy(&chain, &mut stats).expect("a chain");
            forwarder.add_port(0, Replay::new());
            forwarder.start();
            let id = BenchmarkId::from_parameter(functions);
            group.bench_function(id, |bencher| {
                bencher.iter(|| assert_eq!(black_box(&mut forwarder).turn(), u32::from(batch)));
            });
        }
    }
}

criterion_group!(benches, chains);
criterion_main!(benches);
