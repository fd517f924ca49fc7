//! Runs `myelin conform` while a test sends packets.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// A running `myelin conform`. Dropping it kills the process.
pub(crate) struct Monitor {
    child: Child,
    messages: BufReader<ChildStderr>,
}

impl Monitor {
    /// Attaches the monitor to `eth0`. The arguments name the network namespace or the host.
    pub(crate) fn start(myelin: &super::Myelin, arguments: &[&str]) -> Self {
        let mut command = myelin.command(&[&["conform", "eth0"], arguments].concat());
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the monitor starts");
        let mut messages = BufReader::new(child.stderr.take().expect("standard error is piped"));
        let mut line = String::new();
        messages.read_line(&mut line).expect("a line is readable");
        let monitor = Self { child, messages };
        assert!(line.starts_with("watching eth0"), "{line}");
        monitor
    }

    /// Sends SIGINT, as Ctrl-C does.
    pub(crate) fn interrupt(&self) {
        let pid = Pid::from_raw(self.child.id().cast_signed());
        kill(pid, Signal::SIGINT).expect("the signal is sent");
    }

    /// Waits until the process ends; returns the exit status and standard output.
    pub(crate) fn wait_for_output(mut self) -> (Option<i32>, String) {
        let mut text = String::new();
        let output = self.child.stdout.take();
        (output
            .expect("standard output is piped")
            .read_to_string(&mut text))
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
