//! Programs on emulated hosts: a request that becomes a stream, with descriptors of the client.
//!
//! The client sends `POST /v2/exec`, and the agent answers `101 Switching Protocols`. Then the
//! client sends one byte with three descriptors (`SCM_RIGHTS`): input, output and errors of the
//! program. So the agent copies no byte of them, and a program that floods its output or never
//! reads its input fills only the pipes. A client with a terminal makes a pseudo terminal and sends
//! its end, so signals of keys and the size of the window reach the program through the kernel.
//!
//! After that, each side writes JSON objects, one a line: the agent [`ExecEvent`], the client
//! [`ExecSignal`]. When the client ends the stream, the agent ends the program and its children.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use serde::{Deserialize, Serialize};

use crate::ApiError;

/// The protocol that the headers `upgrade` name.
pub const EXEC_PROTOCOL: &str = "myelin-exec";

/// Number of descriptors that the client sends: input, output, errors.
const DESCRIPTORS: usize = 3;
/// Most descriptors of one message (`SCM_MAX_FD` of the kernel).
const MAX_DESCRIPTORS: usize = 253;
/// Longest line of the stream, bytes. Errors have the last lines of a program's output.
const MAX_LINE: u64 = 1 << 20;

/// Request to run a program on a host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ExecRequest {
    /// `client`, `server`, the host of a topology, or one of them after `CHAIN/` or `TOPOLOGY/`.
    pub host: String,
    /// A container in the host; `None`: the program runs in the host itself.
    #[serde(default)]
    pub container: Option<String>,
    /// The program and its arguments. The agent looks for the program in the `PATH` of `env`, in a
    /// container in that of the container.
    pub command: Vec<String>,
    /// All environment variables of the program; in a container besides those of the container.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// The working directory. Empty in a container: that of the container.
    #[serde(default = "root_directory")]
    pub directory: String,
    /// Whether the input is a terminal, which becomes the program's controlling terminal.
    #[serde(default)]
    pub is_terminal: bool,
}

fn root_directory() -> String {
    "/".to_owned()
}

/// A line from the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ExecEvent {
    /// The program runs.
    Started {
        /// Its process number on the machine.
        pid: u32,
    },
    /// The program has ended. This is the last line.
    Ended {
        /// The exit status; `None`: a signal ended the program. In a container, 128 plus the
        /// signal.
        code: Option<i32>,
        /// The number of the signal that ended the program.
        signal: Option<i32>,
    },
    /// The program did not start. This is the last line.
    Error(ApiError),
}

/// A line from the client: a signal for the program's process group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ExecSignal {
    /// The signal's number.
    pub signal: i32,
}

/// Sends the descriptors of input, output and errors.
///
/// # Errors
/// The stream has ended.
pub fn send_descriptors(
    stream: &impl AsRawFd,
    descriptors: [BorrowedFd<'_>; DESCRIPTORS],
) -> io::Result<()> {
    let raw = descriptors.map(|descriptor| descriptor.as_raw_fd());
    let control = [ControlMessage::ScmRights(&raw)];
    let byte = [IoSlice::new(&[0])];
    sendmsg::<()>(
        stream.as_raw_fd(),
        &byte,
        &control,
        MsgFlags::MSG_NOSIGNAL,
        None,
    )?;
    Ok(())
}

/// Receives the descriptors of input, output and errors.
///
/// # Errors
/// The stream has ended, nothing has arrived on a stream that does not block, or another number of
/// descriptors has arrived.
pub fn receive_descriptors(stream: &impl AsRawFd) -> io::Result<[OwnedFd; DESCRIPTORS]> {
    // With space for all, every descriptor of a bad client comes, and all are closed below. `cmsgs`
    // returns none of a shortened message, and those that came would stay open.
    let mut space = nix::cmsg_space!([RawFd; MAX_DESCRIPTORS]);
    let mut byte = [0];
    let mut parts = [IoSliceMut::new(&mut byte)];
    let message = recvmsg::<()>(
        stream.as_raw_fd(),
        &mut parts,
        Some(&mut space),
        MsgFlags::MSG_CMSG_CLOEXEC,
    )?;
    let mut received = Vec::new();
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(raw) = control {
            // SAFETY: the kernel installed these descriptors in this process for this message, so
            // they have no other owner.
            let owned = raw
                .into_iter()
                .map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
            received.extend(owned);
        }
    }
    let bytes = message.bytes;
    received.try_into().map_err(|other: Vec<OwnedFd>| {
        let kind = if bytes == 0 {
            io::ErrorKind::UnexpectedEof
        } else {
            io::ErrorKind::InvalidData
        };
        let count = other.len();
        io::Error::new(kind, format!("{count} of {DESCRIPTORS} descriptors came"))
    })
}

/// The client's end of a program's stream. Dropping it ends the program.
#[derive(Debug)]
pub struct ExecStream(BufReader<UnixStream>);

impl ExecStream {
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self(BufReader::new(stream))
    }

    /// Waits for the next line of the agent.
    ///
    /// # Errors
    /// The agent has ended, or the program did not start.
    pub fn next_event(&mut self) -> Result<ExecEvent, ApiError> {
        let mut line = String::new();
        let read = self.0.by_ref().take(MAX_LINE).read_line(&mut line);
        let lost = |cause: String| {
            ApiError::failed(format!(
                "lost the agent's stream, and with it the program: {cause}; check with `myelin ps` whether the agent \
                 still runs"
            ))
        };
        match read {
            Ok(0) => Err(lost("the agent has ended".to_owned())),
            Ok(_) => match serde_json::from_str(&line).map_err(|error| lost(error.to_string()))? {
                ExecEvent::Error(error) => Err(error),
                event => Ok(event),
            },
            Err(error) => Err(lost(error.to_string())),
        }
    }

    /// Whether a line has come, or the stream has ended.
    ///
    /// # Errors
    /// A system error.
    pub fn has_event(&self) -> Result<bool, ApiError> {
        if !self.0.buffer().is_empty() {
            return Ok(true);
        }
        let mut watched = [PollFd::new(self.as_fd(), PollFlags::POLLIN)];
        match poll(&mut watched, PollTimeout::ZERO) {
            Ok(ready) => Ok(ready > 0),
            Err(errno) => Err(ApiError::failed(format!(
                "cannot read the agent's stream: {errno}"
            ))),
        }
    }

    /// Sends a signal to the program's process group.
    ///
    /// # Errors
    /// The agent has ended.
    pub fn signal(&mut self, signal: i32) -> Result<(), ApiError> {
        let line = serde_json::to_string(&ExecSignal { signal }).map_err(ApiError::failed)?;
        let sent = self.0.get_mut().write_all(format!("{line}\n").as_bytes());
        sent.map_err(|error| ApiError::failed(format!("cannot signal the program: {error}")))
    }
}

impl AsFd for ExecStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.get_ref().as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_descriptors_cross_a_socket() {
        let (one, other) = UnixStream::pair().unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        let sent = [null.as_fd(), writer.as_fd(), writer.as_fd()];
        send_descriptors(&one, sent).unwrap();
        drop(writer);
        let [_, output, errors] = receive_descriptors(&other).unwrap();
        std::fs::File::from(output).write_all(b"x").unwrap();
        drop(errors);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "x");
    }

    #[test]
    fn too_many_descriptors_are_closed() {
        let (one, other) = UnixStream::pair().unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        let raw = [writer.as_raw_fd(); DESCRIPTORS * 4];
        let control = [ControlMessage::ScmRights(&raw)];
        let byte = [IoSlice::new(&[0])];
        sendmsg::<()>(one.as_raw_fd(), &byte, &control, MsgFlags::empty(), None).unwrap();
        drop(writer);
        let error = receive_descriptors(&other).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        // No copy of the writer is open.
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn a_client_that_sends_no_descriptors_is_refused() {
        let (mut one, other) = UnixStream::pair().unwrap();
        one.write_all(b"x").unwrap();
        let error = receive_descriptors(&other).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        drop(one);
        let error = receive_descriptors(&other).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
