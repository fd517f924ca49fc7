//! Writes a page to a file, completely or not at all. Refuses a bad path before the measurement.

use std::fs::Permissions;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use myelin_api::ApiError;
use tempfile::NamedTempFile;

/// The path of a page.
#[derive(Debug)]
pub(crate) struct Page(PathBuf);

impl Page {
    /// Checks that a page can be written to the path.
    ///
    /// # Errors
    /// The path is a directory or a device, or no file can be created in its directory.
    pub(crate) fn at(path: &Path) -> Result<Self, ApiError> {
        let refused = |cause: io::Error| {
            ApiError::usage(format!(
                "{}: cannot write there: {cause}; name a file in a directory that you can write to",
                path.display()
            ))
        };
        // A page replaces the target of a link, not the link.
        let target = match path.canonicalize() {
            Ok(target) if !target.is_file() => {
                return Err(refused(io::Error::other("the path is not a regular file")));
            }
            Ok(target) => target,
            Err(_) => path.to_owned(),
        };
        if target.file_name().is_none() {
            return Err(refused(io::Error::other("the path names no file")));
        }
        let page = Self(target);
        page.create_draft().map_err(refused)?;
        Ok(page)
    }

    /// Writes the page in one step.
    pub(crate) fn write(&self, text: &str) -> Result<(), ApiError> {
        let write = || -> io::Result<()> {
            let mut draft = self.create_draft()?;
            draft.write_all(text.as_bytes())?;
            draft.persist(&self.0).map_err(|error| error.error)?;
            Ok(())
        };
        write().map_err(|cause| {
            ApiError::failed(format!("cannot write {}: {cause}", self.0.display()))
        })
    }

    /// Creates a temporary file in the page's directory, with the mode of any new file. Dropping
    /// the draft removes the file.
    fn create_draft(&self) -> io::Result<NamedTempFile> {
        let directory = match self.0.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        // Without this check the error would name the temporary file.
        directory.metadata()?;
        tempfile::Builder::new()
            .prefix(".myelin-page")
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(directory)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn write_replaces_the_page_and_leaves_no_temporary_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("page.html");
        let link = directory.path().join("link.html");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        Page::at(&path).unwrap().write("one").unwrap();
        Page::at(&link).unwrap().write("two").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "two");
        assert!(link.is_symlink());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
    }

    #[test]
    fn the_error_for_an_unwritable_path_names_path_and_cause() {
        let directory = tempfile::tempdir().unwrap();
        for (path, cause) in [
            (
                directory.path().join("none/page.html"),
                "No such file or directory",
            ),
            (directory.path().to_owned(), "not a regular file"),
            ("/dev/null".into(), "not a regular file"),
            ("/".into(), "not a regular file"),
            (directory.path().join(".."), "not a regular file"),
        ] {
            let text = Page::at(&path).unwrap_err().to_string();
            assert!(
                text.contains(&*path.to_string_lossy()) && text.contains(cause),
                "{text}"
            );
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
