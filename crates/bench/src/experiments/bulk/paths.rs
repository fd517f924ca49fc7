//! The paths from client to server, and the chains among them.

use std::any::Any;
use std::io::Write;
use std::net::IpAddr;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use myelin_linux::netns::Netns;
use myelin_linux::process;

use crate::agents::{self, EmbeddedAgent};
use crate::applications::{self, Load, Servers, Workload};
use crate::installed::find_packaged;
use crate::network::{self, CLIENT_LINK, EndHost, Network, Offloads, SERVER_LINK};
use crate::reference::{ForwardingOptions, Reference};
use crate::variant::Pollers;
use crate::variants::{self, BEST_BATCH};
use crate::{Error, Fault, Session};

pub(super) const ROUTER_WITH_RULE: &str = "router with rule";
pub(super) const KERNEL_OF_1: &str = "kernel chain of 1";
pub(super) const KERNEL_OF_5: &str = "kernel chain of 5";
pub(super) const USER_OF_1: &str = "user chain of 1";
pub(super) const USER_OF_5: &str = "user chain of 5";
pub(super) const C_FORWARDER: &str = "C forwarder";

/// The rule of the router, in nft's language. The firewall of the chains has the same.
const RULES: &str = "table ip filter {
    chain forward {
        type filter hook forward priority 0
        ip saddr 192.0.2.0/24 drop
    }
}
";
const FIREWALL: &str =
    "kind: firewall, config: { rules: [ { action: deny, source: 192.0.2.0/24 } ] }";
/// The functions after firewall and router in a chain of five.
const MORE: [&str; 3] = ["kind: flow-tracker", "kind: monitor", "kind: forward"];

/// A path from client to server and back.
#[derive(Debug, Clone, Copy)]
pub(super) struct PathSpec {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    kind: PathKind,
    offloads: Offloads,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PathKind {
    Direct,
    Router,
    RouterWithRule,
    Bridge,
    /// A chain each way.
    Chains {
        space: &'static str,
        functions: usize,
        /// Whether workers take super-packets.
        super_packets: bool,
    },
    Forwarder,
}

/// All paths. With a fault, the links of the chains have no offloads.
pub(super) fn all(fault: Option<Fault>) -> Vec<PathSpec> {
    use PathKind::{Bridge, Chains, Direct, Forwarder, Router, RouterWithRule};

    let chains = |space, functions| Chains {
        space,
        functions,
        super_packets: space == "user",
    };
    let of_wire_size = Chains {
        space: "user",
        functions: 1,
        super_packets: false,
    };
    let one = "a chain each way: firewall";
    let two = "a chain each way: firewall, router";
    let five = "a chain each way: firewall, router, flow-tracker, monitor, forward";
    let chain_offloads = match fault {
        Some(Fault::LinksWithoutOffloads) => Offloads::Off,
        _ => Offloads::Default,
    };
    [
        ("direct", "veth pair between the two hosts", Direct),
        ("router", "kernel IP forwarding", Router),
        (
            ROUTER_WITH_RULE,
            "kernel IP forwarding, one nft rule",
            RouterWithRule,
        ),
        ("bridge", "Linux bridge", Bridge),
        (KERNEL_OF_1, one, chains("kernel", 1)),
        ("kernel chain of 2", two, chains("kernel", 2)),
        (KERNEL_OF_5, five, chains("kernel", 5)),
        (USER_OF_1, one, chains("user", 1)),
        ("user chain of 2", two, chains("user", 2)),
        (USER_OF_5, five, chains("user", 5)),
        (
            "user chain, wire size",
            "a chain each way over AF_XDP: firewall",
            of_wire_size,
        ),
        (
            C_FORWARDER,
            "packet sockets with virtio-net headers, one sleeping process",
            Forwarder,
        ),
    ]
    .map(|(name, about, kind)| PathSpec {
        name,
        about,
        kind,
        offloads: match kind {
            Chains { .. } => chain_offloads,
            _ => Offloads::Default,
        },
    })
    .into()
}

/// A path that exists.
pub(super) struct DeployedPath {
    // Fields drop in this order: the processes must run to receive the request to end.
    workers: Pollers,
    _servers: Servers,
    /// What forwards.
    _box: Vec<Box<dyn Any + Send>>,
    hosts: Hosts,
}

enum Hosts {
    Cable(EndHost, EndHost),
    Network(Network),
}

impl Hosts {
    fn both(&self) -> (&EndHost, &EndHost) {
        match self {
            Self::Cable(client, server) => (client, server),
            Self::Network(network) => (&network.client, &network.server),
        }
    }
}

impl PathSpec {
    /// Checks that its programs are available. The error is the reason for the skipped row.
    pub(super) fn check_available(&self) -> Result<(), Error> {
        match self.kind {
            PathKind::RouterWithRule => find_packaged("nft", "nftables").map(drop),
            PathKind::Forwarder => Ok(Reference::VnetHeader.check_built()?),
            _ => Ok(()),
        }
    }

    /// Makes the path and starts the servers of these workloads.
    pub(super) fn deploy(
        &self,
        workloads: &[Workload],
        program: &Path,
    ) -> Result<DeployedPath, Error> {
        let mut parts: Vec<Box<dyn Any + Send>> = Vec::new();
        let mut workers = Vec::new();
        let hosts = if self.kind == PathKind::Direct {
            let (client, server) = network::create_cable(self.offloads)?;
            Hosts::Cable(client, server)
        } else {
            let is_routed = matches!(self.kind, PathKind::Router | PathKind::RouterWithRule);
            let network = Network::create_with(is_routed, self.offloads)?;
            match self.kind {
                PathKind::Direct => {}
                PathKind::Router => variants::start_routing(&network)?,
                PathKind::RouterWithRule => {
                    variants::start_routing(&network)?;
                    install_rules(&network.middle.netns)?;
                }
                PathKind::Bridge => variants::add_bridge(&network.middle)?,
                PathKind::Chains {
                    space,
                    functions,
                    super_packets,
                } => {
                    let chains = (space, functions, super_packets);
                    let (agent, pids) = deploy_chains(&network, chains, program)?;
                    workers = pids;
                    parts.push(Box::new(agent));
                }
                PathKind::Forwarder => {
                    let options = ForwardingOptions {
                        ingress: CLIENT_LINK,
                        egress: SERVER_LINK,
                        batch: BEST_BATCH,
                        core: None,
                        poll: false,
                        swap: false,
                    };
                    let netns = &network.middle.netns;
                    let running = netns.enter(|| Reference::VnetHeader.start(&options))??;
                    parts.push(Box::new(running));
                }
            }
            Hosts::Network(network)
        };
        Ok(DeployedPath {
            _servers: Servers::start(hosts.both().1, workloads)?,
            workers: Pollers::stop(workers),
            _box: parts,
            hosts,
        })
    }
}

impl DeployedPath {
    /// Loads the path while its workers run. `expected` is its rate so far.
    pub(super) fn load(
        &self,
        workload: Workload,
        window: Duration,
        expected: Option<f64>,
        session: Session<'_>,
    ) -> Result<Load, Error> {
        let (client, server) = self.hosts.both();
        let ends: (&EndHost, IpAddr) = (client, server.address);
        self.workers
            .run(|| applications::load(workload, ends, window, expected, session))
    }
}

/// Installs the rule of the router.
fn install_rules(netns: &Netns) -> Result<(), Error> {
    let mut command = process::command_in(netns, find_packaged("nft", "nftables")?)?;
    command.args(["-f", "-"]);
    let mut run = || {
        let mut nft = command
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(mut input) = nft.stdin.take() {
            input.write_all(RULES.as_bytes())?;
        }
        nft.wait_with_output()
    };
    let output = run().map_err(|cause| Error::system("run nft", cause))?;
    if output.status.success() {
        return Ok(());
    }
    Err(Error::Command {
        command: "nft -f -".to_owned(),
        status: output.status,
        messages: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    })
}

/// Deploys a chain each way between the links of the network. Returns its agent and workers.
fn deploy_chains(
    network: &Network,
    chains: (&str, usize, bool),
    program: &Path,
) -> Result<(Arc<EmbeddedAgent>, Vec<u32>), Error> {
    // The agent runs in the namespace between the hosts, with its links and sockets.
    network.middle.netns.enter(|| {
        let agent = EmbeddedAgent::open_for_offloads(program)?;
        let names = ["there", "back"].map(|name| agent.dir.chain_name(name));
        agent.up_all(chain_texts(&names, chains))?;
        let mut workers = Vec::new();
        for name in &names {
            workers.extend(agent.workers(name)?);
        }
        workers.sort_unstable();
        workers.dedup();
        Ok((agent, workers))
    })?
}

/// The chain file of a chain to the server and a chain back.
fn chain_texts(
    [there, back]: &[String; 2],
    (space, functions, super_packets): (&str, usize, bool),
) -> String {
    let worker = if super_packets {
        "  worker: { superPackets: true }\n"
    } else {
        ""
    };
    let chain = |name: &str, reverse: &str, matches: &str, links: [&str; 2], router: &str| {
        let all = [FIREWALL, router].into_iter().chain(MORE);
        let all: Vec<_> = all.take(functions).map(|kind| (kind, space)).collect();
        let [ingress, egress] = links;
        let more = format!(
            "  ports: {{ ingress: {ingress}, egress: {egress} }}\n  reverse: {reverse}\n{worker}"
        );
        let matches = format!("protocol: tcp, {matches}");
        agents::chain_text_for(&matches, name, &all, &more)
    };
    let to_server = chain(
        there,
        back,
        "destination: 10.0.0.2/32",
        [CLIENT_LINK, SERVER_LINK],
        &router("02:00:00:00:00:02", "02:00:00:00:01:02"),
    );
    let to_client = chain(
        back,
        there,
        "source: 10.0.0.2/32",
        [SERVER_LINK, CLIENT_LINK],
        &router("02:00:00:00:00:01", "02:00:00:00:01:01"),
    );
    format!("{to_server}---\n{to_client}")
}

/// A router with one route, to the host with this link address.
fn router(mac: &str, source_mac: &str) -> String {
    let route = format!("prefix: 10.0.0.0/24, mac: \"{mac}\", sourceMac: \"{source_mac}\"");
    format!("kind: router, config: {{ routes: [ {{ {route} }} ] }}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agents::chain_source;

    #[test]
    fn chains_are_valid() {
        let names = ["there", "back"].map(str::to_owned);
        for space in ["kernel", "user"] {
            for functions in [1, 2, 5] {
                let text = chain_texts(&names, (space, functions, space == "user"));
                let chains = chain_source(text).parse().unwrap();
                assert_eq!(chains.len(), 2);
                for chain in &chains {
                    assert_eq!(chain.functions.len(), functions);
                }
            }
        }
    }

    #[test]
    fn only_the_fault_takes_the_offloads_of_chains() {
        let without = |fault| {
            let paths = all(fault).into_iter();
            paths.filter(|path| path.offloads == Offloads::Off).count()
        };
        assert_eq!(without(None), 0);
        assert_eq!(without(Some(Fault::LinksWithoutOffloads)), 7);
    }
}
