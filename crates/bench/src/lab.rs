//! A live topology: an agent in its own process, and sockets in the hosts.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use myelin_api::{ApiError, TopologyStatus};
use myelin_linux::netns::Netns;

use crate::Error;
use crate::agents::AgentProcess;

/// Longest time until a datagram arrives.
const PATIENCE: Duration = Duration::from_secs(20);
/// Time until the next datagram, longer than the delays of all links on a way.
const GREETING_INTERVAL: Duration = Duration::from_millis(100);

/// A running topology. A drop removes it.
pub(crate) struct Lab {
    pub(crate) agent: AgentProcess,
    /// The name of the topology.
    pub(crate) name: String,
}

impl Lab {
    /// Brings up the file that `text` returns. `text` gets the name of the topology; the names of
    /// chains begin with it.
    pub(crate) fn start(program: &Path, text: impl FnOnce(&str) -> String) -> Result<Self, Error> {
        let agent = AgentProcess::start(program)?;
        let name = agent.dir.chain_name("lab");
        agent.up(text(&name))?;
        Ok(Self { agent, name })
    }

    pub(crate) fn status(&self) -> Result<TopologyStatus, Error> {
        let all = self.agent.client.topologies()?;
        let found = all.into_iter().find(|topology| topology.name == self.name);
        Ok(found.ok_or_else(|| ApiError::failed("the topology does not run"))?)
    }

    /// Opens a socket in a host, by the host's number in the topology.
    pub(crate) fn socket(&self, host: usize, port: u16) -> Result<UdpSocket, Error> {
        let hosts = self.status()?.hosts;
        let netns = hosts.get(host).map(|host| host.netns.as_str());
        let netns = Netns::open(netns.unwrap_or_default())?;
        let bound = netns.enter(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)))?;
        bound.map_err(|cause| Error::system("open a socket on a host", cause))
    }

    /// Returns the number of packets that left all chains, when no packet left for `pause`.
    pub(crate) fn packets_of_chains(&self, pause: Duration) -> Result<u64, Error> {
        let mut before = u64::MAX;
        loop {
            let chains = self.agent.client.list()?;
            let left = chains.iter().map(|chain| chain.packets_out).sum();
            if left == before {
                return Ok(left);
            }
            before = left;
            thread::sleep(pause);
        }
    }
}

/// The address of a host, by its number in the topology.
pub(crate) fn address_of(host: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, host as u8 + 1)
}

/// Sends from a connected socket until a datagram arrives, so that all addresses on the way are
/// known. Returns the sender's address.
pub(crate) fn greet(sender: &UdpSocket, receiver: &UdpSocket) -> io::Result<SocketAddr> {
    receiver.set_read_timeout(Some(GREETING_INTERVAL))?;
    let start = Instant::now();
    loop {
        sender.send(&[])?;
        if let Ok((_, address)) = receiver.recv_from(&mut []) {
            return Ok(address);
        }
        if start.elapsed() > PATIENCE {
            return Err(io::Error::other("no datagram arrives"));
        }
    }
}

/// Drops the late datagrams of [`greet`]. From then on no read of the socket waits.
pub(crate) fn drain(receiver: &UdpSocket) -> io::Result<()> {
    while receiver.recv(&mut []).is_ok() {}
    receiver.set_nonblocking(true)
}
