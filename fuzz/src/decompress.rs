//! Sends payloads of any bytes to `decompress`, directly and through `compress`.

use myelin_functions::compression::is_marked;
use myelin_functions::{Discard, Function, Packet, Verdict, instantiate};
use myelin_packet::{Meta, checksum, parse};
use myelin_spec::{
    CompressConfig, CompressionAlgorithm, DecompressConfig, Dictionary, FunctionConfig,
};

/// Longest payload over IPv4 in an MTU of 1500 bytes.
const MAX_PAYLOAD: usize = 1472;

/// Returns a UDP packet over IPv4 with valid checksums.
fn frame(payload: &[u8]) -> Vec<u8> {
    let udp_len = (payload.len() + 8) as u16;
    let mut frame = vec![0; 42];
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14..34].copy_from_slice(&[
        0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
    ]);
    frame[16..18].copy_from_slice(&(udp_len + 20).to_be_bytes());
    let header = checksum::checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&header.to_be_bytes());
    frame[34..38].copy_from_slice(&[0x9c, 0x40, 0x23, 0x28]);
    frame[38..40].copy_from_slice(&udp_len.to_be_bytes());
    frame.extend(payload);
    let headers = parse(&frame).expect("a UDP packet");
    let datagram = checksum::l4_checksum(&frame, &headers).expect("a UDP header");
    frame[40..42].copy_from_slice(&datagram.to_be_bytes());
    frame
}

fn send(function: &mut dyn Function, frame: &[u8]) -> Option<Vec<u8>> {
    let mut buffer = frame.to_vec();
    buffer.resize(2048, 0);
    let meta = Meta::new(1, 2, 3, 0, &parse(frame).expect("a packet"));
    let mut packet = Packet::new(&mut buffer, 0, frame.len(), meta, 0).expect("a packet");
    let verdict = function.process(&mut packet, &mut Discard);
    (verdict == Verdict::Forward).then(|| packet.bytes().to_vec())
}

/// Runs the target on one input.
pub fn run(input: &[u8]) {
    let Some((&choice, payload)) = input.split_first() else {
        return;
    };
    let payload = &payload[..payload.len().min(MAX_PAYLOAD)];
    let algorithm = match choice & 1 {
        0 => CompressionAlgorithm::Lz4,
        _ => CompressionAlgorithm::Zstd,
    };
    let dictionary = (choice & 2 != 0).then(|| Dictionary::new(b"temperature, pressure".to_vec()));
    let mut compress = instantiate(&FunctionConfig::Compress(CompressConfig {
        algorithm,
        dictionary: dictionary.clone(),
        ..CompressConfig::default()
    }))
    .expect("a function");
    let mut decompress = instantiate(&FunctionConfig::Decompress(DecompressConfig {
        dictionary,
        ..DecompressConfig::default()
    }))
    .expect("a function");

    let sent = frame(payload);
    if let Some(out) = send(&mut *decompress, &sent) {
        assert!(out.len() <= 1514);
        let headers = parse(&out).expect("a packet");
        assert_eq!(checksum::l4_is_valid(&out, &headers), Some(true));
    }
    match send(&mut *compress, &sent) {
        Some(compressed) => assert_eq!(send(&mut *decompress, &compressed), Some(sent)),
        None => assert!(is_marked(payload) && payload.len() > MAX_PAYLOAD - 4),
    }
}
