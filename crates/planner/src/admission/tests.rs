//! A plain reference implementation of the decision, without caches and server numbers. A property
//! test compares the decision with the reference.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::booking::Booking;
use super::decision::admit;
use super::group::GroupSums;
use super::ledger::Ledger;
use super::path::{Resource, Route};
use super::site::{NS, Platform};
use super::{Site, book};
use crate::calculus::{
    ArrivalCurve, LeakyBucket, RateLatency, SECOND, TandemServer, after_delay, busy_period, delay,
    fair_share, mul_div_up, tandem,
};
use crate::costs::{Cost, InBurst};
use crate::{Costs, Machine, plan};

/// The reference of the evaluator: the sums of the chains of each path.
struct Reference<'a> {
    paths: BTreeMap<Route, GroupSums>,
    platform: &'a Platform,
}

struct Server {
    service: RateLatency,
    /// The service under first come, first served, after batches and departures; `None` if the
    /// order is unknown.
    fcfs: Option<RateLatency>,
    whole_core: bool,
    /// The batches of a first-come, first-served worker that is alone on its core: packets, cost of
    /// a batch, and departures.
    batches: Option<(u16, u128, LeakyBucket)>,
}

impl<'a> Reference<'a> {
    fn new(bookings: impl Iterator<Item = &'a Booking>, platform: &'a Platform) -> Self {
        let mut paths: BTreeMap<Route, GroupSums> = BTreeMap::new();
        for booking in bookings {
            let sums = paths.entry(booking.route()).or_default();
            *sums = sums.with(booking);
        }
        Self { paths, platform }
    }

    fn at(&self, server: &Resource) -> impl Iterator<Item = (&Route, &GroupSums, usize)> {
        self.paths.iter().filter_map(move |(route, sums)| {
            let index = route
                .resources
                .iter()
                .position(|visited| visited == server)?;
            Some((route, sums, index))
        })
    }

    fn workers(&self, core: u32) -> BTreeSet<&Resource> {
        let all = self.paths.keys().flat_map(|route| &route.resources);
        all.filter(|server| matches!(server, Resource::Worker { core: on, .. } if *on == core))
            .collect()
    }

    fn server(&self, server: &Resource) -> Option<Server> {
        let Resource::Worker {
            core,
            wake_up_fs,
            batch,
            batch_fs,
            devices,
            ..
        } = server
        else {
            let is_port = matches!(server, Resource::Port { .. });
            let stall_fs = if is_port {
                self.platform.worst_stall_fs()
            } else {
                0
            };
            let turns = self.at(server).map(|(route, ..)| route.port_turn);
            let turn = turns.max().filter(|_| is_port);
            let later_fs = self.max_packet_fs(server) * u128::from(turn.unwrap_or(1).max(1) - 1);
            return Some(Server {
                service: RateLatency::core(stall_fs),
                fcfs: Some(RateLatency::core(stall_fs + later_fs)),
                whole_core: false,
                batches: turn.map(|turn| (turn, 0, LeakyBucket::new(0, 0))),
            });
        };
        let returns = self.at(server).any(|(_, sums, index)| sums.returns[index]);
        let any = *devices || self.ports(server) > 1 || self.holds(server);
        let others = self.workers(*core);
        let others: Vec<_> = others.into_iter().filter(|one| *one != server).collect();
        let polls = |one: &&&Resource| matches!(one, Resource::Worker { polls: true, .. });
        let stall_fs = self.platform.stall_fs(*core);
        let mut service = RateLatency::core(stall_fs + wake_up_fs);
        if !others.is_empty() && others.iter().find(polls).is_none() {
            let wakes = others.iter().map(|one| match one {
                Resource::Worker { wake_up_fs, .. } => *wake_up_fs,
                _ => 0,
            });
            let service = RateLatency::core(stall_fs + wake_up_fs + wakes.sum::<u128>());
            return Some(Server {
                service,
                fcfs: None,
                whole_core: true,
                batches: None,
            });
        }
        if !others.is_empty() {
            if returns {
                return None;
            }
            service = fair_share(&service, 1, others.len() as u64, self.platform.slice_fs)?;
        }
        let (departures, departure_fs) = self.departures(server)?;
        let departures = departures.short().rate.max(departures.long().rate);
        let left = service.rate.saturating_sub(departures);
        let fcfs = (!returns && !any && 2 * left >= service.rate).then(|| {
            let mut later = self.max_packet_fs(server) * u128::from(batch.max(&1) - 1);
            if *batch_fs > 0 {
                later = 2 * (later + batch_fs + departure_fs);
            }
            let latency = mul_div_up(service.latency_fs, service.rate, left).unwrap();
            RateLatency::new(left, latency + mul_div_up(later, SECOND, left).unwrap())
        });
        let alone = others.is_empty() && fcfs.is_some();
        let batches = alone.then(|| {
            (
                *batch,
                *batch_fs,
                LeakyBucket::new(2 * departure_fs, departures),
            )
        });
        Some(Server {
            service,
            fcfs,
            whole_core: false,
            batches,
        })
    }

    fn ports(&self, worker: &Resource) -> u32 {
        let ports: BTreeSet<_> = self
            .at(worker)
            .map(|(route, ..)| &route.resources[0])
            .collect();
        ports
            .iter()
            .map(|port| match port {
                Resource::Port { queues, .. } => *queues,
                _ => 1,
            })
            .sum()
    }

    fn holds(&self, worker: &Resource) -> bool {
        self.at(worker).any(|(route, ..)| route.hold.times > 0)
    }

    fn max_packet_fs(&self, worker: &Resource) -> u128 {
        self.at(worker)
            .map(|(_, sums, index)| sums.packets_fs[index])
            .max()
            .unwrap_or(0)
    }

    fn departures(&self, worker: &Resource) -> Option<(ArrivalCurve, u128)> {
        self.at(worker).try_fold(
            Default::default(),
            |(sum, departure_fs): (ArrivalCurve, u128), (_, sums, _)| {
                Some((
                    sum.plus(&sums.at_departure)?,
                    departure_fs + sums.departure_fs,
                ))
            },
        )
    }

    /// Returns the delay of the first servers of a path.
    fn delay_before(&self, route: &Route, servers: usize) -> Option<u128> {
        let stays = route.resources[..servers]
            .iter()
            .try_fold(0_u128, |sum, server| {
                sum.checked_add(self.delay(server)? * route.passages(server))
            })?;
        Some(stays + route.held_before(servers))
    }

    fn arrivals(&self, route: &Route, sums: &GroupSums, index: usize) -> Option<ArrivalCurve> {
        let held = route.held_before(index + 1) - route.held_before(index);
        after_delay(&sums.curves[index], self.delay_before(route, index)? + held)
    }

    /// Returns all arrivals at a server, and the returning part.
    fn total(&self, server: &Resource, model: &Server) -> Option<(ArrivalCurve, ArrivalCurve)> {
        let is_any = model.fcfs.is_none();
        let servers = match server {
            Resource::Worker { core, .. } if model.whole_core => self.workers(*core),
            _ => BTreeSet::from([server]),
        };
        let mut sums = (ArrivalCurve::default(), ArrivalCurve::default());
        for server in servers {
            for (route, chains, index) in self.at(server) {
                if chains.unpoliced.is_some() {
                    return None;
                }
                let mut arrived = self.arrivals(route, chains, index)?;
                if let Resource::Worker { batch_fs, .. } = &route.resources[index]
                    && is_any
                {
                    let held = route.held_before(index + 1) - route.held_before(index);
                    let late = self.delay_before(route, index)? + held;
                    arrived = arrived
                        .plus(&after_delay(&chains.packet_count, late)?.times(*batch_fs)?)?;
                }
                sums.0 = sums.0.plus(&arrived)?;
                for _ in 1..route.passages(server) {
                    sums.1 = sums.1.plus(&arrived)?;
                }
            }
        }
        Some(sums)
    }

    /// Returns the longest stay by theorem 5, if known.
    fn batch_stay(&self, server: &Resource, model: &Server) -> Option<u128> {
        let (packets, batch, departures) = model.batches?;
        let (total, _) = self.total(server, model)?;
        let nothing = ArrivalCurve::default();
        if batch == 0 {
            return busy_period(&total, &nothing, &model.service);
        }
        let back =
            self.max_packet_fs(server) * u128::from(packets) + batch + model.service.latency_fs;
        let all = after_delay(&total, back)?.plus(&ArrivalCurve::of(departures))?;
        let latency = model.service.latency_fs + 2 * batch;
        busy_period(&all, &nothing, &RateLatency::new(SECOND, latency))
    }

    fn delay(&self, server: &Resource) -> Option<u128> {
        let model = self.server(server)?;
        let (total, returning) = self.total(server, &model)?;
        let delay = match model.fcfs {
            Some(fcfs) => delay(&total, &fcfs)?,
            None => busy_period(&total, &returning, &model.service)?,
        };
        let delay = delay.min(self.batch_stay(server, &model).unwrap_or(u128::MAX));
        if let Resource::Worker {
            devices: false,
            rings: sizes,
            ..
        } = server
        {
            let mut rings: BTreeMap<&Resource, u128> = BTreeMap::new();
            for (route, sums, index) in self.at(server) {
                let within = self.delay_before(route, index)? + delay;
                *rings.entry(&route.resources[0]).or_default() += sums.packet_count.at(within)?;
            }
            let fits = |(port, packets): (&&Resource, &u128)| {
                let many = matches!(port, Resource::Port { queues, .. } if *queues > 1);
                *packets <= u128::from(sizes[usize::from(many)])
            };
            if !rings.iter().all(fits) {
                return None;
            }
        }
        Some(delay)
    }

    fn lateness(&self, worker: &Resource) -> Option<u128> {
        let Resource::Worker {
            batch,
            batch_fs,
            devices,
            ..
        } = worker
        else {
            return None;
        };
        let model = self.server(worker)?;
        let (total, returning) = self.total(worker, &model)?;
        let busy = match self.batch_stay(worker, &model) {
            None if model.fcfs.is_some() && *batch_fs > 0 => None,
            None => busy_period(&total, &returning, &model.service),
            known => known,
        };
        let (departures, departure_fs) = self.departures(worker)?;
        let rate = model
            .service
            .rate
            .checked_sub(departures.long().rate.min(departures.short().rate));
        let ports = if *devices { 2 } else { self.ports(worker) };
        let batch_work = self.max_packet_fs(worker) * u128::from(*batch) + batch_fs;
        let work = batch_work * u128::from(ports) + departure_fs;
        let turn = rate
            .filter(|_| !model.whole_core && !self.holds(worker))
            .and_then(|rate| {
                Some(
                    mul_div_up(work, SECOND, rate)?
                        + mul_div_up(model.service.latency_fs, model.service.rate, rate)?,
                )
            });
        busy.into_iter().chain(turn).min()
    }

    /// Returns the bound of a path, and the longest time to the shaper.
    fn worst_case(&self, route: &Route) -> Option<(u128, u128)> {
        let sums = &self.paths[route];
        let (mut sum, mut least, mut late, mut to_shaper) = (0_u128, 0, 0, 0);
        let (mut is_fifo, mut tandem_servers) = (true, Vec::new());
        for (index, server) in route.resources.iter().enumerate() {
            self.delay(server)?;
            let model = self.server(server)?;
            let (total, returning) = self.total(server, &model)?;
            let arrived = self.arrivals(route, sums, index)?;
            let others = total.minus(&arrived)?;
            is_fifo &= model.fcfs.is_some();
            let own = if is_fifo { sums.curves[index] } else { arrived };
            let all = own.plus(&others)?;
            let once = match model.fcfs {
                Some(service) => {
                    tandem_servers.push(TandemServer {
                        service,
                        others,
                        packet: sums.packets_fs[index],
                    });
                    delay(&all, &service)?
                }
                None => busy_period(&all, &returning, &model.service)?,
            };
            let once = once.min(self.batch_stay(server, &model).unwrap_or(u128::MAX));
            sum += once * route.passages(server);
            let all = tandem_servers.len() == index + 1;
            let once = if all {
                tandem(&sums.max_work, &tandem_servers)
            } else {
                None
            };
            least = once.map_or(sum, |once| once.min(sum));
            if route.is_shaped && matches!(server, Resource::Worker { .. }) {
                late = self.lateness(server)?;
                to_shaper = least + route.hold.for_fs;
            }
        }
        Some((least + late, to_shaper))
    }
}

/// Returns the bound of the new chain, ns, and the chain whose promise would break: the name of the
/// new chain, or `another`.
fn decide(
    ledger: &Ledger,
    booking: &Booking,
    platform: &Platform,
) -> (Option<u64>, Option<String>) {
    let all = ledger
        .bookings()
        .filter(|other| other.chain != booking.chain);
    let before: Vec<&Booking> = all.collect();
    let with = before.iter().copied().chain([booking]);
    let (with, without) = (
        Reference::new(with, platform),
        Reference::new(before.iter().copied(), platform),
    );
    let own = if booking.is_bounded() {
        with.worst_case(&booking.route())
    } else {
        None
    };
    let own_ns = own.map(|(fs, _)| (fs + booking.held_fs.unwrap()).div_ceil(NS) as u64);
    let too_long = booking
        .latency_ns
        .is_some_and(|latency_ns| own_ns.is_none_or(|own_ns| own_ns > latency_ns));
    if booking.is_bounded() && too_long {
        return (own_ns, Some(booking.chain.clone()));
    }
    let broken = before.iter().any(|other| {
        let Some(promise_fs) = other.promise_fs() else {
            return false;
        };
        let Some((was_fs, was_to_shaper_fs)) = without.worst_case(&other.route()) else {
            return false;
        };
        let Some((fs, to_shaper_fs)) = with.worst_case(&other.route()) else {
            return was_fs <= promise_fs;
        };
        let room_fs = other.room_fs.unwrap_or(u128::MAX);
        was_fs <= promise_fs && fs > promise_fs
            || was_to_shaper_fs <= room_fs && to_shaper_fs > room_fs
    });
    (own_ns, broken.then(|| "another".to_owned()))
}

/// A random chain with random functions, servers and contract.
#[derive(Debug, Clone)]
struct RandomChain {
    function: usize,
    ports: (u32, u32),
    queues: u32,
    core: u32,
    worker: u32,
    idle: usize,
    rate: u64,
    burst: u32,
    latency_us: Option<u64>,
    link: bool,
    enforce: usize,
}

fn random_chain() -> impl Strategy<Value = RandomChain> {
    let place = (0_u32..3, 0_u32..3, 1_u32..3, 0_u32..2, 0_u32..3);
    let agreed = (
        10_u64..40_000,
        1_u32..200,
        prop::option::weighted(0.8, 50_u64..20_000),
    );
    let form = (0_usize..6, 0_usize..6, any::<bool>(), 0_usize..12);
    (place, agreed, form).prop_map(|(place, agreed, form)| RandomChain {
        ports: (place.0, place.1),
        queues: place.2,
        core: place.3,
        worker: place.4,
        rate: agreed.0,
        burst: agreed.1,
        latency_us: agreed.2,
        function: form.0,
        idle: form.1,
        link: form.2,
        enforce: form.3,
    })
}

impl RandomChain {
    fn book(&self, name: &str, costs: &Costs) -> Booking {
        let functions = [
            "{ name: f, kind: forward }",
            "{ name: f, kind: xor, space: user, config: { key: 1 } }",
            "{ name: f, kind: rlnc-decode, space: user, config: { delivery: in-order, timeout: 200us } }",
            "{ name: f, kind: forward }, { name: g, kind: xor, space: user, config: { key: 1 } }",
            "{ name: f, kind: rlnc-encode, space: user }, { name: g, kind: forward, space: kernel }",
            "{ name: f, kind: xor, space: user, config: { key: 1 } }, { name: g, kind: forward, space: user }",
        ];
        let mapping = if self.function == 5 {
            "distributed"
        } else {
            "compact"
        };
        let enforce = if self.enforce == 0 {
            "none"
        } else {
            ["auto", "policer"][self.enforce % 2]
        };
        let idle = ["sleep", "adaptive", "spin", "sleep", "sleep", "adaptive"][self.idle];
        let latency = self
            .latency_us
            .map_or(String::new(), |us| format!(", latency: {us}us"));
        let text = format!(
            "apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: {{ name: {name} }}\nspec:\n  match: {{}}\n  functions: [ {} ]\n  \
             ports: {{ ingress: eth1, egress: eth2 }}\n  mapping: {mapping}\n  worker: {{ batch: {}, idle: {idle} }}\n  \
             sla: {{ rate: {}pps, burst: {}, enforce: {enforce}{latency} }}\n",
            functions[self.function],
            1 + self.burst % 40,
            self.rate,
            self.burst,
        );
        let chains = myelin_spec::parse(
            &text,
            &myelin_spec::Source::new("random.yaml"),
            &myelin_spec::NoFiles,
        );
        let chain = chains.unwrap_or_else(|errors| panic!("{errors}")).remove(0);
        let machine = Machine::with_end_hosts(2);
        let mut plan = plan(&chain, costs, &machine).unwrap();
        if let Some(worker) = &mut plan.worker {
            (worker.circuit, worker.core) = (format!("w{}", self.worker), self.core);
        }
        let site = Site {
            ingress: format!("in{}", self.ports.0),
            queues: self.queues,
            egress: format!("out{}", self.ports.1),
            egress_bps: self.link.then_some(1_000_000_000),
            ingress_mtu: None,
        };
        book(&chain, &plan, costs, &site)
    }
}

proptest! {
    /// The ledger may already have any chains.
    #[test]
    fn decision_equals_the_decision_of_the_reference(chains in prop::collection::vec(random_chain(), 1..9), removed_at in 0_usize..9, in_burst: bool) {
        let cost = |ns| Cost::new(ns, 0.1);
        let in_burst = in_burst.then(|| InBurst { kernel: cost(1000.0), port: cost(900.0), worker: cost(700.0), ..InBurst::default() });
        let costs = Costs { in_burst, ..Costs::default() };
        let platform = Platform::new(&costs);
        let mut ledger = Ledger::default();
        for (index, chain) in chains.iter().enumerate() {
            let mut booking = chain.book(&format!("c{index}"), &costs);
            let fast = admit(&ledger, &booking, &platform);
            let (bound_ns, refusal) = decide(&ledger, &booking, &platform);
            prop_assert_eq!(fast.bound.as_ref().map(|bound| bound.bound_ns), bound_ns, "{:?}", &fast);
            // Admission refuses a chain without a promise if its core is full, but not if its worst
            // case is unknown.
            let is_own = booking.latency_ns.is_none() && fast.no_bound.is_some() && fast.refusal.is_some();
            if !is_own || refusal.is_some() {
                prop_assert_eq!(fast.refusal.is_some(), refusal.is_some(), "{:?} against {:?}", &fast, refusal);
            }
            if fast.refusal.is_some() {
                booking.latency_ns = None;
            }
            ledger.insert(booking);
            if index == removed_at {
                ledger.remove("c0");
            }
        }
    }
}
