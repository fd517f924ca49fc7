//! NFVnice: the kernel's weights follow the load, and backpressure drops early.

use serde::{Deserialize, Serialize};

use super::{Action, CoreView, SharedCore};
use crate::Policy;

/// Parameters of [`LoadBased`]. The default is the published configuration (Kulkarni et al.,
/// *NFVnice*, SIGCOMM 2017, sections 3.2 to 3.5).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LoadBasedParameters {
    /// Time between two looks at the rings, ns.
    pub monitor_ns: u64,
    /// Time between two changes of the weights, ns.
    pub weigh_ns: u64,
    /// Fill level, as a share of the capacity, above which a lane's ring makes its chain shed
    /// packets.
    pub high_watermark: f64,
    /// Fill level below which the chain admits packets again.
    pub low_watermark: f64,
    /// Whether full rings make chains shed packets.
    pub backpressure: bool,
}

impl Default for LoadBasedParameters {
    fn default() -> Self {
        Self {
            monitor_ns: 1_000_000,
            weigh_ns: 10_000_000,
            high_watermark: 0.8,
            low_watermark: 0.6,
            backpressure: true,
        }
    }
}

/// Gives each task a weight in proportion to its load: arrival rate times cost of a packet. The
/// kernel's fair class chooses the next task. A ring that is nearly full makes its chain drop
/// packets before the first ring, so that no work on them is lost. (As published, packets must also
/// have waited in the ring for long. Here the fill level counts alone.)
#[derive(Debug, Clone)]
pub struct LoadBased {
    core: SharedCore,
    parameters: LoadBasedParameters,
    /// For each ring, the first ring of its chain on this core.
    firsts: Vec<usize>,
    /// For each ring: whether it is above its watermarks.
    congested: Vec<bool>,
    /// For each ring: whether packets are dropped before it.
    shedding: Vec<bool>,
    /// Packets that entered each ring until the last change of the weights.
    pub(super) written: Vec<u64>,
    pub(super) weights: Vec<u32>,
    pub(super) weighed_ns: Option<u64>,
    /// The load of each task since the last change. Every change reuses the vector.
    loads: Vec<f64>,
}

/// Sum of all weights.
pub const TOTAL_WEIGHT: u32 = 10_000;

impl LoadBased {
    /// Creates the policy.
    pub(super) fn new(core: SharedCore, parameters: LoadBasedParameters) -> Self {
        let rings = core.capacities.len();
        let writer = |ring: usize| {
            let mut lanes = core.lanes.iter();
            lanes.find(|lane| lane.egress == Some(ring))
        };
        let first = |ring: usize| {
            // Bounded, because a pipeline may lead back to a ring.
            (0..core.lanes.len()).fold(ring, |ring, _| {
                writer(ring).map_or(ring, |lane| lane.ingress)
            })
        };
        Self {
            firsts: (0..rings).map(first).collect(),
            congested: vec![false; rings],
            shedding: vec![false; rings],
            written: vec![0; rings],
            weights: vec![0; core.tasks],
            weighed_ns: None,
            loads: vec![0.0; core.tasks],
            core,
            parameters,
        }
    }

    fn update_shedding(&mut self, view: &CoreView<'_>, act: &mut dyn FnMut(Action)) {
        for (ring, congested) in self.congested.iter_mut().enumerate() {
            let level = f64::from(view.rings[ring].packets())
                / f64::from(self.core.capacities[ring].max(1));
            // A first ring overflows by itself, which costs no work.
            *congested = self.firsts[ring] != ring
                && (level > self.parameters.high_watermark
                    || (*congested && level > self.parameters.low_watermark));
        }
        for ring in 0..self.shedding.len() {
            let mut rings = self.firsts.iter().zip(&self.congested);
            let sheds = rings.any(|(first, congested)| *first == ring && *congested);
            if sheds != self.shedding[ring] {
                self.shedding[ring] = sheds;
                act(if sheds {
                    Action::Shed(ring)
                } else {
                    Action::Admit(ring)
                });
            }
        }
    }

    /// Computes the weights from the arrivals since the last change.
    fn update_weights(&mut self, view: &CoreView<'_>, act: &mut dyn FnMut(Action)) {
        self.loads.fill(0.0);
        for (lane, state) in self.core.lanes.iter().zip(view.lanes) {
            let arrived = view.rings[lane.ingress]
                .written
                .saturating_sub(self.written[lane.ingress]);
            self.loads[lane.task] += arrived as f64 * state.cost_ps as f64;
        }
        for (before, ring) in self.written.iter_mut().zip(view.rings) {
            *before = ring.written;
        }
        let total: f64 = self.loads.iter().sum();
        for (task, load) in self.loads.iter().enumerate() {
            // Without any load, all tasks are equal. A task without load keeps the least weight, so
            // that it sees its first packet.
            let share = if total > 0.0 {
                load / total
            } else {
                1.0 / self.core.tasks as f64
            };
            let weight = (share * f64::from(TOTAL_WEIGHT)).round().max(1.0) as u32;
            if weight != self.weights[task] {
                self.weights[task] = weight;
                act(Action::Weigh { task, weight });
            }
        }
    }
}

impl Policy for LoadBased {
    type View<'a> = CoreView<'a>;
    type Action = Action;

    fn decide(&mut self, now_ns: u64, view: CoreView<'_>, act: &mut dyn FnMut(Action)) -> u64 {
        if !self.core.is_in(&view) {
            return u64::MAX;
        }
        if self.parameters.backpressure {
            self.update_shedding(&view, act);
        }
        let is_due = self
            .weighed_ns
            .is_none_or(|at_ns| now_ns.saturating_sub(at_ns) >= self.parameters.weigh_ns);
        if is_due {
            self.weighed_ns = Some(now_ns);
            self.update_weights(&view, act);
        }
        now_ns.saturating_add(self.parameters.monitor_ns.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sharing::testbed::Testbed;

    const WEIGH_NS: u64 = 10_000_000;

    fn weigh(task: usize, weight: u32) -> Action {
        Action::Weigh { task, weight }
    }

    #[test]
    fn weights_follow_arrival_rate_times_cost() {
        let mut bed = Testbed::separate(3, 1024);
        let mut policy = LoadBased::new(bed.core.clone(), LoadBasedParameters::default());
        let (actions, next_ns) = bed.ask(&mut policy, 0);
        assert_eq!(actions, [weigh(0, 3333), weigh(1, 3333), weigh(2, 3333)]);
        assert_eq!(next_ns, 1_000_000);
        // Equal rates, costs of 1 to 3; the third task gets no packet.
        bed.lanes[1].cost_ps *= 3;
        bed.fill(0, 500);
        bed.fill(1, 500);
        assert_eq!(bed.ask(&mut policy, WEIGH_NS - 1).0, []);
        let (actions, _) = bed.ask(&mut policy, WEIGH_NS);
        assert_eq!(actions, [weigh(0, 2500), weigh(1, 7500), weigh(2, 1)]);
        // No further arrivals: equal weights again.
        let (actions, _) = bed.ask(&mut policy, 2 * WEIGH_NS);
        assert_eq!(actions, [weigh(0, 3333), weigh(1, 3333), weigh(2, 3333)]);
    }

    #[test]
    fn a_full_ring_sheds_at_the_entry_of_its_chain_until_the_low_watermark() {
        let mut bed = Testbed::chain(3, 1000);
        let mut policy = LoadBased::new(bed.core.clone(), LoadBasedParameters::default());
        bed.ask(&mut policy, 0);
        bed.fill(0, 1000);
        assert_eq!(bed.ask(&mut policy, 1).0, [], "the first ring");
        bed.fill(2, 801);
        assert_eq!(bed.ask(&mut policy, 2).0, [Action::Shed(0)]);
        bed.fill(2, 601);
        assert_eq!(bed.ask(&mut policy, 3).0, []);
        bed.fill(2, 600);
        assert_eq!(bed.ask(&mut policy, 4).0, [Action::Admit(0)]);
        bed.fill(2, 800);
        assert_eq!(bed.ask(&mut policy, 5).0, []);
    }

    #[test]
    fn backpressure_can_be_switched_off() {
        let mut bed = Testbed::chain(2, 1000);
        let parameters = LoadBasedParameters {
            backpressure: false,
            ..LoadBasedParameters::default()
        };
        let mut policy = LoadBased::new(bed.core.clone(), parameters);
        bed.ask(&mut policy, 0);
        bed.fill(1, 1000);
        assert_eq!(bed.ask(&mut policy, 1).0, []);
    }
}
