//! Runs a function on one frame and returns the result.

#![allow(dead_code, reason = "no test binary uses all functions")]

pub(crate) mod endpoints;

use std::collections::BTreeMap;

use myelin_functions::{Discard, Emitter, Function, Packet, Verdict, instantiate};
use myelin_packet::{Meta, checksum, parse};
use myelin_spec::FunctionConfig;

/// Panics when a function emits a packet.
struct NoEmission;

impl Emitter for NoEmission {
    fn emit(&mut self, _origin: &Meta, _frame: &[u8]) {
        panic!("the function must not emit packets");
    }

    fn reply(&mut self, _origin: &Meta, _frame: &[u8]) {
        panic!("the function must not send replies");
    }
}

/// Makes a function from its configuration.
pub(crate) fn function(config: &FunctionConfig) -> Box<dyn Function> {
    instantiate(config).expect("a valid configuration")
}

/// Runs `function` on `frame`. Returns the forwarded frame, or `None` for a drop. Checks that the
/// bytes around the frame do not change.
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

/// Runs `function` on `frame` with `room` bytes after the frame. Returns the forwarded frame, or
/// `None` for a drop. Checks the packet's headers.
pub(crate) fn run_with_room(
    function: &mut dyn Function,
    frame: &[u8],
    room: usize,
) -> Option<Vec<u8>> {
    run_stamped(function, frame, room, 1)
}

/// Like [`run_with_room`], for a packet with the stamp `stamp_ns`.
pub(crate) fn run_stamped(
    function: &mut dyn Function,
    frame: &[u8],
    room: usize,
    stamp_ns: u64,
) -> Option<Vec<u8>> {
    const FRONT: [u8; 16] = [0xa5; 16];
    let mut buffer = [&FRONT[..], frame, &vec![0x5a; room]].concat();
    let meta = Meta::new(
        stamp_ns,
        2,
        3,
        0,
        &parse(frame).expect("a frame that parses"),
    );
    let mut packet = Packet::new(&mut buffer, FRONT.len(), frame.len(), meta, 0).expect("a packet");
    let verdict = function.process(&mut packet, &mut Discard);
    let (out, headers) = (packet.bytes().to_vec(), *packet.headers());
    assert_eq!(buffer[..FRONT.len()], FRONT, "headroom was written");
    (verdict == Verdict::Forward).then(|| {
        assert_eq!(Ok(headers), parse(&out));
        out
    })
}

/// Returns the counters of `function`.
pub(crate) fn counters(function: &dyn Function) -> BTreeMap<&'static str, u64> {
    let mut counters = BTreeMap::new();
    function.read_counters(&mut |name, count| {
        assert_eq!(counters.insert(name, count), None, "{name} twice");
    });
    counters
}

/// Returns the payload of `frame`.
pub(crate) fn payload_of(frame: &[u8]) -> &[u8] {
    let headers = parse(frame).expect("a frame that parses");
    &frame[headers.payload.into()..headers.end.into()]
}

/// Asserts that lengths and checksums are correct and that no bytes follow the IP packet.
#[track_caller]
pub(crate) fn assert_valid(frame: &[u8]) {
    let headers = parse(frame).expect("a frame that parses");
    assert_eq!(
        usize::from(headers.end),
        frame.len(),
        "bytes behind the packet"
    );
    assert_eq!(checksum::l4_is_valid(frame, &headers), Some(true));
    let header = &frame[headers.l3.into()..headers.l4.into()];
    assert!(headers.flags.is_ipv6() || checksum::checksum(header) == 0);
}
