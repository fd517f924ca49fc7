//! Bandwidth trials over loopback, directly and through a relay that limits the rate.
#![allow(clippy::float_cmp, reason = "exact by construction")]

mod support;

use std::net::UdpSocket;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use myelin_measure::bandwidth::{Load, RateSearch, TrialResult, run_trial};
use myelin_measure::{Control, Error, Sockets};
use nix::sys::socket::SockaddrIn;
use support::{Policy, Relay, forward_unchanged};

/// A token bucket of 50 packets, filled at 5000 packets a second.
fn rate_limit() -> Policy {
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
fn a_clean_path_carries_single_packets_and_bursts() {
    let sockets = loopback();
    for burst in [1, 32] {
        let load = Load {
            // One packet more than whole bursts, so that rates cover whole gaps. The socket's
            // default buffer holds all packets.
            packets: 321,
            payload_bytes: 100,
            ..load(sockets.server.local_addr().unwrap(), burst)
        };
        for offered in [None, Some(0.05)] {
            let result = run_trial(&load, &sockets, offered, Control::default()).unwrap();
            assert!(result.is_clean(), "{result:?}");
            assert_eq!((result.sent, result.received), (321, 321));
            assert_eq!(result.segmented, burst > 1);
            assert!(result.carried_mpps <= 1.01 * result.sent_mpps);
        }
    }
}

#[test]
#[ignore = "thorough: measures rates on a quiet machine"]
fn a_clean_path_carries_at_most_the_offered_rate() {
    let (sockets, offered) = (loopback(), 0.05);
    for burst in [1, 32] {
        let load = Load {
            packets: 321,
            payload_bytes: 100,
            ..load(sockets.server.local_addr().unwrap(), burst)
        };
        let result = run_trial(&load, &sockets, Some(offered), Control::default()).unwrap();
        assert!(result.carried_mpps < 1.05 * offered, "{result:?}");
    }
}

/// Opens a UDP-Lite socket (RFC 3828). Linux refuses segmentation for UDP-Lite, with the same error
/// as for links without segmentation. `None` if the kernel has no UDP-Lite.
fn open_udp_lite_socket() -> Option<UdpSocket> {
    // SAFETY: no pointers are passed.
    let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM, libc::IPPROTO_UDPLITE) };
    if socket < 0 {
        println!("SKIP: needs UDP-Lite");
        return None;
    }
    // SAFETY: the descriptor is open and has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    let loopback = SockaddrIn::new(127, 0, 0, 1, 0);
    nix::sys::socket::bind(socket.as_raw_fd(), &loopback).unwrap();
    Some(socket.into())
}

#[test]
fn an_unsegmented_burst_is_reported() {
    let Some((client, server)) = open_udp_lite_socket().zip(open_udp_lite_socket()) else {
        return;
    };
    let sockets = Sockets { client, server };
    let load = Load {
        packets: 100,
        payload_bytes: 100,
        ..load(sockets.server.local_addr().unwrap(), 32)
    };
    let result = run_trial(&load, &sockets, None, Control::default()).unwrap();
    assert_eq!((result.sent, result.received), (100, 100));
    assert!(!result.segmented);
}

/// The result rate includes the time until queued packets arrive.
#[test]
#[ignore = "thorough: measures rates on a quiet machine"]
fn a_queue_on_the_path_does_not_inflate_the_rate() {
    let sockets = loopback();
    let slow: Policy = Box::new(|_, datagram| {
        std::thread::sleep(Duration::from_micros(300));
        vec![datagram]
    });
    let relay = Relay::start(
        sockets.server.local_addr().unwrap(),
        slow,
        forward_unchanged(),
    );
    let load = Load {
        packets: 64,
        payload_bytes: 100,
        ..load(relay.address, 8)
    };
    // If the relay has no core for some time, the trial counts packets as lost. So try several
    // times.
    let result = (0..100)
        .map(|_| run_trial(&load, &sockets, None, Control::default()).unwrap())
        .find(TrialResult::is_clean)
        .expect("one of the trials is clean");
    // 64 packets take at least 64 * 300 us.
    assert!(result.carried_mpps < 0.0034, "{result:?}");
}

#[test]
fn a_lossy_path_is_not_clean_and_lowers_the_rate() {
    let sockets = loopback();
    let relay = Relay::start(
        sockets.server.local_addr().unwrap(),
        rate_limit(),
        forward_unchanged(),
    );
    let load = load(relay.address, 1);
    let mut search = RateSearch::default();
    let mut trials = Vec::new();
    search
        .round(2, |offered| {
            let result = run_trial(&load, &sockets, offered, Control::default())?;
            trials.push(result.clone());
            Ok::<_, Error>(result)
        })
        .unwrap();
    assert_eq!(trials.len(), 2);
    assert!(!trials[0].is_clean() && trials[0].received < 3000);
    assert!(search.offered_mpps().unwrap() < trials[0].sent_mpps);
}

#[test]
fn trial_refuses_a_load_out_of_range() {
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
        let error = run_trial(&bad, &sockets, None, Control::default()).unwrap_err();
        assert!(error.to_string().contains(option), "{error}");
    }
}
