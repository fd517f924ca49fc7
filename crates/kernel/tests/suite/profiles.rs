//! Generates random traffic profiles, from slow rates to the fastest rate of a bucket.

use myelin_packet::traffic::{Bucket, Profile};
use proptest::prelude::*;

pub(crate) fn bucket(rate: u64, burst: u64) -> Bucket {
    Bucket::new(rate, burst).unwrap()
}

/// Returns profiles in packets, in bits, or in both.
pub(crate) fn profiles() -> impl Strategy<Value = Profile> {
    let rate = prop_oneof![
        1..10_u64,
        1000..2_000_000_u64,
        Just(300_000),
        Just(Bucket::MAX_RATE)
    ];
    let burst = prop_oneof![1..40_u64, Just(Bucket::MAX_BURST)];
    let packets = (rate.clone(), burst);
    let bits = (rate, prop_oneof![480..500_000_u64, Just(Bucket::MAX_BURST)]);
    (packets, bits, 0..3).prop_map(|(packets, bits, limits)| Profile {
        packets: Some(bucket(packets.0, packets.1)).filter(|_| limits != 1),
        bits: Some(bucket(bits.0, bits.1)).filter(|_| limits != 0),
    })
}
