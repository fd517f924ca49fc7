//! Reads files that hold secrets. Refuses a file to which other users have access.

use std::fmt::Write as _;
use std::fs::{Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::fcntl::OFlag;
use nix::unistd::geteuid;

/// Longest file, bytes. A key file is far shorter.
const MAX_BYTES: u64 = 64 * 1024;

/// As in crypttab(5): this name asks for a new random key.
const RANDOM: &str = "/dev/urandom";

/// Reads the text of the file at `path`. Returns `None` if there is no such file. For [`RANDOM`],
/// makes a key of 256 bits in hexadecimal digits.
///
/// # Errors
/// The file cannot be read or is too long; the file's group or others have access; neither the user
/// nor root owns the file. The error names the file and the remedy.
pub(crate) fn read(path: &Path) -> Result<Option<String>, String> {
    match read_text(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

fn read_text(path: &Path) -> io::Result<String> {
    if path == Path::new(RANDOM) {
        return make_random_key();
    }
    // Checks the open file, because another process may replace the file at the path. Opening a
    // pipe must not block.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if !metadata.is_file() {
        return Err(io::Error::other(
            "the path is not a regular file: name a key file",
        ));
    }
    let users = [geteuid().as_raw(), find_sudo_user().unwrap_or(0), 0];
    if let Some(fault) = find_access_fault(path, &metadata, &users) {
        return Err(io::Error::other(fault));
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(io::Error::other(format!(
            "the file is longer than {MAX_BYTES} bytes, so it is no key file: name a key file"
        )));
    }
    // The library's error would contain the bytes.
    String::from_utf8(bytes).map_err(|_| {
        io::Error::other("the file is not text (UTF-8): write keys in hexadecimal digits")
    })
}

fn make_random_key() -> io::Result<String> {
    let mut key = [0_u8; 32];
    std::fs::File::open(RANDOM)?.read_exact(&mut key)?;
    let mut digits = String::with_capacity(2 * key.len());
    for byte in key {
        let _ = write!(digits, "{byte:02x}");
    }
    Ok(digits)
}

/// Returns the user who called sudo, if this process is root.
fn find_sudo_user() -> Option<u32> {
    let user = std::env::var("SUDO_UID")
        .ok()
        .filter(|_| geteuid().is_root());
    user?.parse().ok()
}

/// Describes the fault in the access rights of a file with secrets, and the remedy. One of `users`
/// must own the file.
fn find_access_fault(path: &Path, metadata: &Metadata, users: &[u32]) -> Option<String> {
    let owner = metadata.uid();
    if !users.contains(&owner) {
        return Some(format!(
            "the file holds keys and belongs to user {owner}, neither to you nor to root: make a copy that \
             no other user can read, and name the copy"
        ));
    }
    let mode = metadata.mode() & 0o7777;
    (mode & 0o077 != 0).then(|| {
        format!(
            "the file holds keys, and mode {mode:04o} gives other users access: `chmod 600 {}`, and replace \
             keys that others may have read",
            path.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn each_random_key_differs() {
        let read = || read(Path::new(RANDOM)).unwrap().unwrap();
        let key = read();
        assert!(key.len() == 64 && key.bytes().all(|digit| digit.is_ascii_hexdigit()));
        assert_ne!(key, read());
    }

    #[test]
    fn a_file_with_access_for_others_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tactile.key");
        fs::write(&path, "secret").unwrap();
        for (mode, is_safe) in [
            (0o600, true),
            (0o400, true),
            (0o700, true),
            (0o640, false),
            (0o604, false),
            (0o620, false),
            (0o601, false),
        ] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            match read(&path) {
                Ok(text) => assert!(is_safe && text.as_deref() == Some("secret"), "{mode:o}"),
                Err(message) => {
                    assert!(!is_safe, "{mode:o}: {message}");
                    for part in ["tactile.key", &format!("{mode:04o}"), "chmod 600"] {
                        assert!(message.contains(part), "{message}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_file_of_another_user_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tactile.key");
        fs::write(&path, "secret").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        let metadata = fs::metadata(&path).unwrap();
        let owner = metadata.uid();
        let fault = |users: &[u32]| find_access_fault(&path, &metadata, users);
        assert_eq!(fault(&[owner + 1, owner]), None);
        let fault = fault(&[owner + 1]).unwrap();
        assert!(
            fault.contains(&format!("user {owner}")) && !fault.contains("chmod"),
            "{fault}"
        );
    }

    #[test]
    fn a_directory_and_a_pipe_are_refused_without_blocking() {
        let directory = tempfile::tempdir().unwrap();
        let refused = |path: &Path| read(path).unwrap_err();
        let refusal = refused(directory.path());
        assert!(refusal.contains("is a directory"), "{refusal}");
        assert_eq!(read(&directory.path().join("none")), Ok(None));
        let pipe = directory.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(refused(&pipe).contains("not a regular file"));
        let refusal = refused(&pipe.join("below"));
        assert!(
            refusal.contains("below") && refusal.contains("ot a directory"),
            "{refusal}"
        );
    }

    #[test]
    fn long_and_binary_files_are_refused_with_the_cause() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tactile.key");
        let write_and_read = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
            read(&path)
        };
        let longest = vec![b'#'; MAX_BYTES as usize];
        assert_eq!(
            write_and_read(&longest).unwrap().unwrap().len(),
            longest.len()
        );
        let refusal = write_and_read(&[&longest[..], b"#"].concat()).unwrap_err();
        assert!(refusal.contains("longer than 65536 bytes"), "{refusal}");
        let refusal = write_and_read(&[b'5', 0xff]).unwrap_err();
        assert!(
            refusal.contains("tactile.key: the file is not text"),
            "{refusal}"
        );
    }
}
