//! Sharing of one core among tasks that poll.
//!
//! A *task* is a process, or the threads of a black box, that polls rings. A task without packets
//! looks busy to an operating system, so the kernel's scheduler shares a core among tasks badly.
//! The policies here read how full the rings are. [`Parameters::policy`] creates one for a core:
//!
//! | policy | the next task | a turn ends |
//! |---|---|---|
//! | [`Unis`] | in chain order, with enough packets and room | slice, too few packets, no room |
//! | [`Cooperative`] | in chain order | after `k` reads, or an empty one |
//! | [`RoundRobin`] | in chain order | after a fixed slice |
//! | [`LoadBased`] | the kernel's choice, by weights | the kernel's choice |
//! | [`LoadTurns`] | in chain order, with packets and room | share of the load, or no packet |
//! | [`Deadline`] | the earliest deadline at the head of a ring | drained, or another is urgent |
//!
//! ```text
//! ring 0 --lane 0--> ring 1 --lane 1--> ring 2 --lane 2--> port
//!         (task 0)           (task 1)           (task 0)
//! ```
//!
//! A *lane* leads packets from one ring through one task to the next ring. A task may have several
//! lanes: those of several chains, or the first and the last lane of a pipeline. Tasks are numbered
//! in chain order.
//!
//! Start reading at [`CoreView`], then at [`Unis`].

mod cooperative;
mod core;
mod deadline;
mod load_based;
mod load_turns;
mod parameters;
mod round_robin;
mod state;
#[cfg(test)]
mod testbed;
mod unis;

pub use self::core::{Action, CoreView, Lane, LaneState, RingState, SharedCore, next_switch_ns};
pub use cooperative::Cooperative;
pub use deadline::{Deadline, DeadlineParameters};
pub use load_based::{LoadBased, LoadBasedParameters, TOTAL_WEIGHT};
pub use load_turns::LoadTurns;
pub use parameters::Parameters;
pub use round_robin::RoundRobin;
pub use unis::{Unis, UnisParameters};

use crate::Policy;

/// One of the policies.
#[derive(Debug, Clone)]
pub enum Sharing {
    /// [`Unis`].
    Unis(Unis),
    /// [`Cooperative`].
    Cooperative(Cooperative),
    /// [`RoundRobin`].
    RoundRobin(RoundRobin),
    /// [`LoadBased`].
    LoadBased(LoadBased),
    /// [`LoadTurns`].
    LoadTurns(LoadTurns),
    /// [`Deadline`].
    Deadline(Deadline),
}

impl Sharing {
    /// Looks at the core at `now_ns` without a decision, when a task gets its turn. Then
    /// [`Self::is_later`] is up to date.
    #[inline]
    pub fn observe(&mut self, now_ns: u64, view: &CoreView<'_>) {
        if let Self::Deadline(policy) = self {
            policy.observe(now_ns, view);
        }
    }

    /// Whether the running task, if it can choose, should leave the packets of this lane until the
    /// next decision.
    #[inline]
    pub fn is_later(&self, lane: usize) -> bool {
        match self {
            Self::Deadline(policy) => policy.is_later(lane),
            _ => false,
        }
    }

    /// Whether the policy may end a turn earlier than at its next decision when a task has read
    /// less than a batch. Then the task asks at once.
    #[inline]
    pub fn watches_short_reads(&self) -> bool {
        matches!(self, Self::Deadline(_))
    }
}

impl Policy for Sharing {
    type View<'a> = CoreView<'a>;
    type Action = Action;

    #[inline]
    fn decide(&mut self, now_ns: u64, view: CoreView<'_>, act: &mut dyn FnMut(Action)) -> u64 {
        match self {
            Self::Unis(policy) => policy.decide(now_ns, view, act),
            Self::Cooperative(policy) => policy.decide(now_ns, view, act),
            Self::RoundRobin(policy) => policy.decide(now_ns, view, act),
            Self::LoadBased(policy) => policy.decide(now_ns, view, act),
            Self::LoadTurns(policy) => policy.decide(now_ns, view, act),
            Self::Deadline(policy) => policy.decide(now_ns, view, act),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::testbed::Testbed;
    use super::*;

    const TASKS: usize = 3;

    /// Any number, and often those at both ends.
    fn word() -> impl Strategy<Value = u64> {
        prop_oneof![
            Just(0),
            Just(u64::MAX - 1),
            Just(u64::MAX),
            0_u64..5000,
            any::<u64>()
        ]
    }

    fn parameters() -> impl Strategy<Value = Parameters> {
        let share = || prop_oneof![any::<f64>(), -1.0..2.0];
        let unis = (share(), share(), any::<bool>(), prop::option::of(word()));
        let unis = unis.prop_map(|(slice_share, theta_max_share, occupancy_rule, wait_ns)| {
            Parameters::Unis(UnisParameters {
                slice_share,
                theta_max_share,
                occupancy_rule,
                interval_ns: wait_ns.unwrap_or(0),
                longest_wait_ns: wait_ns,
                ..UnisParameters::default()
            })
        });
        let load_based = (share(), share(), word(), any::<bool>());
        let load_based =
            load_based.prop_map(|(high_watermark, low_watermark, ns, backpressure)| {
                Parameters::LoadBased(LoadBasedParameters {
                    monitor_ns: ns,
                    weigh_ns: ns / 2,
                    high_watermark,
                    low_watermark,
                    backpressure,
                })
            });
        let deadline = (
            any::<u32>(),
            [word(), word(), word(), word()],
            any::<bool>(),
        );
        let deadline = deadline.prop_map(|(batch, ns, reads_all_rings)| {
            Parameters::Deadline(DeadlineParameters {
                batch,
                switch_ns: ns[0],
                turn_ns: ns[1],
                longest_turn_ns: ns[2],
                interval_ns: ns[3],
                default_budget_ns: ns[0],
                reads_all_rings,
            })
        });
        prop_oneof![
            unis,
            load_based,
            deadline,
            any::<u32>().prop_map(|reads| Parameters::Cooperative { reads }),
            word().prop_map(|slice_ns| Parameters::RoundRobin { slice_ns }),
            (word(), any::<u32>())
                .prop_map(|(round_ns, batch)| Parameters::LoadTurns { round_ns, batch }),
        ]
    }

    /// Lanes that lead anywhere, also back to the ring from which they come.
    fn cores() -> impl Strategy<Value = SharedCore> {
        let lane = (0..TASKS, 0..TASKS, prop::option::of(0..TASKS));
        let lane = lane.prop_map(|(task, ingress, egress)| Lane {
            task,
            ingress,
            egress,
        });
        let capacity = prop_oneof![Just(0), Just(u32::MAX), 1_u32..2048];
        let capacities = prop::collection::vec(capacity, TASKS);
        (prop::collection::vec(lane, 0..5), capacities).prop_map(|(lanes, capacities)| SharedCore {
            tasks: TASKS,
            lanes,
            capacities,
        })
    }

    fn rings() -> impl Strategy<Value = Vec<RingState>> {
        let ring = (word(), word(), word()).prop_map(|(written, read, due_ns)| RingState {
            written,
            read,
            due_ns,
        });
        prop::collection::vec(ring, TASKS)
    }

    proptest! {
        /// Whatever other processes write, a policy neither panics nor names a task or a ring that
        /// is not there.
        #[test]
        fn any_input_is_accepted(
            parameters in parameters(),
            core in cores(),
            words in prop::collection::vec(word(), 0..14),
            steps in prop::collection::vec((word(), rings(), word(), 0..TASKS), 1..8),
            running in prop::option::of(0..TASKS),
        ) {
            let mut bed = Testbed::new(core.clone());
            bed.running = running;
            let mut policy = parameters.policy(core).expect("the core is consistent");
            policy.load(&words);
            for (now_ns, rings, cost_ps, task) in steps {
                bed.rings = rings;
                bed.lanes.iter_mut().for_each(|lane| lane.cost_ps = cost_ps);
                bed.alive[task] ^= true;
                bed.reads = bed.reads.wrapping_sub(1);
                policy.observe(now_ns, &bed.view());
                for action in bed.ask(&mut policy, now_ns).0 {
                    let is_valid = match action {
                        Action::Run(task) => bed.alive[task],
                        Action::Weigh { task, weight } => {
                            task < TASKS && (1..=TOTAL_WEIGHT).contains(&weight)
                        }
                        Action::Shed(ring) | Action::Admit(ring) => ring < TASKS,
                    };
                    prop_assert!(is_valid, "{:?}", action);
                }
            }
        }

        /// From a view of another core, a policy decides nothing.
        #[test]
        fn a_view_of_another_core_is_no_panic(
            parameters in parameters(),
            lengths in [0_usize..5, 0..5, 0..5],
            running in prop::option::of(0_usize..5),
        ) {
            let mut bed = Testbed::chain(TASKS, 1024);
            let mut policy = parameters.policy(bed.core.clone()).expect("the core is consistent");
            let is_of_core = lengths == [TASKS; 3] && running.is_none_or(|task| task < TASKS);
            bed.running = running;
            bed.alive.resize(lengths[0], true);
            bed.rings.resize(lengths[1], RingState::EMPTY);
            bed.lanes.resize(lengths[2], bed.lanes[0]);
            policy.observe(7, &bed.view());
            let (actions, next_ns) = bed.ask(&mut policy, 7);
            if !is_of_core {
                prop_assert_eq!((actions, next_ns), (vec![], u64::MAX));
            }
        }
    }
}
