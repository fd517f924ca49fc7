//! Why a chain has no plan.

use myelin_spec::{FileLocation, FunctionSpec, ServiceChain};

/// A chain that cannot be deployed at all: where that is written, what is in the way, and what to do about it. (A chain that can,
/// but not as agreed, has a plan that is not admitted.)
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: chain `{chain}`{problem}")]
pub struct PlanError {
    /// The chain.
    pub chain: String,
    /// Where what is in the way is written.
    pub place: FileLocation,
    /// What is in the way, as it follows the chain's name.
    problem: String,
}

impl PlanError {
    /// Of a chain; `problem` follows its name.
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

    /// Of a function of a chain.
    pub(crate) fn function(chain: &ServiceChain, function: &FunctionSpec, problem: &str) -> Self {
        let problem = format!(", function `{}`: {problem}", function.name);
        Self::new(chain, &function.place, problem)
    }
}
