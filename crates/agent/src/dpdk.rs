//! Chains between devices of DPDK: a worker for each pair of devices, with the chains that lie between them.
//!
//! Such a worker is its own front door, so nothing of the kernel's part is needed for its chains: no port, no circuit, no hook. A pair of devices
//! belongs to one owner. A chain is changed by its worker between two of its batches, so no packet meets half of it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use myelin_dataplane::{SocketId, UserChain, UserExit, UserSegment};
use myelin_dpdk::{
    Direction, EnvironmentConfig, PlacedChain, Setup, Waiting, WorkerHandle, WorkerProgram,
    runtime_directory,
};
use myelin_linux::journal::{Journal, Resource};
use myelin_planner::{Costs, Machine, Plan, PortKind};
use myelin_spec::{DpdkDevice, Idle, Place, Ports, ServiceChain, WorkerSpec};

use crate::api::{ApiError, ChainSource, ChainStatus, ChainUp, Change};
use crate::chains::State;
use crate::engine::{admit, cores};
use crate::node::Node;
use crate::revision;

mod status;

/// A worker that dies more often than this within [`DEATH_WINDOW`] is not started again.
const MAX_DEATHS: usize = 3;
const DEATH_WINDOW: Duration = Duration::from_secs(30);

/// The worker of a pair of devices.
struct Pair {
    devices: [DpdkDevice; 2],
    owner: String,
    spec: WorkerSpec,
    handle: WorkerHandle,
    resources: Vec<Resource>,
    deaths: VecDeque<Instant>,
    failed: bool,
}

/// A chain that runs between devices.
struct Running {
    chain: ServiceChain,
    plan: Plan,
    placed: PlacedChain,
    pair: u32,
    started: Instant,
}

/// All chains between devices of DPDK, and their workers.
#[derive(Default)]
pub(crate) struct Devices {
    pairs: BTreeMap<u32, Pair>,
    chains: BTreeMap<String, Running>,
    next: u32,
}

/// What was done for one chain, to undo it.
pub(crate) struct Done {
    pub(crate) up: ChainUp,
    former: Option<Running>,
}

impl Devices {
    /// Whether a chain of that name runs between devices.
    pub(crate) fn runs(&self, name: &str) -> bool {
        self.chains.contains_key(name)
    }

    /// The names of the chains that do.
    pub(crate) fn names(&self) -> impl Iterator<Item = &String> {
        self.chains.keys()
    }

    /// Starts dead workers again.
    pub(crate) fn supervise(&mut self) {
        for pair in self.pairs.values_mut() {
            if pair.failed || pair.handle.is_alive() {
                continue;
            }
            let [one, other] = &pair.devices;
            let now = Instant::now();
            pair.deaths
                .retain(|death| now.duration_since(*death) < DEATH_WINDOW);
            pair.deaths.push_back(now);
            if pair.deaths.len() > MAX_DEATHS {
                pair.failed = true;
                tracing::error!(%one, %other, "the worker of these devices keeps dying and is given up");
            } else if let Err(error) = pair.handle.restart() {
                tracing::error!(%one, %other, %error, "the worker of these devices did not come up again");
            } else {
                tracing::warn!(%one, %other, "the worker of these devices died and was started again");
            }
        }
    }

    /// The running chains.
    pub(crate) fn list(&mut self) -> Vec<ChainStatus> {
        let pairs = &mut self.pairs;
        self.chains
            .values()
            .filter_map(|running| Some(running.status(pairs.get_mut(&running.pair)?)))
            .collect()
    }

    /// The pair of these devices, in either order, and the way from the first to the second.
    fn find(&self, ends: &[DpdkDevice; 2]) -> Option<(u32, Direction)> {
        let turned = [ends[1].clone(), ends[0].clone()];
        self.pairs.iter().find_map(|(&id, pair)| {
            if pair.devices == *ends {
                Some((id, Direction::Forward))
            } else if pair.devices == turned {
                Some((id, Direction::Back))
            } else {
                None
            }
        })
    }
}

impl State {
    /// Brings all chains of a file into the form given, or none, whoever drives their ports.
    pub(crate) fn up_all(
        &mut self,
        chains: Vec<ServiceChain>,
        source: &Arc<ChainSource>,
        costs: &Costs,
        start: Instant,
    ) -> Result<Vec<ChainUp>, ApiError> {
        if let Some(chain) = chains.iter().find(|chain| {
            if chain.is_over_dpdk() {
                self.chains.contains_key(&chain.name)
            } else {
                self.node.devices.runs(&chain.name)
            }
        }) {
            return Err(needs_down(chain, &chain.places.ports, "spec.ports"));
        }
        let (between_devices, others): (Vec<_>, Vec<_>) =
            chains.into_iter().partition(ServiceChain::is_over_dpdk);
        let mut all = Vec::with_capacity(between_devices.len());
        let mut outcome = Ok(Vec::new());
        for chain in between_devices {
            match self.node.up_between_devices(chain, costs, start) {
                Ok(done) => all.push(done),
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        if outcome.is_ok() && !others.is_empty() {
            outcome = self.up(others, source, costs, start);
        }
        match outcome {
            Ok(others) => Ok(all.into_iter().map(|done| done.up).chain(others).collect()),
            Err(error) => {
                for done in all.into_iter().rev() {
                    self.node.roll_back_devices(done);
                }
                Err(error)
            }
        }
    }

    /// Removes a chain, whoever drives its ports; false when there is none of that name.
    pub(crate) fn down_any(&mut self, name: &str) -> bool {
        self.down(name) || self.node.down_between_devices(name)
    }

    /// The names of all chains.
    pub(crate) fn names(&self) -> Vec<String> {
        let chains = self.chains.keys();
        chains.chain(self.node.devices.names()).cloned().collect()
    }
}

impl Node {
    /// Brings a chain between devices into the form given.
    pub(crate) fn up_between_devices(
        &mut self,
        chain: ServiceChain,
        costs: &Costs,
        start: Instant,
    ) -> Result<Done, ApiError> {
        let running = self.devices.chains.get(&chain.name);
        if let Some(running) = running {
            revision::same_owner(&running.chain, &chain)?;
            if revision::is_same(&running.chain, &chain) {
                return Ok(Done {
                    up: running.up(Change::Unchanged, 0.0),
                    former: None,
                });
            }
            check_revision(&running.chain, &chain)?;
        }
        let machine = Machine {
            ingress: PortKind::Native,
            egress: PortKind::Native,
            ..Machine::with_end_hosts(cores())
        };
        let plan = admit(myelin_planner::plan(&chain, costs, &machine).map_err(ApiError::usage)?)?;
        let (spi, generation) = match running {
            Some(running) => {
                let placed = &running.placed.chain;
                (placed.spi, placed.generation.wrapping_add(1))
            }
            None => (self.take_spi(), 0),
        };
        let failed = |error: &dyn std::fmt::Display| {
            ApiError::failed(format!(
                "{}: chain `{}`: {error}",
                chain.places.ports, chain.name
            ))
        };
        let (pair, direction) = self.pair_for(&chain).map_err(|error| failed(&error))?;
        let placed = place(&chain, spi, generation, direction);
        let ran = self
            .devices
            .pairs
            .get_mut(&pair)
            .map(|pair| pair.handle.run(placed.clone()));
        if let Some(Err(error)) = ran {
            self.leave_pair(pair);
            return Err(failed(&error));
        }
        let now = Running {
            chain,
            plan,
            placed,
            pair,
            started: Instant::now(),
        };
        let rendering_ms = start.elapsed().as_secs_f64() * 1e3;
        let name = now.chain.name.clone();
        let former = self.devices.chains.remove(&name);
        let change = if former.is_some() {
            Change::Changed
        } else {
            Change::Created
        };
        let done = Done {
            up: now.up(change, rendering_ms),
            former,
        };
        tracing::info!(
            chain = name,
            generation,
            ms = rendering_ms,
            "between devices of DPDK"
        );
        self.devices.chains.insert(name, now);
        Ok(done)
    }

    /// Undoes what was done for a chain of a file that cannot be brought up as a whole.
    pub(crate) fn roll_back_devices(&mut self, done: Done) {
        match (done.up.change, done.former) {
            (Change::Created, _) => {
                self.down_between_devices(&done.up.chain);
            }
            (Change::Changed, Some(former)) => {
                let pair = self.devices.pairs.get_mut(&former.pair);
                if let Some(Err(error)) = pair.map(|pair| pair.handle.run(former.placed.clone())) {
                    tracing::error!(chain = done.up.chain, %error, "its former form does not come back");
                }
                self.devices.chains.insert(done.up.chain, former);
            }
            _ => {}
        }
    }

    /// Removes a chain between devices; false when there is none of that name.
    pub(crate) fn down_between_devices(&mut self, name: &str) -> bool {
        let Some(running) = self.devices.chains.remove(name) else {
            return false;
        };
        let pair = self.devices.pairs.get_mut(&running.pair);
        if let Some(Err(error)) = pair.map(|pair| pair.handle.remove(&running.placed)) {
            tracing::warn!(chain = name, %error, "taking the chain out of its worker failed");
        }
        self.leave_pair(running.pair);
        true
    }

    /// The worker of the chain's devices, started when there is none.
    fn pair_for(&mut self, chain: &ServiceChain) -> Result<(u32, Direction), String> {
        let ends = ends(chain.ports.as_ref())?;
        if let Some((id, direction)) = self.devices.find(&ends) {
            let pair = &self.devices.pairs[&id];
            if pair.owner != chain.owner() {
                return Err(format!(
                    "the devices belong to the chains of owner `{}`, and owners do not share packet memory: take other devices",
                    pair.owner
                ));
            }
            if pair.spec != chain.worker {
                return Err(
                    "spec.worker differs from that of the chain that shares these devices: make them equal".to_owned(),
                );
            }
            return Ok((id, direction));
        }
        let taken = self
            .devices
            .pairs
            .values()
            .flat_map(|pair| &pair.devices)
            .find(|device| ends.iter().any(|end| is_same(end, device)));
        if let Some(device) = taken {
            return Err(format!(
                "the device `{device}` lies between other ports already: take another device, or the same pair"
            ));
        }
        let id = self.devices.next;
        self.devices.next += 1;
        // The process number tells this agent's workers from those of a killed one.
        let run_id = format!("{}-{}-dpdk{id}", self.run_id, std::process::id());
        let program = WorkerProgram {
            exe: self.program.clone(),
            args: vec!["worker".into(), "--dpdk".into()],
            run_id: run_id.clone(),
        };
        let prefix = format!("myelin-{run_id}");
        let resources = vec![
            Resource::Directory {
                path: runtime_directory(&prefix),
            },
            Resource::Processes {
                argument: format!("{}@{run_id}", myelin_dataplane::WORKER_NAME),
            },
        ];
        for resource in &resources {
            self.journal
                .intend(resource)
                .map_err(|error| error.to_string())?;
        }
        match WorkerHandle::spawn(program, set_up(prefix, &chain.worker, &ends)) {
            Ok(handle) => {
                let pair = Pair {
                    devices: ends,
                    owner: chain.owner().to_owned(),
                    spec: chain.worker.clone(),
                    handle,
                    resources,
                    deaths: VecDeque::new(),
                    failed: false,
                };
                self.devices.pairs.insert(id, pair);
                Ok((id, Direction::Forward))
            }
            Err(error) => {
                forget(resources, &mut self.journal);
                Err(error.to_string())
            }
        }
    }

    /// Ends the worker of a pair when no chain lies between its devices any more.
    fn leave_pair(&mut self, id: u32) {
        if self.devices.chains.values().any(|chain| chain.pair == id) {
            return;
        }
        if let Some(pair) = self.devices.pairs.remove(&id) {
            pair.handle.shutdown();
            forget(pair.resources, &mut self.journal);
        }
    }
}

/// Removes what the worker left that could not remove it itself, and strikes it out.
fn forget(resources: Vec<Resource>, journal: &mut Journal) {
    for resource in resources.into_iter().rev() {
        let removed =
            myelin_linux::journal::remove(&resource).and_then(|()| journal.removed(&resource));
        if let Err(error) = removed {
            tracing::warn!(%error, "something of a worker with DPDK stays");
        }
    }
}

/// The devices of a chain, from ingress to egress.
fn ends(ports: Option<&Ports>) -> Result<[DpdkDevice; 2], String> {
    let ports = ports.ok_or("the chain names no ports")?;
    let device =
        |text: &str| DpdkDevice::new(text).map_err(|problem| format!("device `{text}` {problem}"));
    Ok([device(&ports.ingress)?, device(&ports.egress)?])
}

/// Whether two names mean one device, of which there is one on the machine; virtual ones without an interface are each process' own.
fn is_same(one: &DpdkDevice, other: &DpdkDevice) -> bool {
    let interface = one.argument("iface");
    (one.is_pci() && one.name() == other.name())
        || (interface.is_some() && interface == other.argument("iface"))
}

fn set_up(prefix: String, spec: &WorkerSpec, ends: &[DpdkDevice; 2]) -> Setup {
    let mut environment = EnvironmentConfig::new(prefix);
    // The last core: the first ones are where interrupts and other work usually are.
    environment.core = Some(spec.core.unwrap_or_else(|| cores() - 1));
    environment.hugepages = spec.hugepages;
    environment.hardware = ends.iter().filter(|end| end.is_pci()).cloned().collect();
    Setup {
        environment,
        devices: ends.clone(),
        batch: spec.batch,
        waiting: match spec.idle {
            Idle::Spin => Waiting::Poll,
            Idle::Adaptive => Waiting::NapAfter(Duration::from_nanos(spec.spin_ns)),
            Idle::Sleep => Waiting::NapAfter(Duration::ZERO),
        },
    }
}

fn place(chain: &ServiceChain, spi: u32, generation: u16, direction: Direction) -> PlacedChain {
    let functions = chain.instances(0..chain.functions.len());
    PlacedChain {
        matches: chain.matches,
        direction,
        chain: UserChain {
            spi,
            generation,
            positions: functions.len() as u8,
            segments: vec![UserSegment {
                first_position: 0,
                functions,
                exit: UserExit::Port(SocketId::of_port(direction.ends().1)),
            }],
        },
    }
}

/// Refuses what cannot be changed while packets flow.
fn check_revision(running: &ServiceChain, next: &ServiceChain) -> Result<(), ApiError> {
    let (place, key) = if running.ports != next.ports {
        (&next.places.ports, "spec.ports")
    } else if running.reverse != next.reverse {
        (&next.places.reverse, "spec.reverse")
    } else if running.worker != next.worker {
        (&next.places.worker, "spec.worker")
    } else {
        return Ok(());
    };
    Err(needs_down(next, place, key))
}

fn needs_down(next: &ServiceChain, place: &Place, key: &str) -> ApiError {
    let name = &next.name;
    ApiError::failed(format!(
        "{place}: chain `{name}`: {key} cannot be changed while it runs: `myelin down {name}` first, then `up` again"
    ))
}
