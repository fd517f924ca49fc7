//! Reads recorded frames: files of libpcap, and pcapng files (draft-ietf-opsawg-pcap,
//! draft-ietf-opsawg-pcapng).
//!
//! Own code, because the crate `pcap-file` does not serve: version 2.0.0 refuses frames above the
//! file's `snaplen`, which tcpdump reads, and does not separate the length of check sequences from
//! the link type; later versions are release candidates. `pcap-parser` leaves times, check
//! sequences and incomplete frames to its user, which are most of this file. The fuzz target
//! `capture_file` runs this reader.

use std::fmt;

/// Link type of Ethernet.
const ETHERNET: u32 = 1;
/// First words of a libpcap file, by the unit of its times.
const MICROSECONDS: u32 = 0xa1b2_c3d4;
const NANOSECONDS: u32 = 0xa1b2_3c4d;
/// Type of a section's block in either byte order, and the word that tells the order.
const SECTION: u32 = 0x0a0d_0d0a;
const ORDER: u32 = 0x1a2b_3c4d;
const INTERFACE: u32 = 1;
const SIMPLE: u32 = 3;
const ENHANCED: u32 = 6;
/// Options of an interface: the resolution of its times, and the length of check sequences.
const RESOLUTION: u16 = 9;
const CHECK_LEN: u16 = 13;
/// libpcap's link type: the type itself, and the flag that the upper four bits have the length of
/// the frames' check sequences, in units of two bytes.
const LINK_TYPE: u32 = 0x03ff_ffff;
const HAS_CHECK_LEN: u32 = 1 << 26;
/// Words around the body of a block: type, length, and length again.
const BLOCK_FRAME: usize = 12;

const NS_PER_S: u64 = 1_000_000_000;

/// A recorded frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedFrame {
    /// Time since the first frame, ns. A time before an earlier frame's counts as that one's.
    pub offset_ns: u64,
    /// The frame from its Ethernet header on, without a check sequence.
    pub bytes: Vec<u8>,
}

/// Why a recording cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CaptureError {
    /// The file starts like no recording.
    Format,
    /// The file ends, or contradicts itself, at this byte.
    Broken(usize),
    /// The frame with this number, from 1 on, has another link type than Ethernet.
    Link(usize),
    /// The frame with this number, from 1 on, was recorded in part.
    Cut(usize),
}

impl fmt::Display for CaptureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Format => f.write_str("it is neither a pcap nor a pcapng file"),
            Self::Broken(at) => write!(f, "it is cut off or broken at byte {at}"),
            Self::Link(number) => write!(f, "frame {number} is not Ethernet"),
            Self::Cut(number) => write!(f, "frame {number} was recorded in part"),
        }
    }
}

/// Reads all frames of a recording, in the order of the file.
///
/// # Errors
/// The file is no recording, is broken, or has a frame that is incomplete or not Ethernet.
pub fn read(file: &[u8]) -> Result<Vec<RecordedFrame>, CaptureError> {
    let mut frames = Frames::default();
    let first: [u8; 4] = *file.first_chunk().ok_or(CaptureError::Format)?;
    let orders = [Order::Little, Order::Big];
    if orders[0].u32(first) == SECTION {
        read_blocks(file, &mut frames)?;
        return Ok(frames.all);
    }
    let libpcap = orders.into_iter().find_map(|order| match order.u32(first) {
        MICROSECONDS => Some((order, 1_000)),
        NANOSECONDS => Some((order, 1)),
        _ => None,
    });
    let (order, unit_ns) = libpcap.ok_or(CaptureError::Format)?;
    read_records(file, order, unit_ns, &mut frames)?;
    Ok(frames.all)
}

#[derive(Clone, Copy)]
enum Order {
    Little,
    Big,
}

impl Order {
    fn u32(self, bytes: [u8; 4]) -> u32 {
        match self {
            Self::Little => u32::from_le_bytes(bytes),
            Self::Big => u32::from_be_bytes(bytes),
        }
    }

    fn u16(self, bytes: [u8; 2]) -> u16 {
        match self {
            Self::Little => u16::from_le_bytes(bytes),
            Self::Big => u16::from_be_bytes(bytes),
        }
    }

    fn word(self, file: &[u8], at: usize) -> Result<u32, CaptureError> {
        let bytes = file.get(at..).and_then(|rest| rest.first_chunk());
        bytes
            .map(|bytes| self.u32(*bytes))
            .ok_or(CaptureError::Broken(at))
    }
}

/// The link layer of frames.
#[derive(Clone, Copy)]
struct Link {
    kind: u32,
    /// Length of the check sequence at the end of each frame, bytes.
    check_len: usize,
}

#[derive(Default)]
struct Frames {
    all: Vec<RecordedFrame>,
    first_ns: Option<u64>,
}

impl Frames {
    /// Adds the frame at `at`, which was recorded at this time on an interface of `link`.
    fn add(
        &mut self,
        file: &[u8],
        (at, len, original): (usize, u32, u32),
        link: Link,
        time_ns: Option<u64>,
    ) -> Result<(), CaptureError> {
        if link.kind != ETHERNET {
            return Err(CaptureError::Link(self.next_number()));
        }
        if len < original {
            return Err(CaptureError::Cut(self.next_number()));
        }
        let end = at.checked_add(len as usize);
        let bytes = end.and_then(|end| file.get(at..end));
        let bytes = bytes.ok_or(CaptureError::Broken(at))?;
        let frame_len = bytes.len().saturating_sub(link.check_len);
        let bytes = bytes[..frame_len].to_vec();
        let last_ns = self.all.last().map_or(0, |frame| frame.offset_ns);
        let offset_ns = time_ns.map_or(last_ns, |time_ns| {
            let first_ns = *self.first_ns.get_or_insert(time_ns);
            time_ns.saturating_sub(first_ns).max(last_ns)
        });
        self.all.push(RecordedFrame { offset_ns, bytes });
        Ok(())
    }

    fn next_number(&self) -> usize {
        self.all.len() + 1
    }
}

/// Reads the records of a libpcap file.
fn read_records(
    file: &[u8],
    order: Order,
    unit_ns: u64,
    frames: &mut Frames,
) -> Result<(), CaptureError> {
    const FILE_HEADER: usize = 24;
    const RECORD_HEADER: usize = 16;
    let link = order.word(file, FILE_HEADER - 4)?;
    let has_check = link & HAS_CHECK_LEN != 0;
    let link = Link {
        kind: link & LINK_TYPE,
        check_len: if has_check {
            2 * (link >> 28) as usize
        } else {
            0
        },
    };
    let mut at = FILE_HEADER;
    while at < file.len() {
        let word = |index: usize| order.word(file, at + 4 * index);
        let (seconds, fraction, len, original) = (word(0)?, word(1)?, word(2)?, word(3)?);
        let time_ns = u64::from(seconds) * NS_PER_S + u64::from(fraction) * unit_ns;
        let place = (at + RECORD_HEADER, len, original);
        frames.add(file, place, link, Some(time_ns))?;
        at += RECORD_HEADER + len as usize;
    }
    Ok(())
}

/// An interface of a pcapng section.
struct Interface {
    link: Link,
    /// Units of a second.
    units: u64,
}

/// Reads the blocks of a pcapng file.
fn read_blocks(file: &[u8], frames: &mut Frames) -> Result<(), CaptureError> {
    let mut order = Order::Little;
    let mut interfaces: Vec<Interface> = Vec::new();
    let mut at = 0;
    while at < file.len() {
        // A section's type is the same in both orders.
        let kind = order.word(file, at)?;
        if kind == SECTION {
            let orders = [Order::Little, Order::Big].into_iter();
            let found = orders
                .clone()
                .find(|order| order.word(file, at + 8) == Ok(ORDER));
            order = found.ok_or(CaptureError::Broken(at))?;
            interfaces.clear();
        }
        let len = order.word(file, at + 4)? as usize;
        let end = at.checked_add(len).filter(|end| *end <= file.len());
        let end = end.filter(|_| len >= BLOCK_FRAME && len.is_multiple_of(4));
        let end = end.ok_or(CaptureError::Broken(at))?;
        let block = &file[..end - 4];
        let word = |index: usize| order.word(block, at + 8 + 4 * index);
        match kind {
            INTERFACE => interfaces.push(read_interface(block, at + 8, order)?),
            ENHANCED => {
                let interface = interfaces.get(word(0)? as usize);
                let interface = interface.ok_or(CaptureError::Broken(at))?;
                let time = u64::from(word(1)?) << 32 | u64::from(word(2)?);
                let time_ns = u128::from(time) * u128::from(NS_PER_S) / u128::from(interface.units);
                let time_ns = u64::try_from(time_ns).unwrap_or(u64::MAX);
                let place = (at + 28, word(3)?, word(4)?);
                frames.add(block, place, interface.link, Some(time_ns))?;
            }
            SIMPLE => {
                let interface = interfaces.first().ok_or(CaptureError::Broken(at))?;
                let original = word(0)?;
                let room = len.saturating_sub(BLOCK_FRAME + 4) as u32;
                let place = (at + 12, original.min(room), original);
                frames.add(block, place, interface.link, None)?;
            }
            _ => {}
        }
        at = end;
    }
    Ok(())
}

/// Reads an interface whose body starts at `at`.
fn read_interface(block: &[u8], at: usize, order: Order) -> Result<Interface, CaptureError> {
    let half = |at: usize| {
        let bytes = block.get(at..).and_then(|rest| rest.first_chunk());
        bytes.map(|bytes| order.u16(*bytes))
    };
    let kind = half(at).ok_or(CaptureError::Broken(at))?.into();
    let (mut units, mut check_len) = (1_000_000, 0);
    let mut option = at + 8;
    while let (Some(code), Some(len)) = (half(option), half(option + 2)) {
        if code == 0 {
            break;
        }
        match (code, block.get(option + 4)) {
            (RESOLUTION, Some(&exponent)) => {
                let (base, exponent) = if exponent & 0x80 == 0 {
                    (10_u64, exponent)
                } else {
                    (2, exponent & 0x7f)
                };
                let found = base.checked_pow(exponent.into());
                units = found.ok_or(CaptureError::Broken(option))?;
            }
            // The draft counts bits, and its example bytes. Ethernet has one length.
            (CHECK_LEN, Some(4 | 32)) => check_len = 4,
            _ => {}
        }
        option += 4 + usize::from(len).next_multiple_of(4);
    }
    let link = Link { kind, check_len };
    Ok(Interface { link, units })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Writes a libpcap file.
    fn write(frames: &[(u64, Vec<u8>)], is_big: bool, is_ns: bool) -> Vec<u8> {
        let word = |value: u32| {
            if is_big {
                value.to_be_bytes()
            } else {
                value.to_le_bytes()
            }
        };
        let (magic, unit_ns) = if is_ns {
            (NANOSECONDS, 1)
        } else {
            (MICROSECONDS, 1000)
        };
        let mut words = vec![magic, 0x0002_0004, 0, 0, 65_535, ETHERNET];
        let mut file: Vec<u8> = words.drain(..).flat_map(word).collect();
        for (time_ns, bytes) in frames {
            let fraction = (time_ns % NS_PER_S / unit_ns) as u32;
            let (seconds, len) = ((time_ns / NS_PER_S) as u32, bytes.len() as u32);
            file.extend([seconds, fraction, len, len].into_iter().flat_map(word));
            file.extend(bytes);
        }
        file
    }

    /// Writes a block of a pcapng file in little endian.
    fn block(kind: u32, body: &[u8]) -> Vec<u8> {
        let mut body = body.to_vec();
        body.resize(body.len().next_multiple_of(4), 0);
        let len = (body.len() + BLOCK_FRAME) as u32;
        let head = [kind, len].map(u32::to_le_bytes).concat();
        [head, body, len.to_le_bytes().to_vec()].concat()
    }

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Writes a pcapng file whose times are in ns.
    fn write_blocks(frames: &[(u64, Vec<u8>)]) -> Vec<u8> {
        let mut file = block(SECTION, &words(&[ORDER, 1, u32::MAX, u32::MAX]));
        let resolution = u32::from(RESOLUTION) | 1 << 16;
        file.extend(block(INTERFACE, &words(&[ETHERNET, 0, resolution, 9, 0])));
        // A block that the reader skips: statistics.
        file.extend(block(5, &[0; 12]));
        for (time_ns, bytes) in frames {
            let len = bytes.len() as u32;
            let head = [0, (time_ns >> 32) as u32, *time_ns as u32, len, len];
            file.extend(block(ENHANCED, &[words(&head), bytes.clone()].concat()));
        }
        file
    }

    fn frames() -> impl Strategy<Value = Vec<(u64, Vec<u8>)>> {
        let bytes = prop::collection::vec(any::<u8>(), 0..80);
        let frame = (0..1_000_000_u64, bytes);
        prop::collection::vec(frame, 0..8).prop_map(|mut frames| {
            let mut time_us = 1_700_000_000_000_000;
            for (gap_us, _) in &mut frames {
                time_us += *gap_us;
                *gap_us = time_us * 1000;
            }
            frames
        })
    }

    proptest! {
        #[test]
        fn frames_are_read_as_written(frames in frames(), is_big: bool, is_ns: bool) {
            let first_ns = frames.first().map_or(0, |frame| frame.0);
            let expected: Vec<_> = frames.iter().map(|(time_ns, bytes)| RecordedFrame {
                offset_ns: time_ns - first_ns,
                bytes: bytes.clone(),
            }).collect();
            prop_assert_eq!(read(&write(&frames, is_big, is_ns)), Ok(expected.clone()));
            prop_assert_eq!(read(&write_blocks(&frames)), Ok(expected));
        }

        #[test]
        fn broken_files_are_refused_without_a_panic(
            frames in frames(),
            cut in any::<prop::sample::Index>(),
            changed in any::<prop::sample::Index>(),
            value: u8,
        ) {
            for mut file in [write(&frames, false, true), write_blocks(&frames)] {
                let at = changed.index(file.len());
                let cut = cut.index(file.len());
                let part = read(&file[..cut]).unwrap_or_default();
                prop_assert!(part.len() <= frames.len());
                file[at] = value;
                let _ = read(&file);
            }
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(mut file in prop::collection::vec(any::<u8>(), 0..200), start in 0..4_usize) {
            let magic = [SECTION, MICROSECONDS, NANOSECONDS];
            if let (Some(magic), Some(head)) = (magic.get(start), file.first_chunk_mut()) {
                *head = magic.to_le_bytes();
            }
            let _ = read(&file);
        }
    }

    #[test]
    fn check_sequences_are_cut_off() {
        let frames = [(0, vec![7; 60]), (5000, vec![8; 64]), (9000, vec![9; 3])];
        let expected = [vec![7; 56], vec![8; 60], vec![]];
        let bytes_of = |file: &[u8]| {
            let frames = read(file).unwrap().into_iter();
            frames.map(|frame| frame.bytes).collect::<Vec<_>>()
        };
        for is_big in [false, true] {
            let mut file = write(&frames, is_big, false);
            let mut set_link = |link: u32| {
                let link = if is_big {
                    link.to_be_bytes()
                } else {
                    link.to_le_bytes()
                };
                file[20..24].copy_from_slice(&link);
                bytes_of(&file)
            };
            // Two units of two bytes; without the flag, the length means nothing.
            assert_eq!(set_link(2 << 28 | 1 << 26 | ETHERNET), expected);
            let whole = frames.clone().map(|frame| frame.1);
            assert_eq!(set_link(2 << 28 | ETHERNET), whole);
            assert_eq!(set_link(1 << 26 | ETHERNET), whole);
        }
        for len in [4, 32] {
            let option = u32::from(CHECK_LEN) | 1 << 16;
            let mut file = block(SECTION, &words(&[ORDER, 1, u32::MAX, u32::MAX]));
            file.extend(block(INTERFACE, &words(&[ETHERNET, 0, option, len, 0])));
            file.extend(block(SIMPLE, &[words(&[8]), vec![1; 8]].concat()));
            assert_eq!(bytes_of(&file), [vec![1; 4]]);
        }
    }

    #[test]
    fn other_files_and_other_links_are_refused_with_the_reason() {
        assert_eq!(read(b""), Err(CaptureError::Format));
        assert_eq!(read(b"rules: []"), Err(CaptureError::Format));
        let file = write(&[(0, vec![7; 60]), (5000, vec![8; 60])], false, false);
        assert_eq!(read(&file).unwrap()[1].offset_ns, 5000);
        assert_eq!(read(&file[..99]), Err(CaptureError::Broken(40)));
        let mut cut = file.clone();
        cut[36] = 61;
        assert_eq!(read(&cut), Err(CaptureError::Cut(1)));
        let mut cooked = file;
        cooked[20] = 113;
        assert_eq!(read(&cooked), Err(CaptureError::Link(1)));
        let simple = [
            block(SECTION, &words(&[ORDER, 1, 0, 0])),
            block(INTERFACE, &words(&[ETHERNET, 0])),
            block(SIMPLE, &[words(&[5]), vec![1, 2, 3, 4, 5]].concat()),
        ];
        let found = read(&simple.concat()).unwrap();
        assert_eq!(
            found,
            [RecordedFrame {
                offset_ns: 0,
                bytes: vec![1, 2, 3, 4, 5]
            }]
        );
    }
}
