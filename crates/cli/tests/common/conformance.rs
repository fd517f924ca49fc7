//! Runs `myelin conform` while a test sends packets.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, ChildStdout, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// A running `myelin conform`. Dropping it kills the process.
pub(crate) struct Monitor {
    child: Child,
    messages: BufReader<ChildStderr>,
    output: BufReader<ChildStdout>,
}

impl Monitor {
    /// Attaches the monitor to `eth0`. The arguments name the network namespace or the host.
    pub(crate) fn start(myelin: &super::Myelin, arguments: &[&str]) -> Self {
        Self::start_chain(myelin, &[&["eth0"], arguments].concat())
    }

    /// Attaches the monitor to the interface that the arguments choose, an `eth0`.
    pub(crate) fn start_chain(myelin: &super::Myelin, arguments: &[&str]) -> Self {
        let mut command = myelin.command(&[&["conform"], arguments].concat());
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the monitor starts");
        let mut messages = BufReader::new(child.stderr.take().expect("standard error is piped"));
        let output = BufReader::new(child.stdout.take().expect("standard output is piped"));
        let mut line = String::new();
        messages.read_line(&mut line).expect("a line is readable");
        let monitor = Self {
            child,
            messages,
            output,
        };
        assert!(line.starts_with("watching eth0"), "{line}");
        monitor
    }

    /// Sends SIGINT, as Ctrl-C does.
    pub(crate) fn interrupt(&self) {
        let pid = Pid::from_raw(self.child.id().cast_signed());
        kill(pid, Signal::SIGINT).expect("the signal is sent");
    }

    /// Waits until the process has printed another line; returns the line.
    pub(crate) fn wait_for_line(&mut self) -> String {
        let mut line = String::new();
        let read = self.output.read_line(&mut line);
        assert!(read.is_ok_and(|bytes| bytes > 0), "the monitor has ended");
        line
    }

    /// Waits until the process ends; returns the exit status and the rest of standard output.
    pub(crate) fn wait_for_output(mut self) -> (Option<i32>, String) {
        let mut text = String::new();
        self.output
            .read_to_string(&mut text)
            .expect("the output is UTF-8");
        let mut messages = String::new();
        self.messages
            .read_to_string(&mut messages)
            .expect("the output is UTF-8");
        assert!(!messages.contains("panicked"), "{messages}");
        let status = self.child.wait().expect("the process ends");
        (status.code(), text)
    }

    /// Waits until the process ends; returns the exit status and the JSON report.
    pub(crate) fn wait_for_report(self) -> (Option<i32>, Value) {
        let (status, text) = self.wait_for_output();
        let report = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        (status, report)
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
