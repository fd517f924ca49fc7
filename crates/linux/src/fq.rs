//! Fair queueing (FQ, tc-fq(8)) as the root discipline of an interface: it holds each packet back until the departure time
//! that it carries (`skb->tstamp`, EDT). Who gives it the time does the shaping.

use netlink_packet_route::tc::TcHandle;

use crate::htb::ROOT;
use crate::link::LinkId;
use crate::netlink::Request;
use crate::qdisc::{add, attribute};

/// Packets that wait at most, of all flows and of one: what may wait is bounded by who gives the times.
const LIMIT: u32 = 1 << 16;
/// By how much a departure may be late, ns.
const TIMER_SLACK_NS: u32 = 1000;

/// Gives a link the discipline, under the number of [`crate::htb::create`]'s, by which it is found and removed.
pub fn create(link: &LinkId) -> Request {
    // TCA_FQ_PLIMIT, TCA_FQ_FLOW_PLIMIT, TCA_FQ_TIMER_SLACK.
    let options = [(1, LIMIT), (2, LIMIT), (13, TIMER_SLACK_NS)];
    let options = options.map(|(kind, value)| attribute(kind, value.to_ne_bytes().to_vec()));
    add(link, "fq", ROOT, TcHandle::ROOT, Some(options.concat()))
}
