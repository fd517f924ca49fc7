//! How a worker's process comes into being: as a child of the agent, or in a place that the agent has made for it.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use crate::config::WorkerConfig;

/// Starts workers somewhere: in a control group, in a container.
pub trait Launcher: fmt::Debug + Send + Sync {
    /// Starts one whose standard input is `control`, the connection to the agent. It need not be up yet when this returns; all else
    /// that was started here before has ended.
    fn launch(&self, config: &WorkerConfig, control: OwnedFd) -> io::Result<Box<dyn Launched>>;
}

/// A worker that was started.
pub trait Launched: fmt::Debug + Send + Sync {
    /// Its process number.
    fn pid(&self) -> u32;

    /// Whether it runs.
    fn is_alive(&mut self) -> bool;

    /// Ends it at once, and waits for that.
    fn kill(&mut self);
}

/// Starts workers as children of this process.
#[derive(Debug)]
pub(crate) struct AsChild;

impl Launcher for AsChild {
    fn launch(&self, config: &WorkerConfig, control: OwnedFd) -> io::Result<Box<dyn Launched>> {
        let child = Command::new(&config.exe)
            .args(&config.args)
            .arg0(config.process_name())
            .stdin(Stdio::from(control))
            .stdout(Stdio::null())
            .current_dir("/")
            // Out of the agent's process group: Ctrl-C on a terminal is the agent's to handle.
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
        // Not by its number, which is another process' once this one has been waited for.
        let _ = Child::kill(self);
        let _ = self.wait();
    }
}
