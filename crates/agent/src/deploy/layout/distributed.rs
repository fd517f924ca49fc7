//! Mapping `distributed`: each function has its own network namespace; the forwarder redirects
//! packets between them (CALVIN's mapping, Xiang et al. 2019, section IV). A user function has its
//! own worker, a black box a second link.

mod black_boxes;

use std::time::Instant;

use myelin_dataplane::{ChainStats, SocketId, UserChain, UserExit, UserSegment};
use myelin_kernel::{
    DistributedConfig, DistributedFunction, FunctionLink, FunctionRuntime, Hook, LoadedChain, Plane,
};
use myelin_packet::nsh::ENCAPSULATION_LEN;
use myelin_packet::sojourn::Histogram;
use myelin_packet::{Flows, HopCounters};
use myelin_planner::Hop;
use myelin_policy::sla::{LossCounter, LossPlace};
use myelin_spec::{FunctionInstance, Space};

use self::black_boxes::{shared_cores, start_black_box};
use super::LayoutJob;
use crate::api::{ApiError, BlackBoxStatus, SandboxStatus};
use crate::node::Parts;
use crate::node::black_box::BlackBoxLease;
use crate::node::chains::kernel_hook;
use crate::node::layout::{FrontDoor, GenerationCounts, Layout, read_kernel_counters};
use crate::node::sandbox::{FunctionId, Sandbox};
use crate::node::stages::RunningSegments;
use crate::node::workers::{Key, Worker, WorkerLease, WorkerStart, socket_redirect};

/// A generation in this mapping.
pub(super) struct Distributed {
    // Fields drop in this order. Functions drop in chain order, so packets inside a function still
    // reach the end of the chain.
    loaded: LoadedChain,
    functions: Vec<DeployedFunction>,
    spi: u32,
    generation: u16,
    /// The last function's worker transmits at the egress and records the sojourn.
    ends_in_worker: bool,
}

/// One function: its process, link and sandbox.
struct DeployedFunction {
    // Fields drop in this order.
    user: Option<UserFunction>,
    black_box: Option<BlackBoxLease>,
    link: AttachedPrograms,
    sandbox: Sandbox,
}

/// A user function in its worker.
struct UserFunction {
    // Fields drop in this order.
    _running: RunningSegments,
    socket: OpenSocket,
}

/// A worker's socket in the function's namespace.
struct OpenSocket {
    worker: WorkerLease,
    id: SocketId,
}

/// The programs of a function's link. Dropping the value detaches the programs.
struct AttachedPrograms(FunctionLink);

impl Drop for OpenSocket {
    fn drop(&mut self) {
        let worker = &self.worker;
        worker
            .cores
            .without_turns(&**worker, || worker.state().close_socket(self.id));
    }
}

impl Drop for AttachedPrograms {
    fn drop(&mut self) {
        if let Err(error) = self.0.detach() {
            tracing::warn!(%error, "cannot detach the forwarder");
        }
    }
}

/// Makes the sandboxes, loads the programs, starts the workers and connects them.
pub(super) fn build(parts: &Parts, job: LayoutJob<'_>) -> Result<Distributed, ApiError> {
    let (circuit, ingress, egress) = job.ports.kernel_ports()?;
    let sandboxes = job
        .plan
        .hops
        .iter()
        .map(|hop| make_sandbox(parts, job, hop));
    let sandboxes: Vec<Sandbox> = sandboxes.collect::<Result<_, _>>()?;
    let peer = circuit.has_hosts();
    let hook = kernel_hook(job.plan);
    let functions = sandboxes.iter().zip(&job.plan.hops);
    let function = |(sandbox, hop): (&Sandbox, &Hop)| DistributedFunction {
        near: sandbox.near.index,
        inner: sandbox.inner.index,
        runtime: match hop.space {
            _ if hop.is_black_box() => FunctionRuntime::BlackBox,
            Space::Kernel => FunctionRuntime::Kernel(instance(job, hop.position)),
            Space::User if transmits_at_egress(job, hop) => FunctionRuntime::LastWorker { peer },
            Space::User => FunctionRuntime::Worker,
        },
    };
    let config = DistributedConfig {
        hook,
        spi: job.spi,
        generation: job.generation,
        on_failure: job.plan.on_failure,
        policer: job.policer.cloned(),
        functions: functions.map(function).collect(),
        ingress: ingress.ifindex,
        egress: egress.ifindex,
        peer,
        by_stack: !peer && (egress.is_virtual || ingress.is_virtual) && !parts.links_are_whole(),
    };
    let loaded = parts.plane.load_distributed(&config);
    let (loaded, links) = loaded.map_err(ApiError::failed)?;
    let mut functions = Vec::new();
    let mut starting = Vec::new();
    // A program that starts needs its core.
    let mut pauses = Vec::new();
    for core in shared_cores(job) {
        pauses.push(parts.cores.pause(core));
    }
    for ((sandbox, hop), link) in sandboxes.into_iter().zip(&job.plan.hops).zip(links) {
        let started = Instant::now();
        let function = DeployedFunction::connect(parts, job, (hop, sandbox), (link, &loaded))?;
        starting.extend(
            function
                .black_box
                .clone()
                .map(|black_box| (black_box, started)),
        );
        functions.push(function);
    }
    // All black boxes start at the same time.
    for (black_box, started) in starting {
        black_box.wait_until_up(started, job.is_cancelled)?;
    }
    for pause in pauses {
        pause.end()?;
    }
    let ends_in_worker = job
        .plan
        .hops
        .last()
        .is_some_and(|hop| transmits_at_egress(job, hop));
    if hook == Hook::Xdp && !ends_in_worker {
        circuit.enable_napi(egress)?;
    }
    if job.plan.hops.iter().any(|hop| may_answer_senders(job, hop)) {
        circuit.enable_napi(ingress)?;
    }
    Ok(Distributed {
        loaded,
        functions,
        spi: job.spi,
        generation: job.generation,
        ends_in_worker,
    })
}

/// Whether a function may answer senders. The forwarder redirects answers to the ingress.
fn may_answer_senders(job: LayoutJob<'_>, hop: &Hop) -> bool {
    let config = &job.chain.functions[usize::from(hop.position)].config;
    hop.is_black_box() || hop.space == Space::User && config.effect().answers_senders
}

/// Whether the function's worker transmits directly at the egress. Only the last function does so,
/// unless it answers senders: the forwarder separates answers from other packets.
fn transmits_at_egress(job: LayoutJob<'_>, hop: &Hop) -> bool {
    is_last(job, hop) && hop.space == Space::User && !may_answer_senders(job, hop)
}

fn is_last(job: LayoutJob<'_>, hop: &Hop) -> bool {
    usize::from(hop.position) + 1 == job.plan.hops.len()
}

fn instance(job: LayoutJob<'_>, position: u8) -> FunctionInstance {
    let at = usize::from(position);
    job.functions(at..at + 1).remove(0)
}

fn make_sandbox(parts: &Parts, job: LayoutJob<'_>, hop: &Hop) -> Result<Sandbox, ApiError> {
    let id = FunctionId {
        run: &parts.run_id,
        host_prefix: &parts.host_prefix,
        chain: &job.chain.name,
        function: &hop.name,
        spi: job.spi,
        generation: job.generation,
        position: hop.position,
    };
    let journal = &parts.journal;
    let mtu = job.longest_mtu()?;
    match hop.space {
        _ if hop.is_black_box() => Sandbox::create_for_black_box(&id, mtu, journal),
        Space::Kernel => Sandbox::create(&id, mtu, journal),
        // A worker's packets return with an NSH header.
        Space::User => Sandbox::create(&id, mtu + ENCAPSULATION_LEN as u32, journal),
    }
}

impl DeployedFunction {
    /// Attaches the programs of the link, and starts the user function or the black box.
    fn connect(
        parts: &Parts,
        job: LayoutJob<'_>,
        (hop, sandbox): (&Hop, Sandbox),
        (link, loaded): (FunctionLink, &LoadedChain),
    ) -> Result<Self, ApiError> {
        let mut function = Self {
            user: None,
            black_box: None,
            link: AttachedPrograms(link),
            sandbox,
        };
        attach(&function.sandbox, &function.link.0)?;
        if let Some(slots) = function.link.0.black_box() {
            let counters = (loaded.counter_slot(hop.position), slots);
            function.black_box = Some(start_black_box(
                parts,
                job,
                hop,
                &function.sandbox,
                counters,
            )?);
        } else if hop.space == Space::User {
            function.user = Some(function.run_user_function(parts, job, hop)?);
        }
        Ok(function)
    }

    fn run_user_function(
        &self,
        parts: &Parts,
        job: LayoutJob<'_>,
        hop: &Hop,
    ) -> Result<UserFunction, ApiError> {
        let planned = job.worker()?;
        // The key has no generation, because the worker and its state outlive a change of the
        // chain.
        let key = Key::of_function(planned, &hop.name);
        let sandbox = &job.chain.functions[usize::from(hop.position)].sandbox;
        let spec = &job.chain.worker;
        let start = WorkerStart {
            spec,
            core: planned.core,
            sandbox,
            mtu: job.longest_mtu()?,
            parts,
        };
        let worker = parts
            .workers
            .acquire(&key, || Worker::start(&key, start, None))?;
        worker.check(start)?;
        let socket = self.open_socket(job, worker)?;
        let chain = UserChain {
            spi: job.spi,
            generation: job.generation,
            positions: job.plan.hops.len() as u8,
            segments: vec![UserSegment {
                first_position: hop.position,
                functions: vec![instance(job, hop.position)],
                exit: if transmits_at_egress(job, hop) {
                    UserExit::Port(socket.id)
                } else {
                    UserExit::Internal {
                        socket: socket.id,
                        position: hop.position + 1,
                    }
                },
                shaping: job.plan.worker_shaping().filter(|_| is_last(job, hop)),
            }],
        };
        let running = RunningSegments::run(&socket.worker, job.plan, chain)?;
        Ok(UserFunction {
            _running: running,
            socket,
        })
    }

    fn open_socket(&self, job: LayoutJob<'_>, worker: WorkerLease) -> Result<OpenSocket, ApiError> {
        let mut state = worker.state();
        // The workers of a chain share a core. A polling worker would keep the core from the worker
        // that has the packet.
        let hops = job.plan.hops.iter();
        let workers = hops.filter(|hop| hop.space == Space::User && !hop.is_black_box());
        let shares_core = workers.count() > 1;
        state.set_idle_mode(shares_core).map_err(ApiError::failed)?;
        let xsk = state.bind_in(&self.sandbox.netns, &self.sandbox.inner)?;
        let xsk = match self.link.0.sockets() {
            Some(sockets) => xsk.with_redirect(socket_redirect(sockets, 0)),
            None => xsk,
        };
        let id = state.handle().add_socket(xsk).map_err(ApiError::failed)?;
        drop(state);
        Ok(OpenSocket { worker, id })
    }
}

/// Attaches the programs at both ends of a link; for a black box, at the near end of each of its
/// two links.
fn attach(sandbox: &Sandbox, link: &FunctionLink) -> Result<(), ApiError> {
    let Sandbox {
        netns, near, inner, ..
    } = sandbox;
    if let Some(out) = &sandbox.out {
        return link
            .attach_inner(&near.name, near.index)
            .and_then(|()| link.attach_near(&out.name, out.index))
            .map_err(ApiError::failed);
    }
    netns
        .enter(|| link.attach_inner(&inner.name, inner.index))
        .map_err(ApiError::failed)?
        .map_err(ApiError::failed)?;
    link.attach_near(&near.name, near.index)
        .map_err(ApiError::failed)
}

impl Distributed {
    /// The counts of this generation in a function's worker.
    fn user_stats(&self, function: &DeployedFunction) -> Option<ChainStats> {
        let worker = &function.user.as_ref()?.socket.worker;
        worker.stats.chain(self.spi, self.generation)
    }

    fn hop_counters(
        &self,
        plane: &Plane,
        function: &DeployedFunction,
        position: u8,
    ) -> HopCounters {
        let kernel = read_kernel_counters(plane, &self.loaded, position);
        if let Some(slots) = function.link.0.black_box() {
            let read_packets = |slot| plane.counters().read(slot).packets;
            let returned = read_packets(slots.out) + read_packets(slots.back);
            // A packet that came out unreadable is already counted as a drop.
            let held = kernel.packets_in.saturating_sub(returned + kernel.drops);
            return HopCounters {
                held,
                drops: kernel.drops + held,
                ..kernel
            };
        }
        if function.user.is_none() {
            return kernel;
        }
        let user = self.user_stats(function);
        let user = user.and_then(|user| user.positions.get(usize::from(position)).copied());
        let user = user.unwrap_or_default();
        HopCounters {
            // The kernel drops packets that find no socket, and packets that return without an NSH
            // header.
            drops: user.drops + kernel.drops,
            ..user
        }
    }

    fn function(&self, position: u8) -> Option<&DeployedFunction> {
        self.functions.get(usize::from(position))
    }
}

impl Layout for Distributed {
    fn front_door(&self) -> FrontDoor<'_> {
        FrontDoor::Kernel(&self.loaded)
    }

    fn read(&self, plane: &Plane) -> GenerationCounts {
        let functions = self.functions.iter().zip(0_u8..);
        let hops =
            functions.map(|(function, position)| self.hop_counters(plane, function, position));
        let hops = hops.collect();
        let last = self.functions.last();
        let last = last.and_then(|function| self.user_stats(function));
        let shaper = last.as_ref().map(|last| last.shaper).unwrap_or_default();
        let mut sections = self.loaded.sections();
        let egress = plane.counters().read(self.loaded.egress_slot());
        let (packets_out, bytes_out) = if self.ends_in_worker {
            let sojourn = last.map_or_else(Histogram::new, |last| last.sojourn);
            let packets = sojourn.count();
            if let Some(section) = sections.last_mut() {
                *section = sojourn;
            }
            (packets, None)
        } else {
            (egress.packets, Some(egress.bytes))
        };
        GenerationCounts {
            door: plane.counters().read(self.loaded.door_slot()),
            hops,
            packets_out,
            bytes_out,
            sections,
            shaper,
            ..GenerationCounts::default()
        }
    }

    fn loss_counters(&self) -> Vec<LossCounter> {
        let mut loss_counters = Vec::new();
        for (function, position) in self.functions.iter().zip(0..) {
            let interface = function.sandbox.near.index;
            loss_counters.push(LossCounter {
                place: LossPlace::Inner { interface },
                next_position: Some(position),
                // `control::reading` reads the interface's losses.
                lost: 0,
            });
            let Some(user) = &function.user else {
                continue;
            };
            let OpenSocket { worker, id } = &user.socket;
            loss_counters.push(LossCounter {
                place: LossPlace::Sockets {
                    worker: format!("{:?}", worker.key),
                    interface,
                },
                next_position: Some(position),
                lost: worker.count_overflows(std::slice::from_ref(id)),
            });
            let stats = self.user_stats(function);
            loss_counters.push(LossCounter {
                place: LossPlace::Transmit {
                    spi: self.spi,
                    generation: self.generation,
                    position,
                },
                next_position: None,
                lost: stats.map_or(0, |chain| chain.transmit_drops),
            });
        }
        loss_counters
    }

    fn workers(&self) -> Vec<&WorkerLease> {
        let users = self
            .functions
            .iter()
            .filter_map(|function| function.user.as_ref());
        users.map(|user| &user.socket.worker).collect()
    }

    fn sandbox(&self, position: u8) -> Option<SandboxStatus> {
        let function = self.function(position)?;
        if let Some(black_box) = &function.black_box {
            return black_box.sandbox();
        }
        let worker = &function.user.as_ref()?.socket.worker;
        Some(worker.confinement.as_ref()?.status())
    }

    fn black_box(&self, plane: &Plane, position: u8) -> Option<BlackBoxStatus> {
        let function = self.function(position)?;
        let slots = function.link.0.black_box()?;
        let read_packets = |slot| plane.counters().read(slot).packets;
        Some(BlackBoxStatus {
            packets_out: read_packets(slots.out),
            packets_back: read_packets(slots.back),
            ..function.black_box.as_ref()?.status()
        })
    }

    fn kernel_flows(&self, position: u8) -> Result<Option<Flows>, myelin_kernel::Error> {
        let function = self.function(position);
        function.map_or(Ok(None), |function| function.link.0.flows())
    }

    fn has_failed(&self) -> bool {
        let mut boxes = self
            .functions
            .iter()
            .filter_map(|function| function.black_box.as_ref());
        let mut workers = self.workers().into_iter();
        boxes.any(|black_box| black_box.has_failed()) || workers.any(|worker| worker.has_failed())
    }
}
