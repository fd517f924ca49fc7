//! Token bucket and meter against the definition, and against each other.

use myelin_packet::fixtures::Meter;
use myelin_packet::traffic::{Bucket, CREDIT, Profile, ProfileError, TokenBucket};
use proptest::prelude::*;

fn bucket(rate: u64, burst: u64) -> Bucket {
    Bucket::new(rate, burst).unwrap()
}

fn of_packets(rate: u64, burst: u64) -> Profile {
    Profile {
        packets: Some(bucket(rate, burst)),
        bits: None,
    }
}

fn profile() -> impl Strategy<Value = Profile> {
    let rate = prop_oneof![
        1..10_u64,
        1000..2_000_000_u64,
        Just(300_000),
        Just(7_777_777)
    ];
    let packets = (rate.clone(), 1..40_u64).prop_map(|(rate, burst)| bucket(rate, burst));
    let bits = (rate, 12_112..500_000_u64)
        .prop_map(|(rate, burst)| bucket((rate * 977).min(Bucket::MAX_RATE), burst));
    (prop::option::of(packets), prop::option::of(bits))
        .prop_map(|(packets, bits)| Profile { packets, bits })
}

/// Gaps between packets, ns, and their lengths: bursts, steady traffic, long pauses.
fn trace() -> impl Strategy<Value = Vec<(u64, u64)>> {
    let gap = prop_oneof![
        6 => Just(0_u64),
        6 => 0..5_000_u64,
        2 => 0..2_000_000_u64,
        1 => 0..5_000_000_000_u64,
    ];
    let bytes = prop_oneof![Just(60_u64), Just(1514), 60..1514_u64];
    prop::collection::vec((gap, bytes), 1..300)
}

/// What passed between two packets of a trace, both included, must not exceed r * t + b. Written as
/// the definition has it: all intervals.
fn conforms(profile: &Profile, passed: &[(u64, u64)]) -> bool {
    (0..passed.len()).all(|first| {
        let (mut packets, mut bits) = (0_u128, 0_u128);
        passed[first..].iter().all(|&(at_ns, bytes)| {
            packets += 1;
            bits += u128::from(bytes) * 8;
            let elapsed_ns = u128::from(at_ns - passed[first].0);
            let within = |bucket: Option<Bucket>, sent: u128| {
                bucket.is_none_or(|bucket| {
                    sent * u128::from(CREDIT)
                        <= u128::from(bucket.rate()) * elapsed_ns + u128::from(bucket.full())
                })
            };
            within(profile.packets, packets) && within(profile.bits, bits)
        })
    })
}

proptest! {
    #[test]
    fn the_bucket_passes_what_the_definition_allows_and_nothing_else(
        profile in profile(),
        trace in trace(),
    ) {
        let mut bucket = TokenBucket::new(&profile);
        let mut passed: Vec<(u64, u64)> = Vec::new();
        let mut now_ns = 1;
        for (gap_ns, bytes) in trace {
            now_ns += gap_ns;
            let taken = bucket.take(now_ns, 1, bytes);
            passed.push((now_ns, bytes));
            // Nothing that the definition forbids, and nothing turned down that it allows.
            prop_assert_eq!(taken, conforms(&profile, &passed));
            if !taken {
                passed.pop();
            }
        }
    }

    #[test]
    fn the_meter_tells_the_least_burst(profile in profile(), trace in trace()) {
        let mut meter = Meter::new(&profile);
        let mut seen = Vec::new();
        let mut now_ns = 1;
        for (gap_ns, bytes) in trace {
            now_ns += gap_ns;
            meter.see(now_ns, bytes);
            seen.push((now_ns, bytes));
        }
        prop_assert_eq!(meter.above() == 0, conforms(&profile, &seen));
        let least = |limit: Option<Bucket>, level: Option<myelin_packet::traffic::Level>, packets: bool| {
            let (Some(limit), Some(level)) = (limit, level) else { return true };
            let with = |burst| {
                let limit = Bucket::new(limit.rate(), burst).ok();
                conforms(
                    &if packets {
                        Profile { packets: limit, bits: None }
                    } else {
                        Profile { packets: None, bits: limit }
                    },
                    &seen,
                )
            };
            with(level.burst()) && (level.burst() == 1 || !with(level.burst() - 1))
        };
        prop_assert!(least(profile.packets, meter.packets(), true));
        prop_assert!(least(profile.bits, meter.bits(), false));
    }

    #[test]
    fn a_packet_is_taken_when_it_is_eligible_and_not_before(
        profile in profile(),
        trace in trace(),
    ) {
        let mut bucket = TokenBucket::new(&profile);
        let mut now_ns = 1;
        for (gap_ns, bytes) in trace {
            now_ns += gap_ns;
            let eligible_ns = bucket.eligible_ns(1, bytes).unwrap().max(now_ns);
            if eligible_ns > now_ns {
                prop_assert!(!bucket.clone().take(eligible_ns - 1, 1, bytes));
            }
            prop_assert!(bucket.take(eligible_ns, 1, bytes));
            now_ns = eligible_ns;
        }
    }
}

#[test]
fn fractions_of_a_nanosecond_are_kept() {
    // 300 000 a second is one in 3333 1/3 ns; after ten million of them nothing is lost and nothing
    // gained. With room for one packet only, what a whole nanosecond earns too much would be cut
    // off.
    let mut bucket = TokenBucket::new(&of_packets(300_000, 2));
    let mut meter = Meter::new(&of_packets(300_000, 2));
    assert!(bucket.take(1, 1, 60) && meter.see(1, 60));
    for index in 0..10_000_000_u64 {
        let due_ns = 1 + (index * 10_000).div_ceil(3);
        assert!(
            !bucket.take(due_ns - 1, 1, 60) || index == 0,
            "packet {index}"
        );
        assert!(index == 0 || bucket.take(due_ns, 1, 60), "packet {index}");
        assert!(index == 0 || meter.see(due_ns, 60), "packet {index}");
    }
}

#[test]
fn a_clock_that_stands_or_goes_back_earns_nothing() {
    let mut bucket = TokenBucket::new(&of_packets(1000, 2));
    assert!(bucket.take(5_000_000_000, 1, 60));
    assert!(bucket.take(5_000_000_000, 1, 60));
    assert!(!bucket.take(5_000_000_000, 1, 60));
    assert!(!bucket.take(1, 1, 60));
    assert!(!bucket.take(5_000_000_000, 1, 60));
    assert!(bucket.take(5_001_000_000, 1, 60));
}

#[test]
fn a_clock_that_jumps_fills_the_bucket_and_no_more() {
    let profile = Profile {
        packets: Some(bucket(Bucket::MAX_RATE, Bucket::MAX_BURST)),
        bits: Some(bucket(1, Bucket::MAX_BURST)),
    };
    let mut bucket = TokenBucket::new(&profile);
    assert!(bucket.take(1, Bucket::MAX_BURST, Bucket::MAX_BURST / 8));
    assert!(!bucket.take(u64::MAX / 2, 1, Bucket::MAX_BURST / 8 + 1));
    assert!(bucket.take(u64::MAX, Bucket::MAX_BURST, Bucket::MAX_BURST / 8));
    assert!(!bucket.take(u64::MAX, 1, 1));
}

#[test]
fn segments_go_or_stay_together() {
    let mut bucket = TokenBucket::new(&of_packets(1, 10));
    assert!(!bucket.take(1, 11, 1000));
    assert!(bucket.take(1, 10, 1000));
    assert_eq!(bucket.eligible_ns(11, 1000), None);
    assert_eq!(bucket.eligible_ns(1, 1000), Some(1_000_000_001));
}

#[test]
fn without_a_profile_everything_conforms() {
    let mut bucket = TokenBucket::new(&Profile::default());
    assert!((0..100).all(|_| bucket.take(1, u64::MAX, u64::MAX)));
    let mut meter = Meter::new(&Profile::default());
    assert!(meter.see(1, u64::MAX));
    assert!(meter.packets().is_none() && meter.bits().is_none());
}

#[test]
fn rates_and_bursts_have_an_end() {
    assert_eq!(Bucket::new(0, 1), Err(ProfileError::Rate(0)));
    assert_eq!(Bucket::new(1, 0), Err(ProfileError::Burst(0)));
    assert!(Bucket::new(Bucket::MAX_RATE, Bucket::MAX_BURST).is_ok());
    assert!(Bucket::new(Bucket::MAX_RATE + 1, 1).is_err());
    assert!(Bucket::new(1, Bucket::MAX_BURST + 1).is_err());
}
