//! Parses and validates chain files.
//!
//! The crate defines the objects of a chain file ([`ServiceChain`] and its parts), quantities with
//! units ([`units`]), and one description of each function kind ([`catalogue`], a file each in
//! [`kinds`]). It does not know how a chain runs. It does no I/O: the caller passes the text and
//! the files that the text names ([`FileResolver`]).
//!
//! [`parse`] reports all faults of a file at once ([`SpecErrors`]). Each fault has a location, the
//! value found, the values expected and a remedy. [`parse`] panics on no text.
//!
//! ```
//! use myelin_spec::{NoFiles, Source, parse};
//!
//! let text = "
//! apiVersion: myelin.dev/v1alpha1
//! kind: ServiceChain
//! metadata: { name: tactile }
//! spec:
//!   match: { protocol: udp, destinationPort: 9000 }
//!   functions: [ { name: coder, kind: xor, config: { key: 0x5a } } ]
//!   sla: { latency: 350us }
//! ";
//! let chains = parse(text, &Source::new("tactile.yaml"), &NoFiles)?;
//! assert_eq!(chains[0].sla.latency_ns, Some(350_000));
//!
//! let faulty = text.replace("350us", "350");
//! let errors = parse(&faulty, &Source::new("tactile.yaml"), &NoFiles).unwrap_err();
//! assert_eq!(errors.iter().next().unwrap().help, "write 350us");
//! # Ok::<(), myelin_spec::SpecErrors>(())
//! ```
//!
//! Start reading at [`chain`].

pub mod arguments;
pub mod chain;
mod check;
mod dpdk;
pub mod effect;
mod error;
mod files;
pub mod function;
pub mod isolation;
mod keys;
pub mod kinds;
mod printable;
mod read;
mod replies;
mod schema;
pub mod secret;
pub mod shaping;
mod sharing;
pub mod sla;
pub mod suggest;
pub mod units;
mod yaml;

pub use chain::{
    ChainLocations, Classify, Hook, Idle, Mapping, OnFailure, PortDriver, Ports, ServiceChain,
    WorkerSpec,
};
pub use dpdk::DpdkDevice;
pub use effect::{AddedBytes, AddedPackets, Cost, Effect};
pub use error::{Fault, FileLocation, SpecError, SpecErrors};
pub use files::{FileContents, FileResolver, NoFiles};
pub use function::{FunctionInstance, FunctionSpec, Side, Space, StateKey};
pub use isolation::{Isolation, Limits, SandboxSpec};
pub use kinds::*;
pub use myelin_packet::Match;
pub use read::{ReferencedFile, referenced_files};
pub use schema::schema;
pub use secret::SecretKey;
pub use shaping::{Limit, Shaping};
pub use sharing::{SharingPolicy, SharingSpec};
pub use sla::{Enforce, FULL_FRAME, Sla};

use error::{FaultLog, Span};

/// The origin of the text that [`parse`] reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The file's name in errors.
    pub name: String,
}

impl Source {
    /// Creates the source of this name.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into() }
    }
}

/// Returns all keys of a chain file, each with its path, for example `spec.functions[].name`.
pub fn chain_keys() -> Vec<(String, &'static catalogue::ConfigKey)> {
    catalogue::flatten(read::KEYS, "")
}

/// Parses a chain file: one or more objects, as YAML documents.
///
/// `files` returns the contents of the files that the chain file names. The error holds all faults.
///
/// # Errors
/// The text is not YAML, or not a valid chain file.
pub fn parse(
    text: &str,
    source: &Source,
    files: &dyn FileResolver,
) -> Result<Vec<ServiceChain>, SpecErrors> {
    let mut faults = FaultLog::with_files(&source.name, text, files);
    faults.suggest_for_unknown_key = read::suggest_mapping;
    let mut chains = Vec::new();
    match yaml::load(text) {
        Err((span, fault)) => faults.add("", span, fault),
        Ok(documents) if documents.is_empty() => {
            let fault = Fault::new(
                "the file has no object",
                "at least one object of `kind: ServiceChain`",
                "`myelin init` writes a first chain file",
            );
            faults.add("", Span::START, fault);
        }
        Ok(documents) => {
            for (index, node) in documents.iter().enumerate() {
                chains.extend(read::document(node, index + 1, &faults));
            }
        }
    }
    check::check_chains(&mut chains, &faults);
    match faults.finish() {
        Some(errors) => Err(errors),
        None => Ok(chains),
    }
}
