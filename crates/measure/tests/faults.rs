//! The probe on a path that loses, duplicates, reorders, delays, damages or transforms packets.
#![allow(clippy::float_cmp, reason = "exact by construction")]

mod support;

use std::time::{Duration, Instant};

use myelin_measure::{Config, Control, Matching, Mode, ProbeResult, Stop, probe};
use support::{Policy, Relay, config, forward_unchanged, sockets};

fn probe_over_relay(mut config: Config, forward: Policy, reply: Policy) -> ProbeResult {
    let sockets = sockets();
    let relay = Relay::start(sockets.server.local_addr().unwrap(), forward, reply);
    config.destination = relay.address;
    probe(&config, &sockets, Control::default()).unwrap()
}

/// Applies `act` to each datagram whose number ends in 9. Number 0 is the hello, so `act` applies
/// to ten of the hundred packets.
fn change_each_tenth(mut act: impl FnMut(Vec<u8>) -> Vec<Vec<u8>> + Send + 'static) -> Policy {
    Box::new(move |n, datagram| {
        if n % 10 == 9 {
            act(datagram)
        } else {
            vec![datagram]
        }
    })
}

#[test]
fn lost_packets_of_both_directions_are_counted() {
    for (forward, reply) in [
        (change_each_tenth(|_| vec![]), forward_unchanged()),
        (forward_unchanged(), change_each_tenth(|_| vec![])),
    ] {
        let result = probe_over_relay(
            Config {
                timeout: Duration::from_secs(2),
                ..config(Mode::Blocking)
            },
            forward,
            reply,
        );
        assert_eq!(
            (
                result.counts.received,
                result.counts.lost,
                result.counts.late
            ),
            (90, 10, 0)
        );
        assert!((result.loss_ratio - 0.1).abs() < 1e-12);
    }
}

#[test]
fn duplicates_are_counted() {
    for mode in [Mode::Inline, Mode::Blocking] {
        let result = probe_over_relay(
            config(mode),
            forward_unchanged(),
            change_each_tenth(|datagram| vec![datagram.clone(), datagram]),
        );
        assert_eq!(result.counts.received, 100, "{mode}");
        // The copy of the last packet may arrive after the end of the measurement.
        assert!(
            (9..=10).contains(&result.counts.duplicates),
            "{mode}: {:?}",
            result.counts
        );
    }
}

#[test]
fn reordering_is_counted() {
    for mode in [Mode::Inline, Mode::Blocking] {
        let mut held = None;
        let swap: Policy = Box::new(move |n, datagram| match n % 10 {
            5 => {
                held = Some(datagram);
                vec![]
            }
            6 => vec![datagram, held.take().unwrap()],
            _ => vec![datagram],
        });
        let result = probe_over_relay(config(mode), swap, forward_unchanged());
        assert_eq!(
            (result.counts.received, result.counts.reordered),
            (100, 10),
            "{mode}"
        );
    }
}

#[test]
fn late_answers_are_lost_and_counted_late() {
    let mut held = None;
    let delay: Policy = Box::new(move |n, datagram| match n {
        20 => {
            held = Some(datagram);
            vec![]
        }
        70 => vec![datagram, held.take().unwrap()],
        _ => vec![datagram],
    });
    let result = probe_over_relay(
        Config {
            // The held packet is 3 s late.
            interval: Duration::from_millis(60),
            timeout: Duration::from_millis(1500),
            count: 100,
            repeats: 1,
            ..config(Mode::Blocking)
        },
        delay,
        forward_unchanged(),
    );
    assert_eq!(
        (
            result.counts.received,
            result.counts.lost,
            result.counts.late
        ),
        (99, 1, 1)
    );
    assert_eq!(result.counts.reordered, 1);
}

#[test]
fn damage_behind_the_header_counts_as_corruption() {
    let flip = change_each_tenth(|mut datagram| {
        datagram[200] ^= 1;
        vec![datagram]
    });
    let result = probe_over_relay(config(Mode::Blocking), flip, forward_unchanged());
    assert_eq!((result.counts.received, result.counts.corrupted), (100, 10));

    let cut = change_each_tenth(|mut datagram| {
        datagram.truncate(100);
        vec![datagram]
    });
    let result = probe_over_relay(config(Mode::Blocking), forward_unchanged(), cut);
    assert_eq!((result.counts.received, result.counts.corrupted), (100, 10));

    let longer: Policy = Box::new(|_, mut datagram| {
        datagram.extend([7; 16]);
        vec![datagram]
    });
    let result = probe_over_relay(config(Mode::Blocking), longer, forward_unchanged());
    assert_eq!((result.counts.received, result.counts.corrupted), (100, 0));
}

#[test]
fn probe_reverts_known_keys_in_both_directions() {
    let xor = |key: u8| -> Policy {
        Box::new(move |_, datagram| vec![datagram.into_iter().map(|b| b ^ key).collect()])
    };
    for mode in [Mode::Inline, Mode::Blocking] {
        let result = probe_over_relay(
            Config {
                forward_key: 0x5a,
                reply_key: 0x33,
                ..config(mode)
            },
            xor(0x5a),
            xor(0x33),
        );
        assert_eq!(result.matching, Matching::ById);
        assert_eq!(
            (
                result.counts.received,
                result.counts.corrupted,
                result.counts.foreign
            ),
            (100, 0, 0)
        );
    }
}

#[test]
fn unknown_transformations_are_matched_by_order() {
    let reverse = || -> Policy {
        Box::new(|_, mut datagram| {
            datagram.reverse();
            vec![datagram]
        })
    };
    for mode in [Mode::Inline, Mode::Blocking] {
        for (forward, reply) in [
            (reverse(), forward_unchanged() as Policy),
            (forward_unchanged(), reverse()),
        ] {
            let base = Config { ..config(mode) };
            let result = probe_over_relay(base, forward, reply);
            assert_eq!(result.matching, Matching::ByOrder, "{mode}");
            assert_eq!(
                (
                    result.counts.received,
                    result.counts.lost,
                    result.counts.foreign
                ),
                (100, 0, 0),
                "{mode}"
            );
            let (rtt, forward) = (result.rtt.unwrap(), result.forward.unwrap());
            assert!(
                forward.p50_us > 0.0 && forward.p50_us < rtt.p50_us,
                "{mode}: the one-way delay comes from times that the server reports outside the packets"
            );
        }
    }
}

#[test]
fn matching_by_order_continues_after_a_loss() {
    let reverse_and_drop: Policy = Box::new(|n, mut datagram| {
        datagram.reverse();
        if n == 40 { vec![] } else { vec![datagram] }
    });
    let result = probe_over_relay(
        Config {
            timeout: Duration::from_secs(2),
            ..config(Mode::Blocking)
        },
        reverse_and_drop,
        forward_unchanged(),
    );
    assert_eq!(result.matching, Matching::ByOrder);
    assert_eq!((result.counts.received, result.counts.lost), (99, 1));
}

#[test]
fn a_run_without_answers_ends_early_with_a_result() {
    for mode in [Mode::Inline, Mode::Blocking] {
        let started = Instant::now();
        let result = probe_over_relay(
            Config {
                timeout: Duration::from_millis(20),
                interval: Duration::ZERO,
                ..config(mode)
            },
            Box::new(|_, _| vec![]),
            forward_unchanged(),
        );
        assert_eq!(result.stopped, Some(Stop::NoAnswer), "{mode}");
        assert_eq!((result.counts.received, result.loss_ratio), (0, 1.0));
        assert!(result.rtt.is_none() && started.elapsed() < Duration::from_secs(60));
        let row = serde_json::to_value(&result).unwrap();
        assert_eq!(row["stopped"], "no_answer");
        assert!(row.get("rtt_p50_us").is_none());
    }
}

/// Probes a path on which six packets are always in flight, so a packet arrives only after the
/// sixth packet behind it was sent.
fn probe_with_six_in_flight(mode: Mode) -> ProbeResult {
    // That is a delay of 30 ms at one packet every 5 ms. The hello has no delay.
    let mut in_flight = std::collections::VecDeque::new();
    let delay: Policy = Box::new(move |n, datagram| {
        if n == 0 {
            return vec![datagram];
        }
        in_flight.push_back(datagram);
        if in_flight.len() > 6 {
            in_flight.pop_front().into_iter().collect()
        } else {
            vec![]
        }
    });
    let paced = Config {
        interval: Duration::from_millis(5),
        count: 200,
        repeats: 1,
        ..config(mode)
    };
    probe_over_relay(paced, delay, forward_unchanged())
}

#[test]
fn sends_do_not_wait_for_long_delays() {
    for mode in [Mode::Inline, Mode::Blocking] {
        // If a send waited for the answers in flight, no answer would come.
        let result = probe_with_six_in_flight(mode);
        assert_eq!(
            (result.counts.received, result.counts.lost),
            (194, 6),
            "{mode}"
        );
    }
}

#[test]
#[ignore = "thorough: measures delays and late sends on a quiet machine"]
fn sends_keep_their_schedule_during_long_delays() {
    for mode in [Mode::Inline, Mode::Blocking] {
        let result = probe_with_six_in_flight(mode);
        assert!(
            result.counts.behind_schedule < 100,
            "{mode}: {:?}",
            result.counts
        );
        assert!(result.rtt.unwrap().p50_us > 25_000.0, "{mode}");
    }
}
