//! The guardian of a preemptor: gives the tasks back to the kernel if the preemptor dies.

use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use myelin_linux::priorities;
use myelin_linux::process::PidFd;
use myelin_linux::sched::Policy;
use myelin_spec::SharingMechanism;

use super::handshake::{READY, await_ready, read_setup, tell};
use super::is_real_time;
use super::setup::GuardianSetup;
use super::tasks::Task;
use crate::control::actuator;

/// The longest sleep of the guardian. It wakes at once when the preemptor ends.
const NAP: Duration = Duration::from_secs(60);

/// Starts the guardian of this process. It is ready when the function returns.
pub(super) fn start(name: &str, setup: &GuardianSetup) -> Result<Child, String> {
    let failed = |error: &dyn std::fmt::Display| format!("cannot start the guardian: {error}");
    let program = std::env::current_exe().map_err(|error| failed(&error))?;
    let mut child = Command::new(program)
        .args(["preemptor", "--guardian", "--name", name])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| failed(&error))?;
    let told = tell(&mut child, setup).and_then(|()| await_ready(&mut child));
    if let Err(error) = told {
        // The caller gets the first error.
        let _ = child.kill();
        let _ = child.wait();
        return Err(failed(&error));
    }
    Ok(child)
}

/// Waits for the end of the preemptor, then gives its tasks back to the kernel.
pub(super) fn run() -> Result<(), String> {
    let setup: GuardianSetup = read_setup()?;
    let preemptor = PidFd::open(setup.preemptor).map_err(|error| error.to_string())?;
    if nix::unistd::getppid().as_raw().cast_unsigned() != setup.preemptor {
        return Err("the preemptor has ended".into());
    }
    let open = |members| Task::open(members, setup.core).map_err(|error| error.to_string());
    let tasks = setup.tasks.iter().map(open);
    let mut tasks: Vec<Task> = tasks.collect::<Result<_, _>>()?;
    if setup.mechanisms.iter().copied().any(is_real_time) {
        // Otherwise the guardian could wait behind the tasks that nobody interrupts any more. If
        // the kernel refuses it, it also refuses the tasks' priorities, and the preemptor says so.
        let _ = actuator::set_policy(0, Policy::Fifo(priorities::PREEMPTOR));
    }
    println!("{READY}");
    std::io::stdout()
        .flush()
        .map_err(|error| error.to_string())?;
    while !preemptor.wait(NAP).map_err(|error| error.to_string())? {}
    for mechanism in setup.mechanisms {
        release_all(&mut tasks, mechanism);
    }
    Ok(())
}

/// Gives all tasks back to the kernel, also those without threads now.
pub(super) fn release_all(tasks: &mut [Task], mechanism: SharingMechanism) {
    for task in tasks {
        task.release(mechanism);
    }
}
