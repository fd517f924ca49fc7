//! Tests a chain whose functions run in separate processes, with real packets.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{
    ADAPTIVE, EndHost, Network, TO_SERVER, UdpPath, assert_sleeping, chain, config, connect_udp,
    drain, echo, flood, forward_function, is_root, ready_ms, wait_until,
};
use myelin_dataplane::{Error, Idle, Pipeline, RingEnds};
use myelin_spec::{FunctionConfig, XorConfig};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A chain to the server as a pipeline. The first process alone runs the chain to the client.
struct PipelineFixture {
    path: UdpPath,
    pipeline: Pipeline,
}

fn xor(key: u8) -> FunctionConfig {
    FunctionConfig::Xor(XorConfig { key })
}

impl PipelineFixture {
    fn new(network: &Network, batch: u16, idle: Idle, functions: Vec<FunctionConfig>) -> Self {
        let mut path = UdpPath::new(network, config(batch, idle), forward_function());
        path.worker.remove_chain(TO_SERVER, 0).unwrap();
        let chain = chain(TO_SERVER, functions, path.server);
        let pipeline = Pipeline::deploy(&mut path.worker, &chain, |_| config(batch, idle)).unwrap();
        Self { path, pipeline }
    }

    /// Checks that lent and free frames add up to all frames, and that each stage keeps at most 64
    /// frames.
    fn assert_all_frames_accounted(&self) {
        let stages = self.pipeline.stages().len();
        let is_complete = || {
            let counts = self.path.count_frames();
            let in_stages = counts.lent - counts.in_rings.min(counts.lent);
            counts.in_two_rings == 0
                && counts.lent + counts.free == counts.frames
                && in_stages <= stages * 64
        };
        assert!(
            wait_until(is_complete),
            "{:?} {:?} {:?}",
            self.path.count_frames(),
            self.rings(),
            self.path.worker.stats().worker()
        );
    }

    /// Returns for each ring its ends, the enqueued descriptors, the occupancy and the capacity.
    fn rings(&self) -> Vec<(RingEnds, u64, u32, u32)> {
        let reader = self.pipeline.reader(&self.path.worker);
        let rings = reader.rings();
        rings
            .map(|(ends, ring)| (ends, ring.enqueued(), ring.occupancy(), ring.capacity()))
            .collect()
    }

    fn pid(&self, stage: usize) -> Pid {
        Pid::from_raw(self.pipeline.stages()[stage].handle.pid().cast_signed())
    }
}

#[test]
fn udp_passes_all_processes_in_every_idle_mode_and_batch_size() {
    if !is_root() {
        return;
    }
    for (idle, batch) in [
        (Idle::Sleep, 1),
        (Idle::Sleep, 32),
        (ADAPTIVE, 1),
        (ADAPTIVE, 32),
    ] {
        let network = Network::new();
        let functions = vec![xor(0x5a), FunctionConfig::Forward, xor(0x0f)];
        let fixture = PipelineFixture::new(&network, batch, idle, functions);
        assert_eq!(
            fixture.pipeline.stages().len(),
            2,
            "the first process runs one function"
        );
        let (client, server) = connect_udp(&network);
        for i in 0..100_usize {
            let sent: Vec<u8> = (0..=i * 14).map(|j| (i + j) as u8).collect();
            let expected: Vec<u8> = sent.iter().map(|byte| byte ^ 0x55).collect();
            echo(&client, &server, &sent, &expected).unwrap();
        }
        let head = &fixture.path.worker;
        let left = || fixture.pipeline.reader(head).stats().unwrap().transmitted == 100;
        assert!(wait_until(left));
        let stats = fixture.pipeline.reader(head).stats().unwrap();
        for position in &stats.positions {
            assert_eq!((position.packets_in, position.packets_out()), (100, 100));
        }
        assert_eq!((stats.positions.len(), stats.transmit_drops), (3, 0));
        assert_eq!(stats.sojourn.count(), 100);
        assert!(
            stats.sojourn.min_ns().unwrap() > 100,
            "no packet is that fast"
        );
        // The packets enqueued in each ring: to the first stage, to the second stage, back to the
        // first process. The first stage returned no packet.
        let seen = [
            ((None, Some(1)), 100),
            ((Some(1), Some(2)), 100),
            ((Some(2), None), 100),
            ((Some(1), None), 0),
        ];
        // The rings are empty and hold 1024 descriptors.
        let seen = seen.map(|(ends, enqueued)| (ends, enqueued, 0, 1024));
        assert_eq!(fixture.rings(), seen);
        fixture.assert_all_frames_accounted();
        let PipelineFixture { mut path, pipeline } = fixture;
        pipeline.remove(&mut path.worker).unwrap();
        path.assert_all_frames_accounted();
    }
}

#[test]
fn frames_of_dropped_packets_return_to_the_first_process() {
    if !is_root() {
        return;
    }
    let network = Network::new();
    let mut rule = myelin_packet::rules::Rule::any(myelin_packet::rules::Action::Deny);
    rule.protocol = Some(17);
    let firewall = FunctionConfig::Firewall(myelin_spec::FirewallConfig {
        rules: vec![rule],
        default: myelin_packet::rules::Action::Allow,
        fragments: myelin_spec::FragmentPolicy::Drop,
    });
    let functions = vec![FunctionConfig::Forward, firewall, FunctionConfig::Forward];
    let fixture = PipelineFixture::new(&network, 32, ADAPTIVE, functions);
    let (client, _server) = connect_udp(&network);
    let read = || {
        let reader = fixture.pipeline.reader(&fixture.path.worker);
        reader.stats().unwrap()
    };
    // Drop more packets than there are frames. On a busy machine the ring to the firewall is often
    // full, so the firewall does not see all packets.
    let frames = u64::from(fixture.path.worker.umem().frames());
    let deadline = Instant::now() + Duration::from_secs(60);
    while read().positions[1].drops <= 2 * frames {
        assert!(Instant::now() < deadline, "{:?}", read().positions);
        flood(&fixture.path, &client, 1_000);
    }
    fixture.assert_all_frames_accounted();
    let stats = read();
    assert_eq!(stats.positions[1].packets_out(), 0);
    assert_eq!(stats.positions[2].packets_in, 0);
    assert_eq!(
        fixture.path.worker.stats().worker().received,
        stats.positions[0].packets_in,
        "a returned frame is no packet"
    );
}

#[test]
fn a_killed_stage_loses_only_the_packets_it_was_processing() {
    if !is_root() {
        return;
    }
    let network = Network::new();
    let functions = vec![FunctionConfig::Forward, xor(1), FunctionConfig::Forward];
    let mut fixture = PipelineFixture::new(&network, 32, ADAPTIVE, functions);
    let (client, server) = connect_udp(&network);
    let head = fixture.path.worker.pid();
    for round in 0..8_u8 {
        let stage = usize::from(round % 2);
        let other = fixture.pid(1 - stage);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    client.send(&[round; 64]).unwrap();
                }
            });
            std::thread::sleep(Duration::from_millis(20 + u64::from(round)));
            kill(fixture.pid(stage), Signal::SIGKILL).unwrap();
            let handle = &mut fixture.pipeline.stages_mut()[stage].handle;
            while handle.is_alive() {
                std::thread::yield_now();
            }
            handle.restart().unwrap();
            std::thread::sleep(Duration::from_millis(10));
            stop.store(true, Ordering::Relaxed);
        });
        drain(&client, &server);
        fixture.assert_all_frames_accounted();
        echo(&client, &server, &[round; 100], &[round ^ 1; 100]).unwrap();
        assert_eq!(
            fixture.pid(1 - stage),
            other,
            "the other stage keeps running"
        );
    }
    assert_eq!(fixture.path.worker.pid(), head);
    let stats = fixture
        .pipeline
        .reader(&fixture.path.worker)
        .stats()
        .unwrap();
    // If no ring was full, each kill loses at most the stage's batch.
    let missing = stats.positions[0].packets_out() - stats.transmitted - stats.transmit_drops;
    assert!(missing <= 8 * 64, "{missing} {stats:?}");
}

#[test]
fn a_restarted_first_process_recovers_its_frames() {
    if !is_root() {
        return;
    }
    let network = Network::new();
    let functions = vec![FunctionConfig::Forward, xor(7), FunctionConfig::Forward];
    let mut fixture = PipelineFixture::new(&network, 32, ADAPTIVE, functions);
    let (client, server) = connect_udp(&network);
    for round in 0..5_u8 {
        for _ in 0..2000 {
            client.send(&[round; 64]).unwrap();
        }
        let head = Pid::from_raw(fixture.path.worker.pid().cast_signed());
        kill(head, Signal::SIGKILL).unwrap();
        assert!(wait_until(|| !fixture.path.worker.is_alive()));
        fixture.path.worker.restart().unwrap();
        drain(&client, &server);
        fixture.assert_all_frames_accounted();
        echo(&client, &server, &[round; 100], &[round ^ 7; 100]).unwrap();
    }
}

#[test]
fn a_pipeline_removed_while_the_first_process_is_dead_loses_no_frames() {
    if !is_root() {
        return;
    }
    let network = Network::new();
    let fixture = PipelineFixture::new(&network, 32, ADAPTIVE, vec![FunctionConfig::Forward; 3]);
    let (client, server) = connect_udp(&network);
    echo(&client, &server, b"before", b"before").unwrap();
    let PipelineFixture { mut path, pipeline } = fixture;
    let head = Pid::from_raw(path.worker.pid().cast_signed());
    kill(head, Signal::SIGKILL).unwrap();
    assert!(wait_until(|| !path.worker.is_alive()));
    // These packets stay in the rings.
    for _ in 0..100 {
        client.send(b"meanwhile").unwrap();
    }
    let error = pipeline.remove(&mut path.worker).unwrap_err();
    assert!(matches!(error, Error::Control { .. }), "{error}");
    path.worker.restart().unwrap();
    path.assert_all_frames_accounted();
    // The borrower numbers are also free again.
    let chain = chain(TO_SERVER, vec![FunctionConfig::Forward; 3], path.server);
    let pipeline = Pipeline::deploy(&mut path.worker, &chain, |_| config(32, ADAPTIVE)).unwrap();
    drain(&client, &server);
    echo(&client, &server, b"after", b"after").unwrap();
    pipeline.remove(&mut path.worker).unwrap();
    path.assert_all_frames_accounted();
}

#[test]
fn an_idle_pipeline_sleeps() {
    check_idle_pipeline(false);
}

#[test]
#[ignore = "thorough: measures the processor time of workers without packets"]
fn an_idle_pipeline_takes_no_time() {
    check_idle_pipeline(true);
}

fn check_idle_pipeline(measured: bool) {
    if !is_root() {
        return;
    }
    let network = Network::new();
    let fixture = PipelineFixture::new(&network, 1, ADAPTIVE, vec![FunctionConfig::Forward; 3]);
    let (client, server) = connect_udp(&network);
    if let Err(error) = echo(&client, &server, b"before", b"before") {
        let head = &fixture.path.worker;
        let stages: Vec<_> = fixture
            .pipeline
            .stages()
            .iter()
            .map(|s| s.handle.stats().worker())
            .collect();
        panic!(
            "{error} {:?} {:?} {:?} {stages:?} {:?}",
            fixture.rings(),
            fixture.pipeline.reader(head).stats().unwrap().positions,
            head.stats().worker(),
            fixture.path.count_frames()
        );
    }
    let pids = [
        fixture.path.worker.pid(),
        fixture.pid(0).as_raw() as u32,
        fixture.pid(1).as_raw() as u32,
    ];
    let stages = fixture.pipeline.stages();
    assert_sleeping(&[&fixture.path.worker, &stages[0].handle, &stages[1].handle]);
    if measured {
        let before = pids.map(ready_ms);
        std::thread::sleep(Duration::from_millis(600));
        for (pid, before) in pids.into_iter().zip(before) {
            assert!(ready_ms(pid) - before <= 30, "an idle process is busy");
        }
    }
    echo(&client, &server, b"after", b"after").unwrap();
    // A link that is down loses packets, but no frames.
    network.set_link(EndHost::Server, false);
    flood(&fixture.path, &client, 5000);
    network.set_link(EndHost::Server, true);
    client.send(b"first").unwrap();
    drain(&client, &server);
    fixture.assert_all_frames_accounted();
}
