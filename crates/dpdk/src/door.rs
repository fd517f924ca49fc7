//! The front door of a device that the kernel does not see: the twin of `kernel/src/bpf/door.bpf.c`.
//!
//! Parses, classifies (most specific match first), counts, polices, and makes the metadata that travels with a packet. The kernel's door and this one are tested on the
//! same frames.

use myelin_packet::classifier::{ClassifierError, TupleSpace};
use myelin_packet::traffic::{Profile, TokenBucket};
use myelin_packet::{FiveTuple, Match, Meta, Unparsed, parse};
use serde::{Deserialize, Serialize};

/// The chain that takes a packet.
#[derive(Debug, Clone, Copy)]
struct Chosen {
    spi: u32,
    generation: u16,
    /// Its index in `FrontDoor::chains`.
    slot: usize,
}

/// What passed a door, in packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DoorCounters {
    /// Packets that no chain takes.
    pub unmatched: u64,
    /// Packets that could not be read, by the reason's number less one ([`Unparsed::ALL`]).
    pub unparsed: [u64; Unparsed::ALL.len()],
}

/// What a chain took at a door.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainDoorCounters {
    /// Packets.
    pub packets: u64,
    /// Their bytes, Ethernet header included.
    pub bytes: u64,
    /// When the last one came: CLOCK_MONOTONIC, ns.
    pub last_ns: u64,
    /// Those of them above the chain's profile, which were dropped.
    pub policed: u64,
    /// The bytes of these.
    pub policed_bytes: u64,
}

/// What becomes of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// A chain takes it; this travels with it.
    Taken(Meta),
    /// A chain takes it, and it is above that chain's profile: to be dropped.
    Policed,
    /// No chain takes it.
    Unmatched,
}

/// A chain that enters here.
#[derive(Debug)]
struct Entrant {
    spi: u32,
    matches: Match,
    counters: ChainDoorCounters,
    /// What it is held to; `None` lets everything through.
    policer: Option<(Profile, TokenBucket)>,
}

impl Entrant {
    fn holds(&self, profile: &Profile) -> bool {
        self.policer.is_some_and(|(held, _)| held == *profile)
    }
}

/// The classifier of one port, and what it has counted.
#[derive(Debug, Default)]
pub struct FrontDoor {
    table: TupleSpace<Chosen>,
    /// The last flow that was looked up: packets come in trains.
    last: Option<(FiveTuple, Chosen)>,
    counters: DoorCounters,
    chains: Vec<Option<Entrant>>,
}

impl FrontDoor {
    /// A door that no chain enters by.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets a generation of a chain take the packets of `matches` from now on, within `profile`. Its counters go on when another generation did
    /// before, and so does the bucket when the profile is the same.
    ///
    /// # Errors
    /// Another chain's match is as specific, or takes nothing, or there are too many different masks.
    pub fn set(
        &mut self,
        matches: &Match,
        spi: u32,
        generation: u16,
        profile: &Profile,
    ) -> Result<(), ClassifierError> {
        let before = self.table.remove(matches);
        if let Some(other) = before.filter(|before| before.spi != spi) {
            self.table.insert(matches, other)?;
            return Err(ClassifierError::Tie);
        }
        let slot = match before {
            Some(before) => before.slot,
            None => self.free_slot(),
        };
        let chosen = Chosen {
            spi,
            generation,
            slot,
        };
        self.last = None;
        self.table.insert(matches, chosen)?;
        // Of another match of this chain, where that is what a live change changes.
        let mut held = self.chains.iter().flatten();
        let same = held.find(|entrant| entrant.spi == spi && entrant.holds(profile));
        let policer = same
            .and_then(|entrant| entrant.policer)
            .or_else(|| (!profile.is_unlimited()).then(|| (*profile, TokenBucket::new(profile))));
        match &mut self.chains[slot] {
            Some(entrant) if before.is_some() => {
                entrant.policer = policer;
            }
            entrant => {
                *entrant = Some(Entrant {
                    spi,
                    matches: *matches,
                    counters: ChainDoorCounters::default(),
                    policer,
                });
            }
        }
        Ok(())
    }

    fn free_slot(&mut self) -> usize {
        let free = self.chains.iter().position(Option::is_none);
        free.unwrap_or_else(|| {
            self.chains.push(None);
            self.chains.len() - 1
        })
    }

    /// Takes a match out; what its chain counted here, if it was there.
    pub fn remove(&mut self, matches: &Match) -> Option<ChainDoorCounters> {
        self.last = None;
        let chosen = self.table.remove(matches)?;
        self.chains[chosen.slot]
            .take()
            .map(|entrant| entrant.counters)
    }

    /// What becomes of a frame that arrived at `stamp_ns`.
    #[inline]
    pub fn admit(&mut self, frame: &[u8], stamp_ns: u64) -> Admission {
        let headers = match parse(frame) {
            Ok(headers) => headers,
            Err(reason) => {
                self.counters.unparsed[reason as usize - 1] += 1;
                return Admission::Unmatched;
            }
        };
        let tuple = headers.five_tuple(frame);
        let chosen = match self.last {
            Some((last, chosen)) if last == tuple => chosen,
            _ => match self.look_up(tuple) {
                Some(chosen) => chosen,
                None => return Admission::Unmatched,
            },
        };
        if let Some(Some(Entrant {
            counters, policer, ..
        })) = self.chains.get_mut(chosen.slot)
        {
            let bytes = frame.len() as u64;
            counters.packets += 1;
            counters.bytes += bytes;
            counters.last_ns = stamp_ns;
            if let Some((_, bucket)) = policer
                && !bucket.take(stamp_ns, 1, bytes)
            {
                counters.policed += 1;
                counters.policed_bytes += bytes;
                return Admission::Policed;
            }
        }
        let meta = Meta::new(stamp_ns, chosen.spi, chosen.generation, 0, &headers);
        Admission::Taken(meta)
    }

    fn look_up(&mut self, tuple: FiveTuple) -> Option<Chosen> {
        let Some(&chosen) = self.table.lookup(&tuple) else {
            self.counters.unmatched += 1;
            return None;
        };
        self.last = Some((tuple, chosen));
        Some(chosen)
    }

    /// What no chain took.
    pub fn counters(&self) -> &DoorCounters {
        &self.counters
    }

    /// What the chain of a match took; `None` when it does not enter here.
    pub fn chain(&self, matches: &Match) -> Option<ChainDoorCounters> {
        let entries = self.chains.iter().flatten();
        let mut of_match = entries.filter(|entrant| entrant.matches == *matches);
        of_match.next().map(|entrant| entrant.counters)
    }
}

#[cfg(test)]
mod tests {
    use myelin_packet::fixtures::reference::most_specific;
    use myelin_packet::fixtures::{self, build};
    use myelin_packet::traffic::Bucket;

    use super::*;

    fn matches() -> Vec<Match> {
        let udp = Match {
            protocol: Some(17),
            ..Match::default()
        };
        let to_server = Match {
            destination: Some(format!("{}/32", build::server_v4().ip()).parse().unwrap()),
            ..Match::default()
        };
        let to_port = Match {
            protocol: Some(17),
            destination_port: Some(build::server_v4().port()),
            ..Match::default()
        };
        vec![udp, to_server, to_port]
    }

    fn taken_by(admission: Admission) -> Option<Meta> {
        match admission {
            Admission::Taken(meta) => Some(meta),
            Admission::Policed | Admission::Unmatched => None,
        }
    }

    /// So many packets a second, and at once.
    fn packets(rate: u64, burst: u64) -> Profile {
        Profile {
            packets: Bucket::new(rate, burst).ok(),
            bits: None,
        }
    }

    #[test]
    fn what_is_above_the_profile_is_dropped_and_counted() {
        let mut door = FrontDoor::new();
        let [udp, ..] = matches()[..] else {
            unreachable!()
        };
        let frame = build::udp_v4(8);
        door.set(&udp, 1, 0, &packets(1000, 2)).unwrap();
        let policed = |door: &mut FrontDoor, at_ns| door.admit(&frame, at_ns) == Admission::Policed;
        let found = [1, 1, 1, 1_000_000, 1_000_001].map(|at_ns| policed(&mut door, at_ns));
        assert_eq!(found, [false, false, true, true, false]);
        // A live change with the same profile fills no bucket; another profile does.
        door.set(&udp, 1, 1, &packets(1000, 2)).unwrap();
        assert!(policed(&mut door, 1_000_001));
        let narrower = matches()[2];
        door.set(&narrower, 1, 1, &packets(1000, 2)).unwrap();
        assert!(policed(&mut door, 1_000_001), "nor another match");
        assert_eq!(door.remove(&narrower).unwrap().policed, 1);
        door.set(&udp, 1, 2, &packets(1000, 1)).unwrap();
        assert!(!policed(&mut door, 1_000_001));
        door.set(&udp, 1, 3, &Profile::default()).unwrap();
        assert!((0..100).all(|_| !policed(&mut door, 1_000_001)));
        let counters = door.chain(&udp).unwrap();
        assert_eq!((counters.packets, counters.policed), (107, 3));
        assert_eq!(counters.policed_bytes, 3 * frame.len() as u64);
    }

    /// On the frames that the kernel's door is tested on, against the plain classifier.
    #[test]
    fn every_fixture_goes_to_the_most_specific_chain_and_is_counted() {
        let mut door = FrontDoor::new();
        let entries: Vec<(Match, u32)> = matches().into_iter().zip(10..).collect();
        for (matches, spi) in &entries {
            door.set(matches, *spi, 3, &Profile::default()).unwrap();
        }
        let (mut unmatched, mut unparsed) = (0, 0);
        let mut taken = vec![(0_u64, 0_u64); entries.len()];
        // Twice, so that both the table and the last flow are asked.
        for fixture in fixtures::all().into_iter().flat_map(|f| [f.clone(), f]) {
            let found = taken_by(door.admit(&fixture.frame, 77));
            let expected = fixture.expected.ok().and_then(|headers| {
                let spi = *most_specific(&entries, &fixture.five_tuple()?)?;
                Some(Meta::new(77, spi, 3, 0, &headers))
            });
            assert_eq!(found, expected, "{}", fixture.name);
            match (fixture.expected, found) {
                (Err(_), _) => unparsed += 1,
                (Ok(_), None) => unmatched += 1,
                (Ok(_), Some(meta)) => {
                    let chain = &mut taken[meta.spi as usize - 10];
                    chain.0 += 1;
                    chain.1 += fixture.frame.len() as u64;
                }
            }
        }
        assert!(unmatched > 0 && unparsed > 0 && taken.iter().all(|chain| chain.0 > 0));
        assert_eq!(door.counters().unmatched, unmatched);
        assert_eq!(door.counters().unparsed.iter().sum::<u64>(), unparsed);
        for ((matches, _), (packets, bytes)) in entries.iter().zip(taken) {
            let counters = ChainDoorCounters {
                packets,
                bytes,
                last_ns: 77,
                ..ChainDoorCounters::default()
            };
            assert_eq!(door.chain(matches), Some(counters));
        }
    }

    #[test]
    fn another_generation_takes_over_and_another_chain_does_not() {
        let mut door = FrontDoor::new();
        let [udp, ..] = matches()[..] else {
            unreachable!()
        };
        let frame = build::udp_v4(8);
        door.set(&udp, 1, 0, &Profile::default()).unwrap();
        assert_eq!(taken_by(door.admit(&frame, 1)).unwrap().generation, 0);
        assert_eq!(
            door.set(&udp, 2, 0, &Profile::default()),
            Err(ClassifierError::Tie)
        );
        door.set(&udp, 1, 1, &Profile::default()).unwrap();
        let meta = taken_by(door.admit(&frame, 2)).unwrap();
        assert_eq!((meta.spi, meta.generation, meta.stamp_ns), (1, 1, 2));
        assert_eq!(door.chain(&udp).unwrap().packets, 2, "they go on");
        assert_eq!(door.remove(&udp).unwrap().packets, 2);
        assert_eq!(taken_by(door.admit(&frame, 3)), None);
        assert_eq!((door.remove(&udp), door.chain(&udp)), (None, None));
        door.set(&udp, 2, 0, &Profile::default()).unwrap();
        assert_eq!(taken_by(door.admit(&frame, 4)).unwrap().spi, 2);
    }
}
