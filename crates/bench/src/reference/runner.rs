//! A process that measures when it is asked: each line that it reads starts a run, whose answer is one line of figures.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use super::{Error, embedded, spawn, words_of};

/// The process, idle between two runs. Dropping it ends it.
pub(crate) struct Runner {
    name: &'static str,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    words: File,
}

impl Runner {
    /// Starts a program that is part of this one, `image`.
    pub(crate) fn start_image(
        name: &'static str,
        image: &[u8],
        arguments: &[String],
    ) -> Result<Self, Error> {
        let (mut command, _program) = embedded(name, image)?;
        command.args(arguments);
        Self::start(name, command)
    }

    /// Starts any program.
    pub(crate) fn start(name: &'static str, mut command: Command) -> Result<Self, Error> {
        let (mut child, words) = spawn(name, command.stdin(Stdio::piped()))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            unreachable!("both were asked for");
        };
        Ok(Self {
            name,
            child,
            input,
            output: BufReader::new(output),
            words,
        })
    }

    /// One run: what it measured.
    pub(crate) fn run(&mut self, line: &str) -> Result<Vec<f64>, Error> {
        self.begin(line)?;
        self.end()
    }

    /// Begins a run.
    pub(crate) fn begin(&mut self, line: &str) -> Result<(), Error> {
        match writeln!(self.input, "{line}") {
            Ok(()) => Ok(()),
            Err(_) => Err(self.ended()),
        }
    }

    /// Waits for the end of a run.
    pub(crate) fn end(&mut self) -> Result<Vec<f64>, Error> {
        let mut answer = String::new();
        let read = self.output.read_line(&mut answer);
        let figures: Vec<f64> = answer
            .split_whitespace()
            .map_while(|figure| figure.parse().ok())
            .collect();
        match read {
            Ok(_) if !figures.is_empty() => Ok(figures),
            _ => Err(self.ended()),
        }
    }

    fn ended(&mut self) -> Error {
        let _ = self.child.kill();
        match self.child.wait() {
            Ok(status) => Error::Ended {
                name: self.name,
                status,
                words: words_of(&mut self.words),
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
        // It has nothing but memory.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
