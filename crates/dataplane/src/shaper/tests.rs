//! Tests the shaper with bursts. A meter checks the departures.

use myelin_packet::fixtures::Meter;
use myelin_spec::Limit;
use proptest::prelude::*;

use super::*;
use crate::umem::{Frame, FrameMemory, Umem};

const MS: u64 = 1_000_000;

fn shaping(packets: Option<(u64, u64)>, bits: Option<(u64, u64)>) -> Shaping {
    let limit = |(rate, burst)| Limit { rate, burst };
    Shaping {
        packets: packets.map(limit),
        bits: bits.map(limit),
        queue: MAX_SHAPER_QUEUE,
        delay_ns: u64::MAX,
        tolerance_ns: 0,
    }
}

/// A shaper, frames for its packets, and the results.
struct ShaperFixture {
    shaper: Shaper,
    frames: Vec<Frame>,
    meter: Meter,
    /// Number and time of each packet that left.
    departed: Vec<(u32, u64)>,
    dropped: Vec<(u32, ShaperDrop)>,
}

impl ShaperFixture {
    fn new(shaping: Shaping) -> Self {
        let umem = Umem::create(MAX_SHAPER_QUEUE, 2048).unwrap();
        let memory = FrameMemory::map(&umem).unwrap();
        Self {
            shaper: Shaper::new(shaping),
            frames: memory.held_frames().collect(),
            meter: Meter::new(&shaping.profile()),
            departed: Vec::new(),
            dropped: Vec::new(),
        }
    }

    fn record_departure(&mut self, number: u32, now_ns: u64, bytes: u32) {
        self.meter.record(now_ns, bytes.into());
        self.departed.push((number, now_ns));
    }

    /// Offers a packet. Its number takes the place of the segment index.
    fn offer(&mut self, number: u32, now_ns: u64, bytes: u32) -> ShaperDecision {
        let decision = self.shaper.decide(now_ns, bytes);
        match decision {
            ShaperDecision::Leave => self.record_departure(number, now_ns, bytes),
            ShaperDecision::Drop(reason) => self.dropped.push((number, reason)),
            ShaperDecision::Wait => {
                let waiting = WaitingPacket {
                    segment: number,
                    port: 0,
                    buffer: Buffer {
                        frame: self.frames.pop().unwrap(),
                        offset: 0,
                        len: bytes,
                    },
                    bytes,
                    stamp_ns: None,
                    arrived_ns: now_ns,
                };
                self.shaper.push(now_ns, waiting);
            }
        }
        decision
    }

    fn release_due(&mut self, now_ns: u64) {
        while let Some(waiting) = self.shaper.pop_due(now_ns) {
            self.record_departure(waiting.segment, now_ns, waiting.bytes);
            self.frames.push(waiting.buffer.frame);
        }
    }

    /// Releases each packet at its departure time, up to `now_ns`.
    fn release_until(&mut self, now_ns: u64) {
        while self.shaper.due_ns() <= now_ns {
            self.release_due(self.shaper.due_ns());
        }
    }
}

fn any_limits() -> impl Strategy<Value = Shaping> {
    let packets = (1_000_u64..2_000_000, 1_u64..40);
    let bits = (1_000_000_u64..1_000_000_000, 12_112_u64..200_000);
    (prop::option::of(packets), prop::option::of(bits))
        .prop_filter_map("at least one limit", |(packets, bits)| {
            (packets.is_some() || bits.is_some()).then(|| shaping(packets, bits))
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A network delays conforming packets by up to D, in order. They leave the shaper within D of
    /// their sending time, plus the lateness of the worker. Only one lateness adds to the delay,
    /// even if the worker is late often (LBT theorem 1.5.2; `docs/guarantees/proofs.md`, theorem
    /// 9).
    #[test]
    fn conforming_packets_are_late_by_at_most_the_delay_and_one_late_release(
        (rate, burst, late_share) in (1_000_u64..100_000, 2_u64..40, 0_u64..=100),
        packets in prop::collection::vec((prop_oneof![Just(0), 0_u64..500_000], 0_u64..=100), 1..200),
        longest_ns in 0_u64..3 * MS,
        pauses in prop::collection::vec(0_u64..MS, 0..20),
    ) {
        let shaping = shaping(Some((rate, burst)), None);
        // The longest lateness after which the bucket is not yet full.
        let late_ns = (burst - 1) * 1_000_000_000 / rate * late_share / 100;
        let mut stalls = Vec::new();
        let mut from_ns = MS;
        for pause in pauses {
            from_ns += pause;
            stalls.push(from_ns);
            from_ns += late_ns;
        }
        let seen_at = |ns: u64| {
            let stall = stalls.iter().find(|from| (**from..*from + late_ns).contains(&ns));
            stall.map_or(ns, |from| from + late_ns)
        };
        let mut policer = TokenBucket::new(&shaping.profile());
        let mut fixture = ShaperFixture::new(shaping);
        let (mut sent, mut sent_ns, mut arrived_ns) = (Vec::new(), MS, MS);
        for (number, (gap, delayed)) in (0..).zip(packets) {
            sent_ns = (sent_ns + gap).max(policer.eligible_ns(1, 60).unwrap());
            prop_assert!(policer.take(sent_ns, 1, 60));
            sent.push(sent_ns);
            arrived_ns = arrived_ns.max(sent_ns + longest_ns * delayed / 100);
            while seen_at(fixture.shaper.due_ns()) <= arrived_ns {
                fixture.release_due(seen_at(fixture.shaper.due_ns()));
            }
            fixture.offer(number, arrived_ns, 60);
        }
        while fixture.shaper.due_ns() < u64::MAX {
            fixture.release_due(seen_at(fixture.shaper.due_ns()));
        }
        prop_assert_eq!(fixture.departed.len(), sent.len());
        for (number, left_ns) in fixture.departed {
            let limit_ns = sent[number as usize] + longest_ns + late_ns;
            // The policer rounds its times up to nanoseconds.
            prop_assert!(left_ns <= limit_ns + 1, "{} late by {}", number, left_ns - limit_ns);
        }
    }

    /// For any arrivals and any lateness of the worker: packets leave in order and within the
    /// profile, and none is lost.
    #[test]
    fn departures_conform_and_keep_their_order(
        shaping in any_limits(),
        clusters in prop::collection::vec((0_u64..3 * MS, 1_u32..30, 60_u32..1515), 1..30),
        late in prop::collection::vec(0_u64..200_000, 1..8),
    ) {
        let mut fixture = ShaperFixture::new(shaping);
        let (mut now_ns, mut number) = (MS, 0);
        for (index, (gap_ns, packets, bytes)) in clusters.into_iter().enumerate() {
            now_ns += gap_ns;
            while fixture.shaper.due_ns() < now_ns {
                let seen_ns = fixture.shaper.due_ns() + late[index % late.len()];
                fixture.release_due(seen_ns.min(now_ns));
            }
            for _ in 0..packets {
                fixture.offer(number, now_ns, bytes);
                number += 1;
            }
        }
        fixture.release_until(u64::MAX - 1);
        prop_assert_eq!(fixture.meter.nonconforming(), 0);
        prop_assert!(fixture.dropped.is_empty(), "{:?}", fixture.dropped);
        let order: Vec<u32> = fixture.departed.iter().map(|(number, _)| *number).collect();
        prop_assert_eq!(order, (0..number).collect::<Vec<_>>());
        prop_assert!(fixture.departed.is_sorted_by_key(|(_, at_ns)| *at_ns));
    }

    /// A worker that is late by less than the tolerance delays only the packets that it releases
    /// late, and none by more than its lateness. In any time t the departures stay within the
    /// profile over t plus the tolerance.
    #[test]
    fn lateness_within_the_tolerance_is_compensated(
        shaping in any_limits(),
        clusters in prop::collection::vec((0_u64..3 * MS, 1_u32..30, 60_u32..1515), 1..30),
        late in prop::collection::vec(0_u64..200_000, 1..8),
        tolerance_ns in 0_u64..300_000,
    ) {
        let mut on_time_fixture = ShaperFixture::new(shaping);
        let mut fixture = ShaperFixture::new(Shaping { tolerance_ns, ..shaping });
        let (mut now_ns, mut number, mut lateness) = (MS, 0, late.iter().cycle());
        let mut release_late = |fixture: &mut ShaperFixture, until_ns: u64| {
            while fixture.shaper.due_ns() < until_ns {
                let late_ns = lateness.next().copied().unwrap_or(0);
                let seen_ns = (fixture.shaper.due_ns() + late_ns).max(fixture.departed.last().map_or(0, |departed| departed.1));
                fixture.release_due(seen_ns.min(until_ns));
            }
        };
        for (gap_ns, packets, bytes) in clusters {
            now_ns += gap_ns;
            release_late(&mut fixture, now_ns);
            on_time_fixture.release_until(now_ns);
            for _ in 0..packets {
                fixture.offer(number, now_ns, bytes);
                on_time_fixture.offer(number, now_ns, bytes);
                number += 1;
            }
        }
        release_late(&mut fixture, u64::MAX - 1);
        on_time_fixture.release_until(u64::MAX - 1);
        prop_assert_eq!(fixture.departed.len(), number as usize);
        prop_assert!(fixture.departed.is_sorted());
        let within = |level: Option<myelin_packet::traffic::Level>, limit: Option<Limit>| {
            level.zip(limit).is_none_or(|(level, limit)| {
                let more = u128::from(limit.rate) * u128::from(tolerance_ns) / 1_000_000_000;
                u128::from(level.burst()) <= u128::from(limit.burst) + more + 1
            })
        };
        prop_assert!(within(fixture.meter.packets(), shaping.packets));
        prop_assert!(within(fixture.meter.bits(), shaping.bits));
        let latest_ns = late.iter().copied().max().unwrap_or(0);
        if latest_ns <= tolerance_ns {
            for ((number, late), (_, on_time)) in fixture.departed.iter().zip(&on_time_fixture.departed) {
                prop_assert!(*late <= on_time + latest_ns, "packet {number}: {late}, {on_time}");
            }
        }
    }

    /// If the worker is on time, accepted packets leave within the allowed delay. Dropped packets
    /// would have left later.
    #[test]
    fn packets_are_dropped_exactly_above_the_delay_limit(
        shaping in any_limits(),
        delay_ns in 0_u64..2 * MS,
        clusters in prop::collection::vec((0_u64..3 * MS, 1_u32..30, 60_u32..1515), 1..20),
    ) {
        let mut bounded = ShaperFixture::new(Shaping { delay_ns, ..shaping });
        let mut now_ns = MS;
        let (mut number, mut arrivals) = (0, Vec::new());
        for (gap_ns, packets, bytes) in clusters {
            now_ns += gap_ns;
            bounded.release_until(now_ns);
            for _ in 0..packets {
                // The departure time without the limit.
                let eligible_ns = if bounded.shaper.queue.is_empty() {
                    bounded.shaper.bucket.eligible_ns(1, bytes.into()).unwrap().max(now_ns)
                } else {
                    bounded.shaper.plan_departure(now_ns, bytes).unwrap()
                };
                let fits = eligible_ns - now_ns <= delay_ns;
                let decision = bounded.offer(number, now_ns, bytes);
                prop_assert_eq!(fits, decision != ShaperDecision::Drop(ShaperDrop::Late));
                arrivals.push(now_ns);
                number += 1;
            }
        }
        bounded.release_until(u64::MAX - 1);
        for (number, left_ns) in bounded.departed {
            prop_assert!(left_ns - arrivals[number as usize] <= delay_ns);
        }
    }
}

#[test]
fn a_burst_leaves_at_the_rate() {
    let mut fixture = ShaperFixture::new(shaping(Some((20_000, 4)), None));
    for number in 0..10 {
        fixture.offer(number, MS, 100);
    }
    assert_eq!(fixture.departed.len(), 4);
    fixture.release_until(2 * MS);
    let times: Vec<u64> = fixture
        .departed
        .iter()
        .map(|(_, at_ns)| at_ns - MS)
        .collect();
    let expected: Vec<u64> = (0..10_u64).map(|i| i.saturating_sub(3) * 50_000).collect();
    assert_eq!(times, expected);
}

#[test]
fn the_queue_is_limited_in_packets_and_in_delay() {
    let limit = shaping(Some((1000, 1)), None);
    let decide = |shaping: Shaping| {
        let mut fixture = ShaperFixture::new(shaping);
        (0..5)
            .map(|number| fixture.offer(number, MS, 100))
            .collect::<Vec<_>>()
    };
    let (leave, wait) = (ShaperDecision::Leave, ShaperDecision::Wait);
    let full = ShaperDecision::Drop(ShaperDrop::Full);
    assert_eq!(
        decide(Shaping { queue: 2, ..limit }),
        [leave, wait, wait, full, full]
    );
    let late = ShaperDecision::Drop(ShaperDrop::Late);
    assert_eq!(
        decide(Shaping {
            delay_ns: 3 * MS,
            ..limit
        }),
        [leave, wait, wait, wait, late]
    );
}

#[test]
fn a_packet_larger_than_the_burst_is_dropped_at_once() {
    let mut fixture = ShaperFixture::new(shaping(None, Some((1_000_000, 8000))));
    assert_eq!(
        fixture.offer(0, MS, 1001),
        ShaperDecision::Drop(ShaperDrop::Big)
    );
    assert_eq!(fixture.offer(1, MS, 1000), ShaperDecision::Leave);
    assert_eq!(fixture.offer(2, MS, 1000), ShaperDecision::Wait);
    assert_eq!(
        fixture.offer(3, MS, 1001),
        ShaperDecision::Drop(ShaperDrop::Big)
    );
    fixture.release_until(100 * MS);
    assert_eq!(fixture.departed, [(1, MS), (2, 9 * MS)]);
}

/// With a burst of one packet, a late departure wastes credit. Later packets get new departure
/// times.
#[test]
fn a_late_departure_delays_the_packets_behind_it() {
    let mut fixture = ShaperFixture::new(Shaping {
        delay_ns: 2 * MS,
        ..shaping(Some((1000, 1)), None)
    });
    fixture.offer(0, MS, 100);
    fixture.offer(1, MS, 100);
    fixture.offer(2, MS, 100);
    // Due at 2 ms, released half a millisecond later.
    fixture.release_due(2 * MS + MS / 2);
    assert_eq!(fixture.shaper.due_ns(), 3 * MS + MS / 2);
    // The next packet would leave at 4.5 ms. The limit allows 2 ms, so the shaper drops a packet
    // that arrives before 2.5 ms.
    assert_eq!(
        fixture.offer(3, 2 * MS + MS / 2 - 1, 100),
        ShaperDecision::Drop(ShaperDrop::Late)
    );
    assert_eq!(fixture.offer(4, 2 * MS + MS / 2, 100), ShaperDecision::Wait);
    fixture.release_until(10 * MS);
    assert_eq!(fixture.departed.last(), Some(&(4, 4 * MS + MS / 2)));
}

#[test]
fn the_meter_finds_departures_above_the_profile() {
    let profile = |rate| shaping(Some((rate, 4)), None);
    for (rate, early) in [(1000, 0), (2000, 60)] {
        let mut fixture = ShaperFixture::new(profile(1000));
        // A shaper with an error: its credit grows at another rate.
        fixture.shaper.bucket = TokenBucket::new(&profile(rate).profile());
        for number in 0..64 {
            fixture.offer(number, MS, 100);
        }
        fixture.release_until(100 * MS);
        assert_eq!(fixture.departed.len(), 64);
        assert_eq!(fixture.meter.nonconforming(), early, "{rate}");
    }
}

#[test]
fn a_new_profile_applies_to_waiting_packets() {
    let slow = shaping(Some((1000, 1)), None);
    let mut fixture = ShaperFixture::new(slow);
    for number in 0..4 {
        fixture.offer(number, MS, 100);
    }
    let mut dropped = Vec::new();
    let fast = shaping(Some((10_000, 1)), None);
    fixture
        .shaper
        .reconfigure(MS, fast, |waiting| dropped.push(waiting));
    fixture.release_until(20 * MS);
    let times: Vec<u64> = fixture
        .departed
        .iter()
        .map(|(_, at_ns)| at_ns - MS)
        .collect();
    assert_eq!(times, [0, 0, 100_000, 200_000]);
    assert!(dropped.is_empty());
    fixture.offer(4, 30 * MS, 2000);
    fixture.offer(5, 30 * MS, 2000);
    let narrow = shaping(None, Some((1_000_000, 12_112)));
    fixture
        .shaper
        .reconfigure(30 * MS, narrow, |waiting| dropped.push(waiting));
    assert_eq!(dropped.len(), 1, "larger than the new burst");
    assert_eq!(fixture.shaper.due_ns(), u64::MAX);
}

#[test]
fn the_packets_of_one_segment_are_removed() {
    let mut fixture = ShaperFixture::new(shaping(Some((1000, 1)), None));
    for number in 0..5 {
        fixture.offer(number, MS, 100);
    }
    let mut dropped = 0;
    fixture.shaper.remove_segment(1, |_| dropped += 1);
    fixture.release_until(20 * MS);
    let order: Vec<u32> = fixture.departed.iter().map(|(number, _)| *number).collect();
    assert_eq!((order, dropped), (vec![0, 2, 3, 4], 1));
}
