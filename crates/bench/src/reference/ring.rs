//! The reference program of `rings`: DPDK's ring between two cores.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use super::{Error, executable, memory_file, words_of};

const NAME: &str = "ring_throughput";
#[cfg(has_dpdk)]
const IMAGE: Option<&[u8]> = Some(include_bytes!(concat!(env!("OUT_DIR"), "/ring_throughput")));
#[cfg(not(has_dpdk))]
const IMAGE: Option<&[u8]> = None;

/// The program, idle between two runs. Dropping it ends it.
pub(crate) struct RingThroughput {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    words: File,
}

impl RingThroughput {
    /// Starts it, to run on the cores of producer and consumer, so many windows of so many batches a run.
    pub(crate) fn start(cores: [usize; 2], windows: usize, batches: usize) -> Result<Self, Error> {
        let system = |step| {
            move |source| Error::System {
                name: NAME,
                step,
                source,
            }
        };
        let image = IMAGE.ok_or(Error::Absent {
            name: NAME,
            reason: env!("MYELIN_NO_DPDK"),
        })?;
        let program = executable(NAME, image).map_err(system("storing the program in memory"))?;
        let words = File::from(memory_file("stderr").map_err(system("memory for its messages"))?);
        let errors = words
            .try_clone()
            .map_err(system("sharing the file of its messages"))?;
        let mut child = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()))
            .arg0(NAME)
            .args([cores[0], cores[1], windows, batches].map(|number| number.to_string()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .map_err(system("starting it"))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            unreachable!("both were asked for");
        };
        Ok(Self {
            child,
            input,
            output: BufReader::new(output),
            words,
        })
    }

    /// One run: the nanoseconds that each window took.
    pub(crate) fn run(&mut self) -> Result<Vec<f64>, Error> {
        let mut answer = String::new();
        let asked = self.input.write_all(b"run\n");
        let read = asked.and_then(|()| self.output.read_line(&mut answer));
        let windows: Vec<f64> = answer
            .split_whitespace()
            .map_while(|window| window.parse().ok())
            .collect();
        match read {
            Ok(_) if !windows.is_empty() => Ok(windows),
            _ => Err(self.ended()),
        }
    }

    fn ended(&mut self) -> Error {
        let _ = self.child.kill();
        match self.child.wait() {
            Ok(status) => Error::Ended {
                name: NAME,
                status,
                words: words_of(&mut self.words),
            },
            Err(source) => Error::System {
                name: NAME,
                step: "waiting for its end",
                source,
            },
        }
    }
}

impl Drop for RingThroughput {
    fn drop(&mut self) {
        // It has nothing but memory.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
