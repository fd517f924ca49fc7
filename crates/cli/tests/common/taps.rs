//! End hosts behind DPDK devices.

use std::net::UdpSocket;
use std::process::Command;
use std::time::Duration;

use nix::sched::{CloneFlags, setns};

use super::{sh, skip};

/// Returns true, and prints a reason, if DPDK is not installed.
pub(crate) fn skip_without_dpdk() -> bool {
    match myelin_dpdk::version() {
        Ok(_) => false,
        Err(error) => {
            skip(&error.to_string());
            true
        }
    }
}

/// Two network namespaces, `a` and `b`. [`Self::add_links`] moves a link of the test into each.
/// Dropping the hosts removes the namespaces.
pub(crate) struct Hosts {
    tag: String,
}

impl Hosts {
    pub(crate) fn new(letter: char) -> Self {
        let tag = format!("{}{letter}", std::process::id());
        let hosts = Self { tag };
        for end in ["a", "b"] {
            sh(&format!("ip netns add {}", hosts.namespace(end)));
        }
        hosts
    }

    pub(crate) fn namespace(&self, end: &str) -> String {
        format!("myelin-tdpdk{}{end}", self.tag)
    }

    /// Returns the name of the link of this end.
    pub(crate) fn link(&self, end: &str) -> String {
        format!("my{}{end}", self.tag)
    }

    /// Moves the links into the namespaces; sets addresses and static neighbour entries.
    pub(crate) fn add_links(&self, links: [&str; 2]) {
        let macs = links.map(|link| {
            sh(&format!("cat /sys/class/net/{link}/address"))
                .trim()
                .to_owned()
        });
        for (at, end) in ["a", "b"].into_iter().enumerate() {
            let (namespace, link) = (self.namespace(end), links[at]);
            let other = &macs[1 - at];
            sh(&format!(
                "ip link set {link} netns {namespace}
                 ip -n {namespace} addr add 10.78.0.{}/24 dev {link}
                 ip -n {namespace} link set {link} up
                 ip -n {namespace} neigh replace 10.78.0.{} lladdr {other} dev {link}",
                at + 1,
                2 - at
            ));
        }
    }

    pub(crate) fn open_socket(&self, end: &str, address: &str) -> UdpSocket {
        let path = format!("/run/netns/{}", self.namespace(end));
        let address = address.to_owned();
        let socket = std::thread::spawn(move || {
            let namespace = std::fs::File::open(path).expect("the thread enters the namespace");
            setns(namespace, CloneFlags::CLONE_NEWNET).expect("the thread enters the namespace");
            UdpSocket::bind(address).expect("the socket binds")
        });
        let socket = socket.join().expect("the thread does not panic");
        socket
            .set_read_timeout(Some(Duration::from_secs(60)))
            .expect("the timeout is set");
        socket
    }

    /// Sends packets from `a` to `b`, which echoes them. Returns the first byte of each packet at
    /// `b`.
    pub(crate) fn echo_packets(&self, count: usize) -> Vec<u8> {
        let client = self.open_socket("a", "10.78.0.1:4000");
        let server = self.open_socket("b", "10.78.0.2:9000");
        let mut seen = Vec::new();
        for number in 0..count {
            let mut bytes = [0; 64];
            client
                .send_to(&[number as u8; 32], "10.78.0.2:9000")
                .expect("the datagram is sent");
            let (len, from) = server.recv_from(&mut bytes).expect("a datagram arrives");
            assert_eq!(len, 32);
            seen.push(bytes[0]);
            server
                .send_to(&bytes[..len], from)
                .expect("the datagram is sent");
            // Echoes match no chain, so they pass to the opposite device.
            assert_eq!(client.recv(&mut bytes).expect("the reply arrives"), 32);
        }
        seen
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for end in ["a", "b"] {
            let _ = Command::new("ip")
                .args(["netns", "del", &self.namespace(end)])
                .status();
        }
    }
}
