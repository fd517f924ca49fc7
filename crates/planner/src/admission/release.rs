//! The time that a shaper holds packets back, its lateness and its room.

use myelin_packet::traffic::{Bucket, Profile};
use myelin_spec::{FULL_FRAME, Idle, ServiceChain};

use super::site::NS;
use crate::calculus::{SECOND, mul_div_down, mul_div_up};
use crate::frame::SHORTEST;
use crate::plan::{Plan, ShaperPlace};
use crate::shaping::profile_after;

/// Returns the longest hold time in a shaper that is stricter than the policer, fs; `None` without
/// a bound.
pub(super) fn shaper_hold_fs(chain: &ServiceChain, plan: &Plan) -> Option<u128> {
    if plan.shaper.is_none() {
        return Some(0);
    }
    shaper_wait_fs(&chain.sla.profile(), &chain.sla.policing_profile())
}

/// Returns the longest wait in the shaper of a packet that the policer passes, fs, if packets have
/// no delay before the shaper. Theorem 9 of `docs/guarantees/proofs.md`.
fn shaper_wait_fs(shaped: &Profile, policed: &Profile) -> Option<u128> {
    let wait = |shaped: Option<Bucket>, policed: Option<Bucket>| {
        let (shaped, policed) = shaped.zip(policed)?;
        let excess = u128::from(policed.burst().saturating_sub(shaped.burst()));
        Some((excess * SECOND).div_ceil(u128::from(shaped.rate())))
    };
    let packets = wait(shaped.packets, policed.packets);
    match (packets, wait(shaped.bits, policed.bits)) {
        (Some(packets), Some(bits)) => (packets == 0 && bits == 0).then_some(0),
        (packets, bits) => packets.or(bits).or(Some(0)),
    }
}

/// Warns of a shaper whose lateness exceeds its tolerance and its bucket. The bucket then loses
/// credit, so packets leave more slowly than they arrive.
pub(super) fn warn_of_lost_credit(
    chain: &ServiceChain,
    plan: &Plan,
    late_fs: u128,
) -> Option<String> {
    let shaper = plan
        .shaper
        .filter(|shaper| shaper.place == ShaperPlace::Worker)?;
    let lost_fs = late_fs.saturating_sub(u128::from(shaper.shaping.tolerance_ns) * NS);
    if lost_fs == 0 {
        return None;
    }
    let profile = shaper.shaping.profile();
    // The bucket must hold one packet and the credit of the lateness.
    let needed = |bucket: Option<Bucket>, packet: u64| {
        let bucket = bucket?;
        let earned = mul_div_up(u128::from(bucket.rate()), lost_fs, SECOND)?;
        let needed = earned.checked_add(u128::from(packet))?;
        (needed > u128::from(bucket.burst())).then_some(needed)
    };
    let packets = needed(profile.packets, 1).map(|burst| (burst, "packets"));
    let (burst, unit) =
        packets.or_else(|| needed(profile.bits, FULL_FRAME * 8).map(|burst| (burst, "bits")))?;
    let spin = match chain.worker.idle {
        Idle::Spin => "",
        _ => ", or write `worker: { idle: spin }`",
    };
    let late_us = late_fs.div_ceil(NS * 1000);
    Some(format!(
        "the shaper may be {late_us} us late and earn more credit than its burst holds, so it may send \
         less than the agreed rate; write a burst of at least {burst} {unit}, or \
         `shaper: {{ tolerance: {late_us}us }}`{spin}"
    ))
}

/// Returns the longest time from the policer to the shaper, fs, for which the shaper's queue has
/// room and no packet waits too long; `None` if there is no such time. During that time packets
/// cluster, in addition to the policer's burst.
pub(super) fn room_fs(chain: &ServiceChain, plan: &Plan) -> Option<u128> {
    let shaper = &plan.shaper.as_ref()?.shaping;
    let wait_fs = shaper_hold_fs(chain, plan)?;
    let longest_fs = (u128::from(shaper.delay_ns) * NS).checked_sub(wait_fs)?;
    let (more, rate, packet) = burst_in_queue(chain, plan)?;
    let room = (u128::from(shaper.queue) * packet).checked_sub(more)?;
    Some(longest_fs.min(mul_div_down(room, SECOND, rate)?))
}

/// Returns the part of the policer's burst that may wait in the shaper, the policer's rate, and the
/// shortest packet; all in packets, or all in bits. Theorem 10 of `docs/guarantees/proofs.md`.
fn burst_in_queue(chain: &ServiceChain, plan: &Plan) -> Option<(u128, u128, u128)> {
    let shaper = plan.shaper.as_ref()?;
    let shaped = shaper.shaping.profile();
    // Excess may find the queue full. Traffic within the profile needs room.
    let arriving = match chain.sla.excess_queue_ns {
        Some(_) => chain.sla.profile(),
        None => chain.sla.policing_profile(),
    };
    let policed = profile_after(arriving, chain, shaper.functions_before);
    let (burst, policed, packet) = match (shaped.packets, policed.packets) {
        // With two rates, packets may wait for the bits of other packets.
        (Some(_), Some(policed)) if shaped.bits.is_some() => (0, policed, 1),
        (Some(shaped), Some(policed)) => (shaped.burst(), policed, 1),
        _ => (shaped.bits?.burst(), policed.bits?, 8 * SHORTEST),
    };
    let more = policed.burst().saturating_sub(burst);
    Some((more.into(), policed.rate().into(), packet.into()))
}

/// Returns the refusal of a shaper that would drop conforming packets. Packets take up to
/// `before_fs` to reach the shaper.
pub(super) fn room_refusal(chain: &ServiceChain, plan: &Plan, before_fs: u128) -> Option<String> {
    let shaper = &plan.shaper.as_ref()?.shaping;
    let wait_fs = shaper_hold_fs(chain, plan)?;
    if room_fs(chain, plan).is_some_and(|room_fs| before_fs <= room_fs) {
        return None;
    }
    let (more, rate, packet) = burst_in_queue(chain, plan)?;
    let packets = (more + mul_div_up(rate, before_fs, SECOND)?).div_ceil(packet);
    if packets > u128::from(shaper.queue) {
        return Some(format!(
            "up to {packets} packets may wait in the shaper (the policer's burst, and {} us of clustering \
             before it), and its queue holds {}; write `shaper: {{ queue: {packets} }}` at least, or a \
             smaller `policingBurst`",
            before_fs.div_ceil(NS * 1000),
            shaper.queue
        ));
    }
    let wait_us = wait_fs.saturating_add(before_fs).div_ceil(NS * 1000);
    Some(format!(
        "a packet may wait in the shaper for up to {wait_us} us (the policer's burst, and clustering \
         before it), and the shaper drops packets after {} us; write a higher `delay` in `shaper`, or \
         a smaller `policingBurst`",
        shaper.delay_ns / 1000
    ))
}

#[cfg(test)]
mod tests {
    use myelin_packet::traffic::TokenBucket;
    use proptest::prelude::*;

    use super::*;

    fn profile(packets: Option<(u64, u64)>, bits: Option<(u64, u64)>) -> Profile {
        let bucket = |(rate, burst)| Bucket::new(rate, burst).unwrap();
        Profile {
            packets: packets.map(bucket),
            bits: bits.map(bucket),
        }
    }

    /// A policer, a path that delays each packet by a given time, and a shaper.
    struct Simulation {
        policer: TokenBucket,
        shaper: TokenBucket,
        reached_ns: u64,
        left_ns: u64,
    }

    impl Simulation {
        fn new(shaped: &Profile, policed: &Profile) -> Self {
            Self {
                policer: TokenBucket::new(policed),
                shaper: TokenBucket::new(shaped),
                reached_ns: 0,
                left_ns: 0,
            }
        }

        /// Sends a packet. Returns the time from the policer to the departure, ns; `None` if the
        /// policer drops the packet.
        fn send(&mut self, at_ns: u64, bytes: u64, delay_ns: u64) -> Option<u64> {
            self.policer.take(at_ns, 1, bytes).then(|| {
                self.reached_ns = self.reached_ns.max(at_ns + delay_ns);
                let eligible_ns = self.shaper.eligible_ns(1, bytes).unwrap();
                self.left_ns = self.left_ns.max(self.reached_ns).max(eligible_ns);
                assert!(self.shaper.take(self.left_ns, 1, bytes));
                self.left_ns - at_ns
            })
        }
    }

    proptest! {
        /// Bursts have at least two packets, because theorem 9 excludes a bucket that is full when
        /// a packet is due. A bucket of one packet is full at that time, so it loses the credit of
        /// each rounding to nanoseconds.
        #[test]
        fn shaped_packets_leave_within_the_bound(
            packets in prop::option::of((1_u64..200, 2_u64..20)), bits in prop::option::of((1_u64..1000, 2_u64..20)),
            wider in 0_u64..30, delay_us in 0_u64..5000,
            sent in prop::collection::vec((0_u64..400, 60_u64..=1518, 0_u64..=100), 1..300),
        ) {
            prop_assume!(packets.is_some() || bits.is_some());
            let packets = packets.map(|(rate, burst)| (rate * 1000, burst));
            let bits = bits.map(|(rate, burst)| (rate * 1_000_000, burst * 12_144));
            // The policer's burst is wider only with one rate.
            let wider = if packets.is_some() && bits.is_some() { 0 } else { wider };
            let shaped = profile(packets, bits);
            let policed = profile(
                packets.map(|(rate, burst)| (rate, burst + wider)),
                bits.map(|(rate, burst)| (rate, burst + wider * 12_144)),
            );
            let wait_fs = shaper_wait_fs(&shaped, &policed).unwrap();
            let bound_ns = delay_us * 1000 + wait_fs.div_ceil(NS) as u64;
            let (mut simulation, mut at_ns) = (Simulation::new(&shaped, &policed), 0);
            for (pause_us, bytes, late_percent) in sent {
                // Most packets arrive in bursts.
                at_ns += pause_us.saturating_sub(300) * 1000;
                if let Some(took_ns) = simulation.send(at_ns, bytes, delay_us * late_percent * 10) {
                    // The shaper's clock has whole nanoseconds.
                    prop_assert!(took_ns <= bound_ns + 1, "{} above {}", took_ns, bound_ns);
                }
            }
        }
    }

    #[test]
    fn two_rates_and_a_wider_burst_have_no_bound() {
        let bits = Some((100_000_000, 64_000 * 8));
        let (shaped, policed) = (
            profile(Some((20_000, 4)), bits),
            profile(Some((20_000, 64)), bits),
        );
        assert_eq!(shaper_wait_fs(&shaped, &shaped), Some(0));
        assert_eq!(shaper_wait_fs(&shaped, &policed), None);
        // 8 ms of small frames, 16 ms of large ones, as many as the policer passes.
        let mut simulation = Simulation::new(&shaped, &policed);
        let mut longest_ns = 0;
        for step in 0..20_000_u64 {
            let bytes = if step * 20 % 24_000 < 8000 { 60 } else { 1518 };
            while let Some(took_ns) = simulation.send(step * 20_000, bytes, 0) {
                longest_ns = longest_ns.max(took_ns);
            }
        }
        // Each bucket alone adds at most 3 ms.
        assert!(longest_ns > 30_000_000, "{longest_ns}");
    }
}
