//! `myelin graph`: draws a topology that runs, or the topologies of a file.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use myelin_api::{ApiError, Client, RunDir, TopologyStatus};
use myelin_report::topology;

use crate::page::Page;
use crate::source;

/// Arguments of `myelin graph`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  myelin graph lab                     a running topology, with the state of its links\n  \
    myelin graph lab --svg lab.svg\n  \
    myelin graph examples/topology.yaml  the topologies of a file; needs no agent\n\n\
    Chains have `myelin ps CHAIN --graph` and `myelin plan FILE --graph`."
)]
pub(crate) struct Arguments {
    /// The name of a running topology, or a file.
    topology: String,
    /// Write SVG to this file.
    #[arg(long, value_name = "FILE.svg")]
    svg: Option<PathBuf>,
}

/// Draws the topologies.
pub(crate) fn execute(run_dir: &RunDir, arguments: &Arguments) -> Result<ExitCode, ApiError> {
    let found = find(run_dir, &arguments.topology)?;
    let Some(svg) = &arguments.svg else {
        for status in &found {
            print!("{}", topology::text(status));
        }
        return Ok(ExitCode::SUCCESS);
    };
    for (position, status) in found.iter().enumerate() {
        let mut path = svg.clone();
        if position > 0 {
            let stem = svg.file_stem().unwrap_or_default().to_string_lossy();
            path.set_file_name(format!("{stem}-{}.svg", status.name));
        }
        Page::at(&path)?.write(&topology::svg(status).map_err(ApiError::failed)?)?;
        println!("picture: {}", path.display());
    }
    Ok(ExitCode::SUCCESS)
}

fn find(run_dir: &RunDir, name: &str) -> Result<Vec<TopologyStatus>, ApiError> {
    let path = Path::new(name);
    if path.is_file() {
        let topologies = source::read(path)?.parse_objects()?.topologies;
        if topologies.is_empty() {
            return Err(ApiError::usage(format!(
                "{name} has no topology: `myelin plan {name} --graph` draws chains"
            )));
        }
        return Ok(topologies.iter().map(TopologyStatus::of).collect());
    }
    let mut found = match Client::connect(run_dir)? {
        Some(client) => client.topologies()?,
        None => Vec::new(),
    };
    found.retain(|status| status.name == name);
    if found.is_empty() {
        return Err(ApiError::failed(format!(
            "no topology `{name}` runs, and no file has that name; `myelin ps` lists the running topologies"
        )));
    }
    Ok(found)
}
