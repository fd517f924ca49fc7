//! Compares the token bucket and the meter with the definition of conformance.

use myelin_packet::fixtures::Meter;
use myelin_packet::traffic::{Bucket, CREDIT, Profile, ProfileError, TokenBucket};
use proptest::prelude::*;

fn bucket(rate: u64, burst: u64) -> Bucket {
    Bucket::new(rate, burst).unwrap()
}

fn packet_profile(rate: u64, burst: u64) -> Profile {
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

/// Generates gaps between packets, ns, and packet lengths: bursts, steady traffic, long pauses.
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

/// Returns whether at most r * t + b passed in each interval from one packet to another, both
/// included. Checks all intervals, as the definition says.
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

#[test]
fn the_token_bucket_equals_the_definition() {
    compare_with_the_definition(32);
}

#[test]
#[ignore = "thorough: checks 256 random cases"]
fn the_token_bucket_equals_the_definition_in_many_cases() {
    compare_with_the_definition(256);
}

fn compare_with_the_definition(cases: u32) {
    proptest!(ProptestConfig::with_cases(cases), |(
        profile in profile(),
        trace in trace(),
    )| {
        let mut bucket = TokenBucket::new(&profile);
        let mut passed: Vec<(u64, u64)> = Vec::new();
        let mut now_ns = 1;
        for (gap_ns, bytes) in trace {
            now_ns += gap_ns;
            let taken = bucket.take(now_ns, 1, bytes);
            passed.push((now_ns, bytes));
            // The bucket takes exactly the packets that the definition allows.
            prop_assert_eq!(taken, conforms(&profile, &passed));
            if !taken {
                passed.pop();
            }
        }
    });
}

proptest! {
    #[test]
    fn the_meter_measures_the_smallest_conforming_burst(profile in profile(), trace in trace()) {
        let mut meter = Meter::new(&profile);
        let mut recorded = Vec::new();
        let mut now_ns = 1;
        for (gap_ns, bytes) in trace {
            now_ns += gap_ns;
            meter.record(now_ns, bytes);
            recorded.push((now_ns, bytes));
        }
        prop_assert_eq!(meter.nonconforming() == 0, conforms(&profile, &recorded));
        let is_least_burst = |limit: Option<Bucket>, level: Option<myelin_packet::traffic::Level>, packets: bool| {
            let (Some(limit), Some(level)) = (limit, level) else { return true };
            let conforms_with = |burst| {
                let limit = Bucket::new(limit.rate(), burst).ok();
                conforms(
                    &if packets {
                        Profile { packets: limit, bits: None }
                    } else {
                        Profile { packets: None, bits: limit }
                    },
                    &recorded,
                )
            };
            conforms_with(level.burst()) && (level.burst() == 1 || !conforms_with(level.burst() - 1))
        };
        prop_assert!(is_least_burst(profile.packets, meter.packets(), true));
        prop_assert!(is_least_burst(profile.bits, meter.bits(), false));
    }

    #[test]
    fn a_packet_conforms_from_its_eligible_time_on(
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
fn token_bucket_keeps_fractions_of_a_nanosecond() {
    take_packets(500_000);
}

#[test]
#[ignore = "thorough: takes ten million packets"]
fn token_bucket_keeps_fractions_of_a_nanosecond_for_long() {
    take_packets(10_000_000);
}

fn take_packets(packets: u64) {
    // 300 000 packets a second are one packet every 3333 1/3 ns. After all packets the credit is
    // exact. A burst of one packet would cut off any excess credit.
    let mut bucket = TokenBucket::new(&packet_profile(300_000, 2));
    let mut meter = Meter::new(&packet_profile(300_000, 2));
    assert!(bucket.take(1, 1, 60) && meter.record(1, 60));
    for index in 0..packets {
        let due_ns = 1 + (index * 10_000).div_ceil(3);
        assert!(
            !bucket.take(due_ns - 1, 1, 60) || index == 0,
            "packet {index}"
        );
        assert!(index == 0 || bucket.take(due_ns, 1, 60), "packet {index}");
        assert!(index == 0 || meter.record(due_ns, 60), "packet {index}");
    }
}

#[test]
fn a_clock_that_stops_or_steps_back_earns_no_credit() {
    let mut bucket = TokenBucket::new(&packet_profile(1000, 2));
    assert!(bucket.take(5_000_000_000, 1, 60));
    assert!(bucket.take(5_000_000_000, 1, 60));
    assert!(!bucket.take(5_000_000_000, 1, 60));
    assert!(!bucket.take(1, 1, 60));
    assert!(!bucket.take(5_000_000_000, 1, 60));
    assert!(bucket.take(5_001_000_000, 1, 60));
}

#[test]
fn a_clock_that_jumps_ahead_only_fills_the_bucket() {
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
fn segments_of_one_buffer_conform_together_or_not_at_all() {
    let mut bucket = TokenBucket::new(&packet_profile(1, 10));
    assert!(!bucket.take(1, 11, 1000));
    assert!(bucket.take(1, 10, 1000));
    assert_eq!(bucket.eligible_ns(11, 1000), None);
    assert_eq!(bucket.eligible_ns(1, 1000), Some(1_000_000_001));
}

#[test]
fn without_a_profile_all_packets_conform() {
    let mut bucket = TokenBucket::new(&Profile::default());
    assert!((0..100).all(|_| bucket.take(1, u64::MAX, u64::MAX)));
    let mut meter = Meter::new(&Profile::default());
    assert!(meter.record(1, u64::MAX));
    assert!(meter.packets().is_none() && meter.bits().is_none());
}

#[test]
fn rates_and_bursts_outside_the_range_are_refused() {
    assert_eq!(Bucket::new(0, 1), Err(ProfileError::Rate(0)));
    assert_eq!(Bucket::new(1, 0), Err(ProfileError::Burst(0)));
    assert!(Bucket::new(Bucket::MAX_RATE, Bucket::MAX_BURST).is_ok());
    assert!(Bucket::new(Bucket::MAX_RATE + 1, 1).is_err());
    assert!(Bucket::new(1, Bucket::MAX_BURST + 1).is_err());
}
