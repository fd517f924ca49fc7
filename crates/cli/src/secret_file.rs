//! Reads files that hold secrets, if nobody else can.

use std::fs::{Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::fcntl::OFlag;
use nix::unistd::geteuid;

/// Longest file that is read, bytes: a key file is far shorter.
const LONGEST: u64 = 64 * 1024;

/// Why a file was not read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    /// It cannot be read, whoever it belongs to.
    Unreadable,
    /// Others have access to it; the text names the file, what is wrong and what to do.
    Unsafe(String),
}

impl From<io::Error> for Unread {
    fn from(_: io::Error) -> Self {
        Self::Unreadable
    }
}

/// Who names this file wants a key that nobody has seen, as in crypttab(5).
const RANDOM: &str = "/dev/urandom";

/// The text of the file at `path`; of [`RANDOM`], a key of 256 bits in hexadecimal digits.
///
/// # Errors
/// Its group or others have access to it, or it belongs to neither the user nor root.
pub(crate) fn read(path: &Path) -> Result<String, Unread> {
    if path == Path::new(RANDOM) {
        return Ok(random_key()?);
    }
    // What is checked is what is open, not what the path may lead to a moment later. A pipe must not hold anybody up.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(Unread::Unreadable);
    }
    let users = [geteuid().as_raw(), behind_sudo().unwrap_or(0), 0];
    if let Some(fault) = fault(&metadata, &users) {
        let path = path.display();
        return Err(Unread::Unsafe(format!(
            "{path}: {fault}: `chmod 600 {path}`"
        )));
    }
    let mut text = String::new();
    file.take(LONGEST).read_to_string(&mut text)?;
    Ok(text)
}

fn random_key() -> io::Result<String> {
    let mut key = [0_u8; 32];
    std::fs::File::open(RANDOM)?.read_exact(&mut key)?;
    Ok(key.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Who called sudo, which made this process root's.
fn behind_sudo() -> Option<u32> {
    let user = std::env::var("SUDO_UID")
        .ok()
        .filter(|_| geteuid().is_root());
    user?.parse().ok()
}

/// What is wrong with the access to a file with secrets that may belong to one of `users`.
fn fault(metadata: &Metadata, users: &[u32]) -> Option<String> {
    let mode = metadata.mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Some(format!(
            "the file holds keys and its mode is {mode:04o}, so others than its owner have access to it; think of the keys as known \
             to others, or take the access away"
        ));
    }
    let owner = metadata.uid();
    (!users.contains(&owner)).then(|| {
        format!(
            "the file holds keys and belongs to the user with number {owner}, neither to you nor to root; name a copy of your own, \
             and let nobody else have access to it"
        )
    })
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_random_key_is_another_one_each_time() {
        let read = || read(Path::new(RANDOM)).unwrap();
        let key = read();
        assert!(key.len() == 64 && key.bytes().all(|digit| digit.is_ascii_hexdigit()));
        assert_ne!(key, read());
    }

    #[test]
    fn only_the_owner_may_have_access() {
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
                Ok(text) => assert!(is_safe && text == "secret", "{mode:o}"),
                Err(Unread::Unsafe(message)) => {
                    assert!(!is_safe, "{mode:o}: {message}");
                    for part in ["tactile.key", &format!("{mode:04o}"), "chmod 600"] {
                        assert!(message.contains(part), "{message}");
                    }
                }
                Err(Unread::Unreadable) => panic!("{mode:o}"),
            }
        }
    }

    #[test]
    fn it_belongs_to_the_user_or_to_root() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tactile.key");
        fs::write(&path, "secret").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        let metadata = fs::metadata(&path).unwrap();
        let owner = metadata.uid();
        assert_eq!(fault(&metadata, &[owner + 1, owner]), None);
        let fault = fault(&metadata, &[owner + 1]).unwrap();
        assert!(fault.contains(&owner.to_string()), "{fault}");
    }

    #[test]
    fn what_is_no_file_is_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(read(directory.path()), Err(Unread::Unreadable));
        assert_eq!(
            read(&directory.path().join("none")),
            Err(Unread::Unreadable)
        );
        let pipe = directory.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(read(&pipe), Err(Unread::Unreadable));
    }
}
