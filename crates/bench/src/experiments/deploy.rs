//! `deploy`: time of planning, deploying and removing, and memory in use.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use myelin_kernel::{Capacity, Hook, Plane, test_run};
use myelin_measure::function_config;
use myelin_metrics::stats::{CONFIDENCE, Estimate, median_ci};
use myelin_planner::Machine;

use crate::agents::{self, AgentProcess};
use crate::machine::MemoryMib;
use crate::rounds::quantile;
use crate::{Claim, Error, Findings, Row, Session};

const PLAN_BOUND_MS: f64 = 20.0;
pub(crate) const UP_BOUND_MS: f64 = 100.0;
pub(crate) const MEMORY_BOUND_MIB: f64 = 64.0;

const FIREWALL: &str =
    "kind: firewall, config: { rules: [ { action: deny, source: 192.0.2.0/24 } ] }";
const XOR: &str = "kind: xor, config: { key: 90 }";
const FORWARD: &str = "kind: forward";
/// Five functions in the kernel.
const KERNEL: [(&str, &str); 5] = [
    (FIREWALL, "kernel"),
    (XOR, "kernel"),
    (FORWARD, "kernel"),
    (XOR, "kernel"),
    (FORWARD, "kernel"),
];
/// Five functions in both spaces: they need a worker and a return into the kernel.
const MIXED: [(&str, &str); 5] = [
    (FIREWALL, "kernel"),
    (FORWARD, "kernel"),
    (XOR, "user"),
    (FORWARD, "user"),
    (FORWARD, "kernel"),
];

pub(super) fn run(session: Session<'_>) -> Result<Findings, Error> {
    let repeats = session.effort.rounds(30, 100);
    let mut findings = Findings::default().with("repeats", repeats.to_string());
    measure_plan(repeats, session, &mut findings)?;
    let agent = AgentProcess::start(session.program)?;
    for (name, functions) in [("kernel", &KERNEL), ("mixed", &MIXED)] {
        measure_up_and_down(&agent, name, functions, repeats, session, &mut findings)?;
    }
    measure_memory(&agent, session, &mut findings)?;
    drop(agent);
    measure_loading(repeats, session, &mut findings)?;
    Ok(findings)
}

fn measure_plan(
    repeats: usize,
    session: Session<'_>,
    findings: &mut Findings,
) -> Result<(), Error> {
    let text = agents::chain_text("five", &MIXED, "");
    let (mut command, mut library) = (Vec::new(), Vec::new());
    for repeat in 0..repeats {
        session.progress("plan", repeat, repeats)?;
        command.push(time_step(|| plan_command(session.program, &text))?.1);
        library.push(time_step(|| plan_library(text.clone()))?.1);
    }
    findings.add_times("plan", "`myelin plan`, the whole process", &command);
    findings.add_times("plan", "parsing and planning alone", &library);
    findings.claim_median_at_most("plan, ms", median(&command), PLAN_BOUND_MS);
    Ok(())
}

/// Runs `myelin plan` for five functions.
fn plan_command(program: &Path, text: &str) -> Result<(), Error> {
    let failed = |cause| Error::system(format!("run {} plan", program.display()), cause);
    let mut child = Command::new(program)
        .args(["plan", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(text.as_bytes()).map_err(failed)?;
    }
    let output = child.wait_with_output().map_err(failed)?;
    if output.status.success() {
        return Ok(());
    }
    Err(Error::Command {
        command: format!("{} plan -", program.display()),
        status: output.status,
        messages: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    })
}

fn plan_library(text: String) -> Result<(), Error> {
    let costs = myelin_agent::load_costs()?;
    for chain in agents::chain_source(text).parse()? {
        let machine = Machine::with_end_hosts(myelin_linux::affinity::count_cores());
        myelin_planner::plan(&chain, &costs, &machine)
            .map_err(|error| Error::Agent(myelin_api::ApiError::usage(error)))?;
    }
    Ok(())
}

fn measure_up_and_down(
    agent: &AgentProcess,
    name: &str,
    functions: &[(&str, &str)],
    repeats: usize,
    session: Session<'_>,
    findings: &mut Findings,
) -> Result<(), Error> {
    let chain = agent.dir.chain_name(name);
    let text = agents::chain_text(&chain, functions, "");
    let (mut ups, mut downs) = (Vec::new(), Vec::new());
    for repeat in 0..repeats {
        session.progress(&format!("up and down, {name}"), repeat, repeats)?;
        ups.push(time_step(|| agent.up(text.clone()))?.1);
        downs.push(time_step(|| Ok(agent.client.down(&chain)?))?.1);
    }
    findings.add_times(
        "up",
        &format!("five functions, {name}, agent running"),
        &ups,
    );
    findings.add_times("down", &format!("five functions, {name}"), &downs);
    findings.claim_median_at_most(
        format!("up, five functions, {name}, ms"),
        median(&ups),
        UP_BOUND_MS,
    );
    Ok(())
}

/// Memory of an agent and its worker after packets.
fn measure_memory(
    agent: &AgentProcess,
    session: Session<'_>,
    findings: &mut Findings,
) -> Result<(), Error> {
    session.progress("memory", 0, 1)?;
    let chain = agent.dir.chain_name("memory");
    let workers = agent.deploy_and_probe(&chain, agents::chain_text(&chain, &MIXED, ""), 20_000)?;
    let own = [agent.client.info()?.pid];
    let together = [&own[..], &workers].concat();
    let mut resident = 0.0;
    for (name, pids) in [
        ("agent", &own[..]),
        ("worker", &workers),
        ("together", &together),
    ] {
        let memory = MemoryMib::of(pids)?;
        findings.add_row(memory.add_to(Row::of("memory").with("process", name)));
        resident = memory.resident;
    }
    let id = "resident memory of agent and worker, MiB";
    findings.add_claim(Claim::figure_at_most(id, resident, MEMORY_BOUND_MIB));
    agent.client.down(&chain)?;
    Ok(())
}

/// Time to load programs into the kernel.
fn measure_loading(
    repeats: usize,
    session: Session<'_>,
    findings: &mut Findings,
) -> Result<(), Error> {
    let firewall =
        "kind: firewall, config: { default: deny, fragments: drop, rules: [ { action: allow } ] }";
    let five =
        |function| Ok::<_, Error>(vec![function_config::parse(function, &BTreeMap::new())?; 5]);
    let chains = [
        ("five forward", five(FORWARD)?),
        ("five xor", five(XOR)?),
        ("five firewall", five(firewall)?),
    ];
    for hook in Hook::ALL {
        let (mut planes, mut doors) = (Vec::new(), Vec::new());
        let mut loads = vec![Vec::new(); chains.len()];
        for repeat in 0..repeats {
            session.progress(&format!("loading at {hook}"), repeat, repeats)?;
            let (plane, ms) = time_step(|| Ok(Plane::create(None, Capacity::default())?))?;
            planes.push(ms);
            let port = plane.add_port(test_run::port())?;
            doors.push(time_step(|| Ok(port.program(hook)?))?.1);
            for (times, (_, functions)) in loads.iter_mut().zip(&chains) {
                times.push(
                    time_step(|| Ok(plane.load_chain(&test_run::chain(hook, 1, functions))?))?.1,
                );
            }
        }
        findings.add_times("load", "the shared maps of an agent", &planes);
        findings.add_times("load", &format!("front door at {hook}"), &doors);
        for (times, (name, _)) in loads.iter().zip(&chains) {
            findings.add_times("load", &format!("{name} at {hook}"), times);
        }
    }
    Ok(())
}

impl Findings {
    fn add_times(&mut self, step: &str, what: &str, ms: &[f64]) {
        let mut sorted = ms.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        self.rows.push(
            Row::of("times")
                .with("step", step)
                .with("what", what)
                .with_estimate("median", "_ms", median(ms))
                .with("p95_ms", quantile(&sorted, 0.95)),
        );
    }
}

fn median(ms: &[f64]) -> Option<Estimate> {
    median_ci(ms, CONFIDENCE)
}

/// Runs a step. Returns its result and its time, ms.
fn time_step<T>(step: impl FnOnce() -> Result<T, Error>) -> Result<(T, f64), Error> {
    let start = Instant::now();
    let outcome = step()?;
    Ok((outcome, start.elapsed().as_secs_f64() * 1e3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chains_can_be_planned() {
        for functions in [KERNEL, MIXED] {
            plan_library(agents::chain_text("five", &functions, "")).unwrap();
        }
    }
}
