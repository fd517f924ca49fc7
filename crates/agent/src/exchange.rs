//! Live change: the next generation of a chain takes the place of the running one while packets flow.
//!
//! Make before break. The new generation is laid out beside the old one, under the same path identifier; then the match is
//! led to it in one step, so that each packet is taken by exactly one of them and stays with it to the end: the front
//! door stamps its generation, and everything behind it is found by that. When no packet is left in the old one it is
//! freed. A match that differs is taken in before the old one is taken out. Until the whole file is done the way back is
//! the same exchange the other way round.
//!
//! Two things stay when a chain no longer needs them, because to take them away would lose what waits in a link's ring:
//! the front door's place at XDP, until the chain goes, and NAPI behind its egress, until its end hosts go. The XDP door lets
//! pass what is not its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use myelin_dataplane::ShaperStats;
use myelin_kernel::{Hook, Policer};
use myelin_packet::sojourn::Histogram;
use myelin_planner::Plan;
use myelin_policy::sla::Counts;
use myelin_spec::ServiceChain;

use crate::api::{ApiError, ChainSource};
use crate::chains::Order;
use crate::deploy::{Deployed, kernel_hook, match_error};
use crate::layout::{self, Job, Layout};
use crate::node::Node;
use crate::quiesce::{self, Urgent};
use crate::shaper;
use crate::sla;

/// How long packets on their way from the driver to tcx may take: a CPU's backlog when its softirqs wait for a thread.
const BACKLOG: Duration = Duration::from_millis(10);
/// Counters that stand still this long tell that what is missing was lost: a socket's ring that overflowed is counted nowhere.
const STILL: Duration = Duration::from_millis(30);
/// The same where a black box may have them: a program that waits for its turn on a busy machine.
const STILL_IN_BOX: Duration = Duration::from_millis(300);
/// Longest wait for the old generation, also when its counters never stand still.
const DRAIN_LIMIT: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_micros(200);

/// One form of a chain.
pub(crate) struct Form {
    pub(crate) chain: ServiceChain,
    /// The file it came from.
    pub(crate) source: Arc<ChainSource>,
    pub(crate) plan: Plan,
    pub(crate) generation: u16,
    /// What holds it to its profile at the front door.
    pub(crate) policer: Option<Arc<Policer>>,
    /// What stands behind the front door.
    pub(crate) layout: Box<dyn Layout>,
}

/// A change under way: packets are led to the new form, the old one still stands.
pub(crate) struct Exchange {
    former: Form,
    since: Instant,
    /// How long it took, once no packet is left in the former form.
    took: Option<Duration>,
}

impl Exchange {
    /// The chain's name.
    pub(crate) fn chain(&self) -> &str {
        &self.former.chain.name
    }

    /// When the first packet could see the new form.
    pub(crate) fn since(&self) -> Instant {
        self.since
    }
}

/// What the generations before the present one did.
#[derive(Debug, Default)]
pub(crate) struct Past {
    pub(crate) packets_in: u64,
    pub(crate) bytes_in: u64,
    pub(crate) policed: u64,
    pub(crate) policed_bytes: u64,
    pub(crate) packets_out: u64,
    pub(crate) drops: u64,
    /// The same for the SLA monitor, by place.
    pub(crate) counts: Counts,
    /// What the shaper did.
    pub(crate) shaper: ShaperStats,
    /// Of the generations whose way has as many sections as that of the one before the present.
    pub(crate) sections: Vec<Histogram>,
}

/// Packets of one generation.
struct Tally {
    entered: u64,
    /// Out again: at the egress, or dropped.
    gone: u64,
    /// Grows with every step of a packet.
    steps: u64,
}

impl Node {
    /// Lays the new form out beside the running one, and makes the door at XDP where it needs one.
    pub(crate) fn prepare(
        &mut self,
        running: &mut Deployed,
        chain: ServiceChain,
        order: Order<'_>,
        plan: Plan,
    ) -> Result<Form, ApiError> {
        let generation = running.form.generation.wrapping_add(1);
        let policer = self.policer(&chain, Some(&running.form))?;
        let layout = layout::build(
            self,
            Job {
                chain: &chain,
                plan: &plan,
                place: &running.place,
                spi: running.spi,
                policer: policer.as_ref(),
                generation,
                is_called_off: order.is_called_off,
            },
        )?;
        let next = Form {
            chain,
            source: Arc::clone(order.source),
            plan,
            generation,
            policer,
            layout,
        };
        if let Err(error) = self.need_hook(running, &next) {
            next.layout.retire(self);
            return Err(error);
        }
        Ok(next)
    }

    /// Leads the packets to a form that was laid out. On an error the chain is as it was, and that form is gone.
    pub(crate) fn exchange(
        &mut self,
        running: &mut Deployed,
        next: Form,
    ) -> Result<Exchange, ApiError> {
        match self.lead_to(running, &next) {
            Ok(since) => Ok(Exchange {
                former: std::mem::replace(&mut running.form, next),
                since,
                took: None,
            }),
            Err(error) => {
                next.layout.retire(self);
                Err(error)
            }
        }
    }

    /// Goes back to the old form.
    pub(crate) fn revert(&mut self, running: &mut Deployed, exchange: Exchange) {
        let Exchange { former, since, .. } = exchange;
        let exchange = match self.lead_to(running, &former) {
            Ok(since) => Exchange {
                former: std::mem::replace(&mut running.form, former),
                since,
                took: None,
            },
            Err(error) => {
                // Whole, though not what the file's owner asked for.
                tracing::error!(chain = running.form.chain.name, %error, "the change stays, it could not be undone");
                Exchange {
                    former,
                    since,
                    took: None,
                }
            }
        };
        self.wait_for_packets();
        self.complete(running, exchange);
    }

    /// Lets the last packets of the old form out. Notes how long the exchange took: from the moment when packets could see it
    /// to the last one of the old form.
    pub(crate) fn outlast(&self, running: &Deployed, exchange: &mut Exchange) {
        if exchange.took.is_some() {
            return;
        }
        if kernel_hook(&exchange.former.plan) != kernel_hook(&running.form.plan) {
            std::thread::sleep(BACKLOG.saturating_sub(exchange.since.elapsed()));
        }
        self.drain(&exchange.former);
        exchange.took = Some(exchange.since.elapsed());
    }

    /// Frees the old form, after its last packets. Returns how long the exchange took.
    pub(crate) fn complete(&mut self, running: &mut Deployed, mut exchange: Exchange) -> Duration {
        self.outlast(running, &mut exchange);
        self.settle(running, exchange.former);
        exchange.took.unwrap_or_default()
    }

    /// Waits until no packet is in a program any more that was led by what has changed since.
    pub(crate) fn wait_for_packets(&self) {
        if let Err(error) = quiesce::wait(&self.plane) {
            // Programs run for microseconds.
            tracing::warn!(%error, "waiting instead");
            std::thread::sleep(STILL);
        }
    }

    fn need_hook(&mut self, running: &mut Deployed, form: &Form) -> Result<(), ApiError> {
        if kernel_hook(&form.plan) == Hook::Xdp && !running.done.xdp {
            self.ports.acquire_xdp(running.place.ingress)?;
            running.done.xdp = true;
        }
        Ok(())
    }

    /// Leads the match from the form that runs to another one.
    fn lead_to(&mut self, running: &mut Deployed, to: &Form) -> Result<Instant, ApiError> {
        let ingress = running.place.ingress;
        self.need_hook(running, to)?;
        let from = &running.form;
        self.plane
            .follow(to.layout.entry(), from.layout.entry())
            .map_err(ApiError::failed)?;
        let door = &self.ports.get(ingress)?.door;
        let _urgent = Urgent::begin();
        let since = Instant::now();
        door.lead(&to.chain.matches, to.layout.entry())
            .map_err(|error| match_error(&to.chain, &error))?;
        if to.chain.matches != from.chain.matches {
            // A list of masks is written again only when nobody reads it any more.
            self.wait_for_packets();
            if let Err(error) = door.remove(&from.chain.matches) {
                if let Err(error) = door.remove(&to.chain.matches) {
                    tracing::error!(chain = to.chain.name, %error, "a match stays");
                }
                self.wait_for_packets();
                return Err(match_error(&from.chain, &error));
            }
            self.wait_for_packets();
        }
        Ok(since)
    }

    fn drain(&self, former: &Form) {
        let _urgent = Urgent::begin();
        let start = Instant::now();
        let mut last = self.tally(former);
        let mut moved = start;
        // What a black box makes of a packet, none or several, is its own affair.
        let has_box = former.plan.black_boxes().next().is_some();
        let still = if has_box { STILL_IN_BOX } else { STILL };
        let is_inside =
            |tally: &Tally| tally.gone < tally.entered || has_box && tally.gone != tally.entered;
        while is_inside(&last) && moved.elapsed() < still && start.elapsed() < DRAIN_LIMIT {
            std::thread::sleep(LOOK_EVERY);
            let now = self.tally(former);
            if now.steps != last.steps {
                moved = Instant::now();
            }
            last = now;
        }
    }

    fn tally(&self, form: &Form) -> Tally {
        let door = self.plane.counters().read(form.layout.entry().door_slot());
        let (out, _) = form.layout.departures(self);
        let mut tally = Tally {
            entered: door.packets,
            gone: door.drops + door.policed + out,
            steps: door.packets + door.drops + out,
        };
        let shaper = form.layout.shaper(self);
        let mut drops = shaper.drops();
        if form.plan.qdisc_shaping().is_some() {
            // Counted out before they came into the queue.
            drops -= shaper.full;
        }
        tally.gone += drops;
        tally.steps += drops + shaper.delayed;
        for hop in &form.plan.hops {
            let figures = form.layout.hop(self, hop);
            // What a function makes has to leave like what came in.
            tally.entered += figures.emitted;
            tally.gone += figures.drops;
            tally.steps += figures.packets_in + figures.drops + figures.emitted;
        }
        tally
    }

    /// Keeps the figures of a form that no packet is in, and frees it.
    fn settle(&mut self, running: &mut Deployed, former: Form) {
        if let Err(error) = self.plane.stand_alone(running.form.layout.entry()) {
            tracing::warn!(chain = former.chain.name, %error, "late packets are dropped");
        }
        if let Ok(port) = self.ports.get(running.place.ingress) {
            port.door.favour(running.form.layout.entry());
        }
        running.past.add(self, &former, &running.form.plan);
        former.layout.retire(self);
    }
}

impl Past {
    /// Adds the sojourn of what was before, unless black boxes cut the way in another manner then.
    pub(crate) fn add_to(&self, sections: &mut [Histogram]) {
        if sections.len() == self.sections.len() {
            for (section, past) in sections.iter_mut().zip(&self.sections) {
                section.merge(past);
            }
        }
    }

    /// Takes the sojourn of a form that is no more.
    pub(crate) fn keep(&mut self, mut sections: Vec<Histogram>) {
        self.add_to(&mut sections);
        self.sections = sections;
    }

    /// Adds what a form did that `next` comes after.
    fn add(&mut self, node: &Node, form: &Form, next: &Plan) {
        let door = node.plane.counters().read(form.layout.entry().door_slot());
        let (out, sections) = form.layout.departures(node);
        self.packets_in += door.packets;
        self.bytes_in += door.bytes;
        self.policed += door.policed;
        self.policed_bytes += door.policed_bytes;
        self.packets_out += out;
        self.drops += form
            .plan
            .hops
            .iter()
            .map(|hop| form.layout.hop(node, hop).drops)
            .sum::<u64>();
        self.counts.add(&sla::form_counts(form, node));
        // The interface's class goes on with its counts where it stays the same.
        let class = form.plan.qdisc_shaping();
        if class.is_none() || class != next.qdisc_shaping() {
            let shaper = form.layout.shaper(node);
            if class.is_some() {
                self.add_discipline(shaper);
            } else {
                self.add_shaper(&shaper);
            }
        }
        self.keep(sections);
    }

    /// What a queueing discipline dropped had been counted out before, by this form or by those before that had the same class;
    /// what waits there still leaves.
    fn add_discipline(&mut self, mut shaper: ShaperStats) {
        shaper.waiting = 0;
        self.packets_out = shaper::out(self.packets_out, &shaper);
        self.counts.packets_out = shaper::out(self.counts.packets_out, &shaper);
        self.add_shaper(&shaper);
    }

    /// What is in a shaper's queue goes on, or is lost, with the form; its other counts are kept.
    pub(crate) fn add_shaper(&mut self, shaper: &ShaperStats) {
        let lost = shaper.lost + shaper.waiting;
        let shaper = ShaperStats {
            lost,
            waiting: 0,
            ..*shaper
        };
        self.drops += shaper.drops();
        self.shaper.add(&shaper);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_former_discipline_s_drops_are_not_among_what_left() {
        let mut past = Past {
            packets_out: 100,
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
        assert_eq!((past.packets_out, past.drops), (80, 23));
        // The account that the SLA monitor makes of it is closed.
        past.counts.shaper = past.shaper.drops();
        assert_eq!(past.counts.packets_out, 80);
        assert_eq!(past.counts.missing(0), 0);
        // One within the chain's worker counts nothing out that it drops.
        past.add_shaper(&ShaperStats {
            full: 7,
            waiting: 2,
            ..ShaperStats::default()
        });
        assert_eq!((past.packets_out, past.counts.packets_out), (80, 80));
    }
}
