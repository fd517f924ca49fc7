//! The servers on a chain's path, and the cost of a packet at each.

use myelin_spec::{Effect, Hook, Idle, Mapping, ServiceChain, Space};

use super::flow::{Growth, Work};
use super::site::{NS, Site};
use crate::calculus::SECOND;
use crate::costs::{Cost, Costs, InBurst};
use crate::frame::{LONGEST, SHORTEST};
use crate::plan::{Plan, ShaperPlace, Step};

/// A server that several chains may share.
///
/// Servers are ordered as on a path, so the arrivals at one depend only on servers before it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resource {
    /// The kernel part of an ingress port, in softirq: on any core, but on one at a time, in order
    /// of arrival.
    Port {
        /// The interface.
        name: String,
        /// Its receive queues; a worker has a socket for each.
        queues: u32,
    },
    /// A worker process.
    Worker {
        /// Its core.
        core: u32,
        /// Its name.
        name: String,
        /// Whether it keeps its core without work, at least for some time.
        polls: bool,
        /// Cost of its wake-up, fs; 0 if it never sleeps.
        wake_up_fs: u128,
        /// Most packets that it takes from a port before it sends them and serves the next port.
        batch: u16,
        /// Cost of a batch besides its packets, fs: the extra cost of a single packet over one of a
        /// burst.
        batch_fs: u128,
        /// Whether its ports are DPDK devices: one at each end, served in turn.
        devices: bool,
    },
    /// A link with a speed.
    Link(String),
}

impl std::fmt::Display for Resource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Port { name, .. } => write!(f, "the kernel part at {name}"),
            Self::Worker { core, .. } => write!(f, "the worker on core {core}"),
            Self::Link(name) => write!(f, "the link {name}"),
        }
    }
}

/// The common properties of chains that are one flow to all others.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Route {
    /// The servers, in order.
    pub(super) resources: Vec<Resource>,
    pub(super) hold: Hold,
    /// Whether the worker shapes the departures.
    pub(super) is_shaped: bool,
    /// Packets processed at the port before the first of them is forwarded, at most.
    pub(super) port_turn: u16,
}

/// Hold times of a chain's functions in the worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hold {
    /// Number of times that a packet may be held back.
    pub times: u32,
    /// Total hold time, fs.
    pub for_fs: u128,
}

impl Route {
    /// Index of the worker.
    pub(super) fn worker(&self) -> Option<usize> {
        let mut resources = self.resources.iter();
        resources.position(|resource| matches!(resource, Resource::Worker { .. }))
    }

    /// Passages of a packet through a server.
    pub(super) fn passages(&self, resource: &Resource) -> u128 {
        match resource {
            Resource::Worker { .. } => 1 + u128::from(self.hold.times),
            _ => 1,
        }
    }

    /// Hold time of a packet in the first `servers` servers, fs.
    pub(super) fn held_before(&self, servers: usize) -> u128 {
        let is_behind = self.worker().is_some_and(|worker| worker < servers);
        if is_behind { self.hold.for_fs } else { 0 }
    }
}

/// One server on the path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Visit {
    /// The server.
    pub resource: Resource,
    /// Worst-case cost of a packet of the chain there, for all its passages.
    pub work: Work,
    /// Whether packets return to the same core, or pass several processes on it.
    pub returns: bool,
    pub(super) growth: Growth,
}

/// A step of the path, for the shares in the output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HopWork {
    pub(super) name: String,
    /// Index of its visit.
    pub(super) visit: usize,
    pub(super) work: Work,
}

/// The path of a chain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ServerPath {
    pub(super) visits: Vec<Visit>,
    pub(super) hops: Vec<HopWork>,
    pub(super) hold: Hold,
    /// The part of the worker's work at departures from its shaper, if it has one.
    pub(super) at_departure: Option<Work>,
    /// Packets processed at the port before the first of them is forwarded, at most.
    pub(super) port_turn: u16,
}

/// The path of a planned chain, or the reason why it has no bound.
pub(super) fn server_path(
    chain: &ServiceChain,
    plan: &Plan,
    costs: &Costs,
    site: &Site,
) -> Result<ServerPath, String> {
    if let Some(hop) = plan.black_boxes().next() {
        return Err(format!(
            "the delay in `{}` is unknown (black box)",
            hop.name
        ));
    }
    let mut functions = chain.functions.iter();
    if let Some(function) =
        functions.find(|function| function.sandbox.limits.cpu_millicores.is_some())
    {
        return Err(format!(
            "`{}` stops when its `limits: {{ cpu }}` is used up",
            function.name
        ));
    }
    if plan.mapping == Mapping::Pipeline && plan.own_processes > 0 {
        return Err(
            "in mapping `pipeline` packets return to the first core; `mapping: compact` has a bound".to_owned(),
        );
    }
    let mut builder = Builder::new(chain, plan, costs, site);
    builder.walk();
    Ok(builder.finish())
}

/// Most packets of one turn of receive work (Linux, `NAPI_POLL_WEIGHT`). XDP forwards redirected
/// packets at its end, or in lots of 16.
const RECEIVE_TURN: u16 = 64;
/// Most packets that a port passes to the stack, and so to tcx, at once when it merges segments
/// (Linux, `net.core.gro_normal_batch`).
const RECEIVE_LIST: u16 = 8;
/// The longest frame in a worker's packet memory, bytes.
const FRAME: u128 = 4096;
/// The shortest period of a function's timer, ns; a worker without packets checks its timers in
/// less time.
const LEAST_PERIOD_NS: u64 = 10_000;

struct Builder<'a> {
    chain: &'a ServiceChain,
    plan: &'a Plan,
    costs: &'a Costs,
    site: &'a Site,
    path: ServerPath,
    /// Index of the visit whose work the current kernel functions add to.
    here: usize,
    growth: Growth,
    worker: Option<usize>,
    /// Costs of packets in bursts, if the mapping has measured batches.
    in_burst: Option<InBurst>,
    /// User segments so far.
    entries: u32,
}

impl Visit {
    /// Cost of the longest frame there, fs.
    pub fn max_packet_fs(&self) -> u128 {
        self.work.of_fs(self.growth.longest)
    }
}

impl<'a> Builder<'a> {
    fn new(chain: &'a ServiceChain, plan: &'a Plan, costs: &'a Costs, site: &'a Site) -> Self {
        let shaper = plan.shaper.as_ref();
        let shapes = shaper.is_some_and(|shaper| shaper.place == ShaperPlace::Worker);
        let path = ServerPath {
            at_departure: shapes.then(Work::default),
            port_turn: port_turn(plan),
            ..ServerPath::default()
        };
        Self {
            chain,
            plan,
            costs,
            site,
            path,
            here: 0,
            growth: Growth::none(site.longest()),
            worker: None,
            in_burst: costs
                .in_burst
                .filter(|_| plan.mapping == Mapping::Compact && !chain.is_over_dpdk()),
            entries: 0,
        }
    }

    fn walk(&mut self) {
        let (plan, chain) = (self.plan, self.chain);
        // A DPDK device belongs to the worker; the kernel has no part in the path.
        if chain.is_over_dpdk() {
            self.enter_worker();
        } else {
            self.path.visits.push(self.visit(self.site.port()));
        }
        self.step("front door", self.at_door());
        let mut from = Space::Kernel;
        for (hop, function) in plan.hops.iter().zip(&chain.functions) {
            // In mapping `distributed` each user function has its own worker, and the kernel
            // function behind it runs where that worker transmits.
            if hop.space == Space::User {
                // The shaper is behind the last user function.
                self.path.at_departure = self.path.at_departure.map(|_| Work::default());
            }
            if hop.space == Space::User
                && (from == Space::Kernel || plan.mapping == Mapping::Distributed)
            {
                self.enter_worker();
            }
            from = hop.space;
            let own = self
                .costs
                .of(&function.config, hop.space)
                .unwrap_or_default();
            let work = self
                .work_of(&hop.reach)
                .plus(self.worst_case(own))
                .plus(self.crowded(hop.space));
            let effect = function.config.effect();
            self.growth = self.growth.with_added_bytes(effect.added_bytes);
            if hop.space == Space::Kernel {
                self.depart(work);
            }
            self.step(&hop.name, work);
            self.grow(&effect);
        }
        self.depart(self.alone(&plan.egress));
        self.step("egress", self.work_of(&plan.egress));
        if let Some(bps) = self.site.egress_bps.filter(|bps| *bps > 0) {
            self.link(bps);
        }
    }

    /// Adds a function's effect on the packets behind it.
    fn grow(&mut self, effect: &Effect) {
        if let Some(held_ns) = effect.held_ns {
            // The timer has this period, so it may miss a packet by nearly one period; a worker
            // checks its timers once in several turns.
            let period_ns = held_ns.max(LEAST_PERIOD_NS);
            let held_ns = u128::from(held_ns) + u128::from(period_ns) + u128::from(LEAST_PERIOD_NS);
            self.path.hold.times += 1;
            self.path.hold.for_fs += held_ns * NS;
        }
        if effect.added_packets.window > 0 {
            self.growth = self.growth.with_added_packets(effect.added_packets);
        }
        // Kept packets leave when others arrive.
        self.growth.extra += u128::from(effect.released);
    }

    fn visit(&self, resource: Resource) -> Visit {
        Visit {
            resource,
            work: Work::default(),
            returns: false,
            growth: self.growth,
        }
    }

    /// Adds the worker; all workers of a chain share one core.
    fn enter_worker(&mut self) {
        self.entries += 1;
        if let Some(worker) = self.worker {
            self.path.visits[worker].returns = true;
            self.here = worker;
            return;
        }
        let spec = &self.chain.worker;
        let several = self.plan.mapping == Mapping::Distributed
            && self
                .plan
                .hops
                .iter()
                .filter(|hop| hop.space == Space::User)
                .count()
                > 1;
        let wake_up_fs = wake_up_fs(self.costs);
        self.path.visits.push(self.visit(Resource::Worker {
            core: self.site.core,
            name: if self.plan.mapping == Mapping::Distributed {
                format!("{}.{}", self.chain.owner(), self.chain.name)
            } else {
                self.site.worker.clone()
            },
            // Workers of one chain that share a core do not poll before they sleep.
            polls: spec.idle == Idle::Spin || spec.idle == Idle::Adaptive && !several,
            wake_up_fs: if spec.idle == Idle::Spin {
                0
            } else {
                wake_up_fs
            },
            batch: spec.batch,
            batch_fs: self.batch_fs(),
            devices: self.chain.is_over_dpdk(),
        }));
        self.here = self.path.visits.len() - 1;
        self.worker = Some(self.here);
    }

    fn step(&mut self, name: &str, work: Work) {
        let visit = &mut self.path.visits[self.here];
        visit.work = visit.work.plus(work);
        // Earlier work is for at most as many packets, and no longer ones.
        visit.growth = self.growth;
        self.path.hops.push(HopWork {
            name: name.to_owned(),
            visit: self.here,
            work,
        });
    }

    /// Counts work behind the last user function as done at the departure.
    fn depart(&mut self, work: Work) {
        if let Some(departure) = &mut self.path.at_departure {
            *departure = departure.plus(work);
        }
    }

    /// Adds the egress link. A frame takes 24 bytes more: preamble, frame check sequence and gap.
    fn link(&mut self, bps: u64) {
        let byte_fs = (8 * SECOND).div_ceil(u128::from(bps));
        let work = Work {
            packet_fs: 24 * byte_fs,
            byte_fs,
        };
        let visit = self.visit(Resource::Link(self.site.egress.clone()));
        self.path.visits.push(visit);
        self.here = self.path.visits.len() - 1;
        self.step("egress link", work);
    }

    /// Work of the front door with all receive work: up to a worker's ring, or through the kernel
    /// to the egress, whose steps then count twice.
    fn at_door(&self) -> Work {
        let door = self.work_of(&self.plan.door);
        let Some(in_burst) = self.in_burst else {
            return door;
        };
        let all = if self.plan.uses(Space::User) {
            in_burst.port
        } else {
            in_burst.kernel
        };
        door.max_of_each(self.worst_case(all))
    }

    /// Extra cost of a single packet in a worker over one of a burst, at most, fs.
    fn batch_fs(&self) -> u128 {
        let Some(in_burst) = self.in_burst else {
            return 0;
        };
        let steps = &self.costs.steps;
        let alone = self
            .worst_case(steps.enter_user)
            .plus(self.worst_case(steps.user_egress));
        let many = self.worst_case(in_burst.worker);
        [SHORTEST.into(), FRAME]
            .map(|bytes| alone.of_fs(bytes).saturating_sub(many.of_fs(bytes)))
            .into_iter()
            .fold(0, u128::max)
    }

    /// Cost of a packet of a burst for a part of a step. Each packet of a full batch pays its share
    /// of the batch's own cost.
    fn in_burst(&self, part: &str) -> Option<Work> {
        let in_burst = self.in_burst?;
        match part {
            "enter_user" => {
                let batch = u128::from(self.chain.worker.batch.max(1));
                let share = Work {
                    packet_fs: self.batch_fs().div_ceil(batch),
                    byte_fs: 0,
                };
                Some(self.worst_case(in_burst.worker).plus(share))
            }
            "user_egress" => Some(Work::default()),
            _ => None,
        }
    }

    /// Extra cost of a function when packets of other chains alternate with its own.
    fn crowded(&self, space: Space) -> Work {
        let crowded = self.costs.in_burst.map(|in_burst| match space {
            Space::Kernel => in_burst.kernel_function,
            Space::User => in_burst.user_function,
        });
        self.worst_case(crowded.unwrap_or_default())
    }

    /// Cost of a packet of a burst for a step.
    fn work_of(&self, step: &Step) -> Work {
        let parts = step.parts.iter();
        let parts = parts.filter_map(|part| {
            self.in_burst(part)
                .or_else(|| self.single_packet_work(part))
        });
        parts.fold(Work::default(), Work::plus)
    }

    /// Cost of a single packet for a step.
    fn alone(&self, step: &Step) -> Work {
        let parts = step
            .parts
            .iter()
            .filter_map(|part| self.single_packet_work(part));
        parts.fold(Work::default(), Work::plus)
    }

    fn single_packet_work(&self, part: &str) -> Option<Work> {
        let mut steps = self.costs.steps.iter();
        let known = steps.find(|(step, _)| *step == part);
        known.map(|(_, cost)| self.worst_case(cost))
    }

    fn worst_case(&self, cost: Cost) -> Work {
        worst(self.costs, cost)
    }

    fn finish(mut self) -> ServerPath {
        // In mapping `distributed` each worker of a user function sleeps.
        if let Some(worker) = self.worker
            && self.plan.mapping == Mapping::Distributed
            && let Resource::Worker { wake_up_fs, .. } = &mut self.path.visits[worker].resource
        {
            *wake_up_fs = wake_up_fs.saturating_mul(u128::from(self.entries));
        }
        self.path
    }
}

/// Packets of one turn. Each link of mapping `distributed` is a port whose turns alternate with the
/// first one's.
fn port_turn(plan: &Plan) -> u16 {
    let links = match plan.mapping {
        Mapping::Distributed => plan.hops.len() as u16,
        _ => 0,
    };
    let turn = match plan.hook {
        Hook::Tcx => RECEIVE_LIST,
        Hook::Xdp | Hook::Auto => RECEIVE_TURN,
    };
    turn.saturating_mul(links.saturating_add(1))
}

/// Worst-case cost of a worker's wake-up, fs.
pub(super) fn wake_up_fs(costs: &Costs) -> u128 {
    worst(costs, costs.steps.wake_up).of_fs(LONGEST.into())
}

/// The mean cost times the worst-case factor.
pub(super) fn worst(costs: &Costs, cost: Cost) -> Work {
    // Times of seconds in fs are below 2^53, so f64 is exact; rounded up.
    // up.
    let fs = |ns: f64| (ns * costs.worst_case * NS as f64).ceil() as u128;
    Work {
        packet_fs: fs(cost.per_packet_ns),
        byte_fs: fs(cost.per_byte_ns),
    }
}
