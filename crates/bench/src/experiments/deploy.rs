//! `deploy`: time of planning, deploying and removing, and memory in use.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use myelin_kernel::{Capacity, Hook, Plane, test_run};
use myelin_measure::function_config;
use myelin_metrics::stats::Deployments;
use myelin_planner::Machine;

use crate::agents::{self, AgentProcess};
use crate::machine::MemoryMib;
use crate::sampling::{Sampling, Turns, quantile};
use crate::{Claim, Error, Experiment, Fault, Findings, Row, Session};

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

/// Steps of a deployment in slot order, with their descriptions.
const STEPS: [(&str, &str); 6] = [
    ("plan", "`myelin plan`, the whole process"),
    ("plan", "parsing and planning alone"),
    ("up", "five functions, kernel, agent running"),
    ("down", "five functions, kernel"),
    ("up", "five functions, mixed, agent running"),
    ("down", "five functions, mixed"),
];
const PLAN: usize = 0;
/// Processes whose memory has slots after those of the steps.
const PROCESSES: [&str; 3] = ["agent", "worker", "together"];
const TOGETHER: usize = STEPS.len() + 2 * 2;
/// Claims: id, slot, bound.
const CLAIMS: [(&str, usize, f64); 4] = [
    ("plan, ms", PLAN, PLAN_BOUND_MS),
    ("up, five functions, kernel, ms", 2, UP_BOUND_MS),
    ("up, five functions, mixed, ms", 4, UP_BOUND_MS),
    (
        "resident memory of agent and worker, MiB",
        TOGETHER,
        MEMORY_BOUND_MIB,
    ),
];
/// Parts that a hook loads, in the order of their slots.
const LOADED: [&str; 5] = [
    "the shared maps of an agent",
    "front door",
    "five forward",
    "five xor",
    "five firewall",
];

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "deploy",
    about: "time of plan, up and down of five functions, time to load them, and resident memory of agent and worker",
    differs: "",
    run,
    plots: include_str!("../../plots/deploy.yaml"),
};

fn run(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    let sampling = Sampling::of("plan, up, down, load").rounds(5);
    let deploy = |turns: &mut Turns<'_>| {
        measure_plan(turns, session)?;
        let agent = AgentProcess::start(session.program)?;
        measure_up_and_down(turns, &agent)?;
        turns.record(measure_memory(&agent)?);
        drop(agent);
        Hook::ALL
            .into_iter()
            .try_for_each(|hook| measure_loading(turns, hook))
    };
    let claims = |samples: &Deployments, (): &()| {
        CLAIMS
            .map(|(id, slot, bound)| Claim::at_most(id, samples.median(slot), bound))
            .into()
    };
    let (samples, ()) = session.sample(sampling, findings, deploy, claims)?;
    for (slot, (step, what)) in STEPS.into_iter().enumerate() {
        findings.add_row(times_row(&samples, slot, step, what));
    }
    for (process, slot) in PROCESSES.into_iter().zip((STEPS.len()..).step_by(2)) {
        let value = |slot| samples.median(slot).map(|memory| memory.value);
        findings.add_row(
            Row::of("memory")
                .with("process", process)
                .with("resident_mib", value(slot))
                .with("proportional_mib", value(slot + 1)),
        );
    }
    let mut slot = STEPS.len() + 2 * PROCESSES.len();
    for hook in Hook::ALL {
        for what in LOADED {
            let what = format!("{what} at {hook}");
            findings.add_row(times_row(&samples, slot, "load", &what));
            slot += 1;
        }
    }
    Ok(())
}

fn times_row(samples: &Deployments, slot: usize, step: &str, what: &str) -> Row {
    let mut sorted: Vec<f64> = samples.figures(slot).collect();
    sorted.sort_unstable_by(f64::total_cmp);
    Row::of("times")
        .with("step", step)
        .with("what", what)
        .with_estimate("median", "_ms", samples.median(slot))
        .with("p95_ms", quantile(&sorted, 0.95))
}

fn measure_plan(turns: &mut Turns<'_>, session: Session<'_>) -> Result<(), Error> {
    let text = agents::chain_text("five", &MIXED, "");
    turns.measure(2, |subject| match subject {
        PLAN => step_ms(|| {
            if session.has_fault(Fault::SlowProgram) {
                std::thread::sleep(SLOW_PROGRAM);
            }
            plan_command(session.program, &text)
        }),
        _ => step_ms(|| plan_library(text.clone())),
    })
}

/// Delay of `plan` with [`Fault::SlowProgram`].
const SLOW_PROGRAM: Duration = Duration::from_millis(50);

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
        let machine = Machine::with_end_hosts(myelin_linux::affinity::highest_core() + 1);
        myelin_planner::plan(&chain, &costs, &machine)
            .map_err(|error| Error::Agent(myelin_api::ApiError::usage(error)))?;
    }
    Ok(())
}

fn measure_up_and_down(turns: &mut Turns<'_>, agent: &AgentProcess) -> Result<(), Error> {
    let chains = [("kernel", &KERNEL), ("mixed", &MIXED)].map(|(name, functions)| {
        let chain = agent.dir.chain_name(name);
        let text = agents::chain_text(&chain, functions, "");
        (chain, text)
    });
    turns.measure_figures(chains.len(), &["up", "down"], |subject| {
        let (chain, text) = &chains[subject];
        let up = step_ms(|| agent.up(text.clone()))?;
        let down = step_ms(|| Ok(agent.client.down(chain)?))?;
        Ok(vec![up, down])
    })
}

/// Memory of the agent and its worker after packets: both figures of each of [`PROCESSES`].
fn measure_memory(agent: &AgentProcess) -> Result<Vec<f64>, Error> {
    let chain = agent.dir.chain_name("memory");
    let workers = agent.deploy_and_probe(&chain, agents::chain_text(&chain, &MIXED, ""), 20_000)?;
    let own = [agent.client.info()?.pid];
    let together = [&own[..], &workers].concat();
    let mut figures = Vec::new();
    for pids in [&own[..], &workers, &together] {
        figures.extend(MemoryMib::of(pids)?.figures());
    }
    agent.client.down(&chain)?;
    Ok(figures)
}

/// Times to load [`LOADED`] into the kernel.
fn measure_loading(turns: &mut Turns<'_>, hook: Hook) -> Result<(), Error> {
    let firewall =
        "kind: firewall, config: { default: deny, fragments: drop, rules: [ { action: allow } ] }";
    let five =
        |function| Ok::<_, Error>(vec![function_config::parse(function, &BTreeMap::new())?; 5]);
    let chains = [five(FORWARD)?, five(XOR)?, five(firewall)?];
    turns.measure_figures(1, &LOADED, |_| {
        let (plane, plane_ms) = time_step(|| Ok(Plane::create(None, Capacity::default())?))?;
        let port = plane.add_port(test_run::port())?;
        let mut figures = vec![plane_ms, step_ms(|| Ok(port.program(hook)?))?];
        for functions in &chains {
            let chain = test_run::chain(hook, 1, functions);
            figures.push(step_ms(|| Ok(plane.load_chain(&chain)?))?);
        }
        Ok(figures)
    })
}

/// The time of a step, ms.
fn step_ms<T>(step: impl FnOnce() -> Result<T, Error>) -> Result<f64, Error> {
    Ok(time_step(step)?.1)
}

/// Runs a step. Returns its result and its time, ms.
fn time_step<T>(step: impl FnOnce() -> Result<T, Error>) -> Result<(T, f64), Error> {
    let start = Instant::now();
    let outcome = step()?;
    Ok((outcome, start.elapsed().as_secs_f64() * 1e3))
}

#[cfg(test)]
mod tests {
    use myelin_metrics::envelope::Verdict;

    use super::*;

    #[test]
    fn the_chains_can_be_planned() {
        for functions in [KERNEL, MIXED] {
            plan_library(agents::chain_text("five", &functions, "")).unwrap();
        }
    }

    #[test]
    fn a_slow_plan_turns_its_claim_and_no_other() {
        // Made-up medians of the slots; `plan` takes 5 to 6 ms, or 50 ms more with the fault.
        for (delay, deployments, expected) in [
            (Duration::ZERO, 8, Verdict::Holds),
            (Duration::ZERO, 7, Verdict::Undecided),
            (SLOW_PROGRAM, 8, Verdict::False),
        ] {
            let mut samples = Deployments::default();
            for number in 0..deployments {
                let mut slots = vec![vec![10.0]; TOGETHER + 1];
                slots[PLAN] = vec![5.0 + f64::from(number) / 8.0 + delay.as_secs_f64() * 1e3];
                samples.push(slots);
            }
            for (id, slot, bound) in CLAIMS {
                let claim = Claim::at_most(id, samples.median(slot), bound);
                let expected = match (slot, expected) {
                    (PLAN, _) | (_, Verdict::Undecided) => expected,
                    _ => Verdict::Holds,
                };
                assert_eq!(claim.verdict(), Some(expected), "{claim:?}");
            }
        }
    }
}
