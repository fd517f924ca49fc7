//! Starts a worker's process as a child of the agent, or in an environment that the agent made.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use crate::config::WorkerConfig;

/// Starts workers in an environment: a control group or a container.
pub trait Launcher: fmt::Debug + Send + Sync {
    /// Starts a worker whose standard input is `control`, the connection to the agent. The worker
    /// may still be starting when this method returns. Call this method only after earlier
    /// processes of this launcher have ended.
    fn launch(&self, config: &WorkerConfig, control: OwnedFd) -> io::Result<Box<dyn Launched>>;
}

/// The process of a started worker.
pub trait Launched: fmt::Debug + Send + Sync {
    /// Returns the process number.
    fn pid(&self) -> u32;

    /// Returns whether the process runs.
    fn is_alive(&mut self) -> bool;

    /// Kills the process and waits for its end.
    fn kill(&mut self);
}

/// Starts workers as children of this process.
#[derive(Debug)]
pub(crate) struct ChildLauncher;

impl Launcher for ChildLauncher {
    fn launch(&self, config: &WorkerConfig, control: OwnedFd) -> io::Result<Box<dyn Launched>> {
        let child = Command::new(&config.exe)
            .args(&config.args)
            .arg0(config.process_name())
            .stdin(Stdio::from(control))
            .stdout(Stdio::null())
            .current_dir("/")
            // A separate process group, so that Ctrl-C on a terminal reaches only the agent.
            .process_group(0)
            .spawn()?;
        Ok(Box::new(child))
    }
}

impl Launched for Child {
    fn pid(&self) -> u32 {
        self.id()
    }

    fn is_alive(&mut self) -> bool {
        matches!(self.try_wait(), Ok(None))
    }

    fn kill(&mut self) {
        // `Child::kill` cannot hit another process that has got the same number.
        let _ = Child::kill(self);
        let _ = self.wait();
    }
}
