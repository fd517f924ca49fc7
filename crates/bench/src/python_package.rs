//! The Python package that belongs to a program `myelin`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Finds the package that `make install` puts next to the program, or that of the repository where
/// the program was built.
pub fn find_python_package(program: &Path) -> Option<PathBuf> {
    let mut directory = program.parent()?;
    // Tests lie one directory deeper than the program.
    if directory.ends_with("deps") {
        directory = directory.parent()?;
    }
    let prefix = directory.parent()?;
    let installed = prefix.join("lib/myelin/python");
    let built = prefix
        .parent()
        .map(|repository| repository.join("python/src"));
    let mut candidates = [Some(installed), built].into_iter().flatten();
    candidates.find(|directory| directory.join("myelin/shell.py").is_file())
}

/// Returns a `PYTHONPATH` where Python searches a directory first.
pub fn prepend_to_search_path(directory: &Path) -> OsString {
    let mut path = directory.as_os_str().to_owned();
    if let Some(others) = std::env::var_os("PYTHONPATH").filter(|others| !others.is_empty()) {
        path.push(":");
        path.push(others);
    }
    path
}
