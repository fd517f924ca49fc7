//! Sends datagrams of any bytes to a recoder that replaces all coded packets.

use myelin_coding::CodedPayload;
use myelin_functions::{Packet, instantiate};
use myelin_packet::fixtures::build;
use myelin_packet::{Meta, checksum, parse};
use myelin_spec::{FunctionConfig, RlncCoded, RlncRecodeConfig};

use super::payloads::payloads;

/// Runs the target on one input.
pub fn run(bytes: &[u8]) {
    let config = RlncRecodeConfig {
        coded: RlncCoded::Replace,
        redundancy: 1_000_000,
        ..RlncRecodeConfig::default()
    };
    let mut function = instantiate(&FunctionConfig::RlncRecode(config)).expect("a function");
    let mut emitted: Vec<(Meta, Vec<u8>)> = Vec::new();
    for payload in payloads(bytes) {
        let frame = build::udp(build::client_v4(), build::server_v4(), payload);
        let meta = Meta::new(0, 1, 1, 0, &parse(&frame).expect("a frame that parses"));
        let mut buffer = [&frame[..], &[0; 16]].concat();
        let mut packet = Packet::new(&mut buffer, 0, frame.len(), meta, 0).expect("a packet");
        function.process(&mut packet, &mut emitted);
    }
    for (_, frame) in emitted {
        let headers = parse(&frame).expect("a frame that parses");
        assert_eq!(checksum::l4_is_valid(&frame, &headers), Some(true));
        let payload = &frame[headers.payload.into()..headers.end.into()];
        assert!(matches!(
            CodedPayload::parse(payload),
            Some(CodedPayload::Recoded { .. })
        ));
    }
}
