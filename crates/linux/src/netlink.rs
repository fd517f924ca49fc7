//! Synchronous rtnetlink: sends requests and waits for every acknowledgement.
//!
//! Other files of this crate build [`Request`]s. A [`Netlink`] socket sends many requests in one
//! system call. A socket belongs to the namespace in which a thread opened the socket, even if the
//! thread then leaves that namespace.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use netlink_packet_core::{
    DecodeError, ErrorMessage, NLM_F_ACK, NLM_F_ACK_TLVS, NLM_F_CAPPED, NLM_F_CREATE, NLM_F_DUMP,
    NLM_F_DUMP_INTR, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage,
    NetlinkPayload, NlasIterator,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use nix::errno::Errno;

use crate::error::{Error, ErrorKind, Result};
use crate::netns::Netns;

/// Largest number of requests in one send. The acknowledgements, of about 1 KiB each, stay in the
/// receive buffer (208 KiB by default) until the kernel has processed the whole send.
const MAX_BATCH: usize = 64;
/// The kernel splits a dump into datagrams of at most 32 KiB (`NLMSG_GOODSIZE` and its upper
/// limit).
pub(crate) const RECEIVE_BYTES: usize = 1 << 16;
/// The extended acknowledgement starts with the request's header.
const HEADER_BYTES: usize = 16;
/// `NLMSGERR_ATTR_MSG`: the kernel's explanation.
const ATTRIBUTE_MESSAGE: u16 = 1;
/// Largest number of attempts at a dump. The socket repeats a dump during which the table changed.
const DUMP_ATTEMPTS: u32 = 16;
/// The pause after the second attempt; each further pause is longer by this time.
const DUMP_PAUSE: Duration = Duration::from_millis(2);

/// A change to send, built by [`crate::link`], [`crate::address`], [`crate::route`] or
/// [`crate::neighbour`]. The action completes "cannot ..." in the error and names the object.
#[derive(Debug)]
pub struct Request {
    action: String,
    message: RouteNetlinkMessage,
    flags: u16,
    /// Descriptors that the message names by number. The request keeps the descriptors open until
    /// the message is sent.
    files: Vec<OwnedFd>,
}

impl Request {
    /// Creates an object. An existing object is an error.
    pub(crate) fn create(action: String, message: RouteNetlinkMessage) -> Self {
        Self::new(action, message, NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Creates or overwrites an object.
    pub(crate) fn replace(action: String, message: RouteNetlinkMessage) -> Self {
        Self::new(action, message, NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Changes or deletes an existing object.
    pub(crate) fn change(action: String, message: RouteNetlinkMessage) -> Self {
        Self::new(action, message, 0)
    }

    fn new(action: String, message: RouteNetlinkMessage, flags: u16) -> Self {
        Self {
            action,
            message,
            flags,
            files: Vec::new(),
        }
    }

    /// Keeps files open that the message names.
    pub(crate) fn keep_open(mut self, files: Vec<OwnedFd>) -> Self {
        self.files = files;
        self
    }
}

/// An rtnetlink socket in one network namespace.
#[derive(Debug)]
pub struct Netlink {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Netlink {
    /// Opens a socket in the calling thread's namespace.
    pub fn open() -> Result<Self> {
        let failed = |error: io::Error| Error::os("open a netlink socket", error);
        let mut socket = Socket::new(NETLINK_ROUTE).map_err(failed)?;
        socket.bind_auto().map_err(failed)?;
        socket.connect(&SocketAddr::new(0, 0)).map_err(failed)?;
        // Ignore errors, because both options only improve the error text. All supported kernels
        // have these options.
        let _ = socket.set_ext_ack(true);
        let _ = socket.set_cap_ack(true);
        Ok(Self {
            socket,
            sequence: 0,
            buffer: Vec::with_capacity(RECEIVE_BYTES),
        })
    }

    /// Opens a socket in `namespace`.
    pub fn open_in(namespace: &Netns) -> Result<Self> {
        namespace.enter(Self::open)?
    }

    /// Returns the cookie of the socket's namespace: a number that no other namespace has until the
    /// machine restarts. (The kernel reuses the inode numbers of namespaces.)
    pub fn namespace_cookie(&self) -> Result<u64> {
        let mut cookie = 0_u64;
        let mut length = size_of::<u64>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes to `cookie`, which has that length.
        let result = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_NETNS_COOKIE,
                (&raw mut cookie).cast(),
                &raw mut length,
            )
        };
        Errno::result(result)
            .map(|_| cookie)
            .map_err(|errno| Error::os("read the cookie of a network namespace", errno))
    }

    /// Applies `requests` in order. Returns the first error. The kernel processes all requests of
    /// one send (up to 64), even after a failure. So a rollback must expect that later requests
    /// succeeded.
    pub fn apply(&mut self, requests: impl IntoIterator<Item = Request>) -> Result<()> {
        let mut requests = requests.into_iter().peekable();
        while requests.peek().is_some() {
            let batch: Vec<Request> = requests.by_ref().take(MAX_BATCH).collect();
            let messages = batch
                .iter()
                .map(|request| (&request.message, request.flags | NLM_F_ACK));
            let first = self.send(&batch[0].action, messages)?;
            let mut outcome = Ok(());
            for (sequence, request) in (first..).zip(&batch) {
                outcome = outcome.and(self.receive_acknowledgement(&request.action, sequence)?);
            }
            outcome?;
        }
        Ok(())
    }

    /// Reads one object.
    pub(crate) fn get(
        &mut self,
        action: &str,
        message: &RouteNetlinkMessage,
    ) -> Result<RouteNetlinkMessage> {
        let sequence = self.send(action, [(message, 0)])?;
        self.receive_answer(action, sequence, |payload, _| match payload {
            NetlinkPayload::InnerMessage(message) => Some(message),
            _ => None,
        })?
    }

    /// Reads all objects of a kind.
    pub(crate) fn dump(
        &mut self,
        action: &str,
        message: &RouteNetlinkMessage,
    ) -> Result<Vec<RouteNetlinkMessage>> {
        for attempt in 0..DUMP_ATTEMPTS {
            if let Some(objects) = self.try_dump(action, message)? {
                return Ok(objects);
            }
            // Another program may make hundreds of links at this moment.
            std::thread::sleep(DUMP_PAUSE * attempt);
        }
        Err(Error::new(
            action,
            ErrorKind::Busy,
            "the kernel's table changed during each attempt",
        )
        .remedy("try again"))
    }

    /// Returns `None` if the table changed during the dump, because objects may then be missing or
    /// doubled.
    fn try_dump(
        &mut self,
        action: &str,
        message: &RouteNetlinkMessage,
    ) -> Result<Option<Vec<RouteNetlinkMessage>>> {
        let sequence = self.send(action, [(message, NLM_F_DUMP)])?;
        let (mut objects, mut is_consistent) = (Vec::new(), true);
        let code = self.receive_answer(action, sequence, |payload, flags| {
            is_consistent &= flags & NLM_F_DUMP_INTR == 0;
            match payload {
                NetlinkPayload::InnerMessage(message) => objects.push(message),
                NetlinkPayload::Done(done) => return Some(done.code),
                _ => {}
            }
            None
        })??;
        match code {
            0 => Ok(is_consistent.then_some(objects)),
            code => Err(Error::os(action, io::Error::from_raw_os_error(code.abs()))),
        }
    }

    /// Sends `messages` in one system call. Returns the sequence number of the first message.
    fn send<'a>(
        &mut self,
        action: &str,
        messages: impl IntoIterator<Item = (&'a RouteNetlinkMessage, u16)>,
    ) -> Result<u32> {
        let first = self.sequence;
        let mut bytes = Vec::new();
        for (message, flags) in messages {
            let mut header = NetlinkHeader::default();
            header.flags = NLM_F_REQUEST | flags;
            header.sequence_number = self.sequence;
            self.sequence += 1;
            let mut message = NetlinkMessage::new(header, NetlinkPayload::from(message.clone()));
            message.finalize();
            // Each message ends on a 4-byte boundary (NLMSG_ALIGN), because all attributes are
            // padded.
            let start = bytes.len();
            bytes.resize(start + message.buffer_len(), 0);
            message.serialize(&mut bytes[start..]);
        }
        self.socket
            .send(&bytes, 0)
            .map_err(|error| Error::os(action, error))?;
        Ok(first)
    }

    fn receive_acknowledgement(&mut self, action: &str, sequence: u32) -> Result<Result<()>> {
        self.receive_answer(action, sequence, |payload, _| {
            matches!(payload, NetlinkPayload::Error(_)).then_some(())
        })
    }

    /// Passes the answers to request `sequence`, with the answers' flags, to `select` until
    /// `select` returns a value. The outer error is a failure to receive. The inner error is the
    /// kernel's answer.
    fn receive_answer<T>(
        &mut self,
        action: &str,
        sequence: u32,
        mut select: impl FnMut(NetlinkPayload<RouteNetlinkMessage>, u16) -> Option<T>,
    ) -> Result<Result<T>> {
        loop {
            for (payload, flags) in self.receive(action, sequence)? {
                match payload {
                    NetlinkPayload::Error(error) if error.code.is_some() => {
                        return Ok(Err(make_error(action, &error, flags)));
                    }
                    payload => {
                        if let Some(found) = select(payload, flags) {
                            return Ok(Ok(found));
                        }
                    }
                }
            }
        }
    }

    /// Returns the answers to request `sequence` in the next datagram. Ignores answers to an
    /// earlier dump that failed.
    fn receive(
        &mut self,
        action: &str,
        sequence: u32,
    ) -> Result<Vec<(NetlinkPayload<RouteNetlinkMessage>, u16)>> {
        self.buffer.clear();
        self.socket
            .recv(&mut self.buffer, 0)
            .map_err(|error| Error::os(action, error))?;
        let mut answers = Vec::new();
        let mut rest = self.buffer.as_slice();
        while let Some(message) = take_message(&mut rest) {
            let message = message.map_err(|error| {
                Error::new(
                    action,
                    ErrorKind::Other,
                    format!("the kernel's answer is malformed: {error}"),
                )
            })?;
            if message.header.sequence_number == sequence {
                answers.push((message.payload, message.header.flags));
            }
        }
        Ok(answers)
    }
}

/// Takes the first message from the rest of a datagram. Returns `None` at the end.
pub(crate) fn take_message(
    rest: &mut &[u8],
) -> Option<std::result::Result<NetlinkMessage<RouteNetlinkMessage>, DecodeError>> {
    if rest.is_empty() {
        return None;
    }
    let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest);
    if let Ok(message) = &message {
        let length = (message.header.length as usize)
            .next_multiple_of(4)
            .max(HEADER_BYTES);
        *rest = rest.get(length..).unwrap_or_default();
    }
    Some(message)
}

/// Makes an error. If the answer contains the kernel's explanation (`NETLINK_EXT_ACK`), the
/// explanation is the cause.
fn make_error(action: &str, answer: &ErrorMessage, flags: u16) -> Error {
    let error = Error::os(action, answer.to_io());
    let explained = NLM_F_ACK_TLVS | NLM_F_CAPPED;
    let attributes = answer
        .header
        .get(HEADER_BYTES..)
        .filter(|_| flags & explained == explained);
    let explanation = attributes.and_then(|attributes| {
        NlasIterator::new(attributes)
            .flatten()
            .find(|attribute| attribute.kind() == ATTRIBUTE_MESSAGE)
    });
    match explanation {
        Some(text) => {
            error.because(String::from_utf8_lossy(text.value()).trim_end_matches(['\0', '.']))
        }
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link;
    use crate::tests::{Namespace, root_or_skip};

    #[test]
    fn a_batch_longer_than_one_send_is_applied_in_order() {
        if !root_or_skip("a_batch_longer_than_one_send_is_applied_in_order") {
            return;
        }
        let namespace = Namespace::new("batch");
        let mut netlink = Netlink::open_in(&namespace).unwrap();
        let names: Vec<String> = (0..MAX_BATCH + 10)
            .map(|number| format!("br{number}"))
            .collect();
        netlink
            .apply(names.iter().map(|name| link::create_bridge(name).unwrap()))
            .unwrap();
        let bridges = |netlink: &mut Netlink| {
            let mut links = netlink.links().unwrap();
            links.retain(|link| link.name.starts_with("br"));
            links
        };
        let found = bridges(&mut netlink);
        assert_eq!(found.len(), names.len());
        netlink
            .apply(found.iter().map(|link| link::delete(&link.id())))
            .unwrap();
        assert!(bridges(&mut netlink).is_empty());
    }

    #[test]
    fn errors_contain_the_kernels_message_and_later_requests_are_applied() {
        if !root_or_skip("errors_contain_the_kernels_message_and_later_requests_are_applied") {
            return;
        }
        let namespace = Namespace::new("words");
        let mut netlink = Netlink::open_in(&namespace).unwrap();
        let lo = netlink.link("lo").unwrap().id();
        let error = netlink
            .apply([
                link::create_bridge("br0").unwrap(),
                link::create_bridge("br0").unwrap(),
                link::set_up(&lo),
            ])
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Exists);
        assert!(
            error
                .to_string()
                .starts_with("cannot create bridge `br0`: "),
            "{error}"
        );
        assert!(netlink.link("lo").unwrap().up);
        // The kernel explains that a bridge cannot be a port of a bridge.
        netlink
            .apply([link::create_bridge("br1").unwrap()])
            .unwrap();
        let bridges = ["br0", "br1"].map(|name| netlink.link(name).unwrap().id());
        let error = netlink
            .apply([link::enslave(&bridges[0], &bridges[1])])
            .unwrap_err();
        assert!(error.cause().contains("enslave a bridge"), "{error}");
    }
}
