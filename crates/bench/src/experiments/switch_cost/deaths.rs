//! The death of a preemptor: the time until the kernel shares the core among its tasks again.

use std::time::{Duration, Instant};

use myelin_linux::{procfs, sched};
use myelin_metrics::stats::Deployments;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::agents::{AgentProcess, chain_text_for};
use crate::figures::Column::Interval;
use crate::figures::{Figure, Subjects};
use crate::installed::find_packaged;
use crate::sampling::{Sampling, Turns};
use crate::variant::{Pollers, polling_core};
use crate::{Claim, Error, Fault, Findings, Row, Session};

/// Longest time until the tasks are the kernel's, ms.
const RELEASED_BOUND_MS: f64 = 100.0;
/// The time of tasks that nobody gives back.
const NEVER: Duration = Duration::from_secs(1);
/// Longest wait for a new preemptor.
const PATIENCE: Duration = Duration::from_secs(60);
/// A black box: polls an interface and forwards.
const POLLER: &str = "
from socket import *
a = socket(AF_PACKET, SOCK_RAW, htons(3)); a.bind(('ingress', 0)); a.setblocking(False)
b = socket(AF_PACKET, SOCK_RAW); b.bind(('egress', 0))
while True:
    try:
        frame, address = a.recvfrom(65536)
    except BlockingIOError:
        continue
    if address[2] != PACKET_OUTGOING:
        b.send(frame)";

const FIGURES: &[Figure<f64>] = &[Figure::new("released", Interval("_ms"), |ms| *ms)];

/// Two black boxes that take turns on one core.
struct Boxes {
    // Resumed before the agent is asked to end.
    agent_pid: u32,
    boxes: Vec<u32>,
    _agent: AgentProcess,
}

pub(super) fn measure(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    if let Err(reason) = find_packaged("python3", "python3") {
        findings.add_row(Findings::skipped_row("victim", "preemptor", &reason));
        return Ok(());
    }
    let has_guardian = !session.has_fault(Fault::DeafGuardian);
    let subjects: Subjects<f64, 1> = Subjects::new(FIGURES, [1]);
    let deploy = |turns: &mut Turns<'_>| {
        let boxes = Boxes::start(session)?;
        subjects.measure(turns, |_| boxes.released_ms(has_guardian))
    };
    let claims = |samples: &Deployments, (): &()| {
        let released = subjects.at(samples, [0]).median("released");
        let id = "preemptor killed, tasks are the kernel's again, ms";
        vec![Claim::at_most(id, released, RELEASED_BOUND_MS)]
    };
    let sampling = Sampling::of("deaths of the preemptor").share(0.5);
    let (samples, ()) = session.sample(sampling, findings, deploy, claims)?;
    let rows = subjects.rows(&samples, |_| Row::of("deaths").with("victim", "preemptor"));
    findings.rows.extend(rows);
    Ok(())
}

impl Boxes {
    fn start(session: Session<'_>) -> Result<Self, Error> {
        let agent = AgentProcess::start(session.program)?;
        let name = agent.dir.chain_name("boxes");
        let config = json!({
            "cores": [polling_core()?],
            "sharing": "unis",
            "startup": "20s",
            "command": ["python3", "-c", POLLER],
        });
        let function = format!("kind: external, config: {config}");
        let packets = "protocol: udp, destination: 10.0.0.2/32, destinationPort: 9000";
        let functions = [(function.as_str(), "user"); 2];
        agent.up(chain_text_for(packets, &name, &functions, ""))?;
        let chains = agent.client.list()?;
        let hops = chains.iter().flat_map(|chain| &chain.hops);
        let boxes = hops.filter_map(|hop| hop.black_box.as_ref()?.pid);
        let lock = agent.dir.run_dir.path().join("agent.lock");
        let read = std::fs::read_to_string(&lock);
        let read = read.map_err(|cause| Error::system("read the agent's process number", cause))?;
        let agent_pid = read.trim().parse();
        Ok(Self {
            agent_pid: agent_pid.map_err(|_| internal("the agent's lock has no process number"))?,
            boxes: boxes.collect(),
            _agent: agent,
        })
    }

    /// Kills the preemptor. Returns the time until the kernel shares the core, ms.
    fn released_ms(&self, has_guardian: bool) -> Result<f64, Error> {
        let (preemptor, guardian) = self.wait_for_turns()?;
        // The agent would start another preemptor.
        let mut stopped = vec![self.agent_pid];
        if !has_guardian {
            stopped.push(guardian);
        }
        let _stopped = Pollers::stop(stopped);
        let killed = kill(Pid::from_raw(preemptor.cast_signed()), Signal::SIGKILL);
        killed.map_err(|errno| Error::system("kill the preemptor", errno.into()))?;
        let start = Instant::now();
        while start.elapsed() < NEVER && !self.have_class(|class| class == sched::Policy::Other)? {
            std::hint::spin_loop();
        }
        Ok(start.elapsed().as_secs_f64() * 1e3)
    }

    fn have_class(&self, test: impl Fn(sched::Policy) -> bool) -> Result<bool, Error> {
        for pid in &self.boxes {
            if !test(sched::get(*pid)?) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Waits until a preemptor gives turns. Returns it and its guardian.
    fn wait_for_turns(&self) -> Result<(u32, u32), Error> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if let Some(preemptor) = find_child(self.agent_pid, "--name")?
                && let Some(guardian) = find_child(preemptor, "--guardian")?
                && self.have_class(|class| class != sched::Policy::Other)?
            {
                return Ok((preemptor, guardian));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Err(internal(
            "no preemptor gives the black boxes turns; are real-time priorities refused?",
        ))
    }
}

/// The process `preemptor` with this first option that `parent` has started.
fn find_child(parent: u32, option: &str) -> Result<Option<u32>, Error> {
    let is_wanted =
        |arguments: &[String]| arguments.get(1..3) == Some(&["preemptor".into(), option.into()]);
    let mut found = procfs::find_processes(is_wanted)?.into_iter();
    let is_child = |pid: &u32| procfs::Stat::read(*pid).is_ok_and(|stat| stat.parent == parent);
    Ok(found.find(is_child))
}

fn internal(text: &str) -> Error {
    Error::Internal(text.to_owned())
}
