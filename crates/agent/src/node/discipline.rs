//! Shapers of egress interfaces: a queueing discipline for each interface, a class for each chain.
//!
//! With `fq`, the chain's last program gives each packet a departure time, and `fq` delays the
//! packet until then. The class is then the program's shaper. On kernels without `fq` the
//! discipline is HTB, with an HTB class for each chain.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use myelin_dataplane::ShaperStats;
use myelin_kernel::{Exit, Plane, Policer};
use myelin_linux::fq;
use myelin_linux::htb::{self, Class as HtbClass, Counters};
use myelin_linux::journal::{ForeignLink, Journal, Resource, ResourceGuard};
use myelin_linux::link::Link;
use myelin_linux::machine;
use myelin_linux::netlink::Netlink;
use myelin_spec::{FULL_FRAME, Limit, Shaping};

use crate::api::ApiError;
use crate::pool::{Lease, Pool, lock};

/// Longest wait of a removed chain for the packets in its class.
const MAX_DRAIN: Duration = Duration::from_secs(5);
/// `fq` drops packets that depart later than 10 s from now.
const FQ_HORIZON_NS: u64 = 9_000_000_000;
const CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// The queueing discipline of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum QdiscKind {
    /// Departure times (EDT).
    Fq,
    /// A class for each chain.
    Htb,
}

/// The disciplines of all interfaces, by index.
pub(crate) type Disciplines = Pool<u32, Discipline>;

/// The discipline of one interface. Dropping the value waits for the packets in the discipline,
/// then removes the discipline.
pub(crate) struct Discipline {
    link: Link,
    kind: QdiscKind,
    /// The classes by minor number, including classes that are being removed.
    classes: Mutex<BTreeMap<u16, ClassEntry>>,
    /// The latest departure time that a removed class set, ns (CLOCK_MONOTONIC).
    latest_ns: Mutex<u64>,
    _made: ResourceGuard,
}

/// A chain's SPI, the shaping, and the class.
type ClassEntry = (u32, Shaping, Weak<Class>);

/// A chain's class in a discipline; the chain's generations share the class. Dropping the value
/// waits until the class is empty, then removes the class.
pub(crate) struct Class {
    plane: Arc<Plane>,
    discipline: Lease<u32, Discipline>,
    minor: u16,
    shaping: Shaping,
    /// With `fq`: the shaper that sets departure times.
    shaper: Option<Arc<Policer>>,
}

impl Class {
    /// Returns the class of a chain on an interface. If an earlier generation's class has the same
    /// shaping, shares that class, so its bucket stays. Otherwise makes a new class.
    ///
    /// # Errors
    /// The interface has a discipline that Myelin did not make, or a system error.
    pub(crate) fn acquire(
        (plane, disciplines): (&Arc<Plane>, &Disciplines),
        ifindex: u32,
        spi: u32,
        shaping: Shaping,
        journal: &Journal,
    ) -> Result<Arc<Self>, ApiError> {
        let mut netlink = Netlink::open().map_err(ApiError::failed)?;
        let discipline = disciplines.acquire(&ifindex, || {
            let link = netlink.link_by_index(ifindex).map_err(ApiError::failed)?;
            Discipline::create(&mut netlink, link, journal)
        })?;
        let mut classes = lock(&discipline.classes);
        let mut existing = classes.values();
        let same = existing.find(|(chain, held, _)| (*chain, *held) == (spi, shaping));
        if let Some(class) = same.and_then(|(.., class)| class.upgrade()) {
            return Ok(class);
        }
        let free = (1..=htb::MAX_CLASSES).find(|minor| !classes.contains_key(minor));
        let minor = free.ok_or_else(|| {
            ApiError::failed(format!(
                "interface {} has {} shaped chains, which is the maximum: write `enforce: policer`",
                discipline.link.name,
                htb::MAX_CLASSES
            ))
        })?;
        let shaper = match discipline.kind {
            QdiscKind::Fq => {
                let shaper = plane.shaper(&shaping.profile(), max_delay_ns(&shaping));
                Some(shaper.map_err(ApiError::failed)?)
            }
            QdiscKind::Htb => {
                discipline.add_class(&mut netlink, minor, &shaping)?;
                None
            }
        };
        let class = Arc::new(Self {
            plane: Arc::clone(plane),
            discipline: discipline.clone(),
            minor,
            shaping,
            shaper,
        });
        classes.insert(minor, (spi, shaping, Arc::downgrade(&class)));
        Ok(class)
    }

    /// The exit that sends packets to the class.
    pub(crate) fn exit(&self) -> Exit {
        let ifindex = self.discipline.link.index;
        match &self.shaper {
            Some(shaper) => Exit::Departure {
                ifindex,
                shaper: Arc::clone(shaper),
            },
            None => Exit::Qdisc {
                ifindex,
                class: htb::priority(self.minor),
            },
        }
    }

    /// The name of the class's discipline.
    pub(crate) fn kind(&self) -> &'static str {
        match self.discipline.kind {
            QdiscKind::Fq => "fq",
            QdiscKind::Htb => "htb",
        }
    }

    /// The shaper's counts.
    pub(crate) fn stats(&self) -> ShaperStats {
        if let Some(shaper) = &self.shaper {
            let counters = self.plane.shaper_counters(shaper).unwrap_or_default();
            return ShaperStats {
                delayed: counters.delayed,
                late: counters.late,
                big: counters.oversized,
                ..ShaperStats::default()
            };
        }
        let counted = Netlink::open().and_then(|mut netlink| {
            self.discipline
                .read_class_counters(&mut netlink, self.minor)
        });
        let Counters { drops, waiting, .. } = counted.unwrap_or_default();
        ShaperStats {
            full: drops,
            waiting,
            ..ShaperStats::default()
        }
    }

    fn drain_and_remove(&self) -> myelin_linux::Result<()> {
        let Discipline { link, .. } = &*self.discipline;
        let mut netlink = Netlink::open()?;
        let limit = Duration::from_nanos(self.shaping.delay_ns).min(MAX_DRAIN);
        let start = Instant::now();
        while self
            .discipline
            .read_class_counters(&mut netlink, self.minor)?
            .waiting
            > 0
            && start.elapsed() < limit
        {
            std::thread::sleep(CHECK_INTERVAL);
        }
        netlink.apply([htb::delete_class(&link.id(), self.minor)])
    }
}

impl Drop for Class {
    fn drop(&mut self) {
        if let Some(shaper) = &self.shaper {
            // Waiting packets stay in the discipline, which is removed after its last class.
            let counters = self.plane.shaper_counters(shaper).unwrap_or_default();
            let mut latest_ns = lock(&self.discipline.latest_ns);
            *latest_ns = counters.latest_ns.max(*latest_ns);
        } else if let Err(error) = self.drain_and_remove()
            && !error.is_not_found()
        {
            // The kernel has removed the classes of a removed link.
            tracing::warn!(interface = self.discipline.link.name, %error, "cannot remove a class");
        }
        lock(&self.discipline.classes).remove(&self.minor);
    }
}

impl Drop for Discipline {
    fn drop(&mut self) {
        if self.kind == QdiscKind::Fq {
            let now_ns = myelin_measure::clock::now_ns();
            std::thread::sleep(time_until_empty(*lock(&self.latest_ns), now_ns));
        }
    }
}

impl Discipline {
    fn create(netlink: &mut Netlink, link: Link, journal: &Journal) -> Result<Self, ApiError> {
        let foreign = htb::foreign_qdisc(netlink, &link.id()).map_err(ApiError::failed)?;
        if let Some(kind) = foreign {
            return Err(ApiError::failed(format!(
                "interface {} has the queueing discipline `{kind}`, which a shaper would replace: write `enforce: policer`, give a \
                 function `space: user`, or remove the discipline with `tc qdisc del dev {} root`",
                link.name, link.name
            )));
        }
        let id = link.id();
        let recorded = ForeignLink::new(netlink, &link).map_err(ApiError::failed)?;
        let made = journal.make(Resource::Qdisc(recorded), || {
            if netlink.apply([fq::create(&id)]).is_ok() {
                return Ok(QdiscKind::Fq);
            }
            netlink.apply([htb::create(&id)]).map(|()| QdiscKind::Htb)
        });
        let (made, kind) = made.map_err(ApiError::failed)?;
        Ok(Self {
            link,
            kind,
            classes: Mutex::default(),
            latest_ns: Mutex::new(0),
            _made: made,
        })
    }

    fn add_class(
        &self,
        netlink: &mut Netlink,
        minor: u16,
        shaping: &Shaping,
    ) -> Result<(), ApiError> {
        let kernel = machine::release();
        if shaping.packets.is_some() && !htb::supports_packet_limits(&kernel) {
            return Err(ApiError::failed(format!(
                "interface {}: HTB of Linux {kernel} cannot limit packets, only bits (5.17 and newer can): write `enforce: policer`, \
                 give a function `space: user`, or a `rate` in bits alone",
                self.link.name
            )));
        }
        let requests =
            htb::add_class(&self.link, minor, &htb_class(shaping)).map_err(ApiError::failed)?;
        netlink.apply(requests).map_err(|error| {
            // Remove a class that was added only in part.
            let _ = netlink.apply([htb::delete_class(&self.link.id(), minor)]);
            ApiError::failed(error)
        })
    }

    fn read_class_counters(
        &self,
        netlink: &mut Netlink,
        minor: u16,
    ) -> myelin_linux::Result<Counters> {
        let counters = htb::counters(netlink, &self.link.id())?;
        let found = counters.into_iter().find(|(number, _)| *number == minor);
        Ok(found.map_or_else(Counters::default, |(_, counters)| counters))
    }
}

/// Returns the time until `fq` is empty, if its last packet departs at `latest_ns`, plus a
/// tolerance for the timer of `fq`. Returns zero if no packet waits.
fn time_until_empty(latest_ns: u64, now_ns: u64) -> Duration {
    if latest_ns == 0 {
        return Duration::ZERO;
    }
    let until = Duration::from_nanos(latest_ns) + CHECK_INTERVAL;
    until
        .saturating_sub(Duration::from_nanos(now_ns))
        .min(MAX_DRAIN)
}

/// Longest wait of a packet for its departure: the agreed delay, or the time that a full queue
/// takes to drain. A limit in bits assumes full frames.
fn max_delay_ns(shaping: &Shaping) -> u64 {
    let queued = |rate: u64, each: u64| {
        let ns = u128::from(shaping.queue) * u128::from(each) * 1_000_000_000 / u128::from(rate);
        u64::try_from(ns).unwrap_or(u64::MAX)
    };
    let of_packets = shaping.packets.map(|limit| queued(limit.rate, 1));
    let of_frames = shaping.bits.map(|limit| queued(limit.rate, FULL_FRAME * 8));
    [of_packets, of_frames]
        .into_iter()
        .flatten()
        .fold(shaping.delay_ns.min(FQ_HORIZON_NS), u64::min)
}

/// The HTB class for this shaping. A kernel queue has no time limit, so its length is limited to
/// the packets that leave within the delay. A limit in bits assumes full frames.
fn htb_class(shaping: &Shaping) -> HtbClass {
    let limit = |limit: Limit| htb::Limit {
        rate: limit.rate,
        burst: limit.burst,
    };
    let within_delay = |rate: u64| {
        let packets = u128::from(rate) * u128::from(shaping.delay_ns) / 1_000_000_000;
        u32::try_from(packets).unwrap_or(u32::MAX).max(1)
    };
    let of_packets = shaping.packets.map(|limit| within_delay(limit.rate));
    let of_frames = shaping
        .bits
        .map(|limit| within_delay(limit.rate / 8 / FULL_FRAME));
    HtbClass {
        packets: shaping.packets.map(limit),
        bits: shaping.bits.map(limit),
        queue: [of_packets, of_frames]
            .into_iter()
            .flatten()
            .fold(shaping.queue, u32::min),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_htb_queue_holds_the_packets_that_leave_within_the_delay() {
        let limit = |rate, burst| Some(Limit { rate, burst });
        let queue = |packets, bits, delay_ns| {
            let shaping = Shaping {
                packets,
                bits,
                queue: 128,
                delay_ns,
                tolerance_ns: 0,
            };
            htb_class(&shaping).queue
        };
        assert_eq!(queue(limit(20_000, 4), None, 1_000_000), 20);
        assert_eq!(queue(limit(20_000, 4), None, 1_000_000_000), 128);
        assert_eq!(queue(limit(1, 1), None, 1000), 1);
        let bits = limit(1514 * 8 * 1000, 20_000);
        assert_eq!(queue(None, bits, 10_000_000), 10);
        assert_eq!(queue(limit(5000, 4), bits, 1_000_000), 1);
    }

    #[test]
    fn removal_waits_until_the_last_packet_departs() {
        let ms = Duration::from_millis;
        let now_ns = 3_600_000_000_000;
        assert_eq!(time_until_empty(0, now_ns), Duration::ZERO);
        assert_eq!(
            time_until_empty(now_ns - 1_000_000_000, now_ns),
            Duration::ZERO
        );
        assert_eq!(
            time_until_empty(now_ns + 20_000_000, now_ns),
            ms(20) + CHECK_INTERVAL
        );
        assert_eq!(time_until_empty(now_ns + 9_000_000_000, now_ns), MAX_DRAIN);
        // A machine that has just booted.
        assert_eq!(time_until_empty(0, 10), Duration::ZERO);
    }

    #[test]
    fn max_delay_is_the_least_of_delay_queue_and_horizon() {
        let limit = |delay_ns, queue| {
            let packets = Some(Limit {
                rate: 1000,
                burst: 4,
            });
            max_delay_ns(&Shaping {
                packets,
                bits: None,
                queue,
                delay_ns,
                tolerance_ns: 0,
            })
        };
        assert_eq!(limit(5_000_000, 64), 5_000_000);
        assert_eq!(limit(5_000_000, 2), 2_000_000);
        assert_eq!(limit(u64::MAX, u32::MAX), FQ_HORIZON_NS);
    }
}
