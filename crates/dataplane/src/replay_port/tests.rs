use myelin_packet::fixtures::build;
use myelin_packet::traffic::Profile;
use myelin_packet::{Match, Meta};

use super::*;
use crate::chain::SocketId;
use crate::stats::Stats;
use crate::umem::Umem;

const FRAMES: u32 = 256;
const RING: u32 = 16;

struct Bench {
    memory: FrameMemory,
    pool: FramePool,
    port: ReplayPort,
    stats: Stats,
}

fn replay(packets: Vec<Vec<u8>>, times: ReplayTimes) -> Replay {
    Replay {
        packets,
        chain: None,
        times,
        end: None,
        ring: RING,
    }
}

impl Bench {
    fn new(replay: Replay) -> Self {
        let memory = FrameMemory::map(&Umem::create(FRAMES, 2048).unwrap()).unwrap();
        let mut pool = FramePool::new(memory.held_frames(), FRAMES as usize);
        let mut port = ReplayPort::new(Borrower::new(0).unwrap(), &memory, replay).unwrap();
        assert!(port.refill(&memory, &mut pool));
        Self {
            memory,
            pool,
            port,
            stats: Stats::create().unwrap(),
        }
    }

    /// Lets chain 7 take UDP packets.
    fn redirect(&mut self) {
        let chain = ChainRedirect {
            matches: Match {
                protocol: Some(17),
                ..Match::default()
            },
            ingress: SocketId::of_port(0),
            policing: Profile::default(),
            spi: 7,
            generation: 3,
        };
        let counters = self.stats.door_counters(7).unwrap();
        self.port.redirect(&chain, counters).unwrap();
    }

    /// Takes a packet, changes it as a function does, and transmits it.
    fn pass(&mut self) -> (Meta, Vec<u8>) {
        let mut buffer = self.port.take(&self.memory).unwrap();
        let (start, len) = (buffer.offset as usize, buffer.len as usize);
        let bytes = self.memory.bytes_mut(&mut buffer.frame);
        let meta = Meta::from_bytes(bytes[..start].last_chunk().unwrap());
        let packet = bytes[start..start + len].to_vec();
        bytes[start..start + len].fill(0);
        self.port.transmit(&self.memory, buffer).unwrap();
        self.port.reclaim(&self.memory, &mut self.pool);
        self.port.refill(&self.memory, &mut self.pool);
        (meta, packet)
    }
}

#[test]
fn endless_packets_enter_the_chain_of_the_front_door_in_turn() {
    let packets = vec![build::udp_v4(8), build::tcp_v4(20), build::udp_v4(9)];
    let expected = [packets[0].clone(), packets[2].clone()];
    let mut bench = Bench::new(replay(packets, ReplayTimes::Endless));
    assert_eq!(bench.port.poll_arrivals(8), 0, "no chain takes packets");
    assert!(bench.port.arm(), "the worker sleeps until there is one");
    bench.redirect();
    let mut last_ns = 0;
    for round in 0..1000 {
        while bench.port.poll_arrivals(1) == 0 {}
        let (meta, packet) = bench.pass();
        assert_eq!((meta.spi, meta.generation), (7, 3));
        assert_eq!(packet, expected[round % 2], "{round}");
        assert!(meta.stamp_ns >= last_ns);
        last_ns = meta.stamp_ns;
    }
    assert!(!bench.port.arm(), "packets always arrive");
    let door = bench.stats.door(7).unwrap();
    assert_eq!((door.packets, door.lost), (1000, 0));
}

#[test]
fn packets_at_a_rate_have_even_stamps_and_those_without_room_are_lost() {
    let packets = vec![build::udp_v4(8)];
    let mut bench = Bench::new(Replay {
        end: Some(40),
        ..replay(packets, ReplayTimes::Even(1_000_000))
    });
    bench.redirect();
    bench.port.poll_arrivals(8);
    // All 40 packets arrive in 40 us, before the worker takes one.
    while bench.port.arrived < 40 {
        assert!(bench.port.poll_arrivals(64) <= RING);
    }
    let stamps: Vec<u64> = (0..RING).map(|_| bench.pass().0.stamp_ns).collect();
    assert!(stamps.windows(2).all(|pair| pair[1] - pair[0] == 1000));
    assert_eq!(bench.port.poll_arrivals(8), 0);
    let door = bench.stats.door(7).unwrap();
    assert_eq!((door.packets, door.lost), (40, u64::from(40 - RING)));
    assert!(bench.port.arm(), "no packet comes after the end");
}

#[test]
fn packets_faster_than_the_front_door_are_missed_and_none_becomes_old() {
    let mut bench = Bench::new(replay(
        vec![build::udp_v4(8)],
        ReplayTimes::Even(100_000_000),
    ));
    bench.redirect();
    bench.port.poll_arrivals(8);
    let mut looked_ns = 0;
    for _ in 0..3 {
        // 100 000 packets arrive, and the queue has 4096.
        std::thread::sleep(std::time::Duration::from_millis(1));
        let now_ns = monotonic_ns();
        assert_eq!(bench.port.poll_arrivals(u32::MAX), RING);
        while bench.port.count_received() > 0 {
            let (meta, _) = bench.pass();
            assert!(
                meta.stamp_ns > looked_ns,
                "the packet arrived before the last look"
            );
        }
        looked_ns = now_ns;
    }
    let door = bench.stats.door(7).unwrap();
    assert!(door.missed > 200_000, "{door:?}");
    assert_eq!(door.packets + door.missed, bench.port.arrived);
    assert!(door.packets <= 4 * MAX_LOOK, "{door:?}");
    assert_eq!(door.lost + 3 * u64::from(RING), door.packets, "{door:?}");
}

#[test]
fn a_sleeping_worker_wakes_at_the_next_packet() {
    let mut bench = Bench::new(replay(vec![build::udp_v4(8)], ReplayTimes::Even(100)));
    bench.redirect();
    for _ in 0..3 {
        assert_eq!(bench.port.poll_arrivals(8), 0);
        assert!(bench.port.arm());
        let mut fds = [libc::pollfd {
            fd: bench.port.readable_fd().unwrap(),
            events: libc::POLLIN,
            revents: 0,
        }];
        crate::sys::poll(&mut fds, None).unwrap();
        bench.port.disarm();
        assert!(bench.port.poll_arrivals(8) >= 1);
        while bench.port.count_received() > 0 {
            bench.pass();
        }
    }
}

#[test]
fn one_chain_takes_all_packets_without_a_front_door() {
    let packet = build::udp_v4(8);
    let mut bench = Bench::new(Replay {
        chain: Some((9, 1)),
        ..replay(vec![packet], ReplayTimes::Endless)
    });
    assert_eq!(bench.port.poll_arrivals(8), 8);
    let (meta, _) = bench.pass();
    assert_eq!((meta.spi, meta.generation), (9, 1));
    assert_eq!(bench.port.count_received(), RING);
}

#[test]
fn a_replay_without_packets_or_with_long_ones_is_refused() {
    let memory = FrameMemory::map(&Umem::create(FRAMES, 2048).unwrap()).unwrap();
    for packets in [vec![], vec![vec![0; 1793]]] {
        let replay = replay(packets, ReplayTimes::Endless);
        let error = ReplayPort::new(Borrower::new(0).unwrap(), &memory, replay).unwrap_err();
        assert!(error.contains("1792 bytes"), "{error}");
    }
}
