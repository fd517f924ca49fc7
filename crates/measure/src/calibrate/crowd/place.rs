//! Two hosts with crowds of chains between them.

use std::net::{SocketAddr, UdpSocket};

use myelin_api::ApiError;
use myelin_linux::napi;
use myelin_linux::netlink::Netlink;
use myelin_linux::netns::Netns;
use myelin_linux::packet_socket::PacketSender;
use myelin_spec::Space;

use super::super::bursts::{self, Seen, Senders};
use super::super::deployed::{Deployed, hosts};
use super::super::direct::SERVER;
use super::super::{Chains, FRAMES, Monitor, Result, frame};
use super::{CHAINS, Crowds, FUNCTIONS};
use crate::stall::CoreBlocker;

/// Kinds that leave a packet's length and ports as they are; a chain's functions are these in turn.
const KINDS: [(&str, &str); 5] = [
    ("forward", ""),
    ("xor", ", config: { key: 90 }"),
    (
        "firewall",
        ", config: { rules: [ { action: deny, source: 192.0.2.0/24 } ] }",
    ),
    ("monitor", ", config: { flows: 1024 }"),
    ("flow-tracker", ", config: { flows: 1024 }"),
];
/// The chain that makes the links and drops what comes: where its packets go. Those of the crowds go to the ports behind it.
const DROPPED: u16 = 9000;

/// Kind and configuration of each function of a chain.
pub(super) fn functions(
    chain: usize,
    count: usize,
) -> impl Iterator<Item = (&'static str, &'static str)> {
    (0..count).map(move |place| KINDS[(chain + place) % KINDS.len()])
}

/// Two hosts with crowds of chains between them.
pub(super) struct Place<'a> {
    /// Those of each crowd, and of the chain that drops.
    crowds: [Senders; FUNCTIONS.len()],
    dropped: Senders,
    server: Netlink,
    /// The far end of the way, by its number.
    end: u32,
    /// They receive what nobody reads.
    _sockets: Vec<UdpSocket>,
    _crowd: Deployed<'a>,
}

impl<'a> Place<'a> {
    /// With workers on that core, or the port's receive work. `None` where receive work has no threads.
    pub(super) fn of(chains: &'a dyn Chains, space: Space, core: usize) -> Result<Option<Self>> {
        let mut crowd = Deployed::new(chains);
        let up = crowd.up([name(DROPPED)], chain(DROPPED, DENY))?;
        let first = up.first();
        let first = first.ok_or_else(|| ApiError::failed("a chain that came up is not there"))?;
        let place = match space {
            Space::Kernel => "  hook: xdp\n".to_owned(),
            Space::User => format!("  worker: {{ idle: spin, core: {core} }}\n"),
        };
        let members = Member::all();
        let members_of_all = || members.as_flattened().iter();
        let texts: Vec<String> = members_of_all()
            .map(|member| member.text(space, &place, [&first.ingress, &first.egress]))
            .collect();
        let names = members_of_all().map(|member| name(member.port));
        crowd.up(names, texts.join("---\n"))?;
        if space == Space::Kernel
            && napi::move_receive_work_to_core(None, &first.ingress, core).is_err()
        {
            return Ok(None);
        }
        let [client, server] = hosts(&up)?;
        let mut netlink = Netlink::open_in(&server)?;
        let end = netlink.link("eth0")?;
        let mac = end.mac.map(|mac| mac.0);
        let sockets = members.as_flattened().iter().map(|member| {
            let bind = || UdpSocket::bind(SocketAddr::new(SERVER, member.port));
            Ok(server.enter(bind)?.map_err(|error| {
                ApiError::failed(format!("cannot listen on port {}: {error}", member.port))
            })?)
        });
        let sockets = sockets.collect::<Result<_>>()?;
        let [few, many] =
            members.map(|crowd| senders(&client, mac, &crowd.map(|member| member.port)));
        Ok(Some(Self {
            crowds: [few?, many?],
            dropped: senders(&client, mac, &[DROPPED])?,
            end: end.id().index,
            server: netlink,
            _sockets: sockets,
            _crowd: crowd,
        }))
    }

    /// Both crowds in turn, round by round, so that a drifting clock hits both alike; and what sending into a chain takes that drops.
    pub(super) fn measure(
        mut self,
        blocker: &CoreBlocker,
        rounds: usize,
        monitor: &Monitor<'_>,
    ) -> Result<(Crowds, [f64; FRAMES.len()])> {
        let mut seen: [Seen; FUNCTIONS.len()] = Default::default();
        let (server, end) = (&mut self.server, self.end);
        let mut arrived = || Ok(server.received(end)?);
        for round in 0..rounds {
            monitor.progress("crowds", round as u64, rounds as u64);
            for (senders, seen) in self.crowds.iter().zip(&mut seen) {
                if monitor.is_cancelled() {
                    return Err(ApiError::failed("cancelled").into());
                }
                seen.round(senders, blocker, &mut arrived)?;
            }
        }
        let dropped_ns = bursts::dropped(&self.dropped, rounds)?;
        let [few, many] = seen;
        Ok(([few.summary()?, many.summary()?], dropped_ns))
    }
}

/// A chain of a crowd.
#[derive(Clone, Copy)]
struct Member {
    /// Where its packets go.
    port: u16,
    /// Its place in the crowd.
    number: usize,
    functions: usize,
}

impl Member {
    /// Those of each crowd.
    fn all() -> [[Self; CHAINS]; FUNCTIONS.len()] {
        std::array::from_fn(|crowd| {
            std::array::from_fn(|number| Self {
                port: DROPPED + 1 + (crowd * CHAINS + number) as u16,
                number,
                functions: FUNCTIONS[crowd],
            })
        })
    }

    /// Between these interfaces; `place` says where in its space.
    fn text(&self, space: Space, place: &str, [ingress, egress]: [&str; 2]) -> String {
        let functions = functions(self.number, self.functions).enumerate();
        let functions = functions.map(|(place, (kind, config))| {
            format!("{{ name: f{place}, kind: {kind}, space: {space}{config} }}")
        });
        let functions: Vec<String> = functions.collect();
        let more = format!(
            "  mapping: compact\n{place}  ports: {{ ingress: {ingress}, egress: {egress} }}\n  functions: [ {} ]\n",
            functions.join(", ")
        );
        chain(self.port, &more)
    }
}

/// What drops at the hook of the front door.
const DENY: &str = "  hook: xdp\n  functions: [ { name: f, kind: firewall, space: kernel, config: { default: deny } } ]\n";

fn name(port: u16) -> String {
    format!("calibrate-crowd-{port}")
}

fn chain(port: u16, more: &str) -> String {
    let name = name(port);
    format!(
        "apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: {{ name: {name}, namespace: calibrate }}\nspec:\n  \
         match: {{ protocol: udp, destination: {SERVER}, destinationPort: {port} }}\n{more}"
    )
}

/// Of each frame, one for each port.
fn senders(client: &Netns, mac: Option<[u8; 6]>, ports: &[u16]) -> Result<Senders> {
    let of = |bytes: usize| {
        client.enter(|| {
            let link = Netlink::open()?.link("eth0")?.id().index;
            let frames = ports.iter().map(|port| frame_to(bytes, *port, mac));
            frames
                .map(|frame| PacketSender::new(link, &frame))
                .collect::<myelin_linux::Result<_>>()
        })?
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
}
