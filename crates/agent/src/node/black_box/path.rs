//! Finds the executable of a black box.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::node::confinement::PATH;

/// The `PATH` of a program with these variables.
pub(super) fn search_path(variables: &BTreeMap<String, String>) -> String {
    variables
        .get("PATH")
        .map_or_else(|| PATH.to_owned(), Clone::clone)
}

/// Finds an executable by path or name. The error gives the reason if no executable is found.
pub(super) fn find_executable(program: &str, search: &str) -> Result<PathBuf, String> {
    if program.contains('/') {
        let path = Path::new(program);
        return match inspect(path) {
            FileState::Executable => Ok(path.to_owned()),
            FileState::NotExecutable => Err(not_executable(path)),
            FileState::Missing => Err(format!("program {program} does not exist")),
        };
    }
    let mut refused = None;
    for directory in search.split(':').filter(|directory| !directory.is_empty()) {
        let path = Path::new(directory).join(program);
        match inspect(&path) {
            FileState::Executable => return Ok(path),
            FileState::NotExecutable => refused = refused.or(Some(path)),
            FileState::Missing => {}
        }
    }
    Err(refused.map_or_else(
        || {
            format!(
                "program `{program}` is not in PATH ({search}): install it, or write its whole path or \
                 `environment: {{ PATH: ... }}`"
            )
        },
        |path| not_executable(&path),
    ))
}

enum FileState {
    Executable,
    NotExecutable,
    Missing,
}

fn inspect(path: &Path) -> FileState {
    match path.metadata() {
        Ok(data) if data.is_file() && data.permissions().mode() & 0o111 != 0 => {
            FileState::Executable
        }
        Ok(_) => FileState::NotExecutable,
        Err(_) => FileState::Missing,
    }
}

fn not_executable(path: &Path) -> String {
    let path = path.display();
    format!("{path} is not an executable file: make it executable with `chmod +x`")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn file(path: &Path, mode: u32) {
        fs::write(path, "").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn find_returns_the_first_executable_in_path() {
        let one = tempfile::tempdir().unwrap();
        let two = tempfile::tempdir().unwrap();
        let search = format!(
            "/nowhere::{}:{}",
            one.path().display(),
            two.path().display()
        );
        let error = find_executable("box", &search).unwrap_err();
        assert!(error.contains("program `box` is not in PATH") && error.contains(&search));
        file(&one.path().join("box"), 0o644);
        let error = find_executable("box", &search).unwrap_err();
        assert!(error.contains("is not an executable file"), "{error}");
        file(&two.path().join("box"), 0o755);
        let found = two.path().join("box");
        assert_eq!(find_executable("box", &search), Ok(found.clone()));
        assert_eq!(find_executable(found.to_str().unwrap(), ""), Ok(found));
        assert!(
            find_executable("/nowhere/box", "")
                .unwrap_err()
                .contains("does not exist")
        );
        let directory = one.path().to_str().unwrap();
        assert!(
            find_executable(directory, "")
                .unwrap_err()
                .contains("not an executable")
        );
    }
}
