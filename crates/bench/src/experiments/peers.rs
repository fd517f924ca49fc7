//! `peers`: compares one and two functions behind Open vSwitch's user-space datapath with Myelin's.

use std::time::{Duration, Instant};

use myelin_measure::Mode;
use myelin_metrics::stats::Deployments;

use crate::agents::{self, AgentProcess, EmbeddedAgent};
use crate::machine::MemoryMib;
use crate::ovs::Ports;
use crate::ovs::variant::{Layout, build as build_switches};
use crate::round_trips::{PAYLOADS, TripSubjects};
use crate::sampling::{Sampling, Turns};
use crate::variant::{Variant, median_us, polling_core, run_time};
use crate::{Claim, Error, Experiment, Findings, Row, Session, variants};

const MODES: [Mode; 2] = [Mode::Inline, Mode::Blocking];
/// Number of functions, and whether replies pass them too.
const SHAPES: [(usize, bool); 3] = [(1, false), (2, false), (2, true)];
/// Myelin's layouts: name, description, space, lines of `spec`, and largest round trip of two
/// functions over the direct link's.
const OURS: [(&str, &str, &str, &str, Option<f64>); 3] = [
    (
        "compact",
        "kernel functions in one pass at tcx",
        "kernel",
        "  mapping: compact\n  hook: tcx\n",
        Some(1.15),
    ),
    (
        "distributed",
        "kernel functions, each in a separate namespace",
        "kernel",
        "  mapping: distributed\n",
        Some(1.7),
    ),
    (
        "user",
        "user-space functions in one polling worker",
        "user",
        "  mapping: compact\n",
        None,
    ),
];
const DIRECT: &str = "direct";
const FORWARD: &str = "kind: forward";
/// Payload of the packets whose CPU time is measured, bytes.
const CPU_PAYLOAD: usize = PAYLOADS[0];
/// Window of the CPU time without packets.
const IDLE_WINDOW: Duration = Duration::from_millis(50);
/// Packets before the memory is measured.
const MEMORY_PACKETS: u32 = 10_000;

/// System and shape of a variant.
struct Subject {
    /// `direct`, a layout of Myelin, or a kind of switch.
    system: String,
    shape: (usize, bool),
    /// Its packet-processing processes, and the processes that they need.
    pids: Vec<u32>,
}

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

/// The direct link, then Myelin's layouts, then the switches.
fn build(
    available: &[Ports],
    shapes: &[(usize, bool)],
    session: Session<'_>,
) -> Result<(Vec<Variant>, Vec<Subject>), Error> {
    session.check()?;
    let agent = EmbeddedAgent::open(session.program)?;
    let mut made = vec![variants::direct()?];
    let mut subjects = vec![Subject {
        system: DIRECT.to_owned(),
        shape: (0, false),
        pids: Vec::new(),
    }];
    for (system, about, space, spec, _) in OURS {
        for (functions, both_ways) in shapes.iter().copied() {
            session.check()?;
            // With both directions, two workers would poll on one core.
            if space == "user" && both_ways {
                continue;
            }
            let name = format!("c{}", made.len());
            let list = vec![(FORWARD, space); functions];
            let variant = match (space, both_ways) {
                ("user", _) => {
                    let spec = format!("{spec}{}", variants::spinning_worker()?);
                    variants::deploy_chain(&agent, &name, about, &list, &spec)?
                }
                (_, true) => variants::deploy_chain_both_ways(&agent, &name, about, &list, spec)?,
                (_, false) => variants::deploy_chain(&agent, &name, about, &list, spec)?,
            };
            subjects.push(Subject {
                system: system.to_owned(),
                shape: (functions, both_ways),
                pids: variant.processes().to_vec(),
            });
            made.push(variant);
        }
    }
    let layouts: Vec<_> = available
        .iter()
        .flat_map(|ports| {
            shapes.iter().map(|(functions, both_ways)| Layout {
                ports: *ports,
                functions: *functions,
                both_ways: *both_ways,
            })
        })
        .collect();
    session.check()?;
    for (layout, peer) in layouts.iter().zip(build_switches(&layouts)?) {
        subjects.push(Subject {
            system: switch(layout.ports),
            shape: (layout.functions, layout.both_ways),
            pids: peer.pids,
        });
        made.push(peer.variant);
    }
    let made = made
        .into_iter()
        .zip(&subjects)
        .map(|(variant, subject)| variant.with_name(&name(&subject.system, subject.shape)))
        .collect();
    Ok((made, subjects))
}

/// The name of a variant.
fn name(system: &str, (functions, both_ways): (usize, bool)) -> String {
    let ways = if both_ways { ", both ways" } else { "" };
    match functions {
        0 => system.to_owned(),
        count => format!("{system}, {count}{ways}"),
    }
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
    let build = || Ok((build(available, &SHAPES, session)?.0, Vec::new()));
    let claims = |samples: &Deployments, subjects: &TripSubjects| {
        let mut claims = Vec::new();
        for (ours, .., bound) in OURS {
            let direct = bound.map(|bound| (DIRECT.to_owned(), bound));
            let peers = available.iter().map(|ports| (switch(*ports), 1.0));
            for ((peer, bound), shape) in each_pair(direct.into_iter().chain(peers), &SHAPES) {
                let is_direct = peer == DIRECT;
                if is_direct && shape != SHAPES[1] {
                    continue;
                }
                let peer_shape = if is_direct { (0, false) } else { shape };
                let names = (name(ours, shape), name(&peer, peer_shape));
                for (payload, mode, ratio) in subjects.ratios(samples, &names.0, &names.1) {
                    if !is_direct || mode.mode == Mode::Inline {
                        let id = format!("{}, {payload} B, {mode}", pair(ours, &peer, shape));
                        claims.push(Claim::at_most(id, ratio, bound));
                    }
                }
            }
        }
        claims
    };
    let trips = session.round_trips(0.6, &MODES, findings, build, claims)?;
    for subject in trips.subjects.all() {
        let all = &trips.distributions[subject.slot];
        let times_direct = trips.samples.ratio_value(subject.slot, subject.first);
        findings.add_row(
            Row::of("round trips")
                .with("variant", subject.variant.name.as_str())
                .with("payload_bytes", subject.payload)
                .with("mode", subject.conditions.to_string())
                .with_estimate("rtt_p50", "_us", trips.samples.median(subject.slot))
                .with("rtt_p99_us", all.quantile_us(0.99))
                .with("times_direct", times_direct)
                .with("what", subject.variant.about.as_str()),
        );
    }
    Ok(())
}

/// Each item with each shape.
fn each_pair<T: Clone>(
    items: impl Iterator<Item = T>,
    shapes: &[(usize, bool)],
) -> impl Iterator<Item = (T, (usize, bool))> {
    items.flat_map(move |item| shapes.iter().map(move |shape| (item.clone(), *shape)))
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
    let deploy = |turns: &mut Turns<'_>| {
        let (variants, subjects) = build(available, &shapes, session)?;
        turns.measure(variants.len(), |index| {
            measure_cpu_us(&variants[index], &subjects[index].pids, session)
        })?;
        for (variant, subject) in variants.iter().zip(&subjects) {
            turns.record([measure_idle_cores(variant, &subject.pids)?]);
        }
        let mut memory = Vec::new();
        for subject in &subjects {
            if subject.system.starts_with("OVS") && subject.shape == shapes[1] {
                let used = MemoryMib::of(&subject.pids)?;
                memory.push((subject.system.clone(), "ovs-vswitchd, ovsdb-server", used));
            }
        }
        memory.extend(measure_own_memory(session)?);
        turns.record(memory.iter().flat_map(|(.., used)| used.figures()));
        Ok(ProcessLabels {
            variants: variants.iter().map(|one| one.name.clone()).collect(),
            memory: memory
                .into_iter()
                .map(|(system, what, _)| (system, what))
                .collect(),
        })
    };
    let claims = |samples: &Deployments, labels: &ProcessLabels| {
        let mut claims = Vec::new();
        for (ours, ..) in OURS {
            let peers = available.iter().map(|ports| switch(*ports));
            for (peer, shape) in each_pair(peers, &shapes) {
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
    session: Session<'_>,
) -> Result<Vec<(String, &'static str, MemoryMib)>, Error> {
    let agent = AgentProcess::start(session.program)?;
    let mut all = Vec::new();
    for (ours, _, space, spec, _) in OURS {
        session.check()?;
        let chain = agent.dir.chain_name(ours);
        let text = agents::chain_text(&chain, &[(FORWARD, space); 2], spec);
        let mut pids = agent.deploy_and_probe(&chain, text, MEMORY_PACKETS)?;
        let what = if pids.is_empty() {
            "agent"
        } else {
            "agent, worker"
        };
        pids.push(agent.client.info()?.pid);
        all.push((ours.to_owned(), what, MemoryMib::of(&pids)?));
        agent.client.down(&chain)?;
    }
    Ok(all)
}
