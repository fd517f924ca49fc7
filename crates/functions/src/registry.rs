//! From a configuration to a running function.

use myelin_packet::rules::RulesError;
use myelin_spec::FunctionConfig;

use crate::Function;
use crate::firewall::Firewall;
use crate::forward::Forward;
use crate::xor::Xor;

/// Why a function cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The rule list of a firewall.
    #[error("firewall: {0}")]
    Firewall(#[from] RulesError),
}

/// A new instance of the function that `config` describes, with no state yet.
pub fn instantiate(config: &FunctionConfig) -> Result<Box<dyn Function>, Error> {
    Ok(match config {
        FunctionConfig::Forward => Box::new(Forward),
        FunctionConfig::Xor(config) => Box::new(Xor::new(*config)),
        FunctionConfig::Firewall(config) => Box::new(Firewall::new(config)?),
    })
}
