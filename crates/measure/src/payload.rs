//! The probe packet's UDP payload: a header with identity and time stamps, then a pattern.
//!
//! ```text
//!  0 magic u32 | 4 run u32 | 8 id u64 | 16 repeat u32 | 20 check u32
//! 24 client send ns u64 | 32 server receive ns u64 | 40 server send ns u64 | 48 pattern ...
//! ```
//! All fields are big endian; times are CLOCK_MONOTONIC. `check` covers the client's fields. A
//! chain of xor functions changes every byte by one key; [`Codec::read`] reverts this.

/// Length of the header, the smallest payload of a probe packet, bytes.
pub const HEADER_BYTES: usize = 48;

const MAGIC: u32 = u32::from_be_bytes(*b"MYLP");
const SERVER_TIMES: usize = 32;

/// Fields of the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) id: u64,
    pub(crate) repeat: u32,
    pub(crate) client_send_ns: u64,
    pub(crate) server_receive_ns: u64,
    pub(crate) server_send_ns: u64,
}

impl Header {
    /// Makes the header of a packet that the client sends.
    pub(crate) fn at_send(id: u64, repeat: u32, client_send_ns: u64) -> Self {
        Self {
            id,
            repeat,
            client_send_ns,
            server_receive_ns: 0,
            server_send_ns: 0,
        }
    }
}

/// Writes and reads the payloads of one run at one point of the path.
#[derive(Debug, Clone)]
pub(crate) struct Codec {
    run: u32,
    key: u8,
    pattern: Vec<u8>,
}

impl Codec {
    /// Makes a codec for packets of `run`. Each of the `payload_bytes` bytes is xored with `key`.
    pub(crate) fn new(run: u32, key: u8, payload_bytes: usize) -> Self {
        // A linear congruential generator, seeded by the run. It has no period that could equal the
        // block size of a function.
        let mut state = u64::from(run) | 1;
        let pattern = (HEADER_BYTES..payload_bytes)
            .map(|_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                (state >> 56) as u8
            })
            .collect();
        Self { run, key, pattern }
    }

    /// Makes a payload with the pattern and an empty header.
    pub(crate) fn template(&self) -> Vec<u8> {
        let keyed = self.pattern.iter().map(|byte| byte ^ self.key);
        std::iter::repeat_n(0, HEADER_BYTES).chain(keyed).collect()
    }

    /// Writes the header into a payload of at least [`HEADER_BYTES`].
    pub(crate) fn write(&self, payload: &mut [u8], header: &Header) {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..4].copy_from_slice(&MAGIC.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.run.to_be_bytes());
        bytes[8..16].copy_from_slice(&header.id.to_be_bytes());
        bytes[16..20].copy_from_slice(&header.repeat.to_be_bytes());
        bytes[20..24].copy_from_slice(&self.compute_check(header).to_be_bytes());
        bytes[24..32].copy_from_slice(&header.client_send_ns.to_be_bytes());
        bytes[32..40].copy_from_slice(&header.server_receive_ns.to_be_bytes());
        bytes[40..48].copy_from_slice(&header.server_send_ns.to_be_bytes());
        for (out, byte) in payload.iter_mut().zip(bytes) {
            *out = byte ^ self.key;
        }
    }

    /// Writes only the server's two times. The other bytes do not change.
    pub(crate) fn write_server_times(&self, payload: &mut [u8], receive_ns: u64, send_ns: u64) {
        let times = receive_ns
            .to_be_bytes()
            .into_iter()
            .chain(send_ns.to_be_bytes());
        for (out, byte) in payload.iter_mut().skip(SERVER_TIMES).zip(times) {
            *out = byte ^ self.key;
        }
    }

    /// Reads the header. `None` for a packet of another program or run, a damaged packet, or a
    /// packet transformed with an unknown key.
    pub(crate) fn read(&self, payload: &[u8]) -> Option<Header> {
        let plain = payload
            .first_chunk::<HEADER_BYTES>()?
            .map(|byte| byte ^ self.key);
        let word = |at: usize| {
            u32::from_be_bytes([plain[at], plain[at + 1], plain[at + 2], plain[at + 3]])
        };
        let long = |at: usize| u64::from(word(at)) << 32 | u64::from(word(at + 4));
        let header = Header {
            id: long(8),
            repeat: word(16),
            client_send_ns: long(24),
            server_receive_ns: long(32),
            server_send_ns: long(40),
        };
        let is_valid =
            word(0) == MAGIC && word(4) == self.run && word(20) == self.compute_check(&header);
        is_valid.then_some(header)
    }

    /// Whether the pattern behind the header is unchanged. Bytes after the pattern are no damage,
    /// because CALVIN's ATS appends time stamps.
    pub(crate) fn is_intact(&self, payload: &[u8]) -> bool {
        payload
            .get(HEADER_BYTES..HEADER_BYTES + self.pattern.len())
            .is_some_and(|rest| {
                rest.iter()
                    .zip(&self.pattern)
                    .all(|(got, sent)| got ^ self.key == *sent)
            })
    }

    /// Computes the check word from the client's fields.
    fn compute_check(&self, header: &Header) -> u32 {
        let mixed = (u64::from(self.run) << 32 | u64::from(header.repeat))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            ^ header.id.wrapping_mul(0xc2b2_ae3d_27d4_eb4f)
            ^ header.client_send_ns.wrapping_mul(0x1656_67b1_9e37_79f9);
        (mixed >> 32) as u32 ^ mixed as u32
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The client reads its header after xor functions in both directions and the server's
        /// stamps.
        #[test]
        fn codec_reverts_keys_in_both_directions(
            run: u32, id: u64, repeat: u32, time: u64, forward: u8, reply: u8, bytes in HEADER_BYTES..1473, receive: u64, send: u64,
        ) {
            let client = Codec::new(run, 0, bytes);
            let mut payload = client.template();
            client.write(&mut payload, &Header::at_send(id, repeat, time));
            prop_assert_eq!(payload.len(), bytes);
            for b in &mut payload { *b ^= forward; }

            let server = Codec::new(run, forward, bytes);
            prop_assert_eq!(server.read(&payload), Some(Header::at_send(id, repeat, time)));
            prop_assert!(server.is_intact(&payload));
            server.write_server_times(&mut payload, receive, send);
            for b in &mut payload { *b ^= reply; }

            let back = Codec::new(run, forward ^ reply, bytes);
            let expected = Header { server_receive_ns: receive, server_send_ns: send, ..Header::at_send(id, repeat, time) };
            prop_assert_eq!(back.read(&payload), Some(expected));
            prop_assert!(back.is_intact(&payload));
        }

        #[test]
        fn damage_is_detected(at in 0..200_usize, flip in 1..=255_u8) {
            let codec = Codec::new(7, 0, 200);
            let mut payload = codec.template();
            codec.write(&mut payload, &Header::at_send(3, 1, 99));
            payload[at] ^= flip;
            let server_times = SERVER_TIMES..HEADER_BYTES;
            let is_detected = codec.read(&payload).is_none() || !codec.is_intact(&payload);
            prop_assert_eq!(is_detected, !server_times.contains(&at));
        }

        #[test]
        fn read_accepts_any_bytes_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..100), key: u8) {
            let codec = Codec::new(7, key, 64);
            prop_assert!(codec.read(&bytes).is_none());
            prop_assert!(bytes.len() >= 64 || !codec.is_intact(&bytes));
        }
    }

    #[test]
    fn codec_ignores_other_runs_and_accepts_appended_bytes() {
        let codec = Codec::new(7, 0x5a, 100);
        let mut payload = codec.template();
        codec.write(&mut payload, &Header::at_send(3, 1, 99));
        assert_eq!(Codec::new(8, 0x5a, 100).read(&payload), None);
        assert_eq!(Codec::new(7, 0, 100).read(&payload), None);
        payload.extend([1; 16]);
        assert!(codec.is_intact(&payload));
        assert!(!codec.is_intact(&payload[..99]));
    }
}
