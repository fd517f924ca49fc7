//! `myelin preemptor`: the process that gives black boxes their turns on a shared core.
//!
//! A black box polls and never yields. The preemptor reads how full the rings of all tasks are,
//! asks the policy ([`myelin_policy::sharing`]) who is next, and lets the kernel run that one:
//!
//! ```text
//!  agent ----starts----> preemptor ----starts----> guardian
//!                        | looks at rings           | waits for the end of the preemptor,
//!                        | asks the policy          | then gives the tasks back to the kernel
//!                        v tells the kernel         v
//!                        classes, weights, freezer of the tasks' threads
//! ```
//!
//! The preemptor outlives the agent, and ends when no task is left, or when its guardian ends. At
//! its end all tasks are in the kernel's fair class.
//!
//! A task is a control group, so threads that a program starts later take part, and a program that
//! the agent starts again. While such a program starts, the kernel shares the core ([`GRACE`]).

mod guardian;
mod handshake;
mod record;
mod rings;
pub(crate) mod setup;
mod tasks;

use std::io::{BufRead, Write};
use std::os::fd::AsFd;
use std::process::{Child, ExitCode};
use std::time::{Duration, Instant};

use myelin_dataplane::{CoreStats, TaskStats, monotonic_ns};
use myelin_kernel::CounterReader;
use myelin_linux::sched::Policy as Class;
use myelin_linux::{affinity, inherit, priorities};
use myelin_policy::Policy;
use myelin_policy::sharing::{
    Action, CoreView, Lane, LaneState, RingState, SharedCore, Sharing, next_switch_ns,
};
use myelin_spec::SharingMechanism;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::control::actuator;
use handshake::{READY, STOP, read_setup, report};
pub(crate) use handshake::{await_ready, stop, tell};
pub(crate) use record::Record;
use rings::Ring;
use setup::{CoreSetup, GuardianSetup, TaskMembers};
use tasks::{Found, State, Task};

/// Time between two looks at threads, guardian and agent.
const SCAN: Duration = Duration::from_millis(5);
/// While a program starts again, the kernel shares the core for this time.
const GRACE: Duration = Duration::from_secs(1);
/// Without packets, a preemptor looks at the rings this many times less often.
const IDLE_TICKS: u32 = 4;
/// A task without packets gets a turn of one look after this time, ns: programs also have other
/// work, such as signals, timers and requests.
const LONGEST_ABSENCE_NS: u64 = 20_000_000;
/// Cost of a packet that nobody has measured, before a turn is timed, ps.
const FIRST_COST_PS: u64 = 1_000_000;
/// Least packets of a turn that is timed.
const TIMED_PACKETS: i64 = 32;
/// A new cost counts an eighth.
const COST_PARTS: u64 = 8;

/// Runs a preemptor or a guardian until its end.
///
/// # Errors
/// The set-up is wrong, or the kernel refuses a step.
pub fn run(name: &str, is_guardian: bool) -> Result<ExitCode, String> {
    if is_guardian {
        guardian::run()?;
    } else {
        Preemptor::start(name, read_setup()?)?.run();
    }
    Ok(ExitCode::SUCCESS)
}

/// Time between two looks at the rings. Each costs a wake-up, on the shared core for
/// [`SharingMechanism::Preempt`]; a switch by weights or by the freezer takes long anyway.
pub(crate) fn tick(mechanism: SharingMechanism) -> Duration {
    Duration::from_micros(match mechanism {
        SharingMechanism::Auto | SharingMechanism::Flip => 100,
        SharingMechanism::Preempt => 250,
        SharingMechanism::Weights | SharingMechanism::Freezer => 1000,
    })
}

fn is_real_time(mechanism: SharingMechanism) -> bool {
    matches!(
        mechanism,
        SharingMechanism::Flip | SharingMechanism::Preempt
    )
}

/// The state of a preemptor.
struct Preemptor {
    mechanism: SharingMechanism,
    policy: Sharing,
    counters: CounterReader,
    tasks: Vec<Task>,
    rings: Vec<Ring>,
    /// The task of each ring.
    reader: Vec<usize>,
    guardian: Child,
    record: Record,
    /// Whether the agent may still write a line.
    has_agent: bool,
    running: Option<usize>,
    turn_start_ns: u64,
    /// The end of each task's last turn.
    last_run_ns: Vec<u64>,
    /// Packets that had been read from each ring when the turn began.
    turn_start_read: Vec<i64>,
    grace_until: Option<Instant>,
    // The state of the core at the last look, and the counters. Every look reuses the vectors.
    alive: Vec<bool>,
    seen: Vec<RingState>,
    lanes: Vec<LaneState>,
    stats: CoreStats,
    buffer: Vec<u8>,
}

impl Preemptor {
    fn start(name: &str, setup: CoreSetup) -> Result<Self, String> {
        let CoreSetup {
            core,
            policy,
            mechanisms,
            tasks: task_setups,
            counters,
            record,
        } = setup;
        let counters = rings::open_counters(counters)?;
        let record = inherit::take(record).map_err(|error| error.to_string())?;
        let lanes = task_setups.iter().enumerate();
        let lanes =
            lanes.flat_map(|(task, setup)| setup.lanes.iter().map(move |lane| (task, lane)));
        let lanes: Vec<_> = lanes.collect();
        let rings = lanes.iter().map(|(_, lane)| Ring::open(lane, &counters));
        let rings: Vec<Ring> = rings.collect::<Result<_, _>>()?;
        let lane = |(ingress, (task, lane)): (usize, &(usize, &setup::LaneSetup))| Lane {
            task: *task,
            ingress,
            egress: lane.egress,
        };
        let shared = SharedCore {
            tasks: task_setups.len(),
            lanes: lanes.iter().enumerate().map(lane).collect(),
            capacities: lanes.iter().map(|(_, lane)| lane.capacity).collect(),
        };
        let reader = lanes.iter().map(|(task, _)| *task).collect();
        let first_costs = lanes.iter().map(|(_, lane)| LaneState {
            cost_ps: lane.cost_ps.unwrap_or(FIRST_COST_PS),
        });
        let first_costs = first_costs.collect();
        let policy = policy.policy(shared);
        let policy = policy.ok_or("the description of the shared core is inconsistent")?;
        let members: Vec<TaskMembers> = task_setups.into_iter().map(|task| task.members).collect();
        let open = |members| Task::open(members, core).map_err(|error| error.to_string());
        let tasks = members.iter().map(open);
        let mut tasks: Vec<Task> = tasks.collect::<Result<_, _>>()?;
        // Before any task changes its class: this process may be killed at any time.
        let guardian_setup = GuardianSetup {
            preemptor: std::process::id(),
            core,
            mechanisms,
            tasks: members,
        };
        let mut guardian = guardian::start(name, &guardian_setup)?;
        let mechanism = choose(&guardian_setup.mechanisms, core, &mut tasks).inspect_err(|_| {
            let _ = guardian.kill();
            let _ = guardian.wait();
        })?;
        let count = tasks.len();
        let mut preemptor = Self {
            mechanism,
            policy,
            counters,
            alive: tasks.iter().map(Task::is_alive).collect(),
            tasks,
            seen: vec![RingState::EMPTY; rings.len()],
            lanes: first_costs,
            turn_start_read: vec![0; rings.len()],
            rings,
            reader,
            guardian,
            record: Record::from_fd(record),
            has_agent: true,
            running: None,
            turn_start_ns: 0,
            last_run_ns: vec![0; count],
            grace_until: None,
            stats: CoreStats {
                tasks: vec![TaskStats::default(); count],
                ..CoreStats::default()
            },
            buffer: Vec::new(),
        };
        let word = mechanism.as_str();
        preemptor.write_record();
        println!("{READY} {word}");
        let flushed = std::io::stdout().flush();
        flushed.map_err(|error| error.to_string())?;
        Ok(preemptor)
    }

    /// Gives turns until the end.
    fn run(mut self) {
        let tick = tick(self.mechanism);
        let mut scan_at = Instant::now();
        let mut ask_ns = 0;
        loop {
            let now = Instant::now();
            if now >= scan_at {
                scan_at = now + SCAN;
                if !self.look_around(now) {
                    break;
                }
            }
            let mut nap = tick;
            if self.grace_until.is_none() {
                let now_ns = monotonic_ns();
                if now_ns >= ask_ns {
                    match self.decide(now_ns) {
                        Ok(next_ns) => ask_ns = next_ns,
                        Err(error) => {
                            report(format!("the kernel refuses a turn: {error}"));
                            break;
                        }
                    }
                }
                if self.rings.iter().all(|ring| ring.packets() == 0) {
                    nap *= IDLE_TICKS;
                }
            }
            std::thread::sleep(nap.min(scan_at.saturating_duration_since(Instant::now())));
        }
        guardian::release_all(&mut self.tasks, self.mechanism);
        // Its work is done.
        let _ = self.guardian.kill();
        let _ = self.guardian.wait();
    }

    /// Looks at the rings and asks the policy. Returns when to ask again.
    fn decide(&mut self, now_ns: u64) -> myelin_linux::Result<u64> {
        for (index, ring) in self.rings.iter_mut().enumerate() {
            let runs = self.running == Some(self.reader[index]);
            let since = runs.then_some(self.turn_start_ns);
            self.seen[index] = ring.look(now_ns, &self.counters, since);
        }
        if let Some(absent) = self.absent_task(now_ns) {
            self.switch(absent, now_ns)?;
            return Ok(now_ns);
        }
        let view = CoreView {
            running: self.running,
            switch_ns: self.stats.switch_ns,
            reads: 0,
            alive: &self.alive,
            rings: &self.seen,
            lanes: &self.lanes,
        };
        let mut next = None;
        let ask_ns = self.policy.decide(now_ns, view, &mut |action| {
            if let Action::Run(task) = action {
                next = Some(task);
            }
        });
        let decided_ns = monotonic_ns();
        self.stats.decisions += 1;
        self.stats.decide_ns += decided_ns.saturating_sub(now_ns);
        if let Some(next) = next.filter(|next| Some(*next) != self.running) {
            self.switch(next, decided_ns)?;
        }
        Ok(ask_ns)
    }

    /// The task that has been without the core for too long, if there is one.
    fn absent_task(&self, now_ns: u64) -> Option<usize> {
        let waits = |task: &usize| self.alive[*task] && self.running != Some(*task);
        let longest = (0..self.tasks.len()).filter(waits);
        let longest = longest.min_by_key(|task| self.last_run_ns[*task])?;
        let absent_ns = now_ns.saturating_sub(self.last_run_ns[longest]);
        (absent_ns >= LONGEST_ABSENCE_NS).then_some(longest)
    }

    /// Gives the core to another task.
    fn switch(&mut self, next: usize, now_ns: u64) -> myelin_linux::Result<()> {
        self.end_turn(now_ns);
        // The next task first, so that the core never has only waiting tasks.
        self.tasks[next].set(self.mechanism, State::Runs)?;
        if let Some(before) = self.running.replace(next) {
            self.tasks[before].set(self.mechanism, State::Waits)?;
        }
        let end_ns = monotonic_ns();
        self.turn_start_ns = end_ns;
        for (start, ring) in self.turn_start_read.iter_mut().zip(&self.rings) {
            *start = ring.read();
        }
        self.stats.switches += 1;
        let seen_ns = end_ns.saturating_sub(now_ns);
        self.stats.switch_ns = next_switch_ns(self.stats.switch_ns, seen_ns);
        self.stats.running = Some(next);
        Ok(())
    }

    /// Counts the turn of the running task, and learns from it the cost of its packets: only a turn
    /// in which the task always had packets was long because of them.
    fn end_turn(&mut self, now_ns: u64) {
        let Some(task) = self.running else {
            return;
        };
        let run_ns = now_ns.saturating_sub(self.turn_start_ns);
        self.stats.tasks[task].turns += 1;
        self.stats.tasks[task].run_ns += run_ns;
        self.last_run_ns[task] = now_ns;
        let rings = self.rings.iter().zip(&self.turn_start_read);
        let mut packets = 0;
        let mut has_more = false;
        for ((ring, start), reader) in rings.zip(&self.reader) {
            if *reader == task {
                packets += ring.read() - start;
                has_more |= ring.packets() > 0;
            }
        }
        if !has_more || packets < TIMED_PACKETS {
            return;
        }
        let cost_ps = run_ns.saturating_mul(1000) / packets.unsigned_abs();
        for (lane, reader) in self.lanes.iter_mut().zip(&self.reader) {
            if *reader == task {
                lane.cost_ps = (lane.cost_ps * (COST_PARTS - 1) + cost_ps) / COST_PARTS;
            }
        }
    }

    /// Looks for new threads, for a line of the agent and for the guardian. Returns false if the
    /// preemptor must end.
    fn look_around(&mut self, now: Instant) -> bool {
        if self.guardian.try_wait().is_ok_and(|ended| ended.is_some()) {
            report("the guardian has ended");
            return false;
        }
        if self.has_agent && self.is_told_to_stop() {
            return false;
        }
        let mut has_started = false;
        let mut is_gone = true;
        for (task, alive) in self.tasks.iter_mut().zip(&mut self.alive) {
            match task.scan(self.mechanism) {
                Ok(found) => {
                    has_started |= found == Found::Started;
                    is_gone &= found == Found::Gone;
                }
                Err(error) => {
                    report(format!("the kernel refuses a state of a task: {error}"));
                    return false;
                }
            }
            *alive = task.is_alive();
        }
        if let Some(running) = self.running.filter(|running| !self.alive[*running]) {
            self.stats.tasks[running].turns += 1;
            self.running = None;
        }
        if has_started && self.grace_until.is_none() {
            self.grace_until = Some(now + GRACE);
            self.running = None;
            guardian::release_all(&mut self.tasks, self.mechanism);
        } else if self.grace_until.is_some_and(|until| now >= until) {
            self.grace_until = None;
            let waits = |task: &mut Task| task.set(self.mechanism, State::Waits);
            if let Err(error) = self.tasks.iter_mut().try_for_each(waits) {
                report(format!("the kernel refuses a state of a task: {error}"));
                return false;
            }
        }
        self.write_record();
        !is_gone
    }

    /// Whether the agent has written its line. After the end of the agent, none comes.
    fn is_told_to_stop(&mut self) -> bool {
        let stdin = std::io::stdin();
        let mut ready = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
        if !poll(&mut ready, PollTimeout::ZERO).is_ok_and(|ready| ready > 0) {
            return false;
        }
        let mut line = String::new();
        let read = stdin.lock().read_line(&mut line);
        self.has_agent = read.is_ok_and(|bytes| bytes > 0);
        line.trim() == STOP
    }

    fn write_record(&mut self) {
        for (task, alive) in self.stats.tasks.iter_mut().zip(&self.alive) {
            task.is_alive = *alive;
        }
        // The counters are a help only.
        let _ = self.record.write(&self.stats, &mut self.buffer);
    }
}

/// Chooses the first mechanism that the kernel permits, and lets all tasks wait by it.
fn choose(
    mechanisms: &[SharingMechanism],
    core: u32,
    tasks: &mut [Task],
) -> Result<SharingMechanism, String> {
    let mut refused = Vec::new();
    for mechanism in mechanisms {
        match begin(*mechanism, core, tasks) {
            Ok(()) => return Ok(*mechanism),
            Err(error) => {
                guardian::release_all(tasks, *mechanism);
                let word = mechanism.as_str();
                refused.push(format!("mechanism `{word}`: {error}"));
            }
        }
    }
    Err(refused.join("; "))
}

/// Takes this process's own place, then lets all tasks wait.
fn begin(mechanism: SharingMechanism, core: u32, tasks: &mut [Task]) -> myelin_linux::Result<()> {
    let core = core as usize;
    let allowed = affinity::get(0)?;
    let others: Vec<usize> = allowed.iter().copied().filter(|cpu| *cpu != core).collect();
    if mechanism == SharingMechanism::Preempt || others.is_empty() {
        actuator::bind_this_thread(&[core])?;
    } else {
        actuator::bind_this_thread(&others)?;
    }
    actuator::set_policy(
        0,
        if is_real_time(mechanism) {
            Class::Fifo(priorities::PREEMPTOR)
        } else {
            Class::Other
        },
    )?;
    for task in tasks.iter_mut() {
        task.scan(mechanism)?;
        task.set(mechanism, State::Waits)?;
    }
    Ok(())
}
