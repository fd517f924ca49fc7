//! Creation that is cut off: by a failure, and by `kill -9`.

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

/// Removes the hosts when a test ends, however it does.
struct Cleanup<'a>(&'a str, &'a str);

/// Removes what is there of a chain's hosts.
fn destroy(run: &str, chain: &str) -> myelin_linux::Result<()> {
    let resources = Names::new(run, chain).resources();
    resources.iter().rev().try_for_each(journal::remove)
}

impl Drop for Cleanup<'_> {
    fn drop(&mut self) {
        let _ = destroy(self.0, self.1);
    }
}

fn root_or_skip(test: &str) -> bool {
    let root = capability::is_root();
    if !root {
        println!("skipped {test}: it makes network namespaces and needs root");
    }
    root
}

/// Of this process, so that tests running at the same time do not meet.
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

/// Whether there is a namespace of that name, or the rest of an interrupted creation.
fn is_named(namespace: &str) -> bool {
    Path::new(netns::DIRECTORY).join(namespace).exists()
}

/// What is there of the hosts.
fn left(run: &str, chain: &str) -> Vec<String> {
    let names = Names::new(run, chain);
    let mut netlink = Netlink::open().unwrap();
    let mut left = Vec::new();
    for role in Role::BOTH {
        left.extend(Some(names.netns(role)).filter(|name| is_named(name)));
        left.extend(Some(names.port(role)).filter(|name| netlink.link(name).is_ok()));
    }
    left
}

/// Not a test of its own: what the next ones start, and end early.
#[test]
fn the_process_that_ends_early() {
    let (Ok(journal), Ok(owner)) = (std::env::var(JOURNAL), std::env::var(OWNER)) else {
        return;
    };
    let (run, chain) = (format!("test {owner}"), format!("t{owner}-early"));
    let journal = Journal::open(Path::new(&journal)).unwrap();
    let matches = Match::default();
    // They outlive the process.
    std::mem::forget(EndHosts::create(&config(&run, &chain, &matches), &journal).unwrap());
}

fn process_that_ends_early(command: &mut Command, journal: &Path, owner: &str) -> process::Child {
    command
        .args(["--exact", "end_hosts::tests::the_process_that_ends_early"])
        .env(JOURNAL, journal)
        .env(OWNER, owner)
        .stdout(process::Stdio::null())
        .stderr(process::Stdio::null())
        .spawn()
        .unwrap()
}

/// A process may open so many files: the next one that it wants is the call that fails. With one more each time, each step fails once.
#[test]
fn a_failure_at_any_file_leaves_nothing() {
    if !root_or_skip("a_failure_at_any_file_leaves_nothing") {
        return;
    }
    let owner = format!("{}f", process::id());
    let (run, chain) = (format!("test {owner}"), format!("t{owner}-early"));
    let _cleanup = Cleanup(&run, &chain);
    let directory = tempfile::tempdir().unwrap();
    let this = std::env::current_exe().unwrap();
    let (mut began, mut failed) = (0, 0);
    for files in 4.. {
        let path = directory.path().join(files.to_string());
        let limit = format!("ulimit -n {files} && exec \"$@\"");
        let mut command = Command::new("sh");
        command.args(["-c", &limit, "sh"]).arg(&this);
        let mut child = process_that_ends_early(&mut command, &path, &owner);
        if child.wait().unwrap().success() {
            break;
        }
        failed += 1;
        assert_eq!(left(&run, &chain), Vec::<String>::new(), "{files} files");
        if path.exists() {
            began += usize::from(fs::metadata(&path).unwrap().len() > 0);
            assert_eq!(Journal::open(&path).unwrap().replay(), [], "{files} files");
        }
        assert!(files < 100, "it needs more than 100 files");
    }
    assert!(
        began > 2,
        "{began} of {failed} attempts got to make something"
    );
    assert_eq!(left(&run, &chain).len(), 4);
}

#[test]
fn what_a_killed_process_leaves_is_in_its_journal() {
    if !root_or_skip("what_a_killed_process_leaves_is_in_its_journal") {
        return;
    }
    let owner = format!("{}k", process::id());
    let (run, chain) = (format!("test {owner}"), format!("t{owner}-early"));
    let _cleanup = Cleanup(&run, &chain);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    let this = std::env::current_exe().unwrap();
    let mut counts = BTreeSet::new();
    for step in 0.. {
        let mut child = process_that_ends_early(&mut Command::new(&this), &path, &owner);
        // The journal is the first thing that it makes.
        while !path.exists() {
            thread::sleep(Duration::from_micros(50));
        }
        thread::sleep(Duration::from_micros(500) * step);
        child.kill().unwrap();
        let status = child.wait().unwrap();
        counts.insert(left(&run, &chain).len());
        Journal::open(&path).unwrap().remove_all().unwrap();
        assert_eq!(left(&run, &chain), Vec::<String>::new(), "killed at {step}");
        assert!(!path.exists());
        if status.success() {
            break;
        }
        assert_eq!(status.signal(), Some(KILL), "at step {step}");
    }
    assert!(counts.len() > 2 && counts.contains(&4), "{counts:?}");
}

#[test]
fn things_of_that_name_that_were_there_before_stay() {
    if !root_or_skip("things_of_that_name_that_were_there_before_stay") {
        return;
    }
    let (run, chain) = run_and_chain("before");
    let _cleanup = Cleanup(&run, &chain);
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::open(&directory.path().join("journal")).unwrap();
    let matches = Match::default();
    let config = config(&run, &chain, &matches);
    let hosts = EndHosts::create(&config, &journal).unwrap();

    // The same chain again: refused, and the first one untouched.
    let again = EndHosts::create(&config, &journal).unwrap_err();
    assert!(
        again
            .to_string()
            .contains(&format!("`myelin down {chain}` removes it")),
        "{again}"
    );
    assert_eq!(left(&run, &chain).len(), 4);
    assert_eq!(journal.replay().len(), 4);

    // The same chain of another run: refused by the namespace's name, although the links differ.
    let other = format!("{run} other");
    let others = Journal::open(&directory.path().join("other")).unwrap();
    let refused = EndHosts::create(
        &Config {
            run: &other,
            ..config
        },
        &others,
    )
    .unwrap_err();
    assert!(
        refused
            .to_string()
            .contains(&format!("it belongs to another agent (myelin run {run})")),
        "{refused}"
    );
    assert_eq!(others.replay(), []);
    destroy(&other, &chain).unwrap();
    // Also when the other run was killed after it had written down what it was about to make.
    for resource in Names::new(&other, &chain).resources() {
        others.record_intent(&resource).unwrap();
    }
    others.remove_all().unwrap();
    assert_eq!(left(&run, &chain).len(), 4);
    drop(hosts);
    assert_eq!(left(&run, &chain), Vec::<String>::new());

    // A link in the way of the second host: the first one's goes, the stranger's stays.
    let names = Names::new(&run, &chain);
    let mut netlink = Netlink::open().unwrap();
    let port = names.port(Role::Server);
    netlink.apply([link::bridge(&port).unwrap()]).unwrap();
    let refused = EndHosts::create(&config, &journal).unwrap_err();
    let found = left(&run, &chain);
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
        assert!(error.to_string().contains("not a file name"), "{error}");
        assert_eq!(left(&run, &chain), Vec::<String>::new());
    } else {
        let error = EndHosts::create(&config(&run, &chain, &matches), &journal).unwrap_err();
        assert!(error.to_string().contains("run as root"), "{error}");
    }
    assert_eq!(journal.replay(), []);
}
