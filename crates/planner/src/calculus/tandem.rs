//! Several servers one after the other.

use super::rounding::mul_div_up;
use super::{ArrivalCurve, RateLatency, SECOND, delay, fcfs};

/// One server on the way of a flow, first come, first served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Passage {
    /// What the server does for all.
    pub service: RateLatency,
    /// What else is served there.
    pub others: ArrivalCurve,
    /// The most that one packet of the flow costs there.
    pub packet: u128,
}

/// The longest that a packet takes through all of them, fs, where the burst is paid for once (LBT theorems 1.4.6 and 2.1.3; Goyal, Lam and
/// Vin 1995). `most` is the arrival curve of the flow where each packet counts with what it costs at the server that is
/// dearest for it.
///
/// Each server leaves the flow a rate and a latency ([`fcfs`]). Let `s` be the time of a packet at what is left of a server. Packet `n`
/// leaves the last server no later than the sum of the latencies after the greatest, over all `k` not above `n` and all ways of handing the packets `k`
/// to `n` from server to server, of the arrival of `k` and the times of the packets, each at the server that has it then. A packet
/// that is handed on counts at both. So each packet counts once, with no more than its greatest time, and one packet more
/// for each server but one. The flow's curve bounds the first part, and the second is one packet for each
/// server, without the dearest of them.
///
/// `None`: no bound.
pub fn tandem(most: &ArrivalCurve, way: &[Passage]) -> Option<u128> {
    let mut least_rate = None;
    let (mut latencies_fs, mut packets_fs, mut dearest_fs) = (0_u128, 0_u128, 0);
    for passage in way {
        let left = fcfs(&passage.service, &passage.others)?;
        least_rate = Some(least_rate.map_or(left.rate, |least: u128| least.min(left.rate)));
        latencies_fs = latencies_fs.checked_add(left.latency_fs)?;
        let packet_fs = mul_div_up(passage.packet, SECOND, left.rate)?;
        packets_fs = packets_fs.checked_add(packet_fs)?;
        dearest_fs = packet_fs.max(dearest_fs);
    }
    let Some(rate) = least_rate else {
        return Some(0);
    };
    let once = delay(most, &RateLatency::new(rate, latencies_fs))?;
    once.checked_add(packets_fs - dearest_fs)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::calculus::{LeakyBucket, paper_sum};

    const US: u128 = SECOND / 1_000_000;

    /// What one server of the simulation does: its latency, what a packet costs there, and packets of others.
    #[derive(Debug, Clone)]
    struct Stage {
        latency_fs: u128,
        packet_fs: u128,
        /// Burst, rate and cost of a packet of others, and when their burst comes.
        others: (u128, u128, u128, u128),
    }

    impl Stage {
        fn passage(&self) -> Passage {
            let (burst, rate, cost, _) = self.others;
            Passage {
                service: RateLatency::core(self.latency_fs),
                others: ArrivalCurve::of(LeakyBucket::new(burst * cost, rate * cost)),
                packet: self.packet_fs,
            }
        }

        /// Serves packets in the order in which they come, each at the last moment that the curve allows.
        fn serve(&self, own: &[u128]) -> Vec<u128> {
            let (burst, rate, cost, from) = self.others;
            let last = own.last().copied().unwrap_or(0);
            let mut all: Vec<(u128, bool)> = own.iter().map(|at| (*at, true)).collect();
            for packet in 0_u128.. {
                let after = (packet + 1).saturating_sub(burst) * SECOND;
                let at = from + after.div_ceil(rate.max(1));
                if at > last || burst == 0 {
                    break;
                }
                all.push((at, false));
            }
            // Of those that come at once ours is the last.
            all.sort_unstable();
            let mut finish = 0;
            let mut departures = Vec::new();
            for (at, is_own) in all {
                finish = finish.max(at) + if is_own { self.packet_fs } else { cost };
                if is_own {
                    departures.push(finish + self.latency_fs);
                }
            }
            departures
        }
    }

    /// Arrivals that keep to a bucket of packets: each after its pause, but as early as it may.
    fn arrivals(burst: u128, rate: u128, pauses: &[u128]) -> Vec<u128> {
        let mut all: Vec<u128> = Vec::new();
        for pause_us in pauses {
            let mut at = all.last().copied().unwrap_or(0) + pause_us * US;
            for (index, before) in all.iter().enumerate() {
                let count = (all.len() - index + 1) as u128;
                at = at.max(before + (count.saturating_sub(burst) * SECOND).div_ceil(rate));
            }
            all.push(at);
        }
        all
    }

    fn longest(stages: &[Stage], came: &[u128]) -> u128 {
        let left = stages
            .iter()
            .fold(came.to_vec(), |packets, stage| stage.serve(&packets));
        let delays = left.iter().zip(came).map(|(left, came)| left - came);
        delays.max().unwrap()
    }

    fn stage() -> impl Strategy<Value = Stage> {
        let others = (0_u128..30, 1_u128..5000, 1_u128..60, 0_u128..3000);
        (0_u128..100, 1_u128..40, others).prop_map(|(latency, packet, others)| Stage {
            latency_fs: latency * US,
            packet_fs: packet * US,
            others: (others.0, others.1, others.2 * US, others.3 * US),
        })
    }

    proptest! {
        /// Neither bound is ever passed, whatever comes beside, and whenever.
        #[test]
        fn no_packet_takes_longer(
            stages in prop::collection::vec(stage(), 1..4), burst in 1_u128..30, rate in 1_u128..20_000,
            pauses in prop::collection::vec(prop_oneof![3 => Just(0_u128), 1 => 0_u128..2000], 100),
        ) {
            let dearest = stages.iter().map(|stage| stage.packet_fs).max().unwrap();
            let most = ArrivalCurve::of(LeakyBucket::new(burst * dearest, rate * dearest));
            let way: Vec<_> = stages.iter().map(Stage::passage).collect();
            let took = longest(&stages, &arrivals(burst, rate, &pauses));
            if let Some(bound) = tandem(&most, &way) {
                prop_assert!(took <= bound, "{} above {}", took, bound);
            }
            // The sum is one as well: to move a flow's packets back until they keep to their profile again makes none of
            // them leave earlier.
            let loads = stages.iter().map(|stage| rate * stage.packet_fs + stage.others.1 * stage.others.2);
            if loads.max().unwrap() <= SECOND {
                let sum: u128 = stages.iter().map(|stage| {
                    let bursts = [burst * stage.packet_fs, stage.others.0 * stage.others.2];
                    paper_sum(bursts, SECOND, stage.latency_fs).unwrap()
                }).sum();
                prop_assert!(took <= sum, "{} above the sum of {}", took, sum);
            }
        }

        /// Where the flow is alone a greedy source meets the bound exactly, and the bound is not above the paper's sum.
        #[test]
        fn alone_the_bound_is_met_and_is_not_above_the_sum(
            stages in prop::collection::vec(stage(), 1..6), burst in 1_u128..50,
        ) {
            let alone: Vec<_> = stages.into_iter().map(|stage| Stage { others: (0, 0, 0, 0), ..stage }).collect();
            let dearest = alone.iter().map(|stage| stage.packet_fs).max().unwrap();
            let rate = SECOND / dearest;
            let most = ArrivalCurve::of(LeakyBucket::new(burst * dearest, rate * dearest));
            let way: Vec<_> = alone.iter().map(Stage::passage).collect();
            let bound = tandem(&most, &way).unwrap();
            prop_assert_eq!(bound, longest(&alone, &vec![0; burst as usize]));
            let sum: u128 = alone
                .iter()
                .map(|stage| paper_sum([burst * stage.packet_fs], SECOND, stage.latency_fs).unwrap())
                .sum();
            prop_assert!(bound <= sum, "{} above the sum of {}", bound, sum);
        }
    }

    #[test]
    fn no_server_takes_no_time_and_a_full_one_takes_for_ever() {
        let most = ArrivalCurve::of(LeakyBucket::new(10, 10));
        assert_eq!(tandem(&most, &[]), Some(0));
        let full = Passage {
            service: RateLatency::new(20, 0),
            others: ArrivalCurve::of(LeakyBucket::new(0, 11)),
            packet: 1,
        };
        assert_eq!(tandem(&most, &[full]), None);
    }
}
