//! Deploys two crowds of chains between two hosts, and sends bursts through them.

use std::net::{SocketAddr, UdpSocket};

use myelin_api::ApiError;
use myelin_linux::napi;
use myelin_linux::netlink::Netlink;
use myelin_spec::Space;

use super::super::bursts::{self, BurstSamples, FIRST_PORT, Senders, create_senders};
use super::super::deployed::{DeployedChains, open_hosts};
use super::super::direct::SERVER;
use super::super::{Chains, FRAMES, Monitor, Result};
use super::{CHAINS, Crowds, FUNCTIONS};
use crate::stall::CoreBlocker;

/// Kinds that do not change a packet's length and ports. The functions of a chain take these kinds
/// in turn.
const KINDS: [(&str, &str); 5] = [
    ("forward", ""),
    ("xor", ", config: { key: 90 }"),
    (
        "firewall",
        ", config: { rules: [ { action: deny, source: 192.0.2.0/24 } ] }",
    ),
    ("monitor", ", config: { flows: 1024 }"),
    ("flow-tracker", ", config: { flows: 1024 }"),
];
/// UDP port of the chain that makes the links and drops its packets. The crowds' chains use the
/// next ports.
const DROPPED_PORT: u16 = FIRST_PORT;

/// Kind and configuration of each function of a chain.
pub(super) fn functions(
    chain: usize,
    count: usize,
) -> impl Iterator<Item = (&'static str, &'static str)> {
    (0..count).map(move |position| KINDS[(chain + position) % KINDS.len()])
}

/// Two hosts with crowds of chains between them.
pub(super) struct Testbed<'a> {
    /// Senders of each crowd.
    crowds: [Senders; FUNCTIONS.len()],
    /// Senders to the chain that drops all packets.
    dropped: Senders,
    server: Netlink,
    /// Index of the server's link.
    server_link: u32,
    /// Sockets that receive the packets without reading them.
    _sockets: Vec<UdpSocket>,
    _crowd: DeployedChains<'a>,
}

impl<'a> Testbed<'a> {
    /// Deploys the chains, with the workers or the port's receive work on `core`. `None` if the
    /// kernel has no threads for receive work.
    pub(super) fn new(chains: &'a dyn Chains, space: Space, core: usize) -> Result<Option<Self>> {
        let mut crowd = DeployedChains::new(chains);
        let up = crowd.up([chain_name(DROPPED_PORT)], chain_text(DROPPED_PORT, DENY))?;
        let first = up.first();
        let first = first.ok_or_else(|| ApiError::failed("the agent returned no chain"))?;
        let placement = match space {
            Space::Kernel => "  hook: xdp\n".to_owned(),
            Space::User => format!("  worker: {{ idle: spin, cores: [{core}] }}\n"),
        };
        let members = CrowdChain::all();
        let members_of_all = || members.as_flattened().iter();
        let texts: Vec<String> = members_of_all()
            .map(|member| member.text(space, &placement, [&first.ingress, &first.egress]))
            .collect();
        let names = members_of_all().map(|member| chain_name(member.port));
        crowd.up(names, texts.join("---\n"))?;
        if space == Space::Kernel
            && napi::move_receive_work_to_core(None, &first.ingress, core).is_err()
        {
            return Ok(None);
        }
        let [client, server] = open_hosts(&up)?;
        let mut netlink = Netlink::open_in(&server)?;
        let end = netlink.link("eth0")?;
        let mac = end.mac.map(|mac| mac.0);
        let sockets = members.as_flattened().iter().map(|member| {
            let bind = || UdpSocket::bind(SocketAddr::new(SERVER, member.port));
            Ok(server.enter(bind)?.map_err(|error| {
                ApiError::failed(format!("cannot listen on port {}: {error}", member.port))
            })?)
        });
        let sockets = sockets.collect::<Result<_>>()?;
        let [few, many] =
            members.map(|crowd| create_senders(&client, mac, &crowd.map(|member| member.port)));
        Ok(Some(Self {
            crowds: [few?, many?],
            dropped: create_senders(&client, mac, &[DROPPED_PORT])?,
            server_link: end.id().index,
            server: netlink,
            _sockets: sockets,
            _crowd: crowd,
        }))
    }

    /// Measures both crowds in turn in each round, so a drift affects both crowds equally. Also
    /// returns the cost of sending to the chain that drops all packets, ns.
    pub(super) fn measure(
        mut self,
        blocker: &CoreBlocker,
        rounds: usize,
        monitor: &Monitor<'_>,
    ) -> Result<(Crowds, [f64; FRAMES.len()])> {
        let mut samples: [BurstSamples; FUNCTIONS.len()] = Default::default();
        let (server, link) = (&mut self.server, self.server_link);
        let mut arrived = || Ok(server.received_packets(link)?);
        for round in 0..rounds {
            monitor.progress("crowds", round as u64, rounds as u64);
            for (senders, samples) in self.crowds.iter().zip(&mut samples) {
                if monitor.is_cancelled() {
                    return Err(ApiError::failed("the calibration was cancelled").into());
                }
                samples.measure_round(senders, blocker, &mut arrived)?;
            }
        }
        let dropped_ns = bursts::measure_dropped_packet_ns(&self.dropped, rounds)?;
        let [few, many] = samples;
        Ok(([few.compute_costs()?, many.compute_costs()?], dropped_ns))
    }
}

/// A chain of a crowd.
#[derive(Clone, Copy)]
struct CrowdChain {
    /// UDP port of the chain's packets.
    port: u16,
    /// The chain's index in the crowd.
    index: usize,
    /// Number of functions.
    functions: usize,
}

impl CrowdChain {
    /// The chains of both crowds.
    fn all() -> [[Self; CHAINS]; FUNCTIONS.len()] {
        std::array::from_fn(|crowd| {
            std::array::from_fn(|index| Self {
                port: DROPPED_PORT + 1 + (crowd * CHAINS + index) as u16,
                index,
                functions: FUNCTIONS[crowd],
            })
        })
    }

    /// Writes the text of the chain file, with two named interfaces. `placement` has the keys of
    /// `spec` for the space.
    fn text(&self, space: Space, placement: &str, [ingress, egress]: [&str; 2]) -> String {
        let functions = functions(self.index, self.functions).enumerate();
        let functions = functions.map(|(position, (kind, config))| {
            format!("{{ name: f{position}, kind: {kind}, space: {space}{config} }}")
        });
        let functions: Vec<String> = functions.collect();
        let spec = format!(
            "  mapping: compact\n{placement}  ports: {{ ingress: {ingress}, egress: {egress} }}\n  functions: [ {} ]\n",
            functions.join(", ")
        );
        chain_text(self.port, &spec)
    }
}

/// Keys of `spec` for a chain that drops all packets.
const DENY: &str = "  hook: xdp\n  functions: [ { name: f, kind: firewall, space: kernel, config: { default: deny } } ]\n";

fn chain_name(port: u16) -> String {
    format!("calibrate-crowd-{port}")
}

fn chain_text(port: u16, spec: &str) -> String {
    let name = chain_name(port);
    format!(
        "apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: {{ name: {name}, namespace: calibrate }}\nspec:\n  \
         match: {{ protocol: udp, destination: {SERVER}, destinationPort: {port} }}\n{spec}"
    )
}
