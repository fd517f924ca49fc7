//! Compares `flow-tracker` with a plain reference: a list of flows with explicit states.

use myelin_packet::fixtures::build;
use myelin_packet::{FlowState, FlowTotals, parse};
use myelin_spec::{FlowTrackerConfig, FunctionConfig, InvalidPolicy, Side};
use proptest::prelude::*;

use crate::space::{
    ACK, Chain, Chains, FIN, Flows, Kernel, RST, SYN, Spaces, for_all, instance, on_fixtures,
    segment, send,
};

const CONFIG: FlowTrackerConfig = FlowTrackerConfig {
    flows: 4096,
    invalid: InvalidPolicy::Drop,
    timeout_ns: 100,
    tcp_timeout_ns: 1000,
};

fn load(spaces: &Spaces, config: FlowTrackerConfig) -> Chains {
    spaces.load(&[FunctionConfig::FlowTracker(config)])
}

/// Returns whether the frame passes. Checks that it is unchanged.
#[track_caller]
fn run(chains: &Chains, frame: &[u8], now_ns: u64) -> bool {
    let out = chains.run(frame, now_ns);
    assert!(
        out.is_none() || out.as_deref() == Some(frame),
        "the frame was changed"
    );
    out.is_some()
}

/// Name, state, packets in both directions, first and last time of a flow.
type Row = (String, FlowState, [u64; 2], u64, u64);

fn to_rows((flows, totals): Flows) -> (Vec<Row>, FlowTotals) {
    let rows = flows.into_iter().map(|(name, flow)| {
        let packets = [flow.packets, flow.reply_packets];
        (
            name,
            flow.state().unwrap(),
            packets,
            flow.first_ns,
            flow.last_ns,
        )
    });
    (rows.collect(), totals)
}

#[track_caller]
fn read_rows(chains: &Chains) -> (Vec<Row>, FlowTotals) {
    to_rows(chains.flows().unwrap())
}

#[derive(Clone, Debug)]
struct Flow {
    /// The five-tuple of the first packet.
    name: String,
    reversed_name: String,
    state: FlowState,
    /// Whether each side has sent a FIN: the opener, the other side.
    done: [bool; 2],
    packets: [u64; 2],
    first_ns: u64,
    last_ns: u64,
}

#[derive(Default)]
struct Model {
    /// The least recently used flow is first.
    flows: Vec<Flow>,
    totals: FlowTotals,
}

impl Model {
    /// Returns whether the frame passes.
    fn run(&mut self, config: &FlowTrackerConfig, frame: &[u8], now_ns: u64) -> bool {
        let headers = parse(frame).unwrap();
        let tuple = headers.five_tuple(frame);
        let (name, reversed_name) = (tuple.to_string(), tuple.reversed().to_string());
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
            .position(|flow| flow.name == name || flow.reversed_name == name);
        if let Some(at) = known {
            let mut flow = self.flows.remove(at);
            let lifetime = match flow.state {
                _ if !is_tcp => config.timeout_ns,
                FlowState::Established => config.tcp_timeout_ns,
                FlowState::Closed => config.tcp_timeout_ns.min(10_000_000_000),
                _ => config.tcp_timeout_ns.min(240_000_000_000),
            };
            let is_alive = now_ns - flow.last_ns <= lifetime;
            // A flow to itself has the same name in both directions.
            let side = usize::from(flow.name != name);
            if is_alive && !(opens && (flow.state == FlowState::Closed || flow.done[side])) {
                flow.packets[side] += 1;
                if flow.state != FlowState::Closed {
                    flow.last_ns = now_ns;
                }
                flow.advance(side, flags, is_tcp);
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
            reversed_name,
            state: FlowState::New,
            done: [false; 2],
            packets: [1, 0],
            first_ns: now_ns,
            last_ns: now_ns,
        });
        true
    }

    fn rows(&self) -> (Vec<Row>, FlowTotals) {
        let row = |flow: &Flow| {
            let times = (flow.first_ns, flow.last_ns);
            (
                flow.name.clone(),
                flow.state,
                flow.packets,
                times.0,
                times.1,
            )
        };
        let mut rows: Vec<Row> = self.flows.iter().map(row).collect();
        rows.sort_by(|a, b| a.0.cmp(&b.0));
        (rows, self.totals)
    }
}

impl Flow {
    fn advance(&mut self, side: usize, flags: u8, is_tcp: bool) {
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
fn a_connection_is_tracked_to_its_end() {
    let (client, server) = (build::client_v4(), build::server_v4());
    let chains = load(&Spaces::all(), CONFIG);
    for (now_ns, (from_client, flags, state)) in (1..).zip([
        (true, SYN, FlowState::New),
        (false, SYN | ACK, FlowState::New),
        (true, ACK, FlowState::Established),
        (false, FIN | ACK, FlowState::Closing),
        (true, FIN | ACK, FlowState::Closed),
        (false, ACK, FlowState::Closed),
        (true, SYN, FlowState::New),
        (false, RST | ACK, FlowState::Closed),
    ]) {
        let frame = if from_client {
            segment(client, server, flags)
        } else {
            segment(server, client, flags)
        };
        assert!(run(&chains, &frame, now_ns));
        let (rows, _) = read_rows(&chains);
        assert_eq!((rows.len(), rows[0].1), (1, state), "at {now_ns}");
    }
    assert_eq!(read_rows(&chains).1.begun, 2);
}

/// An end that has closed a connection may reuse its ports before the other end closes.
#[test]
fn a_closed_end_may_open_a_new_connection() {
    let (client, server) = (build::client_v4(), build::server_v4());
    let spaces = Spaces::all();
    for (first, second) in [(client, server), (server, client)] {
        let chains = load(&spaces, CONFIG);
        for (now_ns, (from, to, flags, state, packets, begun)) in (1..).zip([
            (first, second, SYN, FlowState::New, 1, 1),
            (second, first, ACK, FlowState::Established, 1, 1),
            (first, second, FIN | ACK, FlowState::Closing, 2, 1),
            // The second end has not closed.
            (second, first, SYN, FlowState::Closing, 2, 1),
            (first, second, ACK, FlowState::Closing, 3, 1),
            (first, second, SYN, FlowState::New, 1, 2),
            (second, first, FIN | ACK, FlowState::Closing, 1, 2),
            (second, first, SYN, FlowState::New, 1, 3),
        ]) {
            assert!(run(&chains, &segment(from, to, flags), now_ns));
            let (rows, totals) = read_rows(&chains);
            assert_eq!(
                (rows.len(), rows[0].1, rows[0].2[0], totals.begun),
                (1, state, packets, begun),
                "at {now_ns}"
            );
        }
    }
}

#[test]
fn segments_without_a_connection_are_dropped_or_passed_and_counted() {
    let (client, server) = (build::client_v6(), build::server_v6());
    for (invalid, is_forwarded) in [(InvalidPolicy::Drop, false), (InvalidPolicy::Pass, true)] {
        let chains = load(&Spaces::all(), FlowTrackerConfig { invalid, ..CONFIG });
        for flags in [0, ACK, SYN | ACK, FIN | ACK, RST] {
            assert_eq!(
                run(&chains, &segment(client, server, flags), 5),
                is_forwarded
            );
        }
        let (rows, totals) = read_rows(&chains);
        assert!(rows.is_empty());
        assert_eq!((totals.begun, totals.outside), (0, 5));
        assert!(run(&chains, &build::udp_v6(3), 6));
    }
}

#[test]
fn a_flow_expires_after_its_timeout() {
    let (client, server) = (build::client_v4(), build::server_v4());
    let chains = load(&Spaces::all(), CONFIG);
    for (flags, now_ns, is_forwarded) in [
        (SYN, 0, true),
        (ACK, 1000, true),
        (ACK, 2000, true),
        (ACK, 3001, false),
        (SYN, 3001, true),
    ] {
        assert_eq!(
            run(&chains, &segment(client, server, flags), now_ns),
            is_forwarded
        );
    }
    assert_eq!(read_rows(&chains).1.begun, 2);
    for now_ns in [4000, 4100, 4201] {
        assert!(run(&chains, &build::udp_v4(1), now_ns));
    }
    let (rows, totals) = read_rows(&chains);
    let udp = rows.iter().find(|row| row.0.starts_with("udp")).unwrap();
    assert_eq!((udp.2[0], udp.3), (1, 4201));
    assert_eq!(totals.begun, 4);
}

#[test]
fn the_reply_side_and_the_next_generation_share_the_flows() {
    let spaces = Spaces::all();
    let [forward, reply] = spaces.load_pair(&FunctionConfig::FlowTracker(CONFIG), "tracker");
    let (client, server) = (build::client_v4(), build::server_v4());
    assert!(!run(&reply, &segment(server, client, SYN | ACK), 1));
    assert!(run(&forward, &segment(client, server, SYN), 2));
    assert!(run(&reply, &segment(server, client, SYN | ACK), 3));
    // A new generation with other timeouts has the same flows.
    let longer = FunctionConfig::FlowTracker(FlowTrackerConfig {
        tcp_timeout_ns: 5000,
        ..CONFIG
    });
    let next = spaces.load(&[instance(&longer, "tracker", Side::Forward)]);
    drop(forward);
    assert!(run(&next, &segment(client, server, ACK), 4000));
    let (rows, _) = read_rows(&next);
    assert_eq!(
        (rows.len(), rows[0].1, rows[0].2),
        (1, FlowState::Established, [2, 1])
    );
}

/// Returns frames of both directions of few flows, with flags that change the flows' states.
fn frame() -> impl Strategy<Value = Vec<u8>> {
    let flags = prop_oneof![
        3 => Just(SYN),
        1 => Just(SYN | ACK),
        4 => Just(ACK),
        2 => Just(FIN | ACK),
        1 => Just(RST),
        1 => any::<u8>(),
    ];
    (0_u16..5, any::<bool>(), flags, 0..8).prop_map(|(port, reversed, flags, kind)| {
        let (mut client, mut server) = if kind == 0 {
            (build::client_v6(), build::server_v6())
        } else {
            (build::client_v4(), build::server_v4())
        };
        client.set_port(port);
        if port == 4 {
            // Only the ports identify the ends, or both ends are equal.
            server.set_ip(client.ip());
            server.set_port(if kind < 4 { 4 } else { 3 });
        }
        let (from, to) = if reversed {
            (server, client)
        } else {
            (client, server)
        };
        match kind {
            1 => build::udp(from, to, b"data"),
            2 => build::ip(from.ip(), to.ip(), 132, b"data"),
            3 => build::with_tags(segment(from, to, flags), &[build::VLAN]),
            _ => segment(from, to, flags),
        }
    })
}

#[test]
fn random_packets_match_the_reference() {
    compare_with_the_reference(64, 8);
}

#[test]
#[ignore = "thorough: checks 272 random cases"]
fn many_random_packets_match_the_reference() {
    compare_with_the_reference(256, 16);
}

fn compare_with_the_reference(user: u32, all: u32) {
    let later = prop_oneof![4 => 0_u64..30, 1 => 90_u64..1100];
    let packets = prop::collection::vec((frame(), later), 1..300);
    let case = (packets, any::<bool>(), prop_oneof![1_u32..6, Just(100)]);
    for_all(user, all, &case, |spaces, (packets, pass, flows)| {
        let invalid = if pass {
            InvalidPolicy::Pass
        } else {
            InvalidPolicy::Drop
        };
        // A full kernel table evicts other flows than the model.
        let flows = if spaces.are_user_only() { flows } else { 4096 };
        let config = FlowTrackerConfig {
            flows,
            invalid,
            ..CONFIG
        };
        let (chains, mut model, mut now_ns) = (load(spaces, config), Model::default(), 1);
        for (frame, later_ns) in packets {
            now_ns += later_ns;
            let expected = model.run(&config, &frame, now_ns).then_some(&*frame);
            chains.expect_at(now_ns, &frame, expected, "a random packet");
        }
        assert_eq!(read_rows(&chains), model.rows());
    });
}

#[test]
fn every_fixture_matches_the_reference() {
    on_fixtures(|spaces, fixtures| {
        for invalid in [InvalidPolicy::Pass, InvalidPolicy::Drop] {
            let config = FlowTrackerConfig { invalid, ..CONFIG };
            let (chains, mut model) = (load(spaces, config), Model::default());
            for (now_ns, fixture) in (1..).zip(fixtures) {
                let is_forwarded = model.run(&config, &fixture.frame, now_ns);
                assert!(
                    is_forwarded || invalid == InvalidPolicy::Drop,
                    "{}",
                    fixture.name
                );
                let expected = is_forwarded.then_some(&*fixture.frame);
                chains.expect_at(now_ns, &fixture.frame, expected, fixture.name);
            }
            assert_eq!(read_rows(&chains), model.rows());
        }
    });
}

/// Two CPUs run both directions at the same time. The entry counts every packet and records the FIN
/// of each side.
#[test]
fn both_directions_of_a_flow_update_one_entry() {
    const PACKETS_PER_DIRECTION: u32 = 100_000;
    let (client, server) = (build::client_v4(), build::server_v4());
    let config = FlowTrackerConfig {
        timeout_ns: 1_000_000,
        tcp_timeout_ns: 1_000_000,
        ..CONFIG
    };
    for kernel in Kernel::at_hooks() {
        let chain = kernel.load_chain(&[FunctionConfig::FlowTracker(config)]);
        assert!(
            chain
                .run_one(&segment(client, server, SYN), 1, 0)
                .is_forwarded
        );
        let (program, hook) = (chain.program(), chain.hook);
        std::thread::scope(|scope| {
            for (from, to) in [(client, server), (server, client)] {
                let frame = segment(from, to, FIN | ACK);
                scope.spawn(move || send(program, hook, &frame, 2, PACKETS_PER_DIRECTION));
            }
        });
        let (rows, _) = to_rows(chain.flows().unwrap());
        let [(name, state, packets, ..)] = &rows[..] else {
            panic!("{} flows", rows.len())
        };
        assert_eq!(
            *packets,
            [
                u64::from(PACKETS_PER_DIRECTION) + 1,
                u64::from(PACKETS_PER_DIRECTION)
            ]
        );
        assert_eq!(*state, FlowState::Closed);
        let opening = segment(client, server, SYN);
        let opening = parse(&opening).unwrap().five_tuple(&opening);
        assert_eq!(*name, opening.to_string());
    }
}
