//! The two sockets of a probe, each in the network namespace of its end.

use std::io;
use std::net::{SocketAddr, UdpSocket};

use myelin_linux::netns::Netns;
use nix::sys::socket::{setsockopt, sockopt};
use nix::{setsockopt_impl, sockopt_impl};

use crate::Error;

sockopt_impl!(
    /// Don't-fragment bit and path MTU discovery of IPv4 (RFC 1191). nix has no such option.
    Ipv4MtuDiscover,
    SetOnly,
    libc::IPPROTO_IP,
    libc::IP_MTU_DISCOVER,
    libc::c_int
);
sockopt_impl!(
    /// Path MTU discovery of IPv6 (RFC 8201).
    Ipv6MtuDiscover,
    SetOnly,
    libc::IPPROTO_IPV6,
    libc::IPV6_MTU_DISCOVER,
    libc::c_int
);

/// The sockets of both ends. The measurement changes their blocking mode and read timeout.
#[derive(Debug)]
pub struct Sockets {
    /// Sends packets and receives answers. This socket is not connected, because a function may
    /// answer from another address.
    pub client: UdpSocket,
    /// Sends packets back to their source address.
    pub server: UdpSocket,
}

impl Sockets {
    /// Binds both ends, each in its namespace, or in the caller's namespace for `None`. Port 0
    /// takes any free port.
    ///
    /// # Errors
    /// [`Error::System`] with the address and the namespace.
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
        let location = namespace
            .and_then(Netns::name)
            .map_or_else(String::new, |name| format!(" in namespace `{name}`"));
        Error::system(
            format!("bind the probe's {end} to {local}{location}"),
            error,
            "check that the address exists, that the port is free, and that you are root",
        )
    })
}

/// Forbids fragments. A fragment has no ports, so a chain would not match it, and a fragmented
/// probe would measure two packets. A too large packet is then an error (EMSGSIZE).
pub(crate) fn forbid_fragments(socket: &UdpSocket) -> io::Result<()> {
    if socket.local_addr()?.is_ipv4() {
        setsockopt(socket, Ipv4MtuDiscover, &libc::IP_PMTUDISC_DO)?;
    } else {
        setsockopt(socket, Ipv6MtuDiscover, &libc::IPV6_PMTUDISC_DO)?;
    }
    Ok(())
}

/// Requests a receive buffer of `bytes`. Only root gets more than `net.core.rmem_max`. A smaller
/// buffer is no error.
pub(crate) fn widen_receive_buffer(socket: &UdpSocket, bytes: usize) {
    if setsockopt(socket, sockopt::RcvBufForce, &bytes).is_err() {
        let _ = setsockopt(socket, sockopt::RcvBuf, &bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_names_the_refused_address() {
        let nowhere = "203.0.113.9:7".parse().unwrap();
        let text = bind("server", None, nowhere).unwrap_err().to_string();
        assert!(
            text.starts_with("cannot bind the probe's server to 203.0.113.9:7: Cannot assign"),
            "{text}"
        );
    }
}
