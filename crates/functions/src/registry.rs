//! Makes functions from their configurations.

use myelin_packet::lpm::LpmError;
use myelin_packet::rules::RulesError;
use myelin_spec::{FunctionConfig, FunctionInstance};

use crate::aes::{KeyError, Sessions};
use crate::aes_decrypt::AesDecrypt;
use crate::aes_encrypt::{AesEncrypt, EncryptSession};
use crate::compress::Compress;
use crate::compression::CompressionError;
use crate::decompress::Decompress;
use crate::dpi::{self, CompiledPatterns, Dpi};
use crate::firewall::Firewall;
use crate::flow_tracker::{FlowTracker, FlowTrackerState};
use crate::forward::Forward;
use crate::load_balancer::{Affinity, LoadBalancer};
use crate::lossy_link::LossyLink;
use crate::monitor::{Monitor, MonitorState};
use crate::nat::{Mappings, Nat};
use crate::rlnc::decode::{Decode, DecodeState};
use crate::rlnc::encode::{Encode, EncodeState};
use crate::rlnc::recode::{Recode, RecodeState};
use crate::router::Router;
use crate::timestamp::Timestamp;
use crate::work::Work;
use crate::xor::Xor;
use crate::{Function, States, WithState};

/// The reason why a function could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The rules of a firewall are invalid.
    #[error("firewall: {0}")]
    Firewall(#[from] RulesError),
    /// The routes of a router are invalid.
    #[error("router: {0}")]
    Router(#[from] LpmError),
    /// The function is external: a program, which no worker runs.
    #[error(
        "external: a black box does not run in a worker; write `mapping: distributed`, or omit `mapping`"
    )]
    External,
    /// The keys of an encrypter or decrypter are unusable.
    #[error("aes: {0}")]
    Key(#[from] KeyError),
    /// The patterns or the library of a dpi function are unusable.
    #[error("dpi: {0}")]
    Dpi(#[from] dpi::Error),
    /// A compress function has no state.
    #[error("compress: {0}")]
    Compress(CompressionError),
    /// A decompress function has no state.
    #[error("decompress: {0}")]
    Decompress(CompressionError),
}

/// Makes the function that `config` describes, with a new state that no other function shares.
pub fn instantiate(config: &FunctionConfig) -> Result<Box<dyn Function>, Error> {
    States::default().instantiate(&config.clone().into())
}

impl States {
    /// Makes the function that `instance` describes, with the state of its key.
    pub fn instantiate(&mut self, instance: &FunctionInstance) -> Result<Box<dyn Function>, Error> {
        let key = instance.state.as_ref();
        Ok(match &instance.config {
            FunctionConfig::Forward => Box::new(Forward),
            FunctionConfig::Xor(config) => Box::new(Xor::new(*config)),
            FunctionConfig::Firewall(config) => Box::new(Firewall::new(config)?),
            FunctionConfig::Nat(config) => {
                let shape = FunctionConfig::Nat(config.state_config());
                let mappings = self.get_or_create(key, &shape, || Mappings::new(config));
                Box::new(WithState::new(Nat::new(config, instance.side), mappings))
            }
            FunctionConfig::LoadBalancer(config) => {
                let shape = FunctionConfig::LoadBalancer(config.state_config());
                let affinity =
                    self.get_or_create(key, &shape, || Affinity::new(config.flows as usize));
                let balancer = LoadBalancer::new(config, instance.side);
                Box::new(WithState::new(balancer, affinity))
            }
            FunctionConfig::Router(config) => Box::new(Router::new(config)?),
            FunctionConfig::Monitor(config) => {
                let state =
                    self.get_or_create(key, &instance.config, || MonitorState::new(*config));
                Box::new(WithState::new(Monitor, state))
            }
            FunctionConfig::FlowTracker(config) => {
                let shape = FunctionConfig::FlowTracker(config.state_config());
                let state = self.get_or_create(key, &shape, || FlowTrackerState::new(*config));
                Box::new(WithState::new(FlowTracker::new(*config), state))
            }
            FunctionConfig::LossyLink(config) => Box::new(LossyLink::new(*config)),
            FunctionConfig::Work(config) => Box::new(Work::new(*config)),
            FunctionConfig::Timestamp => Box::new(Timestamp::default()),
            FunctionConfig::External(_) => return Err(Error::External),
            FunctionConfig::AesEncrypt(config) => {
                let shape = FunctionConfig::AesEncrypt(config.state_config());
                // Only this step can fail. If the state of an older generation continues, the new
                // session is dropped.
                let session = EncryptSession::new(config)?;
                let session = self.get_or_create(key, &shape, || session);
                Box::new(WithState::new(AesEncrypt::new(config), session))
            }
            FunctionConfig::AesDecrypt(config) => {
                let shape = FunctionConfig::AesDecrypt(config.state_config());
                let sessions = self.get_or_create(key, &shape, || {
                    Sessions::new(config.sessions.into(), config.replay_window)
                });
                Box::new(WithState::new(AesDecrypt::new(config)?, sessions))
            }
            FunctionConfig::Dpi(config) => {
                let shape = FunctionConfig::Dpi(config.state_config());
                let patterns = self.get_or_create(key, &shape, || CompiledPatterns::new(config));
                Box::new(Dpi::new(config, patterns)?)
            }
            FunctionConfig::Compress(config) => {
                Box::new(Compress::new(config).map_err(Error::Compress)?)
            }
            FunctionConfig::Decompress(config) => {
                Box::new(Decompress::new(config).map_err(Error::Decompress)?)
            }
            FunctionConfig::RlncEncode(config) => {
                let shape = FunctionConfig::RlncEncode(config.state_config());
                let state = self.get_or_create(key, &shape, || EncodeState::new(config));
                Box::new(WithState::new(Encode::new(config), state))
            }
            FunctionConfig::RlncRecode(config) => {
                let shape = FunctionConfig::RlncRecode(config.state_config());
                let state = self.get_or_create(key, &shape, || RecodeState::new(config));
                Box::new(WithState::new(Recode::new(config), state))
            }
            FunctionConfig::RlncDecode(config) => {
                let shape = FunctionConfig::RlncDecode(config.state_config());
                let state = self.get_or_create(key, &shape, || DecodeState::new(config));
                Box::new(WithState::new(Decode::new(config), state))
            }
        })
    }
}
