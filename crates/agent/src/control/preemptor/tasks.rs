//! The tasks of a shared core as the kernel schedules them: their threads, and the mechanism that
//! gives one of them the core.

use std::time::Duration;

use myelin_linux::cgroup::Cgroup;
use myelin_linux::process::{PidFd, Signal};
use myelin_linux::sched::Policy;
use myelin_linux::{Error, Result, cgroup, priorities};
use myelin_spec::SharingMechanism;

use super::handshake::report;
use super::setup::TaskMembers;
use crate::control::actuator;

/// Scans between two that set the state of all threads again, in case one has changed its own.
const SCANS_UNTIL_ALL: u32 = 64;

/// The state of a task for the kernel's scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// The kernel schedules the task as any other one.
    Fair,
    Waits,
    Runs,
}

/// A task.
#[derive(Debug)]
pub(super) struct Task {
    owner: Owner,
    core: u32,
    /// Sorted.
    threads: Vec<u32>,
    pub(super) state: State,
    scans: u32,
}

#[derive(Debug)]
enum Owner {
    Group(Cgroup),
    Process(PidFd),
}

/// What a scan found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// The task has threads.
    Alive,
    /// The task has threads, and had none before.
    Started,
    /// The task has no thread now.
    Empty,
    /// The task never has threads again.
    Gone,
}

impl Task {
    pub(super) fn open(members: &TaskMembers, core: u32) -> Result<Self> {
        Ok(Self {
            owner: match members {
                TaskMembers::Group(path) => Owner::Group(Cgroup::open(path)?),
                TaskMembers::Process(pid) => Owner::Process(PidFd::open(*pid)?),
            },
            core,
            threads: Vec::new(),
            state: State::Fair,
            scans: 0,
        })
    }

    pub(super) fn is_alive(&self) -> bool {
        !self.threads.is_empty()
    }

    /// Looks for new threads, and gives them the core and the state of the task.
    ///
    /// # Errors
    /// The kernel refuses the state.
    pub(super) fn scan(&mut self, mechanism: SharingMechanism) -> Result<Found> {
        let was_alive = self.is_alive();
        let (now, is_gone) = match &self.owner {
            Owner::Group(group) => group
                .threads()
                .map_or((Vec::new(), true), |threads| (threads, false)),
            Owner::Process(process) => {
                let has_ended = process.wait(Duration::ZERO)?;
                let threads = (!has_ended).then(|| process.pid()).into_iter().collect();
                (threads, has_ended)
            }
        };
        let before = std::mem::replace(&mut self.threads, now);
        self.threads.sort_unstable();
        self.scans = (self.scans + 1) % SCANS_UNTIL_ALL;
        let threads = self.threads.iter().copied();
        let is_new = |thread: &u32| self.scans == 0 || before.binary_search(thread).is_err();
        for thread in threads.filter(is_new) {
            if matches!(self.owner, Owner::Group(_)) {
                unless_ended(actuator::bind(thread, self.core))?;
            }
            self.set_thread(thread, mechanism)?;
        }
        Ok(match (was_alive, self.is_alive()) {
            (_, false) if is_gone => Found::Gone,
            (_, false) => Found::Empty,
            (false, true) => Found::Started,
            (true, true) => Found::Alive,
        })
    }

    /// Tells the kernel what the task does from now on.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub(super) fn set(&mut self, mechanism: SharingMechanism, state: State) -> Result<()> {
        self.state = state;
        let is_stopped = state == State::Waits;
        match (&mut self.owner, mechanism) {
            (Owner::Group(group), SharingMechanism::Freezer) => {
                unless_ended(actuator::freeze(group, is_stopped))
            }
            (Owner::Process(process), SharingMechanism::Freezer) => {
                let (stop, go_on) = (Signal::STOP, Signal::CONT);
                process.signal(if is_stopped { stop } else { go_on })
            }
            (Owner::Group(group), SharingMechanism::Weights) if group.has_weight() => {
                unless_ended(actuator::weigh(group, weights(state).1))
            }
            _ => {
                let mut threads = self.threads.iter();
                threads.try_for_each(|thread| self.set_thread(*thread, mechanism))
            }
        }
    }

    /// Tells the kernel what one thread of the task does, if the mechanism is one of threads.
    fn set_thread(&self, thread: u32, mechanism: SharingMechanism) -> Result<()> {
        let is_weighed = matches!(&self.owner, Owner::Group(group) if group.has_weight());
        unless_ended(match mechanism {
            SharingMechanism::Weights if !is_weighed => {
                actuator::set_nice(thread, weights(self.state).0)
            }
            SharingMechanism::Flip | SharingMechanism::Preempt => {
                actuator::set_policy(thread, class(self.state))
            }
            _ => Ok(()),
        })
    }

    /// Gives the task back to the kernel. New threads of a task that forks meanwhile are found too.
    pub(super) fn release(&mut self, mechanism: SharingMechanism) {
        /// A task that forks faster than this is stopped by its limits only.
        const PASSES: usize = 100;
        let mut result = self.set(mechanism, State::Fair);
        for _ in 0..PASSES {
            let before = self.threads.clone();
            result = result.and(self.scan(mechanism).map(drop));
            if self.threads == before {
                break;
            }
        }
        if let Err(error) = result {
            report(format!(
                "cannot give a task back to the kernel's scheduler: {error}"
            ));
        }
    }
}

/// The scheduling class of a task's threads.
fn class(state: State) -> Policy {
    match state {
        State::Fair => Policy::Other,
        State::Waits => Policy::Fifo(priorities::WAITING_FUNCTION),
        State::Runs => Policy::Fifo(priorities::RUNNING_FUNCTION),
    }
}

/// The niceness of a task's threads, and the weight of its group.
fn weights(state: State) -> (i32, u32) {
    match state {
        State::Fair => (0, cgroup::DEFAULT_WEIGHT),
        State::Waits => (19, 1),
        State::Runs => (-20, cgroup::MAX_WEIGHT),
    }
}

/// A thread, process or group that has ended meanwhile is no error.
fn unless_ended(result: Result<()>) -> Result<()> {
    result.or_else(|error: Error| {
        if error.is_not_found() {
            Ok(())
        } else {
            Err(error)
        }
    })
}
