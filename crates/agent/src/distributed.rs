//! Mapping `distributed`: each function in a network namespace of its own, joined by the forwarder's redirects
//! (CALVIN's mapping, Xiang et al. 2019, section IV). A user function has a worker of its own, a black box a second link.

use std::time::Instant;

use myelin_dataplane::{ChainStats, ShaperStats, SocketId, UserChain, UserExit, UserSegment};
use myelin_kernel::{
    DistributedConfig, DistributedFunction, Flows, FunctionLink, Hook, LoadedChain,
    Occupant as Stands,
};
use myelin_linux::link::LinkId;
use myelin_packet::HopCounters;
use myelin_packet::nsh::ENCAPSULATION_LEN;
use myelin_packet::sojourn::Histogram;
use myelin_planner::Hop;
use myelin_policy::sla::{Crossing, Station};
use myelin_spec::{FunctionConfig, FunctionInstance, Space};

use crate::api::{ApiError, BlackBoxStatus, SandboxStatus};
use crate::circuit::MTU;
use crate::deploy::kernel_hook;
use crate::external::{self, BlackBox};
use crate::layout::{self, Job, Layout};
use crate::node::Node;
use crate::sandbox::{Occupant, Sandbox};
use crate::workers::{Key, Start, lead, overflowed};

/// A generation in this mapping.
struct Distributed {
    loaded: LoadedChain,
    spi: u32,
    generation: u16,
    /// The last function's worker sends packets out of the chain, and records that.
    ends_in_worker: bool,
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
    /// A black box that is coming up, and since when.
    starting: Option<(BlackBox, Instant)>,
    /// One that is up.
    black_box: Option<external::Key>,
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
            ends_in_worker: ends_in_worker(job),
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

    fn hop(&self, node: &Node, hop: &Hop) -> HopCounters {
        let kernel = layout::kernel_hop(node, &self.loaded, hop.position);
        let place = self.made.places.get(usize::from(hop.position));
        if let Some(slots) = place
            .and_then(|place| place.link.as_ref())
            .and_then(FunctionLink::black_box)
        {
            let counted = |slot| node.plane.counters().read(slot).packets;
            let came = counted(slots.out) + counted(slots.back);
            // What came out and cannot be read is counted as a drop already.
            let held = kernel.packets_in.saturating_sub(came + kernel.drops);
            return HopCounters {
                drops: kernel.drops + held,
                held,
                ..kernel
            };
        }
        let Some(place) = place.filter(|place| place.worker.is_some()) else {
            return kernel;
        };
        let chain = self.user_stats(node, place);
        let user = layout::user_hop(chain.as_ref(), hop.position);
        HopCounters {
            // The kernel drops what finds no socket, or comes back without its header.
            drops: user.drops + kernel.drops,
            ..user
        }
    }

    fn sandbox(&self, node: &Node, hop: &Hop) -> Option<SandboxStatus> {
        let place = self.made.places.get(usize::from(hop.position))?;
        if let Some(key) = &place.black_box {
            return node.black_boxes.get(key)?.sandbox();
        }
        let entry = node.workers.get(place.worker.as_ref()?)?;
        let confinement = entry.confinement.as_ref()?;
        Some(confinement.status())
    }

    fn kernel_flows(&self, position: u8) -> Result<Option<Flows>, myelin_kernel::Error> {
        let place = self.made.places.get(usize::from(position));
        let link = place.and_then(|place| place.link.as_ref());
        link.map_or(Ok(None), FunctionLink::flows)
    }

    fn departures(&self, node: &Node) -> (u64, Vec<Histogram>) {
        let mut sections = self.loaded.sections();
        if !self.ends_in_worker {
            let egress = node.plane.counters().read(self.loaded.egress_slot());
            return (egress.packets, sections);
        }
        let sojourn = self
            .made
            .places
            .last()
            .and_then(|place| self.user_stats(node, place))
            .map_or_else(Histogram::new, |chain| chain.sojourn);
        let packets = sojourn.count();
        if let Some(last) = sections.last_mut() {
            *last = sojourn;
        }
        (packets, sections)
    }

    fn bytes_out(&self, node: &Node) -> Option<u64> {
        let egress = || node.plane.counters().read(self.loaded.egress_slot());
        (!self.ends_in_worker).then(|| egress().bytes)
    }

    fn crossings(&self, node: &Node) -> Vec<Crossing> {
        let mut crossings = Vec::new();
        for (place, position) in self.made.places.iter().zip(0..) {
            let interface = place.sandbox.near.index;
            crossings.push(Crossing {
                station: Station::Inner { interface },
                leads_to: Some(position),
                // Whoever reads it asks the interface.
                lost: 0,
            });
            let worker = place.worker.as_ref();
            let Some((key, entry)) = worker.and_then(|key| Some((key, node.workers.get(key)?)))
            else {
                continue;
            };
            let socket = place.socket.and_then(|id| entry.handle.socket(id));
            crossings.push(Crossing {
                station: Station::Sockets {
                    worker: format!("{key:?}"),
                    interface,
                },
                leads_to: Some(position),
                lost: socket.map_or(0, overflowed),
            });
            let stats = entry.handle.stats().chain(self.spi, self.generation);
            crossings.push(Crossing {
                station: Station::Transmit {
                    spi: self.spi,
                    generation: self.generation,
                    position,
                },
                leads_to: None,
                lost: stats.map_or(0, |chain| chain.transmit_drops),
            });
        }
        crossings
    }

    fn black_box(&self, node: &Node, position: u8) -> Option<BlackBoxStatus> {
        let place = self.made.places.get(usize::from(position))?;
        let slots = place.link.as_ref()?.black_box()?;
        let counted = |slot| node.plane.counters().read(slot).packets;
        let status = node.black_boxes.get(place.black_box.as_ref()?)?.status();
        Some(BlackBoxStatus {
            packets_out: counted(slots.out),
            packets_back: counted(slots.back),
            ..status
        })
    }

    fn shaper(&self, node: &Node) -> ShaperStats {
        let last = self.made.places.last();
        last.and_then(|place| self.user_stats(node, place))
            .map_or_else(ShaperStats::default, |chain| chain.shaper)
    }

    fn is_failed(&self, node: &Node) -> bool {
        self.made.places.iter().any(|place| {
            let worker = place.worker.as_ref();
            let black_box = place.black_box.as_ref();
            worker
                .and_then(|key| node.workers.get(key))
                .is_some_and(|entry| entry.failed)
                || black_box
                    .and_then(|key| node.black_boxes.get(key))
                    .is_some_and(|black_box| black_box.failed)
        })
    }

    fn retire(self: Box<Self>, node: &mut Node) {
        let Self {
            loaded,
            spi,
            generation,
            made,
            ..
        } = *self;
        undo(node, (spi, generation), Some(loaded), made);
    }
}

impl Distributed {
    /// What a function's worker counted of this generation.
    fn user_stats(&self, node: &Node, place: &FunctionPlace) -> Option<ChainStats> {
        let entry = node.workers.get(place.worker.as_ref()?)?;
        entry.handle.stats().chain(self.spi, self.generation)
    }
}

fn lay_out(node: &mut Node, job: Job<'_>, made: &mut Made) -> Result<LoadedChain, ApiError> {
    for hop in &job.plan.hops {
        made.places.push(FunctionPlace::make(node, job, hop)?);
    }
    let peer = node.circuit(&job.place.circuit)?.hosts.is_some();
    let hook = kernel_hook(job.plan);
    let config = DistributedConfig {
        hook,
        spi: job.spi,
        generation: job.generation,
        on_failure: job.plan.on_failure,
        policer: job.policer.cloned(),
        functions: made
            .places
            .iter()
            .zip(&job.plan.hops)
            .map(|(place, hop)| DistributedFunction {
                near: place.sandbox.near.index,
                inner: place.sandbox.inner.index,
                occupant: match hop.space {
                    _ if hop.is_black_box() => Stands::BlackBox,
                    Space::Kernel => Stands::Kernel(instance(job, hop.position)),
                    Space::User if leaves(job, hop) => Stands::LastWorker { peer },
                    Space::User => Stands::Worker,
                },
            })
            .collect(),
        ingress: job.place.ingress,
        egress: job.place.egress,
        peer,
    };
    let (loaded, links) = node
        .plane
        .load_distributed(&config)
        .map_err(ApiError::failed)?;
    for ((place, hop), link) in made.places.iter_mut().zip(&job.plan.hops).zip(links) {
        place.connect(node, job, hop, link)?;
    }
    // All of them come up at the same time.
    for (place, hop) in made.places.iter_mut().zip(&job.plan.hops) {
        place.await_up(node, job, hop)?;
    }
    let circuit = node.circuit_mut(&job.place.circuit)?;
    if hook == Hook::Xdp && !ends_in_worker(job) {
        circuit.need_napi(job.place.egress)?;
    }
    if job.plan.hops.iter().any(|hop| answers(job, hop)) {
        circuit.need_napi(job.place.ingress)?;
    }
    Ok(loaded)
}

/// Whether a function sends something back to the senders of packets, which the forwarder redirects to the ingress.
fn answers(job: Job<'_>, hop: &Hop) -> bool {
    let config = &job.chain.functions[usize::from(hop.position)].config;
    hop.is_black_box() || hop.space == Space::User && config.effect().answers_senders
}

/// Whether a worker's packets leave the chain without more ado: those of the last function, unless it answers senders, which
/// only the forwarder can tell from what goes on.
fn leaves(job: Job<'_>, hop: &Hop) -> bool {
    is_last(job, hop) && hop.space == Space::User && !answers(job, hop)
}

fn is_last(job: Job<'_>, hop: &Hop) -> bool {
    usize::from(hop.position) + 1 == job.plan.hops.len()
}

fn ends_in_worker(job: Job<'_>) -> bool {
    job.plan.hops.last().is_some_and(|hop| leaves(job, hop))
}

fn key(job: Job<'_>, hop: &Hop) -> external::Key {
    external::Key {
        spi: job.spi,
        generation: job.generation,
        position: hop.position,
    }
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
        let journal = &mut node.journal;
        let sandbox = match hop.space {
            _ if hop.is_black_box() => Sandbox::between_links(&occupant, MTU, journal)?,
            Space::Kernel => Sandbox::create(&occupant, MTU, journal)?,
            // A worker's packets come back behind a header.
            Space::User => Sandbox::create(&occupant, MTU + ENCAPSULATION_LEN as u32, journal)?,
        };
        Ok(Self {
            sandbox,
            link: None,
            worker: None,
            socket: None,
            chain_added: false,
            starting: None,
            black_box: None,
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
        if let Some(out) = self.sandbox.out.clone() {
            return self.connect_black_box(node, job, hop, link, &out);
        }
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
        let start = Start {
            spec: &job.chain.worker,
            sandbox: &job.chain.functions[usize::from(hop.position)].sandbox,
            program: &node.program,
            run_dir: &node.run_dir,
        };
        node.workers.acquire(&key, &start, &mut node.journal)?;
        self.worker = Some(key.clone());
        let mut entry = node.workers.reach(&key)?;
        // The workers of a chain share a core: one that polled before it sleeps would keep it from the one that has the
        // packet.
        let hops = job.plan.hops.iter();
        let workers = hops.filter(|hop| hop.space == Space::User && !hop.is_black_box());
        let shares_core = workers.count() > 1;
        entry.poll_unless(shares_core).map_err(ApiError::failed)?;
        let xsk = entry.bind_in(netns, inner)?;
        let xsk = match link.sockets() {
            Some(sockets) => xsk.led_by(lead(sockets, 0)),
            None => xsk,
        };
        let socket = entry.handle.add_socket(xsk).map_err(ApiError::failed)?;
        self.socket = Some(socket);
        let chain = UserChain {
            spi: job.spi,
            generation: job.generation,
            positions: job.plan.hops.len() as u8,
            segments: vec![UserSegment {
                first_position: hop.position,
                functions: vec![instance(job, hop.position)],
                exit: if leaves(job, hop) {
                    UserExit::Port(socket)
                } else {
                    UserExit::Internal {
                        socket,
                        position: hop.position + 1,
                    }
                },
                shaping: job.plan.worker_shaping().filter(|_| is_last(job, hop)),
            }],
        };
        let added = entry.handle.add_chain(chain);
        added.map_err(|error| entry.explain(error))?;
        self.chain_added = true;
        Ok(())
    }

    /// Attaches the programs at the near ends of a black box's links, and starts it.
    fn connect_black_box(
        &mut self,
        node: &mut Node,
        job: Job<'_>,
        hop: &Hop,
        link: FunctionLink,
        out: &LinkId,
    ) -> Result<(), ApiError> {
        let near = &self.sandbox.near;
        let link = self.link.insert(link);
        link.attach_inner(&near.name, near.index)
            .and_then(|()| link.attach_near(&out.name, out.index))
            .map_err(ApiError::failed)?;
        let function = &job.chain.functions[usize::from(hop.position)];
        let FunctionConfig::External(config) = &function.config else {
            return Err(ApiError::failed(format!("`{}` is no black box", hop.name)));
        };
        let started = Instant::now();
        let (chain, key) = (&job.chain.name, key(job, hop));
        let black_box = BlackBox::start(node, chain, function, config, key, &self.sandbox)?;
        self.starting = Some((black_box, started));
        Ok(())
    }

    /// Waits for a black box.
    fn await_up(&mut self, node: &mut Node, job: Job<'_>, hop: &Hop) -> Result<(), ApiError> {
        let Some((black_box, started)) = &mut self.starting else {
            return Ok(());
        };
        black_box.await_up(*started, job.is_called_off)?;
        if let Some((black_box, _)) = self.starting.take() {
            let key = key(job, hop);
            node.black_boxes.insert(key, black_box);
            self.black_box = Some(key);
        }
        Ok(())
    }

    fn destroy(self, node: &mut Node, (spi, generation): (u32, u16)) {
        let failed = |what: &str, error: &dyn std::fmt::Display| {
            tracing::warn!(spi, generation, %error, "{what} failed");
        };
        let entry = self.worker.as_ref().and_then(|key| node.workers.get(key));
        if let Some(mut entry) = entry.filter(|entry| !entry.failed) {
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
        let up = self.black_box.and_then(|key| node.black_boxes.remove(&key));
        for black_box in self
            .starting
            .map(|(starting, _)| starting)
            .into_iter()
            .chain(up)
        {
            black_box.destroy(&mut node.journal);
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
