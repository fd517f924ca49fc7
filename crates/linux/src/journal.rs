//! Records each resource before a process makes the resource, so that a later process can remove
//! the resource after `kill -9` at any point.
//!
//! The journal is an append-only file with one record per line. One system call writes the line
//! before the process makes the resource. So each existing resource has a record, and a recorded
//! resource may or may not exist. A removal can therefore be repeated. A removal never removes
//! another program's resource, because a namespace names its owner, a process has its start time,
//! and only this run uses the link's name.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::link::group::LinkGroup;
use crate::link::{Link, LinkId};
use crate::netlink::{Netlink, Request};
use crate::process::Process;
use crate::{bpffs, cgroup, htb, link, netns, procfs};

/// A resource that outlives the process that makes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Resource {
    /// A named network namespace, made by [`netns::Netns::create_owned`].
    Netns {
        /// Name under `/run/netns`.
        name: String,
        /// Owner that the creator recorded. A removal keeps a namespace of another owner.
        owner: String,
    },
    /// A link in the namespace of the process that removes it. For a veth, the kernel removes the
    /// other end too.
    Link {
        /// Name of the link. Only this run uses the name.
        name: String,
    },
    /// Many links in the namespace of the process that removes them.
    Links(LinkGroup),
    /// The promiscuous mode of another program's link, if the mode was off before this run.
    Promiscuous(ForeignLink),
    /// The qdisc that [`htb::create`] or [`crate::fq::create`] added to another program's link.
    Qdisc(ForeignLink),
    /// A mounted eBPF file system with its pinned objects.
    Bpffs {
        /// Mount point of the file system.
        path: PathBuf,
    },
    /// All processes with this argument, and their descendants. This record is for processes whose
    /// numbers are unknown before the start.
    Processes {
        /// A whole argument of the command line. Only this run uses the argument.
        argument: String,
    },
    /// A control group with all its processes and subgroups.
    Cgroup {
        /// Path of the group, `myelin-RUN/NAME`. Only this run uses `RUN`.
        path: String,
    },
    /// Hugepage files, in every hugetlbfs.
    HugePages {
        /// Prefix of the file names: DPDK's `--file-prefix`.
        prefix: String,
    },
    /// A file, a socket, or an object pinned in an eBPF file system.
    File {
        /// Path of the file.
        path: PathBuf,
    },
    /// A directory and its contents.
    Directory {
        /// Path of the directory.
        path: PathBuf,
    },
}

/// Another program's link. The other program may rename the link, and give the old name to another
/// link. So the index in the link's namespace identifies the link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForeignLink {
    /// Name of the link when the record was written.
    pub name: String,
    /// Interface index. `None` in a journal of an older version: the name identifies the link, in
    /// the namespace of the process that removes the resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ifindex: Option<u32>,
    /// Cookie of the link's network namespace ([`Netlink::namespace_cookie`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<u64>,
}

impl ForeignLink {
    /// Describes a link in the namespace of `netlink`.
    pub fn new(netlink: &Netlink, link: &Link) -> Result<Self> {
        Ok(Self {
            name: link.name.clone(),
            ifindex: Some(link.index),
            namespace: Some(netlink.namespace_cookie()?),
        })
    }

    /// Finds the link, with a socket in the link's namespace. Returns `None` if the link or the
    /// namespace does not exist, or if the namespace has no name.
    fn find(&self) -> Result<Option<(Netlink, Link)>> {
        let mut netlink = Netlink::open()?;
        if let Some(cookie) = self.namespace
            && netlink.namespace_cookie()? != cookie
        {
            match netns::find_by_cookie(cookie) {
                Some(namespace) => netlink = Netlink::open_in(&namespace)?,
                None => return Ok(None),
            }
        }
        let found = match self.ifindex {
            Some(index) => netlink.link_by_index(index),
            None => netlink.link(&self.name),
        };
        match found {
            Ok(link) => Ok(Some((netlink, link))),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Applies a change to the link, if the link still exists.
    fn change(
        &self,
        change: impl FnOnce(&mut Netlink, &LinkId) -> Result<Option<Request>>,
    ) -> Result<()> {
        let Some((mut netlink, link)) = self.find()? else {
            return Ok(());
        };
        let request = change(&mut netlink, &link.id())?;
        ignore_missing_link(netlink.apply(request))
    }
}

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
            records: Mutex::new(JournalState { file, live }),
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
    /// journal.
    pub fn remove_all(&self) -> Result<()> {
        let mut outcome = Ok(());
        for resource in self.replay() {
            let done = remove(&resource).and_then(|()| self.record_removal(&resource));
            if outcome.is_ok() {
                outcome = done;
            }
        }
        outcome?;
        let path = &self.0.path;
        fs::remove_file(path)
            .map_err(|error| Error::os(format!("remove journal {}", path.display()), error))
    }

    fn append(&self, records: &mut JournalState, record: &JournalRecord) -> Result<()> {
        let action = || format!("write journal {}", self.0.path.display());
        let mut line = serde_json::to_string(record)
            .map_err(|error| Error::os(action(), io::Error::from(error)))?;
        line.push('\n');
        // No fsync: the journal must survive this process, but no recorded resource survives a
        // restart of the machine.
        records
            .file
            .write_all(line.as_bytes())
            .map_err(|error| Error::os(action(), error))
    }
}

/// Removes a resource. Succeeds if the resource does not exist or belongs to another program.
pub fn remove(resource: &Resource) -> Result<()> {
    match resource {
        Resource::Netns { name, owner } => netns::delete_owned(name, owner).map(drop),
        Resource::Link { name } => delete_link(name),
        Resource::Links(group) => group.remove(),
        Resource::Promiscuous(link) => {
            link.change(|_, link| Ok(Some(link::set_promiscuous(link, false))))
        }
        // `own_qdisc` ignores another program's qdisc.
        Resource::Qdisc(link) => link.change(|netlink, link| {
            Ok(htb::own_qdisc(netlink, link)?.map(|kind| htb::delete(link, &kind)))
        }),
        Resource::Bpffs { path } => bpffs::unmount(path),
        Resource::Processes { argument } => {
            for pid in procfs::find_processes(|arguments| arguments.contains(argument))? {
                if pid != std::process::id()
                    && let Ok(process) = Process::of(pid)
                {
                    process.kill_tree()?;
                }
            }
            Ok(())
        }
        Resource::Cgroup { path } => cgroup::remove(path),
        Resource::HugePages { prefix } => remove_hugepages(prefix),
        Resource::File { path } => ignore_missing(fs::remove_file(path), "file", path),
        Resource::Directory { path } => ignore_missing(fs::remove_dir_all(path), "directory", path),
    }
}

/// Removes the hugepage files with this prefix. The kernel frees the memory of a file after the
/// last process that maps the file.
fn remove_hugepages(prefix: &str) -> Result<()> {
    let start = format!("{prefix}map_");
    for directory in procfs::find_mounts("hugetlbfs")? {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(&start) {
                ignore_missing(fs::remove_file(entry.path()), "file", &entry.path())?;
            }
        }
    }
    Ok(())
}

/// Removes a link of this run, if the link still exists.
fn delete_link(name: &str) -> Result<()> {
    let mut netlink = Netlink::open()?;
    let found = netlink.link(name);
    ignore_missing_link(found.and_then(|found| netlink.apply([link::delete(&found.id())])))
}

fn ignore_missing_link(outcome: Result<()>) -> Result<()> {
    match outcome {
        Err(error) if error.is_not_found() => Ok(()),
        other => other,
    }
}

fn ignore_missing(outcome: io::Result<()>, object: &str, path: &Path) -> Result<()> {
    match outcome {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::os(
            format!("remove {object} {}", path.display()),
            error,
        )),
        _ => Ok(()),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::VethEnd;
    use crate::netns::Netns;
    use crate::tests::{Child, Namespace, link_name, namespace_name, root_or_skip, stdout_of};
    use proptest::prelude::*;

    /// Removes the resources that a failed test leaves behind.
    struct Cleanup<'a>(&'a [Resource]);

    impl Drop for Cleanup<'_> {
        fn drop(&mut self) {
            for resource in self.0.iter().rev() {
                let _ = remove(resource);
            }
        }
    }

    fn file(number: u8) -> Resource {
        Resource::File {
            path: format!("/nowhere/{number}").into(),
        }
    }

    proptest! {
        /// After a cut at any byte, as `kill -9` causes, the journal contains a prefix of the
        /// records and can continue.
        #[test]
        fn a_journal_cut_at_any_byte_is_readable_and_continues(steps in prop::collection::vec((any::<bool>(), 0..4_u8), 0..20), cut in any::<prop::sample::Index>()) {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("run/journal");
            let journal = Journal::open(&path).unwrap();
            let mut states = vec![Vec::new()];
            for (make, number) in steps {
                let mut state: Vec<Resource> = states.last().unwrap().clone();
                if make {
                    journal.record_intent(&file(number)).unwrap();
                    state.push(file(number));
                } else {
                    journal.record_removal(&file(number)).unwrap();
                    if let Some(position) = state.iter().rposition(|live| *live == file(number)) {
                        state.remove(position);
                    }
                }
                let reversed: Vec<Resource> = state.iter().rev().cloned().collect();
                prop_assert_eq!(journal.replay(), reversed);
                states.push(state);
            }
            let text = fs::read(&path).unwrap();
            let cut = cut.index(text.len() + 1);
            fs::write(&path, &text[..cut]).unwrap();
            let journal = Journal::open(&path).unwrap();
            prop_assert!(states.contains(&journal.records().live));
            let mut expected = journal.records().live.clone();
            expected.push(file(9));
            journal.record_intent(&file(9)).unwrap();
            let again = Journal::open(&path).unwrap();
            prop_assert_eq!(&again.records().live, &expected);
        }
    }

    #[test]
    fn all_recorded_resources_are_removed_and_nothing_else() {
        if !root_or_skip("all_recorded_resources_are_removed_and_nothing_else") {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let below = |name: &str| directory.path().join(name);
        let journal = Journal::open(&below("journal")).unwrap();
        let (name, link) = (namespace_name("journal"), link_name('j'));
        let argument = format!("47{}.125", std::process::id());
        let mut marked = Child::spawn_sleep(&argument);
        let group = format!("myelin-t{}/journal", std::process::id());
        let resources = [
            Resource::Netns {
                name: name.clone(),
                owner: "run 1".into(),
            },
            Resource::Link { name: link.clone() },
            Resource::Bpffs { path: below("bpf") },
            Resource::Processes {
                argument: argument.clone(),
            },
            Resource::Cgroup {
                path: group.clone(),
            },
            Resource::File {
                path: below("file"),
            },
            Resource::Directory {
                path: below("directory"),
            },
        ];
        let _guard = Cleanup(&resources);
        for resource in &resources {
            journal.record_intent(resource).unwrap();
        }
        let namespace = Netns::create_owned(&name, "run 1").unwrap();
        let far = VethEnd {
            namespace: Some(&namespace),
            ..VethEnd::named("eth0")
        };
        Netlink::open()
            .unwrap()
            .apply([link::create_veth(&VethEnd::named(&link), &far).unwrap()])
            .unwrap();
        bpffs::mount(&below("bpf")).unwrap();
        cgroup::Cgroup::create(&group, &cgroup::Limits::default()).unwrap();
        fs::write(below("file"), "x").unwrap();
        fs::create_dir_all(below("directory/deeper")).unwrap();
        fs::write(below("other"), "x").unwrap();

        // Another process opens the journal, as after `kill -9`.
        drop(journal);
        let journal = Journal::open(&below("journal")).unwrap();
        assert_eq!(
            journal.replay(),
            resources.iter().rev().cloned().collect::<Vec<_>>()
        );
        journal.remove_all().unwrap();
        assert!(
            !Path::new(netns::DIRECTORY).join(&name).exists()
                && Netlink::open()
                    .unwrap()
                    .link(&link)
                    .unwrap_err()
                    .is_not_found()
        );
        assert!(marked.wait().unwrap().code().is_none());
        let mounts = ["cgroup", "cgroup2"].map(|kind| procfs::find_mounts(kind).unwrap());
        assert!(mounts.iter().flatten().count() > 0);
        assert!(
            mounts
                .iter()
                .flatten()
                .all(|mount| !mount.join(&group).exists())
        );
        let left: Vec<_> = fs::read_dir(directory.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(left, ["other"]);
        for resource in &resources {
            remove(resource).unwrap();
        }
    }

    #[test]
    fn a_record_of_an_older_version_has_no_index() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal");
        let line = |verb: &str, kind: &str| {
            format!("{{\"{verb}\":{{\"kind\":\"{kind}\",\"name\":\"eth0\"}}}}\n")
        };
        let removed = line("intended", "qdisc") + &line("removed", "qdisc");
        fs::write(&path, line("intended", "promiscuous") + &removed).unwrap();
        let old = Resource::Promiscuous(ForeignLink {
            name: "eth0".into(),
            ifindex: None,
            namespace: None,
        });
        let journal = Journal::open(&path).unwrap();
        assert_eq!(journal.replay(), [old]);
        let new = Resource::Qdisc(ForeignLink {
            name: "eth0".into(),
            ifindex: Some(7),
            namespace: Some(u64::MAX),
        });
        journal.record_intent(&new).unwrap();
        assert_eq!(Journal::open(&path).unwrap().replay()[0], new);
    }

    #[test]
    fn promiscuous_mode_is_undone_on_the_link_with_the_index_and_on_no_other() {
        if !root_or_skip("promiscuous_mode_is_undone_on_the_link_with_the_index_and_on_no_other") {
            return;
        }
        let home = Namespace::new("index");
        let mut netlink = Netlink::open_in(&home).unwrap();
        let mut create = |name: &str| {
            netlink.apply([link::create_bridge(name).unwrap()]).unwrap();
            let made = netlink.link(name).unwrap();
            netlink
                .apply([link::set_promiscuous(&made.id(), true)])
                .unwrap();
            made
        };
        let first = create("first");
        let recorded = Resource::Promiscuous(ForeignLink::new(&netlink, &first).unwrap());
        // Another program renames the link and gives its name to another link.
        let ip = |arguments: &[&str]| {
            stdout_of("ip", &[&["-n", home.name().unwrap()], arguments].concat())
        };
        let promiscuous = |name: &str| ip(&["link", "show", name]).contains("PROMISC");
        ip(&["link", "set", "first", "name", "renamed"]);
        ip(&["link", "add", "first", "type", "bridge"]);
        ip(&["link", "set", "first", "promisc", "on"]);
        // The link that has the index in another namespace is another link.
        let other = Namespace::new("index2");
        let index = first.index.to_string();
        let name = other.name().unwrap();
        stdout_of(
            "ip",
            &[
                "-n", name, "link", "add", "x", "index", &index, "type", "bridge",
            ],
        );
        stdout_of("ip", &["-n", name, "link", "set", "x", "promisc", "on"]);
        let shown = || stdout_of("ip", &["-n", name, "link", "show", "x"]);
        // From the other namespace, as a later agent may run there.
        other.enter(|| remove(&recorded)).unwrap().unwrap();
        assert!(!promiscuous("renamed") && promiscuous("first"));
        assert!(shown().contains("PROMISC"), "{}", shown());
        ip(&["link", "del", "renamed"]);
        home.enter(|| remove(&recorded)).unwrap().unwrap();
        drop((netlink, home));
        other.enter(|| remove(&recorded)).unwrap().unwrap();
        assert!(shown().contains("PROMISC"), "{}", shown());
    }

    #[test]
    fn hugepage_files_are_found_by_their_prefix() {
        if !root_or_skip("hugepage_files_are_found_by_their_prefix") {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let none = None::<&str>;
        let flags = nix::mount::MsFlags::empty();
        nix::mount::mount(none, directory.path(), Some("hugetlbfs"), flags, none).unwrap();
        let prefix = format!("myelin-test-{}", std::process::id());
        let (own, other) = (format!("{prefix}map_0"), format!("{prefix}0map_0"));
        for name in [&own, &other] {
            fs::write(directory.path().join(name), "").unwrap();
        }
        let removed = remove(&Resource::HugePages { prefix });
        let left: Vec<_> = fs::read_dir(directory.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        nix::mount::umount(directory.path()).unwrap();
        removed.unwrap();
        assert_eq!(left, [&*other]);
    }

    #[test]
    fn resources_that_cannot_be_removed_stay_recorded() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal");
        fs::create_dir(directory.path().join("not-a-file")).unwrap();
        fs::write(directory.path().join("file"), "x").unwrap();
        let stuck = Resource::File {
            path: directory.path().join("not-a-file"),
        };
        let journal = Journal::open(&path).unwrap();
        journal
            .record_intent(&Resource::File {
                path: directory.path().join("file"),
            })
            .unwrap();
        journal.record_intent(&stuck).unwrap();
        let error = journal.remove_all().unwrap_err();
        assert!(error.to_string().contains("not-a-file"), "{error}");
        assert!(!directory.path().join("file").exists());
        assert_eq!(Journal::open(&path).unwrap().replay(), [stuck]);
    }

    #[test]
    fn the_error_names_a_malformed_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal");
        fs::write(&path, "{\"intended\":{\"kind\":\"link\",\"name\":\"my0\"}}\n{\"intended\":{\"kind\":\"moon\"}}\n").unwrap();
        let error = Journal::open(&path).unwrap_err();
        assert!(error.to_string().contains("line 2 of journal"), "{error}");
        assert!(error.to_string().contains("moon"), "{error}");
    }
}
