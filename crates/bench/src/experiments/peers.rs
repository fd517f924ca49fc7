//! `peers`: compares one and two functions behind Open vSwitch's user-space datapath with Myelin's.

use std::time::{Duration, Instant};

use myelin_measure::Mode;

use crate::agents::{self, AgentProcess, EmbeddedAgent};
use crate::machine::MemoryMib;
use crate::ovs::Ports;
use crate::ovs::variant::{Layout, build as build_switches};
use crate::variant::{Measured, PAYLOADS, Variant, measure, median_us, polling_core, run_time};
use crate::{Claim, Error, Findings, Row, Session, variants};

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
    functions: usize,
    both_ways: bool,
    /// Its packet-processing processes, and the processes that they need.
    pids: Vec<u32>,
}

pub(super) fn run(session: Session<'_>) -> Result<Findings, Error> {
    let (available, skipped) = available_ports(session)?;
    let deployments = session.effort.rounds(3, 12);
    let build = || build(&available, &SHAPES, session);
    let measured = measure(session, deployments, &MODES, build)?;
    let mut findings = Findings {
        rows: skipped,
        settings: vec![
            ("probe_modes", "inline, blocking".to_owned()),
            ("deployments", deployments.to_string()),
            ("polling_core", polling_core()?.to_string()),
            ("directions", "functions forward the packets to the server; replies pass Myelin's front door; with the switch they use a separate cable; `both ways`: functions and switch forward the replies too".to_owned()),
        ],
        ..Findings::default()
    };
    add_round_trips(&measured, &available, &mut findings)?;
    measure_processes(&available, session, &mut findings)?;
    Ok(findings)
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
    session.progress("making the variants", 0, 1)?;
    let agent = EmbeddedAgent::open(session.program)?;
    let mut made = vec![variants::direct()?];
    let mut subjects = vec![Subject {
        system: "direct".to_owned(),
        functions: 0,
        both_ways: false,
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
                functions,
                both_ways,
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
            functions: layout.functions,
            both_ways: layout.both_ways,
            pids: peer.pids,
        });
        made.push(peer.variant);
    }
    let made = made
        .into_iter()
        .zip(&subjects)
        .map(|(variant, subject)| variant.with_name(&subject.name()))
        .collect();
    Ok((made, subjects))
}

impl Subject {
    fn name(&self) -> String {
        let ways = if self.both_ways { ", both ways" } else { "" };
        match self.functions {
            0 => self.system.clone(),
            count => format!("{}, {count}{ways}", self.system),
        }
    }

    fn is(&self, system: &str, functions: usize, both_ways: bool) -> bool {
        self.system == system && (self.functions, self.both_ways) == (functions, both_ways)
    }
}

fn find(subjects: &[Subject], system: &str, shape: (usize, bool)) -> Option<usize> {
    let wanted = |subject: &Subject| subject.is(system, shape.0, shape.1);
    subjects.iter().position(wanted)
}

/// "`ours` / `peer`, 2 functions".
fn pair(ours: &str, peer: &str, (functions, both_ways): (usize, bool)) -> String {
    let plural = if functions == 1 { "" } else { "s" };
    let ways = if both_ways { " both ways" } else { "" };
    format!("{ours} / {peer}, {functions} function{plural}{ways}")
}

fn add_round_trips(
    measured: &Measured<Vec<Subject>>,
    available: &[Ports],
    findings: &mut Findings,
) -> Result<(), Error> {
    let (rounds, subjects) = (&measured.rounds, &measured.rest);
    for (mode_index, mode) in MODES.into_iter().enumerate() {
        for (payload_index, payload) in PAYLOADS.into_iter().enumerate() {
            let at = |variant: usize| measured.subject(variant, payload_index, mode_index);
            for (index, variant) in measured.variants.iter().enumerate() {
                findings.add_row(
                    Row::of("round trips")
                        .with("variant", variant.name.as_str())
                        .with("payload_bytes", payload)
                        .with("mode", mode.to_string())
                        .with_estimate("rtt_p50", "_us", rounds.median(at(index)))
                        .with(
                            "rtt_p99_us",
                            measured.distributions[at(index)].quantile_us(0.99),
                        )
                        .with("times_direct", rounds.ratio_value(at(index), at(0))?)
                        .with("what", variant.about.as_str()),
                );
            }
            for (ours, .., bound) in OURS {
                for shape in SHAPES {
                    let Some(one) = find(subjects, ours, shape) else {
                        continue;
                    };
                    if let (Some(bound), (2, false), Mode::Inline) = (bound, shape, mode) {
                        let ratio = rounds.ratio(at(one), at(0))?;
                        let id = format!("{}, {payload} B, {mode}", pair(ours, "direct", shape));
                        findings.claim_at_most(id, ratio, bound);
                    }
                    for peer in available.iter().map(|ports| switch(*ports)) {
                        let Some(other) = find(subjects, &peer, shape) else {
                            continue;
                        };
                        let ratio = rounds.ratio(at(one), at(other))?;
                        let id = format!("{}, {payload} B, {mode}", pair(ours, &peer, shape));
                        findings.claim_at_most(id, ratio, 1.0);
                    }
                }
            }
        }
    }
    Ok(())
}

/// CPU time and memory of the packet-processing processes.
fn measure_processes(
    available: &[Ports],
    session: Session<'_>,
    findings: &mut Findings,
) -> Result<(), Error> {
    let shapes = [SHAPES[0], SHAPES[1]];
    let (variants, subjects) = build(available, &shapes, session)?;
    let rounds = session.measure("CPU time", variants.len(), (30, 60), |index| {
        measure_cpu_us(&variants[index], &subjects[index].pids, session)
    })?;
    for (index, (variant, subject)) in variants.iter().zip(&subjects).enumerate() {
        findings.add_row(
            Row::of("CPU time")
                .with("variant", variant.name.as_str())
                .with("payload_bytes", CPU_PAYLOAD)
                .with_estimate("cpu_a_round_trip", "_us", rounds.median(index))
                .with("times_direct", rounds.ratio_value(index, 0)?)
                .with(
                    "cores_without_packets",
                    measure_idle_cores(variant, &subject.pids)?,
                ),
        );
    }
    for shape in shapes {
        for (ours, ..) in OURS {
            for peer in available.iter().map(|ports| switch(*ports)) {
                let both = (find(&subjects, ours, shape), find(&subjects, &peer, shape));
                if let (Some(one), Some(other)) = both {
                    let id = format!(
                        "CPU time of a packet and its reply, {}",
                        pair(ours, &peer, shape)
                    );
                    let ratio = rounds.ratio(one, other)?;
                    findings.claim_at_most(id, ratio, 1.0);
                }
            }
        }
    }
    measure_memory(&subjects, session, findings)
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

/// Resident memory of the switches' and of Myelin's processes with two functions, after packets.
fn measure_memory(
    subjects: &[Subject],
    session: Session<'_>,
    findings: &mut Findings,
) -> Result<(), Error> {
    let mut peers = Vec::new();
    for subject in subjects {
        if subject.system.starts_with("OVS") && subject.functions == 2 {
            let what = "ovs-vswitchd, ovsdb-server";
            let resident = findings.add_memory(&subject.system, what, &subject.pids)?;
            peers.push((&subject.system, resident));
        }
    }
    let agent = AgentProcess::start(session.program)?;
    for (ours, _, space, spec, _) in OURS {
        session.progress("memory", 0, 1)?;
        let chain = agent.dir.chain_name(ours);
        let text = agents::chain_text(&chain, &[(FORWARD, space); 2], spec);
        let mut pids = agent.deploy_and_probe(&chain, text, MEMORY_PACKETS)?;
        let what = if pids.is_empty() {
            "agent"
        } else {
            "agent, worker"
        };
        pids.push(agent.client.info()?.pid);
        let resident = findings.add_memory(ours, what, &pids)?;
        agent.client.down(&chain)?;
        for (peer, other) in &peers {
            let id = format!("memory, {}", pair(ours, peer, SHAPES[1]));
            findings.add_claim(Claim::figure_at_most(id, resident / other, 1.0));
        }
    }
    Ok(())
}

impl Findings {
    /// Adds a row with the memory of these processes together. Returns the resident part, MiB.
    fn add_memory(&mut self, system: &str, what: &str, pids: &[u32]) -> Result<f64, Error> {
        let memory = MemoryMib::of(pids)?;
        let row = Row::of("memory")
            .with("system", system)
            .with("functions", SHAPES[1].0)
            .with("processes", what);
        self.add_row(memory.add_to(row));
        Ok(memory.resident)
    }
}
