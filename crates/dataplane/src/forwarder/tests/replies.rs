//! What functions send back leaves where the chain takes packets in.

use myelin_functions::States;

use super::*;

/// Sends each packet's payload back as a frame, `copies` times, and drops it.
struct SendBack {
    copies: usize,
}

impl Function for SendBack {
    fn process(&mut self, packet: &mut Packet<'_>, emitter: &mut dyn Emitter) -> Verdict {
        for _ in 0..self.copies {
            emitter.reply(packet.meta(), packet.payload());
        }
        Verdict::Drop
    }
}

/// A segment of one such function.
fn send_back(bench: &mut Bench, forwarder: &mut Forwarder<'_, MemoryPort>, copies: usize) {
    add_functions(bench, forwarder, vec![Box::new(SendBack { copies })], None);
}

#[test]
fn a_reply_leaves_by_the_port_its_packet_came_in_by() {
    let mut stats_bench = Bench::new();
    let bench = Bench::new();
    let mut forwarder = bench.forwarder(4);
    send_back(&mut stats_bench, &mut forwarder, 2);
    let packet = udp(20);
    inject(&mut forwarder, &meta_of(&packet, 1, 1), &packet);
    forwarder.turn();
    let back = forwarder.port_mut(IN).unwrap().take_sent();
    assert_eq!(back, vec![build::payload(20); 2]);
    assert!(sent(&mut forwarder).is_empty());
    let seen = stats_bench.stats.chain(1, 0).unwrap();
    let function = &seen.positions[1];
    assert_eq!(
        (function.packets_in, function.drops, function.emitted),
        (1, 1, 0)
    );
    assert_eq!((seen.transmitted, seen.transmit_drops), (0, 0));
    assert_eq!(frames(&forwarder), FRAMES as usize);
}

#[test]
fn replies_that_find_no_room_are_lost_and_counted() {
    let mut stats_bench = Bench::new();
    let bench = Bench::new();
    let mut forwarder = bench.forwarder(4);
    send_back(&mut stats_bench, &mut forwarder, RING + 3);
    // The last payload is too short for a frame.
    for payload in [20, 13] {
        let packet = udp(payload);
        inject(&mut forwarder, &meta_of(&packet, 1, 1), &packet);
    }
    forwarder.turn();
    let back = forwarder.port_mut(IN).unwrap().take_sent();
    assert_eq!(back.len(), RING);
    let seen = stats_bench.stats.chain(1, 0).unwrap();
    assert_eq!(seen.transmit_drops, 3 + RING as u64 + 3);
    assert_eq!(frames(&forwarder), FRAMES as usize);
}

#[test]
fn a_later_segment_replies_where_the_first_took_the_packet_in() {
    let stats = Stats::create().unwrap();
    let chain = UserChain {
        positions: 3,
        segments: vec![
            UserSegment {
                first_position: 0,
                functions: vec![FunctionConfig::Forward.into()],
                exit: UserExit::Internal {
                    socket: SocketId(OUT as u16),
                    position: 1,
                },
                shaping: None,
            },
            UserSegment {
                first_position: 2,
                functions: vec![FunctionConfig::Forward.into()],
                exit: UserExit::Port(SocketId(OUT as u16)),
                shaping: None,
            },
        ],
        ..one_segment(vec![])
    };
    let block = stats.allocate(1, 0, 3).unwrap();
    let counters = Arc::new(stats.file().chain_counters(block).unwrap());
    let mut segments = Segment::build(&chain, &counters, &mut States::default()).unwrap();
    segments[1].functions = vec![Box::new(SendBack { copies: 1 })];
    let bench = Bench::new();
    let mut forwarder = bench.forwarder(4);
    forwarder.add_segments(segments);
    let packet = udp(20);
    let arrive = |forwarder: &mut Forwarder<'_, MemoryPort>, port: usize, position: u8| {
        let memory = forwarder.memory;
        let port = forwarder.port_mut(port).unwrap();
        assert!(port.inject(memory, &meta_of(&packet, 1, position), &packet));
        forwarder.turn();
    };
    // Before a packet came in by the first segment there is no way back.
    arrive(&mut forwarder, OUT, 2);
    assert_eq!(stats.chain(1, 0).unwrap().transmit_drops, 1);
    arrive(&mut forwarder, IN, 0);
    sent(&mut forwarder);
    arrive(&mut forwarder, OUT, 2);
    let back = forwarder.port_mut(IN).unwrap().take_sent();
    assert_eq!(back, [build::payload(20)]);
    assert!(sent(&mut forwarder).is_empty());
    assert_eq!(frames(&forwarder), FRAMES as usize);
}

#[test]
fn a_reply_over_a_link_with_a_forwarder_says_that_it_goes_back() {
    let mut stats_bench = Bench::new();
    let bench = Bench::new();
    let mut forwarder = bench.forwarder(4);
    let functions: Vec<Box<dyn Function>> = vec![Box::new(SendBack { copies: 1 })];
    add_functions(&mut stats_bench, &mut forwarder, functions, Some(2));
    let packet = udp(20);
    // In by the port that leads out.
    let memory = forwarder.memory;
    let link = forwarder.port_mut(OUT).unwrap();
    assert!(link.inject(memory, &meta_of(&packet, 1, 1), &packet));
    forwarder.turn();
    let back = sent(&mut forwarder);
    assert_eq!(back.len(), 1);
    let (context, reply) = myelin_packet::fixtures::nsh::decapsulate(&back[0]).unwrap();
    assert_eq!(
        (context.spi, context.generation, context.position),
        (1, 0, 0)
    );
    assert_eq!(reply, build::payload(20));
    assert_eq!(frames(&forwarder), FRAMES as usize);
}
