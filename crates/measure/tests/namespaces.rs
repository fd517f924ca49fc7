//! The probe between two network namespaces joined by a veth pair. Needs root.

mod support;

use std::time::Duration;

use myelin_measure::{Config, Control, Mode, probe};
use support::{Pair, SERVER, ip};

fn config(mode: Mode, payload_bytes: usize) -> Config {
    Config {
        mode,
        payload_bytes,
        interval: Duration::from_millis(1),
        count: 100,
        repeats: 2,
        warm_up: 5,
        // On a busy machine, a spinning thread may wait this long for a core.
        timeout: Duration::from_secs(4),
        deadline: Duration::from_secs(120),
        ..Config::new(SERVER.parse().unwrap())
    }
}

#[test]
fn answers_come_through_a_veth_pair_in_every_mode() {
    let Some(pair) = Pair::new("modes") else {
        return;
    };
    let sockets = pair.sockets();
    for mode in [Mode::Inline, Mode::Spin, Mode::Blocking] {
        if mode == Mode::Spin && myelin_linux::affinity::get(0).unwrap().len() < 2 {
            println!("skipped spin: mode spin needs two cores");
            continue;
        }
        for payload_bytes in [256, 1400] {
            let config = config(mode, payload_bytes);
            let result = probe(&config, &sockets, Control::default()).unwrap();
            assert_eq!(
                (result.counts.received, result.counts.lost),
                (200, 0),
                "{mode} {payload_bytes}"
            );
            let rtt = result.rtt.unwrap();
            println!(
                "{mode} {payload_bytes} B: p50 {:.2} us, p99 {:.2} us",
                rtt.p50_us, rtt.p99_us
            );
        }
    }
}

#[test]
fn a_missing_route_fails_with_the_reason_of_the_kernel() {
    let Some(pair) = Pair::new("route") else {
        return;
    };
    let sockets = pair.sockets();
    let nowhere = Config {
        destination: "192.0.2.1:9".parse().unwrap(),
        ..config(Mode::Inline, 256)
    };
    let text = probe(&nowhere, &sockets, Control::default())
        .unwrap_err()
        .to_string();
    assert!(
        text.starts_with("cannot send 256 bytes to 192.0.2.1:9: Network is unreachable"),
        "{text}"
    );
}

#[test]
fn a_too_small_mtu_fails_with_the_reason_of_the_kernel() {
    let Some(pair) = Pair::new("mtu") else { return };
    let sockets = pair.sockets();
    ip(&[
        "-n",
        pair.client.name().unwrap(),
        "link",
        "set",
        "eth0",
        "mtu",
        "600",
    ]);
    let one_packet = Config {
        count: 1,
        repeats: 1,
        warm_up: 0,
        ..config(Mode::Blocking, 1400)
    };
    let text = probe(&one_packet, &sockets, Control::default())
        .unwrap_err()
        .to_string();
    assert!(
        text.starts_with("cannot send 1400 bytes to 10.77.0.2:9000: Message too long"),
        "{text}"
    );
    let result = probe(&config(Mode::Blocking, 500), &sockets, Control::default()).unwrap();
    assert_eq!(result.counts.received, 200);
}
