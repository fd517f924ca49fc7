//! Loads over loopback, alone and behind a relay that limits the rate.
#![allow(clippy::float_cmp, reason = "exact by construction")]

mod support;

use std::net::UdpSocket;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use myelin_measure::bandwidth::{Carried, Ladder, Load, carry};
use myelin_measure::{Control, Error, Sockets};
use nix::sys::socket::SockaddrIn;
use support::{Policy, Relay, honest};

/// Lets through what a bucket of 50 packets, filled at 5000 a second, lets through.
fn limiter() -> Policy {
    let (mut tokens, mut last) = (50.0, Instant::now());
    Box::new(move |_, datagram| {
        tokens = f64::min(50.0, tokens + last.elapsed().as_secs_f64() * 5000.0);
        last = Instant::now();
        if tokens < 1.0 {
            return vec![];
        }
        tokens -= 1.0;
        vec![datagram]
    })
}

fn loopback() -> Sockets {
    let any = || (None, "127.0.0.1:0".parse().unwrap());
    Sockets::bind(any(), any()).unwrap()
}

fn load(destination: std::net::SocketAddr, burst: u16) -> Load {
    Load {
        destination,
        payload_bytes: 1400,
        packets: 3000,
        burst,
        core: None,
    }
}

#[test]
fn a_clean_way_carries_all_one_by_one_and_batched() {
    let sockets = loopback();
    for burst in [1, 32] {
        let load = Load {
            // One more than whole bursts, so that rates are over whole gaps. The socket's default buffer holds them all.
            packets: 321,
            payload_bytes: 100,
            ..load(sockets.server.local_addr().unwrap(), burst)
        };
        for offered in [None, Some(0.05)] {
            let carried = carry(&load, &sockets, offered, Control::default()).unwrap();
            assert!(carried.is_clean(), "{carried:?}");
            assert_eq!((carried.sent, carried.received), (321, 321));
            assert_eq!(carried.segmented, burst > 1);
            assert!(carried.carried_mpps <= 1.01 * carried.sent_mpps);
            if let Some(offered) = offered {
                assert!(carried.carried_mpps < 1.05 * offered, "{carried:?}");
            }
        }
    }
}

/// A socket of UDP-Lite (RFC 3828), for which Linux refuses to segment with the error that it gives for links that cannot; `None` where
/// the kernel has no UDP-Lite.
fn not_segmenting() -> Option<UdpSocket> {
    // SAFETY: no pointers are passed.
    let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM, libc::IPPROTO_UDPLITE) };
    if socket < 0 {
        println!("SKIP: needs UDP-Lite");
        return None;
    }
    // SAFETY: it is open and nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    let loopback = SockaddrIn::new(127, 0, 0, 1, 0);
    nix::sys::socket::bind(socket.as_raw_fd(), &loopback).unwrap();
    Some(socket.into())
}

#[test]
fn a_burst_that_is_not_segmented_is_told() {
    let Some((client, server)) = not_segmenting().zip(not_segmenting()) else {
        return;
    };
    let sockets = Sockets { client, server };
    let load = Load {
        packets: 100,
        payload_bytes: 100,
        ..load(sockets.server.local_addr().unwrap(), 32)
    };
    let carried = carry(&load, &sockets, None, Control::default()).unwrap();
    assert_eq!((carried.sent, carried.received), (100, 100));
    assert!(!carried.segmented);
}

/// What is queued on the way when all is sent counts with the time that it takes to arrive.
#[test]
fn a_queue_on_the_way_does_not_flatter_the_rate() {
    let sockets = loopback();
    let slow: Policy = Box::new(|_, datagram| {
        std::thread::sleep(Duration::from_micros(300));
        vec![datagram]
    });
    let relay = Relay::start(sockets.server.local_addr().unwrap(), slow, honest());
    let load = Load {
        packets: 64,
        payload_bytes: 100,
        ..load(relay.address, 8)
    };
    // A relay that has no core for a while is taken to have lost what it still holds.
    let carried = (0..100)
        .map(|_| carry(&load, &sockets, None, Control::default()).unwrap())
        .find(Carried::is_clean)
        .expect("a trial that comes through whole");
    // 64 packets in at least 64 * 300 us.
    assert!(carried.carried_mpps < 0.0034, "{carried:?}");
}

#[test]
fn a_lossy_way_is_not_clean_and_lowers_the_ladder() {
    let sockets = loopback();
    let relay = Relay::start(sockets.server.local_addr().unwrap(), limiter(), honest());
    let load = load(relay.address, 1);
    let mut ladder = Ladder::default();
    let mut trials = Vec::new();
    ladder
        .round(2, |offered| {
            let carried = carry(&load, &sockets, offered, Control::default())?;
            trials.push(carried.clone());
            Ok::<_, Error>(carried)
        })
        .unwrap();
    assert_eq!(trials.len(), 2);
    assert!(!trials[0].is_clean() && trials[0].received < 3000);
    assert!(ladder.offered_mpps().unwrap() < trials[0].sent_mpps);
}

#[test]
fn a_load_out_of_range_is_refused() {
    let sockets = loopback();
    let good = load(sockets.server.local_addr().unwrap(), 1);
    for (bad, option) in [
        (
            Load {
                packets: 1,
                ..good.clone()
            },
            "packets",
        ),
        (
            Load {
                burst: 0,
                ..good.clone()
            },
            "burst",
        ),
        (
            Load {
                payload_bytes: 1501,
                ..good
            },
            "payload_bytes",
        ),
    ] {
        let error = carry(&bad, &sockets, None, Control::default()).unwrap_err();
        assert!(error.to_string().contains(option), "{error}");
    }
}
