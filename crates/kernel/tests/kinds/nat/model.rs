//! Random packets through `nat` and through a plain model of its mappings.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use myelin_packet::five_tuple::{ICMP, ICMPV6, TCP, UDP};
use myelin_packet::fixtures::build;
use myelin_packet::{FlowTotals, parse};
use myelin_spec::NatConfig;
use proptest::prelude::*;

use super::*;

/// Address, protocol, port.
type Inner = (IpAddr, u8, u16);

/// An external endpoint, its expiry, and whether the connection is closing.
struct Mapping {
    address: IpAddr,
    port: u16,
    ends_ns: u64,
    is_closing: bool,
}

/// A model that follows the rules of mappings in plain code.
struct Model {
    config: NatConfig,
    mappings: HashMap<Inner, Mapping>,
    next_sweep_ns: u64,
}

impl Model {
    /// Returns the inside endpoint whose mapping uses the external endpoint.
    fn holder(&self, protocol: u8, address: IpAddr, port: u16) -> Option<Inner> {
        self.mappings
            .iter()
            .find(|(inner, outer)| {
                inner.1 == protocol && (outer.address, outer.port) == (address, port)
            })
            .map(|(inner, _)| *inner)
    }

    /// Returns the lifetime of a mapping after a packet with these flags, and whether the
    /// connection is closing.
    fn lifetime(&self, protocol: u8, flags: u8, was_closing: bool) -> (u64, bool) {
        let transitory = self.config.tcp_timeout_ns.min(TRANSITORY);
        if protocol != TCP {
            (self.config.timeout_ns, false)
        } else if flags & (FIN | RST) != 0 {
            (transitory, true)
        } else if flags & SYN != 0 {
            (transitory, false)
        } else if was_closing {
            (transitory, true)
        } else {
            (self.config.tcp_timeout_ns, false)
        }
    }

    /// Checks the external endpoint that the function chose, and stores the mapping.
    fn record_outward(&mut self, inner: Inner, flags: u8, now: u64, chosen: Option<(IpAddr, u16)>) {
        let was_closing = self
            .mappings
            .get(&inner)
            .is_some_and(|mapping| mapping.is_closing);
        let (lasts, is_closing) = self.lifetime(inner.1, flags, was_closing);
        let ends_ns = now + lasts;
        if let Some(mapping) = self.mappings.get_mut(&inner) {
            (mapping.ends_ns, mapping.is_closing) = (ends_ns, is_closing);
            let outer = Some((mapping.address, mapping.port));
            assert_eq!(
                chosen, outer,
                "a mapping must have the same external endpoint for all destinations"
            );
            return;
        }
        let mut pool = self.config.addresses.clone();
        pool.retain(|address| address.is_ipv4() == inner.0.is_ipv4());
        let range = self.config.ports.clone();
        let is_free = |model: &Self, address, port| {
            let holder = model.holder(inner.1, address, port);
            holder.is_none_or(|holder| model.mappings[&holder].ends_ns <= now)
        };
        let is_full = self.mappings.len() >= self.config.flows as usize;
        let Some((address, port)) = chosen else {
            let is_taken = |address| range.clone().all(|port| !is_free(self, address, port));
            let no_port = pool.iter().any(|address| is_taken(*address));
            assert!(
                is_full || no_port || pool.is_empty(),
                "the flow was refused, but the table has room"
            );
            return;
        };
        assert!(pool.contains(&address) && range.contains(&port));
        assert!(is_free(self, address, port), "the port is taken");
        if range.contains(&inner.2) && is_free(self, address, inner.2) {
            assert_eq!(port, inner.2, "the function must preserve a free port");
        }
        let mut others = self.mappings.iter();
        let paired = others.find(|(other, _)| other.0 == inner.0);
        assert!(
            paired.is_none_or(|(_, paired)| paired.address == address),
            "the address is not paired"
        );
        match self.holder(inner.1, address, port) {
            Some(holder) => drop(self.mappings.remove(&holder)),
            None if is_full => {
                assert!(
                    now >= self.next_sweep_ns,
                    "the function sweeps more than once a second"
                );
                self.next_sweep_ns = now + SECOND;
                self.mappings.retain(|_, mapping| mapping.ends_ns > now);
            }
            None => {}
        }
        let mapping = Mapping {
            address,
            port,
            ends_ns,
            is_closing,
        };
        self.mappings.insert(inner, mapping);
        assert!(
            self.mappings.len() <= self.config.flows as usize,
            "too many mappings"
        );
    }

    /// Returns the mappings that [`live_mappings`] must return.
    fn live_mappings(&self, now: u64) -> HashMap<Inner, (SocketAddr, u64)> {
        let live = self
            .mappings
            .iter()
            .filter(|(_, mapping)| mapping.ends_ns > now);
        live.map(|(inner, mapping)| {
            let outer = (mapping.address, mapping.port).into();
            (*inner, (outer, mapping.ends_ns))
        })
        .collect()
    }

    fn find_inward(&self, protocol: u8, address: IpAddr, port: u16, now: u64) -> Option<Inner> {
        self.holder(protocol, address, port)
            .filter(|inner| now < self.mappings[inner].ends_ns)
    }
}

#[derive(Clone, Debug)]
struct Step {
    out: bool,
    protocol: u8,
    v6: bool,
    host: u8,
    port: u16,
    checksum: Option<u16>,
    flags: u8,
    wait_ns: u64,
}

fn step() -> impl Strategy<Value = Step> {
    let protocol = prop::sample::select(vec![UDP, TCP, ICMP]);
    let checksum = prop_oneof![Just(0_u16), Just(0xffff), any::<u16>()];
    let flags = prop_oneof![
        2 => prop::sample::select(vec![SYN, FIN | ACK, RST]),
        2 => Just(ACK),
        1 => any::<u8>(),
    ];
    let wait_ns = prop_oneof![
        20 => Just(0),
        8 => 1..SECOND,
        4 => SECOND..4 * SECOND,
        1 => 100 * SECOND..300 * SECOND,
    ];
    (
        (prop::bool::weighted(0.7), protocol, any::<bool>()),
        (0_u8..2, 98_u16..103),
        prop::option::weighted(0.2, checksum),
        flags,
        wait_ns,
    )
        .prop_map(
            |((out, protocol, v6), (host, port), checksum, flags, wait_ns)| Step {
                out,
                protocol,
                v6,
                host,
                port,
                checksum,
                flags,
                wait_ns,
            },
        )
}

impl Step {
    fn internal_address(&self) -> IpAddr {
        if self.v6 {
            [0xfd00, 0, 0, 0, 0, 0, 0, u16::from(self.host) + 1].into()
        } else {
            [10, 0, 0, self.host + 1].into()
        }
    }

    fn external_address(&self) -> IpAddr {
        let index = if self.v6 { 2 } else { self.host % 2 };
        two_external_addresses().addresses[usize::from(index)]
    }

    /// Returns the protocol number in the packet.
    fn protocol(&self) -> u8 {
        if (self.protocol, self.v6) == (ICMP, true) {
            ICMPV6
        } else {
            self.protocol
        }
    }

    /// Builds the packet. The port of a reply is one of the external ports.
    fn frame(&self) -> Vec<u8> {
        let server = if self.v6 {
            build::server_v6()
        } else {
            build::server_v4()
        };
        let (from, to): (SocketAddr, SocketAddr) = if self.out {
            ((self.internal_address(), self.port).into(), server)
        } else {
            (server, (self.external_address(), self.port).into())
        };
        let payload = [self.flags; 9];
        let (mut frame, checksum) = match self.protocol {
            UDP => (build::udp(from, to, &payload), 6),
            TCP => (build::tcp(from, to, &payload), 16),
            _ => (build::echo_request(from.ip(), to.ip(), &payload), 2),
        };
        let l4 = usize::from(parse(&frame).unwrap().l4);
        if self.protocol == TCP {
            frame[l4 + 13] = self.flags;
        } else if self.protocol == ICMP {
            frame[l4 + 4..l4 + 6].copy_from_slice(&self.port.to_be_bytes());
            if !self.out {
                frame[l4] = if self.v6 { 129 } else { 0 };
            }
        }
        if let Some(held) = self.checksum {
            frame[l4 + checksum..l4 + checksum + 2].copy_from_slice(&held.to_be_bytes());
        }
        frame
    }

    /// Returns the translated endpoint of a frame: the source, or the destination of a reply.
    fn translated(&self, frame: &[u8]) -> (IpAddr, u16) {
        let headers = parse(frame).unwrap();
        let tuple = headers.five_tuple(frame);
        let (address, port) = if self.out {
            (tuple.source, tuple.source_port)
        } else {
            (tuple.destination, tuple.destination_port)
        };
        let l4 = usize::from(headers.l4);
        let identifier = u16::from_be_bytes([frame[l4 + 4], frame[l4 + 5]]);
        let is_echo = self.protocol == ICMP;
        (address, if is_echo { identifier } else { port.unwrap() })
    }
}

#[test]
fn random_packets_match_the_model() {
    compare_with_the_model(64, 15);
}

#[test]
#[ignore = "thorough: checks 316 random cases"]
fn many_random_packets_match_the_model() {
    compare_with_the_model(256, 60);
}

/// Uses few hosts, few ports and a small table, so flows collide and expire, and the table is full.
fn compare_with_the_model(user_cases: u32, all_cases: u32) {
    let case = (
        prop::collection::vec(step(), 1..200),
        (1_u32..40, 1_u16..12, any::<bool>()),
        1..3 * SECOND,
        prop_oneof![1 => SECOND / 2..2 * SECOND, 2 => Just(400 * SECOND)],
    );
    for_all(
        user_cases,
        all_cases,
        &case,
        |spaces, (steps, (flows, ports, both), timeout_ns, tcp_timeout_ns)| {
            let mut config = NatConfig {
                ports: 100..=99 + ports,
                timeout_ns,
                tcp_timeout_ns,
                flows,
                ..two_external_addresses()
            };
            if !both {
                config.addresses.truncate(2);
            }
            let [out, back] = load_pair(spaces, &config);
            let mut model = Model {
                config,
                mappings: HashMap::new(),
                next_sweep_ns: 0,
            };
            let mut now = SECOND;
            for step in &steps {
                now += step.wait_ns;
                let (frame, protocol) = (step.frame(), step.protocol());
                let chains = if step.out { &out } else { &back };
                let end = chains.run(&frame, now).map(|frame| step.translated(&frame));
                if step.out {
                    let inner = (step.internal_address(), protocol, step.port);
                    model.record_outward(inner, step.flags, now, end);
                } else {
                    let inner =
                        model.find_inward(protocol, step.external_address(), step.port, now);
                    assert_eq!(end, inner.map(|(address, _, port)| (address, port)));
                }
            }
            assert_eq!(live_mappings(&out, now), model.live_mappings(now));
        },
    );
}

/// Returns the external endpoint and expiry time of each mapping that has not expired.
fn live_mappings(out: &Chains, now: u64) -> HashMap<Inner, (SocketAddr, u64)> {
    let (records, totals) = out.flows().expect("a nat must report its mappings");
    assert_eq!(totals, FlowTotals::default(), "a nat counts no flows");
    let live = records.values().filter(|record| record.expires_ns > now);
    live.map(|record| {
        let tuple = record.key.five_tuple();
        let inner = (tuple.source, tuple.protocol, tuple.source_port.unwrap());
        (inner, (record.translated().unwrap(), record.expires_ns))
    })
    .collect()
}
