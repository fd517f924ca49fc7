//! Compares the conformance monitor with a reference in user space. Compares the monitor's filter
//! with the classifier. Tests the monitor on real links.

use std::net::SocketAddrV4;

use crate::trial::MonitorTrial;
use myelin_kernel::test_run::TestRun;
use myelin_kernel::{ConformConfig, Conformance, Hook, TrafficDirection};
use myelin_packet::Match;
use myelin_packet::fixtures::Meter;
use myelin_packet::fixtures::reference::most_specific;
use myelin_packet::fixtures::{self, build};
use myelin_packet::traffic::{CREDIT, Profile};
use proptest::prelude::*;

use crate::common::{can_run, create_plane, for_all, is_root};
use crate::net::{Net, PATIENCE, receive};
use crate::profiles::{bucket, profiles};

fn packet_profile(rate: u64, burst: u64) -> Profile {
    Profile {
        packets: Some(bucket(rate, burst)),
        bits: None,
    }
}

/// Returns a configuration without a tolerance.
fn strict(profile: Profile) -> ConformConfig {
    ConformConfig {
        profile,
        ..ConformConfig::default()
    }
}

/// The arrival of a packet or a GSO packet.
#[derive(Clone, Copy, Debug)]
struct Arrival {
    at_ns: u64,
    /// Payload bytes of the whole packet.
    payload: usize,
    /// Payload bytes of a segment, for a GSO packet.
    segment: Option<usize>,
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
    let size = prop_oneof![
        8 => (18..1400_usize).prop_map(|payload| (payload, None)),
        1 => (2..3000_usize, 1..1400_usize).prop_map(|(payload, segment)| (payload, Some(segment))),
    ];
    let arrival = (step, size);
    (
        1_000_000_000..u64::MAX / 2,
        prop::collection::vec(arrival, 1..250),
    )
        .prop_map(|(start, arrivals)| {
            let mut at_ns = start;
            let arrival = |(step, (payload, segment)): (i64, (usize, Option<usize>))| {
                at_ns = at_ns.saturating_add_signed(step);
                Arrival {
                    at_ns,
                    payload,
                    segment: segment.filter(|segment| *segment < payload),
                }
            };
            arrivals.into_iter().map(arrival).collect()
        })
}

impl Arrival {
    /// Passes the packet to the monitor. Returns the bytes of each segment.
    fn observe(&self, trial: &MonitorTrial) -> Vec<u64> {
        let frame = build::udp_v4(self.payload);
        let headers = frame.len() - self.payload;
        let segments: Vec<_> = (0..self.payload)
            .step_by(self.segment.unwrap_or(self.payload))
            .map(|from| {
                let rest = self.payload - from;
                (headers + self.segment.unwrap_or(rest).min(rest)) as u64
            })
            .collect();
        let verdict = trial.observe(&TestRun {
            arrival_ns: self.at_ns,
            gso_segs: self.segment.map_or(0, |_| segments.len() as u32),
            gso_size: self.segment.unwrap_or(0) as u32,
            ..TestRun::new(&frame)
        });
        assert_eq!(verdict.unwrap(), Hook::Tcx.pass());
        segments
    }
}

#[test]
fn the_monitor_reports_the_same_as_the_reference() {
    if !is_root() {
        return;
    }
    for_all(48, &(profiles(), arrivals()), |(profile, trace)| {
        let trial = MonitorTrial::new(&strict(profile)).unwrap();
        let mut reference = Meter::new(&profile);
        let (mut bytes, mut latest) = (0, 0);
        for arrival in &trace {
            for length in arrival.observe(&trial) {
                reference.record(arrival.at_ns, length);
                bytes += length;
            }
            latest = latest.max(arrival.at_ns);
        }
        let seen = trial.report().unwrap();
        assert_eq!(
            (seen.packets, seen.bytes, seen.above),
            (reference.packets_seen(), bytes, reference.nonconforming())
        );
        assert_eq!(
            seen.beyond, seen.above,
            "without a tolerance both counts must be equal"
        );
        assert_eq!(
            seen.packet_bucket.map(|bucket| bucket.level),
            reference.packets()
        );
        assert_eq!(seen.bit_bucket.map(|bucket| bucket.level), reference.bits());
        assert_eq!((seen.first_ns, seen.last_ns), (trace[0].at_ns, latest));
        assert_eq!(seen.violations == 0, seen.above == 0);
        let kept: u64 = seen
            .first_violations
            .iter()
            .map(|violation| violation.packets)
            .sum();
        if seen.violations == seen.first_violations.len() as u64 {
            assert_eq!(kept, seen.above);
        }
    });
}

/// A tolerance T is equal to a burst that is larger by the traffic of the rate in T.
#[test]
fn the_tolerance_widens_the_burst() {
    if !is_root() {
        return;
    }
    let cases = (1..2000_u64, 1..20_u64, 0..20_u64, arrivals());
    for_all(24, &cases, |(kilo, burst, extra_burst, trace)| {
        let profile = packet_profile(kilo * 1000, burst);
        let tolerance_ns = extra_burst * 1_000_000 / kilo;
        // Only some tolerances are whole packets. The reference checks the other tolerances in
        // fractions.
        let trial = MonitorTrial::new(&ConformConfig {
            tolerance_ns,
            ..strict(profile)
        });
        let trial = trial.unwrap();
        let tolerated = burst * CREDIT + kilo * 1000 * tolerance_ns;
        let (mut meter, mut above, mut beyond, mut max_level) = (Meter::new(&profile), 0, 0, 0);
        for arrival in &trace {
            for length in arrival.observe(&trial) {
                above += u64::from(!meter.record(arrival.at_ns, length));
                let level = meter.packets().unwrap();
                beyond += u64::from(level.now > tolerated);
                max_level = level.most;
            }
        }
        let seen = trial.report().unwrap();
        assert_eq!((seen.above, seen.beyond), (above, beyond));
        let bucket = seen.packet_bucket.unwrap();
        let least_tolerance_ns = bucket.least_tolerance_ns(profile.packets.unwrap());
        assert_eq!(
            bucket.excess(profile.packets.unwrap()),
            max_level.saturating_sub(burst * CREDIT)
        );
        assert_eq!(seen.beyond == 0, least_tolerance_ns <= tolerance_ns);
    });
}

#[test]
fn violations_have_time_and_excess() {
    if !is_root() {
        return;
    }
    // The profile is a packet each microsecond with a burst of two.
    let trial = MonitorTrial::new(&strict(packet_profile(1_000_000, 2))).unwrap();
    let frame = build::udp_v4(100);
    let at = |at_ns| {
        trial
            .observe(&TestRun {
                arrival_ns: at_ns,
                ..TestRun::new(&frame)
            })
            .unwrap();
    };
    for at_ns in [10_000, 10_000, 10_000, 10_500, 20_000, 20_000, 20_000] {
        at(at_ns);
    }
    let seen = trial.report().unwrap();
    let reported: Vec<_> = seen
        .first_violations
        .iter()
        .map(|violation| {
            (
                violation.from_ns,
                violation.to_ns,
                violation.packets,
                violation.packets_over,
            )
        })
        .collect();
    assert_eq!(
        reported,
        [
            (10_000, 10_500, 2, 3 * CREDIT / 2),
            (20_000, 20_000, 1, CREDIT)
        ]
    );
    let fill = seen.packet_bucket.unwrap();
    assert_eq!((fill.level.burst(), fill.most_ns), (4, 10_500));
    assert_eq!(fill.least_tolerance_ns(bucket(1_000_000, 2)), 1500);
    // The monitor keeps the first violations and counts all violations.
    for number in 0..100_u64 {
        for _ in 0..3 {
            at(1_000_000 + number * 100_000);
        }
    }
    let seen = trial.report().unwrap();
    assert_eq!((seen.violations, seen.first_violations.len()), (102, 32));
    assert_eq!(seen.above, 103);
}

#[test]
fn the_monitor_stops_counting_at_its_limit() {
    if !is_root() {
        return;
    }
    let trial = MonitorTrial::new(&ConformConfig {
        most_packets: Some(3),
        ..strict(packet_profile(1, 100))
    });
    let trial = trial.unwrap();
    for _ in 0..5 {
        trial.observe(&TestRun::new(&build::udp_v4(100))).unwrap();
    }
    assert_eq!(trial.report().unwrap().packets, 3);
}

/// The filter accepts the same packets as a classifier with only this match.
#[test]
fn the_filter_equals_the_classifier() {
    if !is_root() {
        return;
    }
    let prefix = |text: &str| Some(text.parse().unwrap());
    let (client, server) = (build::client_v4(), build::server_v4());
    let matches = [
        Match::default(),
        Match {
            protocol: Some(17),
            ..Match::default()
        },
        Match {
            destination_port: Some(server.port()),
            ..Match::default()
        },
        Match {
            source_port: Some(client.port()),
            protocol: Some(6),
            ..Match::default()
        },
        Match {
            source_port: Some(client.port() ^ 1),
            ..Match::default()
        },
        Match {
            // The ports of a packet without ports read as 0.
            destination_port: Some(0),
            ..Match::default()
        },
        Match {
            destination: prefix(&server.ip().to_string()),
            ..Match::default()
        },
        Match {
            source: prefix(&build::client_v6().ip().to_string()),
            protocol: Some(17),
            ..Match::default()
        },
        Match {
            source: prefix("0.0.0.0/0"),
            ..Match::default()
        },
        Match {
            destination: prefix("203.0.113.0/24"),
            ..Match::default()
        },
    ];
    let mut taken = 0;
    for filter in matches {
        let trial = MonitorTrial::new(&ConformConfig {
            filter: Some(filter),
            ..strict(packet_profile(1, 1000))
        });
        let (trial, mut expected) = (trial.unwrap(), 0);
        for fixture in fixtures::all() {
            if !can_run(Hook::Tcx, &fixture.frame) {
                continue;
            }
            trial.observe(&TestRun::new(&fixture.frame)).unwrap();
            let takes = |tuple| most_specific(&[(filter, ())], &tuple).is_some();
            expected += u64::from(fixture.five_tuple().is_some_and(takes));
            let seen = trial.report().unwrap().packets;
            assert_eq!(seen, expected, "{filter:?}: {}", fixture.name);
        }
        taken += expected;
    }
    assert!(taken > 50, "{taken}");
}

/// The monitor runs before a door that redirects the packets, and after all programs on egress, at
/// tcx and at clsact. The drop detaches the monitor.
#[test]
fn the_monitor_attaches_outermost_and_changes_no_packet() {
    let Some(net) = Net::new() else { return };
    let config = ConformConfig {
        filter: Some(Match {
            destination_port: Some(4000),
            ..Match::default()
        }),
        ..strict(packet_profile(1, 3))
    };
    for (port, clsact) in [(1000, false), (1001, true)] {
        let plane = create_plane();
        let doors = [net.client_port(false), net.server_port(false)]
            .map(|port| plane.add_port(port).unwrap());
        for door in &doors {
            if clsact {
                door.attach_clsact().unwrap();
            } else {
                door.attach_tcx().unwrap();
            }
        }
        let attach = if clsact {
            Conformance::attach_clsact
        } else {
            Conformance::attach
        };
        let link = &net.client;
        let incoming = attach(&link.link, link.ifindex, TrafficDirection::In, &config).unwrap();
        let outgoing = (net
            .server
            .inside(|| attach("eth0", eth0(), TrafficDirection::In, &config)))
        .unwrap();
        let leaving = (net
            .client
            .inside(|| attach("eth0", eth0(), TrafficDirection::Out, &config)))
        .unwrap();
        let expected = if clsact { 0 } else { 2 };
        assert!(count_programs(link.ifindex).is_none_or(|count| count == expected));

        let (sender, receiver) = (net.client.open_udp(port), net.server.open_udp(4000));
        let other = net.server.open_udp(4001);
        for to in [4000, 4001, 4000, 4000, 4001, 4000, 4000] {
            let to = SocketAddrV4::new(net.server.address, to);
            sender.send_to(b"a packet", to).unwrap();
        }
        for (socket, count) in [(&receiver, 5), (&other, 2)] {
            for _ in 0..count {
                assert!(receive(socket, PATIENCE).is_some());
            }
        }
        let monitors = [
            ("leaving", &leaving),
            ("incoming", &incoming),
            ("outgoing", &outgoing),
        ];
        for (name, monitor) in monitors {
            let seen = monitor.read().unwrap();
            assert_eq!((seen.packets, seen.bytes), (5, 5 * 50), "{name}");
            // One more packet conforms each second, and the machine may be slow.
            assert!(seen.above <= 2, "{name}: {seen:?}");
            assert!(seen.packet_bucket.is_some() && seen.bit_bucket.is_none());
            assert!(seen.first_ns > 0 && seen.last_ns >= seen.first_ns);
        }
        drop(incoming);
        net.server.inside(|| drop(outgoing));
        net.client.inside(|| drop(leaving));
        let expected = u32::from(!clsact);
        assert!(count_programs(link.ifindex).is_none_or(|count| count == expected));
    }
}

/// Returns the index of `eth0` in the calling thread's namespace.
fn eth0() -> u32 {
    // SAFETY: the name is a C string.
    unsafe { libc::if_nametoindex(c"eth0".as_ptr()) }
}

/// Returns the number of programs at tcx ingress; `None` on a kernel without tcx (before Linux
/// 6.6).
fn count_programs(ifindex: u32) -> Option<u32> {
    let mut query = libbpf_sys::bpf_prog_query_opts {
        sz: size_of::<libbpf_sys::bpf_prog_query_opts>() as _,
        ..Default::default()
    };
    // SAFETY: the options hold no pointers and are valid for reads and writes through the call.
    let result = unsafe {
        libbpf_sys::bpf_prog_query_opts(
            ifindex.cast_signed(),
            libbpf_sys::BPF_TCX_INGRESS,
            &raw mut query,
        )
    };
    if result == -libc::EINVAL {
        return None;
    }
    assert_eq!(result, 0);
    // SAFETY: both members of the union are a count of programs.
    let count = unsafe { query.__bindgen_anon_1.count };
    Some(count)
}
