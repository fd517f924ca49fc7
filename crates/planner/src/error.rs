//! The error of a chain without a possible plan.

use myelin_spec::{FileLocation, FunctionSpec, ServiceChain};

/// The error of a chain without a possible plan. (A chain that only misses its contract has a plan,
/// which is not admitted.)
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: chain `{chain}`{problem}")]
pub struct PlanError {
    /// The chain's name.
    pub chain: String,
    /// Place of the cause in the chain file.
    pub place: FileLocation,
    /// Cause and remedy, to print after the chain's name.
    problem: String,
}

impl PlanError {
    /// Creates an error of a chain. `problem` follows the chain's name.
    pub(crate) fn new(
        chain: &ServiceChain,
        place: &FileLocation,
        problem: impl Into<String>,
    ) -> Self {
        Self {
            chain: chain.name.clone(),
            place: place.clone(),
            problem: problem.into(),
        }
    }

    /// Creates an error of one function of a chain.
    pub(crate) fn function(chain: &ServiceChain, function: &FunctionSpec, problem: &str) -> Self {
        let problem = format!(", function `{}`: {problem}", function.name);
        Self::new(chain, &function.place, problem)
    }
}
