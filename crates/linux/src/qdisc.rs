//! Builds messages for qdiscs and filters of traffic control (tc(8)), for [`crate::feature`] and
//! [`crate::htb`].
//!
//! Options are the kernel's structures in linux/pkt_sched.h and linux/pkt_cls.h, written field by
//! field.

use netlink_packet_core::{DefaultNla, Emitable};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage};

use crate::link::LinkId;
use crate::netlink::Request;

const TCA_OPTIONS: u16 = 2;
const ETH_P_ALL: u16 = 0x0003;
/// A tick of the packet scheduler's clock (`/proc/net/psched`), ns.
pub(crate) const TICK_NS: u32 = 64;

/// Adds a hook for eBPF programs and filters in both directions of the link.
pub(crate) fn add_clsact(link: &LinkId) -> Request {
    let handle = TcHandle {
        major: u16::MAX,
        minor: 0,
    };
    add_qdisc(link, "clsact", handle, TcHandle::CLSACT, None)
}

/// Adds a filter that runs a BPF program at the ingress hook of a clsact. The filter runs a classic
/// BPF program that matches no packet, because an eBPF program would need a load first.
pub(crate) fn add_bpf_filter(link: &LinkId) -> Request {
    // TCA_BPF_OPS_LEN and TCA_BPF_OPS: one struct sock_filter, `ret 0`.
    let mut options = encode_attribute(4, 1_u16.to_ne_bytes().to_vec());
    options.extend(encode_attribute(5, [0x06, 0, 0, 0, 0, 0, 0, 0].to_vec()));
    let ingress = TcHandle {
        major: u16::MAX,
        minor: 0xfff2,
    };
    let mut message = build_message(link, "bpf", TcHandle::UNSPEC, ingress, Some(options));
    let priority: u32 = 1;
    message.header.info = priority << 16 | u32::from(ETH_P_ALL.to_be());
    let action = format!("add filter bpf to link `{}`", link.name);
    Request::create(action, RouteNetlinkMessage::NewTrafficFilter(message))
}

pub(crate) fn add_root_qdisc(link: &LinkId, kind: &str, options: Vec<u8>) -> Request {
    let handle = TcHandle { major: 1, minor: 0 };
    add_qdisc(link, kind, handle, TcHandle::ROOT, Some(options))
}

pub(crate) fn add_qdisc(
    link: &LinkId,
    kind: &str,
    handle: TcHandle,
    parent: TcHandle,
    options: Option<Vec<u8>>,
) -> Request {
    let action = format!("add qdisc {kind} to link `{}`", link.name);
    let message = build_message(link, kind, handle, parent, options);
    Request::create(action, RouteNetlinkMessage::NewQueueDiscipline(message))
}

pub(crate) fn build_message(
    link: &LinkId,
    kind: &str,
    handle: TcHandle,
    parent: TcHandle,
    options: Option<Vec<u8>>,
) -> TcMessage {
    let mut message = TcMessage::with_index(link.index.cast_signed());
    message.header.handle = handle;
    message.header.parent = parent;
    message.attributes = vec![TcAttribute::Kind(kind.to_owned())];
    message
        .attributes
        .extend(options.map(|options| TcAttribute::Other(DefaultNla::new(TCA_OPTIONS, options))));
    message
}

/// Returns a struct tc_ratespec: cell logarithm, link layer (1: Ethernet), overhead, cell
/// alignment, minimum packet, bytes/s. A 64-bit attribute contains the exact rate. Shorter frames
/// count as `min_bytes`.
pub(crate) fn rate_spec(bytes_per_second: u64, min_bytes: u16) -> Vec<u8> {
    let mut spec = vec![0, u8::from(bytes_per_second > 0), 0, 0, 0, 0];
    spec.extend(min_bytes.to_ne_bytes());
    spec.extend(
        u32::try_from(bytes_per_second)
            .unwrap_or(u32::MAX)
            .to_ne_bytes(),
    );
    spec
}

pub(crate) fn to_native_bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

pub(crate) fn encode_attribute(kind: u16, value: Vec<u8>) -> Vec<u8> {
    let attribute = DefaultNla::new(kind, value);
    let mut bytes = vec![0; attribute.buffer_len()];
    attribute.emit(&mut bytes);
    bytes
}
