//! Receives frames between two nodes. A frame that is taken is sent again with the same headers.

use myelin_packet::MacAddr;
use myelin_packet::fixtures::wire::{Sender, complete, receive};
use myelin_packet::wire::{Tunnel, WireHeader, header_len};

/// Runs the target on one input.
pub fn run(frame: &[u8]) {
    let Ok(received) = receive(frame) else { return };
    assert!((1..=63).contains(&received.ttl));
    let (source, tunnel) = match received.sender {
        Sender::Ethernet(source) => (source, None),
        Sender::Vxlan { remote, local, vni } => {
            let tunnel = Tunnel {
                local: remote,
                remote: local,
                vni,
            };
            (MacAddr([2, 0, 0, 0, 0, 1]), Some(tunnel))
        }
    };
    let headers = header_len(tunnel.as_ref());
    assert_eq!(received.inner, &frame[headers..]);
    // The lengths of a tunnel have 16 bits.
    if frame.len() > 65_535 {
        return;
    }
    let header = WireHeader {
        source,
        next_hop: MacAddr([2, 0, 0, 0, 0, 2]),
        path: received.path,
        index: received.index,
        tunnel,
        destination: None,
    };
    let sent = complete(&header, received.inner);
    let again = receive(&sent).expect("a frame as a node sends it");
    assert_eq!((again.path, again.index), (received.path, received.index));
    assert_eq!(
        (again.sender, again.inner),
        (received.sender, received.inner)
    );
}
