//! `peers`: compares one and two functions behind Open vSwitch's user-space datapath with Myelin's.

use std::time::{Duration, Instant};

use myelin_measure::Mode;
use myelin_metrics::Distribution;
use myelin_metrics::stats::Deployments;

use crate::agents::AgentProcess;
use crate::machine::MemoryMib;
use crate::ovs::Ports;
use crate::ovs::variant::{Layout, PeerVariant, build as build_switches};
use crate::round_trips::{PAYLOADS, TripSubjects};
use crate::sampling::{Sampling, Turns};
use crate::variant::{Variant, median_us, polling_core, run_time};
use crate::variants::{self, PathKind, VariantSpec};
use crate::{Claim, Error, Experiment, Findings, Row, Session, experiment};

const MODES: [Mode; 2] = [Mode::Inline, Mode::Blocking];
/// Number of functions, and whether replies pass them too.
const SHAPES: [(usize, bool); 3] = [(1, false), (2, false), (2, true)];
/// Largest round trip of two functions over the direct link's, by layout.
const DIRECT_BOUNDS: [(&str, f64); 2] = [("compact", 1.15), ("distributed", 1.7)];
const DIRECT: &str = "direct";
/// Payload of the packets whose CPU time is measured, bytes.
const CPU_PAYLOAD: usize = PAYLOADS[0];
/// Window of the CPU time without packets.
const IDLE_WINDOW: Duration = Duration::from_millis(50);
/// Packets before the memory is measured.
const MEMORY_PACKETS: u32 = 10_000;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "peers",
    about: "one and two functions behind Open vSwitch (system, afxdp and dpdk ports) and in Myelin: round trips, CPU time, memory",
    differs: "",
    run,
    plots: include_str!("../../plots/peers.yaml"),
};

fn run(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    let (available, skipped) = available_ports(session)?;
    findings.rows.extend(skipped);
    measure_round_trips(&available, session, findings)?;
    measure_processes(&available, session, findings)?;
    findings.set("probe_modes", "inline, blocking");
    findings.set("polling_core", polling_core()?);
    findings.set("directions", "functions forward the packets to the server; replies pass Myelin's front door; with the switch they use a separate cable; `both ways`: functions and switch forward the replies too");
    Ok(())
}

fn switch(ports: Ports) -> String {
    format!("OVS {}", ports.name())
}

/// The port types of the switch that forward packets here, and a row for each unavailable type.
fn available_ports(session: Session<'_>) -> Result<(Vec<Ports>, Vec<Row>), Error> {
    let (mut available, mut skipped) = (Vec::new(), Vec::new());
    for (done, ports) in Ports::ALL.into_iter().enumerate() {
        session.progress("checking Open vSwitch", done, Ports::ALL.len())?;
        match check_forwarding(ports, session) {
            Ok(()) => available.push(ports),
            Err(reason @ (Error::Peer { .. } | Error::Lost { .. })) => {
                skipped.push(Findings::skipped_row("variant", switch(ports), &reason));
            }
            Err(error) => return Err(error),
        }
    }
    Ok((available, skipped))
}

fn check_forwarding(ports: Ports, session: Session<'_>) -> Result<(), Error> {
    let layout = Layout {
        ports,
        functions: 1,
        both_ways: true,
    };
    for peer in build_switches(&[layout])? {
        peer.variant
            .round_trips_ns(Mode::Inline, CPU_PAYLOAD, 10, session)?;
    }
    Ok(())
}

/// Myelin's layouts, with one function.
fn ours() -> Result<Vec<VariantSpec>, Error> {
    experiment::parse_list("peers", include_str!("../../cases/peers.yaml"))
}

/// With both directions, two workers would poll on one core.
fn has_shape(layout: &VariantSpec, (_, both_ways): (usize, bool)) -> bool {
    layout.idle.is_none() || !both_ways
}

/// The direct link, then Myelin's layouts, then the switches.
fn build(
    available: &[Ports],
    shapes: &[(usize, bool)],
    session: Session<'_>,
) -> Result<Vec<PeerVariant>, Error> {
    let mut specs = vec![VariantSpec {
        name: DIRECT.to_owned(),
        path: PathKind::Direct,
        ..VariantSpec::default()
    }];
    for layout in ours()? {
        let own = shapes.iter().filter(|shape| has_shape(&layout, **shape));
        specs.extend(own.map(|shape| VariantSpec {
            name: name(&layout.name, *shape),
            both_ways: shape.1,
            ..layout.repeated(shape.0)
        }));
    }
    let with_pids = |variant: Variant| PeerVariant {
        pids: variant.processes().to_vec(),
        variant,
    };
    let (made, _) = variants::build(&specs, session)?;
    let mut made: Vec<_> = made.into_iter().map(with_pids).collect();
    let layouts = available.iter().flat_map(|ports| {
        shapes.iter().map(|(functions, both_ways)| Layout {
            ports: *ports,
            functions: *functions,
            both_ways: *both_ways,
        })
    });
    session.check()?;
    made.extend(build_switches(&layouts.collect::<Vec<_>>())?);
    Ok(made)
}

/// The name of a variant.
fn name(system: &str, (functions, both_ways): (usize, bool)) -> String {
    let ways = if both_ways { ", both ways" } else { "" };
    format!("{system}, {functions}{ways}")
}

/// "`ours` / `peer`, 2 functions".
fn pair(ours: &str, peer: &str, (functions, both_ways): (usize, bool)) -> String {
    let plural = if functions == 1 { "" } else { "s" };
    let ways = if both_ways { " both ways" } else { "" };
    format!("{ours} / {peer}, {functions} function{plural}{ways}")
}

fn measure_round_trips(
    available: &[Ports],
    session: Session<'_>,
    findings: &mut Findings,
) -> Result<(), Error> {
    let build = || {
        let made = build(available, &SHAPES, session)?;
        Ok((
            made.into_iter().map(|one| one.variant).collect(),
            Vec::new(),
        ))
    };
    let ours = ours()?;
    let claims = |samples: &Deployments, subjects: &TripSubjects| {
        let mut claims = Vec::new();
        for layout in &ours {
            let ours = layout.name.as_str();
            let ratios = |peer: &str, peer_name: &str, shape| {
                let names = [&name(ours, shape), peer_name];
                let ratios = subjects.ratios(samples, &pair(ours, peer, shape), names);
                ratios.into_iter()
            };
            for (_, bound) in DIRECT_BOUNDS.iter().filter(|(of, _)| *of == ours) {
                let ratios = ratios(DIRECT, DIRECT, SHAPES[1]);
                let inline = ratios.filter(|ratio| ratio.conditions.mode == Mode::Inline);
                claims.extend(inline.map(|ratio| ratio.at_most(*bound)));
            }
            let pairs = each_pair(available, &SHAPES);
            for (peer, shape) in pairs.filter(|(_, shape)| has_shape(layout, *shape)) {
                let ratios = ratios(&peer, &name(&peer, shape), shape);
                claims.extend(ratios.map(|ratio| ratio.at_most(1.0)));
            }
        }
        claims
    };
    let trips = session.round_trips(0.6, &MODES, findings, build, claims)?;
    let with_p99 = |row: Row, all: &Distribution| row.with("rtt_p99_us", all.quantile_us(0.99));
    findings.rows.extend(trips.rows(with_p99));
    Ok(())
}

/// Each switch with each shape.
fn each_pair(
    available: &[Ports],
    shapes: &[(usize, bool)],
) -> impl Iterator<Item = (String, (usize, bool))> {
    let of = |ports: &Ports| {
        let peer = switch(*ports);
        shapes.iter().map(move |shape| (peer.clone(), *shape))
    };
    available.iter().flat_map(of)
}

/// The subjects whose processes were measured. Slots: CPU time of each variant, idle cores of each
/// variant, resident and proportional memory of each system.
struct ProcessLabels {
    variants: Vec<String>,
    /// System and processes.
    memory: Vec<(String, &'static str)>,
}

impl ProcessLabels {
    fn variant(&self, name: &str) -> Option<usize> {
        self.variants.iter().position(|variant| variant == name)
    }

    fn memory_slot(&self, system: usize) -> usize {
        2 * (self.variants.len() + system)
    }
}

/// CPU time and memory of the packet-processing processes.
fn measure_processes(
    available: &[Ports],
    session: Session<'_>,
    findings: &mut Findings,
) -> Result<(), Error> {
    let shapes = [SHAPES[0], SHAPES[1]];
    let sampling = Sampling::of("CPU time and memory").share(0.4);
    let ours = ours()?;
    let deploy = |turns: &mut Turns<'_>| {
        let made = build(available, &shapes, session)?;
        turns.measure(made.len(), |index| {
            measure_cpu_us(&made[index].variant, &made[index].pids, session)
        })?;
        for one in &made {
            turns.record([measure_idle_cores(&one.variant, &one.pids)?]);
        }
        let mut memory = Vec::new();
        for system in available.iter().copied().map(switch) {
            let is = |one: &&PeerVariant| one.variant.name == name(&system, SHAPES[1]);
            let pids = made.iter().find(is).map_or(&[][..], |one| &one.pids);
            let used = MemoryMib::of(pids)?;
            memory.push((system, "ovs-vswitchd, ovsdb-server", used));
        }
        memory.extend(measure_own_memory(&ours, session)?);
        turns.record(memory.iter().flat_map(|(.., used)| used.figures()));
        Ok(ProcessLabels {
            variants: made.into_iter().map(|one| one.variant.name).collect(),
            memory: memory
                .into_iter()
                .map(|(system, what, _)| (system, what))
                .collect(),
        })
    };
    let claims = |samples: &Deployments, labels: &ProcessLabels| {
        let mut claims = Vec::new();
        for VariantSpec { name: ours, .. } in &ours {
            for (peer, shape) in each_pair(available, &shapes) {
                let both = [ours, &peer].map(|system| labels.variant(&name(system, shape)));
                if let [Some(one), Some(other)] = both {
                    let pair = pair(ours, &peer, shape);
                    let id = format!("CPU time of a packet and its reply, {pair}");
                    claims.push(Claim::at_most(id, samples.ratio(one, other), 1.0));
                }
            }
        }
        claims.extend(memory_claims(samples, labels));
        claims
    };
    let (samples, labels) = session.sample(sampling, findings, deploy, claims)?;
    for (index, variant) in labels.variants.iter().enumerate() {
        let idle = samples.median(labels.variants.len() + index);
        findings.add_row(
            Row::of("CPU time")
                .with("variant", variant.as_str())
                .with("payload_bytes", CPU_PAYLOAD)
                .with_estimate("cpu_a_round_trip", "_us", samples.median(index))
                .with("times_direct", samples.ratio_value(index, 0))
                .with("cores_without_packets", idle.map(|idle| idle.value)),
        );
    }
    for (index, (system, what)) in labels.memory.iter().enumerate() {
        let slot = labels.memory_slot(index);
        let value = |slot| samples.median(slot).map(|memory| memory.value);
        findings.add_row(
            Row::of("memory")
                .with("system", system.as_str())
                .with("functions", SHAPES[1].0)
                .with("processes", *what)
                .with("resident_mib", value(slot))
                .with("proportional_mib", value(slot + 1)),
        );
    }
    Ok(())
}

fn memory_claims(samples: &Deployments, labels: &ProcessLabels) -> Vec<Claim> {
    let mut claims = Vec::new();
    let is_peer = |system: &str| system.starts_with("OVS");
    for (one, (ours, _)) in labels.memory.iter().enumerate() {
        for (other, (peer, _)) in labels.memory.iter().enumerate() {
            if !is_peer(ours) && is_peer(peer) {
                let [one, other] = [one, other].map(|system| labels.memory_slot(system));
                let id = format!("memory, {}", pair(ours, peer, SHAPES[1]));
                claims.push(Claim::at_most(id, samples.ratio(one, other), 1.0));
            }
        }
    }
    claims
}

/// CPU time for a packet and its reply, including the hosts. The probe keeps one core busy from the
/// packet to its reply; the time of the processes is added.
fn measure_cpu_us(variant: &Variant, pids: &[u32], session: Session<'_>) -> Result<f64, Error> {
    let (spent, start) = (run_time(pids)?, Instant::now());
    let trips =
        variant.round_trips_ns(Mode::Inline, CPU_PAYLOAD, session.effort.packets(), session)?;
    let elapsed = start.elapsed();
    let cores = run_time(pids)?.saturating_sub(spent).as_secs_f64() / elapsed.as_secs_f64();
    Ok(median_us(trips) * (1.0 + cores))
}

/// CPU time of the processes without packets, in cores.
fn measure_idle_cores(variant: &Variant, pids: &[u32]) -> Result<f64, Error> {
    let (spent, start) = (run_time(pids)?, Instant::now());
    variant.while_running(|| std::thread::sleep(IDLE_WINDOW));
    let elapsed = start.elapsed();
    Ok(run_time(pids)?.saturating_sub(spent).as_secs_f64() / elapsed.as_secs_f64())
}

/// Memory of Myelin's processes with two functions, after packets.
fn measure_own_memory(
    ours: &[VariantSpec],
    session: Session<'_>,
) -> Result<Vec<(String, &'static str, MemoryMib)>, Error> {
    let agent = AgentProcess::start(session.program)?;
    let mut all = Vec::new();
    for layout in ours {
        session.check()?;
        let chain = agent.dir.chain_name(&layout.name);
        let two = VariantSpec {
            idle: None,
            ..layout.repeated(2)
        };
        let text = two.chain_text(&chain, "")?;
        let mut pids = agent.deploy_and_probe(&chain, text, MEMORY_PACKETS)?;
        let what = if pids.is_empty() {
            "agent"
        } else {
            "agent, worker"
        };
        pids.push(agent.client.info()?.pid);
        all.push((layout.name.clone(), what, MemoryMib::of(&pids)?));
        agent.client.down(&chain)?;
    }
    Ok(all)
}
