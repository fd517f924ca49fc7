//! Shapers of egress interfaces: one queueing discipline an interface, one class a chain, while chains need them.
//!
//! Where the kernel has `fq`, that holds packets back until the departure time that the chain's last program gives them; a class
//! is the shaper that this asks then. Else the discipline is HTB, and the class one of its own.

use std::collections::{BTreeMap, btree_map};
use std::sync::Arc;
use std::time::{Duration, Instant};

use myelin_dataplane::ShaperStats;
use myelin_kernel::{Exit, Plane, Policer};
use myelin_linux::fq;
use myelin_linux::htb::{self, Class, Counters};
use myelin_linux::journal::{Journal, Resource};
use myelin_linux::link::Link;
use myelin_linux::machine::Machine;
use myelin_linux::netlink::Netlink;
use myelin_spec::{FULL_FRAME, Limit, Shaping};

use crate::api::ApiError;

/// How long a chain that goes waits for what is in its class, at most.
const MAX_DRAIN: Duration = Duration::from_secs(5);
/// What departs later than 10 s from now, `fq` drops.
const FQ_HORIZON_NS: u64 = 9_000_000_000;
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// A class of an interface's discipline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClassId {
    ifindex: u32,
    minor: u16,
}

impl ClassId {
    fn priority(self) -> u32 {
        htb::priority(self.minor)
    }
}

/// What an interface can be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Departure times (EDT).
    Fq,
    /// Classes.
    Htb,
}

/// A class, and who needs it.
struct Entry {
    spi: u32,
    shaping: Shaping,
    /// Generations of the chain.
    users: u32,
    /// What tells departure times, with `fq`.
    shaper: Option<Arc<Policer>>,
}

/// The discipline of one interface.
struct Discipline {
    link: Link,
    resource: Resource,
    kind: Kind,
    classes: BTreeMap<u16, Entry>,
    /// The latest departure that a class which is gone gave a packet, ns (CLOCK_MONOTONIC).
    latest_ns: u64,
}

/// Those of all interfaces.
#[derive(Default)]
pub(crate) struct Disciplines(BTreeMap<u32, Discipline>);

impl Disciplines {
    /// The class of a chain on an interface: that of a generation before, if it is to be the same, so that its bucket goes
    /// on; else a new one.
    ///
    /// # Errors
    /// The interface has a discipline of somebody else, or the kernel refuses.
    pub(crate) fn acquire(
        &mut self,
        plane: &Plane,
        ifindex: u32,
        spi: u32,
        shaping: Shaping,
        journal: &mut Journal,
    ) -> Result<ClassId, ApiError> {
        let mut netlink = Netlink::open().map_err(ApiError::failed)?;
        let discipline = match self.0.entry(ifindex) {
            btree_map::Entry::Occupied(there) => there.into_mut(),
            btree_map::Entry::Vacant(free) => {
                let link = netlink.link_by_index(ifindex).map_err(ApiError::failed)?;
                free.insert(Discipline::create(&mut netlink, link, journal)?)
            }
        };
        let made = discipline.class(plane, &mut netlink, spi, shaping);
        if made.is_err() {
            self.leave(ifindex, journal);
        }
        made.map(|minor| ClassId { ifindex, minor })
    }

    /// One generation less; with the last one the class goes, once it is empty, and with the last class the discipline.
    pub(crate) fn release(&mut self, plane: &Plane, class: ClassId, journal: &mut Journal) {
        let Some(discipline) = self.0.get_mut(&class.ifindex) else {
            return;
        };
        let Some(entry) = discipline.classes.get_mut(&class.minor) else {
            return;
        };
        entry.users -= 1;
        if entry.users > 0 {
            return;
        }
        let limit = Duration::from_nanos(entry.shaping.delay_ns).min(MAX_DRAIN);
        if let Some(shaper) = &entry.shaper {
            let told = plane.departures(shaper).unwrap_or_default();
            discipline.latest_ns = discipline.latest_ns.max(told.latest_ns);
        }
        discipline.classes.remove(&class.minor);
        if discipline.kind == Kind::Fq {
            // What waits stays in the discipline, which goes with the last class.
            if discipline.classes.is_empty() {
                let now_ns = myelin_measure::clock::now_ns();
                std::thread::sleep(until_empty(discipline.latest_ns, now_ns));
            }
            self.leave(class.ifindex, journal);
            return;
        }
        // A link that is gone took its classes along.
        let removed = Netlink::open().and_then(|mut netlink| {
            let start = Instant::now();
            while discipline.counted(&mut netlink, class.minor)?.waiting > 0
                && start.elapsed() < limit
            {
                std::thread::sleep(LOOK_EVERY);
            }
            netlink.apply([htb::delete_class(&discipline.link.id(), class.minor)])
        });
        if let Err(error) = removed
            && !error.is_not_found()
        {
            tracing::warn!(interface = discipline.link.name, %error, "a class stays");
        }
        self.leave(class.ifindex, journal);
    }

    /// The way to a class.
    pub(crate) fn exit(&self, class: ClassId) -> Exit {
        let ifindex = class.ifindex;
        let shaper = self.entry(class).and_then(|entry| entry.shaper.clone());
        match shaper {
            Some(shaper) => Exit::Departure { ifindex, shaper },
            None => Exit::Qdisc {
                ifindex,
                class: class.priority(),
            },
        }
    }

    /// The name of the discipline that a class belongs to.
    pub(crate) fn kind(&self, class: ClassId) -> &'static str {
        match self.0.get(&class.ifindex).map(|one| one.kind) {
            Some(Kind::Fq) => "fq",
            Some(Kind::Htb) | None => "htb",
        }
    }

    fn entry(&self, class: ClassId) -> Option<&Entry> {
        self.0.get(&class.ifindex)?.classes.get(&class.minor)
    }

    /// What a class did.
    pub(crate) fn stats(&self, plane: &Plane, class: ClassId) -> ShaperStats {
        let shaper = self.entry(class).and_then(|entry| entry.shaper.as_ref());
        if let Some(shaper) = shaper {
            let told = plane.departures(shaper).unwrap_or_default();
            return ShaperStats {
                delayed: told.delayed,
                late: told.late,
                big: told.big,
                ..ShaperStats::default()
            };
        }
        let counted = self.0.get(&class.ifindex).and_then(|discipline| {
            let mut netlink = Netlink::open().ok()?;
            discipline.counted(&mut netlink, class.minor).ok()
        });
        let Counters { drops, waiting, .. } = counted.unwrap_or_default();
        ShaperStats {
            full: drops,
            waiting,
            ..ShaperStats::default()
        }
    }

    /// Takes a discipline away that has no class.
    fn leave(&mut self, ifindex: u32, journal: &mut Journal) {
        let is_empty = |one: &Discipline| one.classes.is_empty();
        if !self.0.get(&ifindex).is_some_and(is_empty) {
            return;
        }
        if let Some(discipline) = self.0.remove(&ifindex) {
            let removed = myelin_linux::journal::remove(&discipline.resource)
                .and_then(|()| journal.removed(&discipline.resource));
            if let Err(error) = removed {
                tracing::warn!(interface = discipline.link.name, %error, "a queueing discipline stays");
            }
        }
    }
}

impl Discipline {
    fn create(netlink: &mut Netlink, link: Link, journal: &mut Journal) -> Result<Self, ApiError> {
        let foreign = htb::foreign(netlink, &link.id()).map_err(ApiError::failed)?;
        if let Some(kind) = foreign {
            return Err(ApiError::failed(format!(
                "interface {} has the queueing discipline `{kind}`, which a shaper would replace: write `enforce: policer`, give a \
                 function `space: user`, or remove it with `tc qdisc del dev {} root`",
                link.name, link.name
            )));
        }
        let resource = Resource::Qdisc {
            name: link.name.clone(),
        };
        journal.intend(&resource).map_err(ApiError::failed)?;
        let id = link.id();
        let kind = if netlink.apply([fq::create(&id)]).is_ok() {
            Kind::Fq
        } else if let Err(error) = netlink.apply([htb::create(&id)]) {
            let _ = journal.removed(&resource);
            return Err(ApiError::failed(error));
        } else {
            Kind::Htb
        };
        Ok(Self {
            link,
            resource,
            kind,
            classes: BTreeMap::new(),
            latest_ns: 0,
        })
    }

    fn class(
        &mut self,
        plane: &Plane,
        netlink: &mut Netlink,
        spi: u32,
        shaping: Shaping,
    ) -> Result<u16, ApiError> {
        let is_it = |entry: &Entry| (entry.spi, entry.shaping) == (spi, shaping);
        let mut classes = self.classes.iter_mut();
        if let Some((minor, entry)) = classes.find(|(_, entry)| is_it(entry)) {
            entry.users += 1;
            return Ok(*minor);
        }
        let minor = (1..=htb::MAX_CLASSES)
            .find(|minor| !self.classes.contains_key(minor))
            .ok_or_else(|| {
                ApiError::failed(format!(
                    "interface {} has {} shaped chains, which is all that it can have: write `enforce: policer`",
                    self.link.name,
                    htb::MAX_CLASSES
                ))
            })?;
        let shaper = match self.kind {
            Kind::Fq => {
                let shaper = plane.shaper(&shaping.profile(), limit_ns(&shaping));
                Some(shaper.map_err(ApiError::failed)?)
            }
            Kind::Htb => {
                self.add_class(netlink, minor, &shaping)?;
                None
            }
        };
        let entry = Entry {
            spi,
            shaping,
            users: 1,
            shaper,
        };
        self.classes.insert(minor, entry);
        Ok(minor)
    }

    fn add_class(
        &self,
        netlink: &mut Netlink,
        minor: u16,
        shaping: &Shaping,
    ) -> Result<(), ApiError> {
        let kernel = Machine::detect().kernel;
        if shaping.packets.is_some() && !htb::counts_packets(&kernel) {
            return Err(ApiError::failed(format!(
                "interface {}: HTB of Linux {kernel} cannot limit packets, only bits (5.17 and newer can): write `enforce: policer`, \
                 give a function `space: user`, or a `rate` in bits alone",
                self.link.name
            )));
        }
        let requests =
            htb::add_class(&self.link, minor, &class_of(shaping)).map_err(ApiError::failed)?;
        netlink.apply(requests).map_err(|error| {
            // As far as it got.
            let _ = netlink.apply([htb::delete_class(&self.link.id(), minor)]);
            ApiError::failed(error)
        })
    }

    fn counted(&self, netlink: &mut Netlink, minor: u16) -> myelin_linux::Result<Counters> {
        let all = htb::counters(netlink, &self.link.id())?;
        let found = all.into_iter().find(|(number, _)| *number == minor);
        Ok(found.map_or_else(Counters::default, |(_, counters)| counters))
    }
}

/// How long `fq` holds packets yet of which the last one departs at `latest_ns`, and a moment for its timer; nothing where none waits, or
/// none was ever sent there.
fn until_empty(latest_ns: u64, now_ns: u64) -> Duration {
    if latest_ns == 0 {
        return Duration::ZERO;
    }
    let until = Duration::from_nanos(latest_ns) + LOOK_EVERY;
    until
        .saturating_sub(Duration::from_nanos(now_ns))
        .min(MAX_DRAIN)
}

/// How long a packet may wait for its departure: as long as agreed, and no longer than the queue takes to leave, of full
/// frames where only bits are limited.
fn limit_ns(shaping: &Shaping) -> u64 {
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

/// The class that shapes so. A queue of the kernel has no bound in time, so it is no longer than what leaves in that time:
/// of full frames, where only bits are limited.
fn class_of(shaping: &Shaping) -> Class {
    let limit = |limit: Limit| htb::Limit {
        rate: limit.rate,
        burst: limit.burst,
    };
    let in_time = |rate: u64| {
        let packets = u128::from(rate) * u128::from(shaping.delay_ns) / 1_000_000_000;
        u32::try_from(packets).unwrap_or(u32::MAX).max(1)
    };
    let of_packets = shaping.packets.map(|limit| in_time(limit.rate));
    let of_frames = shaping
        .bits
        .map(|limit| in_time(limit.rate / 8 / FULL_FRAME));
    Class {
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
    fn a_queue_holds_what_leaves_in_the_time_agreed() {
        let limit = |rate, burst| Some(Limit { rate, burst });
        let queue = |packets, bits, delay_ns| {
            let shaping = Shaping {
                packets,
                bits,
                queue: 128,
                delay_ns,
                tolerance_ns: 0,
            };
            class_of(&shaping).queue
        };
        assert_eq!(queue(limit(20_000, 4), None, 1_000_000), 20);
        assert_eq!(queue(limit(20_000, 4), None, 1_000_000_000), 128);
        assert_eq!(queue(limit(1, 1), None, 1000), 1);
        let bits = limit(1514 * 8 * 1000, 20_000);
        assert_eq!(queue(None, bits, 10_000_000), 10);
        assert_eq!(queue(limit(5000, 4), bits, 1_000_000), 1);
    }

    #[test]
    fn a_discipline_goes_as_soon_as_nothing_waits_in_it() {
        let ms = Duration::from_millis;
        let now_ns = 3_600_000_000_000;
        assert_eq!(until_empty(0, now_ns), Duration::ZERO);
        assert_eq!(until_empty(now_ns - 1_000_000_000, now_ns), Duration::ZERO);
        assert_eq!(
            until_empty(now_ns + 20_000_000, now_ns),
            ms(20) + LOOK_EVERY
        );
        assert_eq!(until_empty(now_ns + 9_000_000_000, now_ns), MAX_DRAIN);
        // A machine that has just booted.
        assert_eq!(until_empty(0, 10), Duration::ZERO);
    }

    #[test]
    fn a_departure_is_no_later_than_the_queue_allows() {
        let told = |delay_ns, queue| {
            let packets = Some(Limit {
                rate: 1000,
                burst: 4,
            });
            limit_ns(&Shaping {
                packets,
                bits: None,
                queue,
                delay_ns,
                tolerance_ns: 0,
            })
        };
        assert_eq!(told(5_000_000, 64), 5_000_000);
        assert_eq!(told(5_000_000, 2), 2_000_000);
        assert_eq!(told(u64::MAX, u32::MAX), FQ_HORIZON_NS);
    }
}
