//! Fair queueing (FQ, tc-fq(8)) as the root qdisc of an interface. It delays each packet until the
//! departure time in the packet (`skb->tstamp`, EDT). The sender that sets the time does the
//! shaping.

use netlink_packet_route::tc::TcHandle;

use crate::htb::ROOT;
use crate::link::LinkId;
use crate::netlink::Request;
use crate::qdisc::{add, attribute};

/// Most packets in the queue, of all flows and of one. The sender that sets the times limits them
/// further.
const LIMIT: u32 = 1 << 16;
/// Largest lateness of a departure, ns.
const TIMER_SLACK_NS: u32 = 1000;

/// Gives a link the qdisc, with the same handle as [`crate::htb::create`], by which it is found and
/// removed.
pub fn create(link: &LinkId) -> Request {
    // TCA_FQ_PLIMIT, TCA_FQ_FLOW_PLIMIT, TCA_FQ_TIMER_SLACK.
    let options = [(1, LIMIT), (2, LIMIT), (13, TIMER_SLACK_NS)];
    let options = options.map(|(kind, value)| attribute(kind, value.to_ne_bytes().to_vec()));
    add(link, "fq", ROOT, TcHandle::ROOT, Some(options.concat()))
}
