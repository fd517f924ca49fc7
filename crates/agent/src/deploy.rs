//! One chain on its circuit: laid out, switched on at its front door; and the way back.

use std::sync::Arc;
use std::time::Instant;

use myelin_kernel::{Hook, Policer};
use myelin_packet::sojourn::Histogram;
use myelin_planner::Plan;
use myelin_spec::{Hook as HookSpec, OnFailure, ServiceChain};

use crate::api::ApiError;
use crate::chains::Order;
use crate::exchange::{Form, Past};
use crate::layout::{self, Job};
use crate::node::Node;

/// A chain that runs.
pub(crate) struct Deployed {
    /// How it runs now.
    pub(crate) form: Form,
    pub(crate) spi: u32,
    pub(crate) place: Place,
    pub(crate) started: Instant,
    /// What its former generations did.
    pub(crate) past: Past,
    pub(crate) done: Steps,
}

/// What was done at the front door, so that exactly that is undone.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    pub(crate) xdp: bool,
    matched: bool,
}

/// Which interfaces a chain lies between, and on whose circuit.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// The chain whose circuit this one lies on: itself, or its reverse.
    pub(crate) circuit: String,
    pub(crate) ingress: u32,
    pub(crate) egress: u32,
}

impl Node {
    /// Lays a planned chain out, and makes the door at XDP where it needs one; on failure everything of it is undone.
    pub(crate) fn deploy(
        &mut self,
        chain: ServiceChain,
        order: Order<'_>,
        plan: Plan,
        place: Place,
    ) -> Result<Deployed, ApiError> {
        let (spi, generation) = (self.take_spi(), 0);
        let policer = self.policer(&chain, None)?;
        let layout = layout::build(
            self,
            Job {
                chain: &chain,
                plan: &plan,
                place: &place,
                spi,
                policer: policer.as_ref(),
                generation,
                is_called_off: order.is_called_off,
            },
        )?;
        let mut deployed = Deployed {
            form: Form {
                chain,
                source: Arc::clone(order.source),
                plan,
                generation,
                policer,
                layout,
            },
            spi,
            place,
            started: Instant::now(),
            past: Past::default(),
            done: Steps::default(),
        };
        match self.prepare_door(&mut deployed) {
            Ok(()) => Ok(deployed),
            Err(error) => {
                self.undeploy(deployed);
                Err(error)
            }
        }
    }

    /// What holds a chain to its profile at the front door: that of the form before, if the profile is the same, so that a
    /// live change gives nobody a full bucket.
    pub(crate) fn policer(
        &self,
        chain: &ServiceChain,
        former: Option<&Form>,
    ) -> Result<Option<Arc<Policer>>, ApiError> {
        if !chain.sla.is_policed() {
            return Ok(None);
        }
        let profile = chain.sla.policing_profile();
        let same = former
            .and_then(|form| form.policer.as_ref())
            .filter(|policer| *policer.profile() == profile);
        match same {
            Some(policer) => Ok(Some(Arc::clone(policer))),
            None => self.plane.policer(&profile).map_err(ApiError::failed),
        }
    }

    /// Takes a chain out of service and frees all that only it needed.
    pub(crate) fn undeploy(&mut self, deployed: Deployed) {
        let Deployed {
            form, place, done, ..
        } = deployed;
        if done.matched
            && let Ok(port) = self.ports.get(place.ingress)
            && let Err(error) = port.door.remove(&form.chain.matches)
        {
            tracing::warn!(chain = form.chain.name, %error, "taking the chain out of the classifier failed");
        }
        if done.xdp {
            self.ports.release_xdp(place.ingress);
        }
        form.layout.retire(self);
    }

    fn prepare_door(&mut self, deployed: &mut Deployed) -> Result<(), ApiError> {
        let ingress = deployed.place.ingress;
        let Form { plan, layout, .. } = &deployed.form;
        if kernel_hook(plan) == Hook::Xdp {
            // A door that is made for the chain from the start need not be replaced, for which the kernel waits.
            self.ports.get(ingress)?.door.favour(layout.entry());
            self.ports.acquire_xdp(ingress)?;
            deployed.done.xdp = true;
        }
        Ok(())
    }

    /// Lets the chain's packets in.
    pub(crate) fn switch_on(&mut self, deployed: &mut Deployed) -> Result<(), ApiError> {
        let ingress = deployed.place.ingress;
        let Form { chain, layout, .. } = &deployed.form;
        // Last, so that the first packet finds everything in its place.
        self.ports
            .get(ingress)?
            .door
            .insert(&chain.matches, layout.entry())
            .map_err(|error| match_error(chain, &error))?;
        deployed.done.matched = true;
        Ok(())
    }
}

impl Deployed {
    /// One of its processes was given up: a chain that may pass is taken out of the classifier, another one's packets are
    /// dropped for want of a worker.
    pub(crate) fn fail(&mut self, node: &Node) {
        let Form { chain, plan, .. } = &self.form;
        if plan.on_failure == OnFailure::Pass && self.done.matched {
            let removed = node
                .ports
                .get(self.place.ingress)
                .and_then(|port| port.door.remove(&chain.matches).map_err(ApiError::failed));
            match removed {
                Ok(_) => self.done.matched = false,
                Err(error) => {
                    tracing::error!(chain = chain.name, %error, "its packets do not pass by");
                }
            }
        }
    }

    /// Whether one of its processes was given up.
    pub(crate) fn is_failed(&self, node: &Node) -> bool {
        self.form.layout.is_failed(node)
    }

    /// Packets that left at the egress since the chain came up, and the sojourn of each of them, by section.
    pub(crate) fn departures(&self, node: &Node) -> (u64, Vec<Histogram>) {
        let (out, mut sections) = self.form.layout.departures(node);
        self.past.add_to(&mut sections);
        (self.past.packets_out + out, sections)
    }
}

/// The hook at which the front door takes the chain's packets.
pub(crate) fn kernel_hook(plan: &Plan) -> Hook {
    match plan.hook {
        HookSpec::Xdp => Hook::Xdp,
        HookSpec::Tcx | HookSpec::Auto => Hook::Tcx,
    }
}

/// An error at the chain's match in its file.
pub(crate) fn match_error(chain: &ServiceChain, error: &myelin_kernel::Error) -> ApiError {
    ApiError::failed(format!(
        "{}: chain `{}`: {error}",
        chain.places.matches, chain.name
    ))
}
