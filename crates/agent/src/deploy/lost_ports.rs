//! Interfaces that go while a request works: the request's error names the interface, instead of
//! the step that failed without the interface.

use myelin_linux::netlink::Netlink;
use myelin_spec::ServiceChain;

use crate::api::{ApiError, ErrorKind};
use crate::node::Node;

/// The interfaces of the chains of a request, as the request found them.
pub(crate) struct RequestPorts(Vec<RequestPort>);

struct RequestPort {
    name: String,
    index: u32,
    /// Position in the chain file, and the chain.
    place: String,
    /// Whether the chain runs, so that it waits for its interface.
    is_running: bool,
}

impl RequestPorts {
    /// Finds the interfaces that the chains name. A running chain keeps its interfaces, whatever
    /// their present names. The steps report interfaces that are missing now.
    pub(crate) fn find(node: &Node, chains: &[ServiceChain]) -> Self {
        let Ok(mut netlink) = Netlink::open() else {
            return Self(Vec::new());
        };
        let mut found = Vec::new();
        for chain in chains {
            let Some(ports) = &chain.ports else { continue };
            let running = node.chains.get(&chain.name);
            let running = running.map(|running| running.generation());
            let place = format!("{}: chain `{}`", chain.places.ports, chain.name);
            let mut add = |name: &str, index: u32| {
                found.push(RequestPort {
                    name: name.to_owned(),
                    index,
                    place: place.clone(),
                    is_running: running.is_some(),
                });
            };
            match running.as_ref().map(|running| running.ports.kernel_ports()) {
                Some(Ok((_, ingress, egress))) => {
                    add(&ingress.name, ingress.ifindex);
                    add(&egress.name, egress.ifindex);
                }
                // Between DPDK devices.
                Some(Err(_)) => {}
                None => {
                    for name in [&ports.ingress, &ports.egress] {
                        if let Ok(link) = netlink.link(name) {
                            add(name, link.index);
                        }
                    }
                }
            }
        }
        Self(found)
    }

    /// Returns the error of the request. If an interface is gone, the error says so.
    pub(crate) fn explain(&self, error: ApiError) -> ApiError {
        if error.kind != ErrorKind::Failed {
            return error;
        }
        let Ok(mut netlink) = Netlink::open() else {
            return error;
        };
        let mut is_gone = |port: &&RequestPort| {
            let now = netlink.link_by_index(port.index);
            now.is_err_and(|error| error.is_not_found())
        };
        let Some(port) = self.0.iter().find(&mut is_gone) else {
            return error;
        };
        let RequestPort {
            name, index, place, ..
        } = port;
        let remedy = if port.is_running {
            "the chain is unchanged and waits for an interface of this name: make one, set it up, and repeat the command"
        } else {
            "make an interface of this name, set it up, and repeat the command"
        };
        ApiError::failed(format!(
            "{place}: spec.ports: interface {name} (index {index}) went while the agent deployed the chain: {remedy}"
        ))
    }
}
