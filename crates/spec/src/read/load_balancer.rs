//! Reads the configuration of a `load-balancer`.

use std::net::IpAddr;

use myelin_packet::maglev::{MAX_BACKENDS, MAX_WEIGHT};

use super::field::{Field, Fields};
use super::router::{is_host, mac};
use crate::catalogue::BACKEND_KEYS;
use crate::error::{Fault, Report};
use crate::load_balancer::{BackendSpec, LoadBalancerConfig, MAX_FLOWS, MIN_FLOWS};
use crate::printable::Printable;
use crate::units::parse_duration_ns;

const BACKENDS: &str = "a list of backends such as { address: 10.0.0.11 }";

pub(super) fn read(fields: &Fields<'_>, report: &mut Report<'_>) -> LoadBalancerConfig {
    let default = LoadBalancerConfig::default();
    let backends = fields
        .get("backends")
        .map_or_else(Vec::new, |field| backends(&field, report));
    let timeout_ns = fields
        .get("timeout")
        .and_then(|field| field.quantity(report, parse_duration_ns, "300s"));
    let range = u64::from(MIN_FLOWS)..=u64::from(MAX_FLOWS);
    let flows = fields
        .get("flows")
        .and_then(|field| field.integer(report, range, "a number of flows"));
    LoadBalancerConfig {
        backends,
        timeout_ns: timeout_ns.unwrap_or(default.timeout_ns),
        flows: flows.map_or(default.flows, |flows| flows as u32),
    }
}

fn backends(field: &Field<'_>, report: &mut Report<'_>) -> Vec<BackendSpec> {
    let items = field.list(report, BACKENDS).unwrap_or_default();
    if items.len() > MAX_BACKENDS {
        let fault = Fault::new(
            format!("{} backends", items.len()),
            format!("at most {MAX_BACKENDS} backends of one load balancer"),
            "let a load balancer send to other load balancers",
        );
        field.fault(report, fault);
    }
    let mut backends: Vec<BackendSpec> = Vec::with_capacity(items.len());
    for item in &items {
        let Some(backend) = backend(item, report) else {
            continue;
        };
        if backends
            .iter()
            .any(|other| other.address == backend.address)
        {
            let fault = Fault::new(
                format!("{} is named twice", backend.address),
                "each backend once",
                "remove one of the two, and raise the weight of the other",
            );
            item.fault(report, fault);
        }
        backends.push(backend);
    }
    backends
}

fn backend(field: &Field<'_>, report: &mut Report<'_>) -> Option<BackendSpec> {
    const EXPECTED: &str = "the address of one host, IPv4 or IPv6";
    const HELP: &str = "write for example 10.0.0.11 or 2001:db8::11";
    let fields = field.map(report, BACKEND_KEYS)?;
    let given = fields.required(report, "address", EXPECTED, "10.0.0.11");
    let text = given
        .as_ref()
        .and_then(|field| field.text(report, EXPECTED, HELP));
    let address = text.and_then(|text| text.parse::<IpAddr>().ok().filter(is_host));
    if let (Some(field), Some(text), None) = (&given, text, address) {
        let message = format!("`{}` is not the address of one host", Printable(text));
        field.fault(report, Fault::new(message, EXPECTED, HELP));
    }
    let weight = match fields.get("weight") {
        Some(field) => field.integer(report, 1..=u64::from(MAX_WEIGHT), "a weight"),
        None => Some(1),
    };
    Some(BackendSpec {
        address: address?,
        weight: weight? as u32,
        mac: mac(&fields, "mac", report),
    })
}
