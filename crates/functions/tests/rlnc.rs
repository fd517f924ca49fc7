//! Tests `rlnc-encode`, `rlnc-recode` and `rlnc-decode` on frames.

mod common;

use common::{assert_valid, counters};
use myelin_functions::{Batch, Function, Packet, States, Verdict, instantiate};
use myelin_packet::fixtures::{self, build};
use myelin_packet::{Meta, checksum, parse};
use myelin_spec::{
    FunctionConfig, FunctionInstance, RlncCode, RlncCoded, RlncDecodeConfig, RlncDelivery,
    RlncEncodeConfig, RlncRecodeConfig, StateKey,
};
use proptest::prelude::*;

const ROOM: usize = 2048;

fn encoder(config: RlncEncodeConfig) -> Box<dyn Function> {
    instantiate(&FunctionConfig::RlncEncode(config)).unwrap()
}

fn recoder(config: RlncRecodeConfig) -> Box<dyn Function> {
    instantiate(&FunctionConfig::RlncRecode(config)).unwrap()
}

fn decoder(delivery: RlncDelivery) -> Box<dyn Function> {
    let config = RlncDecodeConfig {
        delivery,
        ..RlncDecodeConfig::default()
    };
    instantiate(&FunctionConfig::RlncDecode(config)).unwrap()
}

/// Runs `function` on the frames as one batch. Returns the forwarded and then the emitted frames.
fn run(function: &mut dyn Function, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut buffers: Vec<Vec<u8>> = frames
        .iter()
        .map(|frame| {
            let mut buffer = frame.clone();
            buffer.resize(ROOM, 0xa5);
            buffer
        })
        .collect();
    let mut batch = Batch::with_capacity(frames.len());
    for (i, (buffer, frame)) in buffers.iter_mut().zip(frames).enumerate() {
        let meta = Meta::new(i as u64, 2, 3, 0, &parse(frame).unwrap());
        batch.push(Packet::new(buffer, 0, frame.len(), meta, 0).unwrap());
    }
    let mut emitted: Vec<(Meta, Vec<u8>)> = Vec::new();
    let dropped = function.process_batch(&mut batch, &mut emitted);
    assert_eq!(batch.len() + dropped, frames.len());
    for packet in batch.packets() {
        assert_eq!(packet.headers(), &parse(packet.bytes()).unwrap());
    }
    let forwarded = batch.packets().iter().map(|packet| packet.bytes().to_vec());
    let out: Vec<_> = forwarded
        .chain(emitted.into_iter().map(|(_, frame)| frame))
        .collect();
    for frame in &out {
        assert_valid(frame);
        assert!(frame.len() - usize::from(parse(frame).unwrap().l3) <= 1500);
    }
    out
}

/// Runs `function` on one frame after the other.
fn run_each(function: &mut dyn Function, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let one = |frame: &Vec<u8>| run(function, std::slice::from_ref(frame));
    frames.iter().flat_map(one).collect()
}

/// Returns frames of all kinds that the code supports: both families, tags, options, extension
/// headers, no checksum, all sizes.
fn frames(count: usize) -> Vec<Vec<u8>> {
    (0..count)
        .map(|i| {
            let payload: Vec<u8> = (0..(i * 97) % 1400).map(|k| (k * k + i) as u8).collect();
            let (v4, v6) = (
                (build::client_v4(), build::server_v4()),
                (build::client_v6(), build::server_v6()),
            );
            match i % 6 {
                0 => build::udp(v4.0, v4.1, &payload),
                1 => build::udp(v6.0, v6.1, &payload),
                2 => build::with_tags(build::udp(v4.0, v4.1, &payload), &[build::VLAN]),
                3 => {
                    let short = &payload[..payload.len().min(1300)];
                    let option = build::options_header(0, 1);
                    build::with_extensions(build::udp(v6.0, v6.1, short), &[option])
                }
                4 => {
                    let mut frame = build::udp(v4.0, v4.1, &payload);
                    frame[40..42].fill(0);
                    frame
                }
                _ => {
                    let segment = build::udp_segment(v4.0, v4.1, &payload);
                    build::ip(v4.0.ip(), v4.1.ip(), 17, &segment)
                }
            }
        })
        .collect()
}

/// Returns the frames without their Ethernet headers, sorted, because a recovered packet has the
/// tags of another packet.
fn ip_packets(frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let strip = |frame: &Vec<u8>| frame[parse(frame).unwrap().l3.into()..].to_vec();
    let mut packets: Vec<_> = frames.iter().map(strip).collect();
    packets.sort();
    packets
}

#[test]
fn without_loss_every_frame_round_trips() {
    let frames = frames(60);
    let mut encoder = encoder(RlncEncodeConfig::default());
    let sent = run(&mut *encoder, &frames);
    assert_eq!(sent.len(), 75);
    for delivery in [RlncDelivery::Immediate, RlncDelivery::InOrder] {
        let mut decoder = decoder(delivery);
        assert_eq!(run(&mut *decoder, &sent), frames);
        let counters = counters(&*decoder);
        assert_eq!((counters["source"], counters["coded"]), (60, 15));
        assert_eq!((counters["redundant"], counters["recovered"]), (15, 0));
    }
    let counters = counters(&*encoder);
    assert_eq!((counters["source"], counters["repair"]), (60, 15));
}

#[test]
fn lost_frames_are_recovered_bit_for_bit() {
    let frames = frames(64);
    for code in [RlncCode::Window, RlncCode::Block] {
        let config = RlncEncodeConfig {
            code,
            ..RlncEncodeConfig::default()
        };
        let mut encoder = encoder(config);
        let mut sent = run_each(&mut *encoder, &frames);
        assert_eq!(sent.len(), 80);
        // Loses one source packet of every five packets.
        let mut i = 0;
        sent.retain(|_| {
            i += 1;
            i % 5 != 2
        });
        let mut decoder = decoder(RlncDelivery::Immediate);
        let out = run_each(&mut *decoder, &sent);
        assert_eq!(ip_packets(&out), ip_packets(&frames), "{code:?}");
        let counters = counters(&*decoder);
        assert!(counters["recovered"] >= 12);
        assert_eq!((counters["corrupt"], counters["malformed"]), (0, 0));
    }
}

#[test]
fn delivery_is_in_order_within_and_across_batches() {
    let frames: Vec<_> = (0..64).map(|i| build::udp_v4(100 + i)).collect();
    for batch in [1, 7, 32, 80] {
        let mut encoder = encoder(RlncEncodeConfig::default());
        let mut sent = run_each(&mut *encoder, &frames);
        sent.remove(21);
        sent.remove(11);
        sent.remove(3);
        sent.swap(30, 31);
        let mut decoder = decoder(RlncDelivery::InOrder);
        let out: Vec<_> = sent
            .chunks(batch)
            .flat_map(|sent| run(&mut *decoder, sent))
            .collect();
        assert_eq!(out, frames, "batches of {batch}");
    }
}

#[test]
fn a_stored_packet_keeps_its_own_headers() {
    let header = |mut frame: Vec<u8>, vlan: u8, hops: u8, class: u8| {
        frame[15] = vlan;
        if parse(&frame).unwrap().flags.is_ipv6() {
            frame[18] = 0x60 | class >> 4;
            frame[19] = class << 4;
            frame[25] = hops;
        } else {
            frame[19] = class;
            frame[26] = hops;
            frame[28..30].fill(0);
            let sum = checksum::checksum(&frame[18..38]);
            frame[28..30].copy_from_slice(&sum.to_be_bytes());
        }
        frame
    };
    let tagged = |frame| build::with_tags(frame, &[build::VLAN]);
    let frames = [
        header(tagged(build::udp_v4(1)), 1, 64, 0),
        header(tagged(build::udp_v4(2)), 2, 63, 0xb8),
        header(tagged(build::udp_v4(3)), 3, 62, 0x21),
        header(tagged(build::udp_v6(4)), 4, 61, 0xa5),
        build::udp_v6(5),
    ];
    let config = RlncEncodeConfig {
        redundancy: 0,
        ..RlncEncodeConfig::default()
    };
    let mut sent = run_each(&mut *encoder(config), &frames);
    sent[1..].rotate_left(1);
    let mut decoder = decoder(RlncDelivery::InOrder);
    assert_eq!(run_each(&mut *decoder, &sent), frames);
}

#[test]
fn in_order_delivery_waits_for_a_lost_frame_until_the_timer() {
    let frames: Vec<_> = (0..4).map(|i| build::udp_v4(100 + i)).collect();
    let config = RlncEncodeConfig {
        redundancy: 0,
        ..RlncEncodeConfig::default()
    };
    let mut sent = run_each(&mut *encoder(config), &frames);
    sent.remove(1);
    let mut decoder = decoder(RlncDelivery::InOrder);
    assert_eq!(decoder.timer_period_ns(), Some(10_000_000));
    decoder.set_time(5);
    assert_eq!(run_each(&mut *decoder, &sent), frames[..1]);
    let mut emitted: Vec<(Meta, Vec<u8>)> = Vec::new();
    decoder.run_timer(10_000_004, &mut emitted);
    assert_eq!(emitted, []);
    decoder.run_timer(10_000_005, &mut emitted);
    let out: Vec<_> = emitted.into_iter().map(|(_, frame)| frame).collect();
    assert_eq!(out, frames[2..]);
    assert_eq!(counters(&*decoder)["lost"], 1);
}

#[test]
fn the_timer_sends_a_repair_packet_for_the_last_packets() {
    let frames = frames(2);
    for code in [RlncCode::Window, RlncCode::Block] {
        let config = RlncEncodeConfig {
            code,
            ..RlncEncodeConfig::default()
        };
        let mut encoder = encoder(config);
        encoder.set_time(1000);
        let sent = run_each(&mut *encoder, &frames);
        let mut emitted: Vec<(Meta, Vec<u8>)> = Vec::new();
        assert_eq!(encoder.timer_period_ns(), Some(1_000_000));
        encoder.run_timer(1_000_999, &mut emitted);
        assert_eq!(emitted, []);
        encoder.run_timer(1_001_000, &mut emitted);
        assert_eq!(emitted.len(), 1);
        encoder.run_timer(9_000_000, &mut emitted);
        assert_eq!(emitted.len(), 1);
        let mut decoder = decoder(RlncDelivery::Immediate);
        let out = run_each(&mut *decoder, &[sent[0].clone(), emitted[0].1.clone()]);
        assert_eq!(ip_packets(&out), ip_packets(&frames));
    }
}

#[test]
fn a_recoder_repairs_losses_before_it() {
    let frames = frames(40);
    for coded in [RlncCoded::Pass, RlncCoded::Replace] {
        let mut encoder = encoder(RlncEncodeConfig::default());
        let sent = run_each(&mut *encoder, &frames);
        // Loses the third packet of every five before the recoder, and every sixth source packet
        // after the recoder.
        let keep = |n: usize| move |(i, _): &(usize, Vec<u8>)| i % 5 != n;
        let first: Vec<_> = sent
            .into_iter()
            .enumerate()
            .filter(keep(2))
            .map(|(_, f)| f)
            .collect();
        let config = RlncRecodeConfig {
            coded,
            redundancy: 500_000,
            ..RlncRecodeConfig::default()
        };
        let mut recoder = recoder(config);
        let mut lost = 0;
        let second: Vec<_> = run_each(&mut *recoder, &first)
            .into_iter()
            .filter(|frame| {
                let is_source = frame.last() == Some(&0xa1);
                lost += usize::from(is_source);
                !is_source || lost % 6 != 1
            })
            .collect();
        let mut decoder = decoder(RlncDelivery::Immediate);
        let out = run_each(&mut *decoder, &second);
        assert_eq!(ip_packets(&out)[..], ip_packets(&frames)[..], "{coded:?}");
        let counters = counters(&*recoder);
        assert_eq!(
            (counters["source"], counters["coded"], counters["malformed"]),
            (30, 10, 0)
        );
        let replaced = if coded == RlncCoded::Replace { 10 } else { 0 };
        assert_eq!(counters["replaced"], replaced);
    }
}

#[test]
fn fields_that_routers_change_do_not_affect_recovery() {
    let frames: Vec<_> = (0..32)
        .map(|i| {
            if i % 2 == 0 {
                build::udp_v4(i)
            } else {
                build::udp_v6(i)
            }
        })
        .collect();
    let mut sent = run_each(&mut *encoder(RlncEncodeConfig::default()), &frames);
    let routed = |frame: &[u8]| {
        let mut frame = frame.to_vec();
        if parse(&frame).unwrap().flags.is_ipv6() {
            frame[21] -= 1;
            // The traffic class 0xbb is another DSCP (46), and congestion experienced.
            frame[14] = 0x6b;
            frame[15] = 0xb0 | frame[15] & 0x0f;
        } else {
            frame[22] -= 1;
            frame[15] = 0xbb;
            frame[24..26].fill(0);
            let sum = checksum::checksum(&frame[14..34]);
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
        }
        frame
    };
    for frame in &mut sent {
        *frame = routed(frame);
    }
    // Loses one packet of each family, in windows that contain both.
    sent.remove(6);
    sent.remove(2);
    let out = run_each(&mut *decoder(RlncDelivery::Immediate), &sent);
    let expected: Vec<_> = frames.iter().map(|frame| routed(frame)).collect();
    assert_eq!(ip_packets(&out), ip_packets(&expected));
}

#[test]
fn packets_that_cannot_be_coded_are_dropped_and_counted() {
    let mut encoder = encoder(RlncEncodeConfig::default());
    for name in ["tcp-v4", "icmp", "udp-v4-surplus", "ipv4-fragment-first"] {
        let Some(fixture) = fixtures::all().into_iter().find(|f| f.name == name) else {
            continue;
        };
        assert_eq!(
            run(&mut *encoder, &[fixture.frame]),
            [] as [Vec<u8>; 0],
            "{name}"
        );
    }
    assert!(counters(&*encoder)["unsupported"] >= 2);
    // 1500 B less IPv4 and UDP header (28), repair identifier and type (9), and the unit's length
    // (3): 1460 B.
    assert_eq!(run(&mut *encoder, &[build::udp_v4(1432)]).len(), 1);
    assert_eq!(run(&mut *encoder, &[build::udp_v4(1433)]).len(), 0);
    assert_eq!(counters(&*encoder)["too-long"], 1);
    // For IPv6, the header of the repair packet is longer.
    assert_eq!(run(&mut *encoder, &[build::udp_v6(1392)]).len(), 1);
    assert_eq!(run(&mut *encoder, &[build::udp_v6(1393)]).len(), 0);
    // The third and fourth source packets cause a repair packet, 1500 B long and IPv4.
    assert_eq!(run(&mut *encoder, &[build::udp_v4(10)]).len(), 1);
    let out = run(&mut *encoder, &[build::udp_v4(10)]);
    assert_eq!(out.iter().map(Vec::len).max(), Some(14 + 1500));

    let frame = build::udp_v4(10);
    let meta = Meta::new(0, 2, 3, 0, &parse(&frame).unwrap());
    let mut buffer = [&frame[..], &[0; 4]].concat();
    let mut packet = Packet::new(&mut buffer, 0, frame.len(), meta, 0).unwrap();
    let mut none: Vec<(Meta, Vec<u8>)> = Vec::new();
    assert_eq!(encoder.process(&mut packet, &mut none), Verdict::Drop);
    assert_eq!(counters(&*encoder)["no-room"], 1);

    let mut decoder = decoder(RlncDelivery::Immediate);
    let mut recoder = recoder(RlncRecodeConfig::default());
    for function in [&mut decoder, &mut recoder] {
        let plain = [build::udp_v4(20), build::tcp_v4(20)];
        assert_eq!(run(&mut **function, &plain), [] as [Vec<u8>; 0]);
        assert_eq!(counters(&**function)["malformed"], 2);
    }
}

#[test]
fn a_damaged_repair_packet_gives_no_wrong_packet() {
    let frames: Vec<_> = (0..4).map(|i| build::udp_v4(100 + i)).collect();
    let sent = run_each(&mut *encoder(RlncEncodeConfig::default()), &frames);
    let mut decoder = decoder(RlncDelivery::Immediate);
    let mut damaged = sent[4].clone();
    damaged[100] ^= 1;
    damaged[40..42].fill(0);
    let out = run_each(&mut *decoder, &[&sent[..3], &[damaged]].concat());
    assert_eq!(out, frames[..3]);
    assert_eq!(counters(&*decoder)["corrupt"], 1);
}

#[test]
fn the_code_continues_after_a_live_change() {
    let frames: Vec<_> = (0..16).map(|i| build::udp_v4(100 + i)).collect();
    let mut states = States::default();
    let mut make = |config| {
        let instance = FunctionInstance {
            state: Some(StateKey {
                chain: "tactile".into(),
                function: "coder".into(),
            }),
            ..FunctionInstance::from(config)
        };
        states.instantiate(&instance).unwrap()
    };
    let config = RlncEncodeConfig::default();
    let mut old = make(FunctionConfig::RlncEncode(config));
    let mut sent = run_each(&mut *old, &frames[..8]);
    let changed = RlncEncodeConfig {
        redundancy: 1_000_000,
        ..config
    };
    let mut new = make(FunctionConfig::RlncEncode(changed));
    drop(old);
    sent.extend(run_each(&mut *new, &frames[8..]));
    assert_eq!(sent.len(), 8 + 2 + 8 + 8);
    assert_eq!(counters(&*new)["source"], 16);
    let out = run_each(&mut *decoder(RlncDelivery::InOrder), &sent);
    assert_eq!(out, frames);
}

#[test]
fn the_timer_of_the_next_generation_delivers_stored_packets() {
    let frames: Vec<_> = (0..3).map(|i| build::udp_v4(100 + i)).collect();
    let mut states = States::default();
    let mut make = |config| {
        let instance = FunctionInstance {
            state: Some(StateKey {
                chain: "tactile".into(),
                function: "coder".into(),
            }),
            ..FunctionInstance::from(config)
        };
        states.instantiate(&instance).unwrap()
    };
    let config = FunctionConfig::RlncEncode(RlncEncodeConfig::default());
    let mut old = make(config.clone());
    let mut sent = run_each(&mut *old, &frames);
    let mut new = make(config);
    drop(old);
    let mut emitted: Vec<(Meta, Vec<u8>)> = Vec::new();
    new.run_timer(1_000_000, &mut emitted);
    assert_eq!(emitted.len(), 1);
    assert_eq!(
        emitted[0].0.stamp_ns, 1_000_000,
        "the timer made the packet"
    );

    let config = FunctionConfig::RlncDecode(RlncDecodeConfig {
        delivery: RlncDelivery::InOrder,
        ..RlncDecodeConfig::default()
    });
    let mut old = make(config.clone());
    sent.remove(1);
    assert_eq!(run(&mut *old, &sent), frames[..1]);
    let mut new = make(config);
    drop(old);
    emitted.clear();
    new.run_timer(10_000_000, &mut emitted);
    assert_eq!(emitted.len(), 1);
    assert_eq!(emitted[0].1, frames[2]);
    assert_eq!(emitted[0].0.stamp_ns, 1, "the packet kept its stamp");
}

#[test]
fn a_decoder_follows_a_restarted_encoder() {
    let frames: Vec<_> = (0..8).map(|i| build::udp_v4(100 + i)).collect();
    let mut decoder = decoder(RlncDelivery::InOrder);
    let mut out = Vec::new();
    for round in 0..2 {
        let mut encoder = encoder(RlncEncodeConfig::default());
        // The encoder derives its first encoding symbol identifier from the first packet's stamp.
        let skipped = run(&mut *encoder, &frames[..=round]);
        assert!(skipped.len() > round);
        let sent = run_each(&mut *encoder, &frames);
        out.extend(run_each(&mut *decoder, &sent));
    }
    assert_eq!(out[..8], frames);
    assert!(out.len() >= 8);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Loses, duplicates and reorders packets before and after a recoder. The decoder outputs only
    /// sent frames, and no frame twice.
    #[test]
    fn every_output_frame_was_sent_and_leaves_once(
        outcomes in prop::collection::vec((0..8_u8, 0..8_u8), 100),
        in_order: bool,
        replace: bool,
        batch in 1..33_usize,
    ) {
        let frames: Vec<_> = (0..100)
            .map(|i| if i % 3 == 0 { build::udp_v6(i + 1) } else { build::udp_v4(i + 1) })
            .collect();
        let sent = run_each(&mut *encoder(RlncEncodeConfig::default()), &frames);
        let transmit = |sent: Vec<Vec<u8>>, outcome: &dyn Fn(usize) -> u8| {
            let mut arrived: Vec<Vec<u8>> = Vec::new();
            for (i, frame) in sent.into_iter().enumerate() {
                match outcome(i % outcomes.len()) {
                    0 => {}
                    1 => arrived.extend([frame.clone(), frame]),
                    2 if !arrived.is_empty() => arrived.insert(arrived.len() - 1, frame),
                    _ => arrived.push(frame),
                }
            }
            arrived
        };
        let config = RlncRecodeConfig {
            coded: if replace { RlncCoded::Replace } else { RlncCoded::Pass },
            ..RlncRecodeConfig::default()
        };
        let sent = transmit(sent, &|i| outcomes[i].0);
        let sent = run_each(&mut *recoder(config), &sent);
        let sent = transmit(sent, &|i| outcomes[i].1);
        let delivery = if in_order { RlncDelivery::InOrder } else { RlncDelivery::Immediate };
        let mut decoder = decoder(delivery);
        let mut out = Vec::new();
        for sent in sent.chunks(batch) {
            out.extend(run(&mut *decoder, sent));
        }
        let positions: Vec<_> = out
            .iter()
            .map(|frame| frames.iter().position(|other| other == frame))
            .collect();
        prop_assert!(positions.iter().all(Option::is_some));
        prop_assert!(!in_order || positions.is_sorted());
        let mut unique = positions.clone();
        unique.sort_unstable();
        unique.dedup();
        prop_assert_eq!(unique.len(), positions.len());
        prop_assert_eq!(counters(&*decoder)["corrupt"], 0);
    }

    /// No datagram makes the functions panic.
    #[test]
    fn any_bytes_cause_no_panic(
        payloads in prop::collection::vec((prop::collection::vec(any::<u8>(), 1..400), 0..5_u8), 1..40),
        in_order: bool,
    ) {
        let delivery = if in_order { RlncDelivery::InOrder } else { RlncDelivery::Immediate };
        let replace = RlncRecodeConfig { coded: RlncCoded::Replace, ..RlncRecodeConfig::default() };
        let mut functions = [decoder(delivery), recoder(replace)];
        let mut none: Vec<(Meta, Vec<u8>)> = Vec::new();
        for (mut payload, kind) in payloads {
            *payload.last_mut().unwrap() = 0xa0 + kind;
            // The identifiers are small and close to each other.
            if payload.len() > 16 {
                let (count, esi) = (payload[3] % 70, payload[7]);
                payload[..8].copy_from_slice(&[0, 0, 0, count, 0, 0, 0, esi]);
                if kind == 3 {
                    payload[..5].copy_from_slice(&[0, 0, 0, esi, count]);
                }
            }
            let frame = build::udp(build::client_v4(), build::server_v4(), &payload);
            for function in &mut functions {
                let meta = Meta::new(0, 2, 3, 0, &parse(&frame).unwrap());
                let mut buffer = frame.clone();
                let mut packet = Packet::new(&mut buffer, 0, frame.len(), meta, 0).unwrap();
                function.process(&mut packet, &mut none);
                function.run_timer(u64::MAX, &mut none);
            }
        }
    }
}
