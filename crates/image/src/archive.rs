//! The outer archive: its files by name, and their digests.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Take};

use aws_lc_rs::digest::{Context, SHA256};

use crate::{Result, refused, system};

/// Most files of an archive.
const MAX_FILES: usize = 10_000;
/// Longest JSON document, bytes.
const MAX_JSON: u64 = 4 << 20;
/// Most bytes of an entry's own name, which the reader keeps in memory.
pub(crate) const MAX_EXTENSION: u64 = 1 << 20;

/// An archive whose files are read in any order.
pub(crate) struct Archive<R> {
    reader: R,
    /// Begin and length of each file.
    files: BTreeMap<String, (u64, u64)>,
}

impl<R: Read + Seek> Archive<R> {
    /// Lists the files.
    pub(crate) fn open(mut reader: R) -> Result<Self> {
        let mut magic = [0; 2];
        let begin = reader.read(&mut magic).and_then(|count| {
            reader.rewind()?;
            Ok(count)
        });
        let begin = begin.map_err(system("read the archive"))?;
        if begin == 2 && magic == [0x1f, 0x8b] {
            return Err(refused(
                "the archive",
                "it is compressed: run `gunzip` on it first",
            ));
        }
        let mut files = BTreeMap::new();
        let mut tar = tar::Archive::new(reader);
        let broken =
            |error: io::Error| refused("the archive", format!("it is no tar file: {error}"));
        for entry in tar.entries_with_seek().map_err(broken)?.raw(true) {
            let entry = entry.map_err(broken)?;
            let kind = entry.header().entry_type();
            let size = entry.header().entry_size().map_err(broken)?;
            if kind.is_gnu_longname() || kind.is_pax_local_extensions() {
                // The names of an image's parts are short.
                return Err(refused(
                    "the archive",
                    "an entry has a long name or extended headers",
                ));
            }
            let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
            let name = name.trim_start_matches("./").to_owned();
            if kind.is_file()
                && files
                    .insert(name.clone(), (entry.raw_file_position(), size))
                    .is_some()
            {
                return Err(refused(name, "the archive has this file twice"));
            }
            if files.len() > MAX_FILES {
                return Err(refused(
                    "the archive",
                    format!("it has more than {MAX_FILES} files"),
                ));
            }
        }
        Ok(Self {
            reader: tar.into_inner(),
            files,
        })
    }

    /// Opens a file.
    fn file(&mut self, name: &str) -> Result<Take<&mut R>> {
        let found = self.files.get(name).copied();
        let (begin, length) = found.ok_or_else(|| refused(name, "the archive lacks this file"))?;
        let sought = self.reader.seek(SeekFrom::Start(begin));
        sought.map_err(system("read the archive"))?;
        Ok(self.reader.by_ref().take(length))
    }

    /// Reads a JSON document.
    pub(crate) fn json<T: serde::de::DeserializeOwned>(&mut self, name: &str) -> Result<T> {
        let mut text = Vec::new();
        let read = self.file(name)?.take(MAX_JSON + 1).read_to_end(&mut text);
        read.map_err(system("read the archive"))?;
        if text.len() as u64 > MAX_JSON {
            return Err(refused(name, format!("it is longer than {MAX_JSON} bytes")));
        }
        serde_json::from_slice(&text).map_err(|error| refused(name, error.to_string()))
    }

    /// Reads a JSON document by its digest, which must match.
    pub(crate) fn json_blob<T: serde::de::DeserializeOwned>(&mut self, digest: &str) -> Result<T> {
        self.verify(digest)?;
        self.json(&blob_name(digest)?)
    }

    /// Opens a blob.
    pub(crate) fn blob(&mut self, digest: &str) -> Result<impl Read + '_> {
        Ok(BufReader::new(self.file(&blob_name(digest)?)?))
    }

    /// Compares a blob with its digest.
    pub(crate) fn verify(&mut self, digest: &str) -> Result<()> {
        let name = blob_name(digest)?;
        let mut blob = self.file(&name)?;
        let mut context = Context::new(&SHA256);
        let mut part = vec![0; 1 << 16];
        loop {
            match blob.read(&mut part).map_err(system("read the archive"))? {
                0 => break,
                count => context.update(&part[..count]),
            }
        }
        let mut found = String::new();
        for byte in context.finish().as_ref() {
            let _ = write!(found, "{byte:02x}");
        }
        if digest.ends_with(&found) {
            return Ok(());
        }
        Err(refused(
            name,
            "its content does not match its digest: the archive is broken",
        ))
    }
}

/// The name of a blob's file.
fn blob_name(digest: &str) -> Result<String> {
    let hex = digest.strip_prefix("sha256:").filter(|hex| {
        hex.len() == 64
            && hex
                .bytes()
                .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    });
    let hex = hex.ok_or_else(|| {
        refused(
            "a digest",
            format!("{digest:.80} is not of the form sha256:HEX"),
        )
    })?;
    Ok(format!("blobs/sha256/{hex}"))
}
