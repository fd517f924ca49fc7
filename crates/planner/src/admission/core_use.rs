//! The workers and black boxes of a core agree on how they share it.

use std::collections::{BTreeMap, BTreeSet};

use myelin_spec::{ServiceChain, SharingSpec};
use serde::{Deserialize, Serialize};

use crate::plan::Plan;
use crate::planning::{core_uses, resolve_sharing};

/// How the workers of a chain share their core.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CoreUse {
    pub(super) core: u32,
    sharing: SharingSpec,
    /// The other agent that runs them; `None`: this one.
    pub(super) peer: Option<String>,
}

impl CoreUse {
    /// Returns those of the chain's worker and black boxes.
    pub(super) fn of(chain: &ServiceChain, plan: &Plan) -> Vec<Self> {
        let worker = plan.worker.iter();
        let worker = worker.map(|worker| {
            let sharing = SharingSpec {
                policy: resolve_sharing(chain),
                ..chain.worker.sharing.clone()
            };
            (worker.core, sharing)
        });
        let boxes = core_uses(chain).map(|(_, core, sharing)| (core, sharing.clone()));
        let uses = worker.chain(boxes);
        uses.map(|(core, sharing)| Self {
            core,
            sharing,
            peer: None,
        })
        .collect()
    }

    /// Whether both cannot share a core. An agent hands a core over among its own processes.
    fn conflicts_with(&self, other: &Self) -> bool {
        self.sharing != other.sharing || self.peer != other.peer && self.sharing.hands_over()
    }
}

/// The chains of each core, by their sharing. A core has several kinds only while a chain changes,
/// or with several agents.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct CoreUses(BTreeMap<u32, Vec<(CoreUse, BTreeSet<String>)>>);

impl CoreUses {
    pub(super) fn insert(&mut self, chain: &str, core_use: &CoreUse) {
        let kinds = self.0.entry(core_use.core).or_default();
        match kinds.iter_mut().find(|(kind, _)| kind == core_use) {
            Some((_, chains)) => {
                chains.insert(chain.to_owned());
            }
            None => kinds.push((core_use.clone(), [chain.to_owned()].into())),
        }
    }

    pub(super) fn remove(&mut self, chain: &str, core_use: &CoreUse) {
        let Some(kinds) = self.0.get_mut(&core_use.core) else {
            return;
        };
        for (_, chains) in &mut *kinds {
            chains.remove(chain);
        }
        kinds.retain(|(_, chains)| !chains.is_empty());
        if kinds.is_empty() {
            self.0.remove(&core_use.core);
        }
    }

    /// Returns why a chain cannot share its core with the other chains that are there.
    pub(super) fn find_conflict(&self, name: &str, core_use: &CoreUse) -> Option<String> {
        let CoreUse { core, sharing, .. } = core_use;
        let kinds = self.0.get(core)?.iter();
        let mut others = kinds.filter(|(kind, _)| kind.conflicts_with(core_use));
        let (other, chain) = others.find_map(|(kind, chains)| {
            let chain = chains.iter().find(|chain| *chain != name)?;
            Some((kind, chain))
        })?;
        if other.sharing == *sharing {
            return Some(format!(
                "core {core} has a worker or black box of chain `{chain}` of another agent, and `sharing: {}` hands a \
                 core over among the processes of one agent: write `sharing: os` for both, or another core",
                describe(sharing),
            ));
        }
        Some(format!(
            "core {core} has a worker or black box of chain `{chain}` with `sharing: {}`, and one of this chain has \
             `sharing: {}`: all workers of a core need the same spec.worker.sharing, and all black boxes the same \
             config.sharing; make all equal, or write another core",
            describe(&other.sharing),
            describe(sharing),
        ))
    }
}

/// A policy with its parameters, as in a chain file.
fn describe(spec: &SharingSpec) -> String {
    let default = SharingSpec {
        policy: spec.policy,
        ..SharingSpec::default()
    };
    if *spec == default {
        spec.policy.to_string()
    } else {
        format!("{} with other parameters", spec.policy)
    }
}
