//! Tests that a running worker adds, removes and refuses sockets and chains.

mod common;

use std::time::Duration;

use common::{
    EndHost, Network, TO_CLIENT, TO_SERVER, UdpPath, chain, config, connect_udp, echo,
    forward_function, is_root, wait_until,
};
use myelin_dataplane::{BusyPoll, Error, Idle, Role, WorkerHandle, Xsk, XskConfig};
use rustix::net::sockopt::xdp_statistics;

#[test]
fn chains_and_sockets_are_added_and_removed() {
    if !is_root() {
        return;
    }
    let network = Network::new();
    let mut path = UdpPath::new(&network, config(1, Idle::Sleep), forward_function());
    let (client, server) = connect_udp(&network);
    let error = path.worker.remove_socket(path.server).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("a chain transmits on this socket"),
        "{error}"
    );
    let again = chain(TO_SERVER, forward_function(), path.server);
    let error = path.worker.add_chain(again).unwrap_err();
    assert!(error.to_string().contains("exists already"), "{error}");

    // As in a live change, the next generation exists before the front door uses it.
    for generation in 1..20 {
        let mut next = chain(TO_SERVER, forward_function(), path.server);
        next.generation = generation;
        path.worker.add_chain(next).unwrap();
        echo(&client, &server, b"meanwhile", b"meanwhile").unwrap();
        path.worker.remove_chain(TO_SERVER, generation).unwrap();
    }
    assert!(matches!(
        path.worker.remove_chain(TO_SERVER, 7),
        Err(Error::Chain { .. })
    ));

    path.worker.remove_chain(TO_SERVER, 0).unwrap();
    assert_eq!(path.worker.stats().chain(TO_SERVER, 0), None);
    client.send(b"unknown chain").unwrap();
    let unknown = || path.worker.stats().worker().unknown_chain == 1;
    assert!(wait_until(unknown));

    // Removing the server's socket returns its frames and frees the queue.
    path.worker.remove_socket(path.server).unwrap();
    assert!(matches!(
        path.worker.remove_socket(path.server),
        Err(Error::NoSocket { .. })
    ));
    path.assert_all_frames_accounted();
    let ifindex = network.ifindex(EndHost::Server);
    let config = XskConfig::new(network.port(EndHost::Server), ifindex, 0, Role::Egress);
    let xsk = Xsk::bind(path.worker.umem(), &config, path.worker.first_socket()).unwrap();
    path.server = path.worker.add_socket(xsk).unwrap();
    path.worker
        .add_chain(chain(TO_SERVER, forward_function(), path.server))
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
fn a_socket_shares_or_registers_the_umem() {
    if !is_root() {
        return;
    }
    let network = Network::new();
    let worker = WorkerHandle::spawn(config(1, Idle::Sleep)).unwrap();
    let on = |end| XskConfig::new(network.port(end), network.ifindex(end), 0, Role::Ingress);
    let first = Xsk::bind(worker.umem(), &on(EndHost::Client), None).unwrap();
    let polled = XskConfig {
        busy_poll: Some(BusyPoll {
            time: Duration::from_micros(20),
            budget: 16,
        }),
        ..on(EndHost::Server)
    };
    for shared in [Some(&first), None] {
        let second = Xsk::bind(worker.umem(), &polled, shared).unwrap();
        assert_eq!(xdp_statistics(second.fd()).unwrap().rx_dropped, 0);
    }

    let taken = Xsk::bind(worker.umem(), &on(EndHost::Client), None).unwrap_err();
    assert!(
        taken
            .to_string()
            .contains("another AF_XDP socket holds this queue"),
        "{taken}"
    );
    let wrong = [
        (
            XskConfig {
                queue: 63,
                ..on(EndHost::Server)
            },
            "check that the interface has this queue",
        ),
        (
            XskConfig {
                ifindex: 0x7fff_0000,
                ..on(EndHost::Server)
            },
            "bind",
        ),
        (
            XskConfig {
                ring_size: 1000,
                ..on(EndHost::Server)
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
fn sockets_with_busy_polling_and_separate_registrations_carry_packets() {
    if !is_root() {
        return;
    }
    let network = Network::new();
    let mut worker = WorkerHandle::spawn(config(1, Idle::Spin)).unwrap();
    let mut doors = Vec::new();
    let [client_side, server_side] = [(EndHost::Client, TO_SERVER), (EndHost::Server, TO_CLIENT)]
        .map(|(end, spi)| {
            let config = XskConfig {
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
        .add_chain(chain(TO_SERVER, forward_function(), server_side))
        .unwrap();
    worker
        .add_chain(chain(TO_CLIENT, forward_function(), client_side))
        .unwrap();
    let (client, server) = connect_udp(&network);
    for i in 0..200 {
        echo(&client, &server, &[i; 300], &[i; 300]).unwrap();
    }
}
