//! Mapping `compact`: kernel functions as tail calls, user functions in one worker's loop; and `pipeline`, where further processes stand behind that
//! worker.

use myelin_dataplane::{Pipeline, ShaperStats, UserChain, UserExit, UserSegment};
use myelin_kernel::{ChainConfig, Entry, Exit, Hook, KernelSegment, LoadedChain};
use myelin_packet::HopCounters;
use myelin_packet::sojourn::Histogram;
use myelin_planner::{Exit as PlannedExit, Hop, Plan, Segment};
use myelin_policy::sla::{Crossing, Station};
use myelin_spec::{SandboxSpec, ServiceChain, Space};

use crate::api::ApiError;
use crate::deploy::kernel_hook;
use crate::discipline::ClassId;
use crate::layout::{self, Job, Layout};
use crate::node::Node;
use crate::workers::{Key, Start};

/// A generation in this mapping.
struct Compact {
    loaded: LoadedChain,
    spi: u32,
    generation: u16,
    ends_in_user: bool,
    /// The positions at which user functions follow kernel functions or the front door.
    user_entries: Vec<u8>,
    worker: Option<Key>,
    done: Steps,
}

/// What was done so far, so that exactly that is undone.
#[derive(Debug, Default)]
struct Steps {
    worker_acquired: bool,
    /// Ports whose sockets it uses.
    ports: Vec<u32>,
    chain_added: bool,
    paths: Vec<u8>,
    /// Its class of the egress interface's queueing discipline.
    class: Option<ClassId>,
}

/// Makes the worker and its sockets, loads the programs, connects both.
pub(crate) fn build(node: &mut Node, job: Job<'_>) -> Result<Box<dyn Layout>, ApiError> {
    let mut done = Steps::default();
    let worker = job
        .plan
        .uses(Space::User)
        .then(|| Key::of(job.chain, job.place));
    match lay_out(node, job, worker.as_ref(), &mut done) {
        Ok(loaded) => Ok(Box::new(Compact {
            loaded,
            spi: job.spi,
            generation: job.generation,
            ends_in_user: job
                .plan
                .segments
                .last()
                .is_some_and(|last| last.space == Space::User),
            user_entries: segments(job.plan, Space::User)
                .map(|segment| segment.first_position)
                .collect(),
            worker,
            done,
        })),
        Err(error) => {
            undo(
                node,
                (job.spi, job.generation),
                worker.as_ref(),
                None,
                &done,
            );
            Err(error)
        }
    }
}

impl Layout for Compact {
    fn entry(&self) -> &LoadedChain {
        &self.loaded
    }

    fn workers(&self) -> Vec<&Key> {
        self.worker.iter().collect()
    }

    fn hop(&self, node: &Node, hop: &Hop) -> HopCounters {
        if hop.space == Space::Kernel {
            layout::kernel_hop(node, &self.loaded, hop.position)
        } else {
            layout::user_hop(self.user_stats(node).as_ref(), hop.position)
        }
    }

    fn departures(&self, node: &Node) -> (u64, Vec<Histogram>) {
        if self.ends_in_user {
            let sojourn = self
                .user_stats(node)
                .map_or_else(Histogram::new, |chain| chain.sojourn);
            (sojourn.count(), vec![sojourn])
        } else {
            let egress = node.plane.counters().read(self.loaded.egress_slot());
            (egress.packets, vec![self.loaded.sojourn()])
        }
    }

    fn bytes_out(&self, node: &Node) -> Option<u64> {
        let egress = || node.plane.counters().read(self.loaded.egress_slot());
        (!self.ends_in_user).then(|| egress().bytes)
    }

    fn crossings(&self, node: &Node) -> Vec<Crossing> {
        let Some((key, entry)) = self
            .worker
            .as_ref()
            .and_then(|key| Some((key, node.workers.get(key)?)))
        else {
            return Vec::new();
        };
        // The first user functions' packets come in at the port, later ones' over the internal link.
        let port = self.done.ports.first().copied();
        let mut ways = port.into_iter().chain(entry.internal_interface());
        let mut crossings: Vec<_> = self
            .user_entries
            .iter()
            .map_while(|&position| {
                let interface = ways.next()?;
                Some(Crossing {
                    station: Station::Sockets {
                        worker: format!("{key:?}"),
                        interface,
                    },
                    leads_to: Some(position),
                    lost: entry.overflowed(interface),
                })
            })
            .collect();
        let transmit = entry.chain_stats(self.spi, self.generation);
        crossings.push(Crossing {
            station: Station::Transmit {
                spi: self.spi,
                generation: self.generation,
                position: 0,
            },
            leads_to: None,
            lost: transmit.map_or(0, |chain| chain.transmit_drops),
        });
        crossings
    }

    fn shaper(&self, node: &Node) -> ShaperStats {
        if let Some(class) = self.done.class {
            return node.disciplines.stats(&node.plane, class);
        }
        self.user_stats(node)
            .map_or_else(ShaperStats::default, |chain| chain.shaper)
    }

    fn shaped_by(&self, node: &Node) -> &'static str {
        self.done
            .class
            .map_or("worker", |class| node.disciplines.kind(class))
    }

    fn is_failed(&self, node: &Node) -> bool {
        let worker = self.worker.as_ref().and_then(|key| node.workers.get(key));
        worker.is_some_and(|entry| entry.failed || entry.has_failed(self.spi, self.generation))
    }

    fn read_pipeline(&self, node: &Node, read: &mut dyn FnMut(&mut Pipeline)) {
        if let Some(mut entry) = self.worker.as_ref().and_then(|key| node.workers.get(key))
            && let Some(pipeline) = entry.pipeline_mut(self.spi, self.generation)
        {
            read(pipeline);
        }
    }

    fn retire(self: Box<Self>, node: &mut Node) {
        let Self {
            loaded,
            spi,
            generation,
            worker,
            done,
            ..
        } = *self;
        undo(
            node,
            (spi, generation),
            worker.as_ref(),
            Some(loaded),
            &done,
        );
    }
}

impl Compact {
    fn user_stats(&self, node: &Node) -> Option<myelin_dataplane::ChainStats> {
        let entry = node.workers.get(self.worker.as_ref()?)?;
        entry.chain_stats(self.spi, self.generation)
    }
}

fn lay_out(
    node: &mut Node,
    job: Job<'_>,
    worker: Option<&Key>,
    done: &mut Steps,
) -> Result<LoadedChain, ApiError> {
    let Job {
        chain, plan, place, ..
    } = job;
    let mut exits = None;
    if let Some(key) = worker {
        let start = Start {
            spec: &chain.worker,
            sandbox: &SandboxSpec::default(),
            program: &node.program,
            run_dir: &node.run_dir,
        };
        node.workers.acquire(key, &start, &mut node.journal)?;
        done.worker_acquired = true;
        let mut entry = node.workers.reach(key)?;
        let mut open = |port| {
            let socket = entry.open_port(key, &mut node.ports, port)?;
            done.ports.push(port);
            Ok::<_, ApiError>(socket)
        };
        open(place.ingress)?;
        let out = open(place.egress)?;
        let back = plan
            .segments
            .iter()
            .any(|segment| segment.space == Space::User && segment.exit == PlannedExit::Kernel)
            .then(|| entry.open_internal(&node.plane, &mut node.journal))
            .transpose()?;
        exits = Some((out, back));
    }
    if let Some(shaping) = plan.qdisc_shaping() {
        let made = node
            .disciplines
            .acquire(
                &node.plane,
                place.egress,
                job.spi,
                shaping,
                &mut node.journal,
            )
            .map_err(|error| shaper_error(chain, &error))?;
        done.class = Some(made);
    }
    let hook = kernel_hook(plan);
    let config = ChainConfig {
        spi: job.spi,
        generation: job.generation,
        hook,
        on_failure: plan.on_failure,
        policer: job.policer.cloned(),
        positions: chain.functions.len() as u8,
        entry: if plan
            .segments
            .first()
            .is_some_and(|first| first.space == Space::User)
        {
            Entry::User
        } else {
            Entry::Kernel
        },
        segments: kernel_segments(node, job, worker, done.class)?,
    };
    let loaded = node.plane.load_chain(&config).map_err(ApiError::failed)?;
    if let (Some(key), Some((out, back))) = (worker, exits) {
        let mut entry = node.workers.reach(key)?;
        let last_user = segments(plan, Space::User)
            .last()
            .map_or(0, |segment| segment.first_position);
        let user = UserChain {
            spi: job.spi,
            generation: job.generation,
            positions: config.positions,
            segments: segments(plan, Space::User)
                .map(|segment| {
                    let end = segment.positions().end as u8;
                    let exit = match (segment.exit, back) {
                        (PlannedExit::Kernel, Some(socket)) => UserExit::Internal {
                            socket,
                            position: end,
                        },
                        _ => UserExit::Port(out),
                    };
                    // Behind the last queue: kernel functions that follow run to completion.
                    let is_last = segment.first_position == last_user;
                    UserSegment {
                        first_position: segment.first_position,
                        functions: chain.instances(segment.positions()),
                        exit,
                        shaping: plan.worker_shaping().filter(|_| is_last),
                    }
                })
                .collect(),
        };
        entry.run_chain(plan.mapping, user, &mut node.journal)?;
        done.chain_added = true;
        for segment in segments(plan, Space::Kernel).filter(|segment| segment.first_position > 0) {
            if let Some(internal) = &entry.internal {
                internal
                    .door
                    .insert(segment.first_position, &loaded)
                    .map_err(ApiError::failed)?;
                done.paths.push(segment.first_position);
            }
        }
    }
    let ends_in_kernel = plan
        .segments
        .last()
        .is_some_and(|last| last.space == Space::Kernel);
    if hook == Hook::Xdp && ends_in_kernel {
        node.circuit_mut(&place.circuit)?.need_napi(place.egress)?;
    }
    Ok(loaded)
}

/// An error at the contract in the chain's file.
fn shaper_error(chain: &ServiceChain, error: &ApiError) -> ApiError {
    ApiError::failed(format!(
        "{}: chain `{}`: spec.sla.enforce: {error}",
        chain.places.sla, chain.name
    ))
}

fn kernel_segments(
    node: &Node,
    job: Job<'_>,
    worker: Option<&Key>,
    class: Option<ClassId>,
) -> Result<Vec<KernelSegment>, ApiError> {
    let Job {
        chain, plan, place, ..
    } = job;
    let hosts = node.circuit(&place.circuit)?.hosts.is_some();
    segments(plan, Space::Kernel)
        .map(|segment| {
            let exit = if segment.exit == PlannedExit::User {
                let entry = worker.and_then(|key| node.workers.get(key));
                let internal = entry.as_ref().and_then(|entry| entry.internal.as_ref());
                // The first segment's packets come in at the port, later ones' over the internal link.
                let sockets = match internal {
                    Some(internal) if segment.first_position > 0 => internal.door.sockets(),
                    _ => node.ports.get(place.ingress)?.door.sockets(),
                };
                Exit::User { sockets }
            } else if let Some(class) = class {
                node.disciplines.exit(class)
            } else {
                Exit::Egress {
                    ifindex: place.egress,
                    peer: hosts,
                }
            };
            Ok(KernelSegment {
                first_position: segment.first_position,
                functions: chain.instances(segment.positions()),
                exit,
            })
        })
        .collect()
}

fn undo(
    node: &mut Node,
    (spi, generation): (u32, u16),
    worker: Option<&Key>,
    loaded: Option<LoadedChain>,
    done: &Steps,
) {
    let failed = |what: &str, error: &dyn std::fmt::Display| {
        tracing::warn!(spi, generation, %error, "{what} failed");
    };
    if let Some((key, mut entry)) = worker.and_then(|key| Some((key, node.workers.get(key)?))) {
        if done.chain_added
            && let Err(error) = entry.end_chain(spi, generation, &mut node.journal)
        {
            failed("taking the chain out of its worker", &error);
        }
        if let (Some(internal), Some(loaded)) = (&entry.internal, &loaded) {
            for position in &done.paths {
                if let Err(error) = internal.door.remove(*position, loaded) {
                    failed("closing a path back into the kernel", &error);
                }
            }
        }
        for port in &done.ports {
            entry.close_port(key, &mut node.ports, *port);
        }
    }
    drop(loaded);
    if let Some(class) = done.class {
        node.disciplines
            .release(&node.plane, class, &mut node.journal);
    }
    if let (true, Some(key)) = (done.worker_acquired, worker) {
        node.workers.release(key, &mut node.journal);
    }
}

/// The segments of one space.
fn segments(plan: &Plan, space: Space) -> impl Iterator<Item = &Segment> {
    plan.segments
        .iter()
        .filter(move |segment| segment.space == space)
}
