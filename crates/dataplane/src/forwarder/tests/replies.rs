//! Tests that replies leave through the chain's ingress port.

use myelin_functions::States;

use super::*;

/// Sends each packet's payload back as a frame, `copies` times, and drops the packet.
struct PayloadReplier {
    copies: usize,
}

impl Function for PayloadReplier {
    fn process(&mut self, packet: &mut Packet<'_>, emitter: &mut dyn Emitter) -> Verdict {
        for _ in 0..self.copies {
            emitter.reply(packet.meta(), packet.payload());
        }
        Verdict::Drop
    }
}

/// Adds a segment with one [`PayloadReplier`].
fn add_replier(
    fixture: &mut ForwarderFixture,
    forwarder: &mut Forwarder<'_, MemoryPort>,
    copies: usize,
) {
    add_functions(
        fixture,
        forwarder,
        vec![Box::new(PayloadReplier { copies })],
        None,
    );
}

#[test]
fn a_reply_leaves_through_the_ingress_port() {
    let mut stats_fixture = ForwarderFixture::new();
    let fixture = ForwarderFixture::new();
    let mut forwarder = fixture.forwarder(4);
    add_replier(&mut stats_fixture, &mut forwarder, 2);
    let packet = udp(20);
    inject(&mut forwarder, &meta_of(&packet, 1, 1), &packet);
    forwarder.process_batches();
    let back = forwarder.port_mut(IN).unwrap().take_sent();
    assert_eq!(back, vec![build::payload(20); 2]);
    assert!(take_sent(&mut forwarder).is_empty());
    let seen = stats_fixture.stats.chain(1, 0).unwrap();
    let function = &seen.positions[1];
    assert_eq!(
        (function.packets_in, function.drops, function.emitted),
        (1, 1, 0)
    );
    assert_eq!((seen.transmitted, seen.transmit_drops), (0, 0));
    assert_eq!(count_frames(&forwarder), FRAMES as usize);
}

#[test]
fn replies_without_room_are_dropped_and_counted() {
    let mut stats_fixture = ForwarderFixture::new();
    let fixture = ForwarderFixture::new();
    let mut forwarder = fixture.forwarder(4);
    add_replier(&mut stats_fixture, &mut forwarder, RING + 3);
    // The second payload is too short for a frame.
    for payload in [20, 13] {
        let packet = udp(payload);
        inject(&mut forwarder, &meta_of(&packet, 1, 1), &packet);
    }
    forwarder.process_batches();
    let back = forwarder.port_mut(IN).unwrap().take_sent();
    assert_eq!(back.len(), RING);
    let seen = stats_fixture.stats.chain(1, 0).unwrap();
    assert_eq!(seen.transmit_drops, 3 + RING as u64 + 3);
    assert_eq!(count_frames(&forwarder), FRAMES as usize);
}

#[test]
fn a_later_segment_replies_through_the_port_of_the_first() {
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
    segments[1].functions = vec![Box::new(PayloadReplier { copies: 1 })];
    let fixture = ForwarderFixture::new();
    let mut forwarder = fixture.forwarder(4);
    forwarder.add_segments(segments);
    let packet = udp(20);
    let arrive = |forwarder: &mut Forwarder<'_, MemoryPort>, port: usize, position: u8| {
        let memory = forwarder.memory;
        let port = forwarder.port_mut(port).unwrap();
        assert!(port.inject(memory, &meta_of(&packet, 1, position), &packet));
        forwarder.process_batches();
    };
    // Before a packet arrives at the first segment, the forwarder does not know the ingress port.
    arrive(&mut forwarder, OUT, 2);
    assert_eq!(stats.chain(1, 0).unwrap().transmit_drops, 1);
    arrive(&mut forwarder, IN, 0);
    take_sent(&mut forwarder);
    arrive(&mut forwarder, OUT, 2);
    let back = forwarder.port_mut(IN).unwrap().take_sent();
    assert_eq!(back, [build::payload(20)]);
    assert!(take_sent(&mut forwarder).is_empty());
    assert_eq!(count_frames(&forwarder), FRAMES as usize);
}

#[test]
fn a_reply_over_an_internal_link_carries_an_nsh_header() {
    let mut stats_fixture = ForwarderFixture::new();
    let fixture = ForwarderFixture::new();
    let mut forwarder = fixture.forwarder(4);
    let functions: Vec<Box<dyn Function>> = vec![Box::new(PayloadReplier { copies: 1 })];
    add_functions(&mut stats_fixture, &mut forwarder, functions, Some(2));
    let packet = udp(20);
    // The packet arrives at the port that is also the exit.
    let memory = forwarder.memory;
    let link = forwarder.port_mut(OUT).unwrap();
    assert!(link.inject(memory, &meta_of(&packet, 1, 1), &packet));
    forwarder.process_batches();
    let back = take_sent(&mut forwarder);
    assert_eq!(back.len(), 1);
    let (context, reply) = myelin_packet::fixtures::nsh::decapsulate(&back[0]).unwrap();
    assert_eq!(
        (context.spi, context.generation, context.position),
        (1, 0, 0)
    );
    assert_eq!(reply, build::payload(20));
    assert_eq!(count_frames(&forwarder), FRAMES as usize);
}
