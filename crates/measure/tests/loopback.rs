//! The probe over loopback in all modes.
#![allow(clippy::float_cmp, reason = "exact by construction")]

mod support;

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use myelin_measure::{Config, Control, Cores, Matching, Mode, ProbeResult, Sockets, Stop, probe};
use support::{config, sockets};

fn probe_loopback(mut config: Config) -> ProbeResult {
    let sockets = sockets();
    config.destination = sockets.server.local_addr().unwrap();
    probe(&config, &sockets, Control::default()).unwrap()
}

fn has_two_cores() -> bool {
    let enough = myelin_linux::affinity::get(0).unwrap().len() >= 2;
    if !enough {
        println!("SKIP: spin mode needs two cores");
    }
    enough
}

#[test]
fn every_mode_answers_every_packet() {
    for mode in [Mode::Inline, Mode::Spin, Mode::Blocking] {
        if mode == Mode::Spin && !has_two_cores() {
            continue;
        }
        for interval in [Duration::ZERO, Duration::from_millis(1)] {
            for payload_bytes in [48, 1472] {
                let result = probe_loopback(Config {
                    interval,
                    payload_bytes,
                    warm_up: 10,
                    keep_samples: true,
                    rtt_bound: Some(Duration::from_secs(60)),
                    ..config(mode)
                });
                let case = format!("{mode} {interval:?} {payload_bytes}: {:?}", result.counts);
                assert_eq!(result.matching, Matching::ById, "{case}");
                assert_eq!(result.stopped, None, "{case}");
                assert_eq!(
                    (result.counts.sent, result.counts.received),
                    (100, 100),
                    "{case}"
                );
                assert_eq!(result.counts.lost + result.counts.reordered, 0, "{case}");
                assert_eq!(
                    result.counts.duplicates + result.counts.corrupted + result.counts.foreign,
                    0,
                    "{case}"
                );
                let (rtt, forward) = (result.rtt.unwrap(), result.forward.unwrap());
                assert!(
                    rtt.min_us > forward.min_us && forward.min_us > 0.1,
                    "{case}"
                );
                assert!(rtt.max_us < 60e6 && rtt.mean_ci95_us.is_some(), "{case}");
                assert_eq!(rtt.share_within_bound, Some(1.0));
                let samples = result.samples.unwrap();
                assert_eq!((samples.rtt_ns.len(), samples.forward_ns.len()), (100, 100));
                assert_eq!(result.timeline.len(), 100);
            }
        }
    }
}

#[test]
fn blocking_mode_runs_on_one_core_and_on_two_cores() {
    let usable = myelin_linux::affinity::get(0).unwrap();
    for server in usable.iter().take(2) {
        let result = probe_loopback(Config {
            cores: Some(Cores {
                client: usable[0],
                server: *server,
            }),
            ..config(Mode::Blocking)
        });
        assert_eq!(result.counts.received, 100);
    }
}

#[test]
fn sends_follow_an_absolute_timeline() {
    for mode in [Mode::Inline, Mode::Blocking] {
        let result = probe_loopback(config(mode));
        // 2 repeats of 50 slots, without a wait after the last slot of each repeat.
        assert!(result.duration_s >= 0.098, "{mode}: {}", result.duration_s);
        let last_of_first = result.timeline[49].at_s;
        assert!(last_of_first >= 0.049, "{mode}: {last_of_first}");
    }
}

#[test]
#[ignore = "thorough: measures the duration of a probe on a quiet machine"]
fn a_probe_ends_soon_after_its_last_slot() {
    for mode in [Mode::Inline, Mode::Blocking] {
        let result = probe_loopback(config(mode));
        assert!(result.duration_s < 2.0, "{mode}: {}", result.duration_s);
    }
}

#[test]
fn foreign_datagrams_are_ignored_and_counted_at_both_ends() {
    for at_server in [true, false] {
        let sockets = sockets();
        let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
        let server = sockets.server.local_addr().unwrap();
        let end = if at_server {
            server
        } else {
            sockets.client.local_addr().unwrap()
        };
        let is_over = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&is_over);
        let sender = std::thread::spawn(move || {
            let mut sent = 0;
            while !stop.load(Ordering::Relaxed) {
                stranger.send_to(&[0x4d; 100], end).unwrap();
                sent += 1;
                std::thread::sleep(Duration::from_millis(10));
            }
            sent
        });
        let config = Config {
            destination: server,
            interval: Duration::from_millis(4),
            ..config(Mode::Blocking)
        };
        let result = probe(&config, &sockets, Control::default()).unwrap();
        is_over.store(true, Ordering::Relaxed);
        let sent: u64 = sender.join().unwrap();
        assert_eq!(result.matching, Matching::ById);
        assert_eq!(result.counts.received, 100);
        assert!(
            (5..=sent).contains(&result.counts.foreign),
            "{:?}",
            result.counts
        );
    }
}

#[test]
fn a_failing_server_ends_the_probe_at_once() {
    // The server's socket is a listening TCP socket, from which receiving fails.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let destination = listener.local_addr().unwrap();
    let sockets = Sockets {
        client: UdpSocket::bind("127.0.0.1:0").unwrap(),
        server: UdpSocket::from(std::os::fd::OwnedFd::from(listener)),
    };
    let config = Config {
        destination,
        timeout: Duration::from_secs(4),
        ..config(Mode::Blocking)
    };
    let started = Instant::now();
    let error = probe(&config, &sockets, Control::default()).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("cannot receive at the probe's server"),
        "{error}"
    );
    assert!(
        started.elapsed() < Duration::from_secs(4),
        "the probe waited for the timeout"
    );
}

#[test]
fn deadline_and_cancel_end_the_probe_with_partial_results() {
    let sockets = sockets();
    let long = Config {
        destination: sockets.server.local_addr().unwrap(),
        count: 100_000,
        deadline: Duration::from_secs(2),
        ..config(Mode::Blocking)
    };
    for mode in [Mode::Inline, Mode::Blocking] {
        let config = Config {
            mode,
            ..long.clone()
        };
        let started = Instant::now();
        let result = probe(&config, &sockets, Control::default()).unwrap();
        assert_eq!(result.stopped, Some(Stop::Deadline));
        assert!(started.elapsed() < Duration::from_secs(60));
        assert!(result.counts.sent > 10 && result.counts.lost == 0);
        assert_eq!(result.counts.sent, result.counts.received);
    }

    let cancel = AtomicBool::new(false);
    let calls = AtomicU64::new(0);
    let progress = |done: u64, total: u64| {
        assert!(done <= total && total == 200_000);
        if calls.fetch_add(1, Ordering::Relaxed) == 1 {
            cancel.store(true, Ordering::Relaxed);
        }
    };
    let config = Config {
        deadline: Duration::from_secs(60),
        ..long
    };
    let control = Control {
        cancel: Some(&cancel),
        progress: Some(&progress),
    };
    let result = probe(&config, &sockets, control).unwrap();
    assert_eq!(result.stopped, Some(Stop::Cancelled));
    assert!(calls.load(Ordering::Relaxed) >= 2);
}

#[test]
fn sockets_serve_one_measurement_after_another() {
    let sockets = sockets();
    for mode in [Mode::Blocking, Mode::Inline, Mode::Blocking] {
        let config = Config {
            destination: sockets.server.local_addr().unwrap(),
            ..config(mode)
        };
        let result = probe(&config, &sockets, Control::default()).unwrap();
        assert_eq!((result.counts.received, result.counts.foreign), (100, 0));
    }
}

#[test]
fn row_is_flat_and_its_keys_contain_units() {
    let row = probe_loopback(config(Mode::Inline)).row();
    let row = row.as_object().unwrap();
    for key in [
        "mode",
        "matching",
        "payload_bytes",
        "interval_us",
        "sent",
        "lost",
        "loss_ratio",
        "rtt_p50_us",
        "rtt_p99_99_us",
        "forward_p99_us",
        "reply_p50_us",
        "duration_s",
    ] {
        assert!(row.contains_key(key), "{key} in {row:?}");
    }
    let curves = ["rtt_cdf_us", "forward_cdf_us"];
    let is_figure = |(key, v): (&String, &serde_json::Value)| {
        curves.contains(&key.as_str()) || !v.is_object() && !v.is_array()
    };
    assert!(row.iter().all(is_figure));
    assert_eq!(row["mode"], "inline");
    assert_eq!(row["matching"], "by_id");
}
