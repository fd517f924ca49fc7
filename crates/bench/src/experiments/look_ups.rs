//! `look-ups`: the cost of router, load balancer and NAT in the kernel with 100,000 prefixes or
//! flows.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, OwnedFd};

use myelin_kernel::{Capacity, Hook, LoadedChain, Plane, test_run};
use myelin_metrics::stats::Deployments;
use myelin_packet::routes::{Route, RouteTables};
use myelin_packet::{MacAddr, Prefix};
use myelin_spec::{BackendSpec, FunctionConfig, LoadBalancerConfig, NatConfig, RouterConfig};

use super::classifier;
use crate::ebpf::look_up::{
    self, DRAWN_FORWARD, DRAWN_FUNCTION, DRAWN_LOOK_UP, HOT_FORWARD, HOT_FUNCTION, LookUpFunction,
};
use crate::sampling::{Sampling, Turns};
use crate::{Claim, Error, Experiment, Findings, Row, Session, ebpf, frames};

/// Number of prefixes or flows. Equal to `FLOWS` of `look_up.h`.
const COUNT: u64 = 100_000;
/// Largest cost of a hot flow over `forward`, ns.
const HOT_BOUND_NS: f64 = 60.0;
/// Largest cost of a function over that of the bare look-up, for random flows, both beyond
/// `forward`.
const DRAWN_BOUND: f64 = 1.5;
/// Repeats in a test run, and test runs of a figure, because a test run reports whole nanoseconds.
const RUNS: u32 = 2000;
const TEST_RUNS: u32 = 4;
/// Runs that fill the table of flows: each flow is drawn a dozen times on average.
const FILLING: u32 = 12 * COUNT as u32;

/// The first client's address, and the service's relative to it. Equal to those of `look_up.h`.
const CLIENTS_V4: u32 = 10 << 24;
const CLIENTS_V6: u128 = 0xfd << 120;
const SERVICE: u32 = 0x00ee_0001;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "look-ups",
    about: "processing time of router, load balancer and NAT in the kernel with 100 000 prefixes or flows: one hot flow, and flows drawn at random",
    differs: "",
    run,
    plots: include_str!("../../plots/look-ups.yaml"),
};

fn run(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    for hook in Hook::ALL {
        for (kind, name) in [
            (LookUpFunction::Router, "router"),
            (LookUpFunction::LoadBalancer, "load-balancer"),
            (LookUpFunction::Nat, "nat"),
        ] {
            for is_v6 in [false, true] {
                let family = if is_v6 { "IPv6" } else { "IPv4" };
                Subject { kind, hook, is_v6 }.sample([name, family], session, findings)?;
            }
        }
    }
    Ok(())
}

/// The programs of [`look_up`], their packet, and the chains that they call. Fields drop in this
/// order.
struct Loaded {
    programs: Vec<OwnedFd>,
    frame: Vec<u8>,
    hook: Hook,
    _chains: [LoadedChain; 2],
    _plane: Plane,
}

impl Loaded {
    /// Mean time of a run, ns. Every run must send the packet.
    fn mean_ns(&self, program: usize, repeat: u32) -> Result<f64, Error> {
        let meta = classifier::meta(&self.frame);
        let program = self.programs[program].as_fd();
        classifier::mean_ns(program, self.hook, &self.frame, meta, repeat)
    }
}

#[derive(Debug, Clone, Copy)]
struct Subject {
    kind: LookUpFunction,
    hook: Hook,
    is_v6: bool,
}

impl Subject {
    /// Adds a row, and a claim for each of its two differences.
    fn sample(
        self,
        [name, family]: [&str; 2],
        session: Session<'_>,
        findings: &mut Findings,
    ) -> Result<(), Error> {
        let hook = self.hook;
        let sampling = Sampling::of(format!("{name}, {family}, at {hook}"))
            .rounds(5)
            .share(1.0 / 12.0);
        let less = |round: &dyn Fn(usize) -> f64, one, other| (round(one) - round(other)).max(1.0);
        let hot = |samples: &Deployments| {
            samples.median_of(|round| less(round, HOT_FUNCTION, HOT_FORWARD))
        };
        let drawn = |round: &dyn Fn(usize) -> f64| less(round, DRAWN_FUNCTION, DRAWN_FORWARD);
        let bare = |round: &dyn Fn(usize) -> f64| less(round, DRAWN_LOOK_UP, DRAWN_FORWARD);
        let ratio = |samples: &Deployments| samples.median_of(|round| drawn(round) / bare(round));
        let claims = |samples: &Deployments, (): &()| {
            let id = |claim| format!("{name}, {family}, {hook}, {claim}");
            vec![
                Claim::at_most(id("hot flow over forward, ns"), hot(samples), HOT_BOUND_NS),
                Claim::at_most(
                    id("random flows / bare look-up"),
                    ratio(samples),
                    DRAWN_BOUND,
                ),
            ]
        };
        let deploy = |turns: &mut Turns<'_>| self.deploy(turns, session);
        let (samples, ()) = session.sample(sampling, findings, deploy, claims)?;
        findings.add_row(
            Row::of("look-ups")
                .with("function", name)
                .with("family", family)
                .with("hook", hook.to_string())
                .with_estimate("hot_over_forward", "_ns", hot(&samples))
                .with_estimate("drawn_over_forward", "_ns", samples.median_of(drawn))
                .with_estimate("bare_look_up", "_ns", samples.median_of(bare))
                .with("times_bare_look_up", ratio(&samples).map(|e| e.value)),
        );
        Ok(())
    }

    fn load(self) -> Result<Loaded, Error> {
        let hook = self.hook;
        let plane = Plane::create(None, Capacity::default())?;
        let forward = plane.load_chain(&test_run::chain(hook, 1, &[FunctionConfig::Forward]))?;
        let function = plane.load_chain(&test_run::chain(hook, 2, &[self.config()]))?;
        let (Some(to), Some(past)) = (function.program(0), forward.program(0)) else {
            return Err(Error::Cancelled);
        };
        Ok(Loaded {
            programs: look_up::load(self.kind, hook, to, past, &self.tree())?,
            frame: self.frame(),
            hook,
            _chains: [forward, function],
            _plane: plane,
        })
    }

    /// Measures the programs of [`look_up`], in their order.
    fn deploy(self, turns: &mut Turns<'_>, session: Session<'_>) -> Result<(), Error> {
        let loaded = self.load()?;
        let programs: Vec<_> = loaded.programs[..=HOT_FORWARD]
            .iter()
            .map(AsFd::as_fd)
            .collect();
        let _entries = ebpf::DispatcherEntries::add(self.hook, &programs)?;
        // Fill the table with any effort, because the bare look-up of an unknown flow takes another
        // path.
        if self.kind != LookUpFunction::Router {
            for _ in (0..FILLING).step_by(COUNT as usize) {
                session.check()?;
                loaded.mean_ns(DRAWN_FUNCTION, COUNT as u32)?;
            }
        }
        turns.measure(programs.len(), |program| {
            let mut sum = 0.0;
            for _ in 0..TEST_RUNS {
                sum += loaded.mean_ns(program, RUNS)?;
            }
            Ok(sum / f64::from(TEST_RUNS))
        })
    }

    fn config(self) -> FunctionConfig {
        match self.kind {
            LookUpFunction::Router => FunctionConfig::Router(RouterConfig {
                routes: self.routes(),
                addresses: (None, None),
                mtu: None,
                icmp_rate: 0,
            }),
            LookUpFunction::LoadBalancer => FunctionConfig::LoadBalancer(LoadBalancerConfig {
                backends: (1..=8)
                    .map(|number| BackendSpec {
                        address: self.client(SERVICE + number),
                        weight: 1,
                        mac: None,
                    })
                    .collect(),
                flows: 2 * COUNT as u32,
                ..LoadBalancerConfig::default()
            }),
            LookUpFunction::Nat => FunctionConfig::Nat(NatConfig {
                // Several times more ports than flows.
                addresses: (1..=16)
                    .map(|number| self.client(SERVICE + number))
                    .collect(),
                flows: 2 * COUNT as u32,
                ..NatConfig::default()
            }),
        }
    }

    /// Random prefixes of /16 to /24, or /32 to /64. Flow `i` of `look_up.h` has an address in
    /// prefix `i` or in a longer one.
    fn routes(self) -> Vec<Route> {
        (0..COUNT)
            .filter_map(|i| {
                let number = scramble(i);
                let (address, len) = if self.is_v6 {
                    let high = u128::from(number >> 3 | 1 << 61) << 64;
                    (IpAddr::from(Ipv6Addr::from(high)), 32 + number % 33)
                } else {
                    let address = Ipv4Addr::from((number >> 32) as u32);
                    (address.into(), 16 + number % 9)
                };
                Some(Route {
                    prefix: Prefix::new(address, len as u8).ok()?,
                    mac: Some(MacAddr([2, 0, 0, 0, 0, i as u8])),
                    source_mac: None,
                })
            })
            .collect()
    }

    /// The tree in the read-only data of an IPv6 router.
    fn tree(self) -> Vec<u8> {
        if self.kind != LookUpFunction::Router {
            return Vec::new();
        }
        RouteTables::new(&self.routes())
            .map(|tables| bytemuck::bytes_of(&tables.lpm.v6.trees[0]).to_vec())
            .unwrap_or_default()
    }

    fn client(self, number: u32) -> IpAddr {
        if self.is_v6 {
            Ipv6Addr::from(CLIENTS_V6 | u128::from(number)).into()
        } else {
            Ipv4Addr::from(CLIENTS_V4 + number).into()
        }
    }

    /// A packet of the family; the programs write its addresses and ports.
    fn frame(self) -> Vec<u8> {
        let v4 = frames::udp_frame([10, 0, 0, 1], [10, 0, 0, 2], 9000, 64);
        if !self.is_v6 {
            return v4;
        }
        let mut frame = v4[..12].to_vec();
        frame.extend_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0, 0, 72, 17, 255]);
        for number in [0, SERVICE] {
            let address = Ipv6Addr::from(CLIENTS_V6 | u128::from(number));
            frame.extend_from_slice(&address.octets());
        }
        // The UDP header and its payload.
        frame.extend_from_slice(&v4[34..]);
        frame
    }
}

/// Equal to the function in `look_up.h`.
fn scramble(number: u64) -> u64 {
    let mixed = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_of_random_flows_pass() {
        if !nix::unistd::geteuid().is_root() {
            println!("SKIP: loading eBPF programs needs root");
            return;
        }
        for hook in Hook::ALL {
            for kind in [
                LookUpFunction::Router,
                LookUpFunction::LoadBalancer,
                LookUpFunction::Nat,
            ] {
                for is_v6 in [false, true] {
                    let subject = Subject { kind, hook, is_v6 };
                    let loaded = subject.load().unwrap();
                    let run = |program: usize| loaded.mean_ns(program, 1);
                    for _ in 0..50 {
                        run(DRAWN_FUNCTION).unwrap();
                        run(HOT_FUNCTION).unwrap();
                        run(HOT_FORWARD).unwrap();
                        run(DRAWN_FORWARD).unwrap();
                    }
                    // The router's tables contain all prefixes. The other tables contain few flows
                    // yet.
                    let known = (0..20).filter(|_| run(DRAWN_LOOK_UP).is_ok()).count();
                    let all = kind == LookUpFunction::Router;
                    assert_eq!(known == 20, all, "{subject:?}: {known} of 20");
                }
            }
        }
    }
}
