//! The stored images of containers: a directory each, with the files and what the image says about
//! its program. Images stay when the agent ends.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use myelin_image::{ImageConfig, Limits};
use myelin_linux::journal::{Journal, Resource};

use crate::api::{ApiError, ImageRequest, ImageStatus};

/// The variable that names another directory than [`DEFAULT`].
const VARIABLE: &str = "MYELIN_IMAGES";
const DEFAULT: &str = "/var/lib/myelin/images";
/// Longest name of an image.
const MAX_NAME: usize = 64;
const CONFIG: &str = "image.json";
const FILES: &str = "files";
/// Numbers the imports of this agent.
static IMPORTS: AtomicU64 = AtomicU64::new(0);

/// A stored image.
#[derive(Debug)]
pub(crate) struct StoredImage {
    /// The directory with the files.
    pub(crate) files: PathBuf,
    pub(crate) config: ImageConfig,
}

fn directory() -> PathBuf {
    std::env::var_os(VARIABLE).map_or_else(|| PathBuf::from(DEFAULT), PathBuf::from)
}

/// Returns the directory of an image.
///
/// # Errors
/// The name is not valid.
fn path_of(name: &str) -> Result<PathBuf, ApiError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let starts_well = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if starts_well && name.len() <= MAX_NAME && name.chars().all(is_plain) {
        return Ok(directory().join(name));
    }
    Err(ApiError::usage(format!(
        "image `{name}`: the name is not valid: write at most {MAX_NAME} letters, digits, `-`, `_` and `.`, the first a letter \
         or a digit"
    )))
}

/// Finds a stored image.
///
/// # Errors
/// No image has that name, or its description is unreadable.
pub(crate) fn find(name: &str) -> Result<StoredImage, ApiError> {
    let path = path_of(name)?;
    let text = fs::read(path.join(CONFIG)).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => ApiError::usage(format!(
            "no image `{name}` is stored: `myelin image ls` lists the images, `myelin image import {name} FILE` stores one"
        )),
        _ => ApiError::failed(format!("image `{name}`: {}: {error}", path.display())),
    })?;
    let config = serde_json::from_slice(&text);
    let config = config.map_err(|error| {
        ApiError::failed(format!(
            "image `{name}`: cannot read {}: {error}; import the image again",
            path.join(CONFIG).display()
        ))
    })?;
    Ok(StoredImage {
        files: path.join(FILES),
        config,
    })
}

/// Lists the stored images, by name.
pub(crate) fn list() -> Vec<ImageStatus> {
    let entries = fs::read_dir(directory()).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut all: Vec<ImageStatus> = names
        .filter_map(|name| {
            let found = find(&name).ok()?;
            Some(describe(name, found.config))
        })
        .collect();
    all.sort_by(|one, other| one.name.cmp(&other.name));
    all
}

fn describe(name: String, config: ImageConfig) -> ImageStatus {
    ImageStatus {
        name,
        command: config.command,
        env: config.env,
        layers: config.layers as u64,
        files: config.entries,
        bytes: config.bytes,
    }
}

/// Unpacks an archive and stores it. A failure leaves nothing behind.
///
/// # Errors
/// A bad name, an image of that name, a broken or hostile archive, or a system error.
pub(crate) fn import(request: &ImageRequest, journal: &Journal) -> Result<ImageStatus, ApiError> {
    let ImageRequest { name, archive } = request;
    let target = path_of(name)?;
    let failed = |path: &Path, error: &io::Error| {
        ApiError::failed(format!("image `{name}`: {}: {error}", path.display()))
    };
    if target.exists() {
        return Err(ApiError::failed(format!(
            "image `{name}` is stored already: choose another name, or run `myelin image rm {name}`"
        )));
    }
    let archive = Path::new(archive);
    let opened = File::open(archive).map_err(|error| failed(archive, &error))?;
    let is_file = opened.metadata().is_ok_and(|found| found.is_file());
    if !is_file {
        return Err(ApiError::usage(format!(
            "image `{name}`: {} is no file: write an archive with `skopeo copy docker://IMAGE oci-archive:FILE`",
            archive.display()
        )));
    }
    // Others may enter by name, because root of a user's container is that user outside. They may
    // not list the images.
    let mut private = DirBuilder::new();
    private.recursive(true).mode(0o711);
    let parent = directory();
    private
        .create(&parent)
        .map_err(|error| failed(&parent, &error))?;
    // A name with this begin is no name of an image. Each request has its own.
    let number = IMPORTS.fetch_add(1, Ordering::Relaxed);
    let partial = parent.join(format!(".import-{}-{number}-{name}", std::process::id()));
    let resource = Resource::Directory {
        path: partial.clone(),
    };
    // Dropping the guard removes what an error leaves.
    let guard = journal.guard(resource).map_err(ApiError::failed)?;
    let files = partial.join(FILES);
    private
        .create(&files)
        .map_err(|error| failed(&files, &error))?;
    let config = myelin_image::unpack(opened, &files, &Limits::default());
    let config = config.map_err(|error| {
        ApiError::failed(format!("image `{name}`: {}: {error}", archive.display()))
    })?;
    let text = serde_json::to_vec(&config).map_err(ApiError::failed)?;
    fs::write(partial.join(CONFIG), text).map_err(|error| failed(&partial, &error))?;
    fs::rename(&partial, &target).map_err(|error| failed(&target, &error))?;
    drop(guard);
    Ok(describe(name.clone(), config))
}

/// Removes a stored image.
///
/// # Errors
/// No image has that name, or a system error.
pub(crate) fn remove(name: &str) -> Result<(), ApiError> {
    let path = path_of(name)?;
    // An image whose description is missing or unreadable can be removed too.
    if !path.exists() {
        find(name)?;
    }
    // First the description, so that a removal that stops half way leaves no broken image.
    let removed = match fs::remove_file(path.join(CONFIG)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => fs::remove_dir_all(&path),
    };
    removed
        .map_err(|error| ApiError::failed(format!("image `{name}`: {}: {error}", path.display())))
}
