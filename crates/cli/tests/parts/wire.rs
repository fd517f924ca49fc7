//! A link between two parts, and the chain files of both parts.

use std::ffi::OsStr;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use super::common::port_pair::PortPair;
use super::common::{Myelin, sh, wait_for};

/// How frames pass the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// NSH on Ethernet.
    Ethernet,
    /// In VXLAN over IPv4.
    Vxlan4,
    /// In VXLAN over IPv6.
    Vxlan6,
}

/// A veth pair between two parts. Dropping the value removes it, and the second node.
pub(crate) struct Wire {
    way: Way,
    /// The end of the first part, and of the second part.
    pub(crate) ends: [String; 2],
    /// The namespace of the second node; `None` if one agent has both parts.
    pub(crate) node: Option<String>,
}

/// Ethernet addresses of the ends.
pub(crate) const MACS: [&str; 2] = ["02:00:00:78:00:01", "02:00:00:78:00:02"];

impl Wire {
    /// Makes the link with both ends in this namespace.
    pub(crate) fn new(way: Way) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let tag = format!("tw{}{number}", std::process::id());
        let ends = ["x", "y"].map(|end| format!("{tag}{end}"));
        let [x, y] = &ends;
        let [mac_x, mac_y] = MACS;
        sh(&format!(
            "ip link add {x} address {mac_x} type veth peer name {y} address {mac_y}
             ip link set {x} up; ip link set {y} up"
        ));
        Self {
            way,
            ends,
            node: None,
        }
    }

    /// Makes the link to a second node, whose namespace has the second end and the egress port.
    pub(crate) fn to_node(way: Way, ports: &PortPair) -> Self {
        let mut wire = Self::new(way);
        let node = format!("myelin-{}", wire.ends[0]);
        let ([x, y], egress) = (&wire.ends.clone(), &ports.egress);
        sh(&format!(
            "ip netns add {node}
             for link in {y} {egress}; do
                 ip link set $link netns {node}; ip -n {node} link set $link up
             done
             ip -n {node} link set lo up
             ip addr add 10.78.0.1/24 dev {x}; ip -n {node} addr add 10.78.0.2/24 dev {y}
             ip addr add 2001:db8:78::1/64 dev {x} nodad
             ip -n {node} addr add 2001:db8:78::2/64 dev {y} nodad"
        ));
        // Before that, the kernel sends no neighbour solicitation.
        wait_for("usable link-local addresses", || {
            let tentative = "addr show tentative dev";
            sh(&format!(
                "ip -6 {tentative} {x}; ip -6 -n {node} {tentative} {y}"
            ))
            .is_empty()
        });
        wire.node = Some(node);
        wire
    }

    /// Starts the second node's agent.
    pub(crate) fn start_agent(&self, myelin: &Myelin) -> Child {
        let agent = myelin.command(&["agent"]);
        let mut command = Command::new("ip");
        command.args([
            "netns",
            "exec",
            self.node.as_deref().expect("a second node"),
        ]);
        command.arg(agent.get_program()).args(agent.get_args());
        let set =
            |(name, value): (&OsStr, Option<&OsStr>)| Some((name.to_owned(), value?.to_owned()));
        command.envs(agent.get_envs().filter_map(set));
        let agent = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn();
        let agent = agent.expect("the agent starts");
        wait_for("the agent", || myelin.run_dir().join("agent.sock").exists());
        agent
    }

    /// The neighbour of the part at `end`, as YAML.
    pub(crate) fn neighbour(&self, end: usize) -> String {
        let interface = &self.ends[end];
        let vxlan = |addresses: [&str; 2]| {
            format!(
                "{{ interface: {interface}, vxlan: {{ local: \"{}\", remote: \"{}\", vni: 7 }} }}",
                addresses[end],
                addresses[1 - end]
            )
        };
        match self.way {
            Way::Ethernet => format!("{{ interface: {interface}, peer: \"{}\" }}", MACS[1 - end]),
            Way::Vxlan4 => vxlan(["10.78.0.1", "10.78.0.2"]),
            Way::Vxlan6 => vxlan(["2001:db8:78::1", "2001:db8:78::2"]),
        }
    }

    /// Returns the two parts `NAME1` and `NAME2` of a chain from `ports[0]` to `ports[1]`, which
    /// passes the wire from the end `from`.
    pub(crate) fn parts(
        &self,
        (name, path): (&str, u32),
        (rule, ports): (&str, [&str; 2]),
        (from, functions): (usize, [&str; 2]),
        spec: &str,
    ) -> [String; 2] {
        let counts = functions.map(|list| list.matches("name:").count());
        let length = counts[0] + counts[1];
        let head = |part: u8| {
            format!(
                "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: {{ name: @{name}{part} }}
spec:
"
            )
        };
        let [ingress, egress] = ports;
        let (near, far) = (self.neighbour(from), self.neighbour(1 - from));
        [
            format!(
                "{}  match: {{ {rule} }}
  functions: {}
  ports: {{ ingress: {ingress} }}
  part: {{ path: {path}, first: 0, length: {length}, to: {near} }}
{spec}",
                head(1),
                functions[0]
            ),
            format!(
                "{}  functions: {}
  ports: {{ egress: {egress} }}
  part: {{ path: {path}, first: {}, length: {length}, from: {far} }}
{spec}",
                head(2),
                functions[1],
                counts[0]
            ),
        ]
    }

    /// Returns a chain file: the parts `there1` and `there2` of a chain to the server, and the
    /// parts `back1` and `back2` of a chain back.
    pub(crate) fn both_ways(&self, ports: &PortPair, functions: [&str; 2], spec: &str) -> String {
        let names = [ports.ingress.as_str(), ports.egress.as_str()];
        let [there1, there2] = self.parts(
            ("there", 0x80_0001),
            ("destination: 10.77.0.2", names),
            (0, functions),
            spec,
        );
        let [back1, back2] = self.parts(
            ("back", 0x80_0002),
            ("source: 10.77.0.2", [names[1], names[0]]),
            (1, functions),
            spec,
        );
        [there1, there2, back1, back2].join("---")
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        let node = self.node.as_deref().unwrap_or_default();
        sh(&format!(
            "ip link del {} || true; test -z '{node}' || ip netns del {node}",
            self.ends[0]
        ));
    }
}
