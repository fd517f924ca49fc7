//! Mapping `compact`: kernel functions as tail calls, user functions in one worker's loop. Also
//! mapping `pipeline`, with further processes behind that worker.

use std::sync::Arc;

use myelin_dataplane::{ChainStats, PipelineReader, SocketId, UserChain, UserExit, UserSegment};
use myelin_kernel::{
    ChainConfig, EntrySpace, Exit, Hook, KernelSegment, LoadedChain, Plane, Reentry, Sockets,
};
use myelin_packet::sojourn::Histogram;
use myelin_planner::{Exit as PlannedExit, Plan, Segment};
use myelin_policy::sla::{LossCounter, LossPlace};
use myelin_spec::{SandboxSpec, Space};

use super::LayoutJob;
use crate::api::ApiError;
use crate::node::Parts;
use crate::node::chains::kernel_hook;
use crate::node::discipline::Class;
use crate::node::layout::{FrontDoor, GenerationCounts, Layout, read_kernel_counters};
use crate::node::stages::RunningSegments;
use crate::node::workers::{Key, OpenPort, Worker, WorkerLease, WorkerStart};

/// A generation in this mapping.
pub(super) struct Compact {
    // Fields drop in this order.
    user: Option<UserPart>,
    loaded: Arc<LoadedChain>,
    class: Option<Arc<Class>>,
    spi: u32,
    generation: u16,
    /// The space of each function.
    spaces: Vec<Space>,
}

/// The user functions of a generation.
struct UserPart {
    // Fields drop in this order: the chain leaves the worker before its paths and sockets close.
    running: RunningSegments,
    _paths: Vec<ReentryPath>,
    _ports: Vec<OpenPort>,
    /// Position, interface and sockets of each segment that packets enter from the kernel.
    entries: Vec<(u8, u32, Vec<SocketId>)>,
    worker: WorkerLease,
}

/// The path from a worker back to the kernel segment that starts at `position`.
struct ReentryPath {
    door: Arc<Reentry>,
    position: u8,
    loaded: Arc<LoadedChain>,
}

impl Drop for ReentryPath {
    fn drop(&mut self) {
        if let Err(error) = self.door.remove(self.position, &self.loaded) {
            tracing::warn!(spi = self.loaded.spi(), %error, "cannot remove a path from a worker back into the kernel");
        }
    }
}

/// The worker of a chain with its sockets, before it runs the chain.
struct OpenWorker {
    // Fields drop in this order.
    ports: Vec<OpenPort>,
    /// The socket to the internal link, and the re-entry door at its far end.
    internal: Option<(SocketId, Arc<Reentry>)>,
    worker: WorkerLease,
}

/// Starts the worker, opens its sockets, loads the kernel programs and runs the user functions.
pub(super) fn build(parts: &Parts, job: LayoutJob<'_>) -> Result<Compact, ApiError> {
    let LayoutJob {
        plan, ports, spi, ..
    } = job;
    let (circuit, _, egress) = ports.kernel_ports()?;
    let opened = if plan.uses(Space::User) {
        Some(open_worker(parts, job)?)
    } else {
        None
    };
    let class = match plan.qdisc_shaping() {
        Some(shaping) => Some(
            Class::acquire(
                (&parts.plane, &parts.disciplines),
                egress.ifindex,
                spi,
                shaping,
                &parts.journal,
            )
            .map_err(|error| shaper_error(job, &error))?,
        ),
        None => None,
    };
    let loaded = load_programs(parts, job, opened.as_ref(), class.as_deref())?;
    let user = match opened {
        Some(opened) => Some(run_user_functions(job, opened, &loaded)?),
        None => None,
    };
    let last = plan.segments.last();
    if kernel_hook(plan) == Hook::Xdp && last.is_some_and(|last| last.space == Space::Kernel) {
        circuit.enable_napi(egress)?;
    }
    Ok(Compact {
        user,
        loaded,
        class,
        spi,
        generation: job.generation,
        spaces: plan.hops.iter().map(|hop| hop.space).collect(),
    })
}

fn open_worker(parts: &Parts, job: LayoutJob<'_>) -> Result<OpenWorker, ApiError> {
    let LayoutJob {
        chain, plan, ports, ..
    } = job;
    let (_, _, egress) = ports.kernel_ports()?;
    let worker = job.worker()?;
    let key = Key::of(worker);
    let sandbox = SandboxSpec::default();
    let start = WorkerStart {
        spec: &chain.worker,
        core: worker.core,
        sandbox: &sandbox,
        mtu: job.longest_mtu()?,
        parts,
    };
    let worker = parts
        .workers
        .acquire(&key, || Worker::start(&key, start, None))?;
    worker.check(start)?;
    let ports = vec![
        OpenPort::open(&worker, job.door()?)?,
        OpenPort::open(&worker, egress)?,
    ];
    let mut user_segments = segments(plan, Space::User);
    let internal = if user_segments.any(|segment| segment.exit == PlannedExit::Kernel) {
        Some(worker.state().open_internal(&parts.plane)?)
    } else {
        None
    };
    Ok(OpenWorker {
        ports,
        internal,
        worker,
    })
}

fn load_programs(
    parts: &Parts,
    job: LayoutJob<'_>,
    opened: Option<&OpenWorker>,
    class: Option<&Class>,
) -> Result<Arc<LoadedChain>, ApiError> {
    let LayoutJob { chain, plan, .. } = job;
    let first = plan.segments.first();
    let starts_in_user = first.is_some_and(|first| first.space == Space::User);
    let config = ChainConfig {
        spi: job.spi,
        generation: job.generation,
        hook: kernel_hook(plan),
        on_failure: plan.on_failure,
        policer: job.policer.cloned(),
        positions: chain.functions.len() as u8,
        entry: if starts_in_user {
            EntrySpace::User
        } else {
            EntrySpace::Kernel
        },
        segments: kernel_segments(parts, job, opened, class)?,
    };
    let loaded = parts.plane.load_chain(&config);
    loaded.map(Arc::new).map_err(ApiError::failed)
}

fn kernel_segments(
    parts: &Parts,
    job: LayoutJob<'_>,
    opened: Option<&OpenWorker>,
    class: Option<&Class>,
) -> Result<Vec<KernelSegment>, ApiError> {
    let (circuit, _, egress) = job.ports.kernel_ports()?;
    let ingress = job.door()?;
    let by_stack = !circuit.has_hosts() && egress.is_virtual && !parts.links_are_whole();
    let internal = opened.and_then(|opened| opened.internal.as_ref());
    // The first segment gets packets from the port, later segments from the internal link.
    let sockets = |first_position: u8| -> Sockets {
        match internal {
            Some((_, door)) if first_position > 0 => door.sockets(),
            _ => ingress.door().sockets(),
        }
    };
    let segment = |segment: &Segment| KernelSegment {
        first_position: segment.first_position,
        functions: job.functions(segment.positions()),
        exit: if segment.exit == PlannedExit::User {
            Exit::User {
                sockets: sockets(segment.first_position),
            }
        } else if let Some(class) = class {
            class.exit()
        } else if job.chain.to().is_some() {
            Exit::Wire {
                ifindex: egress.ifindex,
            }
        } else {
            Exit::Egress {
                ifindex: egress.ifindex,
                peer: circuit.has_hosts(),
                by_stack,
            }
        },
    };
    Ok(segments(job.plan, Space::Kernel).map(segment).collect())
}

/// Starts the user functions in the worker, and opens its paths back into the kernel.
fn run_user_functions(
    job: LayoutJob<'_>,
    opened: OpenWorker,
    loaded: &Arc<LoadedChain>,
) -> Result<UserPart, ApiError> {
    let OpenWorker {
        ports,
        internal,
        worker,
    } = opened;
    let plan = job.plan;
    let (_, _, egress) = job.ports.kernel_ports()?;
    let mut sockets = ports.iter();
    let out = sockets.find(|port| port.ifindex == egress.ifindex);
    let out = out.map(|port| port.socket);
    let out = out.ok_or_else(|| {
        ApiError::failed(format!(
            "the worker has no socket at the egress interface {}",
            egress.name
        ))
    })?;
    let chain = user_chain(job, out, internal.as_ref().map(|(socket, _)| *socket));
    let running = RunningSegments::run(&worker, plan, chain)?;
    let mut paths = Vec::new();
    if let Some((_, door)) = &internal {
        let later = segments(plan, Space::Kernel).filter(|segment| segment.first_position > 0);
        for segment in later {
            let position = segment.first_position;
            door.insert(position, loaded).map_err(ApiError::failed)?;
            paths.push(ReentryPath {
                door: Arc::clone(door),
                position,
                loaded: Arc::clone(loaded),
            });
        }
    }
    let state = worker.state();
    // The first user segment gets packets from the port, later ones from the internal link.
    let interfaces = [Some(job.door()?.ifindex), state.internal_interface()];
    let entries = segments(plan, Space::User).map(|segment| segment.first_position);
    let entries = entries.zip(interfaces.into_iter().flatten());
    let entries =
        entries.map(|(position, ifindex)| (position, ifindex, state.receiving_sockets(ifindex)));
    let entries = entries.collect();
    drop(state);
    Ok(UserPart {
        running,
        _paths: paths,
        _ports: ports,
        entries,
        worker,
    })
}

fn user_chain(job: LayoutJob<'_>, egress: SocketId, internal: Option<SocketId>) -> UserChain {
    let LayoutJob { chain, plan, .. } = job;
    let last = segments(plan, Space::User).last();
    let last = last.map_or(0, |segment| segment.first_position);
    let segment = |segment: &Segment| UserSegment {
        first_position: segment.first_position,
        functions: job.functions(segment.positions()),
        exit: match (segment.exit, internal) {
            (PlannedExit::Kernel, Some(socket)) => UserExit::Internal {
                socket,
                position: segment.positions().end as u8,
            },
            _ if chain.to().is_some() => UserExit::Wire(egress),
            _ => UserExit::Port(egress),
        },
        // Only the last user segment shapes, because the kernel functions behind it run to
        // completion.
        shaping: plan
            .worker_shaping()
            .filter(|_| segment.first_position == last),
    };
    UserChain {
        spi: job.spi,
        generation: job.generation,
        positions: chain.functions.len() as u8,
        segments: segments(plan, Space::User).map(segment).collect(),
    }
}

impl Compact {
    fn user_stats(&self) -> Option<ChainStats> {
        let user = self.user.as_ref()?;
        match &user.running.pipeline {
            Some(pipeline) => pipeline.stats(),
            None => user.worker.stats.chain(self.spi, self.generation),
        }
    }
}

impl Layout for Compact {
    fn front_door(&self) -> FrontDoor<'_> {
        FrontDoor::Kernel(&self.loaded)
    }

    fn read(&self, plane: &Plane) -> GenerationCounts {
        let user = self.user_stats();
        let hops = self.spaces.iter().zip(0_u8..).map(|(space, position)| {
            let at = usize::from(position);
            match space {
                Space::Kernel => read_kernel_counters(plane, &self.loaded, position),
                Space::User => user
                    .as_ref()
                    .and_then(|user| user.positions.get(at).copied())
                    .unwrap_or_default(),
            }
        });
        let hops = hops.collect();
        let ends_in_user = self.spaces.last() == Some(&Space::User);
        let egress = plane.counters().read(self.loaded.egress_slot());
        let shaper = user.as_ref().map(|user| user.shaper).unwrap_or_default();
        let sojourn = if ends_in_user {
            user.map_or_else(Histogram::new, |user| user.sojourn)
        } else {
            self.loaded.sojourn()
        };
        GenerationCounts {
            door: plane.counters().read(self.loaded.door_slot()),
            hops,
            packets_out: if ends_in_user {
                sojourn.count()
            } else {
                egress.packets
            },
            bytes_out: (!ends_in_user).then_some(egress.bytes),
            sections: vec![sojourn],
            shaper: self.class.as_ref().map_or(shaper, |class| class.stats()),
            ..GenerationCounts::default()
        }
    }

    fn loss_counters(&self) -> Vec<LossCounter> {
        let Some(user) = &self.user else {
            return Vec::new();
        };
        let worker = format!("{:?}", user.worker.key);
        let rings = user
            .entries
            .iter()
            .map(|(position, interface, sockets)| LossCounter {
                place: LossPlace::Sockets {
                    worker: worker.clone(),
                    interface: *interface,
                },
                next_position: Some(*position),
                lost: user.worker.count_overflows(sockets),
            });
        let transmit = LossCounter {
            place: LossPlace::Transmit {
                spi: self.spi,
                generation: self.generation,
                position: 0,
            },
            next_position: None,
            lost: self.user_stats().map_or(0, |chain| chain.transmit_drops),
        };
        rings.chain([transmit]).collect()
    }

    fn workers(&self) -> Vec<&WorkerLease> {
        self.user.iter().map(|user| &user.worker).collect()
    }

    fn pipeline(&self) -> Option<&Arc<PipelineReader>> {
        self.user.as_ref()?.running.pipeline.as_ref()
    }

    fn shaped_by(&self) -> &'static str {
        self.class.as_ref().map_or("worker", |class| class.kind())
    }

    fn has_failed(&self) -> bool {
        let user = self.user.as_ref();
        user.is_some_and(|user| user.worker.has_failed() || user.running.has_failed())
    }
}

/// Adds the position of the contract in the chain's file to an error.
fn shaper_error(job: LayoutJob<'_>, error: &ApiError) -> ApiError {
    let (place, name) = (&job.chain.places.sla, &job.chain.name);
    ApiError::failed(format!(
        "{place}: chain `{name}`: spec.sla.enforce: {error}"
    ))
}

/// The segments of one space.
fn segments(plan: &Plan, space: Space) -> impl Iterator<Item = &Segment> {
    plan.segments
        .iter()
        .filter(move |segment| segment.space == space)
}
