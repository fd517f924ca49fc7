//! Why a chain has no plan.

use myelin_spec::chain::MAX_FUNCTIONS;
use myelin_spec::{Enforce, Mapping, Place, Space};

/// A chain that cannot be deployed at all. (A chain that can, but not as agreed, has a plan that is not admitted.)
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// A black box needs the other hook.
    #[error(
        "{place}: chain `{chain}`: spec.hook: only the XDP hook leads to a black box; write `hook: xdp`, or leave it out"
    )]
    DistributedHook {
        /// The chain.
        chain: String,
        /// Where the hook is written.
        place: Place,
    },
    /// A function must run in user space, but the hook does not lead there.
    #[error(
        "{place}: chain `{chain}`: spec.hook: the function `{function}` must run in user space ({why}), and only the XDP hook leads there; write `hook: xdp`, or leave it out"
    )]
    Hook {
        /// The chain.
        chain: String,
        /// Where the hook is written.
        place: Place,
        /// The function.
        function: String,
        /// Why it must.
        why: &'static str,
    },
    /// Two functions share a state, but would be in different processes.
    #[error(
        "{place}: chain `{chain}`, function `{function}`: in user space it shares its state with a function of the reverse chain, but in `mapping: {mapping}` each has a process of its own; write `space: kernel`, or `mapping: compact` in both chains"
    )]
    SharedState {
        /// The chain.
        chain: String,
        /// Where the function is written.
        place: Place,
        /// The function.
        function: String,
        /// The mapping.
        mapping: Mapping,
    },
    /// A function is pinned to a space that its kind does not exist in.
    #[error(
        "{place}: chain `{chain}`, function `{function}`: `{kind}` does not exist in the {space} space; remove `space: {space}`"
    )]
    Space {
        /// The chain.
        chain: String,
        /// Where the function is written.
        place: Place,
        /// The function.
        function: String,
        /// Its kind.
        kind: &'static str,
        /// The space.
        space: Space,
    },
    /// A black box needs a namespace of its own.
    #[error(
        "{place}: chain `{chain}`: spec.mapping: `{function}` is a black box (`kind: external`), which stands in a namespace of its own, but `mapping: {mapping}` has none; write `mapping: distributed`, or leave it out"
    )]
    BlackBox {
        /// The chain.
        chain: String,
        /// Where the mapping is written.
        place: Place,
        /// The black box.
        function: String,
        /// The mapping.
        mapping: Mapping,
    },
    /// A function cannot run where devices of DPDK are.
    #[error(
        "{place}: chain `{chain}`, function `{function}`: the chain's ports are devices of DPDK, which the kernel does not see: {why}"
    )]
    Dpdk {
        /// The chain.
        chain: String,
        /// Where the function is written.
        place: Place,
        /// The function.
        function: String,
        /// What is in the way, and the remedy.
        why: &'static str,
    },
    /// Its traffic cannot be shaped where it leaves.
    #[error("{place}: chain `{chain}`: spec.sla.enforce: `{enforce}` asks for a shaper, but {why}")]
    Shaper {
        /// The chain.
        chain: String,
        /// Where the contract is written.
        place: Place,
        /// What it asks for.
        enforce: Enforce,
        /// What is in the way, and the remedy.
        why: &'static str,
    },
    /// The chain is empty or too long.
    #[error(
        "{place}: chain `{chain}` has {count} functions, but a chain has 1 to {MAX_FUNCTIONS}; split it into two, one after the other"
    )]
    Length {
        /// The chain.
        chain: String,
        /// Where it is written.
        place: Place,
        /// Its functions.
        count: usize,
    },
    /// The worker shall run on a core that the machine does not have, or not now.
    #[error(
        "{place}: chain `{chain}`: spec.worker.core: there is no core {core} to use; those that are online and allowed end at {}", cores.saturating_sub(1)
    )]
    Core {
        /// The chain.
        chain: String,
        /// Where the chain is written.
        place: Place,
        /// The core.
        core: u32,
        /// Cores of the machine.
        cores: u32,
    },
}
