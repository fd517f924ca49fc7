//! One chain on its circuit: loaded, connected, switched on; and the way back.

use std::sync::Arc;
use std::time::Instant;

use myelin_dataplane::{UserChain, UserExit, UserSegment};
use myelin_kernel::{ChainConfig, Entry, Exit, Hook, KernelSegment, LoadedChain};
use myelin_planner::{Exit as PlannedExit, Plan, Segment};
use myelin_spec::{FunctionConfig, Hook as HookSpec, OnFailure, ServiceChain, Space};

use crate::api::{ApiError, ChainSource};
use crate::node::Node;
use crate::workers::Key;

/// A chain that runs.
pub(crate) struct Deployed {
    pub(crate) chain: ServiceChain,
    /// The file it came from.
    pub(crate) source: Arc<ChainSource>,
    pub(crate) plan: Plan,
    pub(crate) spi: u32,
    pub(crate) generation: u16,
    /// The chain whose circuit this one lies on: itself, or its reverse.
    pub(crate) circuit: String,
    pub(crate) ingress: u32,
    pub(crate) egress: u32,
    pub(crate) started: Instant,
    pub(crate) loaded: LoadedChain,
    pub(crate) worker: Option<Key>,
    done: Steps,
}

/// What was done for a chain so far, so that exactly that is undone.
#[derive(Debug, Default)]
struct Steps {
    worker_acquired: bool,
    chain_added: bool,
    paths: Vec<u8>,
    xdp: bool,
    napi: bool,
    matched: bool,
}

/// Which interfaces a chain lies between, and on whose circuit.
pub(crate) struct Place {
    pub(crate) circuit: String,
    pub(crate) ingress: u32,
    pub(crate) egress: u32,
}

impl Node {
    /// Deploys a planned chain; on failure everything of it is undone.
    pub(crate) fn deploy(
        &mut self,
        chain: ServiceChain,
        source: &Arc<ChainSource>,
        plan: Plan,
        place: Place,
    ) -> Result<Deployed, ApiError> {
        let mut done = Steps::default();
        let spi = self.take_spi();
        let worker = plan.uses(Space::User).then(|| Key {
            owner: chain.owner().to_owned(),
            circuit: if chain.ports.is_some() {
                String::new()
            } else {
                place.circuit.clone()
            },
        });
        match self.build(&chain, &plan, &place, spi, worker.as_ref(), &mut done) {
            Ok(loaded) => Ok(Deployed {
                chain,
                source: Arc::clone(source),
                plan,
                spi,
                generation: 0,
                circuit: place.circuit,
                ingress: place.ingress,
                egress: place.egress,
                started: Instant::now(),
                loaded,
                worker,
                done,
            }),
            Err(error) => {
                self.undo(&chain, &place, spi, worker.as_ref(), None, &done);
                Err(error)
            }
        }
    }

    /// Takes a chain out of service and frees all that only it needed.
    pub(crate) fn undeploy(&mut self, deployed: Deployed) -> ServiceChain {
        let place = Place {
            circuit: deployed.circuit,
            ingress: deployed.ingress,
            egress: deployed.egress,
        };
        self.undo(
            &deployed.chain,
            &place,
            deployed.spi,
            deployed.worker.as_ref(),
            Some(deployed.loaded),
            &deployed.done,
        );
        deployed.chain
    }

    fn build(
        &mut self,
        chain: &ServiceChain,
        plan: &Plan,
        place: &Place,
        spi: u32,
        worker: Option<&Key>,
        done: &mut Steps,
    ) -> Result<LoadedChain, ApiError> {
        let hook = match plan.hook {
            HookSpec::Xdp => Hook::Xdp,
            HookSpec::Tcx | HookSpec::Auto => Hook::Tcx,
        };
        let mut exits = None;
        if let Some(key) = worker {
            self.workers.acquire(
                key,
                &chain.worker,
                &self.program,
                &self.run_id,
                &mut self.journal,
            )?;
            done.worker_acquired = true;
            let entry = self.workers.get_mut(key)?;
            entry.open_port(key, &mut self.ports, place.ingress)?;
            let out = entry.open_port(key, &mut self.ports, place.egress)?;
            let back = plan
                .segments
                .iter()
                .any(|segment| segment.space == Space::User && segment.exit == PlannedExit::Kernel)
                .then(|| entry.open_internal(&self.plane, &mut self.journal))
                .transpose()?;
            exits = Some((out, back));
        }
        let config = ChainConfig {
            spi,
            generation: 0,
            hook,
            on_failure: plan.on_failure,
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
            segments: self.kernel_segments(chain, plan, place, worker)?,
        };
        let loaded = self.plane.load_chain(&config).map_err(ApiError::failed)?;
        if let (Some(key), Some((out, back))) = (worker, exits) {
            let entry = self.workers.get_mut(key)?;
            let user = UserChain {
                spi,
                generation: 0,
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
                        UserSegment {
                            first_position: segment.first_position,
                            functions: functions(chain, segment),
                            exit,
                        }
                    })
                    .collect(),
            };
            entry.handle.add_chain(user).map_err(ApiError::failed)?;
            done.chain_added = true;
            for segment in
                segments(plan, Space::Kernel).filter(|segment| segment.first_position > 0)
            {
                if let Some(internal) = &entry.internal {
                    internal
                        .door
                        .insert(segment.first_position, &loaded)
                        .map_err(ApiError::failed)?;
                    done.paths.push(segment.first_position);
                }
            }
        }
        if hook == Hook::Xdp {
            if plan
                .segments
                .last()
                .is_some_and(|last| last.space == Space::Kernel)
            {
                self.circuit_mut(&place.circuit)?
                    .acquire_napi(place.egress)?;
                done.napi = true;
            }
            self.ports.acquire_xdp(place.ingress)?;
            done.xdp = true;
        }
        // Last, so that the first packet finds everything in its place.
        self.ports
            .get(place.ingress)?
            .door
            .insert(&chain.matches, &loaded)
            .map_err(|error| {
                ApiError::failed(format!(
                    "{}: chain `{}`: {error}",
                    chain.places.matches, chain.name
                ))
            })?;
        done.matched = true;
        Ok(loaded)
    }

    fn kernel_segments(
        &self,
        chain: &ServiceChain,
        plan: &Plan,
        place: &Place,
        worker: Option<&Key>,
    ) -> Result<Vec<KernelSegment>, ApiError> {
        let hosts = self.circuit(&place.circuit)?.hosts.is_some();
        segments(plan, Space::Kernel)
            .map(|segment| {
                let exit = if segment.exit == PlannedExit::User {
                    let internal = worker
                        .and_then(|key| self.workers.get(key))
                        .and_then(|entry| entry.internal.as_ref());
                    // The first segment's packets come in at the port, later ones' over the internal link.
                    let sockets = match internal {
                        Some(internal) if segment.first_position > 0 => internal.door.sockets(),
                        _ => self.ports.get(place.ingress)?.door.sockets(),
                    };
                    Exit::User { sockets }
                } else {
                    Exit::Egress {
                        ifindex: place.egress,
                        peer: hosts,
                    }
                };
                Ok(KernelSegment {
                    first_position: segment.first_position,
                    functions: functions(chain, segment),
                    exit,
                })
            })
            .collect()
    }

    fn undo(
        &mut self,
        chain: &ServiceChain,
        place: &Place,
        spi: u32,
        worker: Option<&Key>,
        loaded: Option<LoadedChain>,
        done: &Steps,
    ) {
        let failed = |what: &str, error: &dyn std::fmt::Display| {
            tracing::warn!(chain = chain.name, %error, "{what} failed");
        };
        if done.matched
            && let Ok(port) = self.ports.get(place.ingress)
            && let Err(error) = port.door.remove(&chain.matches)
        {
            failed("taking the chain out of the classifier", &error);
        }
        if done.xdp {
            self.ports.release_xdp(place.ingress);
        }
        if done.napi
            && let Ok(circuit) = self.circuit_mut(&place.circuit)
        {
            circuit.release_napi(place.egress);
        }
        if let Some(entry) = worker.and_then(|key| self.workers.get_mut(key).ok()) {
            if done.chain_added
                && !entry.failed
                && let Err(error) = entry.handle.remove_chain(spi, 0)
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
        }
        drop(loaded);
        if let (true, Some(key)) = (done.worker_acquired, worker)
            && self.workers.release(key, &mut self.journal)
        {
            self.ports.unbind(key);
        }
    }
}

impl Deployed {
    /// Its worker was given up: a chain that may pass is taken out of the classifier, another one's packets are
    /// dropped for want of a worker.
    pub(crate) fn fail(&mut self, node: &Node) {
        if self.plan.on_failure == OnFailure::Pass && self.done.matched {
            let removed = node.ports.get(self.ingress).and_then(|port| {
                port.door
                    .remove(&self.chain.matches)
                    .map_err(ApiError::failed)
            });
            match removed {
                Ok(_) => self.done.matched = false,
                Err(error) => {
                    tracing::error!(chain = self.chain.name, %error, "its packets do not pass by");
                }
            }
        }
    }
}

/// The segments of one space.
fn segments(plan: &Plan, space: Space) -> impl Iterator<Item = &Segment> {
    plan.segments
        .iter()
        .filter(move |segment| segment.space == space)
}

/// The functions of a segment.
fn functions(chain: &ServiceChain, segment: &Segment) -> Vec<FunctionConfig> {
    chain.functions[segment.positions()]
        .iter()
        .map(|function| function.config.clone())
        .collect()
}
