//! Tests chains that the egress interface shapes: the class, and the departure times. The bucket in
//! user space is the reference for departure times.

use std::os::fd::AsFd;
use std::sync::Arc;

use crate::trial::{Arrival, PolicerTrial};
use myelin_kernel::test_run::{self, Outcome, TestRun};
use myelin_kernel::{ChainConfig, Exit, Hook, Plane};
use myelin_packet::Match;
use myelin_packet::fixtures;
use myelin_packet::fixtures::{Meter, build};
use myelin_packet::traffic::{Bucket, Profile, TokenBucket};
use proptest::prelude::*;

use crate::common::{LOOPBACK, create_plane, for_all, is_root, kernel_chain};
use crate::door_bench::{add_port, forwards, run_once};

fn shaped(exit: Exit) -> ChainConfig {
    let mut config = kernel_chain(Hook::Tcx, 5, &forwards(2));
    config.segments[0].exit = exit;
    config
}

/// Runs `count` frames through a front door and a chain with that exit. Returns the outcomes and
/// the count of the egress.
fn run(plane: &Plane, exit: Exit, count: usize) -> (Vec<Outcome>, u64) {
    let port = add_port(plane);
    let chain = plane.load_chain(&shaped(exit)).unwrap();
    port.insert(&Match::default(), &chain).unwrap();
    let program = port.program(Hook::Tcx).unwrap();
    let frame = fixtures::named("udp-v4").frame;
    let outcomes = (0..count)
        .map(|_| run_once(program.as_fd(), Hook::Tcx, &frame))
        .collect();
    let egress = plane.counters().read(chain.egress_slot());
    assert_eq!(chain.sojourn().count(), egress.packets);
    (outcomes, egress.packets)
}

#[test]
fn packets_get_the_priority_of_their_class() {
    if !is_root() {
        return;
    }
    let plane = create_plane();
    let class = 0x6d79_0007;
    let exit = Exit::Qdisc {
        ifindex: LOOPBACK,
        class,
    };
    let (outcomes, out) = run(&plane, exit, 1);
    assert_eq!(outcomes[0].verdict, Hook::Tcx.redirect());
    assert_eq!(
        (outcomes[0].priority, outcomes[0].departs_ns, out),
        (class, 0, 1)
    );
}

#[test]
fn packets_get_departure_times() {
    if !is_root() {
        return;
    }
    let plane = create_plane();
    // A packet takes minutes, so the profile tolerates any delay of the machine.
    let bytes = fixtures::named("udp-v4").frame.len() as u64;
    let seconds = bytes * 8;
    let profile = Profile {
        packets: None,
        bits: Bucket::new(1, 2 * bytes * 8).ok(),
    };
    let shaper = plane.shaper(&profile, seconds * 2_500_000_000).unwrap();
    let exit = Exit::Departure {
        ifindex: LOOPBACK,
        shaper: Arc::clone(&shaper),
    };
    assert_eq!(plane.shaper_counters(&shaper).unwrap().latest_ns, 0);
    let (outcomes, out) = run(&plane, exit, 6);
    let times: Vec<u64> = outcomes
        .iter()
        .filter(|outcome| outcome.verdict == Hook::Tcx.redirect())
        .map(|outcome| outcome.departs_ns)
        .collect();
    let mut meter = Meter::new(&profile);
    for time in &times {
        assert!(meter.record(*time, bytes), "{times:?}");
    }
    assert_eq!(times.len() as u64, out);
    let seen = plane.shaper_counters(&shaper).unwrap();
    assert_eq!((seen.late, seen.oversized), (6 - out, 0));
    assert_eq!(Some(&seen.latest_ns), times.last());
    assert_eq!((seen.delayed, seen.late), (2, 2), "{seen:?}");
}

#[test]
fn a_super_packet_departs_as_its_segments() {
    if !is_root() {
        return;
    }
    let frame = build::udp_v4(1000);
    let headers = frame.len() as u64 - 1000;
    let wire = 4 * headers + 1000;
    let super_packet = TestRun {
        gso_segs: 4,
        gso_size: 250,
        ..TestRun::new(&frame)
    };
    // The shaper sends nothing above the burst, so a burst of one bit less sends nothing.
    for (burst, sent) in [(wire * 8, 4), (wire * 8 - 1, 0)] {
        let plane = create_plane();
        let profile = Profile {
            packets: None,
            bits: Bucket::new(1, burst).ok(),
        };
        let shaper = plane.shaper(&profile, 0).unwrap();
        let port = add_port(&plane);
        let exit = Exit::Departure {
            ifindex: LOOPBACK,
            shaper: Arc::clone(&shaper),
        };
        let chain = plane.load_chain(&shaped(exit)).unwrap();
        port.insert(&Match::default(), &chain).unwrap();
        let program = port.program(Hook::Tcx).unwrap();
        let outcome = test_run::run(program.as_fd(), Hook::Tcx, &super_packet).unwrap();
        assert_eq!(outcome.verdict == Hook::Tcx.redirect(), sent > 0);
        assert_eq!(plane.counters().read(chain.egress_slot()).packets, sent);
        assert_eq!(chain.sojourn().count(), sent);
        let seen = plane.shaper_counters(&shaper).unwrap();
        assert_eq!(seen.oversized, 4 - sent);
    }
}

fn profiles() -> impl Strategy<Value = Profile> {
    let bucket = |(rate, burst)| Bucket::new(rate, burst).ok();
    let packets = (1..2_000_000_u64, 1..40_u64);
    let bits = (1000..1_000_000_000_u64, 12_112..200_000_u64);
    (packets, bits, 0..3).prop_map(move |(packets, bits, limits)| Profile {
        packets: bucket(packets).filter(|_| limits != 1),
        bits: bucket(bits).filter(|_| limits != 0),
    })
}

/// Returns the departure time that `myelin_packet::traffic` computes; 0 for a packet that would
/// wait too long.
fn compute_departure_ns(bucket: &mut TokenBucket, now_ns: u64, bytes: u64, limit_ns: u64) -> u64 {
    let Some(eligible_ns) = bucket.eligible_ns(1, bytes) else {
        return 0;
    };
    let departs_ns = eligible_ns.max(now_ns);
    if departs_ns - now_ns > limit_ns {
        return 0;
    }
    assert!(bucket.take(departs_ns, 1, bytes));
    departs_ns
}

#[test]
fn departure_times_match_the_bucket_in_user_space() {
    compare_departure_times(16);
}

#[test]
#[ignore = "thorough: checks 64 random cases"]
fn many_departure_times_match_the_bucket_in_user_space() {
    compare_departure_times(64);
}

fn compare_departure_times(count: u32) {
    if !is_root() {
        return;
    }
    let arrivals = prop::collection::vec((0..3_000_000_u64, 60..1600_u32), 1..150);
    let cases = (profiles(), 0..50_000_000_u64, arrivals);
    let plane = create_plane();
    for_all(count, &cases, |(profile, limit_ns, arrivals)| {
        let shaper = plane.shaper(&profile, limit_ns).unwrap();
        let trial = PolicerTrial::for_shaper(&plane, &shaper).unwrap();
        let mut now_ns = 1_000_000;
        let mut arrivals: Vec<Arrival> = arrivals
            .into_iter()
            .map(|(gap_ns, bytes)| {
                // Half of the packets arrive at the same time as the previous packet.
                now_ns += if gap_ns % 2 == 0 { 0 } else { gap_ns };
                Arrival {
                    at_ns: now_ns,
                    packets: 1,
                    bytes,
                }
            })
            .collect();
        let mut reference = TokenBucket::new(&profile);
        let expected_ns: Vec<u64> = arrivals
            .iter()
            .map(|arrival| {
                let bytes = arrival.bytes.into();
                compute_departure_ns(&mut reference, arrival.at_ns, bytes, limit_ns)
            })
            .collect();
        trial.police(&mut arrivals).unwrap();
        let departures_ns: Vec<u64> = arrivals.iter().map(|arrival| arrival.at_ns).collect();
        assert_eq!(departures_ns, expected_ns);
    });
}

#[test]
fn a_shaped_egress_at_xdp_is_refused() {
    if !is_root() {
        return;
    }
    let exit = Exit::Qdisc {
        ifindex: LOOPBACK,
        class: 1,
    };
    let config = ChainConfig {
        hook: Hook::Xdp,
        ..shaped(exit)
    };
    let error = create_plane().load_chain(&config).unwrap_err().to_string();
    assert!(error.contains("hook: tcx"), "{error}");
}
