//! The algorithm that places a chain's functions on the nodes of a topology.

use crate::keys::words::word_enum;

word_enum! {
    /// The algorithm that chooses a node for each function.
    ///
    /// `lb`, `lc` and `lblc` are those of Xiang, dissertation, TU Dresden 2022, section 2.4.
    #[derive(Default)]
    pub enum PlacementAlgorithm {
        /// Load balancing: each function on the node with the least load.
        LoadBalancing = "lb",
        /// Least connections: fills a node before the next node, which is drawn at random.
        LeastConnections = "lc",
        /// The functions of `lb`, exchanged between its places for the fewest crossings.
        LoadBalancingLeastConnections = "lblc",
        /// The nodes in turn.
        RoundRobin = "round-robin",
        /// The least worst-case delay of all placements; only for small chains and topologies.
        Optimal = "optimal",
        /// The least worst-case delay that a search of bounded time finds.
        #[default]
        Delay = "delay",
    }
}
