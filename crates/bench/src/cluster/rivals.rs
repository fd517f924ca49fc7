//! Chains of other systems: each function in a network namespace of its own, joined directly to
//! the next one, and over the switch where the chain changes its node.

use std::fmt::Write as _;
use std::fs::File;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use myelin_linux::link::Mac;
use myelin_linux::netlink::Netlink;
use myelin_linux::netns::Netns;
use myelin_linux::{neighbour, route, sysctl};

use super::probe::Ends;
use super::{DELAY_NS, PORT, address_of, impaired, key, namespaces, socket, topology_header};
use crate::Error;
use crate::agents::AgentProcess;
use crate::installed::find_packaged;
use crate::owned_child::{OwnedChild, read_all};

const SCRIPT: &str = include_str!("../../reference/python-forward.py");
/// Longest time until a Python function forwards.
const START_LIMIT: Duration = Duration::from_secs(20);

/// How a function of another system forwards packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Rival {
    /// The kernel's IP forwarding, which alters no payload.
    KernelForwarding,
    /// A Python program with packet sockets, which does what `xor` does.
    Python(PathBuf),
}

/// A running chain of another system. A drop removes it.
pub(crate) struct RivalChain<'a> {
    agent: &'a AgentProcess,
    topology: String,
    hosts: Vec<String>,
    rival: Rival,
    functions: Vec<(OwnedChild, File)>,
}

impl Rival {
    /// Finds Python.
    pub(crate) fn find_python() -> Result<Self, Error> {
        find_packaged("nsenter", "util-linux")?;
        find_packaged("python3", "python3").map(Self::Python)
    }
}

/// The client, the functions and the server in a line.
fn rival_text(name: &str, places: &[usize]) -> String {
    let mut text = topology_header(name);
    let functions: Vec<String> = (0..places.len()).map(|at| format!("f{at}")).collect();
    let crosses = |at: &usize| places[*at] != places[at + 1];
    let crossing: Vec<usize> = (0..places.len().saturating_sub(1))
        .filter(crosses)
        .collect();
    let switches: Vec<String> = crossing.iter().map(|at| format!("s{at}")).collect();
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "  hosts: [ client, {}, server ]",
        functions.join(", ")
    );
    if !switches.is_empty() {
        let _ = writeln!(text, "  switches: [ {} ]", switches.join(", "));
    }
    text.push_str("  links:\n    - { ends: [ client, f0 ] }\n");
    for (at, pair) in functions.windows(2).enumerate() {
        if crossing.contains(&at) {
            let switch = format!("s{at}");
            text.push_str(&impaired([&pair[0], &switch], DELAY_NS));
            text.push_str(&impaired([&switch, &pair[1]], DELAY_NS));
        } else {
            let _ = writeln!(text, "    - {{ ends: [ {}, {} ] }}", pair[0], pair[1]);
        }
    }
    let last = functions.last().map_or("client", String::as_str);
    let _ = writeln!(text, "    - {{ ends: [ {last}, server ] }}");
    text
}

impl<'a> RivalChain<'a> {
    /// Makes a chain with its functions on these nodes of a cluster.
    pub(crate) fn start(
        agent: &'a AgentProcess,
        rival: &Rival,
        places: &[usize],
    ) -> Result<Self, Error> {
        let topology = agent.dir.chain_name("rival");
        agent.up(rival_text(&topology, places))?;
        let mut chain = Self {
            hosts: namespaces(agent, &topology)?,
            agent,
            topology,
            rival: rival.clone(),
            functions: Vec::new(),
        };
        let python = match rival {
            Rival::KernelForwarding => {
                chain.route()?;
                return Ok(chain);
            }
            Rival::Python(python) => python,
        };
        // The server takes frames to its own address only, and no function answers for it.
        let server = chain.mac(chain.hosts.len() - 1)?;
        chain.send_to(0, "eth0", server)?;
        for position in 0..places.len() {
            // The kernel ends the program with this thread, so no other thread may start it.
            let mut command = Command::new("nsenter");
            command.arg(format!("--net=/run/netns/{}", chain.hosts[position + 1]));
            let key = key(position).to_string();
            command.arg(python);
            command.args(["-I", "-S", "-c", SCRIPT, "eth0", "eth1", &key]);
            chain.functions.push(OwnedChild::start_printing(command)?);
        }
        chain.wait_until_ready()?;
        Ok(chain)
    }

    fn wait_until_ready(&mut self) -> Result<(), Error> {
        let start = Instant::now();
        for (child, output) in &mut self.functions {
            loop {
                let text = read_all(output);
                if text.is_ok_and(|text| text.contains("ready")) {
                    break;
                }
                let ended = child.end_reason();
                if let Some(reason) = ended.or_else(|| {
                    let is_late = start.elapsed() > START_LIMIT;
                    is_late.then(|| "it does not start".to_owned())
                }) {
                    let peer = "a function in Python".to_owned();
                    return Err(Error::Peer { peer, reason });
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    }

    /// Lets all hosts between the client and the server forward to the next one.
    fn route(&self) -> Result<(), Error> {
        let last = self.hosts.len() - 1;
        for host in 0..last {
            let next = self.mac(host + 1)?;
            let interface = if host == 0 { "eth0" } else { "eth1" };
            if host > 0 {
                let netns = Netns::open(&self.hosts[host])?;
                netns.enter(|| sysctl::set("net/ipv4/ip_forward", "1"))??;
            }
            self.send_to(host, interface, next)?;
        }
        Ok(())
    }

    /// Lets a host send packets for the server at an interface, to an Ethernet address.
    fn send_to(&self, host: usize, interface: &str, next: Mac) -> Result<(), Error> {
        let server = IpAddr::from(address_of(self.hosts.len() - 1));
        let netns = Netns::open(&self.hosts[host])?;
        let mut netlink = Netlink::open_in(&netns)?;
        let link = netlink.link(interface)?.id();
        netlink.apply([
            route::add_on_link(&link, server, 32),
            neighbour::add_permanent(&link, server, next),
        ])?;
        Ok(())
    }

    /// The Ethernet address of the interface at which packets arrive.
    fn mac(&self, host: usize) -> Result<Mac, Error> {
        let netns = Netns::open(&self.hosts[host])?;
        let link = Netlink::open_in(&netns)?.link("eth0")?;
        let mac = link.mac;
        mac.ok_or_else(|| Error::Internal("a host's interface has no Ethernet address".to_owned()))
    }

    /// Sockets of the client and the server.
    pub(crate) fn ends(&self) -> Result<Ends, Error> {
        let last = self.hosts.len() - 1;
        let sockets = (socket(&self.hosts[0], 0)?, socket(&self.hosts[last], PORT)?);
        Ends::connect(sockets, address_of(last))
    }

    /// The functions that a payload tells.
    pub(crate) fn altering(&self) -> usize {
        match self.rival {
            Rival::KernelForwarding => 0,
            Rival::Python(_) => self.hosts.len() - 2,
        }
    }
}

impl Drop for RivalChain<'_> {
    fn drop(&mut self) {
        // The agent removes what remains when the experiment ends.
        let _ = self.agent.client.down(&self.topology);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_passes_the_switch_where_the_node_changes() {
        let text = rival_text("rival", &[0, 0, 1]);
        let objects = crate::agents::chain_source(text).parse_objects().unwrap();
        let line = &objects.topologies[0];
        assert_eq!((line.hosts.len(), line.switches.len()), (5, 1));
        let delay_ns: u64 = line
            .links
            .iter()
            .map(|link| link.impairments.delay_ns)
            .sum();
        assert_eq!(delay_ns, DELAY_NS);
        assert_eq!(line.hosts[4].addresses[0].address, address_of(4));
        let alone = crate::agents::chain_source(rival_text("rival", &[0]));
        assert_eq!(alone.parse_objects().unwrap().topologies[0].links.len(), 2);
    }
}
