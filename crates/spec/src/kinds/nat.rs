//! `nat`.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use super::prelude::*;
use crate::keys::address::is_host;
use crate::keys::matching;

/// The most external addresses of one `nat`, of both families together.
pub const MAX_ADDRESSES: usize = 16;
/// The lifetime of a TCP mapping whose connection is not established, ns: four minutes (RFC 5382,
/// REQ-5).
const TCP_TRANSITORY_NS: u64 = 240_000_000_000;

const ADDRESSES: &str = "the external address, or a list of them, IPv4 or IPv6";
const EXAMPLE: &str = "write for example 198.51.100.7 or [198.51.100.7, 2001:db8::7]";

config! {
    /// Configuration of a `nat` function: source NAT of UDP, TCP and ICMP echo. The default
    /// lifetimes are the minimum of RFC 4787 (REQ-5) and RFC 5382 (REQ-5). The `Default` has no
    /// address and translates nothing.
    pub struct NatConfig {
        /// The external address, or a list of at most 16, IPv4, IPv6 or both. All flows of an
        /// inside address get the same external address.
        "address" addresses: Vec<IpAddr> = ConfigKey::new(ValueType::Addresses).required(), from read_addresses;
        /// The external ports, and identifiers of ICMP echoes. A flow keeps its port if the port is
        /// free and in the range.
        "ports" ports: RangeInclusive<u16> = ConfigKey::new(ValueType::Ports).with_default("1024-65535"), from read_external_ports;
        /// The lifetime of a UDP or ICMP mapping after the last packet from inside.
        "timeout" timeout_ns: u64 = DURATION.with_default("120s");
        /// The lifetime of a TCP mapping. It is at most 240s after a SYN, and from a FIN or RST to
        /// the next SYN.
        "tcpTimeout" tcp_timeout_ns: u64 = DURATION.with_default("7440s").with_hint("120s");
        /// The most mappings. If none has expired, the function drops and counts packets of further
        /// flows.
        "flows" flows: u32 = integer(1, 1 << 20, "a number of mappings").with_default("16384"), with REVERSE_OF;
    }
}

impl NatConfig {
    /// Returns the number of external ports of each address and protocol.
    pub fn port_count(&self) -> u32 {
        u32::from(self.ports.end() - self.ports.start()) + 1
    }

    /// Returns the part of the configuration that mappings depend on. Other changes keep the
    /// mappings.
    #[must_use]
    pub fn state_config(&self) -> Self {
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

    /// Returns the lifetime of a mapping after a TCP SYN, and while the connection closes, ns.
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
    works_on: PacketParts::Header,
    takes_super_packets: true,
    user_takes_super_packets: true,
    state: State::PerFlow,
    fails_closed: true,
    config: NatConfig::KEYS,
    fragments: FragmentSupport::RemembersFirst,
    description: "Translates source addresses and ports (NAPT, RFC 3022 and 4787). Handles UDP, TCP and ICMP \
                  echo over IPv4 and IPv6. In the reverse chain, a `nat` with `reverseOf` restores the \
                  destination of replies. Both sides translate ICMP errors about packets of a mapping \
                  (RFC 5508), and later fragments like the first one. Drops other packets that it cannot \
                  translate, and replies without a live mapping. `myelin ps --flows` shows the mappings.",
    example: "{ name: masquerade, kind: nat, config: { address: 198.51.100.7 } }",
    counters: &[(
        "icmp-errors-dropped",
        "dropped: an ICMP error that breaks a rule, or about no live mapping",
    )],
    read: |fields| FunctionConfig::Nat(NatConfig::from_fields(fields)),
    ..Kind::BASE
};

fn read_external_ports(fields: &Fields<'_>) -> RangeInclusive<u16> {
    let ports = matching::read_ports(fields, "ports").unwrap_or(1024..=65_535);
    if let (Some(field), 0) = (fields.get("ports"), *ports.start()) {
        field.fault(
            "no packet has port 0",
            "a port or a range of ports, 1 to 65535",
            "begin the range at 1 or above",
        );
    }
    ports
}

fn read_addresses(fields: &Fields<'_>) -> Vec<IpAddr> {
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
        let Some(address) = read_address(item) else {
            continue;
        };
        if addresses.contains(&address) {
            item.fault(
                format!("{address} is listed twice"),
                "addresses that differ",
                "remove one of the two",
            );
        }
        addresses.push(address);
    }
    addresses
}

fn read_address(field: &Field<'_>) -> Option<IpAddr> {
    field.parsed(ADDRESSES, EXAMPLE, |text| match text.parse() {
        Ok(address) if is_host(&address) => Ok(address),
        Ok(address) => Err(format!("{address} is not the address of a host")),
        Err(_) => Err(format!("`{}` is not an address", Printable(text))),
    })
}
