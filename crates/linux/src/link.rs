//! Links (network interfaces): their properties, and requests that make, change and remove them.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoData, InfoKind, InfoVeth, LinkAttribute,
    LinkExtentMask, LinkFlags, LinkInfo, LinkMessage, LinkXdp, State,
};

use crate::error::{Error, ErrorKind, Result};
use crate::netlink::{Netlink, Request};
use crate::netns::Netns;

/// `IFNAMSIZ` less the final zero.
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

/// Identifies a link in requests: the index for the kernel, the name for error texts.
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
    /// Its Ethernet address, if it is an Ethernet-like link.
    pub mac: Option<Mac>,
    /// Largest packet without the link header, bytes.
    pub mtu: u32,
    /// Whether the link is administratively up.
    pub up: bool,
    /// Whether the link is up and the other side is present (`LOWER_UP`).
    pub carrier: bool,
    /// Whether the link is operational (RFC 2863). Until then it drops packets to transmit.
    pub operational: bool,
    /// Whether the link is administratively promiscuous.
    pub promiscuous: bool,
    /// `veth`, `bridge`, ...; empty for hardware and loopback.
    pub kind: String,
    /// Transmit queues allocated.
    pub tx_queues: u32,
    /// Receive queues allocated.
    pub rx_queues: u32,
    /// Index of the link below, or of a veth's other end. It belongs to the namespace of
    /// [`Link::peer_namespace`].
    pub peer: Option<u32>,
    /// Namespace identifier of the peer, if it is in another namespace (`ip netns list-id`).
    pub peer_namespace: Option<i32>,
    /// Index of the bridge or bond that the link is a port of.
    pub master: Option<u32>,
    /// Identifier of the XDP program attached to it.
    pub xdp_program: Option<u32>,
}

impl Link {
    /// Identifies the link in requests.
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
    /// Ethernet address. `None` for a random one.
    pub mac: Option<Mac>,
    /// MTU, bytes. `None` for 1500.
    pub mtu: Option<u32>,
}

impl<'a> VethEnd<'a> {
    /// An end with the kernel's defaults, in the namespace of the socket.
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
        // One queue for each direction. By default the kernel allocates one for each CPU and uses
        // one.
        let mut attributes = vec![
            LinkAttribute::IfName(self.name.to_owned()),
            LinkAttribute::NumTxQueues(1),
            LinkAttribute::NumRxQueues(1),
        ];
        attributes.extend(self.mac.map(|mac| LinkAttribute::Address(mac.0.to_vec())));
        attributes.extend(self.mtu.map(LinkAttribute::Mtu));
        if let Some(namespace) = self.namespace {
            let file = namespace
                .as_fd()
                .try_clone_to_owned()
                .map_err(|error| Error::os(format!("hold {}", namespace.describe()), error))?;
            attributes.push(LinkAttribute::NetNsFd(file.as_raw_fd()));
            files.push(file);
        }
        Ok(attributes)
    }
}

/// Rejects names for which the kernel would only report "invalid argument".
pub fn check_name(name: &str) -> Result<()> {
    let cause = if name.is_empty() {
        "it is empty".to_owned()
    } else if name.len() > MAX_NAME_BYTES {
        format!(
            "it is {} bytes long, at most {MAX_NAME_BYTES} are allowed",
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

/// Makes a veth pair, both ends down.
pub fn veth(one: &VethEnd<'_>, other: &VethEnd<'_>) -> Result<Request> {
    let mut files = Vec::new();
    let mut peer = LinkMessage::default();
    peer.attributes = other.attributes(&mut files)?;
    let mut message = LinkMessage::default();
    message.attributes = one.attributes(&mut files)?;
    message.attributes.push(kind(
        InfoKind::Veth,
        Some(InfoData::Veth(InfoVeth::Peer(peer))),
    ));
    let action = format!("create veth pair `{}` - `{}`", one.name, other.name);
    Ok(Request::create(action, RouteNetlinkMessage::NewLink(message)).holding(files))
}

/// Makes a bridge with the kernel's defaults (no spanning tree), down.
pub fn bridge(name: &str) -> Result<Request> {
    create(name, InfoKind::Bridge, None)
}

/// Makes any kind of link, down.
pub(crate) fn create(name: &str, info: InfoKind, data: Option<InfoData>) -> Result<Request> {
    check_name(name)?;
    let action = format!("create {info} `{name}`");
    let mut message = LinkMessage::default();
    message.attributes = vec![LinkAttribute::IfName(name.to_owned()), kind(info, data)];
    let message = RouteNetlinkMessage::NewLink(message);
    Ok(Request::create(action, message))
}

/// Removes the link; the other end of a veth is removed with it.
pub fn delete(link: &LinkId) -> Request {
    let mut message = LinkMessage::default();
    message.header.index = link.index;
    let action = format!("delete link `{}`", link.name);
    Request::change(action, RouteNetlinkMessage::DelLink(message))
}

/// Sets the link administratively up.
pub fn up(link: &LinkId) -> Request {
    flag(link, LinkFlags::Up, true, "up")
}

/// Sets the link administratively down.
pub fn down(link: &LinkId) -> Request {
    flag(link, LinkFlags::Up, false, "down")
}

/// Turns promiscuous mode on or off.
pub fn promiscuous(link: &LinkId, on: bool) -> Request {
    flag(
        link,
        LinkFlags::Promisc,
        on,
        if on { "promiscuous" } else { "not promiscuous" },
    )
}

/// Sets the largest size to which GRO merges packets. With 1 it merges none; NAPI on a veth, which
/// GRO turns on, stays on.
pub fn set_gro_max_size(link: &LinkId, bytes: u32) -> Request {
    let action = format!("set the GRO size of link `{}` to {bytes} bytes", link.name);
    change(link, action, LinkAttribute::GroMaxSize(bytes))
}

/// Sets the Ethernet address.
pub fn mac(link: &LinkId, mac: Mac) -> Request {
    let action = format!("give link `{}` the address {mac}", link.name);
    change(link, action, LinkAttribute::Address(mac.0.to_vec()))
}

/// Sets the alias, free text that `ip link show` prints.
pub fn alias(link: &LinkId, text: &str) -> Request {
    let action = format!("set the alias of link `{}`", link.name);
    change(link, action, LinkAttribute::IfAlias(text.to_owned()))
}

/// Makes the link a port of the bridge.
pub fn enslave(port: &LinkId, bridge: &LinkId) -> Request {
    let action = format!(
        "make link `{}` a port of bridge `{}`",
        port.name, bridge.name
    );
    change(port, action, LinkAttribute::Controller(bridge.index))
}

/// Turns automatic IPv6 addresses of the link off: no link-local address, so no duplicate address
/// detection and no router solicitation. Call it before the link is up.
pub fn no_ipv6_autoconfiguration(link: &LinkId) -> Request {
    let mode = AfSpecInet6::AddrGenMode(In6AddrGenMode::None);
    let action = format!("turn IPv6 autoconfiguration of link `{}` off", link.name);
    let inet6 = AfSpecUnspec::Inet6(vec![mode]);
    change(link, action, LinkAttribute::AfSpecUnspec(vec![inet6]))
}

fn kind(kind: InfoKind, data: Option<InfoData>) -> LinkAttribute {
    let mut info = vec![LinkInfo::Kind(kind)];
    info.extend(data.map(LinkInfo::Data));
    LinkAttribute::LinkInfo(info)
}

fn flag(link: &LinkId, flag: LinkFlags, on: bool, state: &str) -> Request {
    let mut message = LinkMessage::default();
    message.header.index = link.index;
    message.header.change_mask = flag;
    if on {
        message.header.flags = flag;
    }
    let action = format!("set link `{}` {state}", link.name);
    Request::change(action, RouteNetlinkMessage::SetLink(message))
}

fn change(link: &LinkId, action: String, attribute: LinkAttribute) -> Request {
    let mut message = LinkMessage::default();
    message.header.index = link.index;
    message.attributes = vec![attribute];
    Request::change(action, RouteNetlinkMessage::SetLink(message))
}

impl Netlink {
    /// The link of that name.
    pub fn link(&mut self, name: &str) -> Result<Link> {
        check_name(name)?;
        let mut message = LinkMessage::default();
        message.attributes = vec![LinkAttribute::IfName(name.to_owned()), without_statistics()];
        self.get_link(&format!("find link `{name}`"), message)
            .map_err(|error| {
                if error.is_not_found() {
                    error.remedy("`ip link` shows those that exist")
                } else {
                    error
                }
            })
    }

    /// The link with that index.
    pub fn link_by_index(&mut self, index: u32) -> Result<Link> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.attributes = vec![without_statistics()];
        self.get_link(&format!("find the link with index {index}"), message)
    }

    /// All links of the socket's namespace.
    pub fn links(&mut self) -> Result<Vec<Link>> {
        let mut message = LinkMessage::default();
        message.attributes = vec![without_statistics()];
        let objects = self.dump("list links", &RouteNetlinkMessage::GetLink(message))?;
        Ok(objects.iter().filter_map(link_of).collect())
    }

    fn get_link(&mut self, action: &str, message: LinkMessage) -> Result<Link> {
        let answer = self.get(action, &RouteNetlinkMessage::GetLink(message))?;
        link_of(&answer).ok_or_else(|| {
            Error::new(
                action,
                ErrorKind::Other,
                "the kernel's reply has an unexpected type",
            )
        })
    }
}

/// Omits the counters: most of a reply's bytes, and unused here.
fn without_statistics() -> LinkAttribute {
    LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats])
}

fn link_of(message: &RouteNetlinkMessage) -> Option<Link> {
    let RouteNetlinkMessage::NewLink(message) = message else {
        return None;
    };
    let flags = message.header.flags;
    let mut link = Link {
        index: message.header.index,
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
            LinkAttribute::LinkInfo(infos) => {
                if let Some(kind) = infos.iter().find_map(|info| match info {
                    LinkInfo::Kind(kind) => Some(kind.to_string()),
                    _ => None,
                }) {
                    link.kind = kind;
                }
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

#[cfg(test)]
mod tests;
