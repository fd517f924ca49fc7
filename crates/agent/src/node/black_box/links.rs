//! What can be seen from outside of a program's doings in its namespace.

use std::collections::BTreeSet;

use myelin_linux::netlink::Netlink;
use myelin_linux::netns::Netns;
use myelin_spec::external::{EGRESS, INGRESS};

/// The packet sockets of the calling thread's namespace.
const SOCKETS: &str = "/proc/thread-self/net/packet";

/// Whether the program has taken both interfaces: by a packet socket, as a port of a bridge or a bond, by an XDP program, or by
/// promiscuous mode.
pub(super) fn are_taken(netns: &Netns) -> myelin_linux::Result<bool> {
    netns.enter(|| {
        let bound =
            std::fs::read_to_string(SOCKETS).map_or_else(|_| BTreeSet::new(), |text| bound(&text));
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

/// Indices of the interfaces that packet sockets are bound to. One that takes packets of some protocol must be running:
/// it is deaf for some ms while it is being bound. A new one hears all interfaces (0) and is about to be bound to one, so it
/// does not count.
fn bound(text: &str) -> BTreeSet<u32> {
    let interface = |line: &str| {
        let mut columns = line.split_whitespace().skip(3);
        let (protocol, interface, running) = (columns.next()?, columns.next()?, columns.next()?);
        let hears = running == "1" || protocol == "0000";
        interface.parse().ok().filter(|index| hears && *index != 0)
    };
    text.lines().skip(1).filter_map(interface).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_tell_their_interface() {
        let text = "sk               RefCnt Type Proto  Iface R Rmem   User   Inode\n\
                    0000000000000000 3      3    0003   7     1 0      0      5461\n\
                    0000000000000000 3      3    0003   0     1 0      0      5462\n\
                    0000000000000000 3      3    0003   8     0 0      0      5463\n\
                    0000000000000000 3      3    0000   9     0 0      0      5464\n";
        assert_eq!(bound(text), [7, 9].into());
        assert_eq!(bound(""), BTreeSet::new());
    }
}
