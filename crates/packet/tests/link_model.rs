//! Compares the link model with a plain reference, which keeps the transmitter's time as an exact
//! fraction.

use myelin_packet::link_model::{
    Departure, DropCause, LinkModel, LinkProfile, MAX_LENGTH, MAX_RATE_BPS,
};
use myelin_packet::loss_model::Loss;
use proptest::prelude::*;

/// A link without loss and jitter. `free` is in units of 1/rate ns.
struct Reference {
    profile: LinkProfile,
    free: u128,
}

impl Reference {
    fn offer(&mut self, now_ns: u64, length: u32) -> Departure {
        let delay_ns = u128::from(self.profile.delay_ns);
        let Some(rate) = self.profile.rate_bps else {
            return Departure::At((u128::from(now_ns) + delay_ns) as u64);
        };
        let rate = u128::from(rate);
        let now = u128::from(now_ns) * rate;
        // The model reads whole nanoseconds, rounded up.
        let wait_ns = self.free.div_ceil(rate).saturating_sub(now_ns.into());
        if wait_ns > self.profile.queue_ns.into() {
            return Departure::Dropped(DropCause::Queue);
        }
        self.free = self.free.max(now) + u128::from(length) * 8 * 1_000_000_000;
        Departure::At((self.free.div_ceil(rate) + delay_ns) as u64)
    }
}

fn profile() -> impl Strategy<Value = LinkProfile> {
    let rate = prop_oneof![
        1 => Just(None),
        4 => (1_000..=MAX_RATE_BPS).prop_map(Some),
        4 => (1_000_u64..10_000_000).prop_map(Some),
        2 => prop::sample::select(vec![1, 7, 1_000_003, MAX_RATE_BPS]).prop_map(Some),
    ];
    let queue = prop_oneof![Just(0), 0..10_000_000_u64, Just(u64::MAX)];
    (0..100_000_000_u64, rate, queue).prop_map(|(delay_ns, rate_bps, queue_ns)| LinkProfile {
        delay_ns,
        rate_bps,
        queue_ns,
        ..LinkProfile::default()
    })
}

/// Gaps before the packets, ns, and their lengths, bytes.
fn packets() -> impl Strategy<Value = Vec<(u64, u32)>> {
    let gap = prop_oneof![Just(0_u64), 0..1_000_u64, 0..20_000_000_u64];
    let length = prop_oneof![60..1_600_u32, Just(0), Just(MAX_LENGTH)];
    prop::collection::vec((gap, length), 1..200)
}

proptest! {
    #[test]
    fn departures_and_drops_equal_the_reference(profile in profile(), packets in packets()) {
        let mut link = LinkModel::new(profile, 0);
        let mut reference = Reference { profile, free: 0 };
        let mut now_ns = 1_000_000_000;
        for (gap_ns, length) in packets {
            now_ns += gap_ns;
            prop_assert_eq!(link.offer(now_ns, length), reference.offer(now_ns, length));
        }
    }

    #[test]
    fn a_packet_is_never_early_nor_out_of_order(
        profile in profile(),
        (jitter_ns, ppm, burst) in (0..200_000_000_u64, 0..1_000_000_u32, 1..5_u32),
        changes in prop::collection::vec((0..50_000_000_u64, 0..100_usize), 0..4),
        packets in packets(),
        seed: u64,
    ) {
        let loss = Loss { ppm, burst: (burst > 1).then_some(burst) };
        let mut profile = LinkProfile { jitter_ns, loss, ..profile };
        let mut link = LinkModel::new(profile, seed);
        let (mut now_ns, mut last_ns) = (0, 0);
        for (number, (gap_ns, length)) in packets.into_iter().enumerate() {
            if let Some((delay_ns, _)) = changes.iter().find(|(_, at)| *at == number) {
                profile.delay_ns = *delay_ns;
                link.set_profile(profile);
            }
            now_ns += gap_ns;
            let Departure::At(at_ns) = link.offer(now_ns, length) else {
                continue;
            };
            let shortest = profile.delay_ns - jitter_ns.min(profile.delay_ns);
            let bits_ns = u64::from(length) * 8 * 1_000_000_000;
            let transmission = profile.rate_bps.map_or(0, |rate| bits_ns / rate);
            prop_assert!(at_ns >= now_ns + shortest + transmission);
            prop_assert!(at_ns >= last_ns);
            last_ns = at_ns;
        }
    }
}

#[test]
fn a_backlogged_link_keeps_its_rate_exactly() {
    for rate in [999_999_937, 10_000_000, 40_000_000_000] {
        let profile = LinkProfile {
            rate_bps: Some(rate),
            queue_ns: u64::MAX,
            ..LinkProfile::default()
        };
        let mut link = LinkModel::new(profile, 0);
        let last = (0..100_000).map(|_| link.offer(0, 60)).last();
        let bits_ns = 100_000 * 60 * 8 * 1_000_000_000_u128;
        let expected = bits_ns.div_ceil(rate.into()) as u64;
        assert_eq!(last, Some(Departure::At(expected)), "{rate}");
    }
}

#[test]
fn losses_use_the_rate_and_a_full_queue_has_its_own_cause() {
    let profile = LinkProfile {
        rate_bps: Some(8_000_000),
        queue_ns: 2_000_000,
        loss: Loss {
            ppm: 1_000_000,
            burst: None,
        },
        ..LinkProfile::default()
    };
    let mut link = LinkModel::new(profile, 0);
    // Each packet takes 1 ms: the first at once, two wait for 1 ms and 2 ms, the rest too long.
    let causes = [DropCause::Loss; 3]
        .into_iter()
        .chain([DropCause::Queue; 2]);
    for cause in causes {
        assert_eq!(link.offer(0, 1000), Departure::Dropped(cause));
    }
}
