//! Connects an OpenFlow switch with its controller: a Unix socket at which the agent listens, and
//! for each connection one to the controller.
//!
//! The switch is in a network namespace without a way out, and its user may open no other socket.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use myelin_linux::netns::Netns;
use myelin_spec::ControllerAddress;
use nix::sys::socket;

use crate::api::ApiError;
use crate::pool::lock;

/// Longest wait for the controller's answer to a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Time between two looks at a thread that ends.
const PAUSE: Duration = Duration::from_millis(1);

/// A relay. Dropping the value closes its connections.
pub(super) struct Relay {
    listener: UnixListener,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    is_stopping: AtomicBool,
    /// The connection: to the switch, and to the controller.
    session: Mutex<Option<[Stream; 2]>>,
}

impl Relay {
    /// Listens at `socket`. With `netns`, the controller is in that namespace.
    pub(super) fn start(
        socket: &Path,
        controller: ControllerAddress,
        netns: Option<Netns>,
    ) -> Result<Self, ApiError> {
        let failed = |error: io::Error| {
            ApiError::failed(format!(
                "cannot listen at {} for an OpenFlow switch: {error}; if the path is too long, use a shorter `--run-dir`",
                socket.display()
            ))
        };
        let listener = UnixListener::bind(socket).map_err(failed)?;
        let accepting = listener.try_clone().map_err(failed)?;
        let shared = Arc::<Shared>::default();
        let own = Arc::clone(&shared);
        let serve = move || {
            for switch in accepting.incoming() {
                if own.is_stopping.load(Ordering::Acquire) {
                    return;
                }
                // The switch tries again after a second.
                let Ok(switch) = switch else {
                    thread::sleep(Duration::from_millis(100));
                    continue;
                };
                if let Ok(controller) = connect(&controller, netns.as_ref()) {
                    let _ = own.relay(Stream::Unix(switch), controller);
                }
            }
        };
        let thread = thread::Builder::new().name("openflow".to_owned());
        Ok(Self {
            listener,
            thread: Some(thread.spawn(serve).map_err(failed)?),
            shared,
        })
    }

    /// Whether the switch has a connection to its controller.
    pub(super) fn is_connected(&self) -> bool {
        lock(&self.shared.session).is_some()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.is_stopping.store(true, Ordering::Release);
        self.shared.close();
        // Wakes the thread.
        let _ = socket::shutdown(self.listener.as_raw_fd(), socket::Shutdown::Both);
        // A controller that accepts nothing holds up no topology: such a thread ends by itself.
        let deadline = Instant::now() + 2 * CONNECT_TIMEOUT;
        if let Some(thread) = self.thread.take() {
            while !thread.is_finished() && Instant::now() < deadline {
                thread::sleep(PAUSE);
            }
        }
    }
}

impl Shared {
    /// Copies both directions until one end closes.
    fn relay(&self, switch: Stream, controller: Stream) -> io::Result<()> {
        // A failure leaves no session behind.
        let session = [switch.try_clone()?, controller.try_clone()?];
        let (from_switch, to_switch) = (switch.try_clone()?, switch);
        let (from_controller, to_controller) = (controller.try_clone()?, controller);
        *lock(&self.session) = Some(session);
        if self.is_stopping.load(Ordering::Acquire) {
            self.close();
        }
        thread::scope(|scope| {
            scope.spawn(|| {
                copy(from_switch, to_controller);
                self.close();
            });
            copy(from_controller, to_switch);
            self.close();
        });
        *lock(&self.session) = None;
        Ok(())
    }

    fn close(&self) {
        for stream in lock(&self.session).iter().flatten() {
            stream.shutdown();
        }
    }
}

/// Copies until an end closes or fails.
fn copy(mut from: Stream, mut to: Stream) {
    let mut buffer = [0; 16 << 10];
    loop {
        match from.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(0) | Err(_) => return,
            Ok(read) => {
                if to.write_all(&buffer[..read]).is_err() {
                    return;
                }
            }
        }
    }
}

fn connect(controller: &ControllerAddress, netns: Option<&Netns>) -> io::Result<Stream> {
    let tcp = |address: SocketAddr| {
        let stream = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT)?;
        // A message waits for no other.
        stream.set_nodelay(true)?;
        Ok(Stream::Tcp(stream))
    };
    match (controller, netns) {
        (ControllerAddress::Unix(path), _) => UnixStream::connect(path).map(Stream::Unix),
        (ControllerAddress::Tcp(address), _) => tcp(*address),
        (ControllerAddress::Host { port, .. }, Some(netns)) => {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, *port));
            netns.enter(|| tcp(address)).map_err(io::Error::other)?
        }
        (ControllerAddress::Host { .. }, None) => Err(io::ErrorKind::NotFound.into()),
    }
}

/// A connected socket.
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn try_clone(&self) -> io::Result<Self> {
        match self {
            Self::Tcp(stream) => stream.try_clone().map(Self::Tcp),
            Self::Unix(stream) => stream.try_clone().map(Self::Unix),
        }
    }

    fn shutdown(&self) {
        // The other end may have closed it.
        let _ = match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Self::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(buffer),
            Self::Unix(stream) => stream.write(buffer),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_pass_and_the_end_of_one_connection_permits_the_next() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("controller");
        let controller = UnixListener::bind(&path).unwrap();
        let address = ControllerAddress::Unix(path.display().to_string());
        let socket = directory.path().join("relay");
        let relay = Relay::start(&socket, address, None).unwrap();
        for _ in 0..2 {
            let mut switch = UnixStream::connect(&socket).unwrap();
            let (mut accepted, _) = controller.accept().unwrap();
            let mut buffer = [0; 5];
            switch.write_all(b"hello").unwrap();
            accepted.read_exact(&mut buffer).unwrap();
            accepted.write_all(b"world").unwrap();
            switch.read_exact(&mut buffer).unwrap();
            assert_eq!(&buffer, b"world");
            assert!(relay.is_connected());
            drop(accepted);
            assert_eq!(switch.read(&mut buffer).unwrap(), 0);
        }
        // No controller: the connection ends at once.
        drop(controller);
        let mut switch = UnixStream::connect(&socket).unwrap();
        assert_eq!(switch.read(&mut [0]).unwrap(), 0);
        assert!(!relay.is_connected());
        drop(relay);
    }

    #[test]
    fn a_drop_ends_a_connection() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("controller");
        let controller = UnixListener::bind(&path).unwrap();
        let address = ControllerAddress::Unix(path.display().to_string());
        let socket = directory.path().join("relay");
        let relay = Relay::start(&socket, address, None).unwrap();
        let mut switch = UnixStream::connect(&socket).unwrap();
        let (_accepted, _) = controller.accept().unwrap();
        drop(relay);
        assert_eq!(switch.read(&mut [0]).unwrap(), 0);
    }
}
