//! A relay that injects faults between the ends of a probe, and two namespaces joined by a link.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::net::{SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use myelin_linux::netns::{self, Netns};
use myelin_measure::{Config, Mode, Sockets};

/// Maps the n-th datagram of a direction to the datagrams that the relay sends.
pub(crate) type Policy = Box<dyn FnMut(usize, Vec<u8>) -> Vec<Vec<u8>> + Send>;

pub(crate) fn forward_unchanged() -> Policy {
    Box::new(|_, datagram| vec![datagram])
}

/// Drops, doubles, delays or changes datagrams between a client and a server.
pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Relay {
    pub(crate) fn start(server: SocketAddr, forward: Policy, reply: Policy) -> Self {
        let near = UdpSocket::bind("127.0.0.1:0").unwrap();
        let far = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = near.local_addr().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let client = Arc::new(std::sync::Mutex::new(None));
        let pump = |from: UdpSocket, to: UdpSocket, mut policy: Policy, upstream: bool| {
            let (stop, client) = (stop.clone(), client.clone());
            from.set_read_timeout(Some(Duration::from_millis(20)))
                .unwrap();
            std::thread::spawn(move || {
                let mut buffer = [0; 2048];
                let mut n = 0;
                while !stop.load(Ordering::Relaxed) {
                    let Ok((length, peer)) = from.recv_from(&mut buffer) else {
                        continue;
                    };
                    let target = if upstream {
                        *client.lock().unwrap() = Some(peer);
                        server
                    } else {
                        client.lock().unwrap().unwrap()
                    };
                    for datagram in policy(n, buffer[..length].to_vec()) {
                        to.send_to(&datagram, target).unwrap();
                    }
                    n += 1;
                }
            })
        };
        let threads = vec![
            pump(
                near.try_clone().unwrap(),
                far.try_clone().unwrap(),
                forward,
                true,
            ),
            pump(far, near, reply, false),
        ];
        Self {
            address,
            stop,
            threads,
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Two namespaces joined by a veth pair: 10.77.0.1 and 10.77.0.2.
pub(crate) struct Pair {
    pub(crate) client: Netns,
    pub(crate) server: Netns,
    names: [String; 2],
}

pub(crate) const CLIENT: &str = "10.77.0.1:0";
pub(crate) const SERVER: &str = "10.77.0.2:9000";

impl Pair {
    /// Makes the namespaces. Returns `None` and prints the reason if the user is not root.
    pub(crate) fn new(test: &str) -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            println!("skipped {test}: network namespaces need root");
            return None;
        }
        let names = ["c", "s"].map(|end| format!("myelin-t{}-{test}-{end}", std::process::id()));
        let [client, server] = names.each_ref().map(|name| Netns::create(name).unwrap());
        let pair = Self {
            client,
            server,
            names,
        };
        let [client, server] = &pair.names;
        ip(&[
            "-n", client, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns",
            server,
        ]);
        for (name, address) in [(client, "10.77.0.1/24"), (server, "10.77.0.2/24")] {
            ip(&["-n", name, "addr", "add", address, "dev", "eth0"]);
            ip(&["-n", name, "link", "set", "eth0", "up"]);
        }
        Some(pair)
    }

    pub(crate) fn sockets(&self) -> Sockets {
        Sockets::bind(
            (Some(&self.client), CLIENT.parse().unwrap()),
            (Some(&self.server), SERVER.parse().unwrap()),
        )
        .unwrap()
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = netns::delete(name);
        }
    }
}

pub(crate) fn ip(arguments: &[&str]) {
    let status = Command::new("ip").args(arguments).status().unwrap();
    assert!(status.success(), "ip {arguments:?}");
}

/// Binds the sockets of both ends on loopback.
pub(crate) fn sockets() -> Sockets {
    let any = || (None, "127.0.0.1:0".parse().unwrap());
    Sockets::bind(any(), any()).unwrap()
}

/// A configuration with 100 packets in two repeats, one packet each millisecond.
pub(crate) fn config(mode: Mode) -> Config {
    Config {
        mode,
        interval: Duration::from_millis(1),
        count: 50,
        repeats: 2,
        warm_up: 0,
        // On a busy machine, a thread may wait this long for a core.
        timeout: Duration::from_secs(4),
        deadline: Duration::from_secs(120),
        ..Config::new("127.0.0.1:1".parse().unwrap())
    }
}
