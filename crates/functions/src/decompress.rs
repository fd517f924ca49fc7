//! `decompress`: gives UDP payloads that a `compress` made smaller back as they were.
//!
//! [`mod@compression`](crate::compression) says how they look, and how they are told from others.

use myelin_spec::{CompressionAlgorithm, DecompressConfig, Dictionary};

use crate::compression::{CompressionError, Form, Header, MARKER_LEN, form, identity, lz4, zstd};
use crate::datagram::Datagram;
use crate::wide::{self, Sum};
use crate::{Emitter, Function, Packet, Verdict};

/// Decompresses UDP payloads, each as it says that it was compressed.
///
/// What was not compressed passes untouched: that is what `compress` lets pass. A packet is dropped when it is
/// damaged, was compressed with another dictionary, or would become longer than the MTU or its buffer
/// allows; that is known before anything is decompressed. A packet costs at most what the MTU's bytes cost.
#[derive(Debug)]
pub struct Decompress {
    zstd: zstd::Decompressor,
    dictionary: Option<Dictionary>,
    identity: Option<u32>,
    mtu: usize,
    sum: Sum,
    /// Where the payload to come is made; as long as an IP packet may be.
    scratch: Box<[u8]>,
    counters: Counters,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counters {
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
    /// Makes the states of the algorithms and reads the dictionary into them.
    pub fn new(config: &DecompressConfig) -> Result<Self, CompressionError> {
        let dictionary = config.dictionary.as_ref().map(Dictionary::bytes);
        Ok(Self {
            zstd: zstd::Decompressor::new(dictionary)?,
            identity: dictionary.map(identity),
            dictionary: config.dictionary.clone(),
            mtu: config.mtu.into(),
            sum: wide::fastest_sum(),
            scratch: vec![0; config.mtu.into()].into(),
            counters: Counters::default(),
        })
    }

    /// Decompresses the payload into the scratch memory and from there into the packet; gives its bytes.
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
        if header.dictionary != self.identity {
            self.counters.wrong_dictionary += 1;
            return None;
        }
        let at = Header::len(header.dictionary.is_some());
        let payload = packet.payload_mut();
        let written = match header.algorithm {
            CompressionAlgorithm::Lz4 => payload.get(at..).and_then(|block| {
                lz4::decompress(block, to, self.dictionary.as_ref().map(Dictionary::bytes))
            }),
            // The magic number takes the place of the header's last bytes.
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

    /// Takes the marker off a stored payload; gives its bytes.
    #[cold]
    fn unstore(&mut self, packet: &mut Packet<'_>, mut datagram: Datagram) -> Option<usize> {
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
        let after = match form(packet.payload()) {
            Form::Untouched => {
                self.counters.untouched += 1;
                Some(before)
            }
            Form::Compressed(header) => self.decompress(packet, datagram, header),
            Form::Stored => self.unstore(packet, datagram),
            Form::Malformed => {
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
