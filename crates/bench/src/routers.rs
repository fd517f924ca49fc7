//! Virtual routers: chains of one router each between the same two ports, distinguished by
//! destination port (Rathore et al. 2022, Fig. 2). The far end drops their packets.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use myelin_api::{ApiError, ChainStatus};
use myelin_linux::ethtool::{Ethtool, Offload};
use myelin_linux::napi;
use myelin_linux::netlink::Netlink;
use myelin_linux::packet_socket::PacketSender;
use myelin_packet::sojourn::Histogram;

use crate::agents::{self, EmbeddedAgent};
use crate::generator::{Stream, StreamCounts, generate};
use crate::network::{CLIENT_LINK, Network, SERVER_LINK, SERVER_PORT};
use crate::variant::{Pollers, polling_core, probing_core};
use crate::{Error, frames};

/// Frame length of the paper's packets and ours, with the Ethernet header, bytes.
pub(crate) const FRAME_BYTES: u64 = 256;
/// Length of the headers of a UDP packet, bytes.
const HEADERS: u64 = 42;
/// A rate above that of any sender, packets a second.
const FASTEST_PPS: f64 = 1e9;
/// Longest wait for packets in flight, including shapers' queues.
const DRAIN: Duration = Duration::from_millis(10);
/// Processes with turns that were stopped need this time until one of them has the core: the others
/// take it from one that seems dead.
const SETTLING_TIME: Duration = Duration::from_millis(100);

/// Space and isolation of a router.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RouterKind {
    /// In the kernel at tcx, on the sender's core.
    Tcx,
    /// In the kernel at XDP, on the sender's core.
    Xdp,
    /// In the kernel at XDP, in the receive work of the ingress port on [`polling_core`].
    Kernel,
    /// The same at tcx.
    KernelTcx,
    /// The same in a separate namespace, the paper's container, at the hook that Myelin chooses:
    /// tcx.
    Namespace,
    /// The same at XDP.
    NamespaceXdp,
    /// In user space on [`polling_core`], in one worker for all routers.
    Worker,
    /// In user space on that core, in a separate process. For the scheduler, this process equals
    /// the paper's virtual machine.
    Process,
    /// In user space on that core, each function in a process of its own. The processes share the
    /// core by this policy.
    Sharing(&'static str),
}

impl RouterKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tcx => "tcx",
            Self::Xdp => "xdp",
            Self::Kernel => "kernel",
            Self::KernelTcx => "kernel, tcx",
            Self::Namespace => "namespace",
            Self::NamespaceXdp => "namespace, xdp",
            Self::Worker => "worker",
            Self::Process => "process",
            Self::Sharing(policy) => policy,
        }
    }

    fn space(self) -> &'static str {
        if matches!(self, Self::Worker | Self::Process | Self::Sharing(_)) {
            "user"
        } else {
            "kernel"
        }
    }

    fn spec_lines(self) -> Result<String, Error> {
        let core = polling_core()?;
        Ok(match self {
            Self::Tcx | Self::KernelTcx => "  mapping: compact\n  hook: tcx\n".to_owned(),
            Self::Xdp | Self::Kernel => "  mapping: compact\n  hook: xdp\n".to_owned(),
            Self::Namespace => "  mapping: distributed\n".to_owned(),
            Self::NamespaceXdp => "  mapping: distributed\n  hook: xdp\n".to_owned(),
            Self::Worker => {
                format!("  mapping: compact\n  worker: {{ idle: spin, cores: [{core}] }}\n")
            }
            Self::Process => {
                format!("  mapping: distributed\n  worker: {{ idle: sleep, cores: [{core}] }}\n")
            }
            Self::Sharing(policy) => format!(
                "  mapping: distributed\n  worker: {{ idle: spin, cores: [{core}], sharing: {policy} }}\n"
            ),
        })
    }
}

/// The routers and their senders. Fields drop in this order: the processes must run to receive the
/// request to end.
pub(crate) struct Routers {
    workers: Pollers,
    agent: Arc<EmbeddedAgent>,
    kind: RouterKind,
    functions: &'static [&'static str],
    chains: Vec<String>,
    senders: Vec<PacketSender>,
    _sink: OwnedFd,
    network: Network,
}

/// What a router was sent in a turn, and what it did.
#[derive(Debug, Clone, Default)]
pub(crate) struct RouterTurn {
    pub(crate) sent: StreamCounts,
    pub(crate) counters: RouterCounters,
}

impl RouterTurn {
    /// The rate of so many packets of the turn, thousands a second.
    pub(crate) fn kpps(&self, packets: u64) -> f64 {
        packets as f64 / self.sent.seconds / 1e3
    }

    /// Packets that the router forwarded, as a share of those that were sent.
    pub(crate) fn kept(&self) -> f64 {
        self.counters.packets_out as f64 / self.sent.packets as f64
    }
}

/// A quantile of sojourns, us.
pub(crate) fn quantile_us(sojourn: &Histogram, share: f64) -> f64 {
    sojourn
        .quantile(share)
        .map_or(f64::NAN, |ns| ns as f64 / 1e3)
}

#[cfg(test)]
impl RouterTurn {
    /// A turn of a second, in which the router forwarded so many of the packets in 1 us each.
    pub(crate) fn forwarded(due: f64, packets: u64, packets_out: u64) -> Self {
        let mut sojourn = Histogram::new();
        sojourn.record_many(1000, packets_out);
        Self {
            sent: StreamCounts {
                packets,
                due,
                seconds: 1.0,
            },
            counters: RouterCounters {
                packets_in: packets,
                policed: packets - packets_out,
                packets_out,
                sojourn,
            },
        }
    }
}

/// Counters of a router, since its deployment or in a turn.
#[derive(Debug, Clone, Default)]
pub(crate) struct RouterCounters {
    /// Packets at the front door, including policed ones.
    pub(crate) packets_in: u64,
    pub(crate) policed: u64,
    pub(crate) packets_out: u64,
    pub(crate) sojourn: Histogram,
}

impl RouterCounters {
    fn since(&self, earlier: &Self) -> Self {
        Self {
            packets_in: self.packets_in - earlier.packets_in,
            policed: self.policed - earlier.policed,
            packets_out: self.packets_out - earlier.packets_out,
            sojourn: self.sojourn.since(&earlier.sojourn),
        }
    }
}

impl Routers {
    /// Deploys one router for each `sla` (the text between the braces), followed by
    /// `functions`. Their processes are stopped except while they are measured.
    pub(crate) fn new(
        program: &Path,
        kind: RouterKind,
        functions: &'static [&'static str],
        slas: &[String],
    ) -> Result<Self, Error> {
        let network = Network::create(false)?;
        let middle = &network.middle;
        // The agent runs in the namespace between the hosts, with its links and sockets.
        let (agent, chains, workers) = middle.netns.enter(|| {
            let agent = EmbeddedAgent::open(program)?;
            let prefix = kind.name().replace(", ", "-");
            let names: Vec<String> = (0..slas.len())
                .map(|number| agent.dir.chain_name(&format!("{prefix}{number}")))
                .collect();
            let chains = names.iter().zip(slas).enumerate();
            let texts = chains
                .map(|(number, (name, sla))| chain_text(kind, functions, number, name, sla))
                .collect::<Result<Vec<_>, _>>()?;
            agent.up_all(texts.join("---\n"))?;
            let mut workers = Vec::new();
            for name in &names {
                workers.extend(agent.workers(name)?);
            }
            workers.sort_unstable();
            workers.dedup();
            Ok::<_, Error>((agent, names, workers))
        })??;
        if matches!(kind, RouterKind::KernelTcx | RouterKind::Namespace) {
            // GRO gives the port NAPI, as the front door at XDP does.
            middle
                .netns
                .enter(|| Ethtool::open()?.set(CLIENT_LINK, &[Offload::GenericReceive], true))??;
        }
        if matches!(
            kind,
            RouterKind::Kernel
                | RouterKind::KernelTcx
                | RouterKind::Namespace
                | RouterKind::NamespaceXdp
        ) {
            napi::move_receive_work_to_core(Some(&middle.netns), CLIENT_LINK, polling_core()?)?;
        }
        let sink = network.sink()?;
        let senders = (0..chains.len())
            .map(|number| network.client.sender(&frame(number)))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            agent,
            kind,
            functions,
            chains,
            senders,
            workers: Pollers::stop(workers),
            _sink: sink,
            network,
        })
    }

    /// Changes the SLA of the first router by a live change.
    pub(crate) fn set_sla(&self, sla: &str) -> Result<(), Error> {
        let text = chain_text(self.kind, self.functions, 0, &self.chains[0], sla)?;
        let netns = &self.network.middle.netns;
        let changed = self
            .workers
            .run(|| netns.enter(|| self.agent.up_all(text)))?;
        changed.map(drop)
    }

    /// What shapes the packets of the first router: `worker`, `fq`, `htb`; `None` without a shaper.
    pub(crate) fn shaper(&self) -> Result<Option<String>, Error> {
        let statuses = self.agent.status();
        let shaper = self.status(&statuses, 0)?.shaper.as_ref();
        Ok(shaper.map(|shaper| shaper.by.clone()))
    }

    /// The sender of router `number`.
    pub(crate) fn sender(&self, number: usize) -> &PacketSender {
        &self.senders[number]
    }

    /// Sends to the first routers for `duration`; `(rate, cluster, burst)` of each are fields of
    /// [`Stream`].
    pub(crate) fn send_and_count(
        &self,
        streams: &[(f64, usize, u64)],
        duration: Duration,
    ) -> Result<Vec<RouterTurn>, Error> {
        let streams: Vec<Stream<'_>> = streams
            .iter()
            .zip(&self.senders)
            .map(|(&(rate_pps, cluster, burst), sender)| Stream {
                sender,
                rate_pps,
                cluster,
                burst,
            })
            .collect();
        let core = probing_core()?;
        let run = || {
            if matches!(self.kind, RouterKind::Sharing(_)) {
                generate(&streams, SETTLING_TIME, core)?;
                std::thread::sleep(DRAIN);
            }
            let before = (self.read_counters()?, self.received()?);
            let sent = generate(&streams, duration, core)?;
            // Packets in flight pass.
            std::thread::sleep(DRAIN);
            Ok::<_, Error>((before, sent, self.read_counters()?))
        };
        let ((before, received_before), sent, after) = self.workers.run(run)?;
        let received = self.received()? - received_before;
        let both = after.iter().zip(&before);
        let turns = sent.into_iter().zip(both);
        let turns = turns.map(|(sent, (after, before))| RouterTurn {
            sent,
            counters: after.since(before),
        });
        let mut turns: Vec<_> = turns.collect();
        let out: u64 = turns.iter().map(|turn| turn.counters.packets_out).sum();
        // Packets that did not arrive at the server may be of any router: each counts them as lost.
        let lost = out.saturating_sub(received);
        for turn in &mut turns {
            turn.counters.packets_out = turn.counters.packets_out.saturating_sub(lost);
        }
        Ok(turns)
    }

    /// Offered and forwarded rate of the first router at the sender's highest rate, packets a
    /// second.
    pub(crate) fn capacity(&self, duration: Duration) -> Result<(f64, f64), Error> {
        let turns = self.send_and_count(&[(FASTEST_PPS, 1, u64::MAX)], duration)?;
        let RouterTurn { sent, counters } = &turns[0];
        let per_second = |packets: u64| packets as f64 / sent.seconds;
        Ok((per_second(sent.packets), per_second(counters.packets_out)))
    }

    /// Counters of each router.
    pub(crate) fn counters(&self) -> Result<Vec<RouterCounters>, Error> {
        self.workers.run(|| self.read_counters())
    }

    fn read_counters(&self) -> Result<Vec<RouterCounters>, Error> {
        let all = self.agent.status();
        let counters = self.chains.iter().enumerate().map(|(number, name)| {
            let status = self.status(&all, number)?;
            let sojourn = self.agent.sojourn(name)?.pop();
            Ok(RouterCounters {
                packets_in: status.packets_in,
                policed: status.policed,
                packets_out: status.packets_out,
                sojourn: sojourn.unwrap_or_default(),
            })
        });
        counters.collect()
    }

    /// Packets that have arrived at the server.
    fn received(&self) -> Result<u64, Error> {
        let received = self.network.server.netns.enter(|| {
            let mut netlink = Netlink::open()?;
            let link = netlink.link("eth0")?;
            netlink.received_packets(link.index)
        })?;
        Ok(received?)
    }

    /// The status of router `number`.
    fn status<'a>(&self, all: &'a [ChainStatus], number: usize) -> Result<&'a ChainStatus, Error> {
        let name = &self.chains[number];
        let found = all.iter().find(|status| status.chain == *name);
        let absent = || ApiError::failed(format!("the agent has no chain {name}"));
        Ok(found.ok_or_else(absent)?)
    }
}

fn port(number: usize) -> u16 {
    SERVER_PORT + number as u16
}

/// The frame for router `number`.
pub(crate) fn frame(number: usize) -> Vec<u8> {
    let payload = (FRAME_BYTES - HEADERS) as u16;
    let mut frame = frames::udp_frame([10, 0, 0, 1], [10, 0, 0, 2], port(number), payload);
    // The kernel's router checks the checksum.
    let header = &frame[14..34];
    let sum: u32 = header
        .chunks_exact(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
        .sum();
    let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    frame
}

/// A chain of one router, which rewrites the link addresses.
fn chain_text(
    kind: RouterKind,
    functions: &[&str],
    number: usize,
    name: &str,
    sla: &str,
) -> Result<String, Error> {
    let packets = format!(
        "protocol: udp, destination: 10.0.0.2/32, destinationPort: {}",
        port(number)
    );
    let route = "prefix: 10.0.0.0/24, mac: \"02:00:00:00:00:02\", sourceMac: \"02:00:00:00:01:02\"";
    let router = format!("kind: router, config: {{ routes: [ {{ {route} }} ] }}");
    let spec = format!(
        "  ports: {{ ingress: {CLIENT_LINK}, egress: {SERVER_LINK} }}\n  sla: {{ {sla} }}\n{}",
        kind.spec_lines()?
    );
    let functions: Vec<(&str, &str)> = [router.as_str()]
        .iter()
        .chain(functions)
        .map(|function| (*function, kind.space()))
        .collect();
    Ok(agents::chain_text_for(&packets, name, &functions, &spec))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agents::chain_source;

    #[test]
    fn chains_are_valid() {
        for kind in [
            RouterKind::Tcx,
            RouterKind::Kernel,
            RouterKind::KernelTcx,
            RouterKind::Namespace,
            RouterKind::NamespaceXdp,
            RouterKind::Worker,
            RouterKind::Process,
            RouterKind::Sharing("deadline"),
        ] {
            let sla = "rate: 300kpps, burst: 20, enforce: policer";
            let text = chain_text(kind, &["kind: forward"], 3, "vr3", sla).unwrap();
            let chains = chain_source(text).parse().unwrap();
            assert_eq!(chains[0].matches.destination_port, Some(9003));
        }
        let tuple = myelin_packet::parse(&frame(3))
            .unwrap()
            .five_tuple(&frame(3));
        assert_eq!(tuple.destination_port, Some(9003));
        assert_eq!(frame(0).len() as u64, FRAME_BYTES);
    }
}
