//! Tests failures of the worker, the agent and the link.

mod common;

use std::net::UdpSocket;
use std::time::Duration;

use common::{
    ADAPTIVE, EndHost, Network, TO_SERVER, UdpPath, assert_sleeping, config, connect_udp, drain,
    echo, flood, forward_function, is_root, ready_ms, wait_until,
};
use myelin_dataplane::{Error, Idle, WORKER_NAME, WorkerHandle};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

#[test]
fn a_killed_worker_is_restarted_without_loss_of_sockets_frames_or_counts() {
    kill_and_restart_under_traffic(false);
}

/// Before Linux 6.4 a new worker cannot map the rings of the old worker, so it gets new sockets.
#[test]
fn a_killed_worker_gets_new_sockets_if_rings_cannot_be_mapped_again() {
    kill_and_restart_under_traffic(true);
}

fn kill_and_restart_under_traffic(bind_late: bool) {
    if !is_root() {
        return;
    }
    let network = Network::new();
    let mut path = UdpPath::with_binding(
        &network,
        config(32, ADAPTIVE),
        forward_function(),
        bind_late,
    );
    let (client, server) = connect_udp(&network);
    for round in 0..8_u8 {
        // Kill the worker under traffic, while it processes packets.
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
        assert!(wait_until(|| !path.worker.is_alive()));
        sender.join().unwrap();
        path.worker.restart().unwrap();
        path.assert_all_frames_accounted();
        drain(&client, &server);
        echo(&client, &server, &[round; 100], &[round; 100]).unwrap();
    }
    assert_eq!(path.worker.facts().restarts(), 8);
    let to_server = path.worker.stats().chain(TO_SERVER, 0).unwrap();
    assert!(
        to_server.positions[0].packets_in >= 8,
        "the new worker continues the counters"
    );
    // Kill and restart a sleeping worker several times. This also loses no frame.
    let lent = path.worker.umem().lent().unwrap();
    for _ in 0..5 {
        path.worker.restart().unwrap();
        path.assert_all_frames_accounted();
    }
    assert!(path.worker.umem().lent().unwrap() <= lent + 64);
}

/// Sends packets while the worker is stopped. A port has at least 128 frames, of which up to 15 may
/// be missing before a refill, so all packets fit.
fn build_backlog(path: &UdpPath, client: &UdpSocket) {
    const PACKETS: u64 = 100;
    let pid = Pid::from_raw(path.worker.pid().cast_signed());
    let before = path.worker.stats().worker().received;
    kill(pid, Signal::SIGSTOP).unwrap();
    for _ in 0..PACKETS {
        client.send(&[0x11; 64]).unwrap();
    }
    kill(pid, Signal::SIGCONT).unwrap();
    assert!(wait_until(|| {
        path.worker.stats().worker().received >= before + PACKETS
    }));
}

#[test]
fn no_frame_is_lost_in_a_flood_or_while_the_egress_link_is_down() {
    flood_and_set_the_egress_link_down(false);
}

#[test]
#[ignore = "thorough: measures the processor time of a worker without packets"]
fn a_worker_takes_no_time_while_the_egress_link_is_down() {
    flood_and_set_the_egress_link_down(true);
}

fn flood_and_set_the_egress_link_down(measured: bool) {
    if !is_root() {
        return;
    }
    let network = Network::new();
    let path = UdpPath::new(&network, config(32, ADAPTIVE), forward_function());
    let (client, server) = connect_udp(&network);
    let lent_before = path.worker.umem().lent().unwrap();
    flood(&path, &client, 100_000);
    build_backlog(&path, &client);
    path.assert_all_frames_accounted();
    let lent_after = path.worker.umem().lent().unwrap();
    assert!(
        lent_after > lent_before,
        "a backlog built up, but the fill level did not rise: {lent_before}, {lent_after}"
    );
    assert_eq!(
        path.worker
            .stats()
            .chain(TO_SERVER, 0)
            .unwrap()
            .transmit_drops,
        0
    );

    network.set_link(EndHost::Server, false);
    flood(&path, &client, 20_000);
    path.assert_all_frames_accounted();
    let down = path.worker.stats().chain(TO_SERVER, 0).unwrap();
    assert!(down.transmit_drops > 10_000, "{down:?}");
    assert_sleeping(&[&path.worker]);
    if measured {
        let (pid, before) = (path.worker.pid(), ready_ms(path.worker.pid()));
        std::thread::sleep(Duration::from_millis(500));
        assert!(
            ready_ms(pid) - before <= 30,
            "a link that is down must not keep the worker busy"
        );
    }

    network.set_link(EndHost::Server, true);
    // Packets in the ring leave with the first packet.
    client.send(b"first").unwrap();
    drain(&client, &server);
    echo(&client, &server, b"second", b"second").unwrap();
    flood(&path, &client, 20_000);
    path.assert_all_frames_accounted();
}

#[test]
fn a_worker_without_its_agent_forwards_until_sigterm() {
    if !is_root() {
        return;
    }
    let network = Network::new();
    let UdpPath { worker, doors, .. } =
        UdpPath::new(&network, config(1, ADAPTIVE), forward_function());
    let (client, server) = connect_udp(&network);
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
    let ended = wait_until(|| {
        matches!(
            waitpid(pid, Some(WaitPidFlag::WNOHANG)),
            Ok(WaitStatus::Exited(_, 0))
        )
    });
    if !ended {
        let _ = kill(pid, Signal::SIGKILL);
    }
    assert!(ended, "the worker did not end on SIGTERM");
    drop(doors);
}

#[test]
fn a_worker_with_an_invalid_answer_is_killed() {
    let mut program = config(1, ADAPTIVE);
    program.exe = "/bin/sh".into();
    // The script answers the set-up and the start like a worker, then sends an invalid answer.
    let script = r#"
        wait() { dd bs=8 count=1 of=/dev/null 2>/dev/null; }
        wait; printf '{"number":1,"body":{"Ok":null}}' >&0
        wait; printf '{"number":2,"body":{"Ok":null}}' >&0
        wait; printf 'what?' >&0
        wait"#;
    program.args = ["-c", script].map(Into::into).into();
    let mut worker = WorkerHandle::spawn(program).unwrap();
    assert!(worker.is_alive());
    let error = worker.set_idle(Idle::Sleep).unwrap_err();
    assert!(matches!(error, Error::Control { .. }), "{error}");
    assert!(
        !worker.is_alive(),
        "the process could execute the request later"
    );
    worker.restart().unwrap();
    assert!(worker.is_alive());
}

#[test]
fn frames_of_a_socket_removed_from_a_dead_worker_are_not_lost() {
    if !is_root() {
        return;
    }
    let network = Network::new();
    let mut path = UdpPath::new(&network, config(32, ADAPTIVE), forward_function());
    let pid = Pid::from_raw(path.worker.pid().cast_signed());
    kill(pid, Signal::SIGKILL).unwrap();
    assert!(wait_until(|| !path.worker.is_alive()));
    let error = path.worker.remove_chain(TO_SERVER, 0).unwrap_err();
    assert!(matches!(error, Error::Control { .. }), "{error}");
    assert!(path.worker.stats().chain(TO_SERVER, 0).is_none());
    path.worker.remove_socket(path.server).unwrap_err();
    path.worker.restart().unwrap();
    path.assert_all_frames_accounted();
}

#[test]
fn a_worker_survives_a_deleted_link_without_loss_of_frames() {
    delete_the_egress_link(false);
}

#[test]
#[ignore = "thorough: measures the processor time of a worker without packets"]
fn a_worker_takes_no_time_after_a_deleted_link() {
    delete_the_egress_link(true);
}

fn delete_the_egress_link(measured: bool) {
    if !is_root() {
        return;
    }
    let network = Network::new();
    let mut path = UdpPath::new(&network, config(1, ADAPTIVE), forward_function());
    let (client, server) = connect_udp(&network);
    echo(&client, &server, b"before", b"before").unwrap();
    network.delete_link(EndHost::Server);
    for _ in 0..50 {
        client.send(b"nowhere to go").unwrap();
    }
    assert_sleeping(&[&path.worker]);
    if measured {
        let (pid, before) = (path.worker.pid(), ready_ms(path.worker.pid()));
        std::thread::sleep(Duration::from_millis(500));
        assert!(
            ready_ms(pid) - before <= 30,
            "a deleted link must not keep the worker busy"
        );
    }
    assert!(path.worker.is_alive());
    path.worker.remove_chain(TO_SERVER, 0).unwrap();
    path.worker.remove_socket(path.server).unwrap();
    path.assert_all_frames_accounted();
}
