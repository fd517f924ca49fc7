//! Reads a chain file and the files it names, with the user's own rights.

use std::path::Path;

use myelin_agent::api::{ApiError, ChainSource};
use myelin_spec::FileContents;

use crate::secret_file::{self, Unread};

/// Reads FILE (`-`: standard input) and every file named in it.
///
/// # Errors
/// The chain file cannot be read; a file of keys that others have access to.
pub(crate) fn read(file: &Path) -> Result<ChainSource, ApiError> {
    let (name, text) = if file == Path::new("-") {
        let text = std::io::read_to_string(std::io::stdin())
            .map_err(|error| ApiError::usage(format!("standard input: {error}")))?;
        ("<stdin>".to_owned(), text)
    } else {
        let text = std::fs::read_to_string(file)
            .map_err(|error| ApiError::usage(format!("{}: {error}", file.display())))?;
        (file.display().to_string(), text)
    };
    let directory = file.parent().unwrap_or(Path::new("."));
    let mut source = ChainSource {
        name,
        text,
        ..ChainSource::default()
    };
    for named in myelin_spec::referenced_files(&source.text) {
        let path = directory.join(&named.path);
        let contents = if named.is_secret {
            match secret_file::read(&path) {
                Err(Unread::Unsafe(message)) => return Err(ApiError::usage(message)),
                read => read.ok().map(FileContents::Text),
            }
        } else {
            std::fs::read(path).ok().map(FileContents::from)
        };
        // A missing file is reported by the parser, which knows the line that names it.
        if let Some(contents) = contents {
            source.files.insert(named.path, contents);
        }
    }
    Ok(source)
}
