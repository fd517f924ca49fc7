//! Tests of the journal, with real resources.

use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::link::{self, VethEnd};
use crate::netlink::Netlink;
use crate::netns::{self, Netns};
use crate::tests::{Child, Namespace, link_name, namespace_name, root_or_skip, stdout_of};
use crate::{bpffs, cgroup, procfs};

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
    let ip =
        |arguments: &[&str]| stdout_of("ip", &[&["-n", home.name().unwrap()], arguments].concat());
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
    fs::write(
        &path,
        "{\"intended\":{\"kind\":\"link\",\"name\":\"my0\"}}\n{\"intended\":{\"kind\":\"moon\"}}\n",
    )
    .unwrap();
    let error = Journal::open(&path).unwrap_err();
    assert!(error.to_string().contains("line 2 of journal"), "{error}");
    assert!(error.to_string().contains("moon"), "{error}");
}

/// A file system of two pages, of which the file `ballast` has one.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let flags = nix::mount::MsFlags::empty();
        let (none, kind) = (None::<&str>, Some("tmpfs"));
        nix::mount::mount(none, directory.path(), kind, flags, Some("size=8k")).unwrap();
        fs::write(directory.path().join("ballast"), [0; 4096]).unwrap();
        Self(directory)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = nix::mount::umount2(self.0.path(), nix::mount::MntFlags::MNT_DETACH);
    }
}

#[test]
fn a_full_disk_neither_tears_a_record_nor_stops_the_removal_of_all() {
    if !root_or_skip("a_full_disk_neither_tears_a_record_nor_stops_the_removal_of_all") {
        return;
    }
    let (disk, other) = (SmallDisk::mount(), tempfile::tempdir().unwrap());
    let path = disk.0.path().join("journal");
    let journal = Journal::open(&path).unwrap();
    let resource = |number: u32| {
        let file = other.path().join(format!("resource-{number}"));
        fs::write(&file, "").unwrap();
        Resource::File { path: file }
    };
    let full = (0..1000).find(|number| journal.record_intent(&resource(*number)).is_err());
    let recorded = full.expect("the disk is full");
    assert!(recorded > 10, "{recorded}");
    let has_torn_record = |journal: &Journal| {
        let len = fs::metadata(&path).unwrap().len();
        len != journal.records().len
    };
    assert!(!has_torn_record(&journal));
    // With room again, the next record starts a new line.
    fs::remove_file(disk.0.path().join("ballast")).unwrap();
    journal.record_intent(&resource(recorded)).unwrap();
    drop(journal);
    let journal = Journal::open(&path).unwrap();
    assert_eq!(journal.replay().len() as u32, recorded + 1);
    // The journal cannot record the removals.
    fs::write(disk.0.path().join("ballast"), [0; 4096]).unwrap_err();
    journal.remove_all().unwrap();
    assert!(!path.exists());
    assert_eq!(fs::read_dir(other.path()).unwrap().count(), 0);
}
