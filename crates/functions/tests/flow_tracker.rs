//! `flow-tracker` against a plain reference: a list of flows with the state written out.

use std::net::SocketAddr;

use myelin_functions::{Discard, FlowPage, Function, Packet, States, Verdict, instantiate};
use myelin_packet::fixtures::{self, build};
use myelin_packet::{FlowState, FlowTotals, Meta, parse};
use myelin_spec::{
    FlowTrackerConfig, FunctionConfig, FunctionInstance, InvalidPolicy, Side, StateKey,
};
use proptest::prelude::*;

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

const CONFIG: FlowTrackerConfig = FlowTrackerConfig {
    flows: 100,
    invalid: InvalidPolicy::Drop,
    timeout_ns: 100,
    tcp_timeout_ns: 1000,
};

fn tracker(config: FlowTrackerConfig) -> Box<dyn Function> {
    instantiate(&FunctionConfig::FlowTracker(config)).unwrap()
}

/// A segment with these flags; its checksum does not matter here.
fn segment(from: SocketAddr, to: SocketAddr, flags: u8) -> Vec<u8> {
    let mut frame = build::tcp(from, to, b"data");
    let at = usize::from(parse(&frame).unwrap().l4) + 13;
    frame[at] = flags;
    frame
}

fn run(function: &mut dyn Function, frame: &[u8], stamp_ns: u64) -> bool {
    let meta = Meta::new(stamp_ns, 1, 1, 0, &parse(frame).unwrap());
    let mut buffer = frame.to_vec();
    let mut packet = Packet::new(&mut buffer, 0, frame.len(), meta, 0).unwrap();
    let verdict = function.process(&mut packet, &mut Discard);
    assert_eq!(packet.bytes(), frame, "nothing is changed");
    verdict == Verdict::Forward
}

/// Flow, state, packets there and back, first and last time; in the order of their names.
type Row = (String, FlowState, u64, u64, u64, u64);

fn rows(function: &dyn Function) -> (Vec<Row>, FlowTotals) {
    let (records, totals) = FlowPage::read_all(|page| function.read_flows(page)).unwrap();
    let mut rows: Vec<Row> = records
        .iter()
        .map(|record| {
            (
                record.key.five_tuple().to_string(),
                record.state().unwrap(),
                record.packets,
                record.reply_packets,
                record.first_ns,
                record.last_ns,
            )
        })
        .collect();
    rows.sort_by(|a, b| a.0.cmp(&b.0));
    (rows, totals)
}

#[derive(Clone, Debug)]
struct Flow {
    /// The direction of its first packet.
    name: String,
    other_way: String,
    state: FlowState,
    /// Which sides have sent a FIN: the one that opened, the other.
    done: [bool; 2],
    packets: [u64; 2],
    first_ns: u64,
    last_ns: u64,
}

#[derive(Default)]
struct Model {
    /// The one used longest ago first.
    flows: Vec<Flow>,
    totals: FlowTotals,
}

impl Model {
    fn run(&mut self, config: &FlowTrackerConfig, frame: &[u8], now_ns: u64) -> bool {
        let headers = parse(frame).unwrap();
        let tuple = headers.five_tuple(frame);
        let (name, other_way) = (tuple.to_string(), tuple.reversed().to_string());
        let is_tcp = headers.protocol == 6 && headers.flags.has_ports();
        let flags = if is_tcp {
            frame[usize::from(headers.l4) + 13]
        } else {
            0
        };
        let opens = !is_tcp || flags & (SYN | ACK | RST | FIN) == SYN;
        let known = self
            .flows
            .iter()
            .position(|flow| flow.name == name || flow.other_way == name);
        if let Some(at) = known {
            let mut flow = self.flows.remove(at);
            let lifetime = match flow.state {
                _ if !is_tcp => config.timeout_ns,
                FlowState::Established => config.tcp_timeout_ns,
                FlowState::Closed => config.tcp_timeout_ns.min(10_000_000_000),
                _ => config.tcp_timeout_ns.min(240_000_000_000),
            };
            let lives = now_ns - flow.last_ns <= lifetime;
            // A flow with itself looks the same both ways.
            let side = usize::from(flow.name != name);
            if lives && !(opens && (flow.state == FlowState::Closed || flow.done[side])) {
                flow.packets[side] += 1;
                if flow.state != FlowState::Closed {
                    flow.last_ns = now_ns;
                }
                flow.step(side, flags, is_tcp);
                self.flows.push(flow);
                return true;
            }
            if !opens {
                self.flows.push(flow);
                self.totals.outside += 1;
                return config.invalid == InvalidPolicy::Pass;
            }
        } else if !opens {
            self.totals.outside += 1;
            return config.invalid == InvalidPolicy::Pass;
        } else if self.flows.len() == config.flows as usize {
            self.flows.remove(0);
            self.totals.evicted += 1;
        }
        self.totals.begun += 1;
        self.flows.push(Flow {
            name,
            other_way,
            state: FlowState::New,
            done: [false; 2],
            packets: [1, 0],
            first_ns: now_ns,
            last_ns: now_ns,
        });
        true
    }

    fn rows(&self) -> (Vec<Row>, FlowTotals) {
        let mut rows: Vec<Row> = self
            .flows
            .iter()
            .map(|flow| {
                let [there, back] = flow.packets;
                (
                    flow.name.clone(),
                    flow.state,
                    there,
                    back,
                    flow.first_ns,
                    flow.last_ns,
                )
            })
            .collect();
        rows.sort_by(|a, b| a.0.cmp(&b.0));
        (rows, self.totals)
    }
}

impl Flow {
    fn step(&mut self, side: usize, flags: u8, is_tcp: bool) {
        if !is_tcp {
            if side == 1 {
                self.state = FlowState::Established;
            }
            return;
        }
        self.done[side] |= flags & FIN != 0;
        self.state = match self.state {
            FlowState::Closed => FlowState::Closed,
            _ if flags & RST != 0 || self.done == [true; 2] => FlowState::Closed,
            _ if self.done != [false; 2] => FlowState::Closing,
            FlowState::New if flags & (ACK | SYN) == ACK => FlowState::Established,
            state => state,
        };
    }
}

#[test]
fn a_connection_is_followed_to_its_end() {
    let (client, server) = (build::client_v4(), build::server_v4());
    let mut function = tracker(CONFIG);
    let mut now_ns = 0;
    for (from_client, flags, state) in [
        (true, SYN, FlowState::New),
        (false, SYN | ACK, FlowState::New),
        (true, ACK, FlowState::Established),
        (false, FIN | ACK, FlowState::Closing),
        (true, FIN | ACK, FlowState::Closed),
        (false, ACK, FlowState::Closed),
        (true, SYN, FlowState::New),
        (false, RST | ACK, FlowState::Closed),
    ] {
        now_ns += 1;
        let frame = if from_client {
            segment(client, server, flags)
        } else {
            segment(server, client, flags)
        };
        assert!(run(&mut *function, &frame, now_ns));
        let (rows, _) = rows(&*function);
        assert_eq!((rows.len(), rows[0].1), (1, state), "at {now_ns}");
    }
    assert_eq!(rows(&*function).1.begun, 2);
}

/// The ports of a connection whose other end never said its last word are used again.
#[test]
fn who_has_closed_may_open_anew() {
    let (client, server) = (build::client_v4(), build::server_v4());
    for (first, second) in [(client, server), (server, client)] {
        let mut function = tracker(CONFIG);
        let mut now_ns = 0;
        for (from, to, flags, state, packets, begun) in [
            (first, second, SYN, FlowState::New, 1, 1),
            (second, first, ACK, FlowState::Established, 1, 1),
            (first, second, FIN | ACK, FlowState::Closing, 2, 1),
            // Not this end: it has not closed.
            (second, first, SYN, FlowState::Closing, 2, 1),
            (first, second, ACK, FlowState::Closing, 3, 1),
            (first, second, SYN, FlowState::New, 1, 2),
            (second, first, FIN | ACK, FlowState::Closing, 1, 2),
            (second, first, SYN, FlowState::New, 1, 3),
        ] {
            now_ns += 1;
            assert!(run(&mut *function, &segment(from, to, flags), now_ns));
            let (rows, totals) = rows(&*function);
            assert_eq!(
                (rows.len(), rows[0].1, rows[0].2, totals.begun),
                (1, state, packets, begun),
                "at {now_ns}"
            );
        }
    }
}

#[test]
fn segments_of_no_connection_are_dropped_or_passed_and_counted() {
    let (client, server) = (build::client_v6(), build::server_v6());
    for (invalid, goes_on) in [(InvalidPolicy::Drop, false), (InvalidPolicy::Pass, true)] {
        let mut function = tracker(FlowTrackerConfig { invalid, ..CONFIG });
        for flags in [0, ACK, SYN | ACK, FIN | ACK, RST] {
            let frame = segment(client, server, flags);
            assert_eq!(run(&mut *function, &frame, 5), goes_on);
        }
        let (rows, totals) = rows(&*function);
        assert!(rows.is_empty());
        assert_eq!((totals.begun, totals.outside), (0, 5));
        assert!(run(&mut *function, &build::udp_v6(3), 6));
    }
}

#[test]
fn a_flow_that_was_silent_too_long_is_unknown() {
    let (client, server) = (build::client_v4(), build::server_v4());
    let mut function = tracker(CONFIG);
    assert!(run(&mut *function, &segment(client, server, SYN), 0));
    assert!(run(&mut *function, &segment(client, server, ACK), 1000));
    assert!(run(&mut *function, &segment(client, server, ACK), 2000));
    assert!(!run(&mut *function, &segment(client, server, ACK), 3001));
    assert!(run(&mut *function, &segment(client, server, SYN), 3001));
    assert_eq!(rows(&*function).1.begun, 2);
    let udp = build::udp_v4(1);
    for now_ns in [4000, 4100, 4201] {
        assert!(run(&mut *function, &udp, now_ns));
    }
    let (rows, totals) = rows(&*function);
    let udp = rows.iter().find(|row| row.0.starts_with("udp")).unwrap();
    assert_eq!((udp.2, udp.4), (1, 4201));
    assert_eq!(totals.begun, 4);
}

/// As the two chains of a pair hand it packets.
#[test]
fn the_reply_side_works_on_the_same_flows() {
    let mut states = States::default();
    let key = StateKey {
        chain: "there".into(),
        function: "connections".into(),
    };
    let mut side = |side, config| {
        let instance = FunctionInstance {
            config: FunctionConfig::FlowTracker(config),
            state: Some(key.clone()),
            side,
        };
        states.instantiate(&instance).unwrap()
    };
    let mut forward = side(Side::Forward, CONFIG);
    let mut reply = side(Side::Reply, CONFIG);
    let (client, server) = (build::client_v4(), build::server_v4());
    assert!(!run(&mut *reply, &segment(server, client, SYN | ACK), 1));
    assert!(run(&mut *forward, &segment(client, server, SYN), 2));
    assert!(run(&mut *reply, &segment(server, client, SYN | ACK), 3));
    // A new generation with other times finds them too.
    let longer = FlowTrackerConfig {
        tcp_timeout_ns: 5000,
        ..CONFIG
    };
    let mut next = side(Side::Forward, longer);
    drop(forward);
    assert!(run(&mut *next, &segment(client, server, ACK), 4000));
    let (rows, _) = rows(&*next);
    assert_eq!((rows[0].1, rows[0].2), (FlowState::Established, 2));
    assert_eq!(rows[0].3, 1);
}

fn frame() -> impl Strategy<Value = Vec<u8>> {
    let flags = prop_oneof![
        3 => Just(SYN),
        1 => Just(SYN | ACK),
        4 => Just(ACK),
        2 => Just(FIN | ACK),
        1 => Just(RST),
        1 => any::<u8>(),
    ];
    (0_u16..5, any::<bool>(), flags, 0..8).prop_map(|(port, turned, flags, kind)| {
        let (mut client, mut server) = if kind == 0 {
            (build::client_v6(), build::server_v6())
        } else {
            (build::client_v4(), build::server_v4())
        };
        client.set_port(port);
        if port == 4 {
            // Only the ports tell the ends apart, or not even they.
            server.set_ip(client.ip());
            server.set_port(if kind < 4 { 4 } else { 3 });
        }
        let (from, to) = if turned {
            (server, client)
        } else {
            (client, server)
        };
        match kind {
            1 => build::udp(from, to, b"data"),
            2 => build::ip(from.ip(), to.ip(), 132, b"data"),
            _ => segment(from, to, flags),
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_packets_are_followed_as_the_reference_says(
        flows in prop_oneof![1_u32..6, Just(100)],
        pass: bool,
        packets in prop::collection::vec((frame(), prop_oneof![4 => 0_u64..30, 1 => 90_u64..1100]), 1..300),
    ) {
        let invalid = if pass { InvalidPolicy::Pass } else { InvalidPolicy::Drop };
        let config = FlowTrackerConfig { flows, invalid, ..CONFIG };
        let mut function = tracker(config);
        let mut model = Model::default();
        let mut now_ns = 1;
        for (frame, later_ns) in packets {
            now_ns += later_ns;
            prop_assert_eq!(
                run(&mut *function, &frame, now_ns),
                model.run(&config, &frame, now_ns)
            );
        }
        prop_assert_eq!(rows(&*function), model.rows());
    }
}

#[test]
fn every_fixture_goes_on_when_nothing_is_to_be_dropped() {
    let config = FlowTrackerConfig {
        invalid: InvalidPolicy::Pass,
        ..CONFIG
    };
    let mut function = tracker(config);
    let mut model = Model::default();
    for (now_ns, fixture) in (1..).zip(fixtures::all()) {
        if fixture.expected.is_ok() {
            assert!(run(&mut *function, &fixture.frame, now_ns));
            model.run(&config, &fixture.frame, now_ns);
        }
    }
    assert_eq!(rows(&*function), model.rows());
}
