//! The two sockets of a probe, each in the network namespace where its end stands.

use std::io;
use std::net::{SocketAddr, UdpSocket};

use myelin_linux::netns::Netns;
use nix::sys::socket::{setsockopt, sockopt};
use nix::{setsockopt_impl, sockopt_impl};

use crate::Error;

sockopt_impl!(
    /// RFC 1191's don't-fragment bit and path MTU discovery, which nix does not name.
    Ipv4MtuDiscover,
    SetOnly,
    libc::IPPROTO_IP,
    libc::IP_MTU_DISCOVER,
    libc::c_int
);
sockopt_impl!(
    /// The same for IPv6 (RFC 8201).
    Ipv6MtuDiscover,
    SetOnly,
    libc::IPPROTO_IPV6,
    libc::IPV6_MTU_DISCOVER,
    libc::c_int
);

/// The two ends. The measurement changes their blocking mode and read timeout as it needs.
#[derive(Debug)]
pub struct Sockets {
    /// Where packets leave and answers arrive; not connected, since a function may answer from another address.
    pub client: UdpSocket,
    /// Sends packets back to their source address.
    pub server: UdpSocket,
}

impl Sockets {
    /// Binds both ends: each in a namespace, or in the caller's own when none is given. Port 0 takes any free one.
    ///
    /// # Errors
    /// [`Error::System`] with the address that could not be bound and where.
    pub fn bind(
        client: (Option<&Netns>, SocketAddr),
        server: (Option<&Netns>, SocketAddr),
    ) -> Result<Self, Error> {
        Ok(Self {
            client: bind("client", client.0, client.1)?,
            server: bind("server", server.0, server.1)?,
        })
    }
}

/// Binds one end.
fn bind(end: &str, namespace: Option<&Netns>, local: SocketAddr) -> Result<UdpSocket, Error> {
    let bound = match namespace {
        None => UdpSocket::bind(local),
        Some(namespace) => namespace
            .enter(|| UdpSocket::bind(local))
            .unwrap_or_else(|error| Err(io::Error::other(error))),
    };
    bound.map_err(|error| {
        let place = namespace
            .and_then(Netns::name)
            .map_or_else(String::new, |name| format!(" in namespace `{name}`"));
        Error::system(
            format!("bind the probe's {end} to {local}{place}"),
            error,
            "is the address there, the port free, and the namespace yours to enter?",
        )
    })
}

/// Forbids fragments: a fragment carries no ports, so a chain would not take it for the same traffic, and a fragmented probe would measure
/// two packets. Too large a packet is then an error (EMSGSIZE).
pub(crate) fn forbid_fragments(socket: &UdpSocket) -> io::Result<()> {
    if socket.local_addr()?.is_ipv4() {
        setsockopt(socket, Ipv4MtuDiscover, &libc::IP_PMTUDISC_DO)?;
    } else {
        setsockopt(socket, Ipv6MtuDiscover, &libc::IPV6_PMTUDISC_DO)?;
    }
    Ok(())
}

/// Asks for a receive buffer of `bytes`; beyond `net.core.rmem_max` only root gets it, and less is no error.
pub(crate) fn widen_receive_buffer(socket: &UdpSocket, bytes: usize) {
    if setsockopt(socket, sockopt::RcvBufForce, &bytes).is_err() {
        let _ = setsockopt(socket, sockopt::RcvBuf, &bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_address_is_named() {
        let nowhere = "203.0.113.9:7".parse().unwrap();
        let text = bind("server", None, nowhere).unwrap_err().to_string();
        assert!(
            text.starts_with("cannot bind the probe's server to 203.0.113.9:7: Cannot assign"),
            "{text}"
        );
    }
}
