//! `compress`: compresses each UDP payload separately.
//!
//! [`mod@compression`](crate::compression) describes the wire format.

use myelin_spec::{CompressConfig, CompressionAlgorithm, Dictionary};

use crate::compression::zstd::{self, MAGIC_LEN};
use crate::compression::{
    CompressionError, Header, MARKER_LEN, STORED_MARKER, dictionary_id, is_marked, lz4,
};
use crate::datagram::Datagram;
use crate::wide::{self, SumBytes};
use crate::{Emitter, Function, Packet, Verdict};

/// Compresses UDP payloads.
///
/// The function forwards a payload unchanged if compression does not shorten the payload. It also
/// forwards packets that are not a complete UDP datagram: other protocols, fragments, and datagrams
/// with bytes after them (RFC 9868). If a payload begins like a marker and does not shrink, the
/// function puts an additional marker in front. If the packet with this marker would exceed the MTU
/// or the buffer, the function drops the packet. It drops no other packet.
#[derive(Debug)]
pub struct Compress {
    compressor: Compressor,
    algorithm: CompressionAlgorithm,
    dictionary: Option<u32>,
    mtu: usize,
    sum: SumBytes,
    /// Buffer for the new payload, as long as an IP packet may be.
    scratch: Box<[u8]>,
    counters: CompressCounters,
}

#[derive(Debug)]
enum Compressor {
    Lz4(lz4::Compressor),
    Zstd(zstd::Compressor),
}

#[derive(Clone, Copy, Debug, Default)]
struct CompressCounters {
    compressed: u64,
    untouched: u64,
    stored: u64,
    other: u64,
    bytes_in: u64,
    bytes_out: u64,
    too_long: u64,
}

impl Compress {
    /// Makes the state of the algorithm, and reads the dictionary into that state.
    pub fn new(config: &CompressConfig) -> Result<Self, CompressionError> {
        let mtu = usize::from(config.mtu);
        let dictionary = config.dictionary.as_ref().map(Dictionary::bytes);
        let compressor = match config.algorithm {
            CompressionAlgorithm::Lz4 => {
                Compressor::Lz4(lz4::Compressor::new(config.level, dictionary)?)
            }
            CompressionAlgorithm::Zstd => {
                Compressor::Zstd(zstd::Compressor::new(config.level, dictionary, mtu)?)
            }
        };
        Ok(Self {
            compressor,
            algorithm: config.algorithm,
            dictionary: dictionary.map(dictionary_id),
            mtu,
            sum: wide::fastest_sum(),
            scratch: vec![0; mtu].into(),
            counters: CompressCounters::default(),
        })
    }

    /// Compresses or stores the payload, or leaves it unchanged. Returns the new length, or `None`
    /// if the new payload is too long.
    #[inline]
    fn transform(&mut self, packet: &mut Packet<'_>, mut datagram: Datagram) -> Option<usize> {
        let payload = packet.payload();
        if let Some(len) = self.compress(payload, datagram) {
            let compressed = &self.scratch[..len];
            datagram.replace(packet, compressed)?;
            self.counters.compressed += 1;
            return Some(len);
        }
        if is_marked(payload) {
            return self.store_with_marker(packet, datagram);
        }
        self.counters.untouched += 1;
        Some(payload.len())
    }

    /// Compresses `payload` into the scratch buffer. Returns the compressed length, or `None` if
    /// the result is not shorter.
    #[inline]
    fn compress(&mut self, payload: &[u8], datagram: Datagram) -> Option<usize> {
        // A `decompress` with the same MTU would drop such a packet.
        if datagram.ip_len_with(payload.len()) > self.mtu {
            return None;
        }
        let length = u16::try_from(payload.len()).ok()?;
        let shorter = payload.len().checked_sub(1)?;
        let to = self.scratch.get_mut(..shorter)?;
        let header = Header {
            algorithm: self.algorithm,
            length,
            dictionary: self.dictionary,
        };
        let at = Header::len(self.dictionary.is_some());
        match &mut self.compressor {
            Compressor::Lz4(lz4) => {
                // Write the header first, so that it is in memory before the checksum loop reads
                // everything with wide loads.
                header.write(to)?;
                Some(at + lz4.compress(payload, to.get_mut(at..)?)?)
            }
            Compressor::Zstd(zstd) => {
                // The last bytes of the header overwrite the magic number.
                let at = at - MAGIC_LEN;
                let written = at + zstd.compress(payload, to.get_mut(at..)?)?;
                header.write(to)?;
                Some(written)
            }
        }
    }

    /// Puts a marker in front of the payload. Returns the length of marker and payload, or `None`
    /// if the IP packet would be too long.
    #[cold]
    fn store_with_marker(
        &mut self,
        packet: &mut Packet<'_>,
        mut datagram: Datagram,
    ) -> Option<usize> {
        let payload = packet.payload();
        let len = MARKER_LEN + payload.len();
        let stored = self.scratch.get_mut(..len)?;
        let (marker, rest) = stored.split_at_mut(MARKER_LEN);
        marker.copy_from_slice(&STORED_MARKER);
        rest.copy_from_slice(payload);
        if datagram.ip_len_with(len) > self.mtu {
            return None;
        }
        datagram.replace(packet, stored)?;
        self.counters.stored += 1;
        Some(len)
    }
}

impl Function for Compress {
    #[inline]
    fn process(&mut self, packet: &mut Packet<'_>, _emitter: &mut dyn Emitter) -> Verdict {
        let Ok(datagram) = Datagram::of(packet, self.sum) else {
            self.counters.other += 1;
            return Verdict::Forward;
        };
        let before = packet.payload().len();
        let Some(after) = self.transform(packet, datagram) else {
            self.counters.too_long += 1;
            return Verdict::Drop;
        };
        self.counters.bytes_in += before as u64;
        self.counters.bytes_out += after as u64;
        Verdict::Forward
    }

    fn read_counters(&self, sink: &mut dyn FnMut(&'static str, u64)) {
        let counters = self.counters;
        sink("compressed", counters.compressed);
        sink("untouched", counters.untouched);
        sink("stored", counters.stored);
        sink("other", counters.other);
        sink("bytes-in", counters.bytes_in);
        sink("bytes-out", counters.bytes_out);
        sink("too-long", counters.too_long);
    }
}
