//! Programs of the distribution.

use std::path::PathBuf;

use crate::Error;

/// Directories of packages' programs that a user's PATH may lack.
const DIRECTORIES: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Finds a program as a shell does.
pub(crate) fn find_program(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(std::env::split_paths(DIRECTORIES))
        .map(|directory| directory.join(program))
        .find(|file| file.is_file())
}

/// Finds a program of a package. The error names the package.
pub(crate) fn find_packaged(program: &str, package: &str) -> Result<PathBuf, Error> {
    find_program(program).ok_or_else(|| Error::Peer {
        peer: program.to_owned(),
        reason: format!("it is not installed; Debian's and Ubuntu's package is {package}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_program_is_named_with_its_package() {
        assert!(find_packaged("sh", "dash").is_ok());
        let error = find_packaged("my-none", "my-package").unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("my-none") && text.contains("package is my-package"),
            "{text}"
        );
    }
}
