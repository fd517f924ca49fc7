//! A process that measures on request: each input line starts a run, and its output is a line of
//! figures.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use super::{Error, create_command, messages_of, spawn};

/// The process, idle between runs. A drop ends it.
pub(crate) struct Runner {
    name: &'static str,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    messages: File,
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
        let (mut child, messages) = spawn(name, command.stdin(Stdio::piped()))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            unreachable!("both are piped");
        };
        Ok(Self {
            name,
            child,
            input,
            output: BufReader::new(output),
            messages,
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
        let _ = self.child.kill();
        match self.child.wait() {
            Ok(status) => Error::Ended {
                name: self.name,
                status,
                messages: messages_of(&mut self.messages),
            },
            Err(source) => Error::System {
                name: self.name,
                step: "waiting for its end",
                source,
            },
        }
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        // SIGKILL suffices: the process has nothing to clean up.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
