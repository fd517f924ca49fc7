//! Tests creation that a failure or `kill -9` interrupts.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process;

use myelin_linux::{capability, journal};

use super::*;

const JOURNAL: &str = "MYELIN_TEST_JOURNAL";
const OWNER: &str = "MYELIN_TEST_OWNER";
/// `SIGKILL`.
const KILL: i32 = 9;

/// Removes the hosts when a test ends, even after a panic.
struct Cleanup<'a>(&'a str, &'a str);

/// Removes all existing objects of a chain's hosts.
fn remove_hosts(run: &str, chain: &str) -> myelin_linux::Result<()> {
    let resources = EndHostNames::new(run, chain).resources();
    resources.iter().rev().try_for_each(journal::remove)
}

impl Drop for Cleanup<'_> {
    fn drop(&mut self) {
        let _ = remove_hosts(self.0, self.1);
    }
}

fn root_or_skip(test: &str) -> bool {
    let root = capability::is_root();
    if !root {
        println!("skipped {test}: creating network namespaces needs root");
    }
    root
}

/// Returns names of a run and a chain that no parallel test uses.
fn run_and_chain(purpose: &str) -> (String, String) {
    (
        format!("test {}", process::id()),
        format!("t{}-{purpose}", process::id()),
    )
}

fn config<'a>(run: &'a str, chain: &'a str, matches: &'a Match) -> Config<'a> {
    Config {
        run,
        chain,
        matches,
        mtu: 1500,
    }
}

/// Returns whether a namespace or an interrupted creation uses the name.
fn is_named(namespace: &str) -> bool {
    Path::new(netns::DIRECTORY).join(namespace).exists()
}

/// Returns the names of the existing objects of the hosts.
fn existing_objects(run: &str, chain: &str) -> Vec<String> {
    let names = EndHostNames::new(run, chain);
    let mut netlink = Netlink::open().unwrap();
    let mut names_found = Vec::new();
    for role in Role::BOTH {
        names_found.extend(Some(names.netns(role)).filter(|name| is_named(name)));
        names_found.extend(Some(names.port(role)).filter(|name| netlink.link(name).is_ok()));
    }
    names_found
}

/// The next tests start this function as a process and interrupt it. It is no test itself.
#[test]
fn subprocess_that_makes_hosts() {
    let (Ok(journal), Ok(owner)) = (std::env::var(JOURNAL), std::env::var(OWNER)) else {
        return;
    };
    let (run, chain) = (format!("test {owner}"), format!("t{owner}-early"));
    let journal = Journal::open(Path::new(&journal)).unwrap();
    let matches = Match::default();
    // The hosts outlive the process.
    std::mem::forget(EndHosts::create(&config(&run, &chain, &matches), &journal).unwrap());
}

fn spawn_subprocess(command: &mut Command, journal: &Path, owner: &str) -> process::Child {
    command
        .args(["--exact", "end_hosts::tests::subprocess_that_makes_hosts"])
        .env(JOURNAL, journal)
        .env(OWNER, owner)
        .stdout(process::Stdio::null())
        .stderr(process::Stdio::null())
        .spawn()
        .unwrap()
}

/// A limit on open files makes one call fail. The limit rises by one in each attempt, so each step
/// fails once.
#[test]
fn failed_creation_leaves_no_objects() {
    if !root_or_skip("failed_creation_leaves_no_objects") {
        return;
    }
    let owner = format!("{}f", process::id());
    let (run, chain) = (format!("test {owner}"), format!("t{owner}-early"));
    let _cleanup = Cleanup(&run, &chain);
    let directory = tempfile::tempdir().unwrap();
    let this = std::env::current_exe().unwrap();
    let (mut journaled, mut failed) = (0, 0);
    for files in 4.. {
        let path = directory.path().join(files.to_string());
        let limit = format!("ulimit -n {files} && exec \"$@\"");
        let mut command = Command::new("sh");
        command.args(["-c", &limit, "sh"]).arg(&this);
        let mut child = spawn_subprocess(&mut command, &path, &owner);
        if child.wait().unwrap().success() {
            break;
        }
        failed += 1;
        assert_eq!(
            existing_objects(&run, &chain),
            Vec::<String>::new(),
            "{files} files"
        );
        if path.exists() {
            journaled += usize::from(fs::metadata(&path).unwrap().len() > 0);
            assert_eq!(Journal::open(&path).unwrap().replay(), [], "{files} files");
        }
        assert!(files < 100, "creation needs more than 100 open files");
    }
    assert!(
        journaled > 2,
        "{journaled} of {failed} attempts recorded an object"
    );
    assert_eq!(existing_objects(&run, &chain).len(), 4);
}

#[test]
fn the_journal_of_a_killed_process_lists_all_its_objects() {
    if !root_or_skip("the_journal_of_a_killed_process_lists_all_its_objects") {
        return;
    }
    let owner = format!("{}k", process::id());
    let (run, chain) = (format!("test {owner}"), format!("t{owner}-early"));
    let _cleanup = Cleanup(&run, &chain);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    let this = std::env::current_exe().unwrap();
    let mut counts = BTreeSet::new();
    let mut step = 0;
    loop {
        let mut child = spawn_subprocess(&mut Command::new(&this), &path, &owner);
        // The process makes the journal first.
        while !path.exists() {
            thread::sleep(Duration::from_micros(50));
        }
        thread::sleep(Duration::from_micros(500) * step);
        child.kill().unwrap();
        let status = child.wait().unwrap();
        counts.insert(existing_objects(&run, &chain).len());
        Journal::open(&path).unwrap().remove_all().unwrap();
        assert_eq!(
            existing_objects(&run, &chain),
            Vec::<String>::new(),
            "killed at {step}"
        );
        assert!(!path.exists());
        if !status.success() {
            assert_eq!(status.signal(), Some(KILL), "at step {step}");
            step += 1;
        } else if counts.len() > 2 {
            break;
        } else {
            // The scheduler chose the moments of the kills so that none was between two objects.
            step = 0;
        }
    }
    assert!(counts.contains(&4), "{counts:?}");
}

#[test]
fn existing_objects_with_the_same_names_stay() {
    if !root_or_skip("existing_objects_with_the_same_names_stay") {
        return;
    }
    let (run, chain) = run_and_chain("before");
    let _cleanup = Cleanup(&run, &chain);
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::open(&directory.path().join("journal")).unwrap();
    let matches = Match::default();
    let config = config(&run, &chain, &matches);
    let hosts = EndHosts::create(&config, &journal).unwrap();

    // A second creation of the chain is refused, and the first hosts stay.
    let again = EndHosts::create(&config, &journal).unwrap_err();
    assert!(
        again
            .to_string()
            .contains(&format!("`myelin down {chain}` removes it")),
        "{again}"
    );
    assert_eq!(existing_objects(&run, &chain).len(), 4);
    assert_eq!(journal.replay().len(), 4);

    // The same chain of another run is refused: its links differ, but not its namespaces.
    let other_run = format!("{run} other");
    let other_journal = Journal::open(&directory.path().join("other")).unwrap();
    let refused = EndHosts::create(
        &Config {
            run: &other_run,
            ..config
        },
        &other_journal,
    )
    .unwrap_err();
    assert!(
        refused
            .to_string()
            .contains(&format!("it belongs to another agent (myelin run {run})")),
        "{refused}"
    );
    assert_eq!(other_journal.replay(), []);
    remove_hosts(&other_run, &chain).unwrap();
    // The hosts also stay if the other run was killed after it recorded the objects, and before it
    // made them.
    for resource in EndHostNames::new(&other_run, &chain).resources() {
        other_journal.record_intent(&resource).unwrap();
    }
    other_journal.remove_all().unwrap();
    assert_eq!(existing_objects(&run, &chain).len(), 4);
    drop(hosts);
    assert_eq!(existing_objects(&run, &chain), Vec::<String>::new());

    // Another link has the name of the second host's port: creation removes the first host and
    // keeps the other link.
    let names = EndHostNames::new(&run, &chain);
    let mut netlink = Netlink::open().unwrap();
    let port = names.port(Role::Server);
    netlink
        .apply([link::create_bridge(&port).unwrap()])
        .unwrap();
    let refused = EndHosts::create(&config, &journal).unwrap_err();
    let found = existing_objects(&run, &chain);
    let bridge = netlink.link(&port).unwrap();
    netlink.apply([link::delete(&bridge.id())]).unwrap();
    assert!(refused.to_string().contains(&port), "{refused}");
    assert_eq!((found, bridge.kind.as_str()), (vec![port], "bridge"));
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn bad_configurations_make_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::open(&directory.path().join("journal")).unwrap();
    let (run, chain) = run_and_chain("bad");
    let matches = Match {
        destination: Some("239.1.2.3".parse().unwrap()),
        ..Match::default()
    };
    let error = EndHosts::create(&config(&run, &chain, &matches), &journal).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with(&format!("cannot make end hosts for chain `{chain}`: ")),
        "{error}"
    );
    let matches = Match::default();
    for mtu in [0, 1279, 65_536] {
        let config = Config {
            mtu,
            ..config(&run, &chain, &matches)
        };
        let error = EndHosts::create(&config, &journal).unwrap_err();
        assert!(
            error.to_string().contains(&format!(
                "an MTU of {mtu} bytes is out of range (1280 to 65535)"
            )),
            "{error}"
        );
    }
    if capability::is_root() {
        let long = "x".repeat(250);
        let error = EndHosts::create(&config(&run, &long, &matches), &journal).unwrap_err();
        assert!(
            error.to_string().contains("longer than 255 bytes"),
            "{error}"
        );
        let error = EndHosts::create(&config(&run, "a/b", &matches), &journal).unwrap_err();
        assert!(
            error.to_string().contains("not a valid file name"),
            "{error}"
        );
        assert_eq!(existing_objects(&run, &chain), Vec::<String>::new());
    } else {
        let error = EndHosts::create(&config(&run, &chain, &matches), &journal).unwrap_err();
        assert!(error.to_string().contains("run as root"), "{error}");
    }
    assert_eq!(journal.replay(), []);
}
