//! Creates two hosts, each in a network namespace. The hosts' links end in the test's namespace.
//! The drop removes the hosts and their links.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use myelin_kernel::{Exit, Opposite, PortConfig};

use crate::common::is_root;

/// The longest wait for a packet. A later packet counts as lost.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// The time without a packet after which a test expects no packet.
pub(crate) const SILENCE: Duration = Duration::from_millis(200);

/// A host: its namespace, its address, and the test's end of its link.
pub(crate) struct Host {
    pub(crate) namespace: String,
    pub(crate) address: Ipv4Addr,
    /// The end of the link in the test's namespace.
    pub(crate) link: String,
    pub(crate) ifindex: u32,
}

/// Two hosts without a link between them.
pub(crate) struct Net {
    pub(crate) client: Host,
    pub(crate) server: Host,
}

impl Net {
    /// Creates the hosts. If that is impossible, prints the reason and returns `None`.
    pub(crate) fn new() -> Option<Self> {
        if !is_root() {
            return None;
        }
        for tool in ["ip", "ethtool"] {
            if Command::new(tool)
                .arg("--version")
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .is_err()
            {
                println!("SKIP: needs the program {tool}");
                return None;
            }
        }
        Some(Self {
            client: Host::new(1),
            server: Host::new(2),
        })
    }

    pub(crate) fn hosts(&self) -> [&Host; 2] {
        [&self.client, &self.server]
    }

    /// Returns the port that takes the client's packets.
    pub(crate) fn client_port(&self, peer: bool) -> PortConfig {
        port(&self.client, &self.server, peer)
    }

    /// Returns the port that takes the server's packets.
    pub(crate) fn server_port(&self, peer: bool) -> PortConfig {
        port(&self.server, &self.client, peer)
    }

    /// Returns the exit to the server.
    pub(crate) fn to_server(&self, peer: bool) -> Exit {
        Exit::Egress {
            ifindex: self.server.ifindex,
            peer,
            by_stack: false,
        }
    }
}

fn port(host: &Host, opposite: &Host, peer: bool) -> PortConfig {
    PortConfig {
        name: host.link.clone(),
        ifindex: host.ifindex,
        single_queue: false,
        behind_link: myelin_kernel::BehindLink::No,
        discards: false,
        opposite: Some(Opposite {
            ifindex: opposite.ifindex,
            peer,
        }),
    }
}

impl Host {
    fn new(number: u8) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let unique = format!(
            "{}-{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        let mut host = Self {
            namespace: format!("myelin-t{unique}"),
            address: Ipv4Addr::new(10, 77, 0, number),
            link: format!("my{unique}"),
            ifindex: 0,
        };
        ip(&["netns", "add", &host.namespace]);
        ip(&[
            "link",
            "add",
            &host.link,
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            &host.namespace,
        ]);
        // An IPv6 host sends unrequested packets, and the tests count packets.
        disable_ipv6(&host.link);
        host.inside(|| disable_ipv6("eth0"));
        ip(&["link", "set", &host.link, "up"]);
        host.ip(&["link", "set", "eth0", "up"]);
        host.ip(&["link", "set", "lo", "up"]);
        host.ip(&[
            "address",
            "add",
            &format!("{}/24", host.address),
            "dev",
            "eth0",
        ]);
        let name = CString::new(host.link.as_str()).unwrap();
        // SAFETY: the name is a C string that lives through the call.
        let ifindex = unsafe { libc::if_nametoindex(name.as_ptr()) };
        assert_ne!(ifindex, 0, "`ip` did not create the link {}", host.link);
        host.ifindex = ifindex;
        host
    }

    /// Runs `ip` in the host's namespace.
    pub(crate) fn ip(&self, arguments: &[&str]) {
        ip(&[&["-n", &self.namespace], arguments].concat());
    }

    /// Returns the hardware address of the host's interface.
    pub(crate) fn mac(&self) -> String {
        self.inside(|| {
            // Use `ip`, because /sys shows the namespace of its mount.
            let links = Command::new("ip")
                .args(["-o", "link", "show", "eth0"])
                .output()
                .unwrap();
            let links = String::from_utf8(links.stdout).unwrap();
            let mut words = links
                .split_whitespace()
                .skip_while(|word| *word != "link/ether");
            words.nth(1).unwrap().to_owned()
        })
    }

    /// Sets offloads of the host's interface.
    pub(crate) fn set_offloads(&self, settings: &[&str]) {
        let command = [
            &["netns", "exec", &self.namespace, "ethtool", "-K", "eth0"],
            settings,
        ]
        .concat();
        ip(&command);
    }

    /// Runs `work` on a thread in the host's namespace. Sockets that `work` opens belong to the
    /// namespace.
    pub(crate) fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let namespace = File::open(format!("/run/netns/{}", self.namespace)).unwrap();
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                // SAFETY: the call affects only this thread, which ends with `work`.
                let result = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) };
                assert_eq!(result, 0, "{}", io::Error::last_os_error());
                work()
            });
            thread.join().unwrap()
        })
    }

    /// Opens a UDP socket of the host.
    pub(crate) fn open_udp(&self, port: u16) -> UdpSocket {
        let socket =
            self.inside(|| UdpSocket::bind(SocketAddrV4::new(self.address, port)).unwrap());
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    }

    /// Sends an unchanged frame from the host's interface.
    pub(crate) fn send_frame(&self, frame: &[u8]) {
        self.inside(|| {
            // SAFETY: the call opens a socket and accesses no memory.
            let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW, 0) };
            assert!(fd >= 0, "{}", io::Error::last_os_error());
            // SAFETY: this function has just opened `fd`, and no other code closes `fd`.
            let socket = unsafe { OwnedFd::from_raw_fd(fd) };
            // SAFETY: all zero is a valid address of this type.
            let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
            to.sll_family = libc::AF_PACKET as u16;
            // SAFETY: the name is a C string.
            to.sll_ifindex = unsafe { libc::if_nametoindex(c"eth0".as_ptr()) }.cast_signed();
            // SAFETY: frame and address are valid for reads of the given lengths.
            let sent = unsafe {
                libc::sendto(
                    socket.as_raw_fd(),
                    frame.as_ptr().cast(),
                    frame.len(),
                    0,
                    (&raw const to).cast(),
                    size_of::<libc::sockaddr_ll>() as u32,
                )
            };
            assert_eq!(
                sent,
                frame.len().cast_signed(),
                "{}",
                io::Error::last_os_error()
            );
        });
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // The kernel removes the link with its other end.
        let _ = Command::new("ip")
            .args(["link", "delete", &self.link])
            .stderr(Stdio::null())
            .status();
        let _ = Command::new("ip")
            .args(["netns", "delete", &self.namespace])
            .stderr(Stdio::null())
            .status();
    }
}

fn disable_ipv6(link: &str) {
    // A kernel without IPv6 has no such file.
    let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{link}/disable_ipv6"), "1");
}

/// Runs `ip`.
pub(crate) fn ip(arguments: &[&str]) {
    let output = Command::new("ip").args(arguments).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "ip {}: {message}",
        arguments.join(" ")
    );
}

/// Waits until `read` returns the expected value, because a send returns before the programs have
/// counted the packet.
pub(crate) fn wait_for<T: PartialEq + std::fmt::Debug>(expected: &T, read: impl Fn() -> T) {
    let start = Instant::now();
    loop {
        let seen = read();
        if seen == *expected {
            return;
        }
        assert!(
            start.elapsed() < PATIENCE,
            "{seen:?} instead of {expected:?}"
        );
        std::thread::yield_now();
    }
}

/// Receives the next datagram. Returns `None` after `patience`.
pub(crate) fn receive(socket: &UdpSocket, patience: Duration) -> Option<Vec<u8>> {
    socket.set_read_timeout(Some(patience)).unwrap();
    let mut buffer = [0; 2048];
    socket
        .recv(&mut buffer)
        .ok()
        .map(|len| buffer[..len].to_vec())
}
