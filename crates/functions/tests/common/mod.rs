//! Runs a function on one frame.

use myelin_functions::{Emitter, Function, Packet, Verdict, instantiate};
use myelin_packet::{Meta, parse};
use myelin_spec::FunctionConfig;

/// Emits nothing and says so.
struct NoEmission;

impl Emitter for NoEmission {
    fn emit(&mut self, _origin: &Meta, _frame: &[u8]) {
        panic!("nothing is to be emitted");
    }

    fn reply(&mut self, _origin: &Meta, _frame: &[u8]) {
        panic!("nothing is to be sent back");
    }
}

/// A new function of that configuration.
pub(crate) fn function(config: &FunctionConfig) -> Box<dyn Function> {
    instantiate(config).expect("a valid configuration")
}

/// What `function` makes of `frame`, `None` when it drops it. The bytes around the frame must stay
/// as they are.
pub(crate) fn run(function: &mut dyn Function, frame: &[u8]) -> Option<Vec<u8>> {
    const AROUND: [u8; 32] = [0xa5; 32];
    let headers = parse(frame).expect("a frame that parses");
    let mut buffer = [&AROUND[..], frame, &AROUND].concat();
    let meta = Meta::new(1, 2, 3, 0, &headers);
    let mut packet =
        Packet::new(&mut buffer, AROUND.len(), frame.len(), meta, 0).expect("a packet");
    let verdict = function.process(&mut packet, &mut NoEmission);
    let out = packet.bytes().to_vec();
    assert_eq!(buffer[..32], AROUND, "headroom was written");
    assert_eq!(buffer[buffer.len() - 32..], AROUND, "tailroom was written");
    (verdict == Verdict::Forward).then_some(out)
}
