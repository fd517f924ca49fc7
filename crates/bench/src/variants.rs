//! The variants that experiments compare, made from their declarations.
//!
//! Functions, redirects and programs forward only packets to the server. Replies pass a tc redirect
//! to the peer; at a chain's port, the front door does the same for unmatched packets. A cable, a
//! bridge and a router forward both directions in the same way.

use std::any::Any;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use myelin_api::{ApiError, ChainUp, HostInfo};
use myelin_kernel::Hook;
use myelin_linux::netlink::Netlink;
use myelin_linux::netns::Netns;
use myelin_linux::{link, neighbour, route, sysctl};
use serde::Deserialize;

use crate::agents::{self, EmbeddedAgent};
use crate::network::{self, CLIENT_LINK, MiddleNamespace, Network, Offloads, SERVER_LINK, sockets};
use crate::reference::{self, ForwardingOptions, Reference, RunningReference};
use crate::variant::{Variant, polling_core};
use crate::{Error, Findings, Row, Session, ebpf};

/// Batch of one frame, because the probe has one packet in flight.
const BATCH: u16 = 1;
/// Batch for the highest rate.
pub(crate) const BEST_BATCH: u16 = 32;

pub(crate) const AS_PUBLISHED: &str = "centralized, as published";
pub(crate) const AT_ITS_BEST: &str = "centralized, at its best";

/// A variant to make.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct VariantSpec {
    pub(crate) name: String,
    /// Description of a chain or program. The other paths have their own.
    pub(crate) about: String,
    pub(crate) path: PathKind,
    /// The function of a chain, `kind` and `config`.
    pub(crate) function: String,
    /// A space for each time that a chain has this function.
    pub(crate) spaces: Vec<String>,
    pub(crate) mapping: Option<String>,
    pub(crate) hook: Option<String>,
    /// How the worker waits on the polling core: `spin`, `adaptive` or `sleep`. Without it, the
    /// chain declares no worker.
    pub(crate) idle: Option<String>,
    /// Most frames that a worker or program takes at once.
    pub(crate) batch: u16,
    /// Whether replies pass the same functions in the same order.
    pub(crate) both_ways: bool,
    /// The xor of all keys that the functions apply to the payload.
    pub(crate) key: u8,
}

impl Default for VariantSpec {
    fn default() -> Self {
        Self {
            name: String::new(),
            about: String::new(),
            path: PathKind::Chain,
            function: "kind: forward".to_owned(),
            spaces: Vec::new(),
            mapping: None,
            hook: None,
            idle: None,
            batch: BATCH,
            both_ways: false,
            key: 0,
        }
    }
}

/// The path from client to server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum PathKind {
    /// A deployed chain.
    Chain,
    /// A chain of one function between DPDK devices, with the same driver, links and core as
    /// [`Reference::Dpdk`].
    DpdkChain,
    /// A veth pair.
    Direct,
    /// A Linux bridge with the kernel's defaults.
    Bridge,
    /// The kernel's IP forwarding.
    KernelForwarding,
    /// A bare redirect in both directions, the lower limit of a chain at tcx.
    TcRedirect,
    /// A bare XDP redirect to the server.
    XdpRedirect,
    /// A C program that forwards to the server.
    AfXdpProgram,
    DpdkProgram,
    PacketProgram,
    /// The last one, but it reorders pairs of frames.
    ReorderingProgram,
    /// CALVIN's centralized approach: [`AS_PUBLISHED`].
    Centralized,
    /// CALVIN's centralized approach: [`AT_ITS_BEST`].
    CentralizedAtItsBest,
}

/// Makes the variants, and a row for each whose program was not built.
pub(crate) fn build(
    specs: &[VariantSpec],
    session: Session<'_>,
) -> Result<(Vec<Variant>, Vec<Row>), Error> {
    let (mut made, mut skipped) = (Vec::new(), Vec::new());
    let mut agent = None;
    for spec in specs {
        session.progress("making the variants", made.len(), specs.len())?;
        let variant = match spec.path {
            PathKind::Chain => {
                let agent = match &agent {
                    Some(agent) => agent,
                    None => agent.insert(EmbeddedAgent::open(session.program)?),
                };
                deploy_chain(agent, &format!("c{}", made.len()), spec)
            }
            PathKind::DpdkChain => deploy_dpdk_chain(spec, session),
            PathKind::Direct => direct(),
            PathKind::Bridge => bridge(),
            PathKind::KernelForwarding => kernel_forwarding(),
            PathKind::TcRedirect => bare_redirect(Hook::Tcx),
            PathKind::XdpRedirect => bare_redirect(Hook::Xdp),
            PathKind::AfXdpProgram => start_forwarder(Reference::AfXdp, spec),
            PathKind::DpdkProgram => start_forwarder(Reference::Dpdk, spec),
            PathKind::PacketProgram | PathKind::ReorderingProgram => {
                start_forwarder(Reference::Packet, spec)
            }
            PathKind::Centralized => centralized(
                "sleeping process, kernel routing between TAP devices, one frame at once",
                &forwarding_options(BATCH, false)?,
            ),
            PathKind::CentralizedAtItsBest => centralized(
                "the same, polling, up to 32 frames at once, long queues",
                &forwarding_options(BEST_BATCH, true)?,
            ),
        };
        match variant {
            Ok(variant) => made.push(variant.with_name(&spec.name).with_key(spec.key)),
            Err(Error::Reference(reason @ reference::Error::Absent { .. })) => {
                skipped.push(Findings::skipped_row(
                    "variant",
                    spec.name.as_str(),
                    &reason,
                ));
            }
            Err(error) => return Err(error),
        }
    }
    Ok((made, skipped))
}

/// Objects of a variant, in their order of removal.
type Parts = Vec<Box<dyn Any + Send>>;

/// A variant of a network and the objects in it. The objects are removed before the links.
fn network_variant(
    about: &str,
    network: Network,
    mut parts: Parts,
    pollers: Vec<u32>,
) -> Result<Variant, Error> {
    let sockets = network.sockets()?;
    parts.push(Box::new(network));
    Variant::new("", about, sockets, pollers, parts)
}

fn direct() -> Result<Variant, Error> {
    let (client, server) = network::create_cable(Offloads::Off)?;
    let about = "veth pair between the two hosts";
    let sockets = sockets(
        (&client.netns, client.address),
        (&server.netns, server.address),
    )?;
    let parts: Parts = vec![Box::new((client, server))];
    Variant::new("", about, sockets, Vec::new(), parts)
}

fn bridge() -> Result<Variant, Error> {
    let network = Network::create(false)?;
    add_bridge(&network.middle)?;
    let about = "Linux bridge in a namespace, both ways";
    network_variant(about, network, Vec::new(), Vec::new())
}

/// Joins the links of the namespace by a bridge with the kernel's defaults.
pub(crate) fn add_bridge(middle: &MiddleNamespace) -> Result<(), Error> {
    let mut netlink = Netlink::open_in(&middle.netns)?;
    netlink.apply([link::create_bridge("bridge")?])?;
    let bridge = netlink.link("bridge")?.id();
    netlink.apply([
        link::enslave(&middle.client, &bridge),
        link::enslave(&middle.server, &bridge),
        link::set_up(&bridge),
    ])?;
    Ok(())
}

/// A namespace between the hosts that forwards as a Linux router does.
pub(crate) fn kernel_router() -> Result<Network, Error> {
    let network = Network::create(true)?;
    start_routing(&network)?;
    Ok(network)
}

/// Makes the namespace between the hosts forward as a Linux router does.
pub(crate) fn start_routing(network: &Network) -> Result<(), Error> {
    let middle = &network.middle;
    middle.netns.enter(|| {
        for link in ["all", CLIENT_LINK, SERVER_LINK] {
            sysctl::set_rp_filter(link, 0)?;
        }
        sysctl::set("net/ipv4/ip_forward", "1")?;
        let sides = [
            (&middle.client, &network.client),
            (&middle.server, &network.server),
        ];
        Netlink::open()?.apply(sides.into_iter().flat_map(|(link, end)| {
            [
                neighbour::add_permanent(link, end.address, end.mac),
                route::add_on_link(link, end.address, 32),
            ]
        }))
    })??;
    Ok(())
}

fn kernel_forwarding() -> Result<Variant, Error> {
    let about = "kernel IP forwarding through a namespace, both ways";
    let network = kernel_router()?;
    network_variant(about, network, Vec::new(), Vec::new())
}

/// Bare redirects in both directions, to the server at this hook.
fn bare_redirect(hook: Hook) -> Result<Variant, Error> {
    let network = Network::create(false)?;
    let there = attach_redirect(&network.middle, hook, true)?;
    let parts: Parts = vec![Box::new(there), redirect_replies(&network)?];
    let about = match hook {
        Hook::Tcx => "bare bpf_redirect_peer at tcx, both ways",
        Hook::Xdp => {
            network::enable_napi(&network.server.netns, "eth0")?;
            "bare bpf_redirect at XDP to the server, replies redirected at tcx"
        }
    };
    network_variant(about, network, parts, Vec::new())
}

/// A tc redirect of packets from the server.
fn redirect_replies(network: &Network) -> Result<Box<dyn Any + Send>, Error> {
    Ok(Box::new(attach_redirect(
        &network.middle,
        Hook::Tcx,
        false,
    )?))
}

fn start_forwarder(reference: Reference, spec: &VariantSpec) -> Result<Variant, Error> {
    reference.check_built()?;
    let network = Network::create(false)?;
    let forwarding = ForwardingOptions {
        swap: spec.path == PathKind::ReorderingProgram,
        ..forwarding_options(spec.batch, true)?
    };
    let netns = &network.middle.netns;
    let running = netns.enter(|| reference.start(&forwarding))??;
    program_variant(&spec.about, network, running)
}

/// Options of a reference program.
fn forwarding_options(batch: u16, poll: bool) -> Result<ForwardingOptions<'static>, Error> {
    Ok(ForwardingOptions {
        ingress: CLIENT_LINK,
        egress: SERVER_LINK,
        batch,
        core: Some(polling_core()?),
        poll,
        swap: false,
    })
}

fn program_variant(
    about: &str,
    network: Network,
    running: RunningReference,
) -> Result<Variant, Error> {
    let pollers = vec![running.pid()];
    // The program is removed before its links.
    let parts: Parts = vec![Box::new(running), redirect_replies(&network)?];
    network_variant(about, network, parts, pollers)
}

/// Both functions in one process, with the kernel's stack in between. It sleeps as published, or
/// polls and takes several packets at once.
fn centralized(about: &str, forwarding: &ForwardingOptions<'_>) -> Result<Variant, Error> {
    let network = Network::create(false)?;
    let running = network.middle.netns.enter(|| {
        let running = Reference::Centralized.start(forwarding)?;
        let mut netlink = Netlink::open()?;
        let (first, second) = (
            netlink.link("central0")?.id(),
            netlink.link("central1")?.id(),
        );
        // The kernel only receives packets to its own address, so the link has the server's
        // address.
        netlink.apply([
            link::set_mac(&first, network.server.mac),
            link::disable_ipv6_autoconfiguration(&first),
            link::disable_ipv6_autoconfiguration(&second),
            link::set_up(&first),
            link::set_up(&second),
        ])?;
        for link in ["all", "central0"] {
            sysctl::set_rp_filter(link, 0)?;
        }
        sysctl::set("net/ipv4/ip_forward", "1")?;
        netlink.apply([
            neighbour::add_permanent(&second, network.server.address, network.server.mac),
            route::add_on_link(&second, network.server.address, 32),
        ])?;
        Ok::<_, Error>(running)
    })??;
    program_variant(about, network, running)
}

/// Redirects all frames from the client to the server, or in the other direction.
fn attach_redirect(
    middle: &MiddleNamespace,
    hook: Hook,
    to_server: bool,
) -> Result<OwnedFd, Error> {
    let (from, to) = if to_server {
        (&middle.client, &middle.server)
    } else {
        (&middle.server, &middle.client)
    };
    middle.netns.enter(|| {
        let program = ebpf::load_redirect(hook, to.index)?;
        ebpf::attach(program.as_fd(), hook, from.index)
    })?
}

impl VariantSpec {
    /// This chain with its functions repeated.
    pub(crate) fn repeated(&self, times: usize) -> Self {
        Self {
            name: format!("{}, {times}", self.name),
            spaces: vec![self.spaces.as_slice(); times].concat(),
            ..self.clone()
        }
    }

    /// The lines of a chain's `spec`, without functions.
    fn spec_lines(&self) -> Result<String, Error> {
        let line = |field, value: &Option<String>| {
            let value = value.as_ref()?;
            Some(format!("  {field}: {value}\n"))
        };
        let idle = self.idle.as_ref();
        let worker = idle.map(|idle| {
            let (batch, core) = (self.batch, polling_core()?);
            Ok::<_, Error>(format!(
                "  worker: {{ batch: {batch}, idle: {idle}, cores: [{core}] }}\n"
            ))
        });
        let lines = [
            line("mapping", &self.mapping),
            line("hook", &self.hook),
            worker.transpose()?,
        ];
        Ok(lines.into_iter().flatten().collect())
    }

    /// The file of a chain with this name, with `more` lines of `spec`.
    pub(crate) fn chain_text(&self, chain: &str, more: &str) -> Result<String, Error> {
        let spaces = self.spaces.iter();
        let functions: Vec<_> = spaces
            .map(|space| (self.function.as_str(), space.as_str()))
            .collect();
        let lines = format!("{more}{}", self.spec_lines()?);
        Ok(if self.both_ways {
            agents::chain_text_both_ways(chain, &functions, &lines)
        } else {
            agents::chain_text(chain, &functions, &lines)
        })
    }
}

fn deploy_chain(
    agent: &Arc<EmbeddedAgent>,
    name: &str,
    spec: &VariantSpec,
) -> Result<Variant, Error> {
    let chain = agent.dir.chain_name(name);
    let all = agent.up_all(spec.chain_text(&chain, "")?)?;
    let up = all.iter().find(|up| up.chain == chain);
    let up = up.ok_or_else(|| ApiError::failed(format!("the agent did not deploy {chain}")))?;
    let (client, server) = (open_host(up, "client")?, open_host(up, "server")?);
    let sockets = sockets((&client.0, client.1), (&server.0, server.1))?;
    let parts: Parts = vec![Box::new(Arc::clone(agent))];
    Variant::new("", &spec.about, sockets, agent.workers(&chain)?, parts)
}

fn deploy_dpdk_chain(spec: &VariantSpec, session: Session<'_>) -> Result<Variant, Error> {
    let network = Network::create(false)?;
    let middle = &network.middle;
    // The links of all such chains have the same names, so each chain has a separate agent.
    let agent = EmbeddedAgent::open(session.program)?;
    let chain = agent.dir.chain_name("dpdk");
    let device =
        |number, link| format!("{{ dpdk: \"net_af_xdp{number},iface={link},busy_budget=0\" }}");
    let ports = format!(
        "  ports: {{ ingress: {}, egress: {} }}\n",
        device(0, CLIENT_LINK),
        device(1, SERVER_LINK),
    );
    let text = spec.chain_text(&chain, &ports)?;
    // A worker starts in the namespace of the caller.
    middle.netns.enter(|| {
        agent.up_all(text)?;
        // Replies pass the redirect, as with the reference program.
        ebpf::detach_xdp(middle.server.index)
    })??;
    let pollers = agent.workers(&chain)?;
    // The worker is removed before its links.
    let parts: Parts = vec![Box::new(agent), redirect_replies(&network)?];
    network_variant(&spec.about, network, parts, pollers)
}

fn open_host(up: &ChainUp, role: &str) -> Result<(Netns, IpAddr), Error> {
    let is = |host: &&HostInfo| host.role == role;
    let missing = || ApiError::failed(format!("chain {} has no host `{role}`", up.chain));
    let host = up.hosts.iter().find(is).ok_or_else(missing)?;
    Ok((
        Netns::open(&host.netns)?,
        host.address.parse().map_err(|_| missing())?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::parse_list;

    #[test]
    fn declared_chains_are_valid() {
        let cases = concat!(env!("CARGO_MANIFEST_DIR"), "/cases");
        for file in std::fs::read_dir(cases).unwrap() {
            let path = file.unwrap().path();
            // It has no variants.
            if path.ends_with("calvin-advanced.yaml") {
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            for spec in parse_list::<VariantSpec>("test", &text).unwrap() {
                assert!(!spec.name.is_empty(), "{path:?}: {spec:?}");
                if spec.path == PathKind::Chain {
                    let text = spec.chain_text("c", "").unwrap();
                    let chains = agents::chain_source(text).parse().unwrap();
                    assert_eq!(chains[0].functions.len(), spec.spaces.len());
                }
            }
        }
    }
}
