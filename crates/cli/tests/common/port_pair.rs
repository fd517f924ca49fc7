//! Interfaces that `ip` made, for chains with `spec.ports`.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use myelin_linux::netns::Netns;

use super::{sh, skip};

/// Ethernet address of the server.
const SERVER_MAC: &str = "02:00:00:77:00:02";

/// Identifier of the VLAN of [`PortPair::stack`].
const VLAN: u16 = 5;

/// Returns true, and prints a reason, if the kernel has no links of this kind (`vlan` or `bond`).
pub(crate) fn skip_without_link_kind(kind: &str) -> bool {
    let name = format!("tp{}k", std::process::id());
    let description = match kind {
        "vlan" => format!("link {name} type vlan id {VLAN}"),
        _ => format!("type {kind}"),
    };
    let command = format!(
        "ip link add {name} type veth peer name {name}p
         ip link add {name}u {description} && ip link del {name}u; status=$?
         ip link del {name}; exit $status"
    );
    let output = Command::new("sh").args(["-c", &command]).output();
    let output = output.expect("sh runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let is_missing = ["Unknown device type", "Operation not supported"]
        .iter()
        .any(|words| text.contains(words));
    assert!(output.status.success() || is_missing, "{text}");
    if is_missing {
        skip(&format!("the kernel has no links of kind {kind}"));
    }
    is_missing
}

/// Two interfaces for a chain with `spec.ports`, and an end host behind each, with the kernel's
/// default offloads. Dropping the pair removes the hosts.
pub(crate) struct PortPair {
    tag: String,
    /// The interface that receives the client's packets.
    pub(crate) ingress: String,
    /// The interface that transmits to the server.
    pub(crate) egress: String,
}

impl PortPair {
    pub(crate) fn new() -> Self {
        // The kernel removes links some time after their namespace, so names are never reused.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let tag = format!(
            "{}{}",
            std::process::id(),
            (b'm' + NEXT.fetch_add(1, Ordering::Relaxed) as u8) as char
        );
        let (ingress, egress) = (format!("tp{tag}a"), format!("tp{tag}b"));
        let (client, server) = (format!("myelin-tp{tag}c"), format!("myelin-tp{tag}s"));
        let pair = Self {
            tag,
            ingress,
            egress,
        };
        sh(&format!(
            "ip netns add {client}; ip netns add {server}
             ip link add {one} type veth peer name eth0 netns {client}
             ip link add {two} type veth peer name eth0 address {SERVER_MAC} netns {server}
             ip link set {one} up; ip link set {two} up
             ip -n {client} addr add 10.77.0.1/24 dev eth0; ip -n {client} link set eth0 up
             ip -n {server} addr add 10.77.0.2/24 dev eth0; ip -n {server} link set eth0 up
             ip -n {client} neigh add 10.77.0.2 lladdr {SERVER_MAC} dev eth0
             mac=$(ip netns exec {client} cat /sys/class/net/eth0/address)
             ip -n {server} neigh add 10.77.0.1 lladdr $mac dev eth0",
            one = pair.ingress,
            two = pair.egress,
        ));
        pair
    }

    /// Returns the text of a chain file with `spec.ports` of this pair.
    pub(crate) fn add_to(&self, text: &str) -> String {
        text.replace("10.0.0.2/32", "10.77.0.2/32").replace(
            "  functions:",
            &format!(
                "  ports: {{ ingress: {}, egress: {} }}\n  functions:",
                self.ingress, self.egress
            ),
        )
    }

    /// Makes a link of this kind over each interface: a bridge or a bond with the interface as its
    /// member, a macvlan, or a VLAN device. The pair then names these. With VLAN devices the hosts
    /// use VLAN devices too.
    pub(crate) fn stack(&mut self, kind: &str) {
        if kind == "vlan" {
            self.move_hosts_into_vlan();
        }
        for (port, letter) in [(&mut self.ingress, 'u'), (&mut self.egress, 'v')] {
            let upper = format!("tp{}{letter}", self.tag);
            sh(&match kind {
                "bridge" => format!(
                    "ip link add {upper} type bridge; ip link set {port} master {upper}
                     ip link set {upper} up"
                ),
                "bond" => format!(
                    "ip link add {upper} type bond mode active-backup; ip link set {port} down
                     ip link set {port} master {upper}; ip link set {upper} up"
                ),
                "macvlan" => format!(
                    "ip link add {upper} link {port} type macvlan mode passthru
                     ip link set {upper} up"
                ),
                "vlan" => format!(
                    "ip link add {upper} link {port} type vlan id {VLAN}; ip link set {upper} up"
                ),
                _ => panic!("no interface of kind {kind}"),
            });
            *port = upper;
        }
    }

    /// Moves the addresses of the hosts to VLAN devices. The hosts' packets then have a tag, and so
    /// do packets at the interfaces.
    pub(crate) fn move_hosts_into_vlan(&self) {
        let hosts = [
            (self.client_namespace(), 1, 2),
            (self.server_namespace(), 2, 1),
        ];
        for (host, own, other) in hosts {
            sh(&format!(
                "mac=$(ip -n {host} neigh show 10.77.0.{other} | awk '{{ print $5 }}')
                 ip -n {host} addr flush dev eth0
                 ip -n {host} link add eth0.{VLAN} link eth0 type vlan id {VLAN}
                 ip -n {host} addr add 10.77.0.{own}/24 dev eth0.{VLAN}
                 ip -n {host} link set eth0.{VLAN} up
                 ip -n {host} neigh add 10.77.0.{other} lladdr $mac dev eth0.{VLAN}"
            ));
        }
    }

    /// Gives the hosts IPv6 addresses, `fd77::1` and `fd77::2`.
    pub(crate) fn add_ipv6(&self) {
        let (client, server) = (self.client_namespace(), self.server_namespace());
        sh(&format!(
            "mac=$(ip netns exec {client} cat /sys/class/net/eth0/address)
             ip -n {client} addr add fd77::1/64 dev eth0 nodad
             ip -n {server} addr add fd77::2/64 dev eth0 nodad
             ip -n {client} neigh add fd77::2 lladdr {SERVER_MAC} dev eth0
             ip -n {server} neigh add fd77::1 lladdr $mac dev eth0"
        ));
    }

    /// Sets the MTU of both interfaces and of the hosts' interfaces.
    pub(crate) fn set_mtu(&self, mtu: usize) {
        sh(&format!(
            "ip link set {} mtu {mtu}; ip link set {} mtu {mtu}
             ip -n {} link set eth0 mtu {mtu}; ip -n {} link set eth0 mtu {mtu}",
            self.ingress,
            self.egress,
            self.client_namespace(),
            self.server_namespace(),
        ));
    }

    /// Deletes the ingress interface, which also deletes the client's interface.
    pub(crate) fn delete_ingress(&self) {
        sh(&format!("ip link del {}", self.ingress));
    }

    /// Deletes the egress interface, which also deletes the server's interface.
    pub(crate) fn delete_egress(&self) {
        sh(&format!("ip link del {}", self.egress));
    }

    /// Makes the ingress interface and the client's interface again. Both are new links.
    pub(crate) fn make_ingress(&self) {
        self.make_ingress_with("");
    }

    /// Makes the ingress interface again with these properties (arguments of `ip link add`).
    pub(crate) fn make_ingress_with(&self, properties: &str) {
        let client = format!("myelin-tp{}c", self.tag);
        sh(&format!(
            "ip link add {one} {properties} type veth peer name eth0 netns {client}
             ip -n {client} addr add 10.77.0.1/24 dev eth0; ip -n {client} link set eth0 up
             ip -n {client} neigh add 10.77.0.2 lladdr {SERVER_MAC} dev eth0
             ip link set {one} up",
            one = self.ingress
        ));
    }

    /// Makes the egress interface and the server's interface again. Both are new links.
    pub(crate) fn make_egress(&self) {
        let server = format!("myelin-tp{}s", self.tag);
        sh(&format!(
            "ip link add {two} type veth peer name eth0 address {SERVER_MAC} netns {server}
             ip -n {server} addr add 10.77.0.2/24 dev eth0; ip -n {server} link set eth0 up
             ip link set {two} up",
            two = self.egress
        ));
    }

    /// Moves the interfaces into a new namespace between the hosts. Returns the namespace's name.
    pub(crate) fn add_router(&self) -> String {
        let router = format!("myelin-tp{}r", self.tag);
        sh(&format!(
            "ip netns add {router}
             for port in {} {}; do
                 ip link set $port netns {router}; ip -n {router} link set $port up
             done",
            self.ingress, self.egress
        ));
        router
    }

    /// Sets the MTU of both hosts.
    pub(crate) fn set_host_mtu(&self, mtu: u32) {
        for host in [self.client_namespace(), self.server_namespace()] {
            sh(&format!("ip -n {host} link set eth0 mtu {mtu}"));
        }
    }

    /// Counts the packets that the server received.
    pub(crate) fn count_received(&self) -> u64 {
        let statistics = "/sys/class/net/eth0/statistics/rx_packets";
        let text = sh(&format!(
            "ip netns exec myelin-tp{}s cat {statistics}",
            self.tag
        ));
        text.trim().parse().expect("the file has a number")
    }

    /// The server's MAC address.
    pub(crate) fn server_mac(&self) -> String {
        let address = "cat /sys/class/net/eth0/address";
        let text = sh(&format!("ip netns exec myelin-tp{}s {address}", self.tag));
        text.trim().to_owned()
    }

    /// The name of the client's namespace.
    pub(crate) fn client_namespace(&self) -> String {
        format!("myelin-tp{}c", self.tag)
    }

    /// The name of the server's namespace.
    pub(crate) fn server_namespace(&self) -> String {
        format!("myelin-tp{}s", self.tag)
    }

    /// Opens the namespace of the host behind the ingress interface.
    pub(crate) fn open_client(&self) -> Netns {
        Netns::open(&format!("myelin-tp{}c", self.tag)).expect("the client's namespace opens")
    }

    /// Opens the namespace of the host behind the egress interface.
    pub(crate) fn open_server(&self) -> Netns {
        Netns::open(&format!("myelin-tp{}s", self.tag)).expect("the server's namespace opens")
    }

    /// Returns a chain file: one chain to the server, one chain back, with these functions (a YAML
    /// list in flow style) in each and these lines in `spec`.
    pub(crate) fn both_ways(&self, functions: &str, spec: &str) -> String {
        let chain = |name: &str, reverse: &str, rule: &str, [ingress, egress]: [&str; 2]| {
            format!(
                "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: {{ name: @{name} }}
spec:
  match: {{ {rule}: 10.77.0.2 }}
  functions: {functions}
  ports: {{ ingress: {ingress}, egress: {egress} }}
  reverse: @{reverse}
{spec}"
            )
        };
        let ports = [self.ingress.as_str(), self.egress.as_str()];
        format!(
            "{}---{}",
            chain("there", "back", "destination", ports),
            chain("back", "there", "source", [ports[1], ports[0]])
        )
    }

    /// Runs a Python program on the host behind the ingress interface.
    pub(crate) fn run_on_client(&self, program: &str) -> String {
        let netns = format!("myelin-tp{}c", self.tag);
        sh(&format!("ip netns exec {netns} python3 -c '{program}'"))
    }

    /// Describes the interfaces as `ip -d link show` does.
    pub(crate) fn show_links(&self) -> String {
        sh(&format!(
            "ip -d link show {}; ip -d link show {}",
            self.ingress, self.egress
        ))
    }

    /// Sends ten datagrams from the client to a port of the server.
    pub(crate) fn send_ten(&self, port: u16) {
        sh(&format!(
            "ip netns exec myelin-tp{}c python3 -c \"
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for i in range(10): s.sendto(b'x' * 100, ('10.77.0.2', {port}))\"",
            self.tag
        ));
    }
}

impl Drop for PortPair {
    fn drop(&mut self) {
        let tag = &self.tag;
        sh(&format!(
            "ip netns del myelin-tp{tag}c; ip netns del myelin-tp{tag}s
             test ! -e /run/netns/myelin-tp{tag}r || ip netns del myelin-tp{tag}r
             for upper in tp{tag}u tp{tag}v; do
                 ! ip link show $upper || ip link del $upper
             done"
        ));
    }
}
