//! The servers on a chain's way, and what a packet costs at each.

use myelin_spec::{Effect, Hook, Idle, Mapping, ServiceChain, Space};

use super::flow::{Growth, Work};
use super::site::{NS, Site};
use crate::calculus::SECOND;
use crate::costs::{Cost, Costs, InBurst};
use crate::frame::{LONGEST, SHORTEST};
use crate::plan::{Plan, ShaperPlace, Step};

/// What several chains may wait for.
///
/// The order is that of the way, so that what comes in at one depends on those before it alone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resource {
    /// The kernel's part behind an ingress port, run in softirq: on any core, but on one at a time, in the order in which packets come.
    Port {
        /// The interface.
        name: String,
        /// Its receive queues; a worker has a socket for each.
        queues: u32,
    },
    /// A worker process.
    Worker {
        /// The core that it is bound to.
        core: u32,
        /// Its name.
        name: String,
        /// Whether it keeps its core while there is nothing to do, for some time at least.
        polls: bool,
        /// What waking it takes, fs; 0 where it never sleeps.
        wake_up_fs: u128,
        /// Packets that it takes from a port before it sends them and looks at the next port.
        batch: u16,
        /// What a batch takes besides its packets at most, fs: what a packet that comes alone costs beyond one of many.
        batch_fs: u128,
        /// Whether its ports are devices of DPDK: one at each end, taken in turn.
        devices: bool,
    },
    /// A link with a speed.
    Link(String),
}

impl std::fmt::Display for Resource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Port { name, .. } => write!(f, "the kernel's part at {name}"),
            Self::Worker { core, .. } => write!(f, "the worker on core {core}"),
            Self::Link(name) => write!(f, "the link {name}"),
        }
    }
}

/// What chains have in common that are one flow to everybody else.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Route {
    /// The servers, in order.
    pub(super) resources: Vec<Resource>,
    pub(super) hold: Hold,
    /// Whether the worker shapes what leaves.
    pub(super) is_shaped: bool,
    /// Packets that the port has done when it hands on the first of them, at most.
    pub(super) port_turn: u16,
}

/// What functions of a chain's worker hold back on purpose, and send when they like.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hold {
    /// How often a packet may be held back.
    pub times: u32,
    /// For how long altogether, fs.
    pub for_fs: u128,
}

impl Route {
    /// Where the worker stands on it.
    pub(super) fn worker(&self) -> Option<usize> {
        let mut resources = self.resources.iter();
        resources.position(|resource| matches!(resource, Resource::Worker { .. }))
    }

    /// How often a packet passes that server.
    pub(super) fn passages(&self, resource: &Resource) -> u128 {
        match resource {
            Resource::Worker { .. } => 1 + u128::from(self.hold.times),
            _ => 1,
        }
    }

    /// What is held back before so many servers are behind a packet, fs.
    pub(super) fn held_before(&self, servers: usize) -> u128 {
        let is_behind = self.worker().is_some_and(|worker| worker < servers);
        if is_behind { self.hold.for_fs } else { 0 }
    }
}

/// One server on the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Visit {
    /// What serves.
    pub resource: Resource,
    /// What a packet of the chain costs there, all visits together, at worst.
    pub work: Work,
    /// Whether packets come back to the same core, or pass several processes on it.
    pub returns: bool,
    pub(super) growth: Growth,
}

/// A step of the way, for the shares that are shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HopWork {
    pub(super) name: String,
    /// Index of its visit.
    pub(super) visit: usize,
    pub(super) work: Work,
}

/// The way of a chain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) visits: Vec<Visit>,
    pub(super) hops: Vec<HopWork>,
    pub(super) hold: Hold,
    /// What of the worker's work is done when a packet leaves its shaper, where it has one.
    pub(super) at_departure: Option<Work>,
    /// Packets that the port has done when it hands on the first of them, at most.
    pub(super) port_turn: u16,
}

/// The way of a planned chain; why it has no bound where it has none.
pub(super) fn way(
    chain: &ServiceChain,
    plan: &Plan,
    costs: &Costs,
    site: &Site,
) -> Result<Way, String> {
    if let Some(hop) = plan.black_boxes().next() {
        return Err(format!(
            "what happens in `{}` is unknown (black box)",
            hop.name
        ));
    }
    let mut functions = chain.functions.iter();
    if let Some(function) =
        functions.find(|function| function.sandbox.limits.cpu_millicores.is_some())
    {
        return Err(format!(
            "`{}` stands still whenever its `limits: {{ cpu }}` is used up",
            function.name
        ));
    }
    if plan.mapping == Mapping::Pipeline && plan.own_processes > 0 {
        return Err(
            "in mapping `pipeline` packets go from core to core and back to the first; `mapping: compact` has a bound".to_owned(),
        );
    }
    let mut builder = Builder::new(chain, plan, costs, site);
    builder.walk();
    Ok(builder.finish())
}

/// Packets that a turn of a port's receive work takes at most (Linux, `NAPI_POLL_WEIGHT`). What XDP redirects is handed on at its end, or in lots of 16.
const RECEIVE_TURN: u16 = 64;
/// Packets that a port gives to the stack, and so to tcx, at once where it joins segments (Linux, `net.core.gro_normal_batch`).
const RECEIVE_LIST: u16 = 8;
/// The longest frame that a worker's packet memory takes, bytes.
const FRAME: u128 = 4096;
/// The shortest period of a function's timer; in less than that a worker without packets looks at its timers, ns.
const LEAST_PERIOD_NS: u64 = 10_000;

struct Builder<'a> {
    chain: &'a ServiceChain,
    plan: &'a Plan,
    costs: &'a Costs,
    site: &'a Site,
    way: Way,
    /// The visit that kernel functions count for now.
    here: usize,
    growth: Growth,
    worker: Option<usize>,
    /// What packets in bursts cost, where the worker takes them in batches as it is measured.
    in_burst: Option<InBurst>,
    /// User segments so far.
    entries: u32,
}

impl Visit {
    /// What the longest frame costs there, fs.
    pub fn most_fs(&self) -> u128 {
        self.work.of_fs(self.growth.longest)
    }
}

impl<'a> Builder<'a> {
    fn new(chain: &'a ServiceChain, plan: &'a Plan, costs: &'a Costs, site: &'a Site) -> Self {
        let shaper = plan.shaper.as_ref();
        let shapes = shaper.is_some_and(|shaper| shaper.place == ShaperPlace::Worker);
        let way = Way {
            at_departure: shapes.then(Work::default),
            port_turn: port_turn(plan),
            ..Way::default()
        };
        Self {
            chain,
            plan,
            costs,
            site,
            way,
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
        // A device of DPDK is the worker's; the kernel has no part in it.
        if chain.is_over_dpdk() {
            self.enter_worker();
        } else {
            self.way.visits.push(self.visit(self.site.port()));
        }
        self.step("front door", self.at_door());
        let mut from = Space::Kernel;
        for (hop, function) in plan.hops.iter().zip(&chain.functions) {
            // In mapping `distributed` each user function has a worker of its own, and what follows it in the kernel runs where it
            // transmits.
            if hop.space == Space::User {
                // The shaper stands behind the last one.
                self.way.at_departure = self.way.at_departure.map(|_| Work::default());
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
                .plus(self.worst(own))
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

    /// What a function does to the packets behind it.
    fn grow(&mut self, effect: &Effect) {
        if let Some(held_ns) = effect.held_ns {
            // Its timer runs for as long a time, and so may find a packet just before that is due; and a worker looks at its timers
            // once in so many turns.
            let period_ns = held_ns.max(LEAST_PERIOD_NS);
            let held_ns = u128::from(held_ns) + u128::from(period_ns) + u128::from(LEAST_PERIOD_NS);
            self.way.hold.times += 1;
            self.way.hold.for_fs += held_ns * NS;
        }
        if effect.added_packets.window > 0 {
            self.growth = self.growth.with_added_packets(effect.added_packets);
        }
        // What it keeps goes when others come.
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

    /// All workers of a chain have one core.
    fn enter_worker(&mut self) {
        self.entries += 1;
        if let Some(worker) = self.worker {
            self.way.visits[worker].returns = true;
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
        self.way.visits.push(self.visit(Resource::Worker {
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
        self.here = self.way.visits.len() - 1;
        self.worker = Some(self.here);
    }

    fn step(&mut self, name: &str, work: Work) {
        let visit = &mut self.way.visits[self.here];
        visit.work = visit.work.plus(work);
        // What the work before counts for is at most as many packets, and no longer ones.
        visit.growth = self.growth;
        self.way.hops.push(HopWork {
            name: name.to_owned(),
            visit: self.here,
            work,
        });
    }

    /// What is done behind the last function in user space is done at the departure.
    fn depart(&mut self, work: Work) {
        if let Some(departure) = &mut self.way.at_departure {
            *departure = departure.plus(work);
        }
    }

    /// What a frame takes on the wire: with preamble, frame check sequence and gap, 24 bytes.
    fn link(&mut self, bps: u64) {
        let byte_fs = (8 * SECOND).div_ceil(u128::from(bps));
        let work = Work {
            packet_fs: 24 * byte_fs,
            byte_fs,
        };
        let visit = self.visit(Resource::Link(self.site.egress.clone()));
        self.way.visits.push(visit);
        self.here = self.way.visits.len() - 1;
        self.step("egress link", work);
    }

    /// The front door, with all the receive work: to a worker's ring, or through the kernel to the egress, whose steps then count once more.
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
        door.or_more(self.worst(all))
    }

    /// What a packet that comes alone costs a worker beyond one of many, at most.
    fn batch_fs(&self) -> u128 {
        let Some(in_burst) = self.in_burst else {
            return 0;
        };
        let steps = &self.costs.steps;
        let alone = self
            .worst(steps.enter_user)
            .plus(self.worst(steps.user_egress));
        let many = self.worst(in_burst.worker);
        [SHORTEST.into(), FRAME]
            .map(|bytes| alone.of_fs(bytes).saturating_sub(many.of_fs(bytes)))
            .into_iter()
            .fold(0, u128::max)
    }

    /// What a packet of a burst costs for a step that is named as its costs are. A batch's share of what it takes by itself is each packet's of a full one.
    fn in_burst(&self, part: &str) -> Option<Work> {
        let in_burst = self.in_burst?;
        match part {
            "enter_user" => {
                let batch = u128::from(self.chain.worker.batch.max(1));
                let share = Work {
                    packet_fs: self.batch_fs().div_ceil(batch),
                    byte_fs: 0,
                };
                Some(self.worst(in_burst.worker).plus(share))
            }
            "user_egress" => Some(Work::default()),
            _ => None,
        }
    }

    /// What a function takes more where packets of other chains come between those of its own.
    fn crowded(&self, space: Space) -> Work {
        let crowded = self.costs.in_burst.map(|in_burst| match space {
            Space::Kernel => in_burst.kernel_function,
            Space::User => in_burst.user_function,
        });
        self.worst(crowded.unwrap_or_default())
    }

    /// What a packet of a burst costs for a step.
    fn work_of(&self, step: &Step) -> Work {
        let parts = step.parts.iter();
        let parts = parts.filter_map(|part| self.in_burst(part).or_else(|| self.known(part)));
        parts.fold(Work::default(), Work::plus)
    }

    /// The same for a packet that comes alone.
    fn alone(&self, step: &Step) -> Work {
        let parts = step.parts.iter().filter_map(|part| self.known(part));
        parts.fold(Work::default(), Work::plus)
    }

    fn known(&self, part: &str) -> Option<Work> {
        let mut steps = self.costs.steps.iter();
        let known = steps.find(|(step, _)| *step == part);
        known.map(|(_, cost)| self.worst(cost))
    }

    fn worst(&self, cost: Cost) -> Work {
        worst(self.costs, cost)
    }

    fn finish(mut self) -> Way {
        // Each user function of mapping `distributed` sleeps by itself.
        if let Some(worker) = self.worker
            && self.plan.mapping == Mapping::Distributed
            && let Resource::Worker { wake_up_fs, .. } = &mut self.way.visits[worker].resource
        {
            *wake_up_fs = wake_up_fs.saturating_mul(u128::from(self.entries));
        }
        self.way
    }
}

/// Each link of mapping `distributed` is a port with turns of its own, which take turns with the first one's.
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

/// What waking a worker takes, fs.
pub(super) fn wake_up_fs(costs: &Costs) -> u128 {
    worst(costs, costs.steps.wake_up).of_fs(LONGEST.into())
}

/// The mean cost, times what the worst case is of it.
pub(super) fn worst(costs: &Costs, cost: Cost) -> Work {
    // Times of at most seconds: far below what an f64 holds exactly; rounded up.
    let fs = |ns: f64| (ns * costs.worst_case * NS as f64).ceil() as u128;
    Work {
        packet_fs: fs(cost.per_packet_ns),
        byte_fs: fs(cost.per_byte_ns),
    }
}
