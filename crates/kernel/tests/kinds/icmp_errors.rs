//! Compares the translation of ICMP errors by `nat` and `load-balancer` with errors that etherparse
//! writes about the untranslated packets, and with a plain model.

mod model;

use std::net::{IpAddr, SocketAddr};

use myelin_packet::five_tuple::{ICMP, TCP, UDP};
use myelin_packet::fixtures::build;
use myelin_packet::{FiveTuple, MacAddr, checksum, parse};
use myelin_spec::{BackendSpec, FunctionConfig, LoadBalancerConfig, NatConfig};
use proptest::prelude::*;

use model::Model;

use crate::space::{Chains, SECOND, Spaces, for_all};

const LIFETIME: u64 = 100 * SECOND;
const MAC: MacAddr = MacAddr([2, 0, 0, 0, 2, 9]);
/// Types of all errors; types 1 and 2 are none over IPv4.
const KINDS_V4: [u8; 4] = [3, 4, 11, 12];
const KINDS_V6: [u8; 4] = [1, 2, 3, 4];

/// The two functions that translate errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Translator {
    Nat,
    LoadBalancer,
}

impl Translator {
    /// Both functions have one translated address of each family.
    fn load(self, spaces: &Spaces) -> [Chains; 2] {
        let addresses = ["198.51.100.7", "2001:db8::7"].map(|text| text.parse::<IpAddr>().unwrap());
        let config = match self {
            Self::Nat => FunctionConfig::Nat(NatConfig {
                addresses: addresses.into(),
                ports: 7000..=7999,
                timeout_ns: LIFETIME,
                tcp_timeout_ns: LIFETIME,
                flows: 64,
            }),
            Self::LoadBalancer => FunctionConfig::LoadBalancer(LoadBalancerConfig {
                backends: addresses
                    .map(|address| BackendSpec {
                        address,
                        weight: 1,
                        mac: address.is_ipv4().then_some(MAC),
                    })
                    .into(),
                timeout_ns: LIFETIME,
                flows: 64,
            }),
        };
        spaces.load_pair(&config, "state")
    }
}

/// A flow through both sides of a function.
#[derive(Clone, Copy, Debug)]
struct Flow {
    protocol: u8,
    v6: bool,
    translator: Translator,
}

/// The packets of a flow before and after each side.
struct Exchange {
    request: Vec<u8>,
    translated_request: Vec<u8>,
    answer: Vec<u8>,
    restored_answer: Vec<u8>,
}

fn addresses(frame: &[u8]) -> (IpAddr, IpAddr) {
    let tuple = tuple(frame);
    (tuple.source, tuple.destination)
}

fn tuple(frame: &[u8]) -> FiveTuple {
    parse(frame).unwrap().five_tuple(frame)
}

impl Flow {
    fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for translator in [Translator::Nat, Translator::LoadBalancer] {
            for v6 in [false, true] {
                for protocol in [UDP, TCP, ICMP] {
                    if (translator, protocol) != (Translator::LoadBalancer, ICMP) {
                        all.push(Self {
                            protocol,
                            v6,
                            translator,
                        });
                    }
                }
            }
        }
        all
    }

    fn router(self) -> IpAddr {
        let text = if self.v6 {
            "2001:db8:9::1"
        } else {
            "203.0.113.1"
        };
        text.parse().unwrap()
    }

    fn kinds(self) -> [u8; 4] {
        if self.v6 { KINDS_V6 } else { KINDS_V4 }
    }

    fn request(self) -> Vec<u8> {
        let (client, server) = if self.v6 {
            (build::client_v6(), build::server_v6())
        } else {
            (build::client_v4(), build::server_v4())
        };
        match self.protocol {
            UDP => build::udp(client, server, b"a request with a payload"),
            TCP => build::tcp(client, server, b"a request with a payload"),
            _ => build::echo_request(client.ip(), server.ip(), b"an echo with a payload"),
        }
    }

    /// Builds the answer to a translated request.
    fn answer(self, request: &[u8]) -> Vec<u8> {
        let tuple = tuple(request).reversed();
        let end = |address, port: Option<u16>| SocketAddr::new(address, port.unwrap_or(0));
        let from = end(tuple.source, tuple.source_port);
        let to = end(tuple.destination, tuple.destination_port);
        match self.protocol {
            UDP => build::udp(from, to, b"an answer with a payload"),
            TCP => build::tcp(from, to, b"an answer with a payload"),
            _ => {
                let mut reply = build::echo_request(from.ip(), to.ip(), b"an echo");
                let l4 = usize::from(parse(request).unwrap().l4);
                reply[l4 + 4..l4 + 6].copy_from_slice(&request[l4 + 4..l4 + 6]);
                reply[l4] = if self.v6 { 129 } else { 0 };
                // The reply's checksum: echo requests have the identifier 7 and this type.
                let type_growth = u64::from(u16::from(reply[l4]) << 8)
                    + u64::from(!(u16::from(request[l4]) << 8));
                let id = u16::from_be_bytes([request[l4 + 4], request[l4 + 5]]);
                let growth = type_growth + u64::from(id) + u64::from(!7_u16);
                let old = u16::from_be_bytes([reply[l4 + 2], reply[l4 + 3]]);
                let new = checksum::l4_add(ICMP, old, growth);
                reply[l4 + 2..l4 + 4].copy_from_slice(&new.to_be_bytes());
                reply
            }
        }
    }

    /// Sends a request and its answer at time 0.
    fn exchange(self, [forward, reply]: &[Chains; 2], request: Vec<u8>) -> Exchange {
        let translated_request = forward.run(&request, 0).expect("the request must pass");
        let answer = self.answer(&translated_request);
        let restored_answer = reply.run(&answer, 0).expect("the answer must pass");
        Exchange {
            request,
            translated_request,
            answer,
            restored_answer,
        }
    }

    /// Builds an error about the translated request, and the error that the sender must get.
    fn error_about_request(self, exchange: &Exchange, kind: u8, length: usize) -> [Vec<u8>; 2] {
        let sender = addresses(&exchange.translated_request).0;
        let (client, server) = addresses(&exchange.request);
        let from = match self.translator {
            Translator::Nat => self.router(),
            Translator::LoadBalancer => server,
        };
        [
            build::icmp_error(
                self.router(),
                sender,
                kind,
                (&exchange.translated_request, length),
            ),
            build::icmp_error(from, client, kind, (&exchange.request, length)),
        ]
    }

    /// Builds an error about the restored answer, and the error that the sender must get.
    fn error_about_answer(self, exchange: &Exchange, kind: u8, length: usize) -> [Vec<u8>; 2] {
        let sender = addresses(&exchange.restored_answer).0;
        let (server, outer) = addresses(&exchange.answer);
        let from = match self.translator {
            Translator::Nat => outer,
            Translator::LoadBalancer => self.router(),
        };
        let error = build::icmp_error(
            self.router(),
            sender,
            kind,
            (&exchange.restored_answer, length),
        );
        let mut expected = build::icmp_error(from, server, kind, (&exchange.answer, length));
        if (self.translator, self.v6) == (Translator::LoadBalancer, false) {
            expected[..6].copy_from_slice(&MAC.0);
        }
        [error, expected]
    }

    /// The shortest quote: the IP header and eight bytes.
    fn shortest(self) -> usize {
        if self.v6 { 48 } else { 28 }
    }
}

#[test]
fn errors_reach_the_sender_with_its_own_packet() {
    let spaces = Spaces::all();
    for flow in Flow::all() {
        let chains = flow.translator.load(&spaces);
        let exchange = flow.exchange(&chains, flow.request());
        let [forward, reply] = &chains;
        let shortest = flow.shortest();
        for kind in flow.kinds() {
            for length in [shortest, shortest + 8, shortest + 10, 1000] {
                let case = format!("{flow:?}, type {kind}, {length} bytes");
                let [error, expected] = flow.error_about_request(&exchange, kind, length);
                reply.expect_at(1, &error, Some(&expected), &case);
                let [error, expected] = flow.error_about_answer(&exchange, kind, length);
                forward.expect_at(1, &error, Some(&expected), &case);
            }
        }
    }
}

/// An error extends no mapping and no flow (RFC 5508, REQ-6), and makes none.
#[test]
fn errors_make_and_refresh_nothing() {
    let spaces = Spaces::all();
    for flow in Flow::all() {
        let chains = flow.translator.load(&spaces);
        let exchange = flow.exchange(&chains, flow.request());
        let [forward, reply] = &chains;
        assert_eq!([forward, reply].map(Chains::special_count), [0, 0]);
        let [back, _] = flow.error_about_request(&exchange, 3, 1000);
        let [out, _] = flow.error_about_answer(&exchange, 3, 1000);
        let before = forward.flows();
        for now in [1, LIFETIME / 2, LIFETIME - 1] {
            assert!(reply.run(&back, now).is_some() && forward.run(&out, now).is_some());
        }
        let after = forward.flows();
        assert_eq!(after, before, "{flow:?}");
        forward.expect_at(LIFETIME + 1, &out, None, "the flow has expired");
        reply.expect_at(LIFETIME + 1, &back, None, "the flow has expired");
        let [forward, reply] = &flow.translator.load(&Spaces::all());
        reply.expect(&back, None, "an error about no flow");
        forward.expect(&out, None, "an error about no flow");
        assert_eq!(forward.flows().unwrap().0.len(), 0, "{flow:?}");
    }
}

#[test]
fn a_udp_checksum_of_zero_and_a_wrong_checksum_stay() {
    let spaces = Spaces::all();
    for flow in Flow::all() {
        let chains = flow.translator.load(&spaces);
        let mut request = flow.request();
        if (flow.protocol, flow.v6) == (UDP, false) {
            request[40..42].fill(0);
        }
        let exchange = flow.exchange(&chains, request);
        let [mut error, mut expected] = flow.error_about_request(&exchange, 3, 1000);
        chains[1].expect(&error, Some(&expected), "a checksum of zero");
        // Both the ICMP checksum and one byte of the payload grow.
        let at = usize::from(parse(&error).unwrap().l4) + 4;
        for frame in [&mut error, &mut expected] {
            frame[at] ^= 0x55;
        }
        chains[1].expect(&error, Some(&expected), "a wrong checksum");
    }
}

/// Each case changes a valid error so that it must be dropped.
#[test]
fn invalid_errors_are_dropped() {
    let spaces = Spaces::all();
    for flow in Flow::all() {
        let chains = flow.translator.load(&spaces);
        let exchange = flow.exchange(&chains, flow.request());
        let shortest = flow.shortest();
        let (client, _) = addresses(&exchange.translated_request);
        let error = |about: &[u8], kind, length| {
            build::icmp_error(flow.router(), client, kind, (about, length))
        };
        let seen = &exchange.translated_request;
        let drop = |frame: &[u8], case: &str| {
            let before = chains[1].special_count();
            chains[1].expect(frame, None, &format!("{flow:?}: {case}"));
            let is_counted = !["a redirect", "a fragment"].contains(&case);
            let counted = chains[1].special_count() - before;
            assert_eq!(counted, u64::from(is_counted), "{flow:?}: {case}");
        };
        drop(
            &error(seen, 3, shortest - 1),
            "seven bytes of the port's header",
        );
        drop(&error(seen, 3, shortest - 9), "half an IP header");
        drop(&error(seen, 3, 0), "no quote");
        let inner = error(seen, 3, 1000);
        drop(&error(&inner, 3, 1000), "an error about an error");
        let redirect = if flow.v6 { 137 } else { 5 };
        drop(&error(seen, redirect, 1000), "a redirect");
        drop(
            &error(&exchange.restored_answer, 3, 1000),
            "a packet of the other direction",
        );
        let l4 = usize::from(parse(seen).unwrap().l4);
        let port = l4 + if flow.protocol == ICMP { 4 } else { 0 };
        drop(
            &error(&build::with_u16(seen.clone(), port, 9), 3, 1000),
            "another flow",
        );
        let elsewhere = build::icmp_error(flow.router(), flow.router(), 3, (seen, 1000));
        drop(&elsewhere, "not to the source of the quoted packet");
        if !flow.v6 {
            let first = build::with_u16(seen.clone(), 20, 0x2000);
            assert!(chains[1].run(&error(&first, 3, 1000), 1).is_some());
            drop(
                &error(&build::with_u16(seen.clone(), 20, 1), 3, 1000),
                "a later fragment",
            );
            drop(
                &build::with_u16(error(seen, 3, 1000), 20, 0x2000),
                "a fragment",
            );
            drop(
                &error(&build::with_byte(seen.clone(), 14, 0x44), 3, 1000),
                "a short header",
            );
        }
    }
}

/// A random change of an error.
#[derive(Clone, Debug)]
struct Case {
    flow: usize,
    about_answer: bool,
    kind: u8,
    length: usize,
    extension: u8,
    tags: usize,
    changes: Vec<(prop::sample::Index, u8)>,
}

fn case() -> impl Strategy<Value = Case> {
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3);
    (
        (0..Flow::all().len(), any::<bool>()),
        (0_u8..14, prop_oneof![20..100_usize, Just(1000)]),
        (0_u8..5, 0..3_usize),
        prop_oneof![2 => Just(vec![]), 1 => changes],
    )
        .prop_map(
            |((flow, about_answer), (kind, length), (extension, tags), changes)| Case {
                flow,
                about_answer,
                kind,
                length,
                extension,
                tags,
                changes,
            },
        )
}

/// Inserts options or extension headers into a packet.
fn extend(frame: Vec<u8>, v6: bool, extension: u8) -> Vec<u8> {
    match (v6, extension) {
        (_, 0) => frame,
        (true, 1) => build::with_extensions(frame, &[build::options_header(0, 1)]),
        (true, 2) => build::with_extensions(
            frame,
            &[
                build::options_header(60, 2),
                build::fragment_header(0, false),
            ],
        ),
        (true, 3) => build::with_extensions(frame, &[build::fragment_header(0, true)]),
        (true, _) => build::with_extensions(frame, &[build::fragment_header(5, true)]),
        (false, words) => {
            let mut frame = frame;
            let options = vec![1; usize::from(words) * 4];
            frame.splice(34..34, options);
            frame[14] += words;
            let total = (frame.len() - 14) as u16;
            build::with_u16(frame, 16, total)
        }
    }
}

#[test]
fn random_errors_match_the_model() {
    compare_with_the_model(200, 12);
}

#[test]
#[ignore = "thorough: checks 2100 random cases"]
fn many_random_errors_match_the_model() {
    compare_with_the_model(2000, 100);
}

fn compare_with_the_model(user_cases: u32, all_cases: u32) {
    let cases = prop::collection::vec(case(), 1..40);
    for_all(user_cases, all_cases, &cases, |spaces, cases| {
        let flows = Flow::all();
        let chains = [Translator::Nat, Translator::LoadBalancer].map(|one| one.load(spaces));
        for case in &cases {
            let flow = flows[case.flow];
            let chains = &chains[usize::from(flow.translator == Translator::LoadBalancer)];
            check_case(flow, chains, case);
        }
        for chain in chains.iter().flatten() {
            chain.special_count();
        }
    });
}

fn check_case(flow: Flow, chains: &[Chains; 2], case: &Case) {
    let exchange = flow.exchange(chains, flow.request());
    let (packets, chain) = if case.about_answer {
        ([&exchange.restored_answer, &exchange.answer], &chains[0])
    } else {
        (
            [&exchange.translated_request, &exchange.request],
            &chains[1],
        )
    };
    let [quoted, sent] = packets.map(Vec::as_slice);
    let about = extend(quoted.to_vec(), flow.v6, case.extension);
    let to = addresses(quoted).0;
    let error = build::icmp_error(flow.router(), to, case.kind, (&about, case.length));
    let mut error = build::with_tags(error, &[build::VLAN, build::VLAN][..case.tags]);
    let end = error.len();
    for (at, value) in &case.changes {
        let at = 14 + at.index(end - 14);
        error[at] = *value;
    }
    let Ok(headers) = parse(&error) else { return };
    // An echo is not an error.
    let kind = error.get(usize::from(headers.l4));
    if kind.is_some_and(|kind| [0, 8, 128, 129].contains(kind)) || headers.flags.has_ports() {
        return;
    }
    let model = Model {
        flow,
        quoted,
        sent,
        is_reply: !case.about_answer,
    };
    let expected = model.translate(&error);
    chain.expect(&error, expected.as_deref(), &format!("{case:?}"));
}
