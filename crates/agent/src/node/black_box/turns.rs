//! The turns of a black box on a shared core.

use std::sync::Arc;

use myelin_policy::sharing::Parameters;
use myelin_spec::{SharingMechanism, SharingPolicy, SharingSpec};

use super::{BlackBox, Key};
use crate::node::confinement::GroupTurns;
use crate::node::cores::{BlackBoxTask, Cores, MemberKind, TakesTurns, TurnMember};

/// Packets that a program reads at once: DPDK's usual burst.
const BATCH: u16 = 32;

/// A black box on its core, and the counters of its packets.
pub(crate) struct BlackBoxTurns {
    pub(crate) cores: Arc<Cores>,
    pub(crate) owner: String,
    /// The chain and the function.
    pub(crate) name: String,
    pub(crate) core: Option<u32>,
    pub(crate) sharing: SharingSpec,
    pub(crate) key: Key,
    /// The control group of the processes; empty before it is made.
    pub(crate) group: String,
    /// The counter of the packets that enter.
    pub(crate) entered: u32,
    /// The counters of those that leave.
    pub(crate) left: [u32; 2],
    /// Packets for which the program has room.
    pub(crate) ring: u32,
    /// Measured cost of a packet, ps.
    pub(crate) cost_ps: Option<u64>,
    pub(crate) budget_ns: Option<u64>,
    pub(crate) has_quota: bool,
}

impl BlackBoxTurns {
    /// What the control group must permit.
    pub(crate) fn demand(&self) -> GroupTurns {
        GroupTurns {
            is_real_time: self.sharing.hands_over() && !self.has_quota,
            is_frozen: self.sharing.mechanism == SharingMechanism::Freezer,
        }
    }
}

impl TakesTurns for BlackBox {
    fn owner(&self) -> &str {
        &self.turns.owner
    }

    fn core(&self) -> Option<u32> {
        self.turns.core
    }

    fn sharing(&self) -> SharingPolicy {
        self.turns.sharing.policy
    }

    fn mechanism(&self) -> SharingMechanism {
        self.turns.sharing.mechanism
    }

    fn policy(&self) -> Option<Parameters> {
        Parameters::of(&self.turns.sharing, BATCH)
    }

    fn members(&self) -> Vec<TurnMember> {
        let turns = &self.turns;
        let Key {
            spi,
            generation,
            position,
        } = turns.key;
        vec![TurnMember {
            name: turns.name.clone(),
            budget_ns: turns.budget_ns,
            kind: MemberKind::BlackBox(BlackBoxTask {
                group: turns.group.clone(),
                place: (spi, generation, position),
                entered: turns.entered,
                left: turns.left,
                capacity: turns.ring,
                cost_ps: turns.cost_ps,
                has_quota: turns.has_quota,
            }),
        }]
    }
}
