//! Checks whether a program uses the interfaces of its namespace.

use std::collections::BTreeSet;

use myelin_linux::netlink::Netlink;
use myelin_linux::netns::Netns;
use myelin_spec::external::{EGRESS, INGRESS};

/// The packet sockets of the calling thread's namespace.
const SOCKETS: &str = "/proc/thread-self/net/packet";

/// Whether the program has taken both interfaces: a taken interface has a packet socket, a bridge
/// or bond, an XDP program, or promiscuous mode.
pub(super) fn are_taken(netns: &Netns) -> myelin_linux::Result<bool> {
    netns.enter(|| {
        let bound = std::fs::read_to_string(SOCKETS)
            .map_or_else(|_| BTreeSet::new(), |text| bound_interfaces(&text));
        let mut netlink = Netlink::open()?;
        for name in [INGRESS, EGRESS] {
            let link = netlink.link(name)?;
            let taken = link.master.is_some()
                || link.xdp_program.is_some()
                || link.promiscuous
                || bound.contains(&link.index);
            if !taken {
                return Ok(false);
            }
        }
        Ok(true)
    })?
}

/// Indices of the interfaces with bound packet sockets. A socket with a protocol counts only while
/// it runs, because binding stops the socket for some ms. A new socket listens on all interfaces
/// (0) until the program binds it, so interface 0 does not count.
fn bound_interfaces(text: &str) -> BTreeSet<u32> {
    let interface = |line: &str| {
        let mut columns = line.split_whitespace().skip(3);
        let (protocol, interface, running) = (columns.next()?, columns.next()?, columns.next()?);
        let is_listening = running == "1" || protocol == "0000";
        interface
            .parse()
            .ok()
            .filter(|index| is_listening && *index != 0)
    };
    text.lines().skip(1).filter_map(interface).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_interfaces_with_bound_running_packet_sockets_are_listed() {
        let text = "sk               RefCnt Type Proto  Iface R Rmem   User   Inode\n\
                    0000000000000000 3      3    0003   7     1 0      0      5461\n\
                    0000000000000000 3      3    0003   0     1 0      0      5462\n\
                    0000000000000000 3      3    0003   8     0 0      0      5463\n\
                    0000000000000000 3      3    0000   9     0 0      0      5464\n";
        assert_eq!(bound_interfaces(text), [7, 9].into());
        assert_eq!(bound_interfaces(""), BTreeSet::new());
    }
}
