//! A layer: a tar file, plain or compressed with gzip. A first pass checks every entry, a second
//! one removes what the layer hides, a third one writes.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use crate::archive::MAX_EXTENSION;
use crate::entry::{self, Kind};
use crate::write::Writer;
use crate::{Limits, Result, refused, system};

/// What layers have used of the limits.
pub(crate) struct Used {
    limits: Limits,
    bytes: u64,
    entries: u64,
}

impl Used {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            limits: *limits,
            bytes: 0,
            entries: 0,
        }
    }

    /// A copy, for a pass that writes nothing.
    pub(crate) fn remaining(other: &Self) -> Self {
        Self { ..*other }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn entries(&self) -> u64 {
        self.entries
    }

    fn add(&mut self, bytes: u64) -> Result<()> {
        self.bytes = self.bytes.saturating_add(bytes);
        self.entries += 1;
        let Limits { bytes, entries } = self.limits;
        if self.bytes > bytes {
            return Err(refused(
                "a layer",
                format!("the files are larger than {bytes} bytes together"),
            ));
        }
        if self.entries > entries {
            return Err(refused(
                "a layer",
                format!("there are more than {entries} entries"),
            ));
        }
        Ok(())
    }
}

/// Unpacks one layer that is in memory, without limits of its own. For tests of hostile layers.
///
/// # Errors
/// A broken or hostile layer, or a system error.
pub fn unpack_layer(layer: &[u8], root: &Path, limits: &Limits) -> Result<()> {
    check(layer, &mut Used::new(limits))?;
    let root = File::open(root).map_err(system(format!("open {}", root.display())))?;
    hide(layer, &root)?;
    unpack(layer, &root, &mut Used::new(limits))
}

/// Decompresses a layer if its first bytes say so.
fn decompress<'a>(layer: impl Read + 'a) -> Result<Box<dyn Read + 'a>> {
    let mut layer = BufReader::new(layer);
    let begin = layer.fill_buf().map_err(system("read a layer"))?;
    if begin.starts_with(&[0x1f, 0x8b]) {
        return Ok(Box::new(MultiGzDecoder::new(layer)));
    }
    if begin.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        return Err(refused(
            "a layer",
            "it is compressed with zstd: write the archive with gzip",
        ));
    }
    Ok(Box::new(layer))
}

#[expect(clippy::needless_pass_by_value, reason = "fits `map_err`")]
fn broken(error: io::Error) -> crate::Error {
    refused("a layer", format!("it is broken: {error}"))
}

/// Checks every entry, without a write.
pub(crate) fn check(layer: impl Read, used: &mut Used) -> Result<()> {
    // The reader keeps long names in memory, so their sizes are checked first, entry by entry.
    let limits = used.limits;
    let decompressed = decompress(layer)?;
    // Headers and padding count too: a layer of empty entries has no end otherwise.
    let most = limits
        .bytes
        .saturating_add(limits.entries.saturating_mul(2048));
    let mut tar = tar::Archive::new(decompressed.take(most));
    for entry in tar.entries().map_err(broken)?.raw(true) {
        let mut entry = entry.map_err(broken)?;
        let kind = entry.header().entry_type();
        let size = entry.header().entry_size().map_err(broken)?;
        let is_extension = kind.is_gnu_longname()
            || kind.is_gnu_longlink()
            || kind.is_pax_local_extensions()
            || kind.is_pax_global_extensions();
        if is_extension {
            if size > MAX_EXTENSION {
                return Err(refused(
                    "a layer",
                    format!("a name or header has {size} bytes"),
                ));
            }
            used.add(0)?;
            if kind.is_pax_local_extensions() {
                refuse_size(&mut entry)?;
            }
            continue;
        }
        let gnu = entry.header().as_gnu();
        if kind.is_gnu_sparse() && gnu.is_some_and(tar::GnuHeader::is_extended) {
            // The second pass finds the next entry behind the further headers, this one does not.
            let cause = "a sparse file has more than four parts";
            return Err(refused("a layer", cause));
        }
        // Names in extensions are checked when the entry is written.
        entry::check(&entry)?;
        used.add(size)?;
    }
    Ok(())
}

/// Refuses extended headers with a size. With it, the second pass would find the next entry at
/// another place than the first one, and read entries that nobody has checked.
fn refuse_size(headers: &mut impl Read) -> Result<()> {
    let mut text = Vec::new();
    let read = headers.take(MAX_EXTENSION).read_to_end(&mut text);
    read.map_err(broken)?;
    let mut headers = tar::PaxExtensions::new(&text);
    // The second pass ends at a broken header too.
    if headers.any(|header| header.is_ok_and(|header| header.key_bytes() == b"size")) {
        let cause = "an extended header has the size of a file";
        return Err(refused("a layer", cause));
    }
    Ok(())
}

/// Removes what a layer that [`check`] has accepted hides of the layers below. It hides nothing of
/// its own, wherever the entries are, so this comes before [`unpack`].
pub(crate) fn hide(layer: impl Read, root: &File) -> Result<()> {
    let writer = Writer::new(root);
    let mut tar = tar::Archive::new(decompress(layer)?);
    for entry in tar.entries().map_err(broken)? {
        let mut entry = entry.map_err(broken)?;
        let (path, kind) = entry::check(&entry)?;
        if kind.hides() {
            writer.write(&path, kind, &mut entry)?;
        }
    }
    Ok(())
}

/// Unpacks a layer that [`check`] has accepted.
pub(crate) fn unpack(layer: impl Read, root: &File, used: &mut Used) -> Result<()> {
    let writer = Writer::new(root);
    let mut tar = tar::Archive::new(decompress(layer)?);
    for entry in tar.entries().map_err(broken)? {
        let mut entry = entry.map_err(broken)?;
        let (path, kind) = entry::check(&entry)?;
        let is_file = kind == Kind::File;
        let size = if is_file { entry.size() } else { 0 };
        used.add(size)?;
        if !kind.hides() {
            writer.write(&path, kind, &mut entry)?;
        }
    }
    Ok(())
}
