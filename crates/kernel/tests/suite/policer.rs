//! Compares the policer with the token bucket in user space, on one CPU and on two CPUs. Tests the
//! policer at the front door.

use std::net::SocketAddrV4;
use std::os::fd::AsFd;
use std::sync::{Arc, Barrier};
use std::time::Instant;

use crate::trial::{Arrival, MAX_ARRIVALS, PolicerTrial};
use myelin_kernel::test_run::{TestRun, run};
use myelin_kernel::{ChainConfig, Hook, Plane, Policer, Port, PortConfig, XdpMode};
use myelin_packet::Match;
use myelin_packet::fixtures::Meter;
use myelin_packet::fixtures::build;
use myelin_packet::traffic::{Profile, TokenBucket};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::common::{create_plane, is_root, kernel_chain};
use crate::door_bench::{add_port, forwards};
use crate::net::{Net, PATIENCE, SILENCE, receive, wait_for};
use crate::profiles::{bucket, profiles};

fn packet_profile(rate: u64, burst: u64) -> Profile {
    Profile {
        packets: Some(bucket(rate, burst)),
        bits: None,
    }
}

fn policer(plane: &Plane, profile: &Profile) -> Arc<Policer> {
    plane.policer(profile).unwrap().unwrap()
}

/// Returns arrivals whose times may repeat, jump, and decrease, like the clock readings of two
/// CPUs.
fn arrivals() -> impl Strategy<Value = Vec<Arrival>> {
    let step = prop_oneof![
        6 => Just(0_i64),
        6 => 0..5_000_i64,
        2 => 0..2_000_000_i64,
        1 => 0..50_000_000_000_i64,
        1 => -2_000..0_i64,
    ];
    let packets = prop_oneof![9 => Just(1_u32), 1 => 1..50_u32];
    let each = prop_oneof![Just(60_u32), Just(1514), 60..1514_u32];
    let arrival = (step, packets, each);
    (
        1_000_000_000..u64::MAX / 2,
        prop::collection::vec(arrival, 1..600),
    )
        .prop_map(|(start, arrivals)| {
            let mut at_ns = start;
            let arrival = |(step, packets, each): (i64, u32, u32)| {
                at_ns = at_ns.saturating_add_signed(step);
                Arrival {
                    at_ns,
                    packets,
                    bytes: packets * each,
                }
            };
            arrivals.into_iter().map(arrival).collect()
        })
}

#[test]
fn verdicts_match_the_token_bucket_in_user_space() {
    compare_with_the_token_bucket(16);
}

#[test]
#[ignore = "thorough: checks 64 random cases"]
fn many_verdicts_match_the_token_bucket_in_user_space() {
    compare_with_the_token_bucket(64);
}

fn compare_with_the_token_bucket(cases: u32) {
    if !is_root() {
        return;
    }
    let plane = create_plane();
    let mut runner = TestRunner::new(ProptestConfig::with_cases(cases));
    runner
        .run(
            &(profiles(), arrivals(), any::<bool>()),
            |(profile, trace, single_cpu)| {
                let trial =
                    PolicerTrial::new(&plane, &policer(&plane, &profile), single_cpu).unwrap();
                let mut reference = TokenBucket::new(&profile);
                for arrivals in trace.chunks(MAX_ARRIVALS) {
                    let mut policed = arrivals.to_vec();
                    trial.police(&mut policed).unwrap();
                    for (arrival, policed) in arrivals.iter().zip(policed) {
                        let expected = reference.take(
                            arrival.at_ns,
                            arrival.packets.into(),
                            arrival.bytes.into(),
                        );
                        prop_assert_eq!(policed.bytes == 1, expected, "{:?}", arrival);
                    }
                }
                Ok(())
            },
        )
        .unwrap();
}

#[test]
fn a_trace_is_exact_to_one_packet() {
    police_trace(500_000);
}

#[test]
#[ignore = "thorough: polices ten million packets"]
fn a_long_trace_is_exact_to_one_packet() {
    police_trace(10_000_000);
}

/// The period of the rate is not a whole number of nanoseconds.
fn police_trace(packets: usize) {
    if !is_root() {
        return;
    }
    let (rate, burst) = (300_000, 20);
    let plane = create_plane();
    let profile = packet_profile(rate, burst);
    let trial = PolicerTrial::new(&plane, &policer(&plane, &profile), true).unwrap();
    let mut meter = Meter::new(&profile);
    let (start, mut at_ns, mut passed) = (7_u64, 7_u64, 0_u64);
    let mut seed = 1_u64;
    let mut sent = 0;
    while sent < packets {
        let mut arrivals: Vec<Arrival> = (0..MAX_ARRIVALS)
            .map(|_| {
                // About 1.5 times the rate, in clusters, with pauses too short to fill the bucket.
                seed = seed
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                at_ns += if seed >> 62 == 0 {
                    0
                } else {
                    seed >> 40 & 0xfff
                };
                Arrival {
                    at_ns,
                    packets: 1,
                    bytes: 60,
                }
            })
            .collect();
        sent += arrivals.len();
        trial.police(&mut arrivals).unwrap();
        for arrival in arrivals.iter().filter(|arrival| arrival.bytes == 1) {
            assert!(
                meter.record(arrival.at_ns, 60),
                "the policer passed a packet above the profile"
            );
            passed += 1;
        }
        let due = u128::from(at_ns - start) * u128::from(rate) / 1_000_000_000 + u128::from(burst);
        let report = format!("{passed} packets passed, {due} may pass");
        assert!(u128::from(passed) <= due, "{report}");
        assert!(u128::from(passed) + 1 >= due, "{report}");
    }
}

/// Two CPUs that share a bucket pass as many packets together as one CPU would pass.
#[test]
fn two_cpus_share_a_bucket_exactly() {
    if !is_root() {
        return;
    }
    let (rate, burst) = (500_000, 100);
    let plane = create_plane();
    let policer = policer(&plane, &packet_profile(rate, burst));
    let barrier = Barrier::new(2);
    let run = || {
        let trial = PolicerTrial::new(&plane, &policer, false).unwrap();
        barrier.wait();
        let mut passed = Vec::new();
        for _ in 0..2000 {
            let mut arrivals = [Arrival {
                at_ns: 0,
                packets: 1,
                bytes: 60,
            }; MAX_ARRIVALS];
            trial.police(&mut arrivals).unwrap();
            passed.extend(
                arrivals
                    .iter()
                    .map(|arrival| (arrival.at_ns, arrival.bytes)),
            );
        }
        passed
    };
    let mut trace = std::thread::scope(|scope| {
        let threads = [scope.spawn(run), scope.spawn(run)];
        threads.map(|thread| thread.join().unwrap()).concat()
    });
    trace.sort_unstable();
    let elapsed_ns = u128::from(trace[trace.len() - 1].0 - trace[0].0);
    let passed = trace
        .iter()
        .filter(|(_, conformed)| *conformed == 1)
        .count() as u128;
    let earned = elapsed_ns * u128::from(rate) / 1_000_000_000;
    assert!(
        passed <= earned + u128::from(burst),
        "{passed} packets passed, the rate allows {earned} and the burst {burst}"
    );
    // In a pause that is longer than the bucket takes to fill, credit is lost, for one CPU too.
    let mut reference = TokenBucket::new(&packet_profile(rate, burst));
    let alone = trace
        .iter()
        .filter(|(at_ns, _)| reference.take(*at_ns, 1, 60))
        .count() as u128;
    assert!(
        passed * 100 >= alone * 98,
        "{passed} packets passed, one CPU alone would pass {alone}"
    );
}

struct PolicedDoor {
    port: Port,
    chain: myelin_kernel::LoadedChain,
    plane: Plane,
    hook: Hook,
}

impl PolicedDoor {
    fn new(hook: Hook, profile: &Profile) -> Self {
        let plane = create_plane();
        let port = add_port(&plane);
        let config = ChainConfig {
            policer: plane.policer(profile).unwrap(),
            ..kernel_chain(hook, 9, &forwards(1))
        };
        let chain = plane.load_chain(&config).unwrap();
        port.insert(&Match::default(), &chain).unwrap();
        Self {
            port,
            chain,
            plane,
            hook,
        }
    }

    fn passes(&self, test: &TestRun<'_>) -> bool {
        let program = self.port.program(self.hook).unwrap();
        let verdict = run(program.as_fd(), self.hook, test).unwrap().verdict;
        assert!([self.hook.drop(), self.hook.redirect()].contains(&verdict));
        verdict == self.hook.redirect()
    }
}

#[test]
fn the_door_drops_and_counts_excess() {
    if !is_root() {
        return;
    }
    let frame = build::udp_v4(100);
    for hook in Hook::ALL {
        // The rate is so low that the bucket earns nothing, unless the machine is very slow.
        let door = PolicedDoor::new(hook, &packet_profile(1, 3));
        let start = Instant::now();
        let passed = (0..8)
            .filter(|_| door.passes(&TestRun::new(&frame)))
            .count() as u64;
        let most = 3 + start.elapsed().as_secs();
        assert!((3..=most).contains(&passed), "{hook}: {passed}");
        let counted = door.plane.counters().read(door.chain.door_slot());
        let policed = 8 - passed;
        assert_eq!(
            (counted.packets, counted.policed, counted.drops),
            (8, policed, 0)
        );
        assert_eq!(counted.policed_bytes, policed * frame.len() as u64);
        let first = door.chain.counter_slot(0).unwrap();
        assert_eq!(door.plane.counters().read(first).packets, passed);
    }
}

#[test]
fn the_door_polices_bits() {
    if !is_root() {
        return;
    }
    let frame = build::udp_v4(100);
    let two = frame.len() as u64 * 8 * 2;
    for hook in Hook::ALL {
        let profile = Profile {
            packets: Some(bucket(1, 100)),
            bits: Some(bucket(1, two + 1)),
        };
        let door = PolicedDoor::new(hook, &profile);
        let passed = (0..8)
            .filter(|_| door.passes(&TestRun::new(&frame)))
            .count();
        assert_eq!(passed, 2, "{hook}");
    }
}

#[test]
fn each_segment_counts_with_its_headers() {
    if !is_root() {
        return;
    }
    let frame = build::udp_v4(1000);
    let segments = |gso_segs, gso_size| TestRun {
        gso_segs,
        gso_size,
        ..TestRun::new(&frame)
    };
    let door = PolicedDoor::new(Hook::Tcx, &packet_profile(1, 10));
    assert!(!door.passes(&segments(11, 91)));
    assert!(door.passes(&segments(10, 100)));
    assert!(!door.passes(&TestRun::new(&frame)));
    let unsegmented = PolicedDoor::new(Hook::Tcx, &packet_profile(1, 10));
    assert!(
        !unsegmented.passes(&segments(0, 91)),
        "without a segment count, the size gives 12 segments"
    );
    assert!(unsegmented.passes(&segments(0, 200)));
    let headers = frame.len() as u64 - 1000;
    let counted = door.plane.counters().read(door.chain.door_slot());
    assert_eq!(counted.policed, 12);
    assert_eq!(
        counted.policed_bytes,
        frame.len() as u64 + 10 * headers + frame.len() as u64
    );
}

#[test]
fn a_dropped_policer_frees_its_number() {
    if !is_root() {
        return;
    }
    let plane = create_plane();
    let profile = packet_profile(1, 1);
    for _ in 0..3 {
        let held: Vec<_> = (0..1000)
            .map_while(|_| plane.policer(&profile).ok())
            .collect();
        assert!((64..1000).contains(&held.len()), "{}", held.len());
        drop(held);
    }
    assert!(plane.policer(&Profile::default()).unwrap().is_none());
}

/// With native XDP on an interface with one queue, the policer takes no lock, but gives the same
/// verdicts.
#[test]
fn single_queue_native_xdp_and_generic_xdp_police_alike() {
    let Some(net) = Net::new() else { return };
    for host in net.hosts() {
        host.set_offloads(&["tx", "off", "gro", "on"]);
    }
    for mode in [XdpMode::Native, XdpMode::Generic] {
        let plane = create_plane();
        let client = plane
            .add_port(PortConfig {
                single_queue: true,
                behind_link: myelin_kernel::BehindLink::No,
                discards: false,
                ..net.client_port(false)
            })
            .unwrap();
        let server = plane.add_port(net.server_port(false)).unwrap();
        let mut config = ChainConfig {
            policer: plane.policer(&packet_profile(1, 5)).unwrap(),
            ..kernel_chain(Hook::Xdp, 9, &forwards(1))
        };
        config.segments[0].exit = net.to_server(false);
        let chain = plane.load_chain(&config).unwrap();
        let udp = Match {
            destination_port: Some(4000),
            ..Match::default()
        };
        client.insert(&udp, &chain).unwrap();
        client.attach_tcx().unwrap();
        server.attach_tcx().unwrap();
        client.attach_xdp(mode).unwrap();
        let (sender, receiver) = (net.client.open_udp(1000), net.server.open_udp(4000));
        let to = SocketAddrV4::new(net.server.address, 4000);
        let start = Instant::now();
        for _ in 0..20 {
            sender.send_to(b"a packet", to).unwrap();
        }
        let counted = || plane.counters().read(chain.door_slot());
        wait_for(&(mode, 20), || (mode, counted().packets));
        // The bucket earns one packet a second, and the machine may be slow.
        let (passed, most) = (20 - counted().policed, 5 + start.elapsed().as_secs());
        assert!((5..=most).contains(&passed), "{mode:?}: {passed}");
        for number in 0..passed {
            let received = receive(&receiver, PATIENCE);
            assert!(received.is_some(), "{mode:?}: {number} of {passed}");
        }
        assert_eq!(receive(&receiver, SILENCE), None, "{mode:?}");
    }
}
