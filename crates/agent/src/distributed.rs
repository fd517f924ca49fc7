//! Mapping `distributed`: each function in a network namespace of its own, joined by the forwarder's XDP redirects
//! (CALVIN's mapping, Xiang et al. 2019, section IV). A user function has a worker of its own.

use myelin_dataplane::{Idle, SocketId, UserChain, UserExit, UserSegment};
use myelin_kernel::{DistributedConfig, DistributedFunction, Flows, FunctionLink, LoadedChain};
use myelin_packet::nsh::ENCAPSULATION_LEN;
use myelin_packet::sojourn::Histogram;
use myelin_planner::Hop;
use myelin_spec::{FunctionConfig, FunctionInstance, Space};

use crate::api::ApiError;
use crate::circuit::MTU;
use crate::layout::{HopFigures, Job, Layout};
use crate::node::Node;
use crate::sandbox::{Occupant, Sandbox};
use crate::workers::Key;

/// A generation in this mapping.
struct Distributed {
    loaded: LoadedChain,
    spi: u32,
    generation: u16,
    made: Made,
}

/// What was made so far, so that exactly that is undone.
#[derive(Default)]
struct Made {
    /// In the order of the chain.
    places: Vec<FunctionPlace>,
}

/// Where one function stands.
struct FunctionPlace {
    sandbox: Sandbox,
    link: Option<FunctionLink>,
    /// The worker of a user function.
    worker: Option<Key>,
    socket: Option<SocketId>,
    chain_added: bool,
}

/// Makes the sandboxes, loads the programs, starts the workers, connects all.
pub(crate) fn build(node: &mut Node, job: Job<'_>) -> Result<Box<dyn Layout>, ApiError> {
    let (spi, generation) = (job.spi, job.generation);
    let mut made = Made::default();
    match lay_out(node, job, &mut made) {
        Ok(loaded) => Ok(Box::new(Distributed {
            loaded,
            spi,
            generation,
            made,
        })),
        Err(error) => {
            undo(node, (spi, generation), None, made);
            Err(error)
        }
    }
}

impl Layout for Distributed {
    fn entry(&self) -> &LoadedChain {
        &self.loaded
    }

    fn workers(&self) -> Vec<&Key> {
        let places = self.made.places.iter();
        places.filter_map(|place| place.worker.as_ref()).collect()
    }

    fn hop(&self, node: &Node, hop: &Hop) -> HopFigures {
        let kernel = HopFigures::of_kernel(node, &self.loaded, hop.position);
        let place = self.made.places.get(usize::from(hop.position));
        let Some(key) = place.and_then(|place| place.worker.as_ref()) else {
            return kernel;
        };
        let chain = node
            .workers
            .get(key)
            .and_then(|entry| entry.handle.stats().chain(self.spi, self.generation));
        let user = HopFigures::of_user(chain.as_ref(), hop.position);
        HopFigures {
            // The kernel drops what finds no socket, or comes back without its header.
            drops: user.drops + kernel.drops,
            ..user
        }
    }

    fn kernel_flows(&self, position: u8) -> Result<Option<Flows>, myelin_kernel::Error> {
        let place = self.made.places.get(usize::from(position));
        let link = place.and_then(|place| place.link.as_ref());
        link.map_or(Ok(None), FunctionLink::flows)
    }

    fn departures(&self, node: &Node) -> (u64, Histogram) {
        let egress = node.plane.counters().read(self.loaded.egress_slot());
        (egress.packets, self.loaded.sojourn())
    }

    fn retire(self: Box<Self>, node: &mut Node) {
        let Self {
            loaded,
            spi,
            generation,
            made,
        } = *self;
        undo(node, (spi, generation), Some(loaded), made);
    }
}

fn lay_out(node: &mut Node, job: Job<'_>, made: &mut Made) -> Result<LoadedChain, ApiError> {
    for hop in &job.plan.hops {
        made.places.push(FunctionPlace::make(node, job, hop)?);
    }
    let config = DistributedConfig {
        spi: job.spi,
        generation: job.generation,
        on_failure: job.plan.on_failure,
        functions: made
            .places
            .iter()
            .zip(&job.plan.hops)
            .map(|(place, hop)| DistributedFunction {
                near: place.sandbox.near.index,
                kernel: (hop.space == Space::Kernel).then(|| instance(job, hop.position)),
            })
            .collect(),
        ingress: job.place.ingress,
        egress: job.place.egress,
    };
    let (loaded, links) = node
        .plane
        .load_distributed(&config)
        .map_err(ApiError::failed)?;
    for ((place, hop), link) in made.places.iter_mut().zip(&job.plan.hops).zip(links) {
        place.connect(node, job, hop, link)?;
    }
    let circuit = node.circuit_mut(&job.place.circuit)?;
    circuit.need_napi(job.place.egress)?;
    if job.plan.hops.iter().any(|hop| answers(job, hop)) {
        circuit.need_napi(job.place.ingress)?;
    }
    Ok(loaded)
}

/// Whether a function sends something back to the senders of packets, which the forwarder redirects to the ingress.
fn answers(job: Job<'_>, hop: &Hop) -> bool {
    let config = &job.chain.functions[usize::from(hop.position)].config;
    hop.space == Space::User && matches!(config, FunctionConfig::Router(_))
}

fn instance(job: Job<'_>, position: u8) -> FunctionInstance {
    let at = usize::from(position);
    job.chain.instances(at..at + 1).remove(0)
}

impl FunctionPlace {
    fn make(node: &mut Node, job: Job<'_>, hop: &Hop) -> Result<Self, ApiError> {
        let occupant = Occupant {
            run: &node.run_id,
            chain: &job.chain.name,
            function: &hop.name,
            spi: job.spi,
            generation: job.generation,
            position: hop.position,
        };
        // A worker's packets come back behind a header.
        let mtu = match hop.space {
            Space::Kernel => MTU,
            Space::User => MTU + ENCAPSULATION_LEN as u32,
        };
        Ok(Self {
            sandbox: Sandbox::create(&occupant, mtu, &mut node.journal)?,
            link: None,
            worker: None,
            socket: None,
            chain_added: false,
        })
    }

    /// Attaches the programs of the link, and gives a user function its worker.
    fn connect(
        &mut self,
        node: &mut Node,
        job: Job<'_>,
        hop: &Hop,
        link: FunctionLink,
    ) -> Result<(), ApiError> {
        let Sandbox {
            netns, near, inner, ..
        } = &self.sandbox;
        let link = self.link.insert(link);
        netns
            .enter(|| link.attach_inner(&inner.name, inner.index))
            .map_err(ApiError::failed)?
            .map_err(ApiError::failed)?;
        link.attach_near(&near.name, near.index)
            .map_err(ApiError::failed)?;
        if hop.space == Space::Kernel {
            return Ok(());
        }
        // Without the generation: a function's worker, and the state in it, outlives a change of the chain around it.
        let key = Key {
            owner: job.chain.owner().to_owned(),
            circuit: format!("{}.{}", job.chain.name, hop.name),
        };
        node.workers.acquire(
            &key,
            &job.chain.worker,
            &node.program,
            &node.run_id,
            &mut node.journal,
        )?;
        self.worker = Some(key.clone());
        let entry = node.workers.get_mut(&key)?;
        // The workers of a chain share a core: one that polled before it sleeps would keep it from the one that has the
        // packet.
        let hops = job.plan.hops.iter();
        let shares_core = hops.filter(|hop| hop.space == Space::User).count() > 1;
        if shares_core && matches!(entry.handle.config().idle, Idle::Adaptive { .. }) {
            entry
                .handle
                .set_idle(Idle::Sleep)
                .map_err(ApiError::failed)?;
        }
        let xsk = entry.bind_in(netns, inner)?;
        link.set_socket(0, xsk.fd()).map_err(ApiError::failed)?;
        let socket = entry.handle.add_socket(xsk).map_err(ApiError::failed)?;
        self.socket = Some(socket);
        let chain = UserChain {
            spi: job.spi,
            generation: job.generation,
            positions: job.plan.hops.len() as u8,
            segments: vec![UserSegment {
                first_position: hop.position,
                functions: vec![instance(job, hop.position)],
                exit: UserExit::Internal {
                    socket,
                    position: hop.position + 1,
                },
            }],
        };
        entry.handle.add_chain(chain).map_err(ApiError::failed)?;
        self.chain_added = true;
        Ok(())
    }

    fn destroy(self, node: &mut Node, (spi, generation): (u32, u16)) {
        let failed = |what: &str, error: &dyn std::fmt::Display| {
            tracing::warn!(spi, generation, %error, "{what} failed");
        };
        let entry = self
            .worker
            .as_ref()
            .and_then(|key| node.workers.get_mut(key).ok());
        if let Some(entry) = entry.filter(|entry| !entry.failed) {
            if self.chain_added
                && let Err(error) = entry.handle.remove_chain(spi, generation)
            {
                failed("taking the chain out of its worker", &error);
            }
            if let Some(socket) = self.socket
                && let Err(error) = entry.handle.remove_socket(socket)
            {
                failed("closing a worker's socket", &error);
            }
        }
        if let Some(link) = self.link
            && let Err(error) = link.detach()
        {
            failed("detaching the forwarder", &error);
        }
        if let Some(key) = &self.worker {
            node.workers.release(key, &mut node.journal);
        }
        self.sandbox.destroy(&mut node.journal);
    }
}

fn undo(node: &mut Node, chain: (u32, u16), loaded: Option<LoadedChain>, made: Made) {
    drop(loaded);
    // In the order of the chain, so that what is still inside goes on to the end.
    for place in made.places {
        place.destroy(node, chain);
    }
}
