//! A part of a chain that runs on several nodes: its place in the whole, and the neighbours that
//! send and take its frames.

use std::net::IpAddr;

use myelin_packet::MacAddr;
use myelin_packet::meta::MAX_SPI;
use myelin_packet::wire::Tunnel;
use serde::{Deserialize, Serialize};

use crate::chain::WorkerSpec;
use crate::function::FunctionSpec;
use crate::keys::field::{Field, Fields};
use crate::keys::{ConfigKey, DURATION, Readable, TEXT, ValueType, address, integer, keys, name};

/// The least service path identifier of a chain over several nodes. The chains of one node have
/// identifiers below.
pub const FIRST_PATH: u32 = 0x80_0000;

/// The most functions of a whole chain. The service index (RFC 8300: 8 bits) counts down from 255
/// and stays above 0.
pub const MAX_LENGTH: u8 = 254;

/// The most instances of a function, each on a path of its own.
pub const MAX_REPLICAS: u8 = 16;

/// The largest VXLAN network identifier (RFC 7348: 24 bits).
const MAX_VNI: u64 = 0xff_ffff;

keys! {
    /// Keys of `vxlan`.
    VXLAN_KEYS {
        /// The address of this node, at which frames arrive and from which they leave.
        "local" = TEXT.required();
        /// The address of the neighbour.
        "remote" = TEXT.required();
        /// The VXLAN network identifier.
        "vni" = integer(1, MAX_VNI, "a VXLAN network identifier").required();
        /// The new Ethernet destination of packets to the neighbour: the station behind the last
        /// part. Behind routers, no station has the destination that the sender wrote. Packets to
        /// groups keep theirs. Default: all packets do.
        "destination" = TEXT;
    }
}

keys! {
    /// Keys of a neighbour.
    PEER_KEYS {
        /// The interface of this node that leads to the neighbour.
        "interface" = TEXT.required();
        /// The Ethernet address of the neighbour, on the same Ethernet. Excludes `vxlan`.
        "peer" = TEXT;
        /// The addresses of both ends, for a neighbour behind routers. Excludes `peer`.
        "vxlan" = ConfigKey::new(ValueType::Map(VXLAN_KEYS));
    }
}

keys! {
    /// Keys of a branch in `split`.
    BRANCH_KEYS {
        /// The name of the branch, which decides its flows: a branch keeps its flows while others
        /// come and go.
        "name" = TEXT.required();
        /// The identifier of the branch's path in NSH.
        "path" = integer(FIRST_PATH as u64, MAX_SPI as u64, "the identifier of a path").required();
        /// The interface of this node that leads to the neighbour.
        "interface" = TEXT.required();
        /// The Ethernet address of the neighbour, on the same Ethernet. Excludes `vxlan`.
        "peer" = TEXT;
        /// The addresses of both ends, for a neighbour behind routers. Excludes `peer`.
        "vxlan" = ConfigKey::new(ValueType::Map(VXLAN_KEYS));
    }
}

keys! {
    /// Keys of `spec.part`.
    KEYS {
        /// The identifier of the whole chain's path in NSH, the same in all its parts.
        "path" = integer(FIRST_PATH as u64, MAX_SPI as u64, "the identifier of a path").required();
        /// The position of this part's first function in the whole chain, from 0.
        "first" = integer(0, MAX_LENGTH as u64 - 1, "a position").required();
        /// The number of functions of the whole chain.
        "length" = integer(1, MAX_LENGTH as u64, "a number of functions").required();
        /// The name of the whole chain on this node, the same in all its parts. Functions of the
        /// whole with the same name share their state and their worker on a node, so a changed
        /// order keeps both. Default: the part's own name.
        "whole" = TEXT;
        /// The `whole` of the chain of the other direction on this node. Functions with `reverseOf`
        /// share the state of its functions. They then have their configuration, too.
        "reverse" = TEXT;
        /// The share of the contract's latency that earlier parts and links have. A sojourn that
        /// begins where packets entered the whole chain may take this time in addition.
        "before" = DURATION;
        /// The node of the previous part. Frames from others are dropped. Absent in the first part.
        "from" = ConfigKey::new(ValueType::Map(PEER_KEYS));
        /// The node of the next part. Absent in the last part.
        "to" = ConfigKey::new(ValueType::Map(PEER_KEYS));
        /// The next parts, of which each flow takes one, in both directions the same. Excludes
        /// `to`.
        "split" = ConfigKey::new(ValueType::Branches(BRANCH_KEYS));
    }
}

/// The key `spec.part`.
pub(crate) const PART: ConfigKey = ConfigKey::new(ValueType::Map(KEYS));

/// The place of a part in the whole chain, and its neighbours.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartSpec {
    /// The service path identifier of the whole chain, [`FIRST_PATH`] or above.
    pub path: u32,
    /// The position of the part's first function in the whole chain.
    pub first: u8,
    /// The number of functions of the whole chain, at most [`MAX_LENGTH`].
    pub length: u8,
    /// The name of the whole chain on this node; `None`: the part's own name.
    pub whole: Option<String>,
    /// The name of the whole chain of the other direction on this node.
    pub reverse: Option<String>,
    /// The share of the contract's latency that earlier parts and links have, ns.
    pub before_ns: Option<u64>,
    /// The node of the previous part; `None` in the first part.
    pub from: Option<PeerSpec>,
    /// The node of the next part; `None` in the last part. If flows split, that of the first
    /// branch.
    pub to: Option<PeerSpec>,
    /// The next parts of which each flow takes one; empty if all packets go to `to`.
    #[serde(default)]
    pub split: Vec<BranchSpec>,
}

/// A next part that takes some of the flows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BranchSpec {
    /// The name, which decides the flows.
    pub name: String,
    /// The service path identifier of the branch.
    pub path: u32,
    /// The node.
    pub peer: PeerSpec,
}

/// A neighbouring node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerSpec {
    /// The interface of this node that leads to the neighbour.
    pub interface: String,
    /// How frames reach the neighbour.
    pub way: Way,
}

/// How frames reach a neighbouring node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// On the same Ethernet: the neighbour's address.
    Ethernet(MacAddr),
    /// In VXLAN (RFC 7348).
    Vxlan(VxlanSpec),
}

/// A VXLAN tunnel between two nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct VxlanSpec {
    /// The address of this node.
    pub local: IpAddr,
    /// The address of the neighbour, of the same family.
    pub remote: IpAddr,
    /// The VXLAN network identifier, 24 bits.
    pub vni: u32,
    /// The new Ethernet destination of packets to the neighbour; `None`: it stays.
    #[serde(default)]
    pub destination: Option<MacAddr>,
}

impl PeerSpec {
    /// The tunnel to the neighbour; `None` on the same Ethernet.
    pub fn tunnel(&self) -> Option<Tunnel> {
        match self.way {
            Way::Ethernet(_) => None,
            Way::Vxlan(VxlanSpec {
                local, remote, vni, ..
            }) => Some(Tunnel { local, remote, vni }),
        }
    }

    /// The new Ethernet destination of packets to the neighbour; `None`: it stays.
    pub fn destination(&self) -> Option<MacAddr> {
        match self.way {
            Way::Ethernet(_) => None,
            Way::Vxlan(VxlanSpec { destination, .. }) => destination,
        }
    }
}

impl PartSpec {
    /// The position in the whole chain of the next part's first function.
    pub fn end(&self, functions: usize) -> usize {
        usize::from(self.first) + functions
    }
}

/// Reads `spec.part` and checks it against the other keys. Returns `None` after a fault.
pub(crate) fn read(
    spec: &Fields<'_>,
    functions: &[FunctionSpec],
    worker: &WorkerSpec,
) -> Option<PartSpec> {
    let field = spec.get("part")?;
    let before = field.faults.count();
    let part = read_keys(&field);
    if let Some(part) = part.as_ref().filter(|_| !functions.is_empty()) {
        check_positions(&field, part, functions.len());
        check_replies(part, functions, &field);
        check_keys_of_neighbours(spec, part, worker);
    }
    part.filter(|_| field.faults.count() == before)
}

fn read_keys(field: &Field<'_>) -> Option<PartSpec> {
    let fields = field.mapping(KEYS)?;
    for (key, expected, example) in [
        (
            "path",
            "the identifier of the whole chain's path",
            "8388609",
        ),
        ("first", "the position of the first function", "0"),
        ("length", "the number of functions of the whole chain", "4"),
    ] {
        fields.required(key, expected, example);
    }
    let peer = |key| fields.get(key).map(|field| read_peer(&field));
    let (from, to) = (peer("from"), peer("to"));
    let split = fields.get("split");
    if let (Some(_), Some(split)) = (&to, &split) {
        let help = "remove `to`, or `split`";
        split.fault("the part has both `to` and `split`", "one of the two", help);
    }
    let split = split.map_or(Some(Vec::new()), |field| read_branches(&field))?;
    let to = match split.first() {
        Some(branch) => Some(Some(branch.peer.clone())),
        None => to,
    };
    let label = |key| fields.get(key).and_then(|field| name::read_label(&field));
    Some(PartSpec {
        split,
        path: fields.read(KEYS, "path"),
        first: fields.read(KEYS, "first"),
        length: fields.read(KEYS, "length"),
        before_ns: fields.read(KEYS, "before"),
        whole: label("whole"),
        reverse: label("reverse"),
        from: from.map_or(Some(None), |peer| peer.map(Some))?,
        to: to.map_or(Some(None), |peer| peer.map(Some))?,
    })
}

fn read_branches(field: &Field<'_>) -> Option<Vec<BranchSpec>> {
    let items = field.list("a list of next parts")?;
    if items.is_empty() || items.len() > usize::from(MAX_REPLICAS) {
        field.fault(
            format!("{} branches", items.len()),
            format!("1 to {MAX_REPLICAS} branches"),
            "write a branch for each replica of the next function",
        );
    }
    let mut branches: Vec<BranchSpec> = Vec::new();
    for item in &items {
        let Some(branch) = read_branch(item) else {
            continue;
        };
        let is_same = |other: &BranchSpec| other.name == branch.name || other.path == branch.path;
        if branches.iter().any(is_same) {
            item.fault(
                "another branch has the same name or the same path",
                "a name and a path for each branch",
                "change `name` or `path`",
            );
        }
        branches.push(branch);
    }
    Some(branches)
}

fn read_branch(field: &Field<'_>) -> Option<BranchSpec> {
    let fields = field.mapping(BRANCH_KEYS)?;
    let name = name::read_required(&fields, "name", "n2");
    fields.required("path", "the identifier of the branch's path", "8388610");
    let peer = read_neighbour(field, &fields);
    Some(BranchSpec {
        name: name?,
        path: fields.read(BRANCH_KEYS, "path"),
        peer: peer?,
    })
}

fn read_peer(field: &Field<'_>) -> Option<PeerSpec> {
    read_neighbour(field, &field.mapping(PEER_KEYS)?)
}

fn read_neighbour(field: &Field<'_>, fields: &Fields<'_>) -> Option<PeerSpec> {
    const EXPECTED: &str = "either `peer` or `vxlan`";
    let interface = fields.required("interface", "the name of an interface", "eth1");
    let interface = interface.and_then(|field| name::read_interface(&field));
    let way = match (fields.get("peer"), fields.get("vxlan")) {
        (Some(peer), None) => MacAddr::read(&peer, &TEXT).map(Way::Ethernet),
        (None, Some(vxlan)) => read_vxlan(&vxlan).map(Way::Vxlan),
        (Some(_), Some(vxlan)) => {
            let help = "remove `vxlan` if the neighbour is on the same Ethernet, else `peer`";
            vxlan.fault("the neighbour has both `peer` and `vxlan`", EXPECTED, help);
            None
        }
        (None, None) => {
            let help = "add `peer: \"02:00:00:00:00:01\"`, the neighbour's Ethernet address";
            field.fault("the neighbour has no address", EXPECTED, help);
            None
        }
    };
    Some(PeerSpec {
        interface: interface?,
        way: way?,
    })
}

fn read_vxlan(field: &Field<'_>) -> Option<VxlanSpec> {
    let before = field.faults.count();
    let fields = field.mapping(VXLAN_KEYS)?;
    let host = |key, whose, example| address::read_host(&fields, key, whose, (example, example));
    let local = host("local", "the address of this node", "10.0.0.2");
    let remote = host("remote", "the address of the neighbour", "10.0.0.1");
    fields.required("vni", "a VXLAN network identifier", "7");
    let vni = fields.read(VXLAN_KEYS, "vni");
    let destination = fields.get("destination");
    let destination = destination.and_then(|field| MacAddr::read(&field, &TEXT));
    if field.faults.count() > before {
        return None;
    }
    if local.is_ipv4() != remote.is_ipv4() {
        field.fault(
            format!("{local} and {remote} are of different families"),
            "two IPv4 addresses or two IPv6 addresses",
            "correct one of the two addresses",
        );
    } else if local == remote {
        field.fault(
            format!("both ends have the address {local}"),
            "the addresses of two nodes",
            "write the neighbour's address in `remote`",
        );
    }
    (field.faults.count() == before).then_some(VxlanSpec {
        local,
        remote,
        vni,
        destination,
    })
}

/// Checks that the positions lie in the whole chain, and that both ends have their neighbours.
fn check_positions(field: &Field<'_>, part: &PartSpec, functions: usize) {
    let (first, length, end) = (part.first, usize::from(part.length), part.end(functions));
    if end > length {
        field.fault(
            format!("{functions} functions from position {first} on end at {end}"),
            format!("at most the {length} functions of `length`"),
            "correct `first` or `length`, or remove functions",
        );
        return;
    }
    let sides = [
        ("from", part.from.is_some(), first > 0, "first"),
        ("to", part.to.is_some(), end < length, "last"),
    ];
    for (key, has_peer, needs_peer, place) in sides {
        if has_peer && !needs_peer {
            field.fault(
                format!("the {place} part has `{key}`"),
                format!("no `{key}` in the {place} part"),
                format!("remove `{key}`, or correct `first` and `length`"),
            );
        } else if needs_peer && !has_peer {
            field.fault(
                format!("`{key}` is missing"),
                format!("`{key}` in all parts but the {place} one"),
                format!("add `{key}: {{ interface: eth1, peer: \"02:00:00:00:00:01\" }}`"),
            );
        }
    }
}

/// Refuses functions that answer senders: the way back leads through the first part's port only.
fn check_replies(part: &PartSpec, functions: &[FunctionSpec], field: &Field<'_>) {
    let answering = |function: &&FunctionSpec| function.config.effect().answers_senders;
    if let (Some(_), Some(function)) = (&part.from, functions.iter().find(answering)) {
        field.fault(
            format!(
                "`{}` answers the senders of packets, which are behind another node",
                function.name
            ),
            "such functions in the first part only",
            "move the function into the first part",
        );
    }
}

/// Checks the keys of `spec` that a part with a neighbour excludes or needs.
fn check_keys_of_neighbours(spec: &Fields<'_>, part: &PartSpec, worker: &WorkerSpec) {
    if let (Some(field), Some(_)) = (spec.get("match"), &part.from) {
        field.fault(
            "the traffic of this part comes from its neighbour",
            "`match` in the first part only",
            "remove `match`",
        );
    }
    if let Some(field) = spec.get("worker").filter(|_| worker.super_packets) {
        field.fault(
            "the parts of a chain exchange packets of wire size",
            "no `superPackets` in a part",
            "remove `superPackets`",
        );
    }
}
