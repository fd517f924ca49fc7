//! Parses and validates files of chains and topologies.
//!
//! The crate defines the objects of a file ([`ServiceChain`], [`Topology`]), quantities with
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
pub mod cut;
mod dpdk;
pub mod effect;
mod error;
mod files;
pub mod function;
pub mod isolation;
mod keys;
pub mod kinds;
mod openflow;
pub mod part;
mod placement;
mod printable;
mod read;
pub mod replay;
mod replies;
mod schema;
pub mod secret;
pub mod shaping;
mod sharing;
pub mod sla;
pub mod suggest;
pub mod topology;
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
pub use openflow::ControllerAddress;
pub use part::{BranchSpec, PartSpec, PeerSpec, VxlanSpec, Way};
pub use placement::PlacementAlgorithm;
pub use read::{ReferencedFile, referenced_files};
pub use replay::{ReplaySpec, ReplayTimes};
pub use schema::schema;
pub use secret::SecretKey;
pub use shaping::{Limit, Shaping};
pub use sharing::{SharingMechanism, SharingPolicy, SharingSpec};
pub use sla::{Enforce, FULL_FRAME, Sla};
pub use topology::{
    HostAddress, HostRoute, HostSpec, Impairments, LinkEmulation, LinkSpec, Loss, NODE_BRIDGE,
    NodeClock, NodeWay, NodeWays, Removal, Topology, TopologyChange,
};

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

/// Returns all keys of a topology, each with its path.
pub fn topology_keys() -> Vec<(String, &'static catalogue::ConfigKey)> {
    catalogue::flatten(read::TOPOLOGY_KEYS, "")
}

/// The objects of a file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Objects {
    /// The chains, in the order of the file.
    pub chains: Vec<ServiceChain>,
    /// The topologies, in the order of the file.
    pub topologies: Vec<Topology>,
}

/// Parses the chains of a file. Also validates the topologies of the file.
///
/// # Errors
/// As [`parse_objects`].
pub fn parse(
    text: &str,
    source: &Source,
    files: &dyn FileResolver,
) -> Result<Vec<ServiceChain>, SpecErrors> {
    parse_objects(text, source, files).map(|objects| objects.chains)
}

/// Parses a file of chains and topologies: one or more objects, as YAML documents.
///
/// `files` returns the contents of the files that the chain file names. The error holds all faults.
///
/// # Errors
/// The text is not YAML, or not a valid chain file.
pub fn parse_objects(
    text: &str,
    source: &Source,
    files: &dyn FileResolver,
) -> Result<Objects, SpecErrors> {
    let faults = FaultLog::with_files(&source.name, text, files);
    let mut objects = Objects::default();
    match yaml::load(text) {
        Err((span, fault)) => faults.add("", span, fault),
        Ok(documents) if documents.is_empty() => {
            let fault = Fault::new(
                "the file has no object",
                "at least one object of `kind: ServiceChain` or `kind: Topology`",
                "`myelin init` writes a first chain file",
            );
            faults.add("", Span::START, fault);
        }
        Ok(documents) => {
            for (index, node) in documents.iter().enumerate() {
                read::document(node, index + 1, &faults, &mut objects);
            }
        }
    }
    check::check_chains(&mut objects.chains, &faults);
    check::check_topologies(&objects, &faults);
    match faults.finish() {
        Some(errors) => Err(errors),
        None => Ok(objects),
    }
}

/// Returns the documents of a file as JSON, without checking their keys and values. A number that
/// JSON would spell in another way is a string.
///
/// # Errors
/// The text is not YAML.
pub fn parse_documents(text: &str, source: &Source) -> Result<Vec<serde_json::Value>, SpecErrors> {
    let faults = FaultLog::new(&source.name, text);
    let documents = yaml::load(text).unwrap_or_else(|(span, fault)| {
        faults.add("", span, fault);
        Vec::new()
    });
    let documents = documents.iter().map(yaml::Node::to_json).collect();
    faults.finish().map_or(Ok(documents), Err)
}
