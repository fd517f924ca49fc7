//! `myelin exec`: runs a program on an emulated host, through the agent, with this terminal.

mod terminal;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::fd::{AsFd, BorrowedFd};
use std::process::ExitCode;

use myelin_api::{ApiError, Client, ContainerName, ExecEvent, ExecRequest, ExecStream, RunDir};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// Signals that go to the program.
const PASSED: [Signal; 6] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];
/// A shell's exit status for a program that a signal ended, minus the signal.
const SIGNAL_STATUS: i32 = 128;

/// Arguments of `myelin exec`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  myelin exec server -- iperf3 -s -1\n  \
                  myelin exec client -- irtt client -i 5ms -d 5s 10.0.0.2\n  \
                  myelin exec tactile/client -- tcpdump -ni eth0    if several chains run\n  \
                  myelin exec h1 -- ping -c 3 10.0.0.2              a host of a topology\n\n\
                  `myelin container exec` runs a program in a container of a host. Programs keep the limits of a topology's host, and end with this command or with their host. The hosts are ordinary network namespaces (ip netns list). The exit status is the program's.")]
pub(crate) struct Arguments {
    /// `client`, `server`, the host of a topology, or one of them after `CHAIN/` or `TOPOLOGY/`.
    host: String,
    /// The program and its arguments.
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Runs the program and returns its exit status.
pub(crate) fn execute(run_dir: &RunDir, arguments: &Arguments) -> Result<ExitCode, ApiError> {
    let client = Client::connect(run_dir)?.ok_or_else(|| {
        ApiError::failed(
            "no agent runs, so there is no host: `myelin up FILE` deploys a chain and its hosts, or a topology",
        )
    })?;
    // The agent takes text. A variable that is no text does not reach the program.
    let env = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let directory = std::env::current_dir().ok();
    let directory = directory.and_then(|directory| directory.into_os_string().into_string().ok());
    let request = ExecRequest {
        host: arguments.host.clone(),
        command: to_text(&arguments.command)?,
        env: env.collect(),
        directory: directory.unwrap_or_else(|| "/".to_owned()),
        ..ExecRequest::default()
    };
    let (input, output) = (std::io::stdin(), std::io::stdout());
    if input.is_terminal() && output.is_terminal() {
        let request = ExecRequest {
            is_terminal: true,
            ..request
        };
        return terminal::run(&client, &request);
    }
    run(&client, &request)
}

/// Runs a program in a container and returns its exit status. The program has the container's
/// environment and directory, and gets pipes instead of a terminal.
pub(crate) fn execute_in_container(
    client: &Client,
    container: ContainerName,
    command: &[OsString],
) -> Result<ExitCode, ApiError> {
    let request = ExecRequest {
        host: container.host,
        container: Some(container.name),
        command: to_text(command)?,
        ..ExecRequest::default()
    };
    run(client, &request)
}

fn run(client: &Client, request: &ExecRequest) -> Result<ExitCode, ApiError> {
    let (input, output, errors) = (std::io::stdin(), std::io::stdout(), std::io::stderr());
    let signals = catch(&PASSED)?;
    let descriptors = [input.as_fd(), output.as_fd(), errors.as_fd()];
    let mut stream = client.exec(request, descriptors)?;
    loop {
        if let Some(status) = follow(&mut stream)? {
            return Ok(status);
        }
        wait_for(&[signals.as_fd(), stream.as_fd()])?;
        pass_signal(&signals, &mut stream)?;
    }
}

fn to_text(command: &[OsString]) -> Result<Vec<String>, ApiError> {
    let words = command.iter().map(|word| {
        word.to_str().map(str::to_owned).ok_or_else(|| {
            ApiError::usage(format!(
                "the argument {} is not UTF-8: use `sh -c` with an escaped text",
                word.display()
            ))
        })
    });
    words.collect()
}

/// Blocks these signals in this thread, and returns a descriptor that tells of them.
fn catch(signals: &[Signal]) -> Result<SignalFd, ApiError> {
    let set: SigSet = signals.iter().copied().collect();
    set.thread_block()
        .and_then(|()| SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC))
        .map_err(|errno| ApiError::failed(format!("cannot catch signals: {errno}")))
}

/// Waits until one of the descriptors is readable.
fn wait_for(descriptors: &[BorrowedFd<'_>]) -> Result<(), ApiError> {
    let watched = descriptors.iter();
    let mut watched: Vec<PollFd<'_>> = watched
        .map(|descriptor| PollFd::new(*descriptor, PollFlags::POLLIN))
        .collect();
    match poll(&mut watched, PollTimeout::NONE) {
        Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
        Err(errno) => Err(ApiError::failed(format!(
            "cannot wait for the program: {errno}"
        ))),
    }
}

/// Sends a signal of this process on to the program. Returns the signal.
fn pass_signal(signals: &SignalFd, stream: &mut ExecStream) -> Result<Option<i32>, ApiError> {
    let caught = signals.read_signal();
    let caught = caught.map_err(|errno| ApiError::failed(format!("cannot read a signal: {errno}")));
    let number = caught?.and_then(|signal| i32::try_from(signal.ssi_signo).ok());
    if let Some(number) = number.filter(|number| PASSED.iter().any(|one| *one as i32 == *number)) {
        stream.signal(number)?;
    }
    Ok(number)
}

/// Reads the lines that have come. Returns the exit status when the program has ended.
fn follow(stream: &mut ExecStream) -> Result<Option<ExitCode>, ApiError> {
    while stream.has_event()? {
        if let ExecEvent::Ended { code, signal } = stream.next_event()? {
            let status = code.unwrap_or_else(|| signal.map_or(1, |signal| SIGNAL_STATUS + signal));
            return Ok(Some(ExitCode::from(u8::try_from(status).unwrap_or(1))));
        }
    }
    Ok(None)
}
