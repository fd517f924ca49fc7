//! `nat`.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use super::prelude::*;
use crate::keys::address::is_host;
use crate::keys::matching;

/// External addresses of one `nat` at most, both families together.
pub const MAX_ADDRESSES: usize = 16;
/// How long a mapping of a TCP connection that is not established lives, ns: four minutes (RFC 5382, REQ-5).
const TCP_TRANSITORY_NS: u64 = 240_000_000_000;

const ADDRESSES: &str = "the external address, or a list of them, IPv4 or IPv6";
const EXAMPLE: &str = "write for example 198.51.100.7 or [198.51.100.7, 2001:db8::7]";

config! {
    /// Configuration of a `nat` function: source NAT of UDP, TCP and ICMP echo. The default lifetimes are the least that RFC 4787 (REQ-5) and
    /// RFC 5382 (REQ-5) allow. By default it has no address, so that it translates nothing.
    pub struct NatConfig {
        /// the external address, or a list of at most 16, IPv4, IPv6 or both; all flows of an inside address get the same one
        "address" addresses: Vec<IpAddr> = ConfigKey::new(ValueType::Addresses).required(), from addresses;
        /// external ports, and identifiers of echoes; a flow keeps its own where that is in the range and free
        "ports" ports: RangeInclusive<u16> = ConfigKey::new(ValueType::Ports).or("1024-65535"), from ports;
        /// how long a UDP or ICMP mapping lives after the last packet from inside
        "timeout" timeout_ns: u64 = DURATION.or("120s");
        /// the same for TCP; at most 240s after a SYN, and from a FIN or RST to the next SYN
        "tcpTimeout" tcp_timeout_ns: u64 = DURATION.or("7440s").like("120s");
        /// mappings it keeps at most; when one more comes and none has expired, its packets are dropped and counted
        "flows" flows: u32 = integer(1, 1 << 20, "a number of mappings").or("16384"), with REVERSE_OF;
    }
}

impl NatConfig {
    /// External ports of each address and protocol.
    pub fn port_count(&self) -> u32 {
        u32::from(self.ports.end() - self.ports.start()) + 1
    }

    /// The part that mappings depend on: a change of what it leaves out needs no new ones.
    #[must_use]
    pub fn shape(&self) -> Self {
        let Self {
            timeout_ns,
            tcp_timeout_ns,
            ..
        } = Self::default();
        Self {
            timeout_ns,
            tcp_timeout_ns,
            ..self.clone()
        }
    }

    /// How long a mapping lives after a TCP segment with SYN, and while its connection is closing, ns.
    pub fn tcp_transitory_ns(&self) -> u64 {
        self.tcp_timeout_ns.min(TCP_TRANSITORY_NS)
    }
}

/// `nat`.
pub static NAT: Kind = Kind {
    name: "nat",
    class: Class::Basic,
    kernel: Some(Cost::new(45.0, 0.0)),
    user: Some(Cost::new(50.0, 0.0)),
    touches: Touches::Header,
    state: State::PerFlow,
    guards: true,
    config: NatConfig::KEYS,
    description: "Gives UDP, TCP and ICMP echo packets an external source address and port (NAPT, RFC 3022 and 4787), of IPv4 and \
                  IPv6; in the reverse chain a `nat` with `reverseOf` gives the replies their destination back. Drops fragments, \
                  everything else that it cannot translate, and replies to no living mapping.",
    example: "{ name: masquerade, kind: nat, config: { address: 198.51.100.7 } }",
    read: |fields| FunctionConfig::Nat(NatConfig::of(fields)),
    ..Kind::BASE
};

fn ports(fields: &Fields<'_>) -> RangeInclusive<u16> {
    let ports = matching::ports(fields, "ports").unwrap_or(1024..=65_535);
    if let (Some(field), 0) = (fields.get("ports"), *ports.start()) {
        field.fault(
            "port 0 is no port of a packet",
            "a port or a range of ports, 1 to 65535",
            "begin the range at 1 or above",
        );
    }
    ports
}

fn addresses(fields: &Fields<'_>) -> Vec<IpAddr> {
    let Some(field) = fields.get("address") else {
        return Vec::new();
    };
    let items = field.one_or_list(ADDRESSES);
    if items.is_empty() || items.len() > MAX_ADDRESSES {
        field.fault(
            format!("{} addresses", items.len()),
            format!("1 to {MAX_ADDRESSES} external addresses"),
            EXAMPLE,
        );
    }
    let mut addresses = Vec::new();
    for item in &items {
        let Some(address) = address(item) else {
            continue;
        };
        if addresses.contains(&address) {
            item.fault(
                format!("{address} is named twice"),
                "addresses that differ",
                "remove one of the two",
            );
        }
        addresses.push(address);
    }
    addresses
}

fn address(field: &Field<'_>) -> Option<IpAddr> {
    field.parsed(ADDRESSES, EXAMPLE, |text| match text.parse() {
        Ok(address) if is_host(&address) => Ok(address),
        Ok(address) => Err(format!("{address} is not the address of a host")),
        Err(_) => Err(format!("`{}` is not an address", Printable(text))),
    })
}
