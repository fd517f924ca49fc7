//! Simulated pipelines on one core against the planner's bound for cooperative turns (theorem 15
//! of `docs/guarantees/proofs.md`).

use myelin_planner::calculus::{ArrivalCurve, LeakyBucket, RateLatency, Round, SECOND, delay};
use myelin_policy::sharing::Parameters;
use myelin_simulator::{CoreSetup, LaneSetup, Machine, Mechanism, Pattern, Scheduler, Source};
use proptest::prelude::*;

/// Femtoseconds of a nanosecond and of a picosecond.
const NS: u128 = 1_000_000;
const PS: u128 = 1000;
/// Capacity of the rings of ports.
const PORT_RING: u32 = 1 << 16;
const SWITCH_NS: u64 = 2000;
/// Time of a read and its decision besides packets, ns.
const READ_NS: u64 = 30;
const DECISION_NS: u64 = 150;

/// A worker, or a pipeline of the worker and its stages.
#[derive(Debug, Clone)]
struct Chain {
    /// Cost of a packet in the worker, ps.
    cost_ps: u64,
    /// Cost of a packet in each stage, ps.
    stages_ps: Vec<u64>,
    /// Cost of a packet that comes back to the worker, ps.
    back_ps: u64,
    /// Share of the leftover rate.
    load: f64,
    /// Packets of each burst.
    burst: u32,
}

/// A core whose processes yield after `reads` batches.
#[derive(Debug, Clone)]
struct Bed {
    chains: Vec<Chain>,
    batch: u32,
    reads: u32,
    /// Capacity of the rings between processes.
    ring: u32,
}

/// A source that sends bursts.
#[derive(Debug, Clone, Copy)]
struct Bursts {
    gap_ns: u64,
    burst: u32,
    period_ns: u64,
}

impl Bursts {
    fn source(self, ring: usize) -> Source {
        let on_ns = self.gap_ns * u64::from(self.burst);
        Source {
            ring,
            rate_pps: 1e9 / self.gap_ns as f64,
            pattern: Pattern::OnOff {
                on_ns,
                off_ns: self.period_ns - on_ns,
            },
            budget_ns: None,
        }
    }
}

/// The cost of a packet that is alone in its batch, fs.
fn packet_fs(cost_ps: u64) -> u128 {
    u128::from(cost_ps) * PS + u128::from(READ_NS + DECISION_NS) * NS
}

impl Bed {
    fn packets_of_turn(&self) -> u128 {
        u128::from(self.reads) * u128::from(self.batch)
    }

    /// The longest turn, fs: of full reads, or with an empty read at its end.
    fn turn_fs(&self, cost_ps: u64) -> u128 {
        packet_fs(cost_ps) * self.packets_of_turn() + packet_fs(0)
    }

    /// The round of the core for a chain's arrivals.
    fn round(&self, own: usize) -> Round {
        let mut round = Round::default();
        for (index, chain) in self.chains.iter().enumerate() {
            let stages = chain.stages_ps.iter();
            let stages_fs: u128 = stages.map(|cost_ps| self.turn_fs(*cost_ps)).sum();
            let back_fs = match chain.stages_ps.len() {
                0 => 0,
                _ => self.turn_fs(chain.back_ps),
            };
            let arrivals_fs = self.turn_fs(chain.cost_ps);
            round.others_fs += stages_fs;
            round.switches_fs +=
                (1 + chain.stages_ps.len() as u128) * u128::from(SWITCH_NS + DECISION_NS) * NS;
            if index == own {
                (round.arrivals_fs, round.interleaved_fs) = (arrivals_fs, back_fs);
            } else {
                round.others_fs += arrivals_fs + back_fs;
            }
        }
        round
    }

    /// The service of a chain's arrivals.
    fn service(&self, own: usize) -> RateLatency {
        let packet_fs = packet_fs(self.chains[own].cost_ps);
        // A core without packets ends its read, and switches.
        let idle_fs = u128::from(READ_NS + DECISION_NS + SWITCH_NS) * NS;
        let service = self.round(own).leftover(
            &RateLatency::core(idle_fs),
            packet_fs * self.packets_of_turn(),
        );
        let service = service.expect("a turn has packets");
        // Packets leave with their batch (theorem 6).
        let later_fs = packet_fs * u128::from(self.batch - 1) * SECOND / service.rate + 1;
        RateLatency::new(service.rate, service.latency_fs + later_fs)
    }

    fn bursts(&self, own: usize) -> Bursts {
        let chain = &self.chains[own];
        let most_pps = self.service(own).rate as f64 / packet_fs(chain.cost_ps) as f64;
        let gap_ns = 20;
        // The curve counts one more packet for each burst.
        let period_ns = f64::from(chain.burst + 1) / (most_pps * chain.load) * 1e9;
        Bursts {
            gap_ns,
            burst: chain.burst,
            period_ns: (period_ns as u64).max(u64::from(chain.burst) * gap_ns + 1) + 1,
        }
    }

    /// The bound of a chain, ns; `None` above the leftover rate.
    fn bound_ns(&self, own: usize) -> Option<u64> {
        let Bursts {
            gap_ns,
            burst,
            period_ns,
        } = self.bursts(own);
        let packet_fs = packet_fs(self.chains[own].cost_ps);
        // A burst may have one more packet, because its packets have any phase.
        let burst_fs = (u128::from(burst) + 1) * packet_fs;
        let rate = (burst_fs * SECOND).div_ceil(u128::from(period_ns) * NS);
        // A time that begins and ends in bursts has one more of them.
        let longer_fs = u128::from(u64::from(burst) * gap_ns) * NS * rate / SECOND + packet_fs;
        let curve = ArrivalCurve::of(LeakyBucket::new(burst_fs + longer_fs, rate));
        let first_fs = delay(&curve, &self.service(own))?;
        let rounds = u128::from(!self.chains[own].stages_ps.is_empty());
        let bound_fs = first_fs + rounds * self.round(own).time_fs()?;
        Some(bound_fs.div_ceil(NS) as u64)
    }

    /// The longest sojourn of each chain, ns, with turns of `reads` batches.
    fn simulate(&self, reads: u32, time_ns: u64) -> Vec<u64> {
        let mut machine = Machine::new(7);
        let (mut lanes, mut ports, mut task) = (Vec::new(), Vec::new(), 0);
        let mut capacities = Vec::new();
        for chain in &self.chains {
            let mut add = |task, ingress, egress, cost_ps| {
                lanes.push(LaneSetup {
                    task,
                    ingress,
                    egress,
                    cost_ps,
                    assumed_cost_ps: cost_ps,
                });
            };
            let mut add_ring = |capacity| {
                capacities.push(capacity);
                machine.add_ring(capacity)
            };
            ports.push(add_ring(PORT_RING));
            let inner = chain.stages_ps.iter().chain(chain.stages_ps.first());
            let rings: Vec<usize> = inner.map(|_| add_ring(self.ring)).collect();
            add(
                task,
                ports[ports.len() - 1],
                rings.first().copied(),
                chain.cost_ps,
            );
            if let Some(last) = rings.last() {
                add(task, *last, None, chain.back_ps);
            }
            for (stage, cost_ps) in chain.stages_ps.iter().enumerate() {
                add(
                    task + 1 + stage,
                    rings[stage],
                    Some(rings[stage + 1]),
                    *cost_ps,
                );
            }
            task += 1 + chain.stages_ps.len();
        }
        let setup = CoreSetup {
            lanes,
            mechanism: Mechanism {
                switch_ns: SWITCH_NS,
                decision_ns: DECISION_NS,
                between_batches: true,
                batch: self.batch,
                read_ns: READ_NS,
            },
            scheduler: Scheduler::Policy,
        };
        let policy = Parameters::Cooperative { reads };
        let policy = policy.policy(setup.shared_core(|ring| capacities[ring]));
        machine.add_core(setup, policy);
        let sources = ports.iter().enumerate();
        let sources = sources.map(|(own, ring)| self.bursts(own).source(*ring));
        let chains: Vec<usize> = sources.map(|source| machine.add_source(source)).collect();
        machine.run(time_ns);
        let longest = chains.iter().map(|chain| {
            let result = machine.chain(*chain);
            assert_eq!(
                (result.lost_at_entry, result.lost_inside),
                (0, 0),
                "{result:?}"
            );
            result.sojourn.max_ns().unwrap_or(0)
        });
        longest.collect()
    }
}

fn chains() -> impl Strategy<Value = Vec<Chain>> {
    let cost = || 20_000_u64..1_000_000;
    let stages = prop::collection::vec(cost(), 0..4);
    let chain = (cost(), stages, cost(), 0.05_f64..0.95, 1_u32..300);
    let chain = chain.prop_map(|(cost_ps, stages_ps, back_ps, load, burst)| Chain {
        cost_ps,
        stages_ps,
        back_ps,
        load,
        burst,
    });
    prop::collection::vec(chain, 1..4)
}

fn beds() -> impl Strategy<Value = Bed> {
    (chains(), 1_u32..65, 1_u32..9).prop_map(|(chains, batch, reads)| Bed {
        chains,
        batch,
        reads,
        ring: (batch * reads).next_power_of_two(),
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// If a ring holds the packets of a turn, no packet of a pipeline exceeds the bound.
    #[test]
    fn no_packet_exceeds_the_bound_of_a_pipeline(bed in beds()) {
        let longest = bed.simulate(bed.reads, 20_000_000);
        for (own, longest_ns) in longest.into_iter().enumerate() {
            let bound_ns = bed.bound_ns(own);
            prop_assert!(bound_ns.is_some_and(|bound_ns| longest_ns <= bound_ns), "{} ns above {:?} ns", longest_ns, bound_ns);
        }
    }
}

/// A pipeline beside workers that always have packets.
fn crowded() -> Bed {
    let cost_ps = 4_000_000;
    let pipeline = Chain {
        cost_ps,
        stages_ps: vec![cost_ps; 2],
        back_ps: cost_ps,
        load: 0.9,
        burst: 64,
    };
    let worker = Chain {
        stages_ps: Vec::new(),
        // More than its share.
        load: 4.0,
        burst: 1000,
        ..pipeline.clone()
    };
    let mut chains = vec![worker; 12];
    chains.insert(0, pipeline);
    Bed {
        chains,
        batch: 16,
        reads: 4,
        ring: 64,
    }
}

#[test]
fn longer_turns_than_said_and_half_of_the_bound_do_not_hold() {
    let bed = crowded();
    let bound_ns = bed.bound_ns(0).unwrap();
    let longest_ns = bed.simulate(bed.reads, 200_000_000)[0];
    let range = bound_ns / 2..=bound_ns;
    assert!(range.contains(&longest_ns), "{longest_ns} of {bound_ns}");
    let longer = Bed {
        ring: 1024,
        ..bed.clone()
    };
    let longest_ns = longer.simulate(16 * bed.reads, 200_000_000)[0];
    assert!(longest_ns > bound_ns, "{longest_ns} of {bound_ns}");
}
