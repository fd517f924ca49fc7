//! An entry of a layer, checked: its path below the root, and its kind.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use tar::EntryType;

use crate::{Result, refused};

/// Longest path, bytes (`PATH_MAX`), and longest name (`NAME_MAX`).
const MAX_PATH: usize = 4096;
const MAX_NAME: usize = 255;
/// Deepest directory.
const MAX_DEPTH: usize = 128;
/// Begins the name of an entry that removes another one of a lower layer.
const WHITEOUT: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";

/// The components of a path below the root. Empty: the root itself.
pub(crate) type Components = Vec<OsString>;

/// What an entry makes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Directory,
    /// A symbolic link. The container resolves it in its own root.
    Symlink(OsString),
    /// Another name of a file.
    Link(Components),
    /// Removes the name in the same directory.
    Whiteout(OsString),
    /// Removes all that lower layers have in the directory.
    Opaque,
    /// Has no effect.
    Nothing,
}

impl Kind {
    /// Whether the entry removes files of lower layers.
    pub(crate) fn hides(&self) -> bool {
        matches!(self, Self::Whiteout(_) | Self::Opaque)
    }
}

/// Checks an entry. The path of a whiteout is that of its directory.
pub(crate) fn check<R: Read>(entry: &tar::Entry<'_, R>) -> Result<(Components, Kind)> {
    let path = entry.path_bytes();
    let place = String::from_utf8_lossy(&path)
        .chars()
        .take(200)
        .collect::<String>();
    let mut components = split(&path, &place)?;
    let target = || {
        let name = entry.link_name_bytes();
        name.filter(|name| !name.is_empty() && name.len() < MAX_PATH && !name.contains(&0))
            .ok_or_else(|| refused(&place, "the link has no target, or a bad one"))
    };
    let kind = match entry.header().entry_type() {
        EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => Kind::File,
        EntryType::Directory => Kind::Directory,
        EntryType::Symlink => Kind::Symlink(OsString::from_vec(target()?.into_owned())),
        EntryType::Link => Kind::Link(split(&target()?, &place)?),
        EntryType::XGlobalHeader => return Ok((Vec::new(), Kind::Nothing)),
        EntryType::Char | EntryType::Block => return Err(refused(place, "it is a device")),
        EntryType::Fifo => return Err(refused(place, "it is a pipe")),
        other => {
            return Err(refused(
                place,
                format!("it is of the unknown kind {:#x}", other.as_byte()),
            ));
        }
    };
    let Some(name) = components.last().cloned() else {
        // The root keeps its own rights.
        let is_root = kind == Kind::Directory;
        return if is_root {
            Ok((components, Kind::Nothing))
        } else {
            Err(refused(place, "it is the root itself"))
        };
    };
    if let Some(removed) = name.as_bytes().strip_prefix(WHITEOUT) {
        components.pop();
        return match removed {
            _ if name.as_bytes() == OPAQUE => Ok((components, Kind::Opaque)),
            b"" | b"." | b".." => Err(refused(place, "it removes no name")),
            removed => Ok((
                components,
                Kind::Whiteout(OsStr::from_bytes(removed).to_owned()),
            )),
        };
    }
    if matches!(&kind, Kind::Link(target) if target.is_empty()) {
        return Err(refused(place, "the link leads to the root itself"));
    }
    Ok((components, kind))
}

/// Splits a path into components, and refuses paths that lead out of the root.
fn split(path: &[u8], place: &str) -> Result<Components> {
    if path.first() == Some(&b'/') {
        return Err(refused(place, "the path begins at the root of the machine"));
    }
    if path.len() >= MAX_PATH || path.contains(&0) {
        return Err(refused(place, "the path is too long, or has a zero byte"));
    }
    let words = path.split(|byte| *byte == b'/');
    let components: Vec<&[u8]> = words
        .filter(|word| !word.is_empty() && *word != b".")
        .collect();
    if components.contains(&&b".."[..]) {
        return Err(refused(place, "the path leads out of its directory (`..`)"));
    }
    if components.len() > MAX_DEPTH || components.iter().any(|name| name.len() > MAX_NAME) {
        return Err(refused(
            place,
            "the path is too deep, or has a name that is too long",
        ));
    }
    Ok(components
        .into_iter()
        .map(|name| OsStr::from_bytes(name).to_owned())
        .collect())
}
