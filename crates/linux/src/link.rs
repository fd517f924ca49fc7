//! Links (network interfaces): their properties, and requests that make, change and remove them.

pub mod group;

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoData, InfoKind, InfoMacVlan, InfoMacVtap,
    InfoVeth, LinkAttribute, LinkExtentMask, LinkFlags, LinkInfo, LinkLayerType, LinkMessage,
    LinkXdp, MacVlanMode, MacVtapMode, State,
};

use crate::error::{Error, ErrorKind, Result};
use crate::netlink::{Netlink, Request};
use crate::netns::Netns;

/// Longest name of a link, bytes: `IFNAMSIZ` minus the final zero.
pub const MAX_NAME_BYTES: usize = 15;

/// An Ethernet address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, byte) in self.0.iter().enumerate() {
            write!(f, "{}{byte:02x}", if position == 0 { "" } else { ":" })?;
        }
        Ok(())
    }
}

/// Identifies a link in requests, by index for the kernel and by name for error texts.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LinkId {
    /// Interface index, unique in its namespace.
    pub index: u32,
    /// Interface name, at most 15 bytes.
    pub name: String,
}

/// Properties of a link, as the kernel reports them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Link {
    /// Interface index, unique in its namespace.
    pub index: u32,
    /// Interface name.
    pub name: String,
    /// Free text of an administrator (`ip link set X alias TEXT`).
    pub alias: Option<String>,
    /// Ethernet address; `None` for a link without such an address.
    pub mac: Option<Mac>,
    /// Largest packet without the link header, bytes.
    pub mtu: u32,
    /// Whether the link is administratively up.
    pub up: bool,
    /// Whether the link is up and has a carrier (`LOWER_UP`).
    pub carrier: bool,
    /// Whether the link is operational (RFC 2863). A link that is not operational drops
    /// packets to transmit.
    pub operational: bool,
    /// Whether the link is administratively promiscuous.
    pub promiscuous: bool,
    /// `veth`, `bridge`, ...; empty for hardware and loopback.
    pub kind: String,
    /// Link layer, by its name in `if_arp.h` without `ARPHRD_`: `ETHER`, `PPP`, `NONE`, ...
    pub link_layer: String,
    /// Whether packets at the link have an Ethernet header. Loopback packets have one too.
    pub has_ethernet_header: bool,
    /// Whether the link is a macvlan or macvtap in bridge mode. Such a link delivers frames to the
    /// addresses of its lower link.
    pub is_macvlan_bridge: bool,
    /// Number of allocated transmit queues.
    pub tx_queues: u32,
    /// Number of allocated receive queues.
    pub rx_queues: u32,
    /// Index of the lower link, or of a veth's other end, in the namespace
    /// [`Link::peer_namespace`].
    pub peer: Option<u32>,
    /// Namespace identifier of the peer, if the peer is in another namespace (`ip netns list-id`).
    pub peer_namespace: Option<i32>,
    /// Index of the bridge or bond of which the link is a port.
    pub master: Option<u32>,
    /// Number of the link's group; 0 by default.
    pub group: u32,
    /// Identifier of the attached XDP program.
    pub xdp_program: Option<u32>,
}

impl Link {
    /// Returns the identifier of the link for requests.
    pub fn id(&self) -> LinkId {
        LinkId {
            index: self.index,
            name: self.name.clone(),
        }
    }
}

/// One end of a new veth pair.
#[derive(Debug, Clone, Copy)]
pub struct VethEnd<'a> {
    /// Interface name.
    pub name: &'a str,
    /// Namespace of the end. `None` for the namespace of the request's socket.
    pub namespace: Option<&'a Netns>,
    /// Ethernet address. `None` for a random address.
    pub mac: Option<Mac>,
    /// MTU, bytes. `None` for 1500.
    pub mtu: Option<u32>,
}

impl<'a> VethEnd<'a> {
    /// Returns an end with the kernel's defaults, in the namespace of the request's socket.
    pub fn named(name: &'a str) -> Self {
        Self {
            name,
            namespace: None,
            mac: None,
            mtu: None,
        }
    }

    fn attributes(&self, files: &mut Vec<OwnedFd>) -> Result<Vec<LinkAttribute>> {
        check_name(self.name)?;
        // One queue for each direction. By default the kernel allocates a queue for each CPU and
        // uses only one queue.
        let mut attributes = vec![
            LinkAttribute::IfName(self.name.to_owned()),
            LinkAttribute::NumTxQueues(1),
            LinkAttribute::NumRxQueues(1),
        ];
        attributes.extend(self.mac.map(|mac| LinkAttribute::Address(mac.0.to_vec())));
        attributes.extend(self.mtu.map(LinkAttribute::Mtu));
        if let Some(namespace) = self.namespace {
            let file = namespace.as_fd().try_clone_to_owned().map_err(|error| {
                Error::os(
                    format!("copy the handle of {}", namespace.describe()),
                    error,
                )
            })?;
            attributes.push(LinkAttribute::NetNsFd(file.as_raw_fd()));
            files.push(file);
        }
        Ok(attributes)
    }
}

/// Refuses invalid names, for which the kernel would only report "invalid argument".
pub fn check_name(name: &str) -> Result<()> {
    let cause = if name.is_empty() {
        "the name is empty".to_owned()
    } else if name.len() > MAX_NAME_BYTES {
        format!(
            "the name is {} bytes long, but at most {MAX_NAME_BYTES} bytes are allowed",
            name.len()
        )
    } else if name == "."
        || name == ".."
        || name.contains(|c: char| c == '/' || c == ':' || c == '\0' || c.is_whitespace())
    {
        "`/`, `:`, white space, `.` and `..` are not allowed".to_owned()
    } else {
        return Ok(());
    };
    Err(
        Error::new(format!("name a link `{name}`"), ErrorKind::Invalid, cause)
            .remedy("choose another name"),
    )
}

/// Makes a veth pair. Both ends are down.
pub fn create_veth(first: &VethEnd<'_>, second: &VethEnd<'_>) -> Result<Request> {
    let mut files = Vec::new();
    let mut peer = LinkMessage::default();
    peer.attributes = second.attributes(&mut files)?;
    let mut message = LinkMessage::default();
    message.attributes = first.attributes(&mut files)?;
    message.attributes.push(kind_attribute(
        InfoKind::Veth,
        Some(InfoData::Veth(InfoVeth::Peer(peer))),
    ));
    let action = format!("create veth pair `{}` - `{}`", first.name, second.name);
    Ok(Request::create(action, RouteNetlinkMessage::NewLink(message)).keep_open(files))
}

/// Makes a bridge with the kernel's defaults (no spanning tree). The bridge is down.
pub fn create_bridge(name: &str) -> Result<Request> {
    create(name, InfoKind::Bridge, None)
}

/// Makes a link of any kind. The link is down.
pub(crate) fn create(name: &str, info: InfoKind, data: Option<InfoData>) -> Result<Request> {
    check_name(name)?;
    let action = format!("create {info} `{name}`");
    let mut message = LinkMessage::default();
    message.attributes = vec![
        LinkAttribute::IfName(name.to_owned()),
        kind_attribute(info, data),
    ];
    let message = RouteNetlinkMessage::NewLink(message);
    Ok(Request::create(action, message))
}

/// Removes the link. For a veth, the kernel removes the other end too.
pub fn delete(link: &LinkId) -> Request {
    let mut message = LinkMessage::default();
    message.header.index = link.index;
    let action = format!("delete link `{}`", link.name);
    Request::change(action, RouteNetlinkMessage::DelLink(message))
}

/// Sets the link administratively up.
pub fn set_up(link: &LinkId) -> Request {
    set_flag(link, LinkFlags::Up, true, "up")
}

/// Sets the link administratively down.
pub fn set_down(link: &LinkId) -> Request {
    set_flag(link, LinkFlags::Up, false, "down")
}

/// Turns promiscuous mode on or off.
pub fn set_promiscuous(link: &LinkId, on: bool) -> Request {
    set_flag(
        link,
        LinkFlags::Promisc,
        on,
        if on { "promiscuous" } else { "not promiscuous" },
    )
}

/// Sets the largest size to which GRO merges packets. With a size of 1, GRO merges no packets, but
/// still keeps NAPI on for a veth.
pub fn set_gro_max_size(link: &LinkId, bytes: u32) -> Request {
    let action = format!("set the GRO size of link `{}` to {bytes} bytes", link.name);
    set_attribute(link, action, LinkAttribute::GroMaxSize(bytes))
}

/// Sets the Ethernet address.
pub fn set_mac(link: &LinkId, mac: Mac) -> Request {
    let action = format!("give link `{}` the address {mac}", link.name);
    set_attribute(link, action, LinkAttribute::Address(mac.0.to_vec()))
}

/// Sets the alias, free text that `ip link show` prints.
pub fn set_alias(link: &LinkId, text: &str) -> Request {
    let action = format!("set the alias of link `{}`", link.name);
    set_attribute(link, action, LinkAttribute::IfAlias(text.to_owned()))
}

/// Makes the link a port of the bridge.
pub fn enslave(port: &LinkId, bridge: &LinkId) -> Request {
    let action = format!(
        "make link `{}` a port of bridge `{}`",
        port.name, bridge.name
    );
    set_attribute(port, action, LinkAttribute::Controller(bridge.index))
}

/// Turns off automatic IPv6 addresses of the link. Without a link-local address, the kernel sends
/// no duplicate address detection and no router solicitation. Apply the request before the link is
/// up.
pub fn disable_ipv6_autoconfiguration(link: &LinkId) -> Request {
    let mode = AfSpecInet6::AddrGenMode(In6AddrGenMode::None);
    let action = format!("turn off IPv6 autoconfiguration of link `{}`", link.name);
    let inet6 = AfSpecUnspec::Inet6(vec![mode]);
    set_attribute(link, action, LinkAttribute::AfSpecUnspec(vec![inet6]))
}

fn kind_attribute(kind: InfoKind, data: Option<InfoData>) -> LinkAttribute {
    let mut info = vec![LinkInfo::Kind(kind)];
    info.extend(data.map(LinkInfo::Data));
    LinkAttribute::LinkInfo(info)
}

fn set_flag(link: &LinkId, flag: LinkFlags, on: bool, state: &str) -> Request {
    let mut message = LinkMessage::default();
    message.header.index = link.index;
    message.header.change_mask = flag;
    if on {
        message.header.flags = flag;
    }
    let action = format!("set link `{}` {state}", link.name);
    Request::change(action, RouteNetlinkMessage::SetLink(message))
}

fn set_attribute(link: &LinkId, action: String, attribute: LinkAttribute) -> Request {
    let mut message = LinkMessage::default();
    message.header.index = link.index;
    message.attributes = vec![attribute];
    Request::change(action, RouteNetlinkMessage::SetLink(message))
}

impl Netlink {
    /// Returns the link of that name.
    pub fn link(&mut self, name: &str) -> Result<Link> {
        check_name(name)?;
        let mut message = LinkMessage::default();
        message.attributes = vec![LinkAttribute::IfName(name.to_owned()), omit_statistics()];
        self.get_link(&format!("find link `{name}`"), message)
            .map_err(|error| {
                if error.is_not_found() {
                    error.remedy("`ip link` lists all links")
                } else {
                    error
                }
            })
    }

    /// Returns the link with that index.
    pub fn link_by_index(&mut self, index: u32) -> Result<Link> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.attributes = vec![omit_statistics()];
        self.get_link(&format!("find the link with index {index}"), message)
    }

    /// Returns all links of the socket's namespace.
    pub fn links(&mut self) -> Result<Vec<Link>> {
        let mut message = LinkMessage::default();
        message.attributes = vec![omit_statistics()];
        let objects = self.dump("list links", &RouteNetlinkMessage::GetLink(message))?;
        Ok(objects.iter().filter_map(parse_link).collect())
    }

    fn get_link(&mut self, action: &str, message: LinkMessage) -> Result<Link> {
        let answer = self.get(action, &RouteNetlinkMessage::GetLink(message))?;
        parse_link(&answer).ok_or_else(|| {
            Error::new(
                action,
                ErrorKind::Other,
                "the kernel's reply has an unexpected type",
            )
        })
    }
}

/// Asks the kernel to omit the counters, which are most of a reply's bytes.
fn omit_statistics() -> LinkAttribute {
    LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats])
}

fn parse_link(message: &RouteNetlinkMessage) -> Option<Link> {
    let RouteNetlinkMessage::NewLink(message) = message else {
        return None;
    };
    let flags = message.header.flags;
    let link_layer = message.header.link_layer_type;
    let mut link = Link {
        index: message.header.index,
        link_layer: link_layer.to_string(),
        has_ethernet_header: matches!(link_layer, LinkLayerType::Ether | LinkLayerType::Loopback),
        up: flags.contains(LinkFlags::Up),
        carrier: flags.contains(LinkFlags::LowerUp),
        promiscuous: flags.contains(LinkFlags::Promisc),
        ..Link::default()
    };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::IfAlias(alias) => link.alias = Some(alias.clone()),
            LinkAttribute::Address(bytes) => link.mac = bytes.as_slice().try_into().ok().map(Mac),
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::OperState(state) => link.operational = *state == State::Up,
            LinkAttribute::NumTxQueues(queues) => link.tx_queues = *queues,
            LinkAttribute::NumRxQueues(queues) => link.rx_queues = *queues,
            LinkAttribute::Link(peer) => link.peer = Some(*peer),
            LinkAttribute::LinkNetNsId(namespace) => link.peer_namespace = Some(*namespace),
            LinkAttribute::Controller(master) => link.master = Some(*master),
            LinkAttribute::Group(group) => link.group = *group,
            LinkAttribute::LinkInfo(infos) => {
                if let Some(kind) = infos.iter().find_map(|info| match info {
                    LinkInfo::Kind(kind) => Some(kind.to_string()),
                    _ => None,
                }) {
                    link.kind = kind;
                }
                link.is_macvlan_bridge = infos.iter().any(is_macvlan_bridge);
            }
            LinkAttribute::Xdp(states) => {
                link.xdp_program = states.iter().find_map(|state| match state {
                    LinkXdp::ProgId(program) => Some(*program),
                    _ => None,
                });
            }
            _ => {}
        }
    }
    Some(link)
}

fn is_macvlan_bridge(info: &LinkInfo) -> bool {
    match info {
        LinkInfo::Data(InfoData::MacVlan(data)) => {
            data.contains(&InfoMacVlan::Mode(MacVlanMode::Bridge))
        }
        LinkInfo::Data(InfoData::MacVtap(data)) => {
            data.contains(&InfoMacVtap::Mode(MacVtapMode::Bridge))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests;
