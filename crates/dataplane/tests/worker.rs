//! Real packets through a real worker process.

mod common;

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use common::{BACK, End, FORTH, Network, Path, chain, config, cpu_ticks, privileged, wait_until};
use myelin_dataplane::{
    BusyPoll, CopyMode, Error, Idle, Role, WORKER_NAME, WorkerHandle, Xsk, XskConfig,
};
use myelin_spec::{FunctionConfig, XorConfig};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

const PORT: u16 = 9000;
const ADAPTIVE: Idle = Idle::Adaptive {
    spin: Duration::from_micros(50),
};

/// A client socket and a server socket, connected, with a time limit on receiving.
fn ends(network: &Network) -> (UdpSocket, UdpSocket) {
    let client = network.udp(End::Client, 0);
    let server = network.udp(End::Server, PORT);
    client.connect((End::Server.address(), PORT)).unwrap();
    for socket in [&client, &server] {
        socket
            .set_read_timeout(Some(Duration::from_secs(1)))
            .unwrap();
    }
    (client, server)
}

/// One packet there, seen by the server as `expected`, and back.
fn echo(
    client: &UdpSocket,
    server: &UdpSocket,
    sent: &[u8],
    expected: &[u8],
) -> std::io::Result<()> {
    let mut buffer = [0; 2048];
    client.send(sent)?;
    let (len, from) = server.recv_from(&mut buffer)?;
    assert_eq!(&buffer[..len], expected);
    server.send_to(&buffer[..len], from)?;
    let len = client.recv(&mut buffer)?;
    assert_eq!(&buffer[..len], expected);
    Ok(())
}

fn forward() -> Vec<FunctionConfig> {
    vec![FunctionConfig::Forward]
}

#[test]
fn udp_comes_back_in_every_idle_mode_and_batch_size() {
    if !privileged() {
        return;
    }
    for idle in [Idle::Sleep, ADAPTIVE, Idle::Spin] {
        for batch in [1, 32] {
            let network = Network::new();
            let functions = vec![
                FunctionConfig::Forward,
                FunctionConfig::Xor(XorConfig { key: 0x5a }),
            ];
            let path = Path::new(&network, config(batch, idle), functions);
            let (client, server) = ends(&network);
            for i in 0..200_usize {
                let sent: Vec<u8> = (0..=i * 7).map(|j| (i + j) as u8).collect();
                let expected: Vec<u8> = sent.iter().map(|byte| byte ^ 0x5a).collect();
                echo(&client, &server, &sent, &expected).unwrap();
            }
            let stats = path.worker.stats();
            // A packet is counted after it has left.
            let counted = || stats.worker().transmitted == 400;
            assert!(
                wait_until(Duration::from_secs(1), counted),
                "{:?}",
                stats.worker()
            );
            let forth = stats.chain(FORTH, 0).unwrap();
            for position in &forth.positions {
                assert_eq!((position.packets_in, position.packets_out), (200, 200));
            }
            assert_eq!((forth.transmitted, forth.transmit_drops), (200, 0));
            assert_eq!(forth.sojourn.count(), 200);
            let longest = Duration::from_nanos(forth.sojourn.max_ns().unwrap());
            assert!(
                longest < Duration::from_secs(1),
                "the stamp is not of this clock"
            );
            assert!(
                forth.sojourn.min_ns().unwrap() > 100,
                "nothing is that fast"
            );
            assert_eq!(stats.chain(BACK, 0).unwrap().transmitted, 200);
            let worker = stats.worker();
            assert_eq!(worker.received, 400);
            assert_eq!((worker.unknown_chain, worker.malformed), (0, 0));
            assert!(
                worker.kicks <= 400,
                "at most one kick a packet: {}",
                worker.kicks
            );
            assert_eq!(worker.sleeps > 0, idle != Idle::Spin);
            path.assert_all_frames_accounted();
            path.worker.shutdown().unwrap();
        }
    }
}

#[test]
fn an_idle_worker_costs_no_core_and_a_spinning_one_a_whole_one() {
    if !privileged() {
        return;
    }
    let time = Duration::from_millis(600);
    for (idle, idles) in [(Idle::Sleep, true), (ADAPTIVE, true), (Idle::Spin, false)] {
        let network = Network::new();
        let path = Path::new(&network, config(1, idle), forward());
        let (client, server) = ends(&network);
        echo(&client, &server, b"before", b"before").unwrap();
        let pid = path.worker.pid();
        let before = cpu_ticks(pid);
        std::thread::sleep(time);
        let used = Duration::from_millis(10 * (cpu_ticks(pid) - before) as u32 as u64);
        if idles {
            assert!(used <= time / 20, "{idle:?}: {used:?} of {time:?}");
        } else {
            // Others run on this machine too.
            assert!(used >= time / 5, "{idle:?}: {used:?} of {time:?}");
        }
        echo(&client, &server, b"after", b"after").unwrap();
    }
}

#[test]
fn a_killed_worker_is_replaced_without_losing_sockets_frames_or_counts() {
    if !privileged() {
        return;
    }
    let network = Network::new();
    let mut path = Path::new(&network, config(32, ADAPTIVE), forward());
    let (client, server) = ends(&network);
    for round in 0..8_u8 {
        // In the middle of traffic, so that frames are in hand.
        let flood = client.try_clone().unwrap();
        let sender = std::thread::spawn(move || {
            for i in 0..3000_u16 {
                flood.send(&i.to_be_bytes()).unwrap();
            }
        });
        std::thread::sleep(Duration::from_millis(u64::from(round)));
        kill(
            Pid::from_raw(path.worker.pid().cast_signed()),
            Signal::SIGKILL,
        )
        .unwrap();
        assert!(wait_until(Duration::from_secs(1), || !path
            .worker
            .is_alive()));
        sender.join().unwrap();
        path.worker.restart().unwrap();
        path.assert_all_frames_accounted();
        drain(&server);
        echo(&client, &server, &[round; 100], &[round; 100]).unwrap();
    }
    assert_eq!(path.worker.restarts(), 8);
    let forth = path.worker.stats().chain(FORTH, 0).unwrap();
    assert!(
        forth.positions[0].packets_in >= 8,
        "the new worker goes on counting"
    );
    // Killing it while it sleeps, several times, strands nothing either.
    let lent = path.worker.umem().lent().unwrap();
    for _ in 0..5 {
        path.worker.restart().unwrap();
        path.assert_all_frames_accounted();
    }
    assert!(path.worker.umem().lent().unwrap() <= lent + 64);
}

/// Reads what is there.
fn drain(socket: &UdpSocket) {
    socket.set_nonblocking(true).unwrap();
    let mut quiet = 0;
    while quiet < 10 {
        if socket.recv(&mut [0; 2048]).is_ok() {
            quiet = 0;
        } else {
            quiet += 1;
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    socket.set_nonblocking(false).unwrap();
}

/// Packets back to back for as long as it takes for the worker to have seen `packets` more.
fn flood(path: &Path, client: &UdpSocket, packets: u64) {
    let start = path.worker.stats().worker().received;
    let deadline = Instant::now() + Duration::from_secs(60);
    while path.worker.stats().worker().received < start + packets {
        assert!(
            Instant::now() < deadline,
            "{:?}",
            path.worker.stats().worker()
        );
        for _ in 0..256 {
            client.send(&[0x11; 64]).unwrap();
        }
    }
}

#[test]
fn no_frame_is_lost_under_flood_nor_while_the_egress_link_is_down() {
    if !privileged() {
        return;
    }
    let network = Network::new();
    let path = Path::new(&network, config(32, ADAPTIVE), forward());
    let (client, server) = ends(&network);
    flood(&path, &client, 100_000);
    path.assert_all_frames_accounted();
    assert_eq!(
        path.worker.stats().chain(FORTH, 0).unwrap().transmit_drops,
        0
    );

    network.set_link(End::Server, false);
    flood(&path, &client, 20_000);
    path.assert_all_frames_accounted();
    let down = path.worker.stats().chain(FORTH, 0).unwrap();
    assert!(down.transmit_drops > 10_000, "{down:?}");
    let (pid, before) = (path.worker.pid(), cpu_ticks(path.worker.pid()));
    std::thread::sleep(Duration::from_millis(500));
    assert!(
        cpu_ticks(pid) - before <= 3,
        "a dead link must not keep the worker busy"
    );

    network.set_link(End::Server, true);
    // What waited in the ring leaves with the first packet.
    client.send(b"first").unwrap();
    drain(&server);
    echo(&client, &server, b"second", b"second").unwrap();
    flood(&path, &client, 20_000);
    path.assert_all_frames_accounted();
}

#[test]
fn a_worker_without_its_agent_forwards_until_it_is_terminated() {
    if !privileged() {
        return;
    }
    let network = Network::new();
    let Path { worker, doors, .. } = Path::new(&network, config(1, ADAPTIVE), forward());
    let (client, server) = ends(&network);
    let pid = worker.pid();
    let command_line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
    assert!(command_line.starts_with(&format!("{WORKER_NAME}@t{}", std::process::id())));
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
    assert_eq!(name.trim(), WORKER_NAME);
    worker.detach();
    for i in 0..50 {
        echo(&client, &server, &[i; 40], &[i; 40]).unwrap();
    }
    let pid = Pid::from_raw(pid.cast_signed());
    kill(pid, Signal::SIGTERM).unwrap();
    let ended = wait_until(Duration::from_secs(2), || {
        matches!(
            waitpid(pid, Some(WaitPidFlag::WNOHANG)),
            Ok(WaitStatus::Exited(_, 0))
        )
    });
    if !ended {
        let _ = kill(pid, Signal::SIGKILL);
    }
    assert!(ended, "it did not end on SIGTERM");
    drop(doors);
}

#[test]
fn chains_and_sockets_come_and_go() {
    if !privileged() {
        return;
    }
    let network = Network::new();
    let mut path = Path::new(&network, config(1, Idle::Sleep), forward());
    let (client, server) = ends(&network);
    let error = path.worker.remove_socket(path.server).unwrap_err();
    assert!(error.to_string().contains("a chain leads to it"), "{error}");
    let again = chain(FORTH, forward(), path.server);
    let error = path.worker.add_chain(again).unwrap_err();
    assert!(error.to_string().contains("is there already"), "{error}");

    // A live change: the next generation is there before the front door names it, the old one goes after.
    for generation in 1..20 {
        let mut next = chain(FORTH, forward(), path.server);
        next.generation = generation;
        path.worker.add_chain(next).unwrap();
        echo(&client, &server, b"meanwhile", b"meanwhile").unwrap();
        path.worker.remove_chain(FORTH, generation).unwrap();
    }
    assert!(matches!(
        path.worker.remove_chain(FORTH, 7),
        Err(Error::Chain { .. })
    ));

    path.worker.remove_chain(FORTH, 0).unwrap();
    assert_eq!(path.worker.stats().chain(FORTH, 0), None);
    client.send(b"nobody takes this").unwrap();
    let unknown = || path.worker.stats().worker().unknown_chain == 1;
    assert!(wait_until(Duration::from_secs(1), unknown));

    // The server's socket goes, its frames come back, and the queue is free for another.
    path.worker.remove_socket(path.server).unwrap();
    assert!(matches!(
        path.worker.remove_socket(path.server),
        Err(Error::NoSocket { .. })
    ));
    path.assert_all_frames_accounted();
    let ifindex = network.ifindex(End::Server);
    let config = XskConfig::new(network.port(End::Server), ifindex, 0, Role::Egress);
    let xsk = Xsk::bind(path.worker.umem(), &config, path.worker.first_socket()).unwrap();
    path.server = path.worker.add_socket(xsk).unwrap();
    path.worker
        .add_chain(chain(FORTH, forward(), path.server))
        .unwrap();
    client.send(b"one way").unwrap();
    let mut buffer = [0; 64];
    assert_eq!(server.recv(&mut buffer).unwrap(), 7);
    path.assert_all_frames_accounted();
    path.worker.restart().unwrap();
    client.send(b"one way").unwrap();
    assert_eq!(server.recv(&mut buffer).unwrap(), 7);
    path.assert_all_frames_accounted();
}

#[test]
fn a_socket_says_how_it_copies_and_shares_or_registers_the_memory() {
    if !privileged() {
        return;
    }
    let network = Network::new();
    let worker = WorkerHandle::spawn(config(1, Idle::Sleep)).unwrap();
    let on = |end| XskConfig::new(network.port(end), network.ifindex(end), 0, Role::Ingress);
    let first = Xsk::bind(worker.umem(), &on(End::Client), None).unwrap();
    assert!(!first.is_zero_copy(), "veth copies");
    // An explicit mode cannot be shared; the memory is registered a second time.
    let explicit = XskConfig {
        mode: CopyMode::Copy,
        busy_poll: Some(BusyPoll {
            time: Duration::from_micros(20),
            budget: 16,
        }),
        ..on(End::Server)
    };
    let second = Xsk::bind(worker.umem(), &explicit, Some(&first)).unwrap();
    assert_eq!(
        (second.interface(), second.queue()),
        (&*network.port(End::Server), 0)
    );
    assert_eq!(second.statistics().unwrap().rx_dropped, 0);

    let taken = Xsk::bind(worker.umem(), &on(End::Client), None).unwrap_err();
    assert!(
        taken
            .to_string()
            .contains("another AF_XDP socket holds this queue"),
        "{taken}"
    );
    drop(second);
    let wrong = [
        (
            XskConfig {
                mode: CopyMode::ZeroCopy,
                ..on(End::Server)
            },
            "bind",
        ),
        (
            XskConfig {
                queue: 63,
                ..on(End::Server)
            },
            "does the interface have this queue?",
        ),
        (
            XskConfig {
                ifindex: 0x7fff_0000,
                ..on(End::Server)
            },
            "bind",
        ),
        (
            XskConfig {
                ring_size: 1000,
                ..on(End::Server)
            },
            "a power of two",
        ),
    ];
    for (config, words) in wrong {
        let error = Xsk::bind(worker.umem(), &config, None)
            .unwrap_err()
            .to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn busy_polling_and_own_registrations_carry_packets_too() {
    if !privileged() {
        return;
    }
    let network = Network::new();
    let mut worker = WorkerHandle::spawn(config(1, Idle::Spin)).unwrap();
    let mut doors = Vec::new();
    let [client_side, server_side] =
        [(End::Client, FORTH), (End::Server, BACK)].map(|(end, spi)| {
            let config = XskConfig {
                mode: CopyMode::Copy,
                busy_poll: Some(BusyPoll {
                    time: Duration::from_micros(20),
                    budget: 16,
                }),
                ..XskConfig::new(network.port(end), network.ifindex(end), 0, Role::Ingress)
            };
            let xsk = Xsk::bind(worker.umem(), &config, None).unwrap();
            let door = common::xdp::FrontDoor::attach(network.ifindex(end), spi).unwrap();
            door.set_socket(0, xsk.fd()).unwrap();
            doors.push(door);
            worker.add_socket(xsk).unwrap()
        });
    worker
        .add_chain(chain(FORTH, forward(), server_side))
        .unwrap();
    worker
        .add_chain(chain(BACK, forward(), client_side))
        .unwrap();
    let (client, server) = ends(&network);
    for i in 0..200 {
        echo(&client, &server, &[i; 300], &[i; 300]).unwrap();
    }
}

#[test]
fn a_worker_is_small() {
    if !privileged() {
        return;
    }
    let network = Network::new();
    let path = Path::new(&network, config(32, ADAPTIVE), forward());
    let (client, _server) = ends(&network);
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
fn what_cannot_work_is_refused_with_the_reason() {
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
    // A program that is no worker.
    wrong.exe = "/bin/true".into();
    let error = WorkerHandle::spawn(wrong.clone()).unwrap_err().to_string();
    assert!(error.contains("set up"), "{error}");
    wrong = config(1, Idle::Sleep);
    wrong.core = Some(4000);
    let error = WorkerHandle::spawn(wrong).unwrap_err().to_string();
    assert!(error.contains("worker"), "{error}");
}
