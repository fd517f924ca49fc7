//! A process that measures on request: each input line starts a run, and its output is a line of
//! figures.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use super::{Error, create_command, spawn};
use crate::daemon::OwnedChild;

/// The process, idle between runs. A drop kills it; it has nothing to clean up.
pub(crate) struct Runner {
    name: &'static str,
    child: OwnedChild,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Runner {
    /// Starts an embedded program.
    pub(crate) fn start_image(
        name: &'static str,
        image: &[u8],
        arguments: &[String],
    ) -> Result<Self, Error> {
        let (mut command, _program) = create_command(name, image)?;
        command.args(arguments);
        Self::start(name, command)
    }

    /// Starts any program.
    pub(crate) fn start(name: &'static str, mut command: Command) -> Result<Self, Error> {
        let mut child = spawn(name, command.stdin(Stdio::piped()))?;
        let pipes = (child.process.stdin.take(), child.process.stdout.take());
        let (Some(input), Some(output)) = pipes else {
            unreachable!("both are piped");
        };
        Ok(Self {
            name,
            child,
            input,
            output: BufReader::new(output),
        })
    }

    /// Makes a run. Returns its figures.
    pub(crate) fn run(&mut self, line: &str) -> Result<Vec<f64>, Error> {
        self.begin(line)?;
        self.end()
    }

    /// Starts a run.
    pub(crate) fn begin(&mut self, line: &str) -> Result<(), Error> {
        match writeln!(self.input, "{line}") {
            Ok(()) => Ok(()),
            Err(_) => Err(self.end_error()),
        }
    }

    /// Waits for the end of a run. Returns its figures.
    pub(crate) fn end(&mut self) -> Result<Vec<f64>, Error> {
        let mut answer = String::new();
        let read = self.output.read_line(&mut answer);
        let figures: Vec<f64> = answer
            .split_whitespace()
            .map_while(|figure| figure.parse().ok())
            .collect();
        match read {
            Ok(_) if !figures.is_empty() => Ok(figures),
            _ => Err(self.end_error()),
        }
    }

    fn end_error(&mut self) -> Error {
        let _ = self.child.process.kill();
        let status = match self.child.process.wait() {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        };
        Error::Failed {
            name: self.name,
            problem: format!("ended early ({status})"),
            messages: self.child.last_messages(),
        }
    }
}
