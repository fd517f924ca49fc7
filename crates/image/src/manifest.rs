//! The documents of an image: index, manifest, configuration.

use std::io::{Read, Seek};

use serde::Deserialize;

use crate::archive::Archive;
use crate::{ImageConfig, Result, refused};

/// Most layers of an image.
const MAX_LAYERS: usize = 512;
const INDEX: &str = "index.json";

/// A reference to a part of the image.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    pub(crate) digest: String,
    #[serde(default)]
    media_type: String,
    platform: Option<Platform>,
}

#[derive(Debug, Clone, Deserialize)]
struct Platform {
    architecture: String,
    os: String,
}

#[derive(Debug, Deserialize)]
struct Index {
    manifests: Vec<Descriptor>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Manifest {
    config: Descriptor,
    pub(crate) layers: Vec<Descriptor>,
}

#[derive(Debug, Deserialize)]
struct Config {
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    os: String,
    config: Option<Process>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Process {
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
    env: Option<Vec<String>>,
    working_dir: Option<String>,
}

/// Reads the manifest for this machine, and the configuration.
pub(crate) fn read<R: Read + Seek>(archive: &mut Archive<R>) -> Result<(Manifest, ImageConfig)> {
    let index: Index = archive.json(INDEX)?;
    let mut chosen = choose(index)?;
    if chosen.media_type.contains("index") || chosen.media_type.contains("manifest.list") {
        chosen = choose(archive.json_blob(&chosen.digest)?)?;
    }
    let manifest: Manifest = archive.json_blob(&chosen.digest)?;
    if manifest.layers.is_empty() || manifest.layers.len() > MAX_LAYERS {
        let cause = format!(
            "the image has {} layers: 1 to {MAX_LAYERS} are possible",
            manifest.layers.len()
        );
        return Err(refused("the manifest", cause));
    }
    if let Some(zstd) = manifest
        .layers
        .iter()
        .find(|layer| layer.media_type.ends_with("zstd"))
    {
        let cause =
            "the layer is compressed with zstd: write the archive with gzip or without compression";
        return Err(refused(&zstd.digest, cause));
    }
    let config: Config = archive.json_blob(&manifest.config.digest)?;
    if !is_here(&config.os, &config.architecture) {
        let cause = format!("the image is for {} on {}", config.os, config.architecture);
        return Err(refused("the configuration", cause));
    }
    let process = config.config.unwrap_or_default();
    let command = [process.entrypoint, process.cmd];
    Ok((
        manifest,
        ImageConfig {
            command: command.into_iter().flatten().flatten().collect(),
            env: process.env.unwrap_or_default(),
            directory: process
                .working_dir
                .filter(|path| path.starts_with('/'))
                .unwrap_or_else(|| "/".to_owned()),
            ..ImageConfig::default()
        },
    ))
}

/// Chooses the only manifest, or the one for this machine.
fn choose(index: Index) -> Result<Descriptor> {
    let count = index.manifests.len();
    let mut fitting = index.manifests.into_iter().filter(|descriptor| {
        let platform = descriptor.platform.as_ref();
        platform.is_none_or(|platform| is_here(&platform.os, &platform.architecture))
    });
    let found = fitting.next().ok_or_else(|| {
        refused(
            INDEX,
            format!("none of its {count} images is for this machine"),
        )
    })?;
    if fitting.next().is_some() {
        return Err(refused(
            INDEX,
            "it has several images for this machine: write an archive with one",
        ));
    }
    Ok(found)
}

/// Whether an image runs on this machine. Old images do not say.
fn is_here(os: &str, architecture: &str) -> bool {
    let own = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    (os.is_empty() || os == "linux") && (architecture.is_empty() || architecture == own)
}
