//! `decompress`: restores UDP payloads that `compress` compressed.
//!
//! [`mod@compression`](crate::compression) describes the wire format.

use myelin_spec::{CompressionAlgorithm, DecompressConfig, Dictionary};

use crate::compression::{
    CompressionError, Header, MARKER_LEN, PayloadForm, dictionary_id, lz4, payload_form, zstd,
};
use crate::datagram::Datagram;
use crate::wide::{self, SumBytes};
use crate::{Emitter, Function, Packet, Verdict};

/// Decompresses UDP payloads, each with the algorithm in its header.
///
/// The function forwards payloads that are not compressed. It drops a packet that is damaged, has
/// another dictionary, or would exceed the MTU or the buffer. It checks the length before it
/// decompresses, so no packet costs more than a packet of MTU length.
#[derive(Debug)]
pub struct Decompress {
    zstd: zstd::Decompressor,
    dictionary: Option<Dictionary>,
    dictionary_id: Option<u32>,
    mtu: usize,
    sum: SumBytes,
    /// Buffer for the new payload, as long as an IP packet may be.
    scratch: Box<[u8]>,
    counters: DecompressCounters,
}

#[derive(Clone, Copy, Debug, Default)]
struct DecompressCounters {
    decompressed: u64,
    untouched: u64,
    stored: u64,
    other: u64,
    bytes_in: u64,
    bytes_out: u64,
    malformed: u64,
    wrong_dictionary: u64,
    too_long: u64,
}

impl Decompress {
    /// Makes the states of the algorithms, and reads the dictionary into these states.
    pub fn new(config: &DecompressConfig) -> Result<Self, CompressionError> {
        let dictionary = config.dictionary.as_ref().map(Dictionary::bytes);
        Ok(Self {
            zstd: zstd::Decompressor::new(dictionary)?,
            dictionary_id: dictionary.map(dictionary_id),
            dictionary: config.dictionary.clone(),
            mtu: config.mtu.into(),
            sum: wide::fastest_sum(),
            scratch: vec![0; config.mtu.into()].into(),
            counters: DecompressCounters::default(),
        })
    }

    /// Decompresses the payload into the scratch buffer and copies the result into the packet.
    /// Returns the new length.
    #[inline]
    fn decompress(
        &mut self,
        packet: &mut Packet<'_>,
        mut datagram: Datagram,
        header: Header,
    ) -> Option<usize> {
        let length = usize::from(header.length);
        let room = self.scratch.get_mut(..length);
        let Some(to) = room.filter(|_| datagram.ip_len_with(length) <= self.mtu) else {
            self.counters.too_long += 1;
            return None;
        };
        if header.dictionary != self.dictionary_id {
            self.counters.wrong_dictionary += 1;
            return None;
        }
        let at = Header::len(header.dictionary.is_some());
        let payload = packet.payload_mut();
        let written = match header.algorithm {
            CompressionAlgorithm::Lz4 => payload.get(at..).and_then(|block| {
                lz4::decompress(block, to, self.dictionary.as_ref().map(Dictionary::bytes))
            }),
            // The magic number overwrites the last bytes of the header.
            CompressionAlgorithm::Zstd => payload
                .get_mut(at - zstd::MAGIC_LEN..)
                .and_then(|frame| self.zstd.decompress(frame, to)),
        };
        if written != Some(length) {
            self.counters.malformed += 1;
            return None;
        }
        if datagram.replace(packet, to).is_none() {
            self.counters.too_long += 1;
            return None;
        }
        self.counters.decompressed += 1;
        Some(length)
    }

    /// Removes the marker of a stored payload. Returns the length of the payload.
    #[cold]
    fn remove_marker(&mut self, packet: &mut Packet<'_>, mut datagram: Datagram) -> Option<usize> {
        let stored = packet.payload().get(MARKER_LEN..)?;
        let Some(payload) = self.scratch.get_mut(..stored.len()) else {
            self.counters.too_long += 1;
            return None;
        };
        payload.copy_from_slice(stored);
        datagram.replace(packet, payload)?;
        self.counters.stored += 1;
        Some(payload.len())
    }
}

impl Function for Decompress {
    #[inline]
    fn process(&mut self, packet: &mut Packet<'_>, _emitter: &mut dyn Emitter) -> Verdict {
        let Ok(datagram) = Datagram::of(packet, self.sum) else {
            self.counters.other += 1;
            return Verdict::Forward;
        };
        let before = packet.payload().len();
        let after = match payload_form(packet.payload()) {
            PayloadForm::Untouched => {
                self.counters.untouched += 1;
                Some(before)
            }
            PayloadForm::Compressed(header) => self.decompress(packet, datagram, header),
            PayloadForm::Stored => self.remove_marker(packet, datagram),
            PayloadForm::Malformed => {
                self.counters.malformed += 1;
                None
            }
        };
        let Some(after) = after else {
            return Verdict::Drop;
        };
        self.counters.bytes_in += before as u64;
        self.counters.bytes_out += after as u64;
        Verdict::Forward
    }

    fn read_counters(&self, sink: &mut dyn FnMut(&'static str, u64)) {
        let counters = self.counters;
        sink("decompressed", counters.decompressed);
        sink("untouched", counters.untouched);
        sink("stored", counters.stored);
        sink("other", counters.other);
        sink("bytes-in", counters.bytes_in);
        sink("bytes-out", counters.bytes_out);
        sink("malformed", counters.malformed);
        sink("wrong-dictionary", counters.wrong_dictionary);
        sink("too-long", counters.too_long);
    }
}
