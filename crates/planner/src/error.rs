//! The error of a chain without a possible plan.

use myelin_spec::{FileLocation, FunctionSpec, ServiceChain};

/// A chain without a possible plan: the place in the file, the cause and the remedy. (A chain that
/// only misses its contract has a plan that is not admitted.)
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: chain `{chain}`{problem}")]
pub struct PlanError {
    /// The chain's name.
    pub chain: String,
    /// Place of the cause in the chain file.
    pub place: FileLocation,
    /// Cause and remedy, as they follow the chain's name.
    problem: String,
}

impl PlanError {
    /// An error of a chain; `problem` follows its name.
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

    /// An error of one function of a chain.
    pub(crate) fn function(chain: &ServiceChain, function: &FunctionSpec, problem: &str) -> Self {
        let problem = format!(", function `{}`: {problem}", function.name);
        Self::new(chain, &function.place, problem)
    }
}
