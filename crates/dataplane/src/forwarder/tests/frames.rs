//! Tests that no frame gets lost.

use super::*;

#[test]
fn packets_emitted_without_a_free_frame_are_lost_and_counted() {
    let mut stats_fixture = ForwarderFixture::new();
    let fixture = ForwarderFixture::new();
    let mut forwarder = fixture.forwarder(1);
    add_functions(
        &mut stats_fixture,
        &mut forwarder,
        vec![Box::new(CopyEmitter { copies: 1000 })],
        None,
    );
    let free = forwarder.free_frames();
    inject(&mut forwarder, &meta_of(&udp(20), 1, 1), &udp(20));
    forwarder.process_batches();
    let seen = stats_fixture.stats.chain(1, 0).unwrap();
    assert_eq!(seen.positions[1].emitted, free as u64);
    assert_eq!(fixture.stats.worker().no_frame, 1000 - free as u64);
    // The ring holds 64 packets. Each flush makes room.
    assert!(free > 4 * RING);
    assert_eq!(
        (seen.transmitted, seen.transmit_drops),
        (free as u64 + 1, 0)
    );
    assert_eq!(take_sent(&mut forwarder).len(), free + 1);
    assert_eq!(count_frames(&forwarder), FRAMES as usize);
}

#[test]
fn no_frame_is_lost_in_many_packets() {
    forward_packets(100_000);
}

#[test]
#[ignore = "thorough: forwards a million packets"]
fn no_frame_is_lost_in_a_million_packets() {
    forward_packets(1_000_000);
}

/// Forwards packets of known and unknown chains, over a link that goes up and down. Each frame is
/// always in the pool or in a port.
fn forward_packets(packets: usize) {
    let stats = Stats::create().unwrap();
    let fixture = ForwarderFixture::new();
    let mut forwarder = fixture.forwarder(32);
    let drop_some = FunctionConfig::Firewall(FirewallConfig {
        rules: vec![Rule {
            protocol: Some(6),
            ..Rule::any(Action::Deny)
        }],
        default: Action::Allow,
        fragments: FragmentPolicy::Drop,
    });
    forwarder
        .deploy(
            &one_segment(vec![FunctionConfig::Forward, drop_some]),
            &stats,
        )
        .unwrap();
    let udp = udp(20);
    let tcp = build::tcp(build::client_v4(), build::server_v4(), b"x");
    let metas = [
        (meta_of(&udp, 1, 0), &udp),
        (meta_of(&tcp, 1, 0), &tcp),
        (meta_of(&udp, 2, 0), &udp),
        (
            Meta {
                payload: 9000,
                ..meta_of(&udp, 1, 0)
            },
            &udp,
        ),
    ];
    let (mut injected, mut refused, mut left, mut round) = (0, 0, 0, 0_usize);
    while injected < packets {
        round += 1;
        let up = round % 40 >= 20;
        forwarder.port_mut(OUT).unwrap().set_link(up);
        for i in 0..48 {
            let (meta, packet) = &metas[(round + i * i) % 4];
            let memory = forwarder.memory;
            if forwarder.port_mut(IN).unwrap().inject(memory, meta, packet) {
                injected += 1;
            } else {
                refused += 1;
            }
        }
        forwarder.process_batches();
        left += take_sent(&mut forwarder).len();
        assert_eq!(
            count_frames(&forwarder),
            FRAMES as usize,
            "in round {round}"
        );
    }
    forwarder.port_mut(OUT).unwrap().set_link(true);
    while forwarder.process_batches() > 0 {}
    forwarder.flush_and_refill();
    left += take_sent(&mut forwarder).len();
    assert_eq!(count_frames(&forwarder), FRAMES as usize);
    assert!(
        refused > 0,
        "the fill ring never ran empty: the test must inject more packets"
    );
    let (chain, worker) = (stats.chain(1, 0).unwrap(), fixture.stats.worker());
    assert!(
        chain.transmit_drops > 0,
        "the TX ring was never full: the test must keep the link down longer"
    );
    assert_eq!(worker.received, injected as u64);
    assert_eq!(chain.transmitted, left as u64);
    let dropped =
        chain.positions[1].drops + chain.transmit_drops + worker.unknown_chain + worker.malformed;
    assert_eq!(worker.received, chain.transmitted + dropped);
    assert_eq!(worker.invalid_descriptors, 0);
}

#[test]
fn a_full_transmit_ring_drops_the_newest_packets_until_the_link_is_up() {
    let stats = Stats::create().unwrap();
    let fixture = ForwarderFixture::new();
    let mut forwarder = fixture.forwarder(RING as u16);
    forwarder
        .deploy(&one_segment(vec![FunctionConfig::Forward]), &stats)
        .unwrap();
    forwarder.port_mut(OUT).unwrap().set_link(false);
    for round in 0..3 {
        for i in 0..40 {
            let packet = udp(round * 40 + i);
            inject(&mut forwarder, &meta_of(&packet, 1, 0), &packet);
        }
        forwarder.process_batches();
    }
    assert_eq!(stats.chain(1, 0).unwrap().transmit_drops, 120 - RING as u64);
    // One kick per batch, and one more per batch that found the ring full. A dropped packet causes
    // no kick.
    assert_eq!(fixture.stats.worker().kicks, 3 + 2);
    assert_eq!(count_frames(&forwarder), FRAMES as usize);
    forwarder.port_mut(OUT).unwrap().set_link(true);
    forwarder.flush_and_refill();
    let expected: Vec<Vec<u8>> = (0..RING).map(udp).collect();
    assert_eq!(take_sent(&mut forwarder), expected);
}

#[test]
fn frames_of_a_removed_port_return_to_the_pool() {
    let fixture = ForwarderFixture::new();
    let mut forwarder = fixture.forwarder(4);
    let packet = udp(10);
    inject(&mut forwarder, &meta_of(&packet, 1, 0), &packet);
    let port = forwarder.remove_port(IN).unwrap();
    assert_eq!(port.frames(), RING);
    drop(port);
    assert!(forwarder.remove_port(IN).is_none());
    forwarder.take_frames_of(Borrower::new(IN).unwrap());
    assert_eq!(count_frames(&forwarder), FRAMES as usize);
}

#[test]
fn a_packet_longer_than_a_frame_is_not_emitted() {
    /// Emits a packet that just fits a frame, and a packet that is a byte too long.
    struct LongEmitter;
    impl Function for LongEmitter {
        fn process(&mut self, packet: &mut Packet<'_>, emitter: &mut dyn Emitter) -> Verdict {
            for payload in [2048 - 256 - 42, 2048 - 256 - 41] {
                emitter.emit(packet.meta(), &udp(payload));
            }
            Verdict::Forward
        }
    }
    let mut stats_fixture = ForwarderFixture::new();
    let fixture = ForwarderFixture::new();
    let mut forwarder = fixture.forwarder(1);
    add_functions(
        &mut stats_fixture,
        &mut forwarder,
        vec![Box::new(LongEmitter)],
        None,
    );
    inject(&mut forwarder, &meta_of(&udp(20), 1, 1), &udp(20));
    forwarder.process_batches();
    assert_eq!(take_sent(&mut forwarder), [udp(20), udp(2048 - 256 - 42)]);
    assert_eq!(fixture.stats.worker().no_frame, 1);
    assert_eq!(count_frames(&forwarder), FRAMES as usize);
}

/// Calls a function that damages the packet. Also emits bytes that are no packet.
struct PacketDamager(fn(&mut Packet<'_>));

impl Function for PacketDamager {
    fn process(&mut self, packet: &mut Packet<'_>, emitter: &mut dyn Emitter) -> Verdict {
        (self.0)(packet);
        emitter.emit(packet.meta(), &[0xff; 3]);
        Verdict::Forward
    }
}

#[test]
fn a_packet_that_no_port_can_send_is_dropped_and_counted() {
    let take_headroom: fn(&mut Packet<'_>) = |packet| {
        let room = packet.headroom() - 10;
        packet.push_front(room).unwrap();
    };
    let empty: fn(&mut Packet<'_>) = |packet| packet.trim_tail(packet.len()).unwrap();
    for (damage, inward) in [(take_headroom, Some(2)), (empty, None), (empty, Some(2))] {
        let mut stats_fixture = ForwarderFixture::new();
        let fixture = ForwarderFixture::new();
        let mut forwarder = fixture.forwarder(1);
        add_functions(
            &mut stats_fixture,
            &mut forwarder,
            vec![Box::new(PacketDamager(damage))],
            inward,
        );
        inject(&mut forwarder, &meta_of(&udp(20), 1, 1), &udp(20));
        forwarder.process_batches();
        assert_eq!(take_sent(&mut forwarder), [[0; 0]; 0]);
        let seen = stats_fixture.stats.chain(1, 0).unwrap();
        assert_eq!((seen.transmitted, seen.transmit_drops), (0, 1));
        assert_eq!(
            fixture.stats.worker().no_frame,
            1,
            "the emitted bytes are no packet"
        );
        assert_eq!(count_frames(&forwarder), FRAMES as usize);
    }
}
