//! Full and large tables of `nat`, and its search for a free port.

use super::*;

/// The search tries every port of a small range.
#[test]
fn flows_get_every_port_of_a_small_range() {
    let count = PORT_TRIES as u16;
    let config = NatConfig {
        ports: 5000..=4999 + count,
        ..simple()
    };
    let [out, _] = load_pair(&Spaces::all(), &config);
    let mut ports: Vec<u16> = (1..=count)
        .map(|port| source(&out.run(&udp_from(1, port), 0).unwrap()).port())
        .collect();
    ports.sort_unstable();
    assert!(ports.into_iter().eq(5000..5000 + count));
    out.expect(&udp_from(1, count + 1), None, "one flow more than ports");
}

#[test]
fn a_full_table_removes_expired_mappings_once_a_second() {
    let config = NatConfig {
        flows: 4,
        timeout_ns: SECOND,
        ..simple()
    };
    let [out, _] = load_pair(&Spaces::all(), &config);
    let ask = |port, now| {
        out.run(&udp_from(1, port), now)
            .map(|out| source(&out).port())
    };
    for port in 2000..2004 {
        assert_eq!(ask(port, 0), Some(port));
    }
    let half = SECOND / 2;
    assert_eq!(ask(2004, half), None, "no mapping has expired");
    assert_eq!(
        ask(2004, SECOND),
        None,
        "the function must not sweep twice within a second"
    );
    let late = SECOND + half;
    for port in 2004..2008 {
        assert_eq!(ask(port, late), Some(port), "all mappings have expired");
    }
    assert_eq!(ask(2008, late), None, "the table is full again");
}

/// In user space no packet waits for the sweep of a whole large table.
#[test]
fn user_space_sweeps_a_large_table_in_pieces() {
    let piece = SWEEP_SLOTS as u16;
    let config = NatConfig {
        flows: 3 * SWEEP_SLOTS as u32,
        timeout_ns: SECOND,
        tcp_timeout_ns: 10 * SECOND,
        ..simple()
    };
    let [out, _] = load_pair(&Spaces::user(), &config);
    let client = |port| SocketAddr::from(([10, 0, 0, 1], port));
    let is_translated = |frame: &[u8], now| out.run(frame, now).is_some();
    // Each flow keeps its port. Mappings of the first piece stay, mappings of the other pieces
    // expire.
    for port in 2000..2000 + piece {
        let frame = segment(client(port), build::server_v4(), ACK);
        assert!(is_translated(&frame, 0));
    }
    let is_mapped = |port: u16, now| is_translated(&udp_from(1, port), now);
    assert!((0..2 * piece).all(|n| is_mapped(2000 + piece + n, 0)));
    let (later, next) = (2 * SECOND, 2000 + 3 * piece);
    assert!(
        !is_mapped(next, later),
        "no mapping of the first piece has expired"
    );
    // The sweep removes the second piece. The third piece stays until the table needs room.
    assert!((0..2 * piece).all(|n| is_mapped(next + n, later)));
    assert!(
        !is_mapped(next + 2 * piece, later),
        "the table is full again"
    );
}

/// In the kernel each new flow continues the sweep of a large table. The kernel drops new flows
/// until the sweep has found room.
#[test]
fn the_kernel_sweeps_a_large_table_in_pieces() {
    const FLOWS: u16 = 5000;
    /// Number of new flows for a complete sweep. Each flow sweeps 1024 external endpoints, of three
    /// protocols.
    const FLOWS_PER_SWEEP: usize = 3 * 60_000 / 1024 + 1;
    let config = NatConfig {
        ports: 1000..=60_999,
        timeout_ns: SECOND,
        flows: FLOWS.into(),
        ..config(&["198.51.100.7"])
    };
    for kernel in Kernel::at_hooks() {
        let chain = kernel.load_chain(&[FunctionConfig::Nat(config.clone())]);
        let is_mapped =
            |port: u16, now: u64| chain.run_one(&udp_from(1, port), now, 0).is_forwarded;
        // Each flow has its own port, in the upper half of the range.
        assert!((0..FLOWS).all(|n| is_mapped(50_000 + n, SECOND)));
        assert!(
            !is_mapped(2000, SECOND),
            "there is no room, and no mapping has expired"
        );
        // The next sweep begins after a second at the earliest. The current sweep may continue.
        assert!((0..FLOWS_PER_SWEEP).all(|_| !is_mapped(2000, SECOND + 1)));
        let late = 10 * SECOND;
        let dropped = (0..2 * FLOWS_PER_SWEEP)
            .take_while(|_| !is_mapped(2000, late))
            .count();
        assert!(
            (FLOWS_PER_SWEEP / 2..FLOWS_PER_SWEEP).contains(&dropped),
            "{dropped} dropped"
        );
        // All mappings have expired, so all flows find room while the sweep continues.
        assert!((0..FLOWS / 2).all(|n| is_mapped(3000 + n, late)));
    }
}

/// Two threads on two CPUs open flows at the same time. Both threads open some flows.
#[test]
fn flows_of_two_cpus_get_different_ports() {
    const FLOWS: u16 = 400;
    let Some(kernel) = Kernel::at_xdp() else {
        return;
    };
    let config = NatConfig {
        ports: 2000..=2000 + FLOWS,
        timeout_ns: SECOND,
        ..config(&["198.51.100.7"])
    };
    let function = instance(&FunctionConfig::Nat(config), "out", Side::Forward);
    let chains = [(); 2].map(|()| kernel.load_chain(std::slice::from_ref(&function)));
    let (programs, hook) = (chains.each_ref().map(|chain| chain.program()), kernel.hook);
    for round in 1..20 {
        // All mappings of the previous round have expired, so flows reuse their ports.
        let now = round * 2 * SECOND;
        let ask = |program, backwards: bool| {
            let mut given = Vec::new();
            for n in 0..FLOWS {
                let n = if backwards { FLOWS - 1 - n } else { n };
                // Three of four flows belong to this thread alone.
                let host = if n % 4 == 0 {
                    1
                } else {
                    2 + u32::from(backwards)
                };
                let frame = udp_from(host + 3 * round as u32, 2000 + n % 200);
                if let Some(out) = send(program, hook, &frame, now, 1) {
                    given.push((source(&frame), source(&out)));
                }
            }
            given
        };
        let given = std::thread::scope(|scope| {
            let other = scope.spawn(|| ask(programs[1], true));
            let mut given = ask(programs[0], false);
            given.extend(other.join().unwrap());
            given
        });
        let (mut by_inner, mut by_outer) = (HashMap::new(), HashMap::new());
        for (inner, outer) in &given {
            let before = by_inner.insert(inner, outer);
            assert_eq!(before.unwrap_or(outer), outer, "one flow has two ports");
            let before = by_outer.insert(outer, inner);
            assert_eq!(before.unwrap_or(inner), inner, "two flows share a port");
        }
        assert!(by_outer.len() > 250, "only {}", by_outer.len());
    }
}
