//! Sends datagrams of any bytes to a decoder, with immediate and with in-order delivery.

use myelin_functions::{Packet, instantiate};
use myelin_packet::fixtures::build;
use myelin_packet::{Meta, parse};
use myelin_spec::{FunctionConfig, RlncDecodeConfig, RlncDelivery};

use super::payloads::payloads;

/// Runs the target on one input.
pub fn run(bytes: &[u8]) {
    for delivery in [RlncDelivery::Immediate, RlncDelivery::InOrder] {
        let config = RlncDecodeConfig {
            delivery,
            buffer: 128,
            ..RlncDecodeConfig::default()
        };
        let config = FunctionConfig::RlncDecode(config);
        let mut function = instantiate(&config).expect("a function");
        let mut emitted: Vec<(Meta, Vec<u8>)> = Vec::new();
        for (now_ns, payload) in (0..).zip(payloads(bytes)) {
            let frame = build::udp(build::client_v4(), build::server_v4(), payload);
            let meta = Meta::new(0, 1, 1, 0, &parse(&frame).expect("a frame that parses"));
            let (len, mut buffer) = (frame.len(), frame);
            let mut packet = Packet::new(&mut buffer, 0, len, meta, 0).expect("a packet");
            function.set_time(now_ns);
            function.process(&mut packet, &mut emitted);
        }
        function.run_timer(u64::MAX, &mut emitted);
        // Each recovered packet is a complete UDP packet.
        for (_, frame) in emitted {
            let headers = parse(&frame).expect("a frame that parses");
            assert!(headers.flags.has_ports());
            assert_eq!(usize::from(headers.end), frame.len());
        }
    }
}
