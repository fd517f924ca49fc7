//! The servers on a chain's path, and the cost of a packet at each.

use myelin_spec::{Effect, Idle, Mapping, ServiceChain, Space};
use serde::{Deserialize, Serialize};

use super::flow::{Growth, Work};
use super::site::{NS, Site, pause_fs, port_turn, wake_up_fs, worst_case_work};
use super::stages::{StageTurns, packets_of_turn};
use super::turns::WorkerTurn;
use super::unbounded::why_unbounded;
use crate::calculus::SECOND;
use crate::costs::{Cost, Costs, InBurst};
use crate::frame::SHORTEST;
use crate::plan::{Plan, ShaperPlace, Step};

/// A server that several chains may share.
///
/// The order of servers is that of a path, so arrivals at a server depend only on earlier servers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Resource {
    /// The kernel part of an ingress port, in softirq. It runs on any core, on one core at a time,
    /// in order of arrival.
    Port {
        /// The interface.
        name: String,
        /// Number of the interface's receive queues; a worker has a socket for each.
        queues: u32,
        /// Longest time in which the agent's group may not run, fs.
        pause_fs: u128,
    },
    /// A worker process.
    Worker {
        /// Number of the worker's core.
        core: u32,
        /// Name of the worker.
        name: String,
        /// Whether the worker occupies the core without work, at least for some time.
        polls: bool,
        /// Cost of a wake-up, fs; 0 if the worker never sleeps.
        wake_up_fs: u128,
        /// Most packets that the worker takes from a port before it sends them and serves the next
        /// port.
        batch: u16,
        /// Cost of a batch besides its packets, fs: the cost of a single packet minus that of a
        /// packet of a burst.
        batch_fs: u128,
        /// Whether the ports are two DPDK devices, which the worker serves in turn.
        devices: bool,
        /// Descriptors of a receive ring: of an interface with one queue, and with several.
        rings: [u32; 2],
        /// The worker's turns on the core; `None` if the operating system shares the core, or if
        /// the turns have no bound.
        turn: Option<Box<WorkerTurn>>,
        /// Longest time in which the agent's group may not run, fs.
        pause_fs: u128,
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

/// The common properties of the chains on one path, which are one flow to all other chains.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Route {
    /// The servers, in order.
    pub(super) resources: Vec<Resource>,
    pub(super) hold: Hold,
    /// Whether the worker shapes the departures.
    pub(super) is_shaped: bool,
    /// Most packets that the port processes before it forwards the first of them.
    pub(super) port_turn: u16,
    /// Times that a packet comes back to the first process of a pipeline.
    pub(super) rounds: u32,
}

/// Hold times of a chain's functions in the worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Hold {
    /// Number of times that a packet may be held back.
    pub times: u32,
    /// Total hold time, fs.
    pub for_fs: u128,
}

impl Route {
    /// Returns the index of the worker.
    pub(super) fn worker(&self) -> Option<usize> {
        let mut resources = self.resources.iter();
        resources.position(|resource| matches!(resource, Resource::Worker { .. }))
    }

    /// Returns the number of passages of a packet through a server.
    pub(super) fn passages(&self, resource: &Resource) -> u128 {
        match resource {
            Resource::Worker { .. } => 1 + u128::from(self.hold.times),
            _ => 1,
        }
    }

    /// Returns the hold time of a packet in the first `servers` servers, fs.
    pub(super) fn held_before(&self, servers: usize) -> u128 {
        let includes_worker = self.worker().is_some_and(|worker| worker < servers);
        if includes_worker { self.hold.for_fs } else { 0 }
    }
}

/// One server on the path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Visit {
    /// The server.
    pub resource: Resource,
    /// Worst-case cost of a packet of the chain at the server, for all passages.
    pub work: Work,
    /// Whether packets return to the same core, or pass several processes on it.
    pub returns: bool,
    pub(super) growth: Growth,
}

/// A step of the path, for the shares of the bound.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HopWork {
    pub(super) name: String,
    /// Index of the visit that the step belongs to.
    pub(super) visit: usize,
    pub(super) work: Work,
    /// Whether the step is in the rounds of a pipeline behind the first turn.
    #[serde(default)]
    pub(super) in_rounds: bool,
}

/// The path of a chain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ServerPath {
    pub(super) visits: Vec<Visit>,
    pub(super) hops: Vec<HopWork>,
    pub(super) hold: Hold,
    /// The worker's work at departures from the chain's shaper; `None` without a shaper.
    pub(super) at_departure: Option<Work>,
    /// Most packets that the port processes before it forwards the first of them.
    pub(super) port_turn: u16,
    /// The turns of a pipeline behind the first one.
    pub(super) turns: StageTurns,
}

/// Returns the path of a planned chain, or the reason why the chain has no bound.
pub(super) fn server_path(
    chain: &ServiceChain,
    plan: &Plan,
    costs: &Costs,
    site: &Site,
) -> Result<ServerPath, String> {
    if let Some(why) = why_unbounded(chain, plan, site) {
        return Err(why);
    }
    let mut builder = Builder::new(chain, plan, costs, site);
    builder.add_steps();
    Ok(builder.finish())
}

/// The longest frame in a worker's UMEM, bytes.
const FRAME: u128 = 4096;
/// The shortest period of a function's timer, ns; a worker without packets checks its timers more
/// often.
const LEAST_PERIOD_NS: u64 = 10_000;

struct Builder<'a> {
    chain: &'a ServiceChain,
    plan: &'a Plan,
    costs: &'a Costs,
    site: &'a Site,
    path: ServerPath,
    /// Index of the visit that gets the work of the next steps.
    current: usize,
    growth: Growth,
    worker: Option<usize>,
    /// Costs of packets in bursts, if the mapping has measured batches.
    in_burst: Option<InBurst>,
    /// Number of user segments so far.
    user_segments: u32,
}

impl Visit {
    /// Returns the cost of the longest frame at the server, fs.
    pub fn max_packet_fs(&self) -> u128 {
        self.work.frame_fs(self.growth.longest)
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
            current: 0,
            growth: Growth::none(site.longest_frame()),
            worker: None,
            in_burst: costs
                .in_burst
                .filter(|_| plan.mapping == Mapping::Compact && !chain.is_driven_by_worker()),
            user_segments: 0,
        }
    }

    fn add_steps(&mut self) {
        let (plan, chain) = (self.plan, self.chain);
        // The packets of ports that the worker drives bypass the kernel.
        if chain.is_driven_by_worker() {
            self.enter_worker();
        } else {
            self.path
                .visits
                .push(self.new_visit(self.site.port(self.costs)));
        }
        self.add_step("front door", self.door_work());
        let mut from = Space::Kernel;
        for (hop, function) in plan.hops.iter().zip(&chain.functions) {
            // In mapping `distributed` each user function has its own worker, and the next kernel
            // function runs where that worker transmits.
            if hop.space == Space::User {
                // The shaper is after the last user function.
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
                .function_cost(&function.config, hop.space)
                .unwrap_or_default();
            let work = self
                .work_of(&hop.reach)
                .plus(self.worst_case(own))
                .plus(self.cold_cache_work(hop.space));
            let effect = function.config.effect();
            self.growth = self.growth.with_added_bytes(effect.added_bytes);
            if hop.space == Space::Kernel {
                self.add_departure_work(work);
            }
            let is_stage = plan.mapping == Mapping::Pipeline && hop.process > Some(0);
            self.add_step_of_process(&hop.name, is_stage, work);
            self.add_effect(&effect);
        }
        self.add_departure_work(self.single_packet_step_work(&plan.egress));
        self.add_departure_work(WorkerTurn::of_departure(chain, plan, self.costs));
        self.add_step_of_process("egress", false, self.work_of(&plan.egress));
        if let Some(bps) = self.site.egress_bps.filter(|bps| *bps > 0) {
            self.add_link(bps);
        }
    }

    /// Adds a function's effect on the packets after it.
    fn add_effect(&mut self, effect: &Effect) {
        if let Some(held_ns) = effect.held_ns {
            // The timer has this period, so a packet may wait for nearly one more period. A worker
            // checks its timers once in several turns.
            let period_ns = held_ns.max(LEAST_PERIOD_NS);
            let held_ns = u128::from(held_ns) + u128::from(period_ns) + u128::from(LEAST_PERIOD_NS);
            self.path.hold.times += 1;
            self.path.hold.for_fs += held_ns * NS;
        }
        if effect.added_packets.window > 0 {
            self.growth = self.growth.with_added_packets(effect.added_packets);
        }
        // The function releases held packets when another packet arrives.
        self.growth = self.growth.with_released(effect.released);
    }

    fn new_visit(&self, resource: Resource) -> Visit {
        Visit {
            resource,
            work: Work::default(),
            returns: false,
            growth: self.growth,
        }
    }

    /// Adds the worker; all workers of a chain share one core.
    fn enter_worker(&mut self) {
        self.user_segments += 1;
        if let Some(worker) = self.worker {
            self.path.visits[worker].returns = true;
            self.current = worker;
            return;
        }
        let Some(worker) = &self.plan.worker else {
            return;
        };
        let spec = &self.chain.worker;
        let has_several = self.plan.mapping == Mapping::Distributed
            && self
                .plan
                .hops
                .iter()
                .filter(|hop| hop.space == Space::User)
                .count()
                > 1;
        let wake_up_fs = wake_up_fs(self.costs);
        self.path.visits.push(self.new_visit(Resource::Worker {
            core: worker.core,
            name: worker.name(),
            // Workers of one chain that share a core do not poll before they sleep.
            polls: spec.idle == Idle::Spin || spec.idle == Idle::Adaptive && !has_several,
            wake_up_fs: if spec.idle == Idle::Spin {
                0
            } else {
                wake_up_fs
            },
            batch: spec.batch,
            batch_fs: self.batch_fs(),
            devices: self.chain.is_driven_by_worker(),
            rings: [1, 2].map(|queues| spec.receive_ring(queues)),
            turn: WorkerTurn::of(self.chain, self.plan, self.costs, self.in_burst).map(Box::new),
            pause_fs: pause_fs(self.costs),
        }));
        self.current = self.path.visits.len() - 1;
        self.worker = Some(self.current);
    }

    fn add_step(&mut self, name: &str, work: Work) {
        let visit = &mut self.path.visits[self.current];
        visit.work = visit.work.plus(work);
        // Earlier steps have at most as many packets, and their packets are no longer.
        visit.growth = self.growth;
        self.path.hops.push(HopWork {
            name: name.to_owned(),
            visit: self.current,
            work,
            in_rounds: false,
        });
    }

    /// Adds a step of a stage, or of the first process, to which packets come back from stages.
    fn add_step_of_process(&mut self, name: &str, is_stage: bool, work: Work) {
        let is_first_turn = self.path.turns.stages.processes == 0;
        if is_first_turn && !is_stage {
            return self.add_step(name, work);
        }
        // A ring costs its sender, too.
        let send = self.worst_case(self.costs.steps.ring);
        if is_first_turn {
            let first = &mut self.path.visits[self.current];
            first.work = first.work.plus(send);
        }
        let work = work.plus(send);
        let packet_fs = work.frame_fs(self.growth.longest);
        let turn_fs = packet_fs.saturating_mul(packets_of_turn(self.chain));
        self.path.turns.add(is_stage, turn_fs);
        self.path.hops.push(HopWork {
            name: name.to_owned(),
            visit: self.current,
            work,
            in_rounds: true,
        });
    }

    /// Counts `work`, which follows the last user function, as work at the departure.
    fn add_departure_work(&mut self, work: Work) {
        if let Some(departure) = &mut self.path.at_departure {
            *departure = departure.plus(work);
        }
    }

    /// Adds the egress link. A frame occupies 24 bytes more: preamble, frame check sequence and
    /// gap.
    fn add_link(&mut self, bps: u64) {
        let byte_fs = (8 * SECOND).div_ceil(u128::from(bps));
        let work = Work {
            packet_fs: 24 * byte_fs,
            byte_fs,
        };
        let visit = self.new_visit(Resource::Link(self.site.egress.clone()));
        self.path.visits.push(visit);
        self.current = self.path.visits.len() - 1;
        self.add_step("egress link", work);
    }

    /// Returns the work of the front door with all receive work: up to a worker's ring, or through
    /// the kernel to the egress. In the second case the egress counts twice.
    fn door_work(&self) -> Work {
        let door = self.work_of(&self.plan.door);
        let Some(in_burst) = self.in_burst else {
            return door;
        };
        let receive = if self.plan.uses(Space::User) {
            in_burst.port
        } else {
            in_burst.kernel
        };
        door.max_of_each(self.worst_case(receive))
    }

    /// Returns the greatest extra cost of a single packet above a packet of a burst in a worker,
    /// fs.
    fn batch_fs(&self) -> u128 {
        let Some(in_burst) = self.in_burst else {
            return 0;
        };
        let steps = &self.costs.steps;
        let single = self
            .worst_case(steps.enter_user)
            .plus(self.worst_case(steps.user_egress));
        let burst = self.worst_case(in_burst.worker);
        [SHORTEST.into(), FRAME]
            .map(|bytes| single.frame_fs(bytes).saturating_sub(burst.frame_fs(bytes)))
            .into_iter()
            .fold(0, u128::max)
    }

    /// Returns the cost of a packet of a burst for a part of a step. Includes the packet's share of
    /// the cost of a full batch.
    fn in_burst_work(&self, part: &str) -> Option<Work> {
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

    /// Returns the extra cost of a function when packets of other chains alternate with the chain's
    /// own packets.
    fn cold_cache_work(&self, space: Space) -> Work {
        let extra = self.costs.in_burst.map(|in_burst| match space {
            Space::Kernel => in_burst.kernel_function,
            Space::User => in_burst.user_function,
        });
        self.worst_case(extra.unwrap_or_default())
    }

    /// Returns the cost of a packet of a burst for a step.
    fn work_of(&self, step: &Step) -> Work {
        let parts = step.parts.iter();
        let parts = parts.filter_map(|part| {
            self.in_burst_work(part)
                .or_else(|| self.single_packet_work(part))
        });
        parts.fold(Work::default(), Work::plus)
    }

    /// Returns the cost of a single packet for a step.
    fn single_packet_step_work(&self, step: &Step) -> Work {
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
        worst_case_work(self.costs, cost)
    }

    fn finish(mut self) -> ServerPath {
        // In mapping `distributed` the worker of each user function must wake up.
        if let Some(worker) = self.worker
            && self.plan.mapping == Mapping::Distributed
            && let Resource::Worker { wake_up_fs, .. } = &mut self.path.visits[worker].resource
        {
            *wake_up_fs = wake_up_fs.saturating_mul(u128::from(self.user_segments));
        }
        self.path
    }
}
