//! Virtual routers side by side: chains of one router each between the same two ports, told apart by the destination port
//! (Rathore et al. 2022, Fig. 2). What leaves them is dropped at the far end.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use myelin_api::{ApiError, ChainStatus};
use myelin_linux::ethtool::{Ethtool, Offload};
use myelin_linux::napi;
use myelin_linux::packet_socket::PacketSender;
use myelin_packet::sojourn::Histogram;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::generator::{Sent, Stream, generate};
use crate::network::{CLIENT_LINK, Network, SERVER_LINK, SERVER_PORT};
use crate::stand::{self, Stand};
use crate::variant::{polling_core, probing_core};
use crate::{Error, frames};

/// Bytes of the paper's packets, and of ours, with the Ethernet header.
pub(crate) const FRAME_BYTES: u64 = 256;
/// Bytes of the headers of a UDP packet.
const HEADERS: u64 = 42;
/// Longest wait for what is under way, shapers' queues included.
const DRAIN: Duration = Duration::from_millis(10);

/// What a router is, and what it shares with the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// In the kernel at tcx, on the core that sends.
    Tcx,
    /// In the kernel at XDP, on the core that sends.
    Xdp,
    /// In the kernel at XDP, in the receive work of the ingress port, which is given [`polling_core`].
    Kernel,
    /// The same in a namespace of its own, the paper's container, at the hook that Myelin chooses: tcx.
    Namespace,
    /// The same at XDP.
    NamespaceXdp,
    /// In user space on [`polling_core`], in the one worker of all routers.
    Worker,
    /// In user space on that core, in a process of its own: what the paper's virtual machine is to the scheduler.
    Process,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tcx => "tcx",
            Self::Xdp => "xdp",
            Self::Kernel => "kernel",
            Self::Namespace => "namespace",
            Self::NamespaceXdp => "namespace, xdp",
            Self::Worker => "worker",
            Self::Process => "process",
        }
    }

    fn space(self) -> &'static str {
        if matches!(self, Self::Worker | Self::Process) {
            "user"
        } else {
            "kernel"
        }
    }

    fn more(self) -> Result<String, Error> {
        let core = polling_core()?;
        Ok(match self {
            Self::Tcx => "  mapping: compact\n  hook: tcx\n".to_owned(),
            Self::Xdp | Self::Kernel => "  mapping: compact\n  hook: xdp\n".to_owned(),
            Self::Namespace => "  mapping: distributed\n".to_owned(),
            Self::NamespaceXdp => "  mapping: distributed\n  hook: xdp\n".to_owned(),
            Self::Worker => {
                format!("  mapping: compact\n  worker: {{ idle: spin, core: {core} }}\n")
            }
            Self::Process => {
                format!("  mapping: distributed\n  worker: {{ idle: sleep, core: {core} }}\n")
            }
        })
    }
}

/// The routers, and who sends to them. The fields' order is that of the end.
pub(crate) struct Routers {
    stand: Arc<Stand>,
    kind: Kind,
    work: Vec<String>,
    chains: Vec<String>,
    senders: Vec<PacketSender>,
    workers: Vec<u32>,
    _sink: OwnedFd,
    network: Network,
}

/// What one router did since it came up.
#[derive(Debug, Clone, Default)]
pub(crate) struct Figures {
    pub(crate) packets_in: u64,
    pub(crate) policed: u64,
    pub(crate) packets_out: u64,
    pub(crate) sojourn: Histogram,
}

impl Figures {
    /// Packets at the front door, policed ones included.
    pub(crate) fn came(&self) -> u64 {
        self.packets_in + self.policed
    }

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
    /// One router for each text of an `sla` (the inside of the braces), with functions behind it that give it more to do.
    /// They stand still but in [`Routers::running`].
    pub(crate) fn new(
        program: &Path,
        kind: Kind,
        work: &[&str],
        slas: &[String],
    ) -> Result<Self, Error> {
        let network = Network::through(false)?;
        let middle = &network.middle;
        // The agent's links and sockets are those of the namespace between the hosts.
        let (stand, chains, workers) = middle.netns.enter(|| {
            let stand = Stand::open(program)?;
            let stem = kind.name().replace(", ", "-");
            let names: Vec<String> = (0..slas.len())
                .map(|number| stand.place.chain_name(&format!("{stem}{number}")))
                .collect();
            // Profiles that nothing reaches, and routers that nobody polices, are what is measured here.
            stand.up_all(texts(kind, work, &names, slas)?)?;
            let mut workers = Vec::new();
            for name in &names {
                workers.extend(stand.workers(name)?);
            }
            workers.sort_unstable();
            workers.dedup();
            Ok::<_, Error>((stand, names, workers))
        })??;
        if kind == Kind::Namespace {
            // It gives the port NAPI, as the door at XDP does.
            middle
                .netns
                .enter(|| Ethtool::open()?.set(CLIENT_LINK, &[Offload::GenericReceive], true))??;
        }
        if matches!(kind, Kind::Kernel | Kind::Namespace | Kind::NamespaceXdp) {
            napi::move_receive_work_to_core(Some(&middle.netns), CLIENT_LINK, polling_core()?)?;
        }
        let sink = network.sink()?;
        let senders = (0..chains.len())
            .map(|number| network.client.sender(&frame(number)))
            .collect::<Result<_, _>>()?;
        let routers = Self {
            stand,
            kind,
            work: work.iter().map(ToString::to_string).collect(),
            chains,
            senders,
            workers,
            _sink: sink,
            network,
        };
        routers.signal(Signal::SIGSTOP);
        Ok(routers)
    }

    /// Gives the routers other SLAs, by a live change.
    pub(crate) fn set_slas(&self, slas: &[String]) -> Result<(), Error> {
        let work: Vec<&str> = self.work.iter().map(String::as_str).collect();
        let texts = texts(self.kind, &work, &self.chains, slas)?;
        self.signal(Signal::SIGCONT);
        let netns = &self.network.middle.netns;
        let changed = netns.enter(|| self.stand.up_all(texts))?;
        self.signal(Signal::SIGSTOP);
        changed.map(drop)
    }

    /// Who sends to router `number`.
    pub(crate) fn sender(&self, number: usize) -> &PacketSender {
        &self.senders[number]
    }

    /// Runs something while the routers' processes run too.
    fn running<T>(&self, what: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        self.signal(Signal::SIGCONT);
        let done = what();
        // What is under way comes through.
        std::thread::sleep(DRAIN);
        self.signal(Signal::SIGSTOP);
        done
    }

    /// Sends to the routers side by side for so long, each `(rate, cluster, burst)` as [`Stream`] has them: what was sent, and what all of them did.
    pub(crate) fn turn(
        &self,
        streams: &[(f64, usize, u64)],
        duration: Duration,
    ) -> Result<(Vec<Sent>, Vec<Figures>), Error> {
        let before = self.figures()?;
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
        let sent = self.running(|| generate(&streams, duration, core))?;
        let after = self.figures()?;
        let did = after.iter().zip(&before);
        Ok((
            sent,
            did.map(|(after, before)| after.since(before)).collect(),
        ))
    }

    /// What each did so far.
    pub(crate) fn figures(&self) -> Result<Vec<Figures>, Error> {
        self.signal(Signal::SIGCONT);
        let all = self.stand.status();
        let figures = self.chains.iter().map(|name| {
            let is = |status: &&ChainStatus| status.chain == *name;
            let status = all
                .iter()
                .find(is)
                .ok_or_else(|| ApiError::failed(format!("the agent has no chain {name}")))?;
            let sojourn = self.stand.sojourn(name)?.pop();
            Ok(Figures {
                packets_in: status.packets_in,
                policed: status.policed,
                packets_out: status.packets_out,
                sojourn: sojourn.unwrap_or_default(),
            })
        });
        let figures = figures.collect();
        self.signal(Signal::SIGSTOP);
        figures
    }

    fn signal(&self, signal: Signal) {
        for worker in &self.workers {
            // One that has died is started anew by the agent, and found by its figures.
            let _ = kill(Pid::from_raw(worker.cast_signed()), signal);
        }
    }
}

impl Drop for Routers {
    fn drop(&mut self) {
        // Who stands still hears nothing.
        self.signal(Signal::SIGCONT);
    }
}

fn port(number: usize) -> u16 {
    SERVER_PORT + number as u16
}

/// What is sent to router `number`.
pub(crate) fn frame(number: usize) -> Vec<u8> {
    let payload = (FRAME_BYTES - HEADERS) as u16;
    let mut frame = frames::udp([10, 0, 0, 1], [10, 0, 0, 2], port(number), payload);
    // The kernel's router looks at it.
    let header = &frame[14..34];
    let sum: u32 = header
        .chunks_exact(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
        .sum();
    let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    frame
}

/// All chains of a file.
fn texts(kind: Kind, work: &[&str], names: &[String], slas: &[String]) -> Result<String, Error> {
    let texts: Vec<String> = names
        .iter()
        .zip(slas)
        .enumerate()
        .map(|(number, (name, sla))| text(kind, work, number, name, sla))
        .collect::<Result<_, _>>()?;
    Ok(texts.join("---\n"))
}

/// A chain of one router, which rewrites the addresses of the link as routers do.
fn text(kind: Kind, work: &[&str], number: usize, name: &str, sla: &str) -> Result<String, Error> {
    let packets = format!(
        "destination: 10.0.0.2/32, destinationPort: {}",
        port(number)
    );
    let route = "prefix: 10.0.0.0/24, mac: \"02:00:00:00:00:02\", sourceMac: \"02:00:00:00:01:02\"";
    let router = format!("kind: router, config: {{ routes: [ {{ {route} }} ] }}");
    let more = format!(
        "  ports: {{ ingress: {CLIENT_LINK}, egress: {SERVER_LINK} }}\n  sla: {{ {sla} }}\n{}",
        kind.more()?
    );
    let functions: Vec<(&str, &str)> = [router.as_str()]
        .iter()
        .chain(work)
        .map(|function| (*function, kind.space()))
        .collect();
    Ok(stand::chain_for(&packets, name, &functions, &more))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stand::source;

    #[test]
    fn chains_are_valid() {
        for kind in [
            Kind::Tcx,
            Kind::Kernel,
            Kind::Namespace,
            Kind::NamespaceXdp,
            Kind::Worker,
            Kind::Process,
        ] {
            let sla = "rate: 300kpps, burst: 20, enforce: policer";
            let text = text(kind, &["kind: forward"], 3, "vr3", sla).unwrap();
            let chains = source(text).parse().unwrap();
            assert_eq!(chains[0].matches.destination_port, Some(9003));
        }
        let tuple = myelin_packet::parse(&frame(3))
            .unwrap()
            .five_tuple(&frame(3));
        assert_eq!(tuple.destination_port, Some(9003));
        assert_eq!(frame(0).len() as u64, FRAME_BYTES);
    }
}
