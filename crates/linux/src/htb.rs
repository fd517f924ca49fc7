//! Shapes traffic by the qdisc of an interface: a hierarchy of token buckets (HTB, tc-htb(8)) with
//! one class for each shaped chain. All other traffic passes unshaped (`default 0`).
//!
//! A packet's priority is the number of the packet's class, so the qdisc needs no filter.
//!
//! A limit in packets becomes a limit in bytes, because each frame counts as many bytes as the
//! longest frame of the interface (`mpu`). HTB sends a packet if the class has any credit, so the
//! class's bucket is one packet smaller than the burst. A limit in bits is a token bucket filter
//! (TBF, tc-tbf(8)) inside the class. TBF requires credit for the whole packet. The class or the
//! TBF has a FIFO queue with a limit in packets.
//!
//! A GSO buffer counts with all bytes of the buffer.

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage, TcStats2};

use crate::error::{Error, ErrorKind, Result};
use crate::link::{Link, LinkId};
use crate::machine;
use crate::netlink::{Netlink, Request};
use crate::qdisc::{
    TICK_NS, add_qdisc, build_message, encode_attribute, rate_spec, to_native_bytes,
};

/// Major number of Myelin's qdiscs: "my" in ASCII.
const MAJOR: u16 = 0x6d79;
/// Handle of Myelin's root qdiscs.
pub(crate) const ROOT: TcHandle = handle(0);
/// Major number of the TBF in class 0.
const FILTER_MAJOR: u16 = 0x7000;
/// Largest number of classes of one interface.
pub const MAX_CLASSES: u16 = 0x0fff;
/// Rate of a class without a limit in packets, bytes/s: more than any interface sends.
const UNLIMITED: u64 = 1 << 40;

/// A token bucket limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// Packets or bits per second.
    pub rate: u64,
    /// Largest burst, packets or bits.
    pub burst: u64,
}

/// Limits and queue of a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Class {
    /// Limit in packets.
    pub packets: Option<Limit>,
    /// Limit in bits. Frames count with the Ethernet header.
    pub bits: Option<Limit>,
    /// Length of the queue, packets.
    pub queue: u32,
}

/// Counters of a class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets that the class sent.
    pub packets: u64,
    /// Packets dropped because the queue was full or the packet was larger than the burst.
    pub drops: u64,
    /// Packets in the queue now.
    pub waiting: u64,
}

/// Returns whether this kernel can count short frames as longer frames (`mpu`), which a limit in
/// packets needs. `release` is the output of `uname -r`. (Linux up to 5.13 used rate tables that
/// tools no longer fill; Linux 5.17 supports `mpu` again.)
pub fn supports_packet_limits(release: &str) -> bool {
    machine::version(release) >= Some((5, 17))
}

/// Returns the priority of packets for a class.
pub fn priority(minor: u16) -> u32 {
    u32::from(MAJOR) << 16 | u32::from(minor)
}

const fn handle(minor: u16) -> TcHandle {
    TcHandle {
        major: MAJOR,
        minor,
    }
}

/// Adds the qdisc to a link. Fails if the link has another program's qdisc, which
/// [`foreign_qdisc`] reports.
pub fn create(link: &LinkId) -> Request {
    // struct tc_htb_glob: version, rate2quantum, default class, debug, direct packets.
    let options = encode_attribute(2, to_native_bytes(&[3, 10, 0, 0, 0]));
    add_qdisc(link, "htb", ROOT, TcHandle::ROOT, Some(options))
}

/// Removes the qdisc of `kind` with Myelin's handle. The kernel then restores the default qdisc.
pub fn delete(link: &LinkId, kind: &str) -> Request {
    let action = format!("remove qdisc {kind} from link `{}`", link.name);
    let message = build_message(link, kind, ROOT, TcHandle::ROOT, None);
    Request::change(action, RouteNetlinkMessage::DelQueueDiscipline(message))
}

/// Adds a class with its queue.
///
/// # Errors
/// The number is not in 1 to [`MAX_CLASSES`], or the link's frames are longer than a class can
/// count.
pub fn add_class(link: &Link, minor: u16, class: &Class) -> Result<Vec<Request>> {
    let action = || format!("add class {minor} to qdisc htb of link `{}`", link.name);
    if !(1..=MAX_CLASSES).contains(&minor) {
        let cause = format!("the class number must be 1 to {MAX_CLASSES}");
        return Err(Error::new(action(), ErrorKind::Invalid, cause));
    }
    // Includes a VLAN tag.
    let frame = u16::try_from(link.mtu + 18).map_err(|_| {
        let cause = format!(
            "the link's MTU of {} is more than a class can count",
            link.mtu
        );
        Error::new(action(), ErrorKind::Invalid, cause).remedy(format!(
            "set a smaller MTU: `ip link set {} mtu BYTES`",
            link.name
        ))
    })?;
    let id = link.id();
    let mut parent = handle(minor);
    let mut message = build_message(
        &id,
        "htb",
        parent,
        handle(0),
        Some(class_options(class, frame)),
    );
    message.header.info = 0;
    let message = RouteNetlinkMessage::NewTrafficClass(message);
    let mut requests = vec![Request::create(action(), message)];
    if let Some(bits) = class.bits {
        let filter = TcHandle {
            major: FILTER_MAJOR + minor,
            minor: 0,
        };
        requests.push(add_qdisc(
            &id,
            "tbf",
            filter,
            parent,
            Some(token_bucket(bits)),
        ));
        parent = TcHandle { minor: 1, ..filter };
    }
    let queue = class.queue.to_ne_bytes().to_vec();
    requests.push(add_qdisc(
        &id,
        "pfifo",
        TcHandle::UNSPEC,
        parent,
        Some(queue),
    ));
    Ok(requests)
}

/// Removes a class and drops the packets in its queue.
pub fn delete_class(link: &LinkId, minor: u16) -> Request {
    let action = format!(
        "remove class {minor} of qdisc htb from link `{}`",
        link.name
    );
    let message = build_message(link, "htb", handle(minor), handle(0), None);
    Request::change(action, RouteNetlinkMessage::DelTrafficClass(message))
}

/// Returns the kind of the root qdisc that another program added to the link. `None` for the
/// kernel's default or for Myelin's qdisc.
pub fn foreign_qdisc(netlink: &mut Netlink, link: &LinkId) -> Result<Option<String>> {
    Ok(root_qdisc(netlink, link)?
        .filter(|(handle, _)| handle.major != MAJOR)
        .map(|(_, kind)| kind))
}

/// Returns the kind of the qdisc that [`create`] or [`crate::fq::create`] added to the link.
pub fn own_qdisc(netlink: &mut Netlink, link: &LinkId) -> Result<Option<String>> {
    Ok(root_qdisc(netlink, link)?
        .filter(|(handle, _)| handle.major == MAJOR)
        .map(|(_, kind)| kind))
}

/// Returns the root qdisc. Returns `None` for the kernel's default qdisc, which has no handle.
fn root_qdisc(netlink: &mut Netlink, link: &LinkId) -> Result<Option<(TcHandle, String)>> {
    let action = format!("read the qdiscs of link `{}`", link.name);
    let question = TcMessage::with_index(link.index.cast_signed());
    let answers = netlink.dump(&action, &RouteNetlinkMessage::GetQueueDiscipline(question))?;
    Ok(answers.into_iter().find_map(|answer| {
        let RouteNetlinkMessage::NewQueueDiscipline(message) = answer else {
            return None;
        };
        let header = &message.header;
        let is_root = header.index == link.index.cast_signed() && header.parent == TcHandle::ROOT;
        if !is_root || header.handle.major == 0 {
            return None;
        }
        let kind = message
            .attributes
            .iter()
            .find_map(|attribute| match attribute {
                TcAttribute::Kind(kind) => Some(kind.clone()),
                _ => None,
            });
        Some((header.handle, kind.unwrap_or_default()))
    }))
}

/// Reads the counters of a link's classes, with the number of each class.
pub fn counters(netlink: &mut Netlink, link: &LinkId) -> Result<Vec<(u16, Counters)>> {
    let action = format!("read the classes of qdisc htb of link `{}`", link.name);
    let question = TcMessage::with_index(link.index.cast_signed());
    let answers = netlink.dump(&action, &RouteNetlinkMessage::GetTrafficClass(question))?;
    let classes = answers.into_iter().filter_map(|answer| match answer {
        RouteNetlinkMessage::NewTrafficClass(message) if message.header.handle.major == MAJOR => {
            Some((message.header.handle.minor, parse_counters(&message)))
        }
        _ => None,
    });
    Ok(classes.collect())
}

fn parse_counters(message: &TcMessage) -> Counters {
    let mut counters = Counters::default();
    let statistics = message
        .attributes
        .iter()
        .filter_map(|attribute| match attribute {
            TcAttribute::Stats2(statistics) => Some(statistics),
            _ => None,
        });
    for statistic in statistics.flatten() {
        match statistic {
            TcStats2::Basic(basic) => counters.packets = basic.packets.into(),
            TcStats2::Queue(queue) => {
                counters.drops = queue.drops.into();
                counters.waiting = queue.qlen.into();
            }
            _ => {}
        }
    }
    counters
}

/// Returns the options of a class on a link with frames of at most `frame` bytes.
fn class_options(class: &Class, frame: u16) -> Vec<u8> {
    let (rate, buffer_ns) = match class.packets {
        Some(Limit { rate, burst }) => {
            let burst_ns = u128::from(burst.saturating_sub(1)) * 1_000_000_000;
            (
                rate.saturating_mul(frame.into()),
                burst_ns / u128::from(rate),
            )
        }
        None => (UNLIMITED, 1_000_000),
    };
    let ticks = u32::try_from(buffer_ns / u128::from(TICK_NS)).unwrap_or(u32::MAX);
    // struct tc_htb_opt: rate, ceil, buffer and cbuffer (ticks), quantum (bytes), level, priority.
    let spec = rate_spec(rate, frame);
    let mut parameters = [spec.clone(), spec].concat();
    parameters.extend(to_native_bytes(&[ticks, ticks, frame.into(), 0, 0]));
    let mut options = encode_attribute(1, parameters);
    for kind in [6, 7] {
        // TCA_HTB_RATE64 and TCA_HTB_CEIL64.
        options.extend(encode_attribute(kind, rate.to_ne_bytes().to_vec()));
    }
    options
}

/// Returns the options of a token bucket filter.
pub(crate) fn token_bucket(bits: Limit) -> Vec<u8> {
    let (rate, burst) = (
        bits.rate / 8,
        u32::try_from(bits.burst / 8).unwrap_or(u32::MAX),
    );
    // struct tc_tbf_qopt: rate, peakrate (unused), limit (bytes, of the queue that `add_class`
    // replaces), buffer and mtu (replaced by TCA_TBF_BURST).
    let mut parameters = rate_spec(rate.max(1), 0);
    parameters.extend([0; 12]);
    parameters.extend(to_native_bytes(&[1, 0, 0]));
    let mut options = encode_attribute(1, parameters);
    // TCA_TBF_RATE64, TCA_TBF_BURST.
    options.extend(encode_attribute(4, rate.max(1).to_ne_bytes().to_vec()));
    options.extend(encode_attribute(6, burst.to_ne_bytes().to_vec()));
    options
}

#[cfg(test)]
mod tests;
