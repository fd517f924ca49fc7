//! The output of a black box or a container: a file in the run directory. The program writes to the
//! file directly, so the program can keep running when the agent dies.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use myelin_linux::journal::{Journal, Resource, ResourceGuard};

use crate::api::{ApiError, RunDir};

/// The agent shortens a longer log file.
const MAX_BYTES: u64 = 1 << 20;
/// Bytes at the end of the file that remain after shortening.
const KEPT_BYTES: u64 = 64 << 10;
/// Number of last lines that an error shows.
const LAST_LINES: usize = 5;

/// The log file of a black box or a container.
#[derive(Debug)]
pub(crate) struct Log {
    file: File,
    path: PathBuf,
    _made: ResourceGuard,
}

impl Log {
    /// Makes an empty file.
    pub(crate) fn create(
        run_dir: &RunDir,
        name: &str,
        journal: &Journal,
    ) -> Result<Self, ApiError> {
        let path = run_dir.path().join(format!("{name}.log"));
        let resource = Resource::File { path: path.clone() };
        let made = journal.guard(resource).map_err(ApiError::failed)?;
        // Only root can have put a file there, because the directory belongs to the agent.
        let opened = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .mode(0o600)
            .open(&path)
            .and_then(|file| file.set_len(0).map(|()| file));
        let file = opened.map_err(|error| {
            ApiError::failed(format!("cannot make {}: {error}", path.display()))
        })?;
        Ok(Self {
            file,
            path,
            _made: made,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a handle for the program. Writes append, also after the agent has shortened the
    /// file.
    pub(crate) fn handle(&self) -> Result<OwnedFd, ApiError> {
        self.file.try_clone().map(OwnedFd::from).map_err(|error| {
            ApiError::failed(format!(
                "cannot duplicate the file descriptor of {}: {error}",
                self.path.display()
            ))
        })
    }

    /// Returns the last lines that are not empty.
    pub(crate) fn last_lines(&self) -> Vec<String> {
        let text = String::from_utf8_lossy(&self.read_end(KEPT_BYTES)).into_owned();
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        let lines: Vec<&str> = lines.collect();
        let last = &lines[lines.len().saturating_sub(LAST_LINES)..];
        last.iter().map(|line| (*line).to_owned()).collect()
    }

    /// Describes the last lines, as the end of an error message.
    pub(crate) fn describe_end(&self) -> String {
        let lines = self.last_lines();
        if lines.is_empty() {
            return "the program wrote no output".to_owned();
        }
        format!("last output:\n  {}", lines.join("\n  "))
    }

    /// Returns the end of the output, at most [`MAX_BYTES`].
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.read_end(MAX_BYTES)).into_owned()
    }

    /// Shortens a file that is too long. Output written at the same moment may be lost.
    pub(crate) fn truncate(&self) {
        let is_long = self
            .file
            .metadata()
            .is_ok_and(|data| data.len() > MAX_BYTES);
        if is_long {
            let end = self.read_end(KEPT_BYTES);
            // A failure here is not reported, because the log is only a help.
            let _ = self
                .file
                .set_len(0)
                .and_then(|()| (&self.file).write_all(&end));
        }
    }

    fn read_end(&self, bytes: u64) -> Vec<u8> {
        let length = self.file.metadata().map_or(0, |data| data.len());
        let mut end = Vec::new();
        let mut file = &self.file;
        // After an error, return the part that was read.
        let _ = file
            .seek(SeekFrom::Start(length.saturating_sub(bytes)))
            .and_then(|_| file.take(bytes).read_to_end(&mut end));
        end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(directory: &Path) -> (Log, Journal) {
        let run_dir = RunDir::resolve(Some(directory));
        let journal = Journal::open(&run_dir.journal()).unwrap();
        (Log::create(&run_dir, "a.b.0", &journal).unwrap(), journal)
    }

    #[test]
    fn last_lines_skips_empty_lines_and_drop_removes_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let (log, journal) = log(directory.path());
        assert_eq!(log.describe_end(), "the program wrote no output");
        let mut program = File::from(log.handle().unwrap());
        program.write_all(b"1\n2\n3\n\n4\n5\n6").unwrap();
        let expected = "last output:\n  2\n  3\n  4\n  5\n  6";
        assert_eq!(log.describe_end(), expected);
        let path = log.path().to_owned();
        drop(log);
        assert!(!path.exists() && journal.replay().is_empty());
    }

    #[test]
    fn endless_output_does_not_fill_the_disk() {
        let directory = tempfile::tempdir().unwrap();
        let (log, _journal) = log(directory.path());
        let mut program = File::from(log.handle().unwrap());
        let line = [b"x".repeat(1023), b"\n".to_vec()].concat();
        for _ in 0..=MAX_BYTES / 1024 {
            program.write_all(&line).unwrap();
        }
        log.truncate();
        assert_eq!(log.file.metadata().unwrap().len(), KEPT_BYTES);
        program.write_all(b"last\n").unwrap();
        assert_eq!(log.file.metadata().unwrap().len(), KEPT_BYTES + 5);
        assert!(log.describe_end().ends_with("  last"));
    }
}
