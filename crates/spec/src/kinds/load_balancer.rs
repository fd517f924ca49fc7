//! `load-balancer`.

use std::net::IpAddr;

use myelin_packet::MacAddr;
use myelin_packet::maglev::{Backend, MAX_BACKENDS, MAX_WEIGHT, MaglevTable};

use super::prelude::*;
use crate::keys::address::read_host;

const BACKENDS: ConfigKey = ConfigKey::new(ValueType::Backends(BackendSpec::KEYS)).required();

config! {
    /// Configuration of a `load-balancer` function.
    pub struct LoadBalancerConfig {
        /// The backends, at most 512, of one address family or both. With an empty list the
        /// function drops every packet.
        "backends" backends: Vec<BackendSpec> = BACKENDS, from read_backends;
        /// The time that an idle flow keeps its backend.
        "timeout" timeout_ns: u64 = DURATION.with_default("300s");
        /// The most flows in the table. A further flow replaces one that was idle for long.
        "flows" flows: u32 = integer(1024, 1 << 20, "a number of flows").with_default("65536"), with REVERSE_OF;
    }
}

config! {
    /// A backend.
    #[derive(Copy)]
    pub struct BackendSpec {
        /// The new destination address of packets, IPv4 or IPv6.
        "address" address: IpAddr = TEXT.required(), from read_address;
        /// The share of flows, relative to the other weights.
        "weight" weight: u32 = integer(1, MAX_WEIGHT as u64, "a weight").with_default("1");
        /// The new Ethernet destination of packets. Without it, they keep their destination.
        "mac" mac: Option<MacAddr> = TEXT;
    }
}

impl LoadBalancerConfig {
    /// Returns the backends as table entries, in the order of the configuration.
    pub fn backends(&self) -> Vec<Backend> {
        let backend = |spec: &BackendSpec| Backend::new(spec.address, spec.mac);
        self.backends.iter().map(backend).collect()
    }

    /// Creates the hash tables of the backends: one for IPv4, one for IPv6.
    pub fn tables(&self) -> [MaglevTable; 2] {
        let backends = self.backends();
        [0, 1].map(|is_ipv6| {
            let own = (0..).zip(&backends).zip(&self.backends);
            MaglevTable::new(
                own.filter(|((_, backend), _)| backend.is_ipv6 == is_ipv6)
                    .map(|((number, backend), spec)| (number, backend, spec.weight)),
            )
        })
    }

    /// Returns the part of the configuration that the flow table depends on. The table survives a
    /// change of the backends.
    #[must_use]
    pub fn state_config(&self) -> Self {
        Self {
            flows: self.flows,
            ..Self::default()
        }
    }
}

/// `load-balancer`.
pub static LOAD_BALANCER: Kind = Kind {
    name: "load-balancer",
    class: Class::Basic,
    kernel: Some(Cost::new(50.0, 0.0)),
    user: Some(Cost::new(40.0, 0.0)),
    works_on: PacketParts::Header,
    takes_super_packets: true,
    user_takes_super_packets: true,
    state: State::PerFlow,
    config: LoadBalancerConfig::KEYS,
    fragments: FragmentSupport::RemembersFirst,
    description: "Spreads UDP and TCP flows over backends by consistent hashing (Maglev). Rewrites the \
                  destination address, and keeps each flow on its backend. In the reverse chain, a \
                  `load-balancer` with `reverseOf` restores the source of replies. Both sides translate ICMP \
                  errors about packets of a flow, and later fragments like the first one. Drops other packets without ports, and replies without a \
                  live flow. `myelin ps --flows` shows each flow's backend.",
    example: "{ name: spread, kind: load-balancer, config: { backends: [ { address: 10.0.0.11 }, { address: 10.0.0.12 } ] } }",
    counters: &[(
        "icmp-errors-dropped",
        "dropped: an ICMP error that breaks a rule, or about no live flow",
    )],
    read: |fields| FunctionConfig::LoadBalancer(LoadBalancerConfig::from_fields(fields)),
    flow_lifetime_ns: |config, _, _| match config {
        FunctionConfig::LoadBalancer(config) => Some(config.timeout_ns),
        _ => None,
    },
    ..Kind::BASE
};

fn read_backends(fields: &Fields<'_>) -> Vec<BackendSpec> {
    let Some(field) = fields.get("backends") else {
        return Vec::new();
    };
    let list = "a list of backends such as { address: 10.0.0.11 }";
    let items = field.list(list).unwrap_or_default();
    if items.len() > MAX_BACKENDS {
        field.fault(
            format!("{} backends", items.len()),
            format!("at most {MAX_BACKENDS} backends in one load-balancer"),
            "use two levels: backends that are load balancers themselves",
        );
    }
    let mut backends: Vec<BackendSpec> = Vec::with_capacity(items.len());
    for item in &items {
        let before = item.faults.count();
        let backend = BackendSpec::read(item, &BACKENDS);
        let Some(backend) = backend.filter(|_| item.faults.count() == before) else {
            continue;
        };
        let mut others = backends.iter();
        if others.any(|other| other.address == backend.address) {
            item.fault(
                format!("{} is listed twice", backend.address),
                "each backend once",
                "remove one of the two; `weight` sets the share of the other",
            );
        }
        backends.push(backend);
    }
    backends
}

fn read_address(fields: &Fields<'_>) -> IpAddr {
    let examples = ("10.0.0.11", "10.0.0.11 or 2001:db8::11");
    read_host(fields, "address", "the address of one host", examples)
}
