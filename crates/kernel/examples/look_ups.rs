//! What routers and load balancers cost on this machine, with a hundred thousand routes or flows: nanoseconds a packet more than
//! `forward`, milliseconds to load.
//!
//! ```console
//! # cargo run --release -p myelin-kernel --example look_ups
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Instant;

use myelin_kernel::test_run::{TestRun, run};
use myelin_kernel::{
    Capacity, ChainConfig, Entry, Error, Exit, Hook, KernelSegment, LoadedChain, Plane,
};
use myelin_packet::routes::{Route, RouteTables};
use myelin_packet::{MacAddr, Meta, Prefix, parse};
use myelin_spec::{BackendSpec, FunctionConfig, LoadBalancerConfig, OnFailure, RouterConfig};

const COUNT: u64 = 100_000;
/// Runs of one packet in a row: its time to live must last.
const REPEAT: u32 = 200;
const ROUNDS: u32 = 1000;

fn main() -> Result<(), Error> {
    for is_v6 in [false, true] {
        println!("router, {COUNT} routes of {}", family(is_v6));
        let routes = routes(is_v6);
        let start = Instant::now();
        let tables = RouteTables::new(&routes).expect("tables");
        println!(
            "  tables                    {:7.1} ms, {:.1} MiB",
            ms(start),
            tables.lpm.memory() as f64 / f64::from(1 << 20)
        );
        user(&tables, &routes);
        let config = FunctionConfig::Router(RouterConfig {
            routes: routes.clone(),
            address_v4: None,
            address_v6: None,
            icmp_rate: 0,
        });
        let to = |i: u64| routes[i as usize % routes.len()].prefix.addr();
        for hook in Hook::ALL {
            measure(hook, &config, &|i| frame(client(is_v6, 0), to(i)))?;
        }
    }
    for is_v6 in [false, true] {
        println!("load balancer, {COUNT} flows of {}", family(is_v6));
        let service = client(is_v6, 0x00ee_0001);
        // The packet's own destination, so that it stays one flow however often it is rewritten.
        let backend = BackendSpec {
            address: service,
            weight: 1,
            mac: None,
        };
        let config = FunctionConfig::LoadBalancer(LoadBalancerConfig {
            backends: vec![backend],
            flows: 2 * COUNT as u32,
            ..LoadBalancerConfig::default()
        });
        for hook in Hook::ALL {
            measure(hook, &config, &|i| frame(client(is_v6, i as u32), service))?;
        }
    }
    Ok(())
}

fn family(is_v6: bool) -> &'static str {
    if is_v6 { "IPv6" } else { "IPv4" }
}

/// A number that looks random, the same in every run.
fn scrambled(i: u64) -> u64 {
    let mixed = (i ^ i >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// Prefixes of /16 to /24, or /32 to /64, anywhere.
fn routes(is_v6: bool) -> Vec<Route> {
    (0..COUNT)
        .map(|i| {
            let number = scrambled(i);
            let (address, len) = if is_v6 {
                let high = u128::from(number >> 3 | 1 << 61) << 64;
                (IpAddr::from(Ipv6Addr::from(high)), 32 + number % 33)
            } else {
                let address = Ipv4Addr::from((number >> 32) as u32);
                (address.into(), 16 + number % 9)
            };
            Route {
                prefix: Prefix::new(address, len as u8).expect("a prefix"),
                mac: Some(MacAddr([2, 0, 0, 0, 0, i as u8])),
                source_mac: None,
            }
        })
        .collect()
}

/// The tables alone, in user space: one address again and again, then ones drawn at random; and a bare read of memory of the
/// same size, drawn at random.
fn user(tables: &RouteTables, routes: &[Route]) {
    const LOOK_UPS: u32 = 2_000_000;
    let time = |address: &dyn Fn(u64) -> IpAddr| {
        let start = Instant::now();
        for i in 0..u64::from(LOOK_UPS) {
            std::hint::black_box(tables.look_up(address(i)));
        }
        start.elapsed().as_secs_f64() * 1e9 / f64::from(LOOK_UPS)
    };
    let one = routes[0].prefix.addr();
    let any = |i: u64| routes[scrambled(i) as usize % routes.len()].prefix.addr();
    let drawing = {
        let start = Instant::now();
        for i in 0..u64::from(LOOK_UPS) {
            std::hint::black_box(any(i));
        }
        start.elapsed().as_secs_f64() * 1e9 / f64::from(LOOK_UPS)
    };
    println!(
        "  look-up in user space     {:7.1} ns hot, {:.1} ns drawn at random",
        time(&|_| one),
        time(&any) - drawing
    );
}

/// A function against `forward`, in turn, on one packet and on as many as there are.
fn measure(
    hook: Hook,
    config: &FunctionConfig,
    frame: &dyn Fn(u64) -> Vec<u8>,
) -> Result<(), Error> {
    let plane = Plane::create(None, Capacity::default())?;
    let forward = plane.load_chain(&chain(hook, 1, &FunctionConfig::Forward))?;
    let start = Instant::now();
    let measured = plane.load_chain(&chain(hook, 2, config))?;
    let loaded = ms(start);
    // Each flow once, so that all are known.
    for i in 0..COUNT {
        once(&measured, hook, &frame(i), 1)?;
    }
    let hot = frame(7);
    let mut figures: [Vec<f64>; 3] = Default::default();
    for i in 0..u64::from(ROUNDS) {
        let base = once(&forward, hook, &hot, REPEAT)?;
        figures[0].push(once(&measured, hook, &hot, REPEAT)? - base);
        let other = frame(scrambled(i) % COUNT);
        let base = once(&forward, hook, &other, 1)?;
        figures[1].push(once(&measured, hook, &other, 1)? - base);
        figures[2].push(base);
    }
    let [hot, cold, base] = figures.map(|mut figures| {
        figures.sort_by(f64::total_cmp);
        figures[figures.len() / 2]
    });
    println!(
        "  {hook:4} {hot:7.1} ns hot; one packet of each flow in turn, caches cold: {cold:.0} ns (forward itself {base:.0}); \
         loaded in {loaded:.1} ms"
    );
    Ok(())
}

fn once(chain: &LoadedChain, hook: Hook, frame: &[u8], repeat: u32) -> Result<f64, Error> {
    let headers = parse(frame).expect("a packet");
    let test = TestRun {
        meta: Some(Meta::new(1 << 40, 1, 0, 0, &headers)),
        repeat,
        ..TestRun::new(frame)
    };
    let outcome = run(chain.program(0).expect("a program"), hook, &test)?;
    assert_eq!(outcome.verdict, hook.redirect(), "the packet was dropped");
    Ok(f64::from(outcome.mean_ns))
}

fn chain(hook: Hook, spi: u32, function: &FunctionConfig) -> ChainConfig {
    ChainConfig {
        spi,
        generation: 0,
        hook,
        on_failure: OnFailure::Drop,
        policer: None,
        positions: 1,
        entry: Entry::Kernel,
        segments: vec![KernelSegment {
            first_position: 0,
            functions: vec![function.clone().into()],
            exit: Exit::Egress {
                ifindex: 1,
                peer: false,
            },
        }],
    }
}

fn client(is_v6: bool, number: u32) -> IpAddr {
    if is_v6 {
        let high = 0xfd00_u128 << 112;
        Ipv6Addr::from(high | u128::from(number)).into()
    } else {
        Ipv4Addr::from(0x0a00_0000 + number).into()
    }
}

/// A UDP packet with a time to live of 255 and a checksum that is not "none".
fn frame(from: IpAddr, to: IpAddr) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            frame.extend_from_slice(&[8, 0, 0x45, 0, 0, 92, 0, 0, 0x40, 0, 255, 17, 0, 0]);
            frame.extend_from_slice(&from.octets());
            frame.extend_from_slice(&to.octets());
        }
        (from, to) => {
            frame.extend_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0, 0, 72, 17, 255]);
            for end in [from, to] {
                let IpAddr::V6(end) = end else { continue };
                frame.extend_from_slice(&end.octets());
            }
        }
    }
    frame.extend_from_slice(&[0x9c, 0x40, 0x23, 0x28, 0, 72, 0x12, 0x34]);
    frame.resize(frame.len() + 64, 0xa5);
    frame
}

fn ms(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}
