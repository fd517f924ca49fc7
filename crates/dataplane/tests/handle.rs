//! Tests the handle of a worker that refuses requests, answers late, or has no such generation. The
//! worker is a script.

use std::path::Path;

use myelin_dataplane::{
    ChainRedirect, DevicePair, Error, Idle, SocketId, UserChain, UserExit, UserSegment,
    WorkerConfig, WorkerHandle,
};
use myelin_packet::Match;
use myelin_packet::traffic::Profile;
use myelin_spec::{DpdkDevice, FunctionConfig};

/// Returns a configuration with a shell script instead of a worker. In the script, `reply` waits
/// for a request and answers it. `$1` is a file that the script may test.
fn scripted_worker(script: &str, file: &Path) -> WorkerConfig {
    let script = format!(
        r#"n=0; wait() {{ dd bs=8 count=1 of=/dev/null 2>/dev/null; n=$((n+1)); }}
           answer() {{ printf '{{"number":%d,"body":%s}}' $n "$1" >&0; }}
           reply() {{ wait; answer "$1"; }}
           ok='{{"Ok":null}}'; no='{{"Err":"no"}}'
           {script}; wait"#
    );
    let file = file.to_str().expect("a name").to_owned();
    let device = |name| DpdkDevice::new(name).expect("a device");
    WorkerConfig {
        args: ["-c".to_owned(), script, "sh".to_owned(), file]
            .map(Into::into)
            .into(),
        // The ports of devices exist without further requests.
        devices: Some(DevicePair {
            devices: [device("net_ring0"), device("net_ring1")],
            prefix: "scripted_worker".into(),
            hugepages: false,
        }),
        ..WorkerConfig::new("/bin/sh", "scripted_worker")
    }
}

fn chain(spi: u32) -> UserChain {
    UserChain {
        spi,
        generation: 0,
        positions: 1,
        segments: vec![UserSegment {
            first_position: 0,
            functions: vec![FunctionConfig::Forward.into()],
            exit: UserExit::Port(SocketId::of_port(1)),
            shaping: None,
        }],
    }
}

fn redirect_to(spi: u32, generation: u16) -> ChainRedirect {
    ChainRedirect {
        matches: Match::default(),
        ingress: SocketId::of_port(0),
        policing: Profile::default(),
        spi,
        generation,
    }
}

#[test]
fn stats_and_facts_are_readable_during_a_request() {
    let file = std::env::temp_dir().join(format!("myelin-slow-worker-{}", std::process::id()));
    // The script creates the file when the request arrives, and answers after its removal.
    let script = r#"reply "$ok"; reply "$ok"; reply "$ok"; wait; : >"$1"; while [ -e "$1" ]; do sleep 0.01; done; answer "$ok""#;
    let mut worker = WorkerHandle::spawn(scripted_worker(script, &file)).unwrap();
    worker.add_chain(chain(1)).unwrap();
    let (stats, facts, pid) = (worker.stats(), worker.facts(), worker.pid());
    let request_thread = std::thread::spawn(move || {
        worker.set_idle(Idle::Spin).unwrap();
        worker
    });
    while !file.exists() {
        assert!(!request_thread.is_finished(), "the request failed");
        std::thread::yield_now();
    }
    for _ in 0..100 {
        assert_eq!((facts.pid(), facts.restarts()), (pid, 0));
        assert!(matches!(facts.idle(), Idle::Adaptive { .. }));
        assert!(stats.chain(1, 0).is_some() && stats.worker().received == 0);
        assert_eq!(facts.overflowed(SocketId::of_port(1)), None);
    }
    assert!(
        !request_thread.is_finished(),
        "the request is still running"
    );
    std::fs::remove_file(&file).unwrap();
    let worker = request_thread.join().unwrap();
    assert_eq!(facts.idle(), Idle::Spin);
    drop(worker);
    assert_eq!(facts.pid(), 0, "the process ends with its handle");
}

#[test]
fn a_refusal_changes_nothing_in_the_worker() {
    let script = r#"reply "$ok"; reply "$ok"; reply "$ok"; reply "$no"; reply "$no"; reply "$ok""#;
    let mut worker = WorkerHandle::spawn(scripted_worker(script, Path::new(""))).unwrap();
    let pid = worker.pid();
    worker.add_chain(chain(1)).unwrap();
    let error = worker
        .redirect_chain(redirect_to(1, 7))
        .unwrap_err()
        .to_string();
    assert!(error.contains("generation 7 does not exist"), "{error}");
    let error = worker.redirect_chain(redirect_to(1, 0)).unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error}");
    let error = worker.add_chain(chain(2)).unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error}");
    assert!(worker.stats().chain(2, 0).is_none());
    assert!(worker.is_alive());
    assert_eq!(worker.pid(), pid);
    // The worker refused the redirect, so the handle may remove the generation.
    worker.remove_chain(1, 0).unwrap();
    assert!(worker.stats().chain(1, 0).is_none());
}

#[test]
fn a_generation_with_a_redirect_cannot_be_removed() {
    let script = r#"for i in 1 2 3 4 5 6; do reply "$ok"; done"#;
    let mut worker = WorkerHandle::spawn(scripted_worker(script, Path::new(""))).unwrap();
    worker.add_chain(chain(1)).unwrap();
    worker.redirect_chain(redirect_to(1, 0)).unwrap();
    let error = worker.remove_chain(1, 0).unwrap_err().to_string();
    assert!(error.contains("still gets packets"), "{error}");
    assert!(worker.stats().door(1).is_some());
    worker.stop_redirect(1).unwrap();
    worker.remove_chain(1, 0).unwrap();
    assert!(worker.stats().door(1).is_none());
}

#[test]
fn a_restart_restores_all_chains_or_leaves_no_process() {
    let file = std::env::temp_dir().join(format!("myelin-scripted-worker-{}", std::process::id()));
    // The script answers the set-up, two chains and a redirect. It refuses the second chain if the
    // file exists.
    let script = r#"reply "$ok"; reply "$ok"; if [ -e "$1" ]; then reply "$no"; else reply "$ok"; fi; reply "$ok"; reply "$ok""#;
    let mut worker = WorkerHandle::spawn(scripted_worker(script, &file)).unwrap();
    worker.add_chain(chain(1)).unwrap();
    worker.add_chain(chain(2)).unwrap();
    worker.redirect_chain(redirect_to(2, 0)).unwrap();
    std::fs::write(&file, "").unwrap();
    let refused = worker.restart();
    std::fs::remove_file(&file).unwrap();
    assert!(matches!(refused, Err(Error::Refused { .. })), "{refused:?}");
    assert!(!worker.is_alive(), "the second chain would be missing");
    assert_eq!(worker.facts().pid(), 0);
    worker.restart().unwrap();
    assert!(worker.is_alive());
    assert_eq!(
        (worker.facts().restarts(), worker.facts().pid()),
        (2, worker.pid())
    );
}

#[test]
fn a_program_without_devices_refuses_them() {
    let mut config = scripted_worker("", Path::new(""));
    config.exe = env!("CARGO_BIN_EXE_myelin-dataplane-worker").into();
    let error = WorkerHandle::spawn(config).unwrap_err().to_string();
    assert!(error.contains("this program drives no devices"), "{error}");
}
