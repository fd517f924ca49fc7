//! Parses frames of any bytes, and passes them through NSH and `xor`.

use myelin_functions::{Discard, Packet, Verdict, instantiate};
use myelin_packet::fixtures::nsh::decapsulate;
use myelin_packet::{IcmpQuote, Meta, checksum, nsh, parse};
use myelin_spec::{FunctionConfig, XorConfig};

/// Runs the target on one input.
pub fn run(frame: &[u8]) {
    let _ = decapsulate(frame);
    if let Some((bytes, frame)) = frame.split_first_chunk() {
        // No metadata may point outside the frame.
        if let Some(headers) = Meta::from_bytes(bytes).headers(frame) {
            assert!(headers.try_five_tuple(frame).is_some());
            let _ = checksum::l4_checksum(frame, &headers);
        }
    }
    let Ok(headers) = parse(frame) else { return };
    let [l3, l4, payload, end] =
        [headers.l3, headers.l4, headers.payload, headers.end].map(usize::from);
    assert!(14 <= l3 && l3 < l4 && l4 <= payload && payload <= end);
    assert!(end <= frame.len());
    let tuple = headers.try_five_tuple(frame).expect("a five-tuple");
    assert_eq!(tuple.source_port.is_some(), headers.flags.has_ports());
    assert_eq!(
        checksum::l4_checksum(frame, &headers).is_some(),
        headers.flags.has_ports()
    );

    if let Some(quote) = IcmpQuote::find(frame, &headers) {
        assert!(l4 + 8 <= quote.l3 && quote.l3 < quote.l4 && quote.l4 + 8 <= quote.end);
        let quoted = quote.five_tuple(frame).expect("a quoted five-tuple");
        assert_eq!(quoted.source, tuple.destination);
    }

    let meta = Meta::new(1, 2, 3, 4, &headers);
    assert_eq!(meta.headers(frame), Some(headers));
    let encapsulated = [
        &nsh::encapsulate(&meta, frame).expect("long enough")[..],
        frame,
    ]
    .concat();
    let (context, inner) = decapsulate(&encapsulated).expect("an encapsulated frame");
    assert_eq!((context.position, inner), (4, frame));

    let mut buffer = frame.to_vec();
    let mut xor = instantiate(&FunctionConfig::Xor(XorConfig { key: 0x5a })).expect("a function");
    let mut packet = Packet::new(&mut buffer, 0, frame.len(), meta, 0).expect("a packet");
    let expected = if headers.flags.has_ports() {
        Verdict::Forward
    } else {
        Verdict::Drop
    };
    assert_eq!(xor.process(&mut packet, &mut Discard), expected);
    assert_eq!(xor.process(&mut packet, &mut Discard), expected);
    assert_eq!(packet.payload(), &frame[payload..end]);
    assert_eq!(packet.bytes()[end..], frame[end..]);
    assert_eq!(
        checksum::l4_is_valid(packet.bytes(), &headers),
        checksum::l4_is_valid(frame, &headers)
    );
}
