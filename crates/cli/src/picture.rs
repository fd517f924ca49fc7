//! `--graph`: pictures of chains, on standard output or as SVG files.

use std::path::PathBuf;

use myelin_api::ApiError;
use myelin_report::graph::ChainGraph;

use crate::output;
use crate::page::Page;

/// The option of commands that draw chains.
#[derive(Debug, clap::Args)]
pub(crate) struct PictureOption {
    /// Draw each chain: as text, or as SVG into a file.
    #[arg(
        long,
        value_name = "FILE.svg",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "",
        value_parser = parse_format,
        conflicts_with = "json"
    )]
    pub(crate) graph: Option<PictureFormat>,
}

/// Format of pictures.
#[derive(Debug, Clone)]
pub(crate) enum PictureFormat {
    /// Text on standard output.
    Text,
    /// SVG in a file.
    File(PathBuf),
}

/// Parses the format. A file's name must end in `.svg`, so that a mistake cannot overwrite the
/// chain file.
fn parse_format(text: &str) -> Result<PictureFormat, String> {
    let path = PathBuf::from(text);
    match path.extension() {
        _ if text.is_empty() => Ok(PictureFormat::Text),
        Some(extension) if extension == "svg" => Ok(PictureFormat::File(path)),
        _ => Err("the file's name must end in .svg".to_owned()),
    }
}

/// Prints the pictures, or writes the first one to its file and the others to files next to it.
pub(crate) fn show(format: &PictureFormat, graphs: &[ChainGraph]) -> Result<(), ApiError> {
    let PictureFormat::File(file) = format else {
        let texts = graphs.iter().map(|graph| graph.text(output::width()));
        print!("{}", texts.collect::<Vec<_>>().join("\n"));
        return Ok(());
    };
    for (index, graph) in graphs.iter().enumerate() {
        let mut path = file.clone();
        if index > 0 {
            let stem = file.file_stem().unwrap_or_default().to_string_lossy();
            path.set_file_name(format!("{stem}-{}.svg", graph.chain()));
        }
        Page::at(&path)?.write(&graph.svg().map_err(ApiError::failed)?)?;
        println!("picture: {}", path.display());
    }
    Ok(())
}
