//! Tests the shaper with bursts, against a meter.

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
struct Bench {
    shaper: Shaper,
    frames: Vec<Frame>,
    meter: Meter,
    /// Number and time of each packet that left.
    left: Vec<(u32, u64)>,
    dropped: Vec<(u32, Reason)>,
}

impl Bench {
    fn new(shaping: Shaping) -> Self {
        let umem = Umem::create(MAX_SHAPER_QUEUE, 2048).unwrap();
        let memory = FrameMemory::map(&umem).unwrap();
        Self {
            shaper: Shaper::new(shaping),
            frames: memory.held_frames().collect(),
            meter: Meter::new(&shaping.profile()),
            left: Vec::new(),
            dropped: Vec::new(),
        }
    }

    fn leave(&mut self, number: u32, now_ns: u64, bytes: u32) {
        self.meter.see(now_ns, bytes.into());
        self.left.push((number, now_ns));
    }

    /// Offers a packet. Its number takes the place of the segment index.
    fn come(&mut self, number: u32, now_ns: u64, bytes: u32) -> Decision {
        let decision = self.shaper.decide(now_ns, bytes);
        match decision {
            Decision::Leave => self.leave(number, now_ns, bytes),
            Decision::Drop(reason) => self.dropped.push((number, reason)),
            Decision::Wait => {
                let waiting = Waiting {
                    segment: number,
                    port: 0,
                    buffer: Buffer {
                        frame: self.frames.pop().unwrap(),
                        offset: 0,
                        len: bytes,
                    },
                    bytes,
                    stamp_ns: None,
                    came_ns: now_ns,
                };
                self.shaper.push(now_ns, waiting);
            }
        }
        decision
    }

    fn release(&mut self, now_ns: u64) {
        while let Some(waiting) = self.shaper.release(now_ns) {
            self.leave(waiting.segment, now_ns, waiting.bytes);
            self.frames.push(waiting.buffer.frame);
        }
    }

    /// Releases each packet at its departure time, up to `now_ns`.
    fn run_to(&mut self, now_ns: u64) {
        while self.shaper.due_ns() <= now_ns {
            self.release(self.shaper.due_ns());
        }
    }
}

fn limits() -> impl Strategy<Value = Shaping> {
    let packets = (1_000_u64..2_000_000, 1_u64..40);
    let bits = (1_000_000_u64..1_000_000_000, 12_112_u64..200_000);
    (prop::option::of(packets), prop::option::of(bits))
        .prop_filter_map("at least one limit", |(packets, bits)| {
            (packets.is_some() || bits.is_some()).then(|| shaping(packets, bits))
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Conforming packets are delayed by up to D, in order. They leave within D of their sending
    /// time, plus one lateness of the worker, however often it is late (LBT theorem 1.5.2;
    /// `docs/guarantees/theory.md`, "Behind a shaper").
    #[test]
    fn conforming_packets_are_late_by_at_most_the_delay_and_one_late_release(
        (rate, burst, late_share) in (1_000_u64..100_000, 2_u64..40, 0_u64..=100),
        packets in prop::collection::vec((prop_oneof![Just(0), 0_u64..500_000], 0_u64..=100), 1..200),
        longest_ns in 0_u64..3 * MS,
        pauses in prop::collection::vec(0_u64..MS, 0..20),
    ) {
        let shaping = shaping(Some((rate, burst)), None);
        // The longest lateness that leaves the bucket not yet full.
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
        let mut bench = Bench::new(shaping);
        let (mut sent, mut sent_ns, mut came_ns) = (Vec::new(), MS, MS);
        for (number, (gap, delayed)) in (0..).zip(packets) {
            sent_ns = (sent_ns + gap).max(policer.eligible_ns(1, 60).unwrap());
            prop_assert!(policer.take(sent_ns, 1, 60));
            sent.push(sent_ns);
            came_ns = came_ns.max(sent_ns + longest_ns * delayed / 100);
            while seen_at(bench.shaper.due_ns()) <= came_ns {
                bench.release(seen_at(bench.shaper.due_ns()));
            }
            bench.come(number, came_ns, 60);
        }
        while bench.shaper.due_ns() < u64::MAX {
            bench.release(seen_at(bench.shaper.due_ns()));
        }
        prop_assert_eq!(bench.left.len(), sent.len());
        for (number, left_ns) in bench.left {
            let most_ns = sent[number as usize] + longest_ns + late_ns;
            // The policer rounds its times up to nanoseconds.
            prop_assert!(left_ns <= most_ns + 1, "{} late by {}", number, left_ns - most_ns);
        }
    }

    /// For any arrivals and any lateness of the worker: packets leave in order and within the
    /// profile, and none is lost.
    #[test]
    fn departures_conform_and_keep_their_order(
        shaping in limits(),
        clusters in prop::collection::vec((0_u64..3 * MS, 1_u32..30, 60_u32..1515), 1..30),
        late in prop::collection::vec(0_u64..200_000, 1..8),
    ) {
        let mut bench = Bench::new(shaping);
        let (mut now_ns, mut number) = (MS, 0);
        for (index, (gap_ns, packets, bytes)) in clusters.into_iter().enumerate() {
            now_ns += gap_ns;
            while bench.shaper.due_ns() < now_ns {
                let seen_ns = bench.shaper.due_ns() + late[index % late.len()];
                bench.release(seen_ns.min(now_ns));
            }
            for _ in 0..packets {
                bench.come(number, now_ns, bytes);
                number += 1;
            }
        }
        bench.run_to(u64::MAX - 1);
        prop_assert_eq!(bench.meter.above(), 0);
        prop_assert!(bench.dropped.is_empty(), "{:?}", bench.dropped);
        let order: Vec<u32> = bench.left.iter().map(|(number, _)| *number).collect();
        prop_assert_eq!(order, (0..number).collect::<Vec<_>>());
        prop_assert!(bench.left.is_sorted_by_key(|(_, at_ns)| *at_ns));
    }

    /// A worker that is late by less than the tolerance delays only the packets it releases late.
    /// No packet leaves later than the worker is late. In any time t the departures stay within the
    /// profile over t plus the tolerance.
    #[test]
    fn lateness_within_the_tolerance_is_compensated(
        shaping in limits(),
        clusters in prop::collection::vec((0_u64..3 * MS, 1_u32..30, 60_u32..1515), 1..30),
        late in prop::collection::vec(0_u64..200_000, 1..8),
        tolerance_ns in 0_u64..300_000,
    ) {
        let mut punctual = Bench::new(shaping);
        let mut bench = Bench::new(Shaping { tolerance_ns, ..shaping });
        let (mut now_ns, mut number, mut looks) = (MS, 0, late.iter().cycle());
        let mut look = |bench: &mut Bench, until_ns: u64| {
            while bench.shaper.due_ns() < until_ns {
                let late_ns = looks.next().copied().unwrap_or(0);
                let seen_ns = (bench.shaper.due_ns() + late_ns).max(bench.left.last().map_or(0, |left| left.1));
                bench.release(seen_ns.min(until_ns));
            }
        };
        for (gap_ns, packets, bytes) in clusters {
            now_ns += gap_ns;
            look(&mut bench, now_ns);
            punctual.run_to(now_ns);
            for _ in 0..packets {
                bench.come(number, now_ns, bytes);
                punctual.come(number, now_ns, bytes);
                number += 1;
            }
        }
        look(&mut bench, u64::MAX - 1);
        punctual.run_to(u64::MAX - 1);
        prop_assert_eq!(bench.left.len(), number as usize);
        prop_assert!(bench.left.is_sorted());
        let within = |level: Option<myelin_packet::traffic::Level>, limit: Option<Limit>| {
            level.zip(limit).is_none_or(|(level, limit)| {
                let more = u128::from(limit.rate) * u128::from(tolerance_ns) / 1_000_000_000;
                u128::from(level.burst()) <= u128::from(limit.burst) + more + 1
            })
        };
        prop_assert!(within(bench.meter.packets(), shaping.packets));
        prop_assert!(within(bench.meter.bits(), shaping.bits));
        let latest_ns = late.iter().copied().max().unwrap_or(0);
        if latest_ns <= tolerance_ns {
            for ((number, late), (_, on_time)) in bench.left.iter().zip(&punctual.left) {
                prop_assert!(*late <= on_time + latest_ns, "packet {number}: {late}, {on_time}");
            }
        }
    }

    /// Accepted packets leave within the allowed delay if the worker is on time. Dropped packets
    /// would not.
    #[test]
    fn the_delay_limit_is_exact(
        shaping in limits(),
        delay_ns in 0_u64..2 * MS,
        clusters in prop::collection::vec((0_u64..3 * MS, 1_u32..30, 60_u32..1515), 1..20),
    ) {
        let mut bounded = Bench::new(Shaping { delay_ns, ..shaping });
        let mut now_ns = MS;
        let (mut number, mut arrivals) = (0, Vec::new());
        for (gap_ns, packets, bytes) in clusters {
            now_ns += gap_ns;
            bounded.run_to(now_ns);
            for _ in 0..packets {
                // The departure time in the same shaper without a limit.
                let eligible_ns = if bounded.shaper.queue.is_empty() {
                    bounded.shaper.bucket.eligible_ns(1, bytes.into()).unwrap().max(now_ns)
                } else {
                    bounded.shaper.plan(now_ns, bytes).unwrap()
                };
                let fits = eligible_ns - now_ns <= delay_ns;
                let decision = bounded.come(number, now_ns, bytes);
                prop_assert_eq!(fits, decision != Decision::Drop(Reason::Late));
                arrivals.push(now_ns);
                number += 1;
            }
        }
        bounded.run_to(u64::MAX - 1);
        for (number, left_ns) in bounded.left {
            prop_assert!(left_ns - arrivals[number as usize] <= delay_ns);
        }
    }
}

#[test]
fn a_burst_is_spread_to_the_rate() {
    let mut bench = Bench::new(shaping(Some((20_000, 4)), None));
    for number in 0..10 {
        bench.come(number, MS, 100);
    }
    assert_eq!(bench.left.len(), 4);
    bench.run_to(2 * MS);
    let times: Vec<u64> = bench.left.iter().map(|(_, at_ns)| at_ns - MS).collect();
    let expected: Vec<u64> = (0..10_u64).map(|i| i.saturating_sub(3) * 50_000).collect();
    assert_eq!(times, expected);
}

#[test]
fn the_queue_is_limited_in_packets_and_in_delay() {
    let limit = shaping(Some((1000, 1)), None);
    let decide = |shaping: Shaping| {
        let mut bench = Bench::new(shaping);
        (0..5)
            .map(|number| bench.come(number, MS, 100))
            .collect::<Vec<_>>()
    };
    let (leave, wait) = (Decision::Leave, Decision::Wait);
    let full = Decision::Drop(Reason::Full);
    assert_eq!(
        decide(Shaping { queue: 2, ..limit }),
        [leave, wait, wait, full, full]
    );
    let late = Decision::Drop(Reason::Late);
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
    let mut bench = Bench::new(shaping(None, Some((1_000_000, 8000))));
    assert_eq!(bench.come(0, MS, 1001), Decision::Drop(Reason::Big));
    assert_eq!(bench.come(1, MS, 1000), Decision::Leave);
    assert_eq!(bench.come(2, MS, 1000), Decision::Wait);
    assert_eq!(bench.come(3, MS, 1001), Decision::Drop(Reason::Big));
    bench.run_to(100 * MS);
    assert_eq!(bench.left, [(1, MS), (2, 9 * MS)]);
}

/// With a burst of one packet, a late departure wastes credit. Later packets get new departure
/// times.
#[test]
fn a_late_queue_delays_the_packets_behind_it() {
    let mut bench = Bench::new(Shaping {
        delay_ns: 2 * MS,
        ..shaping(Some((1000, 1)), None)
    });
    bench.come(0, MS, 100);
    bench.come(1, MS, 100);
    bench.come(2, MS, 100);
    // Due at 2 ms, released half a millisecond later.
    bench.release(2 * MS + MS / 2);
    assert_eq!(bench.shaper.due_ns(), 3 * MS + MS / 2);
    // It would leave 4.5 ms after the start, 2 ms from now. A packet that arrives earlier would
    // wait longer.
    assert_eq!(
        bench.come(3, 2 * MS + MS / 2 - 1, 100),
        Decision::Drop(Reason::Late)
    );
    assert_eq!(bench.come(4, 2 * MS + MS / 2, 100), Decision::Wait);
    bench.run_to(10 * MS);
    assert_eq!(bench.left.last(), Some(&(4, 4 * MS + MS / 2)));
}

#[test]
fn a_new_profile_applies_to_waiting_packets() {
    let slow = shaping(Some((1000, 1)), None);
    let mut bench = Bench::new(slow);
    for number in 0..4 {
        bench.come(number, MS, 100);
    }
    let mut gone = Vec::new();
    let fast = shaping(Some((10_000, 1)), None);
    bench.shaper.change(MS, fast, |waiting| gone.push(waiting));
    bench.run_to(20 * MS);
    let times: Vec<u64> = bench.left.iter().map(|(_, at_ns)| at_ns - MS).collect();
    assert_eq!(times, [0, 0, 100_000, 200_000]);
    assert!(gone.is_empty());
    bench.come(4, 30 * MS, 2000);
    bench.come(5, 30 * MS, 2000);
    let narrow = shaping(None, Some((1_000_000, 12_112)));
    bench
        .shaper
        .change(30 * MS, narrow, |waiting| gone.push(waiting));
    assert_eq!(gone.len(), 1, "larger than the new burst");
    assert_eq!(bench.shaper.due_ns(), u64::MAX);
}

#[test]
fn the_packets_of_one_segment_are_removed() {
    let mut bench = Bench::new(shaping(Some((1000, 1)), None));
    for number in 0..5 {
        bench.come(number, MS, 100);
    }
    let mut gone = 0;
    bench.shaper.forget(1, |_| gone += 1);
    bench.run_to(20 * MS);
    let order: Vec<u32> = bench.left.iter().map(|(number, _)| *number).collect();
    assert_eq!((order, gone), (vec![0, 2, 3, 4], 1));
}
