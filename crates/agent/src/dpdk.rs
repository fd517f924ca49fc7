//! Chains between devices of DPDK: a worker for each pair of devices, with the chains that lie between them.
//!
//! Such a worker is its own front door, so nothing of the kernel's part is needed for its chains: no port, no circuit, no hook. A pair of devices
//! belongs to one owner. A chain is changed by its worker between two of its batches, so no packet meets half of it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use myelin_dataplane::{
    Deaths, DevicePair, Direction, Idle, LeadChain, SocketId, UserChain, UserExit, UserSegment,
    WorkerConfig, WorkerHandle,
};
use myelin_dpdk::runtime_directory;
use myelin_linux::journal::{Journal, Resource};
use myelin_packet::traffic::Profile;
use myelin_planner::admission::Site;
use myelin_planner::{Machine, Plan, PortKind};
use myelin_policy::sla::Reading;
use myelin_spec::{DpdkDevice, Place, Ports, ServiceChain, WorkerSpec};

use crate::api::{ApiError, ChainStatus, ChainUp, Change, FunctionFlows};
use crate::binding;
use crate::chains::{Order, State};
use crate::cpu_latency;
use crate::engine::{admit, default_core};
use crate::exchange::Past;
use crate::external;
use crate::flows;
use crate::node::Node;
use crate::revision;
use crate::roster::{Roster, Watched};

mod status;

/// A device takes seconds to start, so deaths count for longer than those of other workers.
const DEATH_WINDOW: Duration = Duration::from_secs(30);

/// The worker of a pair of devices.
pub(crate) struct Pair {
    devices: [DpdkDevice; 2],
    owner: String,
    spec: WorkerSpec,
    handle: WorkerHandle,
    resources: Vec<Resource>,
    deaths: Deaths,
    failed: bool,
}

/// A chain that runs between devices.
struct Running {
    form: Form,
    pair: u32,
    started: Instant,
    /// What its former generations did.
    past: Past,
}

/// All chains between devices of DPDK, and their workers.
#[derive(Default)]
pub(crate) struct Devices {
    pairs: Roster<u32, Pair>,
    chains: BTreeMap<String, Running>,
    next: u32,
}

/// What was done for one chain; it can be undone until all of its file is done.
pub(crate) struct Done {
    pub(crate) up: ChainUp,
    former: Option<Form>,
}

/// One form of a chain.
struct Form {
    chain: ServiceChain,
    plan: Plan,
    /// Which packets are led to it.
    led: LeadChain,
}

impl Devices {
    /// Whether a chain of that name runs between devices.
    pub(crate) fn runs(&self, name: &str) -> bool {
        self.chains.contains_key(name)
    }

    /// Whether a chain runs there in this form.
    fn runs_as(&self, chain: &ServiceChain) -> bool {
        let running = self.chains.get(&chain.name);
        running.is_some_and(|running| revision::is_same(&running.form.chain, chain))
    }

    /// The names of the chains that do.
    pub(crate) fn names(&self) -> impl Iterator<Item = &String> {
        self.chains.keys()
    }

    /// For who looks after the workers.
    pub(crate) fn watched(&self) -> Watched<u32, Pair> {
        self.pairs.watched()
    }

    /// The running chains.
    pub(crate) fn list(&self) -> Vec<ChainStatus> {
        self.chains
            .values()
            .filter_map(|running| Some(running.status(&mut *self.pairs.get(&running.pair)?)))
            .collect()
    }

    /// The running chains, each with its path identifier.
    pub(crate) fn running(&self) -> impl Iterator<Item = (String, u32)> {
        let chains = self.chains.iter();
        chains.map(|(name, running)| (name.clone(), running.form.led.spi))
    }

    /// What the SLA monitor is to know of a chain; nothing while somebody works with its worker.
    pub(crate) fn reading(&self, name: &str) -> Option<Reading> {
        let running = self.chains.get(name)?;
        let is_free = self.pairs.is_free(&running.pair);
        let pair = is_free.then(|| self.pairs.get(&running.pair)).flatten()?;
        running.reading(&pair)
    }

    /// The flows that the functions of the chains know, or of the one of that name.
    pub(crate) fn flows(&self, name: Option<&str>) -> Result<Vec<FunctionFlows>, ApiError> {
        let mut all = Vec::new();
        for running in self.chains.values() {
            let Form { chain, plan, led } = &running.form;
            let pair = self.pairs.get(&running.pair);
            let is_asked = name.is_none_or(|wanted| wanted == chain.name);
            let Some(mut pair) = pair.filter(|pair| is_asked && !pair.failed) else {
                continue;
            };
            all.extend(flows::of_functions(chain, plan, |hop| {
                let worker = &mut pair.handle;
                let flows = worker.flows(led.spi, led.generation, hop.position);
                let flows = flows.map_err(ApiError::failed)?;
                Ok(flows.map(|flows| (flows.records, flows.totals)))
            })?);
        }
        Ok(all)
    }

    /// Asks the worker of a pair.
    fn ask<T>(
        &self,
        pair: u32,
        what: impl FnOnce(&mut WorkerHandle) -> Result<T, myelin_dataplane::Error>,
    ) -> Result<T, String> {
        let pair = self.pairs.get(&pair);
        let mut pair = pair.ok_or("the devices have no worker")?;
        what(&mut pair.handle).map_err(|error| error.to_string())
    }

    /// The error of a pair whose worker was given up.
    fn needs_down(&self, pair: u32) -> String {
        let there = self.chains.iter().filter(|(_, chain)| chain.pair == pair);
        let names: Vec<_> = there.map(|(name, _)| name.as_str()).collect();
        format!(
            "the worker of these devices kept dying and was given up: `myelin down {}` first",
            names.join(" ")
        )
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

/// Starts dead workers again.
pub(crate) fn supervise(pairs: &Watched<u32, Pair>) {
    pairs.each_idle(|_, pair| {
        if pair.failed || pair.handle.is_alive() {
            return;
        }
        let [one, other] = &pair.devices;
        if pair.deaths.died(Instant::now()) {
            pair.failed = true;
            tracing::error!(%one, %other, "the worker of these devices keeps dying and is given up");
        } else if let Err(error) = pair.handle.restart() {
            tracing::error!(%one, %other, %error, "the worker of these devices did not come up again");
            if pair.deaths.start_failed() {
                pair.failed = true;
                tracing::error!(%one, %other, "the worker of these devices does not come up and is given up");
            }
        } else {
            pair.deaths.started();
            // Without its core it is to give way to others from its first packet on, since it may poll.
            if let Some(core) = pair.handle.config().core {
                binding::hold(pair.handle.pid(), core);
            }
            tracing::warn!(%one, %other, "the worker of these devices died and was started again");
        }
    });
}

impl State {
    /// Brings all chains of a file into the form given, or none, whoever drives their ports.
    pub(crate) fn up_all(
        &mut self,
        chains: Vec<ServiceChain>,
        order: Order<'_>,
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
        // One that runs as it is needs nothing.
        let is_new = |chain: &&ServiceChain| {
            let running = self.chains.get(&chain.name);
            running.is_none_or(|running| !revision::is_same(&running.form.chain, chain))
        };
        external::check(chains.iter().filter(is_new))?;
        let latencies = cpu_latency::ask(&chains)?;
        let devices = &self.node.devices;
        let is_changed = |chain: &&ServiceChain| is_new(chain) && !devices.runs_as(chain);
        let changed = chains.iter().filter(is_changed);
        let admitted = &mut self.node.admitted;
        admitted.begin(changed.map(|chain| chain.name.as_str()));
        let (between_devices, others): (Vec<_>, Vec<_>) =
            chains.into_iter().partition(ServiceChain::is_over_dpdk);
        let mut all = Vec::with_capacity(between_devices.len());
        let mut outcome = Ok(Vec::new());
        for chain in between_devices {
            match self.node.up_between_devices(chain, order) {
                Ok(done) => all.push(done),
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        if outcome.is_ok() && !others.is_empty() {
            outcome = self.up(others, order);
        }
        match outcome {
            Ok(others) => {
                self.latencies.hold(latencies);
                let devices = all.into_iter();
                let devices = devices.map(|done| self.node.settle_devices(done));
                Ok(devices.chain(others).collect())
            }
            Err(error) => {
                for done in all.into_iter().rev() {
                    self.node.roll_back_devices(done);
                }
                self.node.admitted.roll_back();
                Err(error)
            }
        }
    }

    /// Removes a chain, whoever drives its ports; false when there is none of that name.
    pub(crate) fn down_any(&mut self, name: &str) -> bool {
        self.latencies.release(name);
        self.node.admitted.remove(name);
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
        order: Order<'_>,
    ) -> Result<Done, ApiError> {
        let Order { costs, start, .. } = order;
        let running = self.devices.chains.get(&chain.name);
        if let Some(running) = running {
            revision::same_owner(&running.form.chain, &chain)?;
            if revision::is_same(&running.form.chain, &chain) {
                return Ok(Done {
                    up: running.up(Change::Unchanged, 0.0, None),
                    former: None,
                });
            }
            check_revision(&running.form.chain, &chain)?;
        }
        let machine = Machine {
            ingress: PortKind::Native,
            egress: PortKind::Native,
            ..Machine::with_end_hosts(myelin_linux::affinity::cores())
        };
        let mut plan = myelin_planner::plan(&chain, costs, &machine).map_err(ApiError::usage)?;
        let site = Site::planned(&chain, &machine);
        self.admitted
            .review(&mut plan, &chain, (costs, &machine), &site);
        let plan = admit(&chain, plan, order.force)?;
        let running = self.devices.chains.get(&chain.name);
        let (spi, generation) = match running {
            Some(running) => {
                let led = &running.form.led;
                (led.spi, led.generation.wrapping_add(1))
            }
            None => (self.take_spi(), 0),
        };
        let failed = |error: String| {
            ApiError::failed(format!(
                "{}: chain `{}`: {error}",
                chain.places.ports, chain.name
            ))
        };
        let (pair, direction) = self.pair_for(&chain).map_err(failed)?;
        let (placed, led) = place(&chain, &plan, (spi, generation), direction);
        let exchange = self
            .devices
            .ask(pair, |worker| {
                worker.add_chain(placed)?;
                let asked = Instant::now();
                if let Err(error) = worker.lead_chain(led.clone()) {
                    // The error that made it necessary is the one to report.
                    let _ = worker.remove_chain(spi, generation);
                    return Err(error);
                }
                Ok(asked.elapsed())
            })
            .map_err(|error| {
                self.leave_pair(pair);
                failed(error)
            })?;
        let rendering_ms = start.elapsed().as_secs_f64() * 1e3;
        let name = chain.name.clone();
        tracing::info!(
            chain = name,
            generation,
            ms = rendering_ms,
            "between devices of DPDK"
        );
        let form = Form { chain, plan, led };
        if let Some(running) = self.devices.chains.get_mut(&name) {
            let former = std::mem::replace(&mut running.form, form);
            return Ok(Done {
                up: running.up(Change::Changed, rendering_ms, Some(exchange)),
                former: Some(former),
            });
        }
        let running = Running {
            form,
            pair,
            started: Instant::now(),
            past: Past::default(),
        };
        let up = running.up(Change::Created, rendering_ms, None);
        self.devices.chains.insert(name, running);
        Ok(Done { up, former: None })
    }

    /// Frees the form before, to which nothing leads back any more.
    pub(crate) fn settle_devices(&mut self, done: Done) -> ChainUp {
        if let Some(former) = done.former {
            self.free_form(&former);
        }
        done.up
    }

    /// Takes a form that no packets are led to out of its worker, and keeps what it counted.
    fn free_form(&mut self, form: &Form) {
        let Devices { pairs, chains, .. } = &mut self.devices;
        let name = &form.chain.name;
        let Some(running) = chains.get_mut(name) else {
            return;
        };
        let Some(mut pair) = pairs.get(&running.pair) else {
            return;
        };
        let (spi, generation) = (form.led.spi, form.led.generation);
        if let Some(stats) = pair.handle.stats().chain(spi, generation) {
            running.past.add_stats(&stats);
        }
        if let Err(error) = pair.handle.remove_chain(spi, generation) {
            // The next worker does not know of it.
            tracing::warn!(chain = name, %error, "taking a former form out of its worker failed");
        }
    }

    /// Undoes what was done for a chain of a file that cannot be brought up as a whole.
    pub(crate) fn roll_back_devices(&mut self, done: Done) {
        let name = &done.up.chain;
        match (done.up.change, done.former) {
            (Change::Created, _) => {
                self.down_between_devices(name);
            }
            (Change::Changed, Some(former)) => {
                let Some(pair) = self.devices.chains.get(name).map(|running| running.pair) else {
                    return;
                };
                let led = former.led.clone();
                let back = self.devices.ask(pair, |worker| worker.lead_chain(led));
                let unwanted = match (back, self.devices.chains.get_mut(name)) {
                    (Ok(()), Some(running)) => std::mem::replace(&mut running.form, former),
                    (Err(error), _) => {
                        // Whole, though not what the file's owner asked for.
                        tracing::error!(chain = name, %error, "the change stays, it could not be undone");
                        former
                    }
                    (Ok(()), None) => return,
                };
                self.free_form(&unwanted);
            }
            _ => {}
        }
    }

    /// Removes a chain between devices; false when there is none of that name.
    pub(crate) fn down_between_devices(&mut self, name: &str) -> bool {
        let Some(running) = self.devices.chains.remove(name) else {
            return false;
        };
        let LeadChain {
            spi, generation, ..
        } = running.form.led;
        let removed = self.devices.ask(running.pair, |worker| {
            let closed = worker.unlead_chain(spi);
            closed.and(worker.remove_chain(spi, generation))
        });
        if let Err(error) = removed {
            tracing::warn!(chain = name, %error, "taking the chain out of its worker failed");
        }
        self.leave_pair(running.pair);
        true
    }

    /// The worker of the chain's devices, started when there is none.
    fn pair_for(&mut self, chain: &ServiceChain) -> Result<(u32, Direction), String> {
        let ends = ends(chain.ports.as_ref())?;
        if let Some((id, direction)) = self.devices.find(&ends) {
            let pair = self.devices.pairs.get(&id);
            let pair = pair.ok_or("the devices have no worker")?;
            if pair.failed {
                return Err(self.devices.needs_down(id));
            }
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
        let taken = self.devices.pairs.iter().find_map(|(_, pair)| {
            let mut devices = pair.devices.iter();
            let taken = devices.find(|device| ends.iter().any(|end| is_same(end, device)));
            taken.cloned()
        });
        if let Some(device) = taken {
            return Err(format!(
                "the device `{device}` lies between other ports already: take another device, or the same pair"
            ));
        }
        let id = self.devices.next;
        self.devices.next += 1;
        // The process number tells this agent's workers from those of a killed one.
        let run_id = format!("{}-{}-dpdk{id}", self.run_id, std::process::id());
        let prefix = format!("myelin-{run_id}");
        let mut resources = vec![
            Resource::Directory {
                path: runtime_directory(&prefix),
            },
            Resource::Processes {
                argument: format!("{}@{run_id}", myelin_dataplane::WORKER_NAME),
            },
        ];
        if chain.worker.hugepages {
            resources.insert(
                0,
                Resource::HugePages {
                    prefix: prefix.clone(),
                },
            );
        }
        for resource in &resources {
            self.journal
                .intend(resource)
                .map_err(|error| error.to_string())?;
        }
        let config = WorkerConfig {
            args: vec!["worker".into(), "--dpdk".into()],
            // The last core: the first ones are where interrupts and other work usually are.
            core: Some(chain.worker.core.unwrap_or_else(default_core)),
            batch: chain.worker.batch,
            idle: Idle::from(&chain.worker),
            devices: Some(DevicePair {
                devices: ends.clone(),
                prefix,
                hugepages: chain.worker.hugepages,
            }),
            ..WorkerConfig::new(&self.program, &run_id)
        };
        match WorkerHandle::spawn(config) {
            Ok(handle) => {
                let pair = Pair {
                    devices: ends,
                    owner: chain.owner().to_owned(),
                    spec: chain.worker.clone(),
                    handle,
                    resources,
                    deaths: Deaths::within(DEATH_WINDOW),
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
            // One that is gone already cannot be told to stop.
            let _ = pair.handle.shutdown();
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

fn place(
    chain: &ServiceChain,
    plan: &Plan,
    (spi, generation): (u32, u16),
    direction: Direction,
) -> (UserChain, LeadChain) {
    let functions = chain.instances(0..chain.functions.len());
    let led = LeadChain {
        matches: chain.matches,
        direction,
        policing: if chain.sla.is_policed() {
            chain.sla.policing_profile()
        } else {
            Profile::default()
        },
        spi,
        generation,
    };
    let placed = UserChain {
        spi,
        generation,
        positions: functions.len() as u8,
        segments: vec![UserSegment {
            first_position: 0,
            functions,
            exit: UserExit::Port(SocketId::of_port(direction.ends().1)),
            shaping: plan.worker_shaping(),
        }],
    };
    (placed, led)
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
