//! The controller of an OpenFlow switch: where the switch connects to.

use std::fmt;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// The address of a controller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ControllerAddress {
    /// An address that the agent's machine reaches.
    Tcp(SocketAddr),
    /// A port of the loopback of a host or node of the topology.
    Host {
        /// The host's name.
        host: String,
        /// The port.
        port: u16,
    },
    /// The path of a Unix socket on this machine.
    Unix(String),
}

/// Longest path of a Unix socket (`sun_path` without its last zero).
const MAX_SOCKET_PATH: usize = 107;

impl ControllerAddress {
    /// Parses an address. `is_host` tells whether a host or node has a name.
    pub(crate) fn parse(text: &str, is_host: impl Fn(&str) -> bool) -> Result<Self, &'static str> {
        if let Some(path) = text.strip_prefix("unix:") {
            return match path {
                _ if !path.starts_with('/') => {
                    Err("the path of the socket does not begin with `/`")
                }
                _ if path.len() > MAX_SOCKET_PATH => Err("the path of the socket is too long"),
                _ if path.chars().any(char::is_control) => Err("the path has a control character"),
                _ => Ok(Self::Unix(path.to_owned())),
            };
        }
        let Some(address) = text.strip_prefix("tcp:") else {
            return Err("it begins with neither `tcp:` nor `unix:`");
        };
        if let Ok(address) = address.parse::<SocketAddr>() {
            return match address.port() {
                0 => Err("port 0 is the port of no program"),
                _ => Ok(Self::Tcp(address)),
            };
        }
        let (host, port) = address.rsplit_once(':').ok_or("it has no port")?;
        let port = port.parse().ok().filter(|port| *port != 0);
        let port = port.ok_or("its port is not 1 to 65535")?;
        if !is_host(host) {
            return Err(
                "no host and no node of this topology has that name, and it is no IP address",
            );
        }
        let host = host.to_owned();
        Ok(Self::Host { host, port })
    }
}

impl fmt::Display for ControllerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "tcp:{address}"),
            Self::Host { host, port } => write!(f, "tcp:{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{path}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_and_shown_alike() {
        let parse = |text: &str| ControllerAddress::parse(text, |name| name == "c0");
        for text in [
            "tcp:127.0.0.1:6653",
            "tcp:[fd00::1]:6653",
            "tcp:c0:6633",
            "unix:/run/controller.sock",
        ] {
            assert_eq!(parse(text).unwrap().to_string(), text);
        }
        for (text, words) in [
            ("127.0.0.1:6653", "neither"),
            ("tcp:c0", "no port"),
            ("tcp:c0:0", "1 to 65535"),
            ("tcp:127.0.0.1:0", "port 0"),
            ("tcp:c0:65536", "1 to 65535"),
            ("tcp:c1:6653", "no host"),
            ("tcp:fd00::1:6653", "no host"),
            ("unix:run", "begin with `/`"),
            ("unix:/\n", "control"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
        assert!(parse(&format!("unix:/{}", "x".repeat(107))).is_err());
    }
}
