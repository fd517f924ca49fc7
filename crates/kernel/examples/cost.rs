//! What the kernel's part of a chain costs on this machine: prints nanoseconds a packet, and milliseconds to load.
//!
//! ```console
//! # cargo run --release -p myelin-kernel --example cost
//! ```

use std::net::Ipv4Addr;
use std::time::Instant;

use myelin_kernel::test_run::{TestRun, run};
use myelin_kernel::{
    Capacity, ChainConfig, Entry, Error, Exit, Hook, KernelSegment, LoadedChain, Plane, Port,
    PortConfig,
};
use myelin_packet::rules::{Action, Rule};
use myelin_packet::{Match, Meta, Prefix};
use myelin_spec::{
    FirewallConfig, FragmentPolicy, FunctionConfig, FunctionInstance, NatConfig, OnFailure, Side,
    StateKey, XorConfig,
};

const RUNS: u32 = 200_000;
/// Interface that no packet of a test run reaches.
const OUT: u32 = 1;

fn main() -> Result<(), Error> {
    for hook in Hook::ALL {
        println!("{hook}");
        hops(hook)?;
        xor(hook)?;
        firewall(hook)?;
        nat(hook)?;
        classifier(hook)?;
        loading(hook)?;
    }
    Ok(())
}

fn hops(hook: Hook) -> Result<(), Error> {
    let forward = |functions| cost(hook, &vec![FunctionConfig::Forward; functions], &frame(256));
    let (one, all) = (forward(1)?, forward(32)?);
    println!("  door, 1 forward, egress   {one:7.1} ns");
    println!(
        "  door, 32 forward, egress  {all:7.1} ns: {:.1} ns a hop",
        (all - one) / 31.0
    );
    Ok(())
}

fn xor(hook: Hook) -> Result<(), Error> {
    for len in [64, 256, 1400] {
        let plain = cost(hook, &[FunctionConfig::Forward], &frame(len))?;
        let with = cost(
            hook,
            &[FunctionConfig::Xor(XorConfig { key: 0x5a })],
            &frame(len),
        )?;
        println!(
            "  xor of {len:4} B            {:7.1} ns more than forward",
            with - plain
        );
    }
    Ok(())
}

fn firewall(hook: Hook) -> Result<(), Error> {
    for rules in [10, 100, 1000] {
        let rules = (0..rules)
            .map(|i: u32| Rule {
                source: Some(
                    format!("192.{}.{}.0/24", i / 200, i % 200)
                        .parse()
                        .expect("a prefix"),
                ),
                destination_ports: Some(i as u16..=i as u16 + 5000),
                protocol: i.is_multiple_of(3).then_some(17),
                ..Rule::any(Action::Deny)
            })
            .chain([Rule {
                source: Some("10.0.0.0/8".parse().expect("a prefix")),
                ..Rule::any(Action::Allow)
            }])
            .collect::<Vec<_>>();
        let count = rules.len() - 1;
        let config = FirewallConfig {
            rules,
            default: Action::Deny,
            fragments: FragmentPolicy::Drop,
        };
        let plain = cost(hook, &[FunctionConfig::Forward], &frame(256))?;
        let with = cost(hook, &[FunctionConfig::Firewall(config)], &frame(256))?;
        println!(
            "  firewall of {count:4} rules    {:7.1} ns more than forward",
            with - plain
        );
    }
    Ok(())
}

/// One hot flow among many, there and back. Its external endpoint is the one it has inside, so that a run leaves the packet as it was.
fn nat(hook: Hook) -> Result<(), Error> {
    const FLOWS: u32 = 100_000;
    let plane = Plane::create(None, Capacity::default())?;
    let nat = NatConfig {
        addresses: [1, 2, 3, 4, 5]
            .map(|last| Ipv4Addr::new(10, 0, 0, last).into())
            .to_vec(),
        flows: FLOWS + FLOWS / 4,
        ..NatConfig::default()
    };
    let chain = |spi, side| {
        let mut config = config(hook, spi, &[FunctionConfig::Forward]);
        config.segments[0].functions = vec![FunctionInstance {
            config: FunctionConfig::Nat(nat.clone()),
            state: Some(StateKey {
                chain: "out".into(),
                function: "nat".into(),
            }),
            side,
        }];
        plane.load_chain(&config)
    };
    let (out, back) = (chain(1, Side::Forward)?, chain(2, Side::Reply)?);
    let test = |chain: &LoadedChain, frame: &[u8], repeat| {
        let headers = myelin_packet::parse(frame).expect("a packet");
        let test = TestRun {
            repeat,
            meta: Some(Meta::new(1, 1, 0, 0, &headers)),
            ..TestRun::new(frame)
        };
        run(chain.program(0).expect("a program"), hook, &test)
    };
    let mut sent = frame(256);
    // Not the "no checksum" that would be left alone.
    sent[40] = 1;
    // The inside address that is given itself, among those there are.
    let own = (1..=5).find(|last| {
        sent[29] = *last;
        let seen = test(&out, &sent, 1);
        seen.is_ok_and(|seen| seen.frame == sent)
    });
    let Some(last) = own else {
        println!("  nat                       no address is given itself");
        return Ok(());
    };
    sent[29] = last;
    let mut other = sent.clone();
    for flow in 0..FLOWS {
        let [_, a, b, c] = (flow / 50_000).to_be_bytes();
        other[26..30].copy_from_slice(&[11, a, b, c]);
        other[34..36].copy_from_slice(&(10_000 + (flow % 50_000) as u16).to_be_bytes());
        test(&out, &other, 1)?;
    }
    let mut reply = sent.clone();
    reply.copy_within(26..30, 30);
    reply.copy_within(34..36, 36);
    let plain = plane.load_chain(&config(hook, 3, &[FunctionConfig::Forward]))?;
    let base = measure(|| test(&plain, &sent, RUNS))?;
    for (name, chain, frame) in [("out", &out, &sent), ("back", &back, &reply)] {
        let with = measure(|| test(chain, frame, RUNS))?;
        println!(
            "  nat {name:4}, {FLOWS} flows   {:7.1} ns more than forward",
            with - base
        );
    }
    Ok(())
}

fn classifier(hook: Hook) -> Result<(), Error> {
    let plane = Plane::create(None, Capacity::default())?;
    let chain = plane.load_chain(&config(hook, 1, &[FunctionConfig::Forward]))?;
    for count in [1, 10, 100, 1000, 10_000] {
        let port = port(&plane)?;
        let start = Instant::now();
        // Eight mask shapes; the packet fits the least specific one.
        for i in 0..count {
            port.insert(&shape(i, count), &chain)?;
        }
        let inserted = start.elapsed();
        let program = port.program(hook)?;
        let ns = measure(|| {
            run(
                std::os::fd::AsFd::as_fd(&*program),
                hook,
                &TestRun {
                    repeat: RUNS,
                    ..TestRun::new(&frame(256))
                },
            )
        })?;
        println!(
            "  door with {count:5} chains   {ns:7.1} ns ({:.1} us an insertion)",
            inserted.as_secs_f64() * 1e6 / f64::from(count)
        );
    }
    Ok(())
}

fn shape(i: u32, count: u32) -> Match {
    let destination = |len| {
        Some(Prefix::new(Ipv4Addr::from(0x0b00_0000 + (i << 8)).into(), len).expect("a prefix"))
    };
    if i + 1 == count {
        return Match {
            destination: Some("10.0.0.0/8".parse().expect("a prefix")),
            ..Match::default()
        };
    }
    match i % 8 {
        0 => Match {
            destination: destination(32),
            destination_port: Some(9000),
            protocol: Some(17),
            ..Match::default()
        },
        1 => Match {
            destination: destination(32),
            protocol: Some(17),
            ..Match::default()
        },
        2 => Match {
            destination: destination(32),
            ..Match::default()
        },
        3 => Match {
            destination: destination(30),
            destination_port: Some(9000),
            ..Match::default()
        },
        4 => Match {
            destination: destination(28),
            ..Match::default()
        },
        5 => Match {
            destination: destination(24),
            source: "10.0.0.0/8".parse().ok(),
            ..Match::default()
        },
        6 => Match {
            destination: destination(24),
            protocol: Some(6),
            ..Match::default()
        },
        _ => Match {
            destination: destination(24),
            ..Match::default()
        },
    }
}

fn loading(hook: Hook) -> Result<(), Error> {
    let start = Instant::now();
    let plane = Plane::create(None, Capacity::default())?;
    println!("  plane                     {:7.2} ms", ms(start));
    let start = Instant::now();
    let port = port(&plane)?;
    port.program(hook)?;
    println!("  front door                {:7.2} ms", ms(start));
    for (name, function) in [
        ("forward", FunctionConfig::Forward),
        ("xor", FunctionConfig::Xor(XorConfig { key: 1 })),
        (
            "firewall",
            FunctionConfig::Firewall(FirewallConfig {
                rules: vec![],
                default: Action::Allow,
                fragments: FragmentPolicy::Drop,
            }),
        ),
    ] {
        let start = Instant::now();
        let chain = plane.load_chain(&config(hook, 1, &vec![function; 5]))?;
        let loaded = ms(start);
        let start = Instant::now();
        drop(chain);
        println!(
            "  chain of five {name:9}   {loaded:7.2} ms, unloaded in {:.2} ms",
            ms(start)
        );
    }
    Ok(())
}

/// A packet's way through a door and a chain of these functions.
fn cost(hook: Hook, functions: &[FunctionConfig], frame: &[u8]) -> Result<f64, Error> {
    let plane = Plane::create(
        None,
        Capacity {
            matches: 64,
            ..Capacity::default()
        },
    )?;
    let chain: LoadedChain = plane.load_chain(&config(hook, 1, functions))?;
    let port = port(&plane)?;
    port.insert(&Match::default(), &chain)?;
    let program = port.program(hook)?;
    measure(|| {
        run(
            std::os::fd::AsFd::as_fd(&*program),
            hook,
            &TestRun {
                repeat: RUNS,
                ..TestRun::new(frame)
            },
        )
    })
}

/// The least of several means: what disturbs only adds.
fn measure(
    mut once: impl FnMut() -> Result<myelin_kernel::test_run::Outcome, Error>,
) -> Result<f64, Error> {
    let mut least = u32::MAX;
    for _ in 0..10 {
        let outcome = once()?;
        assert!(
            outcome.verdict != Hook::Xdp.drop(),
            "the packet was dropped"
        );
        least = least.min(outcome.mean_ns);
    }
    Ok(f64::from(least))
}

fn port(plane: &Plane) -> Result<Port, Error> {
    plane.add_port(PortConfig {
        name: "none".into(),
        ifindex: OUT,
        opposite: None,
        single_queue: false,
    })
}

fn config(hook: Hook, spi: u32, functions: &[FunctionConfig]) -> ChainConfig {
    ChainConfig {
        spi,
        generation: 0,
        hook,
        on_failure: OnFailure::Drop,
        policer: None,
        positions: functions.len() as u8,
        entry: Entry::Kernel,
        segments: vec![KernelSegment {
            first_position: 0,
            functions: functions.iter().cloned().map(Into::into).collect(),
            exit: Exit::Egress {
                ifindex: OUT,
                peer: false,
            },
        }],
    }
}

/// A UDP packet from 10.0.0.1 to 10.0.0.2 with that many payload bytes and no checksum.
fn frame(payload: u16) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0];
    frame.extend_from_slice(&(28 + payload).to_be_bytes());
    frame.extend_from_slice(&[0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend_from_slice(&[0x9c, 0x40, 0x23, 0x28]);
    frame.extend_from_slice(&(8 + payload).to_be_bytes());
    frame.extend_from_slice(&[0, 0]);
    frame.resize(42 + usize::from(payload), 0xa5);
    frame
}

fn ms(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}
