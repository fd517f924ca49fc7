//! Creation that is cut off: by a failure, and by `kill -9`.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

const DIE_AT: &str = "MYELIN_TEST_DIE_AT";
const JOURNAL: &str = "MYELIN_TEST_JOURNAL";
const OWNER: &str = "MYELIN_TEST_OWNER";
/// `SIGKILL`.
const KILL: i32 = 9;

/// Removes the hosts when a test ends, however it does.
struct Cleanup<'a>(&'a str, &'a str);

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
        napi: &[],
    }
}

/// What is there of the hosts.
fn left(run: &str, chain: &str) -> Vec<String> {
    let names = Names::new(run, chain);
    let mut netlink = Netlink::open().unwrap();
    let mut left = Vec::new();
    for role in Role::BOTH {
        left.extend(Some(names.netns(role)).filter(|name| netns::exists(name)));
        left.extend(Some(names.port(role)).filter(|name| netlink.link(name).is_ok()));
    }
    left
}

#[test]
fn a_failure_at_any_step_leaves_nothing() {
    if !root_or_skip("a_failure_at_any_step_leaves_nothing") {
        return;
    }
    let (run, chain) = run_and_chain("fail");
    let _cleanup = Cleanup(&run, &chain);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    let journal = Journal::open(&path).unwrap();
    let matches = Match::default();
    let mut steps = 0;
    loop {
        let calls = AtomicUsize::new(0);
        let outcome = EndHosts::create_with(&config(&run, &chain, &matches), &journal, &|step| {
            if calls.fetch_add(1, Ordering::Relaxed) == steps {
                return Err(myelin_linux::Error::new(
                    step,
                    ErrorKind::Other,
                    "it was told to fail",
                ));
            }
            Ok(())
        });
        match outcome {
            Ok(hosts) => {
                hosts.destroy(&journal).unwrap();
                break;
            }
            Err(error) => {
                assert!(error.to_string().contains("it was told to fail"), "{error}");
                assert_eq!(
                    left(&run, &chain),
                    Vec::<String>::new(),
                    "after step {steps}: {error}"
                );
                assert_eq!(journal.replay(), [], "after step {steps}");
            }
        }
        steps += 1;
    }
    assert!(steps > 15, "{steps} steps were tried");
    assert_eq!(left(&run, &chain), Vec::<String>::new());
    assert_eq!(Journal::open(&path).unwrap().replay(), []);
}

/// Not a test of its own: what the next one starts and has killed.
#[test]
fn the_process_that_is_killed() {
    let (Ok(die_at), Ok(journal), Ok(owner)) = (
        std::env::var(DIE_AT),
        std::env::var(JOURNAL),
        std::env::var(OWNER),
    ) else {
        return;
    };
    let die_at: usize = die_at.parse().unwrap();
    let (run, chain) = (format!("test {owner}"), format!("t{owner}-kill"));
    let journal = Journal::open(Path::new(&journal)).unwrap();
    let calls = AtomicUsize::new(0);
    let matches = Match::default();
    EndHosts::create_with(&config(&run, &chain, &matches), &journal, &|_| {
        if calls.fetch_add(1, Ordering::Relaxed) == die_at {
            Command::new("kill")
                .args(["-9", &process::id().to_string()])
                .status()
                .unwrap();
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn what_a_killed_process_leaves_is_in_its_journal() {
    if !root_or_skip("what_a_killed_process_leaves_is_in_its_journal") {
        return;
    }
    let (run, chain) = run_and_chain("kill");
    let _cleanup = Cleanup(&run, &chain);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    let this = std::env::current_exe().unwrap();
    let mut most = 0;
    for die_at in 0.. {
        let status = Command::new(&this)
            .args(["--exact", "end_hosts::tests::the_process_that_is_killed"])
            .env(DIE_AT, die_at.to_string())
            .env(JOURNAL, &path)
            .env(OWNER, process::id().to_string())
            .stdout(process::Stdio::null())
            .status()
            .unwrap();
        most = most.max(left(&run, &chain).len());
        Journal::open(&path).unwrap().remove_all().unwrap();
        assert_eq!(
            left(&run, &chain),
            Vec::<String>::new(),
            "killed at step {die_at}"
        );
        assert!(!path.exists());
        if status.success() {
            assert!(die_at > 15, "{die_at} steps were tried");
            break;
        }
        assert_eq!(status.signal(), Some(KILL), "at step {die_at}");
    }
    assert_eq!(most, 4);
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
    let mut others = Journal::open(&directory.path().join("other")).unwrap();
    let refused = EndHosts::create(
        &Config {
            run: &other,
            ..config
        },
        &mut others,
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
        others.intend(&resource).unwrap();
    }
    others.remove_all().unwrap();
    assert_eq!(left(&run, &chain).len(), 4);
    hosts.destroy(&journal).unwrap();
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
    assert!(matches!(error, Error::Address { .. }));
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
        assert!(
            error
                .to_string()
                .contains("CAP_SYS_ADMIN, CAP_NET_ADMIN is missing; run as root"),
            "{error}"
        );
    }
    assert_eq!(journal.replay(), []);
}
