//! TCP streams through a chain, between a client and a server.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use myelin_linux::netns::Netns;

/// Longer than many super-packets.
const LENGTH: usize = 4 << 20;
/// Longest wait for a packet.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Two hosts that exchange streams.
pub(crate) struct Streams {
    client: Netns,
    listener: TcpListener,
    address: SocketAddr,
    sent: Vec<u8>,
}

impl Streams {
    /// Listens at the server's address.
    pub(crate) fn between(client: Netns, server: &Netns, address: &str) -> Self {
        let address = address.parse().expect("the address is valid");
        let listen = || TcpListener::bind(address).expect("the server listens");
        let listener = server.enter(listen).expect("the namespace opens");
        Self {
            client,
            listener,
            address,
            sent: (0..LENGTH).map(|at| (at / 7) as u8).collect(),
        }
    }

    /// Bytes of a stream.
    pub(crate) fn length(&self) -> usize {
        self.sent.len()
    }

    /// Connects, and passes a stream in each direction. Fails if a stream arrives changed or stops.
    pub(crate) fn pass_both_ways(&self, name: &str) {
        let connect = || TcpStream::connect_timeout(&self.address, PATIENCE);
        let client = self.client.enter(connect).expect("the namespace opens");
        let mut client = client.unwrap_or_else(|error| panic!("{name}: {error}"));
        let (mut server, _) = self.listener.accept().expect("the client connects");
        for stream in [&client, &server] {
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.set_write_timeout(Some(PATIENCE)).unwrap();
        }
        self.pass(&mut client, &mut server, name);
        self.pass(&mut server, &mut client, name);
    }

    fn pass(&self, from: &mut TcpStream, to: &mut TcpStream, name: &str) {
        let mut received = vec![0; self.sent.len()];
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| from.write_all(&self.sent));
            let read = to.read_exact(&mut received);
            read.unwrap_or_else(|error| panic!("{name}: {error}"));
            let written = writer.join().expect("the writer does not panic");
            written.unwrap_or_else(|error| panic!("{name}: {error}"));
        });
        assert!(received == self.sent, "{name}: the stream arrived changed");
    }
}
