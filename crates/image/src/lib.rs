//! Images of containers: reads an OCI archive (image layout 1.0 in a tar file, as `skopeo copy
//! docker://IMAGE oci-archive:FILE` and `docker save` write it) and unpacks its layers.
//!
//! An archive is hostile until proven otherwise. [`unpack`] first checks the digest and every entry
//! of each layer, and writes nothing of an archive with a bad one. All paths are resolved below the
//! root directory by the kernel (`openat2` with `RESOLVE_IN_ROOT`), so no link of an archive leads
//! out of it. Devices, pipes and sockets are refused. Bits that change the user are removed.
//!
//! Start reading at [`unpack`]. This crate runs no program, asks no registry, and knows no agent.

mod archive;
mod entry;
mod layer;
mod manifest;
mod write;

use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::Path;

use serde::{Deserialize, Serialize};

pub use layer::unpack_layer;

/// Sizes that an archive may not exceed.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes of all files of all layers.
    pub bytes: u64,
    /// Entries of all layers.
    pub entries: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            bytes: 16 << 30,
            entries: 1_000_000,
        }
    }
}

/// What an image says about its program, and its size.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageConfig {
    /// The program and its arguments: `Entrypoint`, then `Cmd`.
    pub command: Vec<String>,
    /// Environment variables, `NAME=VALUE`.
    pub env: Vec<String>,
    /// The working directory.
    pub directory: String,
    /// Number of layers.
    pub layers: usize,
    /// Number of entries of all layers.
    pub entries: u64,
    /// Bytes of all files.
    pub bytes: u64,
}

/// An archive that is broken or hostile, or a file that could not be written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The archive is broken or hostile.
    #[error("{place}: {cause}")]
    Refused {
        /// The part of the archive.
        place: String,
        /// What is wrong.
        cause: String,
    },
    /// A file could not be read or written.
    #[error("{action}: {source}")]
    System {
        /// What was done.
        action: String,
        /// The system's error.
        source: io::Error,
    },
}

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

pub(crate) fn refused(place: impl Into<String>, cause: impl Into<String>) -> Error {
    Error::Refused {
        place: place.into(),
        cause: cause.into(),
    }
}

pub(crate) fn system(action: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::System {
        action: action.into(),
        source,
    }
}

/// Unpacks the image of an archive into `root`, an empty directory. After an error, the directory
/// may have a part of the files.
///
/// # Errors
/// A broken or hostile archive, an image for another machine, or a system error.
pub fn unpack<R: Read + Seek>(archive: R, root: &Path, limits: &Limits) -> Result<ImageConfig> {
    let mut archive = archive::Archive::open(archive)?;
    let (manifest, config) = manifest::read(&mut archive)?;
    let mut used = layer::Used::new(limits);
    for descriptor in &manifest.layers {
        archive.verify(&descriptor.digest)?;
        let mut checked = layer::Used::remaining(&used);
        layer::check(archive.blob(&descriptor.digest)?, &mut checked)?;
    }
    let root = File::open(root).map_err(system(format!("open {}", root.display())))?;
    for (position, descriptor) in manifest.layers.iter().enumerate() {
        // Below the first layer there is nothing to hide.
        if position > 0 {
            layer::hide(archive.blob(&descriptor.digest)?, &root)?;
        }
        layer::unpack(archive.blob(&descriptor.digest)?, &root, &mut used)?;
    }
    Ok(ImageConfig {
        layers: manifest.layers.len(),
        entries: used.entries(),
        bytes: used.bytes(),
        ..config
    })
}
