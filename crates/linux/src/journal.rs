//! Records each resource before a process makes the resource, so that a later process can remove
//! the resource after `kill -9` at any point.
//!
//! The journal is an append-only file with one record per line. One system call writes the line
//! before the process makes the resource. So each existing resource has a record, and a recorded
//! resource may or may not exist. A removal can therefore be repeated. A removal never removes
//! another program's resource, because a namespace names its owner, a process has its start time,
//! and only this run uses the link's name.

mod removal;
mod resource;
#[cfg(test)]
mod tests;

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};

pub use removal::remove;
pub use resource::{ForeignLink, Resource};

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum JournalRecord {
    Intended(Resource),
    Removed(Resource),
}

/// An open journal file. Clones write to the same file.
#[derive(Debug, Clone)]
pub struct Journal(Arc<OpenJournal>);

#[derive(Debug)]
struct OpenJournal {
    path: PathBuf,
    records: Mutex<JournalState>,
}

#[derive(Debug)]
struct JournalState {
    file: File,
    /// Length of the complete records, bytes.
    len: u64,
    /// Whether the file may have a part of a record behind them.
    is_torn: bool,
    /// Resources that may exist, oldest first.
    live: Vec<Resource>,
}

/// A resource that this process made. The drop of the guard removes the resource and records the
/// removal. If the removal fails, the resource stays in the journal, and `down --all` tries again.
#[derive(Debug)]
pub struct ResourceGuard {
    journal: Journal,
    /// `None` after [`Self::forget`].
    resource: Option<Resource>,
}

impl ResourceGuard {
    /// Records the removal without removing the resource, because the resource no longer exists or
    /// belongs to another program.
    pub fn forget(mut self) {
        let recorded = self
            .resource
            .take()
            .map(|resource| self.journal.record_removal(&resource));
        if let Some(Err(error)) = recorded {
            tracing::warn!(%error, "cannot record a removal; the journal keeps a resource that no longer exists");
        }
    }
}

/// Guards of resources. The drop removes the newest resource first.
#[derive(Debug, Default)]
pub struct ResourceGuards(pub Vec<ResourceGuard>);

impl ResourceGuards {
    /// Removes one of the resources now.
    pub fn release(&mut self, resource: &Resource) {
        self.0
            .retain(|guard| guard.resource.as_ref() != Some(resource));
    }
}

impl Drop for ResourceGuards {
    fn drop(&mut self) {
        while self.0.pop().is_some() {}
    }
}

impl Drop for ResourceGuard {
    fn drop(&mut self) {
        let Some(resource) = &self.resource else {
            return;
        };
        if let Err(error) = remove(resource).and_then(|()| self.journal.record_removal(resource)) {
            tracing::warn!(?resource, %error, "cannot remove the resource; `myelin down --all` tries again");
        }
    }
}

impl Journal {
    /// Opens the journal at `path`, with the records of an earlier process. Creates the file and
    /// its directory if they are missing.
    pub fn open(path: &Path) -> Result<Self> {
        let failed =
            |error: io::Error| Error::os(format!("open journal {}", path.display()), error);
        if let Some(directory) = path.parent() {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(directory)
                .map_err(failed)?;
        }
        let mut options = OpenOptions::new();
        let mut file = options
            .read(true)
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path)
            .map_err(failed)?;
        let mut text = String::new();
        file.seek(SeekFrom::Start(0))
            .and_then(|_| file.read_to_string(&mut text))
            .map_err(failed)?;
        let live = parse(path, &text)?;
        // No process made the resource of an incomplete line. Cut the line, so that the next record
        // starts a new line.
        let complete = text.rfind('\n').map_or(0, |end| end + 1);
        if complete < text.len() {
            file.set_len(complete as u64).map_err(failed)?;
        }
        Ok(Self(Arc::new(OpenJournal {
            path: path.to_owned(),
            records: Mutex::new(JournalState {
                file,
                len: complete as u64,
                is_torn: false,
                live,
            }),
        })))
    }

    /// Records `resource`. Call this method before you make the resource.
    pub fn record_intent(&self, resource: &Resource) -> Result<()> {
        let mut records = self.records();
        self.append(&mut records, &JournalRecord::Intended(resource.clone()))?;
        records.live.push(resource.clone());
        Ok(())
    }

    /// Records `resource`, then makes the resource with `make`. If `make` fails, only records the
    /// removal, because an existing resource of that name belongs to another program.
    pub fn make<T, E: From<Error>>(
        &self,
        resource: Resource,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<(ResourceGuard, T), E> {
        let made = self.guard(resource)?;
        match make() {
            Ok(value) => Ok((made, value)),
            Err(error) => {
                made.forget();
                Err(error)
            }
        }
    }

    /// Records `resource`. The caller makes the resource afterwards. The drop of the guard removes
    /// the resource, even if the caller has made only a part of the resource.
    pub fn guard(&self, resource: Resource) -> Result<ResourceGuard> {
        self.record_intent(&resource)?;
        Ok(ResourceGuard {
            journal: self.clone(),
            resource: Some(resource),
        })
    }

    /// Records that `resource` is removed.
    pub fn record_removal(&self, resource: &Resource) -> Result<()> {
        let mut records = self.records();
        if let Some(position) = records.live.iter().rposition(|live| live == resource) {
            self.append(&mut records, &JournalRecord::Removed(resource.clone()))?;
            records.live.remove(position);
        }
        Ok(())
    }

    /// Returns the resources that may exist, in the order of removal: newest first.
    pub fn replay(&self) -> Vec<Resource> {
        self.records().live.iter().rev().cloned().collect()
    }

    fn records(&self) -> MutexGuard<'_, JournalState> {
        // A record takes one system call and one change of the list. A panic between these steps
        // only causes a second removal, so a poisoned lock is safe to use.
        self.0
            .records
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes all resources that may exist, then the journal. After a failure, continues with the
    /// other resources and returns the first error. A resource that is not removed stays in the
    /// journal. A full disk that cannot record a removal is no failure, because the journal ends or
    /// a later process repeats the removal.
    pub fn remove_all(&self) -> Result<()> {
        let mut outcome = Ok(());
        for resource in self.replay() {
            let done = remove(&resource);
            if done.is_ok()
                && let Err(error) = self.record_removal(&resource)
            {
                tracing::debug!(?resource, %error, "cannot record a removal");
            }
            outcome = outcome.and(done);
        }
        outcome?;
        let path = &self.0.path;
        fs::remove_file(path)
            .map_err(|error| Error::os(format!("remove journal {}", path.display()), error))
    }

    fn append(&self, records: &mut JournalState, record: &JournalRecord) -> Result<()> {
        let failed = |error| Error::os(format!("write journal {}", self.0.path.display()), error);
        let mut line =
            serde_json::to_string(record).map_err(|error| failed(io::Error::from(error)))?;
        line.push('\n');
        records.append(line.as_bytes()).map_err(failed)
    }
}

impl JournalState {
    /// Appends a line. A full disk may take a part of the line: cuts that part, so that the next
    /// record starts a new line.
    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        self.cut_torn_record()?;
        // No fsync: the journal must survive this process, but no recorded resource survives a
        // restart of the machine.
        if let Err(error) = self.file.write_all(line) {
            self.is_torn = true;
            // If this fails, the next record tries again.
            let _ = self.cut_torn_record();
            return Err(error);
        }
        self.len += line.len() as u64;
        Ok(())
    }

    fn cut_torn_record(&mut self) -> io::Result<()> {
        if self.is_torn {
            self.file.set_len(self.len)?;
            self.is_torn = false;
        }
        Ok(())
    }
}

/// Returns the resources that may exist according to the records, oldest first.
fn parse(path: &Path, text: &str) -> Result<Vec<Resource>> {
    let mut live = Vec::new();
    let complete = text.rfind('\n').map_or("", |end| &text[..end]);
    for (number, line) in complete.lines().enumerate() {
        match serde_json::from_str(line) {
            Ok(JournalRecord::Intended(resource)) => live.push(resource),
            Ok(JournalRecord::Removed(resource)) => {
                if let Some(position) = live.iter().rposition(|other| *other == resource) {
                    live.remove(position);
                }
            }
            Err(error) => {
                let action = format!("read line {} of journal {}", number + 1, path.display());
                return Err(Error::new(action, ErrorKind::Invalid, error.to_string())
                    .remedy("remove the resources that the file lists, then remove the file"));
            }
        }
    }
    Ok(live)
}
