//! Reads the frames of ports in memory: `replay` at ingress.

use std::ops::RangeInclusive;

use myelin_packet::capture::{self, RecordedFrame};
use myelin_packet::sample::{self, NoSample};
use myelin_packet::{Match, parse};

use crate::keys::field::{Field, Fields};
use crate::keys::{ConfigKey, FILE, TEXT, ValueType, integer, keys};
use crate::printable::Printable;
use crate::replay::{ReplaySpec, ReplayTimes};
use crate::units;

/// Longest frame, without a check sequence, bytes: an MTU of 1500 and the Ethernet header.
const MAX_FRAME: usize = 1514;
/// Shortest frame of Ethernet, without a check sequence, bytes.
const MIN_FRAME: usize = 60;
/// Longest file, bytes. The agent passes the frames to the worker in a message.
const MAX_FILE: usize = 8 << 20;
/// Most frames of a file.
const MAX_FRAMES: usize = 65_536;
/// Rates, packets a second. A worker takes fewer than the greatest one.
const RATES: RangeInclusive<u64> = 1..=100_000_000;

const RATE: &str = "rate";
const SIZE: &str = "size";
const FILE_KEY: &str = "file";
const PACKETS: &str = "packets";

keys! {
    /// Keys of `replay`.
    KEYS {
        /// The times of the packets: a packet rate; `endless`: as many as the worker takes;
        /// `recorded`: at the times of the file.
        "rate" = TEXT.with_default("endless");
        /// The length of the frames with their Ethernet header. Myelin makes frames that `match`
        /// takes. Excludes `file`.
        "size" = ConfigKey::new(ValueType::Memory).with_default("64B");
        /// A pcap or pcapng file with the frames, which arrive in turn, again and again. At most
        /// 8 MiB.
        "file" = FILE;
        /// The number of packets after which none arrives. Default: no end.
        "packets" = integer(1, 1 << 48, "a number of packets");
    }
}

/// Reads `replay` of the chain with this match.
pub(super) fn read(field: &Field<'_>, matches: &Match) -> Option<ReplaySpec> {
    let fields = field.mapping(KEYS)?;
    let packets = fields.read::<Option<u64>>(KEYS, PACKETS);
    let found = match fields.get(FILE_KEY) {
        Some(file) => {
            if let Some(size) = fields.get(SIZE) {
                let help = "remove `size`: the frames of a file have their own lengths";
                size.fault("`size` has no effect with `file`", "no `size`", help);
            }
            let recorded = read_file(&file).map(Vec::into_iter);
            recorded.map(|all| {
                all.map(|frame| (frame.bytes, frame.offset_ns))
                    .unzip::<_, _, Vec<_>, Vec<_>>()
            })
        }
        None => make_frame(field, &fields, matches).map(|frame| (vec![frame], Vec::new())),
    };
    // Read the times of faulty frames too, to report all faults.
    let offsets_ns = found.as_ref().map_or(vec![0], |found| found.1.clone());
    let times = read_times(&fields, offsets_ns);
    let (frames, _) = found?;
    let is_unmatched = |frame: &&Vec<u8>| {
        let headers = parse(frame);
        !headers.is_ok_and(|headers| matches.matches(&headers.five_tuple(frame)))
    };
    let spec = ReplaySpec {
        file: fields
            .get(FILE_KEY)
            .and_then(|file| file.node.text())
            .map(str::to_owned),
        unmatched: frames.iter().filter(is_unmatched).count(),
        times: times?,
        frames,
        packets,
    };
    if spec.unmatched == spec.frames.len() {
        let help = "correct `match`, or record traffic of the chain";
        let file = fields.get(FILE_KEY);
        file.as_ref().unwrap_or(field).fault(
            "`match` takes none of the frames, so no packet would enter the chain",
            "a frame that `match` takes",
            help,
        );
        return None;
    }
    Some(spec)
}

fn make_frame(field: &Field<'_>, fields: &Fields<'_>, matches: &Match) -> Option<Vec<u8>> {
    let size = fields.read::<u64>(KEYS, SIZE) as usize;
    let at = fields.get(SIZE);
    let at = at.as_ref().unwrap_or(field);
    let example = "write for example 128B";
    if !(MIN_FRAME..=MAX_FRAME).contains(&size) {
        let expected = format!("{MIN_FRAME} to {MAX_FRAME} bytes (an MTU of 1500)");
        at.fault(format!("a frame of {size} bytes"), expected, example);
        return None;
    }
    match sample::frame(matches, size) {
        Ok(frame) => return Some(frame),
        Err(NoSample::TooShort(least)) => {
            let message = format!("the headers of the chain's packets do not fit {size} bytes");
            at.fault(message, format!("at least {least} bytes"), example);
        }
        Err(NoSample::Nothing) => field.fault(
            "Myelin can make no packet that `match` takes",
            "a match of one family, and a protocol that is no extension header",
            "correct `match`, or replay a recording: `file: traffic.pcap`",
        ),
    }
    None
}

fn read_file(field: &Field<'_>) -> Option<Vec<RecordedFrame>> {
    const CUT: &str =
        "shorten the file: `editcap -c 60000 IN OUT`, or `tcpdump -r IN -c 60000 -w OUT`";
    const EXPECTED: &str = "the path of a pcap or pcapng file with 1 to 65536 Ethernet frames of at most 1514 bytes, \
        8 MiB in all";
    let path = field.text(EXPECTED, "write for example traffic.pcap")?;
    let shown = Printable(path);
    let refuse = |message: String, help: &str| field.fault(message, EXPECTED, help);
    let bytes = match field.faults.files.read_bytes(path) {
        Ok(bytes) => bytes,
        Err(reason) => {
            let message = format!("cannot read `{shown}`: {}", Printable(&reason));
            refuse(message, "correct the path, or make the file readable");
            return None;
        }
    };
    if bytes.len() > MAX_FILE {
        refuse(format!("`{shown}` has {} bytes", bytes.len()), CUT);
        return None;
    }
    let frames = match capture::read(&bytes) {
        Ok(frames) => frames,
        Err(error) => {
            let help = "record the traffic on an Ethernet interface: `tcpdump -i eth1 -s 0 -w traffic.pcap`";
            refuse(format!("cannot use `{shown}`: {error}"), help);
            return None;
        }
    };
    let too_long = frames
        .iter()
        .position(|frame| frame.bytes.len() > MAX_FRAME);
    let message = if let Some(index) = too_long {
        let (number, len) = (index + 1, frames[index].bytes.len());
        format!("frame {number} of `{shown}` has {len} bytes, more than an MTU of 1500 allows")
    } else if frames.is_empty() {
        format!("`{shown}` has no frame")
    } else if frames.len() > MAX_FRAMES {
        format!("`{shown}` has {} frames", frames.len())
    } else {
        return Some(frames);
    };
    let help = if frames.is_empty() {
        "record traffic of the chain: `tcpdump -i eth1 -s 0 -w traffic.pcap`"
    } else if too_long.is_some() {
        "record without offloads: `ethtool -K eth1 gro off lro off`, then tcpdump"
    } else {
        CUT
    };
    refuse(message, help);
    None
}

fn read_times(fields: &Fields<'_>, offsets_ns: Vec<u64>) -> Option<ReplayTimes> {
    const EXPECTED: &str = "endless, recorded, or a packet rate from 1pps to 100Mpps";
    const HELP: &str = "write for example 100kpps";
    let Some(field) = fields.get(RATE) else {
        return Some(ReplayTimes::Endless);
    };
    match field.text(EXPECTED, HELP)? {
        "endless" => Some(ReplayTimes::Endless),
        "recorded" => {
            let Some(&last) = offsets_ns.last() else {
                let help = "add `file: traffic.pcap`, or write for example `rate: 100kpps`";
                field.fault("only the frames of a file have times", "`file` too", help);
                return None;
            };
            // The first frame follows the last one after a mean gap, and not at once.
            let gaps = (offsets_ns.len() as u64).saturating_sub(1).max(1);
            let period_ns = last.saturating_add((last / gaps).max(1000));
            Some(ReplayTimes::Recorded {
                offsets_ns,
                period_ns,
            })
        }
        text => {
            let rate = field.unit(|text| units::PACKET_RATE.parse(text), EXPECTED, "100kpps")?;
            if !RATES.contains(&rate) {
                let message = format!("`{}` is no rate of packets here", Printable(text));
                field.fault(message, EXPECTED, HELP);
                return None;
            }
            Some(ReplayTimes::Even(rate))
        }
    }
}
