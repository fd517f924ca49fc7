//! Feeds a function from memory, to measure its time for a packet without a port, a worker or other
//! functions.
//!
//! Every packet is new to the function. The packet comes from a *source*. If the function undoes
//! another function, the packet passes that other function first, and then a link that may lose the
//! packet. The measured time excludes the preparation of a packet. It includes the copies of
//! emitted packets, as in a worker. CALVIN feeds its advanced functions the same way (section V-C:
//! "locally generated traffic"), so they never wait for packets.

use std::hint::black_box;

use myelin_functions::lossy_link::LossyLink;
use myelin_functions::{Batch, Emitter, Function, Packet, instantiate};
use myelin_packet::{Meta, checksum, parse};
use myelin_spec::{FunctionConfig, LossyLinkConfig};
use serde::{Deserialize, Serialize};

use crate::clock::monotonic_ns;

/// Headroom before a packet, bytes, as with AF_XDP.
const HEADROOM: usize = 256;
/// Size of a buffer, bytes.
const BUFFER: usize = 2048;
/// Number of different payloads.
const PAYLOADS: usize = 256;
/// Most packets that a function emits for one packet. A decoder emits many packets when it gets the
/// missing packet.
const MAX_EMITTED: usize = 512;
/// Ethernet, IPv4 and UDP headers, bytes.
pub const HEADERS: usize = 42;

/// The function under measurement and its input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeedConfig {
    /// The function.
    pub function: FunctionConfig,
    /// The function before `function`. `function` undoes its work.
    pub after: Option<FunctionConfig>,
    /// A link between the two functions, which loses packets.
    pub link: Option<LossyLinkConfig>,
    /// Size of the UDP payload at the source, bytes.
    pub payload_bytes: usize,
}

/// A function with a packet source.
pub struct Feed {
    function: Box<dyn Function>,
    after: Option<Box<dyn Function>>,
    source: Vec<Vec<u8>>,
    produced: usize,
    queue: Queue,
    buffer: Vec<u8>,
    emitted: EmittedFrames,
    clock_ns: u64,
}

/// Frames for the function.
struct Queue {
    link: Option<LossyLink>,
    /// Waiting frames in reverse order, so the last frame leaves first.
    waiting: Vec<Vec<u8>>,
    /// Frames for reuse.
    spare: Vec<Vec<u8>>,
}

impl Queue {
    /// Queues a frame for the function, unless the link loses it.
    fn put(&mut self, frame: &[u8]) {
        if self.link.as_mut().is_some_and(LossyLink::draw_loss) {
            return;
        }
        let mut kept = self.spare.pop().unwrap_or_default();
        kept.clear();
        kept.extend_from_slice(frame);
        self.waiting.push(kept);
    }
}

/// Copies emitted packets, as a worker does.
struct EmittedFrames {
    frames: Vec<Vec<u8>>,
    count: usize,
}

impl Emitter for EmittedFrames {
    fn emit(&mut self, _origin: &Meta, frame: &[u8]) {
        if let Some(place) = self.frames.get_mut(self.count) {
            place.clear();
            place.extend_from_slice(frame);
            self.count += 1;
        }
    }

    fn reply(&mut self, origin: &Meta, frame: &[u8]) {
        self.emit(origin, frame);
    }
}

impl EmittedFrames {
    fn new() -> Self {
        Self {
            frames: (0..MAX_EMITTED)
                .map(|_| Vec::with_capacity(BUFFER))
                .collect(),
            count: 0,
        }
    }
}

/// The result of one packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FeedResult {
    /// Processing time minus the cost of reading the clock, ns.
    pub ns: u64,
    /// Number of packets that left the function: the input packet and emitted packets.
    pub packets_out: usize,
}

impl Feed {
    /// Makes the function and its source.
    ///
    /// # Errors
    /// The function cannot be made.
    pub fn new(config: &FeedConfig) -> Result<Self, myelin_functions::Error> {
        let clock_ns = (0..1000)
            .map(|_| {
                let before = monotonic_ns();
                monotonic_ns() - before
            })
            .min()
            .unwrap_or_default();
        Ok(Self {
            function: instantiate(&config.function)?,
            after: config.after.as_ref().map(instantiate).transpose()?,
            source: (0..PAYLOADS)
                .map(|number| frame(&telemetry(number, config.payload_bytes)))
                .collect(),
            produced: 0,
            queue: Queue {
                link: config.link.map(LossyLink::new),
                waiting: Vec::with_capacity(MAX_EMITTED + 1),
                spare: (0..=2 * MAX_EMITTED)
                    .map(|_| Vec::with_capacity(BUFFER))
                    .collect(),
            },
            buffer: vec![0; BUFFER],
            emitted: EmittedFrames::new(),
            clock_ns,
        })
    }

    /// Feeds one packet. Returns `None` if every packet of the source was lost or refused.
    pub fn feed(&mut self) -> Option<FeedResult> {
        if self.queue.waiting.is_empty() {
            // A link loses packets at random. After a thousand losses in a row, assume that the
            // link loses all packets.
            (0..1000).find(|_| {
                self.produce();
                !self.queue.waiting.is_empty()
            })?;
        }
        let frame = self.queue.waiting.pop()?;
        let now_ns = monotonic_ns();
        let mut packet = copy_to_buffer(&mut self.buffer, &frame, now_ns)?;
        packet.set_position(0);
        let mut batch = Batch::with_capacity(1);
        batch.push(packet);
        self.emitted.count = 0;
        let timed = self.function.needs_time();
        let before = monotonic_ns();
        if timed {
            self.function.set_time(before);
        }
        self.function
            .process_batch(black_box(&mut batch), &mut self.emitted);
        let after = monotonic_ns();
        let packets_out = batch.len() + self.emitted.count;
        drop(batch);
        self.queue.spare.push(frame);
        Some(FeedResult {
            ns: (after - before).saturating_sub(self.clock_ns),
            packets_out,
        })
    }

    /// Sends the next packet of the source through the function `after` and the link.
    fn produce(&mut self) {
        let source = &self.source[self.produced % self.source.len()];
        self.produced += 1;
        let Some(after) = &mut self.after else {
            self.queue.put(source);
            return;
        };
        let Some(packet) = copy_to_buffer(&mut self.buffer, source, monotonic_ns()) else {
            return;
        };
        let mut batch = Batch::with_capacity(1);
        batch.push(packet);
        self.emitted.count = 0;
        after.process_batch(&mut batch, &mut self.emitted);
        for packet in batch.packets() {
            self.queue.put(packet.bytes());
        }
        for frame in &self.emitted.frames[..self.emitted.count] {
            self.queue.put(frame);
        }
        // `feed` takes frames from the end.
        self.queue.waiting.reverse();
    }
}

/// Copies a frame into a buffer. Returns the copy as a packet.
fn copy_to_buffer<'a>(buffer: &'a mut [u8], frame: &[u8], stamp_ns: u64) -> Option<Packet<'a>> {
    buffer
        .get_mut(HEADROOM..HEADROOM + frame.len())?
        .copy_from_slice(frame);
    let meta = Meta::new(stamp_ns, 1, 1, 0, &parse(frame).ok()?);
    Packet::new(buffer, HEADROOM, frame.len(), meta, 0)
}

/// Returns an Ethernet frame with a UDP packet from 10.0.0.1 to 10.0.0.2, port 9000, with valid
/// checksums.
pub fn frame(payload: &[u8]) -> Vec<u8> {
    let udp_len = (8 + payload.len()) as u16;
    let mut frame = Vec::with_capacity(HEADERS + payload.len());
    frame.extend([2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
    frame.extend([0x45, 0]);
    frame.extend((20 + udp_len).to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    let header = checksum::checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&header.to_be_bytes());
    frame.extend([0x23, 0x29, 0x23, 0x28]);
    frame.extend(udp_len.to_be_bytes());
    frame.extend([0, 0]);
    frame.extend_from_slice(payload);
    let headers = parse(&frame).ok();
    if let Some(checksum) = headers.and_then(|headers| checksum::l4_checksum(&frame, &headers)) {
        frame[40..42].copy_from_slice(&checksum.to_be_bytes());
    }
    frame
}

/// Returns `bytes` bytes of sensor readings as text. The text compresses like such data, and
/// matches no pattern of a rule.
fn telemetry(number: usize, bytes: usize) -> Vec<u8> {
    let mut text = Vec::with_capacity(bytes + 64);
    let mut reading = number.wrapping_mul(2_654_435_761);
    while text.len() < bytes {
        reading = reading
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let (joint, angle, force) = (
            reading >> 60 & 7,
            reading >> 33 & 0xfff,
            reading >> 45 & 0x3ff,
        );
        text.extend(
            format!("{{\"joint\":{joint},\"angle\":{angle},\"force\":{force}}}\n").as_bytes(),
        );
    }
    text.truncate(bytes);
    text
}

#[cfg(test)]
mod tests {
    use myelin_spec::XorConfig;

    use super::*;

    fn config(function: FunctionConfig) -> FeedConfig {
        FeedConfig {
            function,
            after: None,
            link: None,
            payload_bytes: 256,
        }
    }

    #[test]
    fn a_source_frame_is_a_valid_packet() {
        for bytes in [0, 1, 256, 1400] {
            let frame = frame(&telemetry(3, bytes));
            let headers = parse(&frame).unwrap();
            assert_eq!(usize::from(headers.end), HEADERS + bytes);
            assert_eq!(checksum::l4_is_valid(&frame, &headers), Some(true));
        }
    }

    #[test]
    fn each_packet_is_new_to_the_function() {
        let mut feed = Feed::new(&config(FunctionConfig::Timestamp)).unwrap();
        for _ in 0..1000 {
            // `timestamp` appends to the packet. The same frame again would outgrow its buffer.
            assert_eq!(feed.feed().unwrap().packets_out, 1);
        }
    }

    #[test]
    fn an_inverse_function_gets_the_packets_of_the_function_before_it() {
        let key = |key| FunctionConfig::Xor(XorConfig { key });
        let mut feed = Feed::new(&FeedConfig {
            after: Some(key(0x5a)),
            ..config(key(0x5a))
        })
        .unwrap();
        feed.feed().unwrap();
        assert_eq!(
            feed.buffer[HEADROOM..][..feed.source[0].len()],
            feed.source[0]
        );
    }

    #[test]
    fn a_link_loses_the_configured_share_and_full_loss_gives_no_result() {
        let link = |loss_ppm| {
            Some(LossyLinkConfig {
                loss_ppm,
                burst: None,
                seed: Some(1),
            })
        };
        let config_with_loss = |loss_ppm| FeedConfig {
            link: link(loss_ppm),
            ..config(FunctionConfig::Forward)
        };
        let mut feed = Feed::new(&config_with_loss(500_000)).unwrap();
        (0..1000).for_each(|_| assert!(feed.feed().is_some()));
        assert!((1800..2200).contains(&feed.produced), "{}", feed.produced);
        assert_eq!(
            Feed::new(&config_with_loss(1_000_000)).unwrap().feed(),
            None
        );
    }
}
