//! Tests a worker process with real packets.

mod common;

use std::time::{Duration, Instant};

use common::{
    ADAPTIVE, Network, TO_CLIENT, TO_SERVER, UdpPath, assert_sleeping, config, connect_udp, echo,
    flood, forward_function, is_root, ready_ms, wait_until,
};
use myelin_dataplane::{Idle, WorkerHandle};
use myelin_spec::{FunctionConfig, XorConfig};

#[test]
fn udp_is_echoed_in_every_idle_mode_and_batch_size() {
    if !is_root() {
        return;
    }
    for idle in [Idle::Sleep, ADAPTIVE, Idle::Spin] {
        for batch in [1, 32] {
            let network = Network::new();
            let functions = vec![
                FunctionConfig::Forward,
                FunctionConfig::Xor(XorConfig { key: 0x5a }),
            ];
            let path = UdpPath::new(&network, config(batch, idle), functions);
            let (client, server) = connect_udp(&network);
            let start = Instant::now();
            for i in 0..200_usize {
                let sent: Vec<u8> = (0..=i * 7).map(|j| (i + j) as u8).collect();
                let expected: Vec<u8> = sent.iter().map(|byte| byte ^ 0x5a).collect();
                echo(&client, &server, &sent, &expected).unwrap();
            }
            let stats = path.worker.stats();
            // The worker counts a packet after it has left.
            let counted = || stats.worker().transmitted == 400;
            assert!(wait_until(counted), "{:?}", stats.worker());
            let to_server = stats.chain(TO_SERVER, 0).unwrap();
            for position in &to_server.positions {
                assert_eq!((position.packets_in, position.packets_out()), (200, 200));
            }
            assert_eq!((to_server.transmitted, to_server.transmit_drops), (200, 0));
            assert_eq!(to_server.sojourn.count(), 200);
            let longest = Duration::from_nanos(to_server.sojourn.max_ns().unwrap());
            assert!(longest < start.elapsed(), "the stamp is from another clock");
            assert!(
                to_server.sojourn.min_ns().unwrap() > 100,
                "no packet is that fast"
            );
            assert_eq!(stats.chain(TO_CLIENT, 0).unwrap().transmitted, 200);
            let worker = stats.worker();
            assert_eq!(worker.received, 400);
            assert_eq!((worker.unknown_chain, worker.malformed), (0, 0));
            assert!(
                worker.kicks <= 400,
                "at most one kick per packet: {}",
                worker.kicks
            );
            assert_eq!(worker.sleeps > 0, idle != Idle::Spin);
            path.assert_all_frames_accounted();
            path.worker.shutdown().unwrap();
        }
    }
}

#[test]
fn an_idle_worker_frees_its_core_and_a_spinning_one_occupies_it() {
    check_idle_modes(false);
}

#[test]
#[ignore = "thorough: measures the processor time of workers without packets"]
fn an_idle_worker_takes_no_time_and_a_spinning_one_a_whole_core() {
    check_idle_modes(true);
}

fn check_idle_modes(measured: bool) {
    if !is_root() {
        return;
    }
    let time_ms = 600;
    for (idle, idles) in [(Idle::Sleep, true), (ADAPTIVE, true), (Idle::Spin, false)] {
        let network = Network::new();
        let path = UdpPath::new(&network, config(1, idle), forward_function());
        let (client, server) = connect_udp(&network);
        echo(&client, &server, b"before", b"before").unwrap();
        let pid = path.worker.pid();
        let before = ready_ms(pid);
        if measured {
            std::thread::sleep(Duration::from_millis(time_ms));
            let used = ready_ms(pid) - before;
            let limits = if idles {
                0..time_ms / 20
            } else {
                time_ms / 2..2 * time_ms
            };
            assert!(limits.contains(&used), "{idle:?}: {used} ms of {time_ms}");
        } else if idles {
            assert_sleeping(&[&path.worker]);
        } else {
            assert!(wait_until(|| ready_ms(pid) - before >= time_ms / 2));
            assert_eq!(path.worker.stats().worker().sleeps, 0);
        }
        echo(&client, &server, b"after", b"after").unwrap();
    }
}

#[test]
fn a_worker_sleeps_again_after_a_request_during_its_spin_time() {
    check_sleep_after_a_request(false);
}

#[test]
#[ignore = "thorough: measures the processor time of a worker without packets"]
fn a_worker_takes_no_time_after_a_request_during_its_spin_time() {
    check_sleep_after_a_request(true);
}

fn check_sleep_after_a_request(measured: bool) {
    // The spin time is longer than a request, so the loop is awake during the second request.
    let spin = Duration::from_millis(20);
    let mut worker = WorkerHandle::spawn(config(1, ADAPTIVE)).unwrap();
    for _ in 0..5 {
        worker.set_idle(Idle::Adaptive { spin }).unwrap();
        worker.set_idle(Idle::Adaptive { spin }).unwrap();
        // A worker that stays awake spins until the next request.
        if !measured {
            assert_sleeping(&[&worker]);
            continue;
        }
        std::thread::sleep(5 * spin);
        let before = ready_ms(worker.pid());
        std::thread::sleep(Duration::from_millis(200));
        let used = ready_ms(worker.pid()) - before;
        assert!(used <= 20, "{used} ms of 200");
    }
}

#[test]
fn a_worker_uses_at_most_24_mib() {
    if !is_root() {
        return;
    }
    let network = Network::new();
    let path = UdpPath::new(&network, config(32, ADAPTIVE), forward_function());
    let (client, _server) = connect_udp(&network);
    flood(&path, &client, 20_000);
    let status = std::fs::read_to_string(format!("/proc/{}/status", path.worker.pid())).unwrap();
    let resident_kib: u64 = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|number| number.parse().ok())
        .unwrap();
    println!("resident: {resident_kib} KiB");
    assert!(resident_kib <= 24 * 1024, "{resident_kib} KiB");
    let own = std::fs::read_to_string("/proc/self/smaps").unwrap();
    assert!(
        !own.contains("myelin-umem"),
        "the agent's side does not map the packets"
    );
}

#[test]
fn invalid_configurations_are_refused_with_a_reason() {
    let missing = WorkerHandle::spawn(myelin_dataplane::WorkerConfig::new("/nonexistent", "t"));
    let error = missing.unwrap_err().to_string();
    assert!(error.contains("/nonexistent"), "{error}");
    let mut wrong = config(0, Idle::Sleep);
    let error = WorkerHandle::spawn(wrong.clone()).unwrap_err().to_string();
    assert!(
        error.contains("batch size is 0: must be 1 to 256"),
        "{error}"
    );
    wrong.batch = 1;
    // This program is no worker.
    wrong.exe = "/bin/true".into();
    let error = WorkerHandle::spawn(wrong.clone()).unwrap_err().to_string();
    assert!(error.contains("set up"), "{error}");
    wrong = config(1, Idle::Sleep);
    wrong.core = Some(4000);
    let error = WorkerHandle::spawn(wrong).unwrap_err().to_string();
    assert!(error.contains("worker"), "{error}");
}

#[test]
fn a_sleeping_worker_receives_all_packets_of_a_burst() {
    if !is_root() {
        return;
    }
    let network = Network::new();
    let path = UdpPath::new(&network, config(1, Idle::Sleep), forward_function());
    let (client, _server) = connect_udp(&network);
    for round in 1..=20 {
        for _ in 0..90 {
            client.send(b"burst").unwrap();
        }
        let taken = || path.worker.stats().worker().received == round * 90;
        assert!(wait_until(taken), "{:?}", path.worker.stats().worker());
    }
    assert_eq!(path.worker.facts().overflowed(path.client), Some(0));
}

#[test]
fn only_the_loop_is_pinned_to_the_core() {
    let mut config = config(1, Idle::Sleep);
    config.core = Some(0);
    let worker = WorkerHandle::spawn(config).unwrap();
    let tasks = format!("/proc/{}/task", worker.pid());
    let cores: Vec<(bool, String)> = std::fs::read_dir(tasks)
        .unwrap()
        .map(|task| task.unwrap().path())
        .map(|task| {
            let status = std::fs::read_to_string(task.join("status")).unwrap();
            let field = |name| {
                let line = status.lines().find_map(|line| line.strip_prefix(name));
                line.unwrap().trim().to_owned()
            };
            let is_loop = field("Pid:") == worker.pid().to_string();
            (is_loop, field("Cpus_allowed_list:"))
        })
        .collect();
    assert_eq!(cores.len(), 2, "{cores:?}");
    let own = std::fs::read_to_string("/proc/self/status").unwrap();
    for (is_loop, allowed) in cores {
        if is_loop {
            assert_eq!(allowed, "0");
        } else {
            assert!(own.contains(&format!("Cpus_allowed_list:\t{allowed}\n")));
        }
    }
}
