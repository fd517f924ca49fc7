//! The chains of this node: those that run, and the names of those that a request works on.
//!
//! A request reserves the name of a chain before it changes the chain, for as long as the work takes. The list is locked only while
//! it is looked at, so readers never wait for the work.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use myelin_dataplane::ShaperStats;
use myelin_kernel::{Hook, Plane, Policer};
use myelin_packet::sojourn::Histogram;
use myelin_planner::Plan;
use myelin_policy::sla::{Counts, HopCounts};
use myelin_spec::{Hook as HookSpec, OnFailure, ServiceChain};

use crate::api::{ApiError, ChainSource, HostInfo};
use crate::node::circuit::CircuitLease;
use crate::node::layout::{Figures, FrontDoor, Layout};
use crate::node::ports::{AtXdp, PortLease};
use crate::node::reserved::Reserved;
use crate::pool::{alone, lock};

/// Where a chain lies.
#[derive(Clone)]
pub(crate) struct Place {
    /// The two ports; `None` between DPDK devices, which no part of the kernel sees.
    pub(crate) circuit: Option<CircuitLease>,
    /// Whether it enters where the circuit's maker leaves.
    pub(crate) is_turned: bool,
    /// The chain that made the circuit: itself, or its reverse.
    pub(crate) made_by: String,
    /// The interfaces or devices where packets enter and leave.
    pub(crate) ingress: String,
    pub(crate) egress: String,
    /// The end hosts, where Myelin made them.
    pub(crate) hosts: Vec<HostInfo>,
}

impl Place {
    /// The circuit, with the ports where packets enter and leave.
    ///
    /// # Errors
    /// The chain lies between devices of DPDK.
    pub(crate) fn ports(&self) -> Result<(&CircuitLease, &PortLease, &PortLease), ApiError> {
        let circuit = self.circuit.as_ref();
        let circuit = circuit.ok_or_else(|| {
            ApiError::failed("a chain between devices of DPDK has no ports of the kernel")
        })?;
        let (one, other) = (&circuit.ingress, &circuit.egress);
        Ok(if self.is_turned {
            (circuit, other, one)
        } else {
            (circuit, one, other)
        })
    }
}

/// One form (generation) of a chain.
pub(crate) struct Form {
    pub(crate) chain: ServiceChain,
    /// The file it came from.
    pub(crate) source: Arc<ChainSource>,
    pub(crate) plan: Plan,
    pub(crate) generation: u16,
    /// What holds it to its profile at the kernel's front door.
    pub(crate) policer: Option<Arc<Policer>>,
    /// What stands behind the front door.
    pub(crate) layout: Box<dyn Layout>,
}

impl Form {
    /// What it counted in the form that the SLA monitor takes.
    pub(crate) fn hops(&self, figures: &Figures) -> Vec<HopCounts> {
        let hops = self.plan.hops.iter().zip(&figures.hops);
        hops.map(|(hop, counted)| HopCounts {
            name: hop.name.clone(),
            kind: hop.kind.clone(),
            position: hop.position,
            is_black_box: hop.is_black_box(),
            counted: *counted,
        })
        .collect()
    }

    /// Whether the front door goes on counting where this form's predecessor stopped, instead of from zero.
    fn continues_door_counts(&self) -> bool {
        matches!(self.layout.front_door(), FrontDoor::Worker(..))
    }
}

/// A chain that runs.
pub(crate) struct Running {
    pub(crate) name: String,
    pub(crate) spi: u32,
    pub(crate) place: Place,
    pub(crate) started: Instant,
    versions: Mutex<Versions>,
}

/// What changes while a chain runs. Two write it: the request that has reserved the chain's name, and the supervision when it gives
/// up a process.
pub(crate) struct Versions {
    pub(crate) form: Arc<Form>,
    /// The form before, while its last packets leave.
    pub(crate) former: Option<Arc<Form>>,
    pub(crate) past: Past,
    pub(crate) at_xdp: Option<AtXdp>,
    /// Whether its packets are led to it.
    pub(crate) is_led: bool,
}

impl Running {
    /// A chain whose packets are led to its first form.
    pub(crate) fn new(spi: u32, place: Place, form: Form, at_xdp: Option<AtXdp>) -> Self {
        Self {
            name: form.chain.name.clone(),
            spi,
            place,
            started: Instant::now(),
            versions: Mutex::new(Versions {
                form: Arc::new(form),
                former: None,
                past: Past::default(),
                at_xdp,
                is_led: true,
            }),
        }
    }

    /// The form it has now.
    pub(crate) fn form(&self) -> Arc<Form> {
        Arc::clone(&lock(&self.versions).form)
    }

    /// Changes its versions.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Versions) -> T) -> T {
        change(&mut lock(&self.versions))
    }

    /// All that it counted, read at about the same time.
    pub(crate) fn read(&self, plane: &Plane) -> View {
        let (form, former, mut past) = {
            let versions = lock(&self.versions);
            (
                Arc::clone(&versions.form),
                versions.former.clone(),
                versions.past.clone(),
            )
        };
        if let Some(former) = former {
            past.add(&former, &former.layout.read(plane), &form.plan);
        }
        let figures = form.layout.read(plane);
        View {
            form,
            figures,
            past,
        }
    }

    /// Frees all that only this chain needed, once no reader looks at it any more.
    pub(crate) fn end(self: Arc<Self>) {
        let Self {
            place, versions, ..
        } = alone(self);
        let versions = versions.into_inner();
        let versions = versions.unwrap_or_else(PoisonError::into_inner);
        drop(versions.at_xdp);
        drop(versions.former.map(alone));
        drop(alone(versions.form));
        // The ports go after all that stands behind them.
        drop(place);
    }

    /// One of its processes was given up: a chain that may pass is taken out of the classifier, the packets of any other are dropped for
    /// want of a worker.
    pub(crate) fn fail(&self) {
        let mut versions = lock(&self.versions);
        let Form { chain, plan, .. } = &*versions.form;
        if plan.on_failure != OnFailure::Pass || !versions.is_led {
            return;
        }
        // A worker that is its own front door takes nothing while it is gone.
        if matches!(versions.form.layout.front_door(), FrontDoor::Worker(..)) {
            return;
        }
        let removed = self
            .place
            .ports()
            .and_then(|(_, port, _)| port.door().remove(&chain.matches).map_err(ApiError::failed));
        match removed {
            Ok(_) => versions.is_led = false,
            Err(error) => {
                tracing::error!(chain = chain.name, %error, "its packets do not pass by");
            }
        }
    }
}

/// What a chain counted, over all generations.
pub(crate) struct View {
    pub(crate) form: Arc<Form>,
    /// Of the present generation.
    pub(crate) figures: Figures,
    /// Of those before.
    past: Past,
}

impl View {
    /// Where its packets went. What black boxes hold is not counted: it may come out yet.
    pub(crate) fn counts(&self) -> Counts {
        let mut counts = self.past.counts.clone();
        counts.add(&ends(&self.figures));
        let mut hops = self.form.hops(&self.figures);
        for hop in &mut hops {
            hop.counted = hop.counted.settled();
        }
        counts.add_hops(&hops);
        counts.shaper = self.shaper().drops();
        counts.packets_out = self.packets_out();
        counts
    }

    /// Packets that its functions and its shaper dropped, and that black boxes hold.
    pub(crate) fn drops(&self) -> u64 {
        let past: u64 = self.past.counts.drops.values().sum();
        let now = self.figures.hops.iter().map(|hop| hop.drops);
        past + now.sum::<u64>() + self.shaper().drops()
    }

    /// Packets that left at its egress.
    pub(crate) fn packets_out(&self) -> u64 {
        let counted = self.past.counts.packets_out + self.figures.packets_out;
        if self.form.plan.qdisc_shaping().is_some() {
            return shaped_out(counted, &self.figures.shaper);
        }
        counted
    }

    /// What its shaper did.
    pub(crate) fn shaper(&self) -> ShaperStats {
        let mut all = self.past.shaper;
        all.add(&self.figures.shaper);
        all
    }

    /// The sojourn of the packets that left, by section.
    pub(crate) fn sections(&self) -> Vec<Histogram> {
        let mut sections = self.figures.sections.clone();
        self.past.add_to(&mut sections);
        sections
    }
}

/// What the generations before the present one counted.
#[derive(Debug, Clone, Default)]
pub(crate) struct Past {
    counts: Counts,
    shaper: ShaperStats,
    /// Of the generations whose way has as many sections as that of the one before the present.
    sections: Vec<Histogram>,
}

impl Past {
    /// Adds what a form counted that `next` comes after. What is still inside it is lost.
    pub(crate) fn add(&mut self, form: &Form, figures: &Figures, next: &Plan) {
        let mut counts = ends(figures);
        if form.continues_door_counts() {
            counts = Counts {
                packets_out: counts.packets_out,
                bytes_out: counts.bytes_out,
                ..Counts::default()
            };
        }
        counts.add_hops(&form.hops(figures));
        self.counts.add(&counts);
        // The interface's class goes on with its counts where it stays the same.
        let class = form.plan.qdisc_shaping();
        if class.is_none() {
            self.add_shaper(&figures.shaper);
        } else if class != next.qdisc_shaping() {
            self.add_discipline(figures.shaper);
        }
        let mut sections = figures.sections.clone();
        self.add_to(&mut sections);
        self.sections = sections;
    }

    /// Adds the sojourn of what was before, unless black boxes cut the way in another manner then.
    fn add_to(&self, sections: &mut [Histogram]) {
        if sections.len() == self.sections.len() {
            for (section, past) in sections.iter_mut().zip(&self.sections) {
                section.merge(past);
            }
        }
    }

    /// What a queueing discipline dropped had been counted out before, by this form or by those before that had the same class;
    /// what waits there still leaves.
    fn add_discipline(&mut self, mut shaper: ShaperStats) {
        shaper.waiting = 0;
        self.counts.packets_out = shaped_out(self.counts.packets_out, &shaper);
        self.add_shaper(&shaper);
    }

    /// What is in a shaper's queue goes on, or is lost, with the form; its other counts are kept.
    fn add_shaper(&mut self, shaper: &ShaperStats) {
        self.shaper.add(&ShaperStats {
            lost: shaper.lost + shaper.waiting,
            waiting: 0,
            ..*shaper
        });
    }
}

/// At the front door and at the way out.
fn ends(figures: &Figures) -> Counts {
    let Figures { door, .. } = figures;
    Counts {
        packets_in: door.packets,
        bytes_in: door.bytes,
        policed: door.policed,
        policed_bytes: door.policed_bytes,
        door: door.drops,
        packets_out: figures.packets_out,
        bytes_out: figures.bytes_out.unwrap_or_default(),
        ..Counts::default()
    }
}

/// Of the packets that the last program of a chain has counted out, those that have left the queueing discipline behind it. What
/// came too late or was too big the program itself has dropped, before it counted.
fn shaped_out(counted: u64, discipline: &ShaperStats) -> u64 {
    counted.saturating_sub(discipline.full + discipline.waiting)
}

/// The hook at which the front door takes the chain's packets.
pub(crate) fn kernel_hook(plan: &Plan) -> Hook {
    match plan.hook {
        HookSpec::Xdp => Hook::Xdp,
        HookSpec::Tcx | HookSpec::Auto => Hook::Tcx,
    }
}

/// All chains, by name.
#[derive(Default)]
pub(crate) struct Chains {
    running: Mutex<BTreeMap<String, Arc<Running>>>,
    /// Names of the chains that requests work on.
    pub(crate) reserved: Reserved,
}

impl Chains {
    /// The chain of that name, if it runs.
    pub(crate) fn get(&self, name: &str) -> Option<Arc<Running>> {
        lock(&self.running).get(name).cloned()
    }

    /// As [`get`](Self::get), with an error that names the remedy.
    ///
    /// # Errors
    /// No such chain runs.
    pub(crate) fn expect(&self, name: &str) -> Result<Arc<Running>, ApiError> {
        self.get(name).ok_or_else(|| {
            ApiError::failed(format!(
                "no chain `{name}` runs; `myelin ps` lists those that do"
            ))
        })
    }

    /// As [`get`](Self::get), for one that ran a moment ago and is being `worked_on`.
    ///
    /// # Errors
    /// It was removed.
    pub(crate) fn expect_while(
        &self,
        worked_on: &str,
        name: &str,
    ) -> Result<Arc<Running>, ApiError> {
        self.get(name).ok_or_else(|| {
            let text = format!("chain `{name}` was removed while it was {worked_on}");
            ApiError::failed(text)
        })
    }

    /// All that run, by name.
    pub(crate) fn all(&self) -> Vec<Arc<Running>> {
        lock(&self.running).values().cloned().collect()
    }

    /// Names of the chains that run, and of those that requests work on.
    pub(crate) fn names(&self) -> BTreeSet<String> {
        let mut names = self.reserved.names();
        names.extend(lock(&self.running).keys().cloned());
        names
    }

    /// Enters a chain that now runs, under a name that is reserved.
    pub(crate) fn insert(&self, running: Arc<Running>) {
        let name = running.name.clone();
        lock(&self.running).insert(name, running);
    }

    /// Takes a chain out whose name is reserved.
    pub(crate) fn remove(&self, name: &str) -> Option<Arc<Running>> {
        lock(&self.running).remove(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_former_discipline_s_drops_are_not_among_what_left() {
        let mut past = Past {
            counts: Counts {
                packets_in: 103,
                packets_out: 100,
                ..Counts::default()
            },
            ..Past::default()
        };
        past.add_discipline(ShaperStats {
            full: 20,
            late: 3,
            waiting: 5,
            ..ShaperStats::default()
        });
        assert_eq!((past.counts.packets_out, past.shaper.drops()), (80, 23));
        // The account that the SLA monitor makes of it is closed.
        past.counts.shaper = past.shaper.drops();
        assert_eq!(past.counts.missing(0), 0);
    }

    #[test]
    fn what_was_never_counted_out_is_not_taken_off_it() {
        let of_fq = ShaperStats {
            delayed: 30,
            late: 20,
            big: 4,
            ..ShaperStats::default()
        };
        assert_eq!(shaped_out(76, &of_fq), 76);
        let of_htb = ShaperStats {
            full: 20,
            waiting: 4,
            ..ShaperStats::default()
        };
        assert_eq!(shaped_out(100, &of_htb), 76);
        // They are read one after the other.
        assert_eq!(shaped_out(10, &of_htb), 0);
    }
}
