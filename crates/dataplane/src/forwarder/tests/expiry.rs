//! Tests the timers and the named counters of functions.

use super::*;

const PERIOD_NS: u64 = 100_000;

/// Holds packets until the timer expires. Counts the released packets.
#[derive(Default)]
struct PacketHolder {
    held: Vec<(Meta, Vec<u8>)>,
    released: u64,
}

impl Function for PacketHolder {
    fn process(&mut self, packet: &mut Packet<'_>, _emitter: &mut dyn Emitter) -> Verdict {
        self.held.push((*packet.meta(), packet.bytes().to_vec()));
        Verdict::Drop
    }

    fn timer_period_ns(&self) -> Option<u64> {
        Some(PERIOD_NS)
    }

    fn run_timer(&mut self, _now_ns: u64, emitter: &mut dyn Emitter) {
        for (meta, frame) in self.held.drain(..) {
            emitter.emit(&meta, &frame);
            self.released += 1;
        }
    }

    fn needs_timer(&self) -> bool {
        !self.held.is_empty()
    }

    fn read_counters(&self, sink: &mut dyn FnMut(&'static str, u64)) {
        sink("released", self.released);
    }
}

#[test]
fn a_due_timer_calls_its_function_and_emitted_packets_continue() {
    let mut stats_fixture = ForwarderFixture::new();
    let fixture = ForwarderFixture::new();
    let mut forwarder = fixture.forwarder(8);
    assert!(!forwarder.has_timers());
    let xor = || instantiate(&FunctionConfig::Xor(XorConfig { key: 0xff })).unwrap();
    let functions = vec![xor(), Box::new(PacketHolder::default()), xor()];
    add_functions(&mut stats_fixture, &mut forwarder, functions, None);
    // The first call only gives the function the time, because the function holds no packet yet.
    assert_eq!(forwarder.next_timer_ns(), Some(0));
    forwarder.run_timers();
    assert_eq!(forwarder.next_timer_ns(), None);
    let packets = [udp(20), udp(30), udp(40)];
    let start = NOW_NS.get();
    for packet in &packets {
        inject(&mut forwarder, &meta_of(packet, 1, 1), packet);
    }
    forwarder.process_batches();
    let due = forwarder.next_timer_ns().expect("packets arrived");
    assert!((PERIOD_NS..PERIOD_NS + 200).contains(&(due - start)));
    forwarder.run_timers();
    assert!(take_sent(&mut forwarder).is_empty(), "the timer is not due");
    NOW_NS.set(due);
    forwarder.run_timers();
    assert_eq!(take_sent(&mut forwarder), packets);
    assert_eq!(forwarder.next_timer_ns(), None, "no packet is held");
    let mut readings = Vec::new();
    forwarder.read_counters(1, 0, &mut readings);
    assert_eq!(readings, [(2, "released", 3)]);
    let seen = stats_fixture.stats.chain(1, 0).unwrap();
    assert_eq!(
        (seen.positions[2].emitted, seen.positions[3].packets_in),
        (3, 3)
    );
    assert_eq!((seen.transmitted, seen.sojourn.count()), (3, 3));
    assert_eq!(count_frames(&forwarder), FRAMES as usize);
    forwarder.remove_segments(1, 0);
    assert!(!forwarder.has_timers());
}
