//! What packets cost that come in bursts and belong to several chains in turn, at one port, to the far end.
//!
//! A program that is run again and again has its code and state in the caches next to the core; a crowd of chains drives each other's out. So a function
//! costs more there than alone, and a bound must count on the crowd.

use std::net::{SocketAddr, UdpSocket};

use myelin_linux::netlink::Netlink;
use myelin_linux::netns::Netns;
use myelin_linux::packet_socket::PacketSender;
use myelin_linux::{affinity, napi};
use myelin_planner::costs::InBurst;
use myelin_planner::{Cost, Machine};
use myelin_spec::Space;

use super::bursts::{self, Bursts, Seen, Senders};
use super::direct::SERVER;
use super::{FRAMES, at_least_nothing, frame};
use crate::api::{ApiError, ChainSource, ChainUp};
use crate::engine::{Engine, Monitor, cores};
use crate::hold::Hold;

/// Chains of a crowd.
const CHAINS: usize = 8;
/// Functions of each chain of the one crowd and of the other.
const FUNCTIONS: [usize; 2] = [1, 16];
/// Kinds that leave a packet's length and ports as they are; a chain's functions are these in turn.
const KINDS: [(&str, &str); 5] = [
    ("forward", ""),
    ("xor", "{ key: 90 }"),
    (
        "firewall",
        "{ rules: [ { action: deny, source: 192.0.2.0/24 } ] }",
    ),
    ("monitor", "{ flows: 1024 }"),
    ("flow-tracker", "{ flows: 1024 }"),
];
/// The chain that makes the links and drops what comes: where its packets go. Those of the crowds go to the ports behind it.
const DROPPED: u16 = 9000;

/// What was measured.
pub(super) struct Crowd {
    /// What packets in bursts cost.
    pub(super) in_burst: InBurst,
    /// By crowd and frame, how long the slowest of a round's long bursts takes, and the burst in the middle, ns.
    pub(super) slowest_ns: Vec<(f64, f64)>,
}

/// What is known of packets that come alone: of a function of that kind there, its call included; and from a frame's arrival at XDP to the door's end.
pub(super) struct Alone<'a> {
    pub(super) function: &'a dyn Fn(&str, Space) -> Cost,
    pub(super) to_door: [f64; FRAMES.len()],
}

/// Measures. `None` where one core is all there is, or the thread that keeps a core may not; or where receive work has no threads (before Linux 5.12).
pub(super) fn measure(
    engine: &Engine,
    rounds: usize,
    alone: &Alone<'_>,
    monitor: &Monitor<'_>,
) -> Result<Option<Crowd>, ApiError> {
    let core = Machine::with_end_hosts(cores()).default_core() as usize;
    let before = affinity::get(0).map_err(ApiError::failed)?;
    let Some(&here) = before.iter().find(|one| **one != core) else {
        return Ok(None);
    };
    let hold = Hold::of(core, false);
    if hold.take().is_err() {
        return Ok(None);
    }
    hold.release();
    let of = |space| {
        let Some(place) = Place::of(engine, space, core)? else {
            return Ok(None);
        };
        // The agent's own threads stay on all cores, and chains are told of these.
        affinity::set(0, &[here]).map_err(ApiError::failed)?;
        let found = place.measure(&hold, rounds, monitor);
        affinity::set(0, &before).map_err(ApiError::failed)?;
        found.map(Some)
    };
    let found = of(Space::Kernel).and_then(|kernel| Ok((kernel, of(Space::User)?)));
    let (Some((kernel, _)), Some((user, dropped_ns))) = found? else {
        return Ok(None);
    };
    let slowest_ns = kernel.iter().chain(&user);
    let slowest_ns = slowest_ns.flat_map(|bursts| bursts.slowest_ns);
    Ok(Some(Crowd {
        slowest_ns: slowest_ns.collect(),
        in_burst: in_burst(&kernel, &user, dropped_ns, alone),
    }))
}

/// By the crowds of a space, one after the other.
type Crowds = [Bursts; FUNCTIONS.len()];

fn in_burst(
    kernel: &Crowds,
    user: &Crowds,
    dropped_ns: [f64; FRAMES.len()],
    alone: &Alone<'_>,
) -> InBurst {
    let frames = || 0..FRAMES.len();
    let more = |crowds: &Crowds, space: Space| {
        let [few, many] = crowds;
        let figures = frames().map(|frame| {
            let functions = (many.each_ns[frame] - few.each_ns[frame]) * CHAINS as f64;
            let known = |count: usize| known_ns(alone, space, count, FRAMES[frame] as u64);
            let calls = (CHAINS * (FUNCTIONS[1] - FUNCTIONS[0])) as f64;
            (functions - known(FUNCTIONS[1]) + known(FUNCTIONS[0])) / calls
        });
        Cost::new(figures.fold(0.0, f64::max), 0.0)
    };
    let in_worker = |frame: usize| {
        let function_ns = known_ns(alone, Space::User, 1, FRAMES[frame] as u64);
        user[0].each_ns[frame] - function_ns / CHAINS as f64
    };
    // Up to the door as a packet that comes alone; and from there to the worker's ring.
    let at_port =
        |frame: usize| alone.to_door[frame] + (user[0].sent_ns[frame] - dropped_ns[frame]).max(0.0);
    InBurst {
        kernel: at_least_nothing(kernel[0].each_ns),
        port: at_least_nothing(std::array::from_fn(at_port)),
        worker: at_least_nothing(std::array::from_fn(in_worker)),
        kernel_function: more(kernel, Space::Kernel),
        user_function: more(user, Space::User),
    }
}

/// What the functions of all chains of a crowd cost alone, each chain with so many, ns.
fn known_ns(alone: &Alone<'_>, space: Space, count: usize, bytes: u64) -> f64 {
    let all = (0..CHAINS).flat_map(|chain| functions(chain, count));
    all.map(|(kind, _)| (alone.function)(kind, space).at_ns(bytes))
        .sum()
}

fn functions(chain: usize, count: usize) -> impl Iterator<Item = (&'static str, &'static str)> {
    (0..count).map(move |place| KINDS[(chain + place) % KINDS.len()])
}

/// Two hosts with crowds of chains between them.
struct Place<'a> {
    /// Those of each crowd, and of the chain that drops.
    crowds: [Senders; FUNCTIONS.len()],
    dropped: Senders,
    server: Netlink,
    /// The far end of the way, by its number.
    end: u32,
    /// They receive what nobody reads.
    _sockets: Vec<UdpSocket>,
    _chains: Chains<'a>,
}

impl<'a> Place<'a> {
    /// With workers on that core, or the port's receive work.
    fn of(engine: &'a Engine, space: Space, core: usize) -> Result<Option<Self>, ApiError> {
        let name = |port: u16| format!("calibrate-crowd-{port}");
        let up = engine.up(&source(chain(&name(DROPPED), DROPPED, DENY)))?;
        let mut chains = Chains {
            engine,
            names: vec![name(DROPPED)],
        };
        let first = up.first();
        let first = first.ok_or_else(|| ApiError::failed("a chain that came up is not there"))?;
        let (ingress, egress) = (&first.ingress, &first.egress);
        let place = match space {
            Space::Kernel => "  hook: xdp\n".to_owned(),
            Space::User => format!("  worker: {{ idle: spin, core: {core} }}\n"),
        };
        let texts: Vec<String> = ports()
            .into_iter()
            .flatten()
            .map(|(port, number, count)| {
                let functions = functions(number, count).enumerate();
                let functions = functions.map(|(place, (kind, config))| {
                    let config = Some(config).filter(|text| !text.is_empty());
                    let config = config.map_or(String::new(), |text| format!(", config: {text}"));
                    format!("{{ name: f{place}, kind: {kind}, space: {space}{config} }}")
                });
                let functions: Vec<String> = functions.collect();
                let more = format!(
                    "  mapping: compact\n{place}  ports: {{ ingress: {ingress}, egress: {egress} }}\n  functions: [ {} ]\n",
                    functions.join(", ")
                );
                chains.names.push(name(port));
                chain(&name(port), port, &more)
            })
            .collect();
        engine.up(&source(texts.join("---\n")))?;
        if space == Space::Kernel && napi::give_to_core(None, ingress, core).is_err() {
            return Ok(None);
        }
        let [client, server] = [host(first, "client")?, host(first, "server")?];
        let enter = |error| ApiError::failed(error);
        let (mac, end) = server
            .enter(|| {
                let link = Netlink::open()?.link("eth0")?;
                Ok::<_, myelin_linux::Error>((link.mac, link.id().index))
            })
            .map_err(enter)?
            .map_err(enter)?;
        let mac = mac.map(|mac| mac.0);
        let all = |ports: &[u16]| senders(&client, mac, ports);
        let of_crowd = |crowd: Vec<(u16, usize, usize)>| {
            let ports: Vec<u16> = crowd.into_iter().map(|(port, ..)| port).collect();
            all(&ports)
        };
        let [few, many] = ports();
        let sockets = ports().into_iter().flatten().map(|(port, ..)| {
            let bind = || UdpSocket::bind(SocketAddr::new(SERVER, port));
            let bound = server.enter(bind).map_err(enter)?;
            bound
                .map_err(|error| ApiError::failed(format!("cannot listen on port {port}: {error}")))
        });
        let sockets = sockets.collect::<Result<_, _>>()?;
        Ok(Some(Self {
            crowds: [of_crowd(few)?, of_crowd(many)?],
            dropped: all(&[DROPPED])?,
            server: Netlink::open_in(&server).map_err(enter)?,
            end,
            _sockets: sockets,
            _chains: chains,
        }))
    }

    /// Both crowds in turn, round by round, so that a drifting clock hits both alike; and what sending into a chain takes that drops.
    fn measure(
        mut self,
        hold: &Hold,
        rounds: usize,
        monitor: &Monitor<'_>,
    ) -> Result<(Crowds, [f64; FRAMES.len()]), ApiError> {
        let mut seen: [Seen; FUNCTIONS.len()] = Default::default();
        let (server, end) = (&mut self.server, self.end);
        let mut arrived = || server.received(end).map_err(ApiError::failed);
        for round in 0..rounds {
            monitor.progress("crowds", round as u64, rounds as u64);
            for (senders, seen) in self.crowds.iter().zip(&mut seen) {
                if monitor.is_cancelled() {
                    return Err(ApiError::failed("cancelled"));
                }
                seen.round(senders, hold, &mut arrived)?;
            }
        }
        let dropped_ns = bursts::dropped(&self.dropped, rounds)?;
        let [few, many] = seen;
        Ok(([few.summary()?, many.summary()?], dropped_ns))
    }
}

/// Chains that go when this goes.
struct Chains<'a> {
    engine: &'a Engine,
    names: Vec<String>,
}

impl Drop for Chains<'_> {
    fn drop(&mut self) {
        for chain in self.names.iter().rev() {
            let _ = self.engine.down(chain);
        }
    }
}

/// By crowd and chain, the port that its packets go to, its number, and its functions' count.
fn ports() -> [Vec<(u16, usize, usize)>; FUNCTIONS.len()] {
    std::array::from_fn(|crowd| {
        let of = |number: usize| {
            let port = DROPPED + 1 + (crowd * CHAINS + number) as u16;
            (port, number, FUNCTIONS[crowd])
        };
        (0..CHAINS).map(of).collect()
    })
}

/// What drops at the hook of the front door.
const DENY: &str = "  hook: xdp\n  functions: [ { name: f, kind: firewall, space: kernel, config: { default: deny } } ]\n";

fn chain(name: &str, port: u16, more: &str) -> String {
    format!(
        "apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: {{ name: {name}, namespace: calibrate }}\nspec:\n  \
         match: {{ protocol: udp, destination: {SERVER}, destinationPort: {port} }}\n{more}"
    )
}

fn source(text: String) -> ChainSource {
    ChainSource {
        name: "<calibrate>".to_owned(),
        text,
        ..ChainSource::default()
    }
}

fn host(up: &ChainUp, role: &str) -> Result<Netns, ApiError> {
    let host = up.hosts.iter().find(|host| host.role == role);
    let host = host.ok_or_else(|| ApiError::failed("the chain has no end hosts"))?;
    Netns::open(&host.netns).map_err(ApiError::failed)
}

/// Of each frame, one for each port.
fn senders(client: &Netns, mac: Option<[u8; 6]>, ports: &[u16]) -> Result<Senders, ApiError> {
    let of = |bytes: usize| {
        let open = || {
            let link = Netlink::open()?.link("eth0")?.id().index;
            let frames = ports.iter().map(|port| frame_to(bytes, *port, mac));
            frames
                .map(|frame| PacketSender::new(link, &frame))
                .collect::<Result<Vec<_>, _>>()
        };
        let opened = client.enter(open).map_err(ApiError::failed)?;
        opened.map_err(ApiError::failed)
    };
    let [short, long] = FRAMES.map(of);
    Ok([short?, long?])
}

/// The frame that all costs are of, to another port: what its last word has less keeps the checksum valid.
fn frame_to(bytes: usize, port: u16, mac: Option<[u8; 6]>) -> Vec<u8> {
    let mut frame = frame(bytes);
    if let Some(mac) = mac {
        frame[..6].copy_from_slice(&mac);
    }
    let more = port - DROPPED;
    let last = bytes - 2;
    for (place, word) in [(36, port), (last, 0x5555 - more)] {
        frame[place..place + 2].copy_from_slice(&word.to_be_bytes());
    }
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_to_other_ports_are_valid() {
        for bytes in FRAMES {
            for port in [DROPPED, DROPPED + 1, DROPPED + 16] {
                let frame = frame_to(bytes, port, None);
                let headers = myelin_packet::parse(&frame).expect("parses");
                assert_eq!(
                    myelin_packet::checksum::l4_is_valid(&frame, &headers),
                    Some(true)
                );
                assert_eq!(frame[36..38], port.to_be_bytes());
            }
        }
    }

    #[test]
    fn a_function_of_a_crowd_costs_what_it_takes_more_than_alone() {
        let bursts = |each: f64| Bursts {
            sent_ns: [900.0; 2],
            each_ns: [each, each + 100.0],
            slowest_ns: [(1.0, 1.0); 2],
        };
        // 10 ns each alone, and 30 more in a crowd of chains with 15 more.
        let function = |kind: &str, _| {
            assert!(KINDS.iter().any(|(known, _)| *known == kind));
            Cost::new(10.0, 0.0)
        };
        let alone = Alone {
            function: &function,
            to_door: [500.0; 2],
        };
        let many = 15.0 * (10.0 + 30.0);
        let crowds = |each: f64| [bursts(each), bursts(each + many)];
        let found = in_burst(&crowds(800.0), &crowds(700.0), [600.0; 2], &alone);
        let at = |cost: Cost| cost.at_ns(FRAMES[0] as u64).round() as u64;
        assert_eq!(
            (at(found.kernel_function), at(found.user_function)),
            (30, 30)
        );
        // One function is in the kernel's, none in the worker's.
        assert_eq!((at(found.kernel), at(found.worker)), (800, 690));
        assert_eq!(at(found.port), 500 + 300);
        // A crowd may seem cheaper: that is noise.
        let noise = in_burst(
            &[bursts(800.0), bursts(850.0)],
            &crowds(700.0),
            [600.0; 2],
            &alone,
        );
        assert_eq!(noise.kernel_function, Cost::default());
    }
}
