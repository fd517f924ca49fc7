//! Reads files that hold secrets, if nobody else can.

use std::fmt::Write as _;
use std::fs::{Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::fcntl::OFlag;
use nix::unistd::geteuid;

/// Longest file that is read, bytes: a key file is far shorter.
const LONGEST: u64 = 64 * 1024;

/// Who names this file wants a key that nobody has seen, as in crypttab(5).
const RANDOM: &str = "/dev/urandom";

/// The text of the file at `path`, `None` when there is none; of [`RANDOM`], a key of 256 bits in hexadecimal digits.
///
/// # Errors
/// It cannot be read, is too long, its group or others have access to it, or it belongs to neither the user nor root. The error
/// names the file and says what to do.
pub(crate) fn read(path: &Path) -> Result<Option<String>, String> {
    match read_text(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

fn read_text(path: &Path) -> io::Result<String> {
    if path == Path::new(RANDOM) {
        return random_key();
    }
    // What is checked is what is open, not what the path may lead to a moment later. A pipe must not hold anybody up.
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
            "it is no regular file; name one that holds keys",
        ));
    }
    let users = [geteuid().as_raw(), behind_sudo().unwrap_or(0), 0];
    if let Some(fault) = fault(path, &metadata, &users) {
        return Err(io::Error::other(fault));
    }
    let mut bytes = Vec::new();
    file.take(LONGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LONGEST {
        return Err(io::Error::other(format!(
            "it is longer than {LONGEST} bytes, so no file of keys; name one that is"
        )));
    }
    // The error of the library would hold the bytes.
    String::from_utf8(bytes)
        .map_err(|_| io::Error::other("it is not text (UTF-8); write keys in hexadecimal digits"))
}

fn random_key() -> io::Result<String> {
    let mut key = [0_u8; 32];
    std::fs::File::open(RANDOM)?.read_exact(&mut key)?;
    let mut digits = String::with_capacity(2 * key.len());
    for byte in key {
        let _ = write!(digits, "{byte:02x}");
    }
    Ok(digits)
}

/// Who called sudo, which made this process root's.
fn behind_sudo() -> Option<u32> {
    let user = std::env::var("SUDO_UID")
        .ok()
        .filter(|_| geteuid().is_root());
    user?.parse().ok()
}

/// What is wrong with the access to a file with secrets that may belong to one of `users`, and what to do.
fn fault(path: &Path, metadata: &Metadata, users: &[u32]) -> Option<String> {
    let owner = metadata.uid();
    if !users.contains(&owner) {
        return Some(format!(
            "the file holds keys and belongs to the user with number {owner}, neither to you nor to root; name a copy of your own, \
             and let nobody else have access to it"
        ));
    }
    let mode = metadata.mode() & 0o7777;
    (mode & 0o077 != 0).then(|| {
        format!(
            "the file holds keys and its mode is {mode:04o}, so others than its owner have access to it; think of the keys as known \
             to others, or take the access away: `chmod 600 {}`",
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
    fn a_random_key_is_another_one_each_time() {
        let read = || read(Path::new(RANDOM)).unwrap().unwrap();
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
    fn it_belongs_to_the_user_or_to_root() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tactile.key");
        fs::write(&path, "secret").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        let metadata = fs::metadata(&path).unwrap();
        let owner = metadata.uid();
        let fault = |users: &[u32]| fault(&path, &metadata, users);
        assert_eq!(fault(&[owner + 1, owner]), None);
        let fault = fault(&[owner + 1]).unwrap();
        assert!(
            fault.contains(&format!("number {owner}")) && !fault.contains("chmod"),
            "{fault}"
        );
    }

    #[test]
    fn what_is_no_file_is_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let refused = |path: &Path| read(path).unwrap_err();
        let refusal = refused(directory.path());
        assert!(refusal.contains("is a directory"), "{refusal}");
        assert_eq!(read(&directory.path().join("none")), Ok(None));
        let pipe = directory.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(refused(&pipe).contains("no regular file"));
        let refusal = refused(&pipe.join("below"));
        assert!(
            refusal.contains("below") && refusal.contains("ot a directory"),
            "{refusal}"
        );
    }

    #[test]
    fn what_is_no_file_of_keys_is_refused_as_what_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tactile.key");
        let read_of = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
            read(&path)
        };
        let longest = vec![b'#'; LONGEST as usize];
        assert_eq!(read_of(&longest).unwrap().unwrap().len(), longest.len());
        let refusal = read_of(&[&longest[..], b"#"].concat()).unwrap_err();
        assert!(refusal.contains("longer than 65536 bytes"), "{refusal}");
        let refusal = read_of(&[b'5', 0xff]).unwrap_err();
        assert!(refusal.contains("tactile.key: it is not text"), "{refusal}");
    }
}
