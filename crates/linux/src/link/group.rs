//! Many links that are made with few messages and removed in one step: a group (`IFLA_GROUP`).
//!
//! The kernel waits for its readers once for each removed group, instead of once for each link.

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoBridge, InfoData, InfoKind, InfoVeth,
    LinkAttribute, LinkMessage,
};
use serde::{Deserialize, Serialize};

use super::{Link, LinkId, VethEnd, check_name, kind_attribute};
use crate::error::Result;
use crate::netlink::{Netlink, Request};

/// A group of links in one namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkGroup {
    /// The kernel's number of the group; not 0, the group of all other links.
    pub number: u32,
    /// The beginning of the names of all links of the group. Only the maker uses it.
    pub prefix: String,
}

/// One end of a veth pair, and its properties from the first moment on.
#[derive(Debug, Clone, Copy)]
pub struct PlacedEnd<'a> {
    /// Name and namespace.
    pub end: VethEnd<'a>,
    /// The group of the end.
    pub group: Option<&'a LinkGroup>,
}

impl PlacedEnd<'_> {
    fn message(&self, files: &mut Vec<std::os::fd::OwnedFd>) -> Result<LinkMessage> {
        let mut message = LinkMessage::default();
        message.attributes = self.end.attributes(files)?;
        let group = self.group.map(|group| LinkAttribute::Group(group.number));
        message.attributes.extend(group);
        Ok(message)
    }
}

/// Makes a veth pair. Both ends are down. With `bridge`, the first end is a port of the bridge.
pub fn create_veth(
    first: &PlacedEnd<'_>,
    second: &PlacedEnd<'_>,
    bridge: Option<&LinkId>,
) -> Result<Request> {
    let mut files = Vec::new();
    let peer = second.message(&mut files)?;
    let mut message = first.message(&mut files)?;
    let master = bridge.map(|bridge| LinkAttribute::Controller(bridge.index));
    message.attributes.extend(master);
    let data = InfoData::Veth(InfoVeth::Peer(peer));
    let kind = kind_attribute(InfoKind::Veth, Some(data));
    message.attributes.push(kind);
    let (first, second) = (first.end.name, second.end.name);
    let action = format!("create veth pair `{first}` - `{second}`");
    Ok(Request::create(action, RouteNetlinkMessage::NewLink(message)).keep_open(files))
}

/// Names the link for people (`ip link show`), and turns off its IPv6 autoconfiguration. Apply the
/// request before the link is up.
pub fn describe_quiet(link: &LinkId, alias: &str) -> Request {
    let mode = AfSpecInet6::AddrGenMode(In6AddrGenMode::None);
    let inet6 = vec![AfSpecUnspec::Inet6(vec![mode])];
    let mut message = LinkMessage::default();
    message.header.index = link.index;
    message.attributes = vec![
        LinkAttribute::IfAlias(alias.to_owned()),
        LinkAttribute::AfSpecUnspec(inet6),
    ];
    let action = format!("describe link `{}`", link.name);
    Request::change(action, RouteNetlinkMessage::SetLink(message))
}

/// Makes the bridge forget at which port it saw which station.
pub fn forget_stations(bridge: &LinkId) -> Request {
    let mut message = LinkMessage::default();
    message.header.index = bridge.index;
    let data = InfoData::Bridge(vec![InfoBridge::FdbFlush]);
    message.attributes = vec![kind_attribute(InfoKind::Bridge, Some(data))];
    let action = format!("flush the stations of bridge `{}`", bridge.name);
    Request::change(action, RouteNetlinkMessage::NewLink(message))
}

impl LinkGroup {
    /// Makes a bridge of the group, without spanning tree. The bridge is down.
    pub fn create_bridge(&self, name: &str) -> Result<Request> {
        check_name(name)?;
        let mut message = LinkMessage::default();
        message.attributes = vec![
            LinkAttribute::IfName(name.to_owned()),
            LinkAttribute::Group(self.number),
            kind_attribute(InfoKind::Bridge, None),
        ];
        let action = format!("create bridge `{name}`");
        Ok(Request::create(
            action,
            RouteNetlinkMessage::NewLink(message),
        ))
    }

    /// Makes a bridge of the group that hands each frame of one of its two ports to the other: it
    /// forgets at once where it saw a station, and forwards also frames for the bridge itself,
    /// except those that the kernel forwards at no bridge (spanning tree, pause, LACP).
    pub fn create_relay(&self, name: &str) -> Result<Request> {
        // The other link-local addresses of IEEE 802.1D.
        const FORWARDED: u16 = 0xfff8;
        check_name(name)?;
        let data = InfoData::Bridge(vec![
            InfoBridge::AgeingTime(0),
            InfoBridge::GroupFwdMask(FORWARDED),
            InfoBridge::MulticastSnooping(false),
        ]);
        let mut message = LinkMessage::default();
        message.attributes = vec![
            LinkAttribute::IfName(name.to_owned()),
            LinkAttribute::Group(self.number),
            kind_attribute(InfoKind::Bridge, Some(data)),
        ];
        let action = format!("create bridge `{name}`");
        let message = RouteNetlinkMessage::NewLink(message);
        Ok(Request::create(action, message))
    }

    /// Returns the links of the group.
    pub fn links(&self, netlink: &mut Netlink) -> Result<Vec<Link>> {
        let mut links = netlink.links()?;
        links.retain(|link| self.contains(link));
        Ok(links)
    }

    fn contains(&self, link: &Link) -> bool {
        link.group == self.number && link.name.starts_with(&self.prefix)
    }

    /// Removes all links of the group from the calling thread's namespace. Keeps links that another
    /// program has put into the group.
    pub fn remove(&self) -> Result<()> {
        let mut netlink = Netlink::open()?;
        let links = netlink.links()?;
        let (own, others): (Vec<&Link>, Vec<&Link>) = links
            .iter()
            .filter(|link| link.group == self.number)
            .partition(|link| self.contains(link));
        if own.is_empty() {
            return Ok(());
        }
        if !others.is_empty() {
            let requests: Vec<_> = own.iter().map(|link| super::delete(&link.id())).collect();
            // The removal of one end of a pair removes the other end too.
            for request in requests {
                match netlink.apply([request]) {
                    Err(error) if !error.is_not_found() => return Err(error),
                    _ => {}
                }
            }
            return Ok(());
        }
        let mut message = LinkMessage::default();
        message.attributes = vec![LinkAttribute::Group(self.number)];
        let action = format!("delete the links `{}...`", self.prefix);
        let request = Request::change(action, RouteNetlinkMessage::DelLink(message));
        netlink.apply([request])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::{enslave, set_up};
    use crate::tests::{Namespace, root_or_skip};

    fn group() -> LinkGroup {
        LinkGroup {
            number: 0x1234_5678,
            prefix: "mtgroup".to_owned(),
        }
    }

    fn end<'a>(name: &'a str, group: Option<&'a LinkGroup>) -> PlacedEnd<'a> {
        PlacedEnd {
            end: VethEnd::named(name),
            group,
        }
    }

    #[test]
    fn a_group_is_removed_with_its_bridges_and_pairs_and_nothing_else() {
        if !root_or_skip("a_group_is_removed_with_its_bridges_and_pairs_and_nothing_else") {
            return;
        }
        let (namespace, host) = (Namespace::new("group"), Namespace::new("grouphost"));
        let group = group();
        let mut netlink = Netlink::open_in(&namespace).unwrap();
        netlink
            .apply([group.create_bridge("mtgroupb").unwrap()])
            .unwrap();
        let bridge = netlink.link("mtgroupb").unwrap().id();
        let inside = PlacedEnd {
            end: VethEnd {
                namespace: Some(&host),
                ..VethEnd::named("eth0")
            },
            group: None,
        };
        let near = end("mtgroupp", Some(&group));
        let requests = [
            create_veth(&near, &inside, Some(&bridge)).unwrap(),
            create_veth(&end("other0", None), &end("other1", None), None).unwrap(),
        ];
        netlink.apply(requests).unwrap();
        let port = netlink.link("mtgroupp").unwrap();
        let inside = Netlink::open_in(&host).unwrap().link("eth0").unwrap();
        let (master, peer) = (Some(bridge.index), Some(inside.index));
        assert_eq!((port.master, port.peer), (master, peer));
        netlink
            .apply([
                describe_quiet(&port.id(), "a port"),
                set_up(&bridge),
                forget_stations(&bridge),
                enslave(&port.id(), &bridge),
            ])
            .unwrap();
        let found = group.links(&mut netlink).unwrap();
        assert_eq!(found.len(), 2);
        let alias = |link: &Link| link.alias.clone();
        assert!(
            found
                .iter()
                .any(|link| alias(link).as_deref() == Some("a port"))
        );

        // Another program's link is in the group for a moment.
        let foreign = end("foreign", Some(&group));
        let request = create_veth(&foreign, &end("foreignpeer", None), None).unwrap();
        namespace
            .enter(|| {
                let mut netlink = Netlink::open().unwrap();
                netlink.apply([request]).unwrap();
                group.remove().unwrap();
            })
            .unwrap();
        let names = |netlink: &mut Netlink| {
            let links = netlink.links().unwrap().into_iter();
            let mut names: Vec<_> = links.map(|link| link.name).collect();
            names.retain(|name| name != "lo");
            names.sort();
            names
        };
        let left = ["foreign", "foreignpeer", "other0", "other1"];
        assert_eq!(names(&mut netlink), left);
        netlink
            .apply([group.create_bridge("mtgroupb").unwrap()])
            .unwrap();
        let foreign = netlink.link("foreign").unwrap().id();
        netlink.apply([super::super::delete(&foreign)]).unwrap();
        namespace
            .enter(|| {
                group.remove().unwrap();
                group.remove().unwrap();
            })
            .unwrap();
        assert_eq!(names(&mut netlink), ["other0", "other1"]);
    }
}
