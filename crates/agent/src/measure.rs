//! Measures a running chain from its end hosts, and checks the result against its SLA.

mod flood;
mod report;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use myelin_linux::netns::Netns;
use myelin_measure::cpu::CpuMeter;
use myelin_measure::{Config, Control, Sockets};
use myelin_metrics::chain::Flood;
use myelin_metrics::{Cores, CpuUse, Distribution, Mode, ProbeResult};
use myelin_packet::five_tuple::{FiveTuple, UDP};
use myelin_packet::sojourn::Histogram;
use myelin_planner::Plan;
use myelin_policy::sla::claims::ProbeTotals;
use myelin_spec::ServiceChain;

use crate::Monitor;
use crate::api::{
    ApiError, ChainSource, ChainStatus, FloodRequest, ProbeOptions, ReportReply, SlaWindow,
};
use crate::control::span::Span;
use crate::engine::Engine;
use crate::node::Node;
use crate::node::mtu::MTU;
use crate::status;

/// The probe server's port, if the chain's match names no port.
const DEFAULT_PORT: u16 = 9000;
/// The deadline of a measurement is twice its sending time plus this time.
const EXTRA_TIME: Duration = Duration::from_secs(30);

/// The result of one measurement: one mode with one payload.
pub(crate) struct Row {
    pub(crate) probe: ProbeResult,
    /// Sojourns of all packets of the chain during the row, by section.
    pub(crate) sojourn: Vec<Histogram>,
    pub(crate) cpu: CpuUse,
}

/// All results of a measured chain.
pub(crate) struct MeasuredChain {
    pub(crate) target: ProbeTarget,
    pub(crate) rows: Vec<Row>,
    /// The sojourns of all rows, by section.
    pub(crate) sojourn: Vec<Histogram>,
    /// The chain's status at the end of the measurement.
    pub(crate) status: ChainStatus,
    /// The account of all packets of the chain during the measurement.
    pub(crate) account: SlaWindow,
    pub(crate) floods: Vec<Flood>,
}

impl MeasuredChain {
    /// Sums the packet counts of all probes, and takes the worst delays.
    pub(crate) fn probe_totals(&self) -> ProbeTotals {
        let quantile = self.target.chain.sla.percentile / 100.0;
        let worst = |delays: &dyn Fn(&ProbeResult) -> &Distribution| {
            let rows = self.rows.iter();
            rows.filter_map(|row| delays(&row.probe).quantile_us(quantile))
                .max_by(f64::total_cmp)
        };
        ProbeTotals {
            sent: self.rows.iter().map(|row| row.probe.counts.sent).sum(),
            lost: self.rows.iter().map(|row| row.probe.counts.lost).sum(),
            one_way_us: worst(&|probe| &probe.forward_distribution),
            round_trip_us: worst(&|probe| &probe.rtt_distribution),
        }
    }
}

/// Measures one chain with every requested mode and payload, while `floods` run on other chains.
pub(crate) fn measure_chain(
    engine: &Engine,
    name: &str,
    options: &ProbeOptions,
    floods: &[FloodRequest],
    monitor: &Monitor<'_>,
) -> Result<ReportReply, ApiError> {
    let target = ProbeTarget::find(&engine.node, name)?;
    let modes = options.modes.iter().map(|mode| mode.parse());
    let modes: Vec<Mode> = modes.collect::<Result<_, _>>().map_err(ApiError::usage)?;
    let sockets = target.bind_sockets()?;
    let before = engine.sojourn(name)?;
    let span = Span::begin(&engine.node, name)?;
    let floods = flood::start(engine, floods, options)?;
    let mut rows = Vec::new();
    for payload in &options.payloads {
        for mode in &modes {
            if monitor.is_cancelled() {
                return Err(ApiError::failed(format!(
                    "the measurement of chain `{name}` was cancelled"
                )));
            }
            let stage = format!("{name}: {mode}, {payload} B");
            let progress = |done, total| monitor.progress(&stage, done, total);
            let has_turns = |core| engine.node.parts.cores.has_preemptor(core);
            let cores = choose_cores(*mode, available_cores(), has_turns);
            let config = target.probe_config(options, (*mode, *payload), cores);
            let control = Control {
                cancel: Some(monitor.cancelled),
                progress: Some(&progress),
            };
            let start = engine.sojourn(name)?;
            let meter = CpuMeter::start(&target.processes()).map_err(ApiError::failed)?;
            let probe =
                myelin_measure::probe(&config, &sockets, control).map_err(ApiError::usage)?;
            let cpu = meter.usage().map_err(ApiError::failed)?;
            rows.push(Row {
                probe,
                sojourn: sojourn_since(&engine.sojourn(name)?, &start),
                cpu,
            });
        }
    }
    let account = span.end(&engine.node, name)?;
    let floods = flood::stop(engine, floods)?;
    let running = engine.node.chains.expect_during("measured", name)?;
    let plane = &engine.node.parts.plane;
    let sojourn = sojourn_since(&running.read(plane).sections(), &before);
    let status = status::read(&running, plane);
    Ok(report::build_reply(MeasuredChain {
        target,
        rows,
        sojourn,
        status,
        account,
        floods,
    }))
}

/// The sojourns since `start`, by section.
fn sojourn_since(now: &[Histogram], start: &[Histogram]) -> Vec<Histogram> {
    let sections = now.iter().zip(start);
    sections.map(|(now, start)| now.since(start)).collect()
}

/// The description of a chain that a probe needs.
pub(crate) struct ProbeTarget {
    pub(crate) chain: ServiceChain,
    pub(crate) source: Arc<ChainSource>,
    pub(crate) plan: Plan,
    client: (String, IpAddr),
    server: (String, IpAddr),
    /// The byte that the functions XOR into the payload, per direction.
    keys: (u8, u8),
    /// Workers of the user functions, and pipeline stages.
    workers: Vec<u32>,
}

impl ProbeTarget {
    /// Describes a running chain for a probe.
    ///
    /// # Errors
    /// No such chain, a chain without end hosts, or a match that excludes the probe's packets.
    pub(crate) fn find(node: &Node, name: &str) -> Result<Self, ApiError> {
        let running = node.chains.expect(name)?;
        let generation = running.generation();
        let refusal = |between: &str| {
            ApiError::failed(format!(
                "chain `{name}` lies between {between}, so there are no end hosts to probe from: send your own traffic; \
                 `myelin ps {name}` shows its sojourn"
            ))
        };
        if generation.chain.replay().is_some() {
            return Err(ApiError::failed(format!(
                "chain `{name}` replays packets from memory, so there are no end hosts to probe from: `myelin ps {name}` \
                 and `myelin top` show the delays and losses of the replayed packets"
            )));
        }
        let circuit = generation.ports.circuit.as_ref();
        let circuit = circuit.ok_or_else(|| refusal("DPDK devices"))?;
        let hosts = circuit.hosts();
        let [client, server] = hosts.ok_or_else(|| refusal("named interfaces (spec.ports)"))?;
        // A probe of a reverse chain starts at the server.
        let (near, far) = if generation.ports.is_reversed {
            (server, client)
        } else {
            (client, server)
        };
        let end = |host: &myelin_emulator::Host, peer: &myelin_emulator::Host| {
            let fits = |address: &&IpAddr| {
                peer.addresses
                    .iter()
                    .any(|peer_address| peer_address.is_ipv4() == address.is_ipv4())
            };
            let address = host.addresses.iter().find(fits).copied();
            address
                .map(|address| (host.netns.name().unwrap_or_default().to_owned(), address))
                .ok_or_else(|| {
                    ApiError::failed(format!(
                        "the end hosts of chain `{name}` have no addresses of the same IP version"
                    ))
                })
        };
        let workers = generation.layout.workers().into_iter();
        let mut workers: Vec<u32> = workers.map(|worker| worker.facts.pid()).collect();
        if let Some(pipeline) = generation.layout.pipeline() {
            workers.extend(pipeline.stages().map(|(_, facts)| facts.pid()));
        }
        let mut target = Self {
            client: end(near, far)?,
            server: end(far, near)?,
            keys: (payload_key(&generation.chain), 0),
            workers,
            chain: generation.chain.clone(),
            source: Arc::clone(&generation.source),
            plan: generation.plan.clone(),
        };
        let forward = target.five_tuple();
        if !target.chain.matches.matches(&forward) {
            return Err(ApiError::failed(format!(
                "{}: chain `{name}` takes no UDP packets between its end hosts, so the probe would bypass the chain: use \
                 `myelin exec client -- PROGRAM` instead",
                target.chain.places.matches
            )));
        }
        let reply = FiveTuple {
            source: forward.destination,
            destination: forward.source,
            source_port: forward.destination_port,
            destination_port: forward.source_port,
            ..forward
        };
        target.keys.1 = target
            .chain
            .reverse
            .as_ref()
            .and_then(|reverse| node.chains.get(reverse))
            .map(|reverse| reverse.generation())
            .filter(|reverse| reverse.chain.matches.matches(&reply))
            .map_or(0, |reverse| payload_key(&reverse.chain));
        Ok(target)
    }

    /// The five-tuple of the probe's packets towards the server.
    pub(crate) fn five_tuple(&self) -> FiveTuple {
        FiveTuple {
            source: self.client.1,
            destination: self.server.1,
            protocol: UDP,
            // A fixed port other than the server's, so the match of a reverse chain can be checked.
            source_port: Some(self.chain.matches.source_port.unwrap_or(DEFAULT_PORT + 1)),
            destination_port: Some(self.chain.matches.destination_port.unwrap_or(DEFAULT_PORT)),
        }
    }

    pub(crate) fn bind_sockets(&self) -> Result<Sockets, ApiError> {
        let tuple = self.five_tuple();
        let open = |name: &str| Netns::open(name).map_err(ApiError::failed);
        let (client, server) = (open(&self.client.0)?, open(&self.server.0)?);
        let port = |port: Option<u16>| port.unwrap_or_default();
        Sockets::bind(
            (
                Some(&client),
                SocketAddr::new(tuple.source, port(tuple.source_port)),
            ),
            (
                Some(&server),
                SocketAddr::new(tuple.destination, port(tuple.destination_port)),
            ),
        )
        .map_err(ApiError::failed)
    }

    /// The destination of the probe's packets.
    pub(crate) fn destination(&self) -> SocketAddr {
        let tuple = self.five_tuple();
        SocketAddr::new(
            tuple.destination,
            tuple.destination_port.unwrap_or_default(),
        )
    }

    fn probe_config(
        &self,
        options: &ProbeOptions,
        (mode, payload): (Mode, u16),
        cores: Option<Cores>,
    ) -> Config {
        let sla = &self.chain.sla;
        Config {
            mode,
            payload_bytes: payload.into(),
            mtu: MTU as usize,
            interval: Duration::from_micros(options.interval_us),
            count: options.count,
            repeats: options.repeats,
            deadline: deadline(options),
            forward_key: self.keys.0,
            reply_key: self.keys.1,
            cores,
            rtt_bound: sla.round_trip_ns.map(Duration::from_nanos),
            forward_bound: sla.latency_ns.map(Duration::from_nanos),
            ..Config::new(self.destination())
        }
    }

    fn processes(&self) -> Vec<(&str, u32)> {
        self.workers.iter().map(|pid| ("worker", *pid)).collect()
    }
}

/// Longest time of one combination of mode and payload.
pub(crate) fn deadline(options: &ProbeOptions) -> Duration {
    let packets = options.count.saturating_mul(options.repeats);
    Duration::from_micros(options.interval_us)
        .saturating_mul(packets)
        .saturating_mul(2)
        .saturating_add(EXTRA_TIME)
}

/// The number of cores that this process may use.
fn available_cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// The client gets core 0. A separate server gets the next core without a preemptor, because the
/// real-time priority of the tasks there would starve it. Workers default to the last core, so on
/// two cores an inline probe shares no core with a worker.
fn choose_cores(mode: Mode, usable: usize, has_preemptor: impl Fn(u32) -> bool) -> Option<Cores> {
    let is_free = |core: &usize| !u32::try_from(*core).is_ok_and(&has_preemptor);
    let free = (1..usable).find(is_free);
    let server = match mode {
        Mode::Inline => 0,
        _ if usable == 1 => return None,
        Mode::Spin => free.unwrap_or(1),
        Mode::Blocking => free.unwrap_or(0),
    };
    Some(Cores { client: 0, server })
}

/// The XOR of all keys that the chain's functions apply to a payload byte.
fn payload_key(chain: &ServiceChain) -> u8 {
    let functions = chain.functions.iter();
    functions.fold(0, |key, function| {
        key ^ function.config.effect().payload_key
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_avoids_cores_with_preemptors() {
        let server = |mode, usable, turns: &[u32]| {
            choose_cores(mode, usable, |core| turns.contains(&core)).map(|cores| cores.server)
        };
        assert_eq!(server(Mode::Blocking, 4, &[]), Some(1));
        assert_eq!(server(Mode::Blocking, 4, &[1, 2]), Some(3));
        assert_eq!(server(Mode::Spin, 4, &[1]), Some(2));
        // No core is free: the client's core for a server that waits, another for one that polls.
        assert_eq!(server(Mode::Blocking, 2, &[1]), Some(0));
        assert_eq!(server(Mode::Spin, 2, &[1]), Some(1));
        assert_eq!(server(Mode::Inline, 4, &[0]), Some(0));
        assert_eq!(server(Mode::Spin, 1, &[]), None);
    }
}
