//! The choice of a policy and of its parameters, which one process passes to another.

use myelin_spec::{SharingPolicy, SharingSpec};
use serde::{Deserialize, Serialize};

use super::{
    Cooperative, Deadline, DeadlineParameters, LoadBased, LoadBasedParameters, LoadTurns,
    RoundRobin, SharedCore, Sharing, Unis, UnisParameters,
};

/// A policy and its parameters, without a core.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Parameters {
    /// [`Unis`].
    Unis(UnisParameters),
    /// [`Cooperative`].
    Cooperative {
        /// Reads of a turn (the paper's k).
        reads: u32,
    },
    /// [`RoundRobin`].
    RoundRobin {
        /// Length of a turn, ns.
        slice_ns: u64,
    },
    /// [`LoadBased`].
    LoadBased(LoadBasedParameters),
    /// [`LoadTurns`].
    LoadTurns {
        /// Length of a round in which each task with packets has a turn, ns.
        round_ns: u64,
        /// Packets of a batch.
        batch: u32,
    },
    /// [`Deadline`].
    Deadline(DeadlineParameters),
}

impl Parameters {
    /// Returns the parameters in a chain file, for workers that read up to `batch` packets at once;
    /// `None` if the operating system shares the core.
    pub fn of(spec: &SharingSpec, batch: u16) -> Option<Self> {
        let share = f64::from(spec.gamma) / 1e6;
        Some(match spec.policy {
            SharingPolicy::Os => return None,
            SharingPolicy::Cooperative => Self::Cooperative { reads: spec.reads },
            SharingPolicy::RoundRobin => Self::RoundRobin {
                slice_ns: spec.slice_ns,
            },
            SharingPolicy::LoadBased => Self::LoadTurns {
                round_ns: spec.round_ns,
                batch: batch.into(),
            },
            SharingPolicy::Unis => Self::Unis(UnisParameters {
                slice_share: share,
                theta_max_share: share,
                longest_wait_ns: Some(spec.longest_wait_ns),
                ..UnisParameters::for_batch(batch.into())
            }),
            SharingPolicy::Deadline | SharingPolicy::Auto => Self::Deadline(DeadlineParameters {
                batch: batch.into(),
                longest_turn_ns: spec.longest_turn_ns.unwrap_or(u64::MAX),
                ..DeadlineParameters::default()
            }),
        })
    }

    /// Returns the parameters for tasks that ask the policy themselves and hand the core over, with
    /// this least delay budget on the core, ns. A packet that comes to an empty ring may wait for a
    /// part of its budget until the next decision, so decisions in long turns are rare. (If another
    /// process decides, it must look more often: the tasks do not look for room themselves.)
    #[must_use]
    pub fn for_hand_over(self, least_budget_ns: u64) -> Self {
        match self {
            Self::Deadline(parameters) => Self::Deadline(DeadlineParameters {
                interval_ns: SharingSpec::decision_interval_ns(least_budget_ns),
                ..parameters
            }),
            other => other,
        }
    }

    /// Creates the policy for a core. Returns `None` if a lane of the core names a task or a ring
    /// that does not exist, or if the core has more than 65,536 tasks.
    pub fn policy(self, core: SharedCore) -> Option<Sharing> {
        core.is_consistent().then(|| match self {
            Self::Unis(parameters) => Sharing::Unis(Unis::new(core, parameters)),
            Self::Cooperative { reads } => Sharing::Cooperative(Cooperative::new(core, reads)),
            Self::RoundRobin { slice_ns } => Sharing::RoundRobin(RoundRobin::new(core, slice_ns)),
            Self::LoadBased(parameters) => Sharing::LoadBased(LoadBased::new(core, parameters)),
            Self::LoadTurns { round_ns, batch } => {
                Sharing::LoadTurns(LoadTurns::new(core, round_ns, batch))
            }
            Self::Deadline(parameters) => Sharing::Deadline(Deadline::new(core, parameters)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sharing::Lane;

    #[test]
    fn by_hand_over_decisions_of_long_turns_are_as_rare_as_the_budget_allows() {
        let interval_ns = |budget_ns| {
            let parameters = Parameters::Deadline(DeadlineParameters::default());
            match parameters.for_hand_over(budget_ns) {
                Parameters::Deadline(deadline) => deadline.interval_ns,
                other => panic!("{other:?}"),
            }
        };
        let intervals_ns = [1000, 100_000, u64::MAX].map(interval_ns);
        assert_eq!(intervals_ns, [10_000, 25_000, 50_000]);
    }

    #[test]
    fn a_wrong_core_is_refused() {
        let lane = Lane {
            task: 0,
            ingress: 0,
            egress: Some(1),
        };
        let core = SharedCore {
            tasks: 1,
            lanes: vec![lane],
            capacities: vec![64, 64],
        };
        let all = [
            Parameters::Unis(UnisParameters::default()),
            Parameters::Cooperative { reads: 8 },
            Parameters::RoundRobin { slice_ns: 1000 },
            Parameters::LoadBased(LoadBasedParameters::default()),
            Parameters::LoadTurns {
                round_ns: 1000,
                batch: 64,
            },
            Parameters::Deadline(DeadlineParameters::default()),
        ];
        for parameters in all {
            assert!(parameters.policy(core.clone()).is_some());
            for (tasks, rings) in [(0, 2), (1, 1), (1, 0), (usize::MAX, 2)] {
                let wrong = SharedCore {
                    tasks,
                    lanes: core.lanes.clone(),
                    capacities: vec![64; rings],
                };
                assert!(parameters.policy(wrong).is_none(), "{tasks} {rings}");
            }
        }
    }
}
