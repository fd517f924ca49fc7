//! Several servers in series.

use super::rounding::mul_div_up;
use super::{ArrivalCurve, RateLatency, SECOND, delay, fcfs};

/// A first-come, first-served server on a flow's path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TandemServer {
    /// Service of the whole server.
    pub service: RateLatency,
    /// Arrivals of all other flows.
    pub others: ArrivalCurve,
    /// Greatest work of one packet of the flow.
    pub packet: u128,
}

/// Returns the longest delay of a flow through all servers, fs; `None` if there is no bound. The
/// flow's burst counts once (LBT theorems 1.4.6 and 2.1.3; Goyal, Lam and Vin 1995). `flow` is the
/// flow's arrival curve, with each packet's work at its most expensive server. Proof:
/// `docs/guarantees/proofs.md`, theorem 7.
pub fn tandem(flow: &ArrivalCurve, servers: &[TandemServer]) -> Option<u128> {
    let mut least_rate = None;
    let (mut latencies_fs, mut packets_fs, mut max_packet_fs) = (0_u128, 0_u128, 0);
    for server in servers {
        let left = fcfs(&server.service, &server.others)?;
        least_rate = Some(least_rate.map_or(left.rate, |least: u128| least.min(left.rate)));
        latencies_fs = latencies_fs.checked_add(left.latency_fs)?;
        let packet_fs = mul_div_up(server.packet, SECOND, left.rate)?;
        packets_fs = packets_fs.checked_add(packet_fs)?;
        max_packet_fs = packet_fs.max(max_packet_fs);
    }
    let Some(rate) = least_rate else {
        return Some(0);
    };
    let once = delay(flow, &RateLatency::new(rate, latencies_fs))?;
    once.checked_add(packets_fs - max_packet_fs)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::calculus::{LeakyBucket, paper_sum};

    const US: u128 = SECOND / 1_000_000;

    /// A simulated server, and the packets of other flows that arrive there.
    #[derive(Debug, Clone)]
    struct Stage {
        latency_fs: u128,
        packet_fs: u128,
        /// Burst, rate and packet cost of the other flows, and the time of their burst.
        others: (u128, u128, u128, u128),
    }

    impl Stage {
        fn server(&self) -> TandemServer {
            let (burst, rate, cost, _) = self.others;
            TandemServer {
                service: RateLatency::core(self.latency_fs),
                others: ArrivalCurve::of(LeakyBucket::new(burst * cost, rate * cost)),
                packet: self.packet_fs,
            }
        }

        /// Serves packets in order of arrival, each as late as the curve allows.
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
            // Of simultaneous arrivals, the server serves the flow's packet last.
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

    /// Returns arrivals that conform to a bucket of packets. Each packet arrives after its pause,
    /// but not before the bucket allows.
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

    fn longest_delay(stages: &[Stage], arrived: &[u128]) -> u128 {
        let left = stages
            .iter()
            .fold(arrived.to_vec(), |packets, stage| stage.serve(&packets));
        let delays = left
            .iter()
            .zip(arrived)
            .map(|(left, arrived)| left - arrived);
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
        /// The other flows send any traffic. The paper's sum is a bound too.
        #[test]
        fn no_packet_exceeds_the_tandem_bound(
            stages in prop::collection::vec(stage(), 1..4), burst in 1_u128..30, rate in 1_u128..20_000,
            pauses in prop::collection::vec(prop_oneof![3 => Just(0_u128), 1 => 0_u128..2000], 100),
        ) {
            let max_packet = stages.iter().map(|stage| stage.packet_fs).max().unwrap();
            let flow = ArrivalCurve::of(LeakyBucket::new(burst * max_packet, rate * max_packet));
            let servers: Vec<_> = stages.iter().map(Stage::server).collect();
            let took = longest_delay(&stages, &arrivals(burst, rate, &pauses));
            if let Some(bound) = tandem(&flow, &servers) {
                prop_assert!(took <= bound, "{} above {}", took, bound);
            }
            // Theorem 8 of docs/guarantees/proofs.md.
            let loads = stages.iter().map(|stage| rate * stage.packet_fs + stage.others.1 * stage.others.2);
            if loads.max().unwrap() <= SECOND {
                let sum: u128 = stages.iter().map(|stage| {
                    let bursts = [burst * stage.packet_fs, stage.others.0 * stage.others.2];
                    paper_sum(bursts, SECOND, stage.latency_fs).unwrap()
                }).sum();
                prop_assert!(took <= sum, "{} above the sum of {}", took, sum);
            }
        }

        /// The bound is also at most the paper's sum.
        #[test]
        fn greedy_flow_without_others_meets_the_tandem_bound(
            stages in prop::collection::vec(stage(), 1..6), burst in 1_u128..50,
        ) {
            let alone: Vec<_> = stages.into_iter().map(|stage| Stage { others: (0, 0, 0, 0), ..stage }).collect();
            let max_packet = alone.iter().map(|stage| stage.packet_fs).max().unwrap();
            let rate = SECOND / max_packet;
            let flow = ArrivalCurve::of(LeakyBucket::new(burst * max_packet, rate * max_packet));
            let servers: Vec<_> = alone.iter().map(Stage::server).collect();
            let bound = tandem(&flow, &servers).unwrap();
            prop_assert_eq!(bound, longest_delay(&alone, &vec![0; burst as usize]));
            let sum: u128 = alone
                .iter()
                .map(|stage| paper_sum([burst * stage.packet_fs], SECOND, stage.latency_fs).unwrap())
                .sum();
            prop_assert!(bound <= sum, "{} above the sum of {}", bound, sum);
        }
    }

    #[test]
    fn empty_tandem_has_no_delay_and_overload_has_no_bound() {
        let flow = ArrivalCurve::of(LeakyBucket::new(10, 10));
        assert_eq!(tandem(&flow, &[]), Some(0));
        let full = TandemServer {
            service: RateLatency::new(20, 0),
            others: ArrivalCurve::of(LeakyBucket::new(0, 11)),
            packet: 1,
        };
        assert_eq!(tandem(&flow, &[full]), None);
    }
}
