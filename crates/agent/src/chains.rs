//! The chains of this node, by name, and how they get the form that a file gives them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use myelin_planner::admission::Site;
use myelin_planner::{Costs, Machine, Plan};
use myelin_spec::{Mapping, ServiceChain};

use crate::api::{ApiError, ChainSource, ChainUp, Change};
use crate::circuit::{Circuit, link_bps, link_mtu};
use crate::cpu_latency::CpuLatencies;
use crate::deploy::{Deployed, Place};
use crate::engine::admit;
use crate::exchange::{Exchange, Form};
use crate::external;
use crate::node::Node;
use crate::quiesce::Urgent;
use crate::revision;
use crate::workers::{Death, Key};

/// The node, and what runs on it.
pub(crate) struct State {
    pub(crate) node: Node,
    pub(crate) chains: BTreeMap<String, Deployed>,
    pub(crate) latencies: CpuLatencies,
}

/// What a client asks for, beside the chains.
#[derive(Clone, Copy)]
pub(crate) struct Order<'a> {
    pub(crate) source: &'a Arc<ChainSource>,
    pub(crate) costs: &'a Costs,
    /// Whether what admission refuses is deployed all the same.
    pub(crate) force: bool,
    /// When it came in.
    pub(crate) start: Instant,
    /// Whether nobody wants it any more; what may take long looks at it.
    pub(crate) is_called_off: &'a dyn Fn() -> bool,
}

/// What becomes of one chain of a file. All of them are laid out before packets are led to the first, so that chains that
/// share a state are not apart for longer than the steps at the front doors take.
enum Laid {
    /// It stands among the chains, and no packet comes in.
    New(String),
    /// Its next form stands beside the running one.
    Next(String, Box<Form>),
    Unchanged(String),
}

/// The same, with the packets led to it; it can be undone until all of the file is done.
enum Done {
    Created {
        name: String,
        rendering_ms: f64,
    },
    /// The old form still stands.
    Changed(Box<Exchange>),
    Unchanged(String),
}

/// A port whose queues belong to somebody.
struct Taken<'a> {
    interface: &'a str,
    owner: &'a str,
}

impl State {
    /// Brings all chains into the form given, or none.
    pub(crate) fn up(
        &mut self,
        chains: Vec<ServiceChain>,
        order: Order<'_>,
    ) -> Result<Vec<ChainUp>, ApiError> {
        let start = order.start;
        let mut laid = Vec::with_capacity(chains.len());
        for chain in chains {
            let name = chain.name.clone();
            match self.lay_out(chain, order) {
                Ok(one) => laid.push(one),
                Err(error) => {
                    tracing::info!(chain = name, %error, "not deployed");
                    laid.into_iter().rev().for_each(|one| self.take_away(one));
                    return Err(error);
                }
            }
        }
        let mut all = Vec::with_capacity(laid.len());
        let is_change = laid.iter().any(|one| matches!(one, Laid::Next(..)));
        // From here on packets see it.
        let urgent = is_change.then(Urgent::begin);
        let mut laid = laid.into_iter();
        while let Some(one) = laid.next() {
            match self.lead(one, start) {
                Ok(done) => all.push(done),
                Err(error) => {
                    drop(urgent);
                    tracing::info!(%error, "not deployed");
                    laid.rev().for_each(|one| self.take_away(one));
                    all.into_iter().rev().for_each(|done| self.roll_back(done));
                    return Err(error);
                }
            }
        }
        if is_change {
            // Once for all of them. Should it fail, each waits for its own counters all the same.
            self.node.wait_for_packets();
            for done in &mut all {
                if let Done::Changed(exchange) = done
                    && let Some(running) = self.chains.get(exchange.chain())
                {
                    self.node.outlast(running, exchange);
                }
            }
        }
        drop(urgent);
        all.into_iter()
            .map(|done| self.finish(done, start))
            .collect()
    }

    fn lay_out(&mut self, chain: ServiceChain, order: Order<'_>) -> Result<Laid, ApiError> {
        let name = chain.name.clone();
        let Some(running) = self.chains.get(&name) else {
            self.create(chain, order)?;
            return Ok(Laid::New(name));
        };
        revision::same_owner(&running.form.chain, &chain)?;
        if revision::is_same(&running.form.chain, &chain) {
            return Ok(Laid::Unchanged(name));
        }
        revision::check(running, &chain, &self.node)?;
        let place = running.place.clone();
        let plan = self.plan(&chain, order, &place)?;
        let Some(running) = self.chains.get(&name) else {
            return Err(gone(&name));
        };
        revision::check_worker(running, &chain, &plan)?;
        let Some(running) = self.chains.get_mut(&name) else {
            return Err(gone(&name));
        };
        let form = self.node.prepare(running, chain, order, plan)?;
        Ok(Laid::Next(name, Box::new(form)))
    }

    /// Undoes what was laid out.
    fn take_away(&mut self, laid: Laid) {
        match laid {
            Laid::New(name) => {
                self.down(&name);
            }
            Laid::Next(_, form) => form.layout.retire(&mut self.node),
            Laid::Unchanged(_) => {}
        }
    }

    /// Leads the packets to what was laid out, or undoes that.
    fn lead(&mut self, laid: Laid, start: Instant) -> Result<Done, ApiError> {
        match laid {
            Laid::Unchanged(name) => Ok(Done::Unchanged(name)),
            Laid::New(name) => {
                let led = match self.chains.get_mut(&name) {
                    Some(deployed) => self.node.switch_on(deployed),
                    None => Err(gone(&name)),
                };
                if let Err(error) = led {
                    self.down(&name);
                    return Err(error);
                }
                let rendering_ms = start.elapsed().as_secs_f64() * 1e3;
                tracing::info!(chain = name, ms = rendering_ms, "up");
                Ok(Done::Created { name, rendering_ms })
            }
            Laid::Next(name, form) => {
                let Some(running) = self.chains.get_mut(&name) else {
                    form.layout.retire(&mut self.node);
                    return Err(gone(&name));
                };
                let exchange = self.node.exchange(running, *form);
                exchange.map(|exchange| Done::Changed(Box::new(exchange)))
            }
        }
    }

    fn roll_back(&mut self, done: Done) {
        match done {
            Done::Created { name, .. } => {
                self.down(&name);
            }
            Done::Changed(exchange) => {
                if let Some(running) = self.chains.get_mut(exchange.chain()) {
                    self.node.revert(running, *exchange);
                }
            }
            Done::Unchanged(_) => {}
        }
    }

    fn finish(&mut self, done: Done, start: Instant) -> Result<ChainUp, ApiError> {
        match done {
            Done::Created { name, rendering_ms } => {
                self.report(&name, Change::Created, rendering_ms, None)
            }
            Done::Unchanged(name) => self.report(&name, Change::Unchanged, 0.0, None),
            Done::Changed(exchange) => {
                let name = exchange.chain().to_owned();
                let rendering_ms = (exchange.since() - start).as_secs_f64() * 1e3;
                let Some(running) = self.chains.get_mut(&name) else {
                    return Err(gone(&name));
                };
                let exchange_ms = self.node.complete(running, *exchange).as_secs_f64() * 1e3;
                tracing::info!(
                    chain = name,
                    generation = running.form.generation,
                    exchange_ms,
                    "changed"
                );
                self.report(&name, Change::Changed, rendering_ms, Some(exchange_ms))
            }
        }
    }

    fn report(
        &self,
        name: &str,
        change: Change,
        rendering_ms: f64,
        exchange_ms: Option<f64>,
    ) -> Result<ChainUp, ApiError> {
        let Some(deployed) = self.chains.get(name) else {
            return Err(gone(name));
        };
        let port = |ifindex| Ok(self.node.ports.get(ifindex)?.name.clone());
        Ok(ChainUp {
            chain: name.to_owned(),
            owner: deployed.form.chain.owner().to_owned(),
            change,
            spi: deployed.spi,
            generation: deployed.form.generation,
            plan: deployed.form.plan.clone(),
            ingress: port(deployed.place.ingress)?,
            egress: port(deployed.place.egress)?,
            hosts: self.node.circuit(&deployed.place.circuit)?.host_infos(),
            rendering_ms,
            exchange_ms,
        })
    }

    fn create(&mut self, chain: ServiceChain, order: Order<'_>) -> Result<(), ApiError> {
        let name = chain.name.clone();
        let place = self.place(&chain)?;
        let circuit = place.circuit.clone();
        let deployed = self
            .plan(&chain, order, &place)
            .and_then(|plan| self.node.deploy(chain, order, plan, place));
        match deployed {
            Ok(deployed) => {
                self.chains.insert(name, deployed);
                Ok(())
            }
            Err(error) => {
                self.node.leave_circuit(&circuit);
                Err(error)
            }
        }
    }

    /// The circuit of the chain's reverse, the other way round, when that one runs; else a circuit of its own.
    fn place(&mut self, chain: &ServiceChain) -> Result<Place, ApiError> {
        let reverse = chain
            .reverse
            .as_ref()
            .and_then(|reverse| self.chains.get(reverse));
        if let Some(reverse) = reverse.filter(|_| chain.ports.is_none()) {
            let place = Place {
                circuit: reverse.place.circuit.clone(),
                ingress: reverse.place.egress,
                egress: reverse.place.ingress,
            };
            self.node.circuit_mut(&place.circuit)?.share();
            return Ok(place);
        }
        // Its reverse may have outlived an earlier chain of this name, and still lie on that one's circuit.
        if self.node.circuits.contains_key(&chain.name) {
            let there: Vec<_> = self
                .chains
                .iter()
                .filter(|(_, deployed)| deployed.place.circuit == chain.name)
                .map(|(name, _)| name.as_str())
                .collect();
            return Err(ApiError::failed(format!(
                "{}: chain `{}`: the interfaces of an earlier chain of this name still serve {}: `myelin down {}` first, or \
                 let `reverse` name it",
                chain.places.chain,
                chain.name,
                there.join(", "),
                there.join(" "),
            )));
        }
        let node = &mut self.node;
        let circuit = Circuit::create(
            chain,
            &node.run_id,
            &node.plane,
            &mut node.ports,
            &mut node.journal,
        )?;
        let place = Place {
            circuit: chain.name.clone(),
            ingress: circuit.ingress.index,
            egress: circuit.egress.index,
        };
        node.circuits.insert(chain.name.clone(), circuit);
        Ok(place)
    }

    /// Plans a chain in its place and decides whether it is admitted there; enters it into the ledger.
    fn plan(
        &mut self,
        chain: &ServiceChain,
        order: Order<'_>,
        place: &Place,
    ) -> Result<Plan, ApiError> {
        let port = |ifindex| Ok(self.node.ports.get(ifindex)?.name.clone());
        let (from, to) = (port(place.ingress)?, port(place.egress)?);
        let (ingress, egress) = self.node.circuit(&place.circuit)?.port_kinds();
        let machine = Machine {
            ingress,
            egress,
            egress_bps: link_bps(&to),
            ingress_mtu: link_mtu(&from),
            ..Machine::with_end_hosts(myelin_linux::affinity::cores())
        };
        let worker = Key::of(chain, place);
        let queues = self.node.ports.get(place.ingress)?.queues;
        let site = Site {
            ingress: from,
            queues,
            egress: to,
            worker: format!("{}@{}", worker.owner, worker.circuit),
            core: chain.worker.core.unwrap_or_else(|| machine.default_core()),
            egress_bps: machine.egress_bps,
            ingress_mtu: machine.ingress_mtu,
        };
        let mut plan = self.laid_out(chain, order.costs, &machine, &place.circuit)?;
        let admitted = &mut self.node.admitted;
        admitted.review(&mut plan, chain, (order.costs, &machine), &site);
        admit(chain, plan, order.force)
    }

    fn laid_out(
        &self,
        chain: &ServiceChain,
        costs: &Costs,
        machine: &Machine,
        circuit: &str,
    ) -> Result<Plan, ApiError> {
        let plan = myelin_planner::plan(chain, costs, machine).map_err(ApiError::usage)?;
        let taken = self.taken_port(chain, circuit)?;
        let Some(taken) = taken.filter(|_| plan.binds_ports()) else {
            return Ok(plan);
        };
        // A queue has one packet memory, and that has one owner.
        let why = format!(
            "the queues of {} are bound to the worker of owner `{}`, and owners share no frames",
            taken.interface, taken.owner
        );
        let refusal = |reason: &str| {
            ApiError::failed(format!(
                "{}: chain `{}`: {why}: {reason}; or give the chain that one's namespace, other interfaces, or kernel \
                 functions only",
                chain.places.mapping, chain.name
            ))
        };
        if chain.mapping != Mapping::Auto {
            return Err(refusal(
                "let its mapping be `auto` or `distributed`, which gives its functions links of their own",
            ));
        }
        let apart = ServiceChain {
            mapping: Mapping::Distributed,
            ..chain.clone()
        };
        let mut plan = myelin_planner::plan(&apart, costs, machine)
            .map_err(|error| refusal(&format!("links of its own are not possible: {error}")))?;
        plan.mapping_why = why;
        Ok(plan)
    }

    /// A port of the circuit whose queues another owner's worker has.
    fn taken_port(
        &self,
        chain: &ServiceChain,
        circuit: &str,
    ) -> Result<Option<Taken<'_>>, ApiError> {
        let circuit = self.node.circuit(circuit)?;
        for link in [&circuit.ingress, &circuit.egress] {
            let port = self.node.ports.get(link.index)?;
            if let Some(owner) = port.bound_to().filter(|owner| *owner != chain.owner()) {
                let interface = &port.name;
                return Ok(Some(Taken { interface, owner }));
            }
        }
        Ok(None)
    }

    /// Refuses chains that run already: what `run` takes down at its end must be what it has brought up.
    pub(crate) fn none_may_run(&self, chains: &[ServiceChain]) -> Result<(), ApiError> {
        let names = self.names();
        let running = chains.iter().find(|chain| names.contains(&chain.name));
        running.map_or(Ok(()), |chain| {
            let name = &chain.name;
            Err(ApiError::failed(format!(
                "{}: chain `{name}` runs already: `myelin probe {name}` measures it as it is, `myelin down {name}` \
                 removes it",
                chain.places.name
            )))
        })
    }

    /// A process was given up: the chains that it served have failed.
    pub(crate) fn give_up(&mut self, worker: &Key, death: &Death) {
        for deployed in self.chains.values_mut() {
            let form = &deployed.form;
            let is_hit = form.layout.workers().contains(&worker)
                && match *death {
                    Death::StageGivenUp { spi, generation } => {
                        (deployed.spi, form.generation) == (spi, generation)
                    }
                    Death::Restarted | Death::GivenUp => true,
                };
            if is_hit {
                deployed.fail(&self.node);
            }
        }
    }

    /// The program of a black box keeps ending.
    pub(crate) fn give_up_black_box(&mut self, key: external::Key) {
        let is_hit = |deployed: &&mut Deployed| {
            (deployed.spi, deployed.form.generation) == (key.spi, key.generation)
        };
        if let Some(deployed) = self.chains.values_mut().find(is_hit) {
            deployed.fail(&self.node);
        }
    }

    /// False when there is no such chain.
    pub(crate) fn down(&mut self, name: &str) -> bool {
        let Some(deployed) = self.chains.remove(name) else {
            return false;
        };
        let circuit = deployed.place.circuit.clone();
        self.node.undeploy(deployed);
        self.node.leave_circuit(&circuit);
        tracing::info!(chain = name, "down");
        true
    }
}

fn gone(name: &str) -> ApiError {
    ApiError::failed(format!("chain `{name}` is gone"))
}
