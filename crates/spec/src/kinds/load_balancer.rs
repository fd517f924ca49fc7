//! `load-balancer`.

use std::net::IpAddr;

use myelin_packet::MacAddr;
use myelin_packet::maglev::{Backend, MAX_BACKENDS, MAX_WEIGHT, MaglevTable};

use super::prelude::*;
use crate::keys::address::host;

const BACKENDS: ConfigKey = ConfigKey::new(ValueType::Backends(BackendSpec::KEYS)).required();

config! {
    /// Configuration of a `load-balancer` function.
    pub struct LoadBalancerConfig {
        /// where packets go, 512 at most, of one address family or both: { address: ADDRESS, weight: 1 to 100, mac: MAC };
        /// `weight` (1) is the share of flows; `mac` becomes the frame's destination, which otherwise stays; with an
        /// empty list every packet is dropped
        "backends" backends: Vec<BackendSpec> = BACKENDS, from backends;
        /// how long a flow without packets stays with its backend
        "timeout" timeout_ns: u64 = DURATION.or("300s");
        /// flows it keeps; when one more comes, it forgets one that has not been used for long
        "flows" flows: u32 = integer(1024, 1 << 20, "a number of flows").or("65536"), with REVERSE_OF;
    }
}

config! {
    /// A backend.
    #[derive(Copy)]
    pub struct BackendSpec {
        /// what becomes the destination of packets, IPv4 or IPv6
        "address" address: IpAddr = TEXT.required(), from address;
        /// its share of flows, in proportion to the others'
        "weight" weight: u32 = integer(1, MAX_WEIGHT as u64, "a weight").or("1");
        /// what becomes the Ethernet destination; left out, that stays
        "mac" mac: Option<MacAddr> = TEXT;
    }
}

impl LoadBalancerConfig {
    /// The backends as tables hold them, in the order of the configuration.
    pub fn backends(&self) -> Vec<Backend> {
        let backend = |spec: &BackendSpec| Backend::new(spec.address, spec.mac);
        self.backends.iter().map(backend).collect()
    }

    /// The hash tables over them: of IPv4, and of IPv6.
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

    /// The part that the state of flows depends on: backends may come and go under it.
    #[must_use]
    pub fn shape(&self) -> Self {
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
    touches: Touches::Header,
    state: State::PerFlow,
    config: LoadBalancerConfig::KEYS,
    description: "Spreads UDP and TCP flows over backends by consistent hashing (Maglev), rewriting the destination address, and \
                  keeps each flow with its backend; in the reverse chain a `load-balancer` with `reverseOf` gives the \
                  answers their source back. Drops packets without ports, and answers of no living flow.",
    example: "{ name: spread, kind: load-balancer, config: { backends: [ { address: 10.0.0.11 }, { address: 10.0.0.12 } ] } }",
    read: |fields| FunctionConfig::LoadBalancer(LoadBalancerConfig::of(fields)),
    flow_lifetime_ns: |config, _, _| match config {
        FunctionConfig::LoadBalancer(config) => Some(config.timeout_ns),
        _ => None,
    },
    ..Kind::BASE
};

fn backends(fields: &Fields<'_>) -> Vec<BackendSpec> {
    let Some(field) = fields.get("backends") else {
        return Vec::new();
    };
    let list = "a list of backends such as { address: 10.0.0.11 }";
    let items = field.list(list).unwrap_or_default();
    if items.len() > MAX_BACKENDS {
        field.fault(
            format!("{} backends", items.len()),
            format!("at most {MAX_BACKENDS} backends of one load balancer"),
            "let a load balancer send to other load balancers",
        );
    }
    let mut backends: Vec<BackendSpec> = Vec::with_capacity(items.len());
    for item in &items {
        let before = item.report.count();
        let backend = BackendSpec::read(item, &BACKENDS);
        let Some(backend) = backend.filter(|_| item.report.count() == before) else {
            continue;
        };
        let mut others = backends.iter();
        if others.any(|other| other.address == backend.address) {
            item.fault(
                format!("{} is named twice", backend.address),
                "each backend once",
                "remove one of the two, and raise the weight of the other",
            );
        }
        backends.push(backend);
    }
    backends
}

fn address(fields: &Fields<'_>) -> IpAddr {
    let examples = ("10.0.0.11", "10.0.0.11 or 2001:db8::11");
    host(fields, "address", "the address of one host", examples)
}
