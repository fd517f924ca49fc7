//! Frames for test runs.

/// A UDP packet over IPv4 from port 40000, without a UDP checksum (RFC 768 allows that), with
/// `payload` bytes.
pub(crate) fn udp_frame(source: [u8; 4], destination: [u8; 4], port: u16, payload: u16) -> Vec<u8> {
    // Ethernet, IPv4 (no options, do not fragment, TTL 64), UDP.
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0];
    frame.extend_from_slice(&(28 + payload).to_be_bytes());
    frame.extend_from_slice(&[0, 0, 0x40, 0, 64, 17, 0, 0]);
    frame.extend_from_slice(&source);
    frame.extend_from_slice(&destination);
    frame.extend_from_slice(&40_000_u16.to_be_bytes());
    frame.extend_from_slice(&port.to_be_bytes());
    frame.extend_from_slice(&(8 + payload).to_be_bytes());
    frame.extend_from_slice(&[0, 0]);
    frame.resize(42 + usize::from(payload), 0xa5);
    frame
}

/// Pseudo-random numbers, equal in every run (`SplitMix64`, Steele et al. 2014).
#[derive(Debug)]
pub(crate) struct SplitMix(pub(crate) u64);

impl SplitMix {
    /// A number below `bound`.
    pub(crate) fn draw_below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_frame_has_the_given_fields() {
        let frame = udp_frame([10, 0, 0, 1], [10, 9, 8, 7], 53, 100);
        let tuple = myelin_packet::parse(&frame).unwrap().five_tuple(&frame);
        assert_eq!(tuple.destination.to_string(), "10.9.8.7");
        assert_eq!(
            (tuple.source_port, tuple.destination_port),
            (Some(40_000), Some(53))
        );
        assert_eq!(frame.len(), 142);
    }

    #[test]
    fn numbers_are_uniform() {
        let mut random = SplitMix(1);
        let mut counts = [0; 10];
        for _ in 0..1000 {
            counts[random.draw_below(10) as usize] += 1;
        }
        assert!(
            counts.iter().all(|count| (60..150).contains(count)),
            "{counts:?}"
        );
    }
}
