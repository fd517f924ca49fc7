//! Joins the links of OpenFlow switches to interfaces in the namespace of these switches.

use myelin_linux::link::group::{PlacedEnd, create_veth, describe_quiet};
use myelin_linux::link::{LinkId, VethEnd};
use myelin_linux::netlink::Netlink;
use myelin_linux::{Result, ethtool};

use super::super::names::Side;
use super::super::openflow::interface;
use super::{Builder, OpenHosts};

impl Builder<'_> {
    /// Makes a joint from each bridge to the namespace of the OpenFlow switches, and returns the
    /// ends here. `switch` and `numbers` are the position of the switch and the numbers of its
    /// bridges.
    ///
    /// The switch reads frames from packet sockets. The joints have no offloads, so it sees frames
    /// of wire size with whole checksums.
    pub(super) fn join_openflow(
        &self,
        netlink: &mut Netlink,
        hosts: &mut OpenHosts,
        (switch, numbers): (usize, &[usize]),
        bridges: &[LinkId],
    ) -> Result<Vec<LinkId>> {
        let Some((netns, inside)) = hosts.get_mut(&self.topology.hosts.len()) else {
            return Ok(Vec::new());
        };
        let mut joints = Vec::with_capacity(bridges.len());
        for (port, (bridge, number)) in bridges.iter().zip(numbers).enumerate() {
            let name = self.names.joint(*number, Side::First);
            let far = interface(switch, port);
            let far_end = PlacedEnd {
                end: VethEnd {
                    namespace: Some(netns),
                    ..VethEnd::named(&far)
                },
                group: None,
            };
            netlink.apply([create_veth(&self.at_switch(&name), &far_end, Some(bridge))?])?;
            let near = netlink.link(&name)?.id();
            let alias = format!("{} joint", self.topology.name);
            netlink.apply([describe_quiet(&near, &alias)])?;
            ethtool::set_up_without_offloads(netlink, &near)?;
            let far = inside.link(&far)?.id();
            netns.enter(|| ethtool::set_up_without_offloads(inside, &far))??;
            joints.push(near);
        }
        Ok(joints)
    }
}
