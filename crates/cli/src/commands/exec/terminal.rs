//! Runs a program with a terminal of its own, which passes all keys and shows all output on this
//! terminal. The kernel turns keys such as Ctrl-C into signals of the program.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::ExitCode;

use myelin_api::{ApiError, Client, ExecRequest, ExecStream};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::pty::openpty;
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;
use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};
use rustix::termios::{tcgetwinsize, tcsetwinsize};

use super::{PASSED, catch, follow, pass_signal};

/// Bytes of keys that wait for a program that does not read.
const MAX_KEYS: usize = 4096;

/// This terminal, without its own treatment of keys. Dropping the value restores it.
struct RawTerminal(Termios);

impl RawTerminal {
    fn set(before: Termios) -> nix::Result<Self> {
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        tcsetattr(io::stdin(), SetArg::TCSADRAIN, &raw)?;
        Ok(Self(before))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        let _ = tcsetattr(io::stdin(), SetArg::TCSADRAIN, &self.0);
    }
}

/// Runs the program.
pub(super) fn run(client: &Client, request: &ExecRequest) -> Result<ExitCode, ApiError> {
    let failed = |error: io::Error| ApiError::failed(format!("cannot use this terminal: {error}"));
    let before = tcgetattr(io::stdin()).map_err(|errno| failed(errno.into()))?;
    let pair = openpty(None, &before).map_err(|errno| failed(errno.into()))?;
    copy_size(pair.master.as_fd());
    let signals = catch(&[&PASSED[..], &[Signal::SIGWINCH]].concat())?;
    // Errors go elsewhere if the user has redirected them.
    let errors = io::stderr();
    let program = pair.slave.as_fd();
    let errors = if errors.is_terminal() {
        program
    } else {
        errors.as_fd()
    };
    let stream = client.exec(request, [program, program, errors])?;
    drop(pair.slave);
    // A program that does not read its keys must not stop this process.
    let flags = FcntlArg::F_SETFL(OFlag::O_NONBLOCK);
    fcntl(&pair.master, flags).map_err(|errno| failed(errno.into()))?;
    let raw = RawTerminal::set(before).map_err(|errno| failed(errno.into()))?;
    let mut session = Session {
        program: File::from(pair.master),
        stream,
        signals,
        keys: Vec::new(),
        has_keys: true,
        has_output: true,
    };
    let status = session.run();
    drop(raw);
    status
}

/// Gives the program's terminal the size of this one.
fn copy_size(program: BorrowedFd<'_>) {
    if let Ok(size) = tcgetwinsize(io::stdout()) {
        let _ = tcsetwinsize(program, size);
    }
}

struct Session {
    /// This side of the program's terminal.
    program: File,
    stream: ExecStream,
    signals: SignalFd,
    /// Keys that the program has not taken yet.
    keys: Vec<u8>,
    /// Whether this terminal still delivers keys.
    has_keys: bool,
    /// Whether a program still holds its terminal.
    has_output: bool,
}

impl Session {
    fn run(&mut self) -> Result<ExitCode, ApiError> {
        loop {
            if let Some(status) = follow(&mut self.stream)? {
                // What the program wrote before its end is in its terminal.
                while self.show_output() {}
                return Ok(status);
            }
            self.wait()?;
            if pass_signal(&self.signals, &mut self.stream)? == Some(Signal::SIGWINCH as i32) {
                copy_size(self.program.as_fd());
            }
            self.show_output();
            self.pass_keys();
        }
    }

    fn wait(&self) -> Result<(), ApiError> {
        let stdin = io::stdin();
        let mut of_program = PollFlags::empty();
        of_program.set(PollFlags::POLLIN, self.has_output);
        of_program.set(PollFlags::POLLOUT, !self.keys.is_empty());
        let mut watched = vec![
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.stream.as_fd(), PollFlags::POLLIN),
        ];
        if self.has_output {
            watched.push(PollFd::new(self.program.as_fd(), of_program));
        }
        if self.has_keys && self.keys.len() < MAX_KEYS {
            watched.push(PollFd::new(stdin.as_fd(), PollFlags::POLLIN));
        }
        match poll(&mut watched, PollTimeout::NONE) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
            Err(errno) => Err(ApiError::failed(format!(
                "cannot wait for the program: {errno}"
            ))),
        }
    }

    /// Shows output of the program. Returns whether there was some.
    fn show_output(&mut self) -> bool {
        let mut part = [0; 16 << 10];
        match self.program.read(&mut part) {
            Ok(count) if count > 0 => {
                let mut output = io::stdout();
                let shown = output
                    .write_all(&part[..count])
                    .and_then(|()| output.flush());
                shown.is_ok()
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
            // The kernel reports an error when no program holds the terminal.
            _ => {
                self.has_output = false;
                false
            }
        }
    }

    fn pass_keys(&mut self) {
        let is_ready = |descriptor: BorrowedFd<'_>| {
            let mut watched = [PollFd::new(descriptor, PollFlags::POLLIN)];
            poll(&mut watched, PollTimeout::ZERO).is_ok_and(|count| count > 0)
        };
        let stdin = io::stdin();
        if self.has_keys && self.keys.len() < MAX_KEYS && is_ready(stdin.as_fd()) {
            let mut part = [0; MAX_KEYS];
            match nix::unistd::read(stdin.as_fd(), &mut part) {
                Ok(count) if count > 0 => self.keys.extend_from_slice(&part[..count]),
                _ => self.has_keys = false,
            }
        }
        if let Ok(count) = self.program.write(&self.keys) {
            self.keys.drain(..count);
        }
    }
}
