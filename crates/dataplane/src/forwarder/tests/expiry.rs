//! Tests timers of functions, and counters that functions name.

use super::*;

const EVERY_NS: u64 = 100_000;

/// Holds packets until its timer expires, and counts them.
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

    fn timer_ns(&self) -> Option<u64> {
        Some(EVERY_NS)
    }

    fn expire(&mut self, _now_ns: u64, emitter: &mut dyn Emitter) {
        for (meta, frame) in self.held.drain(..) {
            emitter.emit(&meta, &frame);
            self.released += 1;
        }
    }

    fn awaits_timer(&self) -> bool {
        !self.held.is_empty()
    }

    fn read_counters(&self, sink: &mut dyn FnMut(&'static str, u64)) {
        sink("released", self.released);
    }
}

#[test]
fn a_due_function_is_called_and_its_packets_continue_at_the_next_function() {
    let mut stats_bench = Bench::new();
    let bench = Bench::new();
    let mut forwarder = bench.forwarder(8);
    assert!(!forwarder.has_timers());
    let xor = || instantiate(&FunctionConfig::Xor(XorConfig { key: 0xff })).unwrap();
    let functions = vec![xor(), Box::new(PacketHolder::default()), xor()];
    add_functions(&mut stats_bench, &mut forwarder, functions, None);
    // The first call only gives the function the time. It holds no packet yet.
    assert_eq!(forwarder.due_ns(), Some(0));
    forwarder.expire();
    assert_eq!(forwarder.due_ns(), None);
    let packets = [udp(20), udp(30), udp(40)];
    let start = NOW_NS.get();
    for packet in &packets {
        inject(&mut forwarder, &meta_of(packet, 1, 1), packet);
    }
    forwarder.turn();
    let due = forwarder.due_ns().expect("packets arrived");
    assert!((EVERY_NS..EVERY_NS + 200).contains(&(due - start)));
    forwarder.expire();
    assert!(sent(&mut forwarder).is_empty(), "the timer is not due");
    NOW_NS.set(due);
    forwarder.expire();
    assert_eq!(sent(&mut forwarder), packets);
    assert_eq!(forwarder.due_ns(), None, "no packet is held");
    let mut told = Vec::new();
    forwarder.read_counters(1, 0, &mut told);
    assert_eq!(told, [(2, "released", 3)]);
    let seen = stats_bench.stats.chain(1, 0).unwrap();
    assert_eq!(
        (seen.positions[2].emitted, seen.positions[3].packets_in),
        (3, 3)
    );
    assert_eq!((seen.transmitted, seen.sojourn.count()), (3, 3));
    assert_eq!(frames(&forwarder), FRAMES as usize);
    forwarder.remove_segments(1, 0);
    assert!(!forwarder.has_timers());
}
