//! Fair queueing (FQ, tc-fq(8)) as the root qdisc of an interface. The qdisc delays each packet
//! until its departure time (`skb->tstamp`, EDT). The program that sets this time shapes the
//! traffic.

use netlink_packet_route::tc::TcHandle;

use crate::htb::ROOT;
use crate::link::LinkId;
use crate::netlink::Request;
use crate::qdisc::{add_qdisc, encode_attribute};

/// Largest number of packets in the queue, in total and per flow. The program that sets the
/// departure times has a lower limit.
const LIMIT: u32 = 1 << 16;
/// Largest lateness of a departure, ns.
const TIMER_SLACK_NS: u32 = 1000;

/// Adds the qdisc to a link. The handle is the same as that of [`crate::htb::create`], so
/// [`crate::htb::own_qdisc`] finds this qdisc and [`crate::htb::delete`] removes this qdisc.
pub fn create(link: &LinkId) -> Request {
    // TCA_FQ_PLIMIT, TCA_FQ_FLOW_PLIMIT, TCA_FQ_TIMER_SLACK.
    let options = [(1, LIMIT), (2, LIMIT), (13, TIMER_SLACK_NS)];
    let options = options.map(|(kind, value)| encode_attribute(kind, value.to_ne_bytes().to_vec()));
    add_qdisc(link, "fq", ROOT, TcHandle::ROOT, Some(options.concat()))
}
