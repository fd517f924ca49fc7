//! Chain files.
//!
//! This room knows what a chain file may say and nothing of how a chain runs: the object types ([`ServiceChain`] and its
//! parts), written quantities ([`units`]), and the kinds of functions as data ([`catalogue`], a file each in [`kinds`]). It does no I/O: the text
//! comes in, and so do the files that it names ([`FileResolver`]).
//!
//! [`parse`] reports every fault that it can find in one go, each with its place, what was found, what was expected and
//! what to write instead ([`SpecErrors`]). It never panics, whatever the text.
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
//! let errors = parse(&text.replace("350us", "350"), &Source::new("tactile.yaml"), &NoFiles).unwrap_err();
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
pub mod suggest;
pub mod units;
mod yaml;

pub use chain::{
    Classify, Enforce, FULL_FRAME, Hook, Idle, Mapping, OnFailure, Places, PortDriver, Ports,
    ServiceChain, Sla, WorkerSpec,
};
pub use dpdk::DpdkDevice;
pub use effect::{Cost, Effect, Longer, Made};
pub use error::{Fault, Place, SpecError, SpecErrors};
pub use files::{FileContents, FileResolver, NoFiles};
pub use function::{FunctionInstance, FunctionSpec, Side, Space, StateKey};
pub use isolation::{Isolation, Limits, SandboxSpec};
pub use kinds::*;
pub use myelin_packet::Match;
pub use read::{ReferencedFile, referenced_files};
pub use schema::schema;
pub use secret::SecretKey;
pub use shaping::{Limit, Shaping};

use error::{Report, Span};

/// Where a text comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The file's name, as errors shall show it.
    pub name: String,
}

impl Source {
    /// A file of this name.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into() }
    }
}

/// Reads a chain file: one or more objects, as YAML documents.
///
/// `files` gives the files that it names. The error holds every fault found, not only the first.
pub fn parse(
    text: &str,
    source: &Source,
    files: &dyn FileResolver,
) -> Result<Vec<ServiceChain>, SpecErrors> {
    let report = Report::with_files(&source.name, text, files);
    let mut chains = Vec::new();
    match yaml::load(text) {
        Err((span, fault)) => report.add("", span, fault),
        Ok(documents) if documents.is_empty() => {
            let fault = Fault::new(
                "the file holds no object",
                "at least one ServiceChain",
                "write `apiVersion: myelin.dev/v1alpha1`, `kind: ServiceChain`, `metadata` and `spec`",
            );
            report.add("", Span::START, fault);
        }
        Ok(documents) => {
            for (index, node) in documents.iter().enumerate() {
                chains.extend(read::document(node, index + 1, &report));
            }
        }
    }
    check::file(&mut chains, &report);
    match report.finish() {
        Some(errors) => Err(errors),
        None => Ok(chains),
    }
}
