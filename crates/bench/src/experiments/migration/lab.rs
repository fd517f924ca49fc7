//! Two base stations with a client, an agent at each station, and four servers of a quarter core.

use std::fmt::Write as _;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use myelin_api::{
    ApiError, ContainerName, ContainerRequest, LinkChange, LinkRequest, TopologyStatus,
};
use myelin_linux::link::Mac;
use myelin_linux::netlink::Netlink;
use myelin_linux::netns::Netns;
use myelin_linux::{address, neighbour, sysctl};
use myelin_measure::clock::now_ns;

use super::traffic::Traffic;
use crate::agents::AgentProcess;
use crate::{Error, Session};

/// The address of the service, on whichever server it runs.
const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 100);
/// UDP port of services.
const PORT: u16 = 9000;
/// TCP ports at which the service and the server that agents measure take requests.
const SERVICE_CONTROL: u16 = 9002;
const MEASURED_CONTROL: u16 = 9001;
/// The servers: two at each station.
pub(super) const SERVERS: [&str; 4] = ["e1", "e2", "e3", "e4"];
const STATIONS: [&str; 2] = ["bs1", "bs2"];
/// Requests of an agent to a server for a measurement.
const PROBES: u32 = 20;
/// Time between them.
const PROBE_INTERVAL: Duration = Duration::from_millis(10);
/// A request without an answer counts as this.
const PROBE_LIMIT: Duration = Duration::from_secs(1);
/// Longest wait for the start of a service, and for the transfer of a state.
const PATIENCE: Duration = Duration::from_secs(60);
const PROGRAM: &str = include_str!("../../../reference/migration-service.py");

/// A running network.
pub(super) struct Lab {
    pub(super) agent: AgentProcess,
    pub(super) topology: String,
    pub(super) servers: Vec<Server>,
    client: Netns,
    /// Sockets of the agent at each station, one to each server.
    probes: Vec<Vec<UdpSocket>>,
}

/// A server.
pub(super) struct Server {
    pub(super) name: &'static str,
    netns: Netns,
    address: Ipv4Addr,
    mac: Mac,
}

/// How a server starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    /// It serves at once.
    Serving,
    /// It waits for a state.
    Waiting,
}

impl Lab {
    pub(super) fn start(session: Session<'_>) -> Result<Self, Error> {
        let agent = AgentProcess::start(session.program)?;
        let topology = agent.dir.chain_name("edge");
        agent.up(topology_text(&topology))?;
        let all = agent.client.topologies()?;
        let status = all.into_iter().find(|status| status.name == topology);
        let status = status.ok_or_else(|| ApiError::failed("the topology does not run"))?;
        let servers: Vec<Server> = SERVERS
            .into_iter()
            .map(|name| Server::prepare(&status, name))
            .collect::<Result<_, _>>()?;
        let client = Netns::open(&host_of(&status, "client")?.netns)?;
        let mut netlink = Netlink::open_in(&client)?;
        let link = netlink.link("eth0")?.id();
        // The chain gives frames the address of the server.
        let nowhere = Mac([2, 0, 0, 0, 0, 100]);
        netlink.apply([neighbour::add_permanent(&link, SERVICE.into(), nowhere)])?;
        let mut lab = Self {
            agent,
            topology,
            servers,
            client,
            probes: Vec::new(),
        };
        for server in &lab.servers {
            let arguments = [server.address.to_string(), MEASURED_CONTROL.to_string()];
            lab.add_service((server.name, "measured"), &arguments)?;
        }
        for server in &lab.servers {
            lab.wait_until_it_serves((server.name, "measured"))?;
        }
        for agent in ["a1", "a2"] {
            let netns = Netns::open(&host_of(&status, agent)?.netns)?;
            let servers = lab.servers.iter();
            let sockets = servers.map(|server| connected_socket(&netns, server.address));
            lab.probes.push(sockets.collect::<Result<_, _>>()?);
        }
        Ok(lab)
    }

    /// Starts the client's datagrams to the service.
    pub(super) fn start_traffic(&self) -> Result<Traffic, Error> {
        Ok(Traffic::start(connected_socket(&self.client, SERVICE)?))
    }

    /// Moves the client to a station.
    pub(super) fn move_client(&self, station: usize) -> Result<(), Error> {
        let request = LinkRequest {
            topology: Some(self.topology.clone()),
            link: "access".to_owned(),
            from: None,
            change: LinkChange::Move(STATIONS[station].to_owned()),
        };
        Ok(self.agent.client.change_link(&request).map(drop)?)
    }

    /// The latency of each server as the agent of a station measures it: the mean time from a
    /// request to its answer, ms.
    pub(super) fn latencies_ms(&self, station: usize) -> Result<Vec<f64>, Error> {
        let measured = thread::scope(|scope| {
            let sockets = self.probes[station].iter();
            let threads: Vec<_> = sockets
                .map(|socket| scope.spawn(|| latency_ms(socket)))
                .collect();
            let all = threads.into_iter();
            let join = |thread: thread::ScopedJoinHandle<'_, io::Result<f64>>| {
                thread
                    .join()
                    .unwrap_or_else(|_| Err(io::Error::other("a thread ended")))
            };
            all.map(join).collect::<io::Result<Vec<f64>>>()
        });
        measured.map_err(|cause| Error::system("measure the latency of a server", cause))
    }

    /// Starts the service on a server, and waits until it listens.
    pub(super) fn start_service(&self, server: usize, start: Start) -> Result<(), Error> {
        let mut arguments = vec![SERVICE.to_string(), SERVICE_CONTROL.to_string()];
        if start == Start::Waiting {
            arguments.push("waits".to_owned());
        }
        let container = (SERVERS[server], "service");
        self.add_service(container, &arguments)?;
        self.wait_until_it_serves(container)
    }

    fn add_service(&self, container: (&str, &str), arguments: &[String]) -> Result<(), Error> {
        let mut command = vec!["python3".to_owned(), "-c".to_owned(), PROGRAM.to_owned()];
        command.extend_from_slice(arguments);
        self.add_container(container, command)
    }

    pub(super) fn add_container(
        &self,
        (host, name): (&str, &str),
        command: Vec<String>,
    ) -> Result<(), Error> {
        let request = ContainerRequest {
            host: format!("{}/{host}", self.topology),
            name: name.to_owned(),
            command,
            ..ContainerRequest::default()
        };
        Ok(self.agent.client.add_container(&request).map(drop)?)
    }

    pub(super) fn remove_container(&self, (host, name): (&str, &str)) -> Result<(), Error> {
        let container = self.container((host, name));
        Ok(self.agent.client.remove_container(&container).map(drop)?)
    }

    fn container(&self, (host, name): (&str, &str)) -> ContainerName {
        ContainerName {
            host: format!("{}/{host}", self.topology),
            name: name.to_owned(),
        }
    }

    fn wait_until_it_serves(&self, container: (&str, &str)) -> Result<(), Error> {
        let name = self.container(container);
        let start = Instant::now();
        loop {
            let log = self.agent.client.container_log(&name)?.text;
            if log.contains("serves") {
                return Ok(());
            }
            if start.elapsed() > PATIENCE {
                return Err(service_error(format!(
                    "it does not start on {}: {log}",
                    container.0
                )));
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Hands the client's packets for the service to a server, by this chain.
    pub(super) fn up_chain(
        &self,
        chain: &str,
        match_port: bool,
        server: usize,
    ) -> Result<(), Error> {
        self.agent.up(chain_text(
            &self.topology,
            chain,
            match_port,
            &self.servers[server],
        ))
    }

    /// Sends as many bytes as a state has from a server to another one. Returns the time, ms.
    pub(super) fn transfer_ms(&self, [from, to]: [usize; 2], bytes: u64) -> Result<f64, Error> {
        let to = &self.servers[to];
        let line = format!("send {} {MEASURED_CONTROL} {bytes}\n", to.address);
        self.request(from, MEASURED_CONTROL, &line)
    }

    /// Transfers the state of the service. The old service pauses before it.
    pub(super) fn transfer_state(
        &self,
        [from, to]: [usize; 2],
        bytes: u64,
        pause_ms: u64,
    ) -> Result<f64, Error> {
        let to = &self.servers[to];
        let line = format!(
            "export {} {SERVICE_CONTROL} {bytes} {pause_ms}\n",
            to.address
        );
        self.request(from, SERVICE_CONTROL, &line)
    }

    /// Sends a request to a server's control port. Returns the time until it is done, ms.
    fn request(&self, server: usize, port: u16, line: &str) -> Result<f64, Error> {
        let server = &self.servers[server];
        let exchange = || -> io::Result<String> {
            let mut connection = TcpStream::connect((server.address, port))?;
            connection.set_read_timeout(Some(PATIENCE))?;
            connection.write_all(line.as_bytes())?;
            let mut answer = String::new();
            connection.read_to_string(&mut answer)?;
            Ok(answer)
        };
        let start = Instant::now();
        let answer = server.netns.enter(exchange)?;
        let ms = start.elapsed().as_secs_f64() * 1e3;
        match answer {
            Ok(answer) if answer == "stored\n" => Ok(ms),
            Ok(_) => Err(service_error(format!(
                "`{}` failed on {}",
                line.trim(),
                server.name
            ))),
            Err(cause) => Err(Error::system("transfer a state", cause)),
        }
    }
}

impl Server {
    /// Gives the server the address of the service, for which it answers no ARP request.
    fn prepare(status: &TopologyStatus, name: &'static str) -> Result<Self, Error> {
        let host = host_of(status, name)?;
        let netns = Netns::open(&host.netns)?;
        let mac = netns.enter(|| -> Result<_, myelin_linux::Error> {
            sysctl::set("net/ipv4/conf/all/arp_ignore", "1")?;
            // Each transfer starts as the first one.
            sysctl::set("net/ipv4/tcp_no_metrics_save", "1")?;
            let mut netlink = Netlink::open()?;
            let loopback = netlink.link("lo")?.id();
            netlink.apply([address::add(&loopback, SERVICE.into(), 32)])?;
            Ok(netlink.link("eth0")?.mac)
        })??;
        let own = host
            .addresses
            .first()
            .and_then(|text| text.split('/').next());
        let own = own.and_then(|text| text.parse().ok());
        let (Some(mac), Some(IpAddr::V4(address))) = (mac, own) else {
            return Err(ApiError::failed(format!("host {name} has no address")).into());
        };
        Ok(Self {
            name,
            netns,
            address,
            mac,
        })
    }
}

fn service_error(reason: String) -> Error {
    Error::Peer {
        peer: "the service".to_owned(),
        reason,
    }
}

fn host_of<'a>(
    status: &'a TopologyStatus,
    name: &str,
) -> Result<&'a myelin_api::TopologyHost, Error> {
    let found = status.hosts.iter().find(|host| host.name == name);
    Ok(found.ok_or_else(|| ApiError::failed(format!("the topology has no host {name}")))?)
}

fn connected_socket(netns: &Netns, to: Ipv4Addr) -> Result<UdpSocket, Error> {
    let open = || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.set_read_timeout(Some(PROBE_LIMIT))?;
        socket.connect(SocketAddr::from((to, PORT)))?;
        Ok(socket)
    };
    let opened: io::Result<UdpSocket> = netns.enter(open)?;
    opened.map_err(|cause| Error::system("open a socket on a host", cause))
}

/// The mean time from a request to its answer, ms.
fn latency_ms(socket: &UdpSocket) -> io::Result<f64> {
    let mut total = Duration::ZERO;
    for _ in 0..PROBES {
        thread::sleep(PROBE_INTERVAL);
        let start = Instant::now();
        let stamp = now_ns().to_be_bytes();
        socket.send(&stamp)?;
        let mut answer = [0; 16];
        loop {
            match socket.recv(&mut answer) {
                Ok(_) if answer[..8] == stamp => break,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        total += start.elapsed();
    }
    Ok(total.as_secs_f64() * 1e3 / f64::from(PROBES))
}

fn topology_text(name: &str) -> String {
    let (mut hosts, mut links) = (String::new(), String::new());
    for (number, server) in SERVERS.iter().enumerate() {
        // Writing to a string cannot fail.
        let _ = write!(hosts, ", {{ name: {server}, cpu: 0.25cores }}");
        let _ = writeln!(
            links,
            "    - {{ ends: [ {server}, {} ] }}",
            STATIONS[number / 2]
        );
    }
    format!(
        "apiVersion: myelin.dev/v1alpha1\nkind: Topology\nmetadata: {{ name: {name} }}\nspec:\n  \
         hosts: [ client, a1, a2{hosts} ]\n  switches: [ bs1, bs2 ]\n  links:\n    \
         - {{ ends: [ bs1, bs2 ], delay: 8ms, bandwidth: 100Mbit, queue: 1000 }}\n    \
         - {{ name: access, ends: [ client, bs1 ] }}\n    \
         - {{ ends: [ a1, bs1 ] }}\n    - {{ ends: [ a2, bs2 ] }}\n{links}"
    )
}

fn chain_text(topology: &str, chain: &str, match_port: bool, server: &Server) -> String {
    let port = if match_port {
        format!(", destinationPort: {PORT}")
    } else {
        String::new()
    };
    format!(
        "apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: {{ name: {topology}-{chain} }}\n\
         spec:\n  match: {{ protocol: udp, destination: {SERVICE}/32{port} }}\n  functions:\n    \
         - {{ name: steer, kind: router, space: kernel, config: {{ routes: [ \
         {{ prefix: {SERVICE}/32, mac: \"{}\" }} ] }} }}\n  \
         ports: {{ ingress: {topology}/client, egress: {topology}/{} }}\n",
        server.mac, server.name
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_are_valid() {
        let objects = crate::agents::chain_source(topology_text("edge")).parse_objects();
        let edge = &objects.unwrap().topologies[0];
        assert_eq!(edge.hosts.len(), 7);
        assert_eq!(
            edge.link("bs1-bs2").unwrap().impairments.delay_ns,
            8_000_000
        );
        let server = Server {
            name: "e1",
            netns: Netns::current().unwrap(),
            address: SERVICE,
            mac: Mac([2, 0, 0, 0, 0, 1]),
        };
        for match_port in [false, true] {
            let text = chain_text("edge", "general", match_port, &server);
            let text = format!("{}---\n{text}", topology_text("edge"));
            let objects = crate::agents::chain_source(text).parse_objects().unwrap();
            assert_eq!(objects.chains.len(), 1);
        }
    }
}
