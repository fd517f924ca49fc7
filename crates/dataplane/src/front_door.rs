//! The front door of a port that a worker drives: a device of DPDK, a packet socket, or packets
//! from memory. It behaves like `kernel/src/bpf/door.bpf.c`.
//!
//! It parses, classifies (most specific match first), counts and polices packets, and makes their
//! metadata. Tests run the same frames through both front doors.

use myelin_packet::classifier::{ClassifierError, TupleSpace};
use myelin_packet::offload::KERNEL_HEADER_LEN;
use myelin_packet::traffic::{Profile, TokenBucket};
use myelin_packet::{FiveTuple, Flags, FragmentHandling, Headers, Match, Meta, Offload, parse};

use self::fragments::DoorFragments;
use crate::door::ChainRedirect;
use crate::stats::DoorCounters;

mod fragments;

/// The chain and generation that a match selects.
#[derive(Debug, Clone, Copy)]
struct MatchedChain {
    spi: u32,
    generation: u16,
    /// Index in `FrontDoor::chains`.
    slot: usize,
    /// The match's rule for fragments.
    fragments: FragmentHandling,
    names_ports: bool,
}

/// The decision of the front door for a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DoorDecision {
    /// A chain takes the frame, with this metadata.
    Taken(Meta),
    /// The frame is above its chain's profile: drop it.
    Policed,
    /// The frame is a fragment that no chain may take and that may not pass: drop it. The door has
    /// counted it.
    FragmentDropped,
    /// No chain takes the frame.
    Unmatched,
}

/// A chain with its ingress at this port.
#[derive(Debug)]
struct DoorChain {
    spi: u32,
    matches: Match,
    counters: DoorCounters,
    /// `None` passes all packets.
    policer: Option<(Profile, TokenBucket)>,
}

/// The classifier of one port.
#[derive(Debug, Default)]
pub struct FrontDoor {
    table: TupleSpace<MatchedChain>,
    /// The flow and result of the last look-up. Packets of a flow often arrive in sequence.
    last_lookup: Option<(FiveTuple, MatchedChain)>,
    chains: Vec<Option<DoorChain>>,
    fragments: DoorFragments,
}

impl FrontDoor {
    /// Makes a door without chains.
    pub fn new() -> Self {
        Self::default()
    }

    /// Redirects the packets of a chain's match to a generation, and polices them to the chain's
    /// profile. Other generations of the chain get no packets. An unchanged profile keeps the
    /// bucket.
    ///
    /// # Errors
    /// Another chain's match is equally specific, the match is empty, or the table has too many
    /// different masks. An error changes nothing.
    pub fn redirect(
        &mut self,
        chain: &ChainRedirect,
        counters: DoorCounters,
    ) -> Result<(), ClassifierError> {
        let slot = self.find_or_add_slot(chain.spi);
        let chosen = MatchedChain {
            spi: chain.spi,
            generation: chain.generation,
            slot,
            fragments: chain.matches.fragments,
            names_ports: chain.matches.names_ports(),
        };
        self.last_lookup = None;
        let before = self.chains[slot].take();
        let former = before.as_ref().map(|before| before.matches);
        let former = former.and_then(|matches| Some((matches, self.table.remove(&matches)?)));
        if let Err(error) = self.table.insert(&chain.matches, chosen) {
            if let Some((matches, chosen)) = former {
                // No other chain has taken the old match's entry.
                self.table.insert(&matches, chosen)?;
            }
            self.chains[slot] = before;
            return Err(error);
        }
        self.fragments.insert(&chain.matches);
        if let Some((matches, _)) = former {
            self.fragments.remove(&matches);
        }
        let profile = chain.policing;
        let policer = before
            .and_then(|before| before.policer)
            .filter(|(held, _)| *held == profile)
            .or_else(|| (!profile.is_unlimited()).then(|| (profile, TokenBucket::new(&profile))));
        self.chains[slot] = Some(DoorChain {
            spi: chain.spi,
            matches: chain.matches,
            counters,
            policer,
        });
        Ok(())
    }

    /// Returns the slot of a chain, or a free slot.
    fn find_or_add_slot(&mut self, spi: u32) -> usize {
        let is_match =
            |slot: &Option<DoorChain>| slot.as_ref().is_some_and(|chain| chain.spi == spi);
        let occupied = self.chains.iter().position(is_match);
        let slot = occupied.or_else(|| self.chains.iter().position(Option::is_none));
        slot.unwrap_or_else(|| {
            self.chains.push(None);
            self.chains.len() - 1
        })
    }

    /// Stops the redirect of packets to a chain.
    pub fn stop_redirect(&mut self, spi: u32) {
        let slot = self.find_or_add_slot(spi);
        if let Some(door_chain) = self.chains[slot].take() {
            self.last_lookup = None;
            self.table.remove(&door_chain.matches);
            self.fragments.remove(&door_chain.matches);
        }
    }

    /// Whether no chain takes packets.
    pub(crate) fn is_empty(&self) -> bool {
        self.chains.iter().all(Option::is_none)
    }

    /// Counts a packet that this chain took, and that found no room behind the door.
    pub(crate) fn count_lost(&self, spi: u32) {
        let mut chains = self.chains.iter().flatten();
        if let Some(chain) = chains.find(|chain| chain.spi == spi) {
            chain.counters.count_lost();
        }
    }

    /// Counts packets that the port dropped before the door, at each chain of the door.
    pub(crate) fn count_missed(&self, packets: u64) {
        if packets > 0 {
            let chains = self.chains.iter().flatten();
            chains.for_each(|chain| chain.counters.count_missed(packets));
        }
    }

    /// Returns the number of dropped fragments.
    pub fn dropped_fragments(&self) -> u64 {
        self.fragments.dropped()
    }

    /// Returns the decision for a frame that arrived at `stamp_ns`.
    #[inline]
    pub fn decide(&mut self, frame: &[u8], stamp_ns: u64) -> DoorDecision {
        let Ok(headers) = parse(frame) else {
            return DoorDecision::Unmatched;
        };
        self.decide_parsed(frame, &headers, stamp_ns, 1)
    }

    /// Returns the decision for a frame that arrived at `stamp_ns` with this kernel header, and
    /// what the sender left to the network card. `removed`: see [`Offload::read`]. A frame that its
    /// header does not fit is unmatched.
    #[inline]
    pub(crate) fn decide_offloaded(
        &mut self,
        frame: &[u8],
        stamp_ns: u64,
        (header, removed): ([u8; KERNEL_HEADER_LEN], u16),
    ) -> (DoorDecision, Offload) {
        let read = || {
            let headers = parse(frame).ok()?;
            let offload = Offload::read(header, removed, &headers, frame.len())?;
            Some((headers, offload))
        };
        let Some((headers, offload)) = read() else {
            return (DoorDecision::Unmatched, Offload::default());
        };
        let segments = offload.segments().into();
        let mut decision = self.decide_parsed(frame, &headers, stamp_ns, segments);
        if let DoorDecision::Taken(meta) = &mut decision {
            meta.flags |= Flags::OFFLOADED.bits();
        }
        (decision, offload)
    }

    /// Decides on a frame, which is `segments` packets on the wire.
    #[inline]
    fn decide_parsed(
        &mut self,
        frame: &[u8],
        headers: &Headers,
        stamp_ns: u64,
        segments: u64,
    ) -> DoorDecision {
        let tuple = headers.five_tuple(frame);
        let chosen = match self.last_lookup {
            Some((last, chosen)) if last == tuple && !headers.flags.is_fragment() => chosen,
            _ if headers.flags.is_fragment() => {
                match self.find_chain_of_fragment(frame, headers, tuple, stamp_ns) {
                    Ok(chosen) => chosen,
                    Err(decision) => return decision,
                }
            }
            _ => match self.find_chain(tuple) {
                Some(chosen) => chosen,
                None => return DoorDecision::Unmatched,
            },
        };
        if let Some(Some(DoorChain {
            counters, policer, ..
        })) = self.chains.get_mut(chosen.slot)
        {
            let bytes = frame.len() as u64;
            counters.count_packets(segments, bytes, stamp_ns);
            // Each segment has its own headers.
            let wire_bytes = bytes + (segments - 1) * u64::from(headers.payload);
            if let Some((_, bucket)) = policer
                && !bucket.take(stamp_ns, segments, wire_bytes)
            {
                counters.count_policed(segments, wire_bytes);
                return DoorDecision::Policed;
            }
        }
        let meta = Meta::new(stamp_ns, chosen.spi, chosen.generation, 0, headers);
        DoorDecision::Taken(meta)
    }

    fn find_chain(&mut self, tuple: FiveTuple) -> Option<MatchedChain> {
        let &chosen = self.table.lookup(&tuple)?;
        self.last_lookup = Some((tuple, chosen));
        Some(chosen)
    }
}

#[cfg(test)]
mod tests {
    use myelin_packet::fixtures::reference::most_specific;
    use myelin_packet::fixtures::{self, build};
    use myelin_packet::traffic::Bucket;

    use super::*;
    use crate::chain::SocketId;
    use crate::stats::{DoorStats, Stats};

    fn test_matches() -> Vec<Match> {
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
            fragments: FragmentHandling::Pass,
            ..Match::default()
        };
        vec![udp, to_server, to_port]
    }

    fn redirect(
        door: &mut FrontDoor,
        stats: &Stats,
        matches: &Match,
        (spi, generation): (u32, u16),
        policing: Profile,
    ) -> Result<(), ClassifierError> {
        let chain = ChainRedirect {
            matches: *matches,
            ingress: SocketId::of_port(0),
            policing,
            spi,
            generation,
        };
        door.redirect(&chain, stats.door_counters(spi).unwrap())
    }

    fn metadata_of(decision: DoorDecision) -> Option<Meta> {
        match decision {
            DoorDecision::Taken(meta) => Some(meta),
            DoorDecision::Policed | DoorDecision::FragmentDropped | DoorDecision::Unmatched => None,
        }
    }

    /// Returns a profile of `rate` packets per second and a burst in packets.
    fn packets(rate: u64, burst: u64) -> Profile {
        Profile {
            packets: Bucket::new(rate, burst).ok(),
            bits: None,
        }
    }

    #[test]
    fn packets_above_the_profile_are_dropped_and_counted() {
        let (mut door, stats) = (FrontDoor::new(), Stats::create().unwrap());
        let [udp, _, narrower] = test_matches()[..] else {
            unreachable!()
        };
        let frame = build::udp_v4(8);
        let set = |door: &mut FrontDoor, matches: &Match, generation, profile| {
            redirect(door, &stats, matches, (1, generation), profile).unwrap();
        };
        set(&mut door, &udp, 0, packets(1000, 2));
        let policed =
            |door: &mut FrontDoor, at_ns| door.decide(&frame, at_ns) == DoorDecision::Policed;
        let found = [1, 1, 1, 1_000_000, 1_000_001].map(|at_ns| policed(&mut door, at_ns));
        assert_eq!(found, [false, false, true, true, false]);
        // A live change with the same profile keeps the bucket; another profile fills it.
        set(&mut door, &udp, 1, packets(1000, 2));
        assert!(policed(&mut door, 1_000_001));
        set(&mut door, &narrower, 1, packets(1000, 2));
        assert!(
            policed(&mut door, 1_000_001),
            "another match keeps the bucket too"
        );
        set(&mut door, &udp, 2, packets(1000, 1));
        assert!(!policed(&mut door, 1_000_001));
        set(&mut door, &udp, 3, Profile::default());
        assert!((0..100).all(|_| !policed(&mut door, 1_000_001)));
        let counters = stats.door(1).unwrap();
        assert_eq!((counters.packets, counters.policed), (108, 4));
        assert_eq!(counters.policed_bytes, 4 * frame.len() as u64);
    }

    /// Compares with the plain classifier, on the frames that test the kernel's front door.
    #[test]
    fn each_fixture_goes_to_the_most_specific_chain_and_is_counted() {
        let (mut door, stats) = (FrontDoor::new(), Stats::create().unwrap());
        let entries: Vec<(Match, u32)> = test_matches().into_iter().zip(10..).collect();
        for (matches, spi) in &entries {
            redirect(&mut door, &stats, matches, (*spi, 3), Profile::default()).unwrap();
        }
        let (mut unmatched, mut unparsed) = (0, 0);
        let mut taken = vec![(0_u64, 0_u64); entries.len()];
        // Decide on each frame twice, to test both the table and the last look-up.
        for fixture in fixtures::all().into_iter().flat_map(|f| [f.clone(), f]) {
            let found = metadata_of(door.decide(&fixture.frame, 77));
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
        for ((_, spi), (packets, bytes)) in entries.iter().zip(taken) {
            let counters = DoorStats {
                packets,
                bytes,
                last_ns: 77,
                ..DoorStats::default()
            };
            assert_eq!(stats.door(*spi), Some(counters));
        }
    }

    #[test]
    fn a_redirect_replaces_the_generation_and_keeps_other_chains() {
        let (mut door, stats) = (FrontDoor::new(), Stats::create().unwrap());
        let [udp, to_server, _] = test_matches()[..] else {
            unreachable!()
        };
        let frame = build::udp_v4(8);
        let set = |door: &mut FrontDoor, matches: &Match, spi, generation| {
            redirect(door, &stats, matches, (spi, generation), Profile::default())
        };
        set(&mut door, &udp, 1, 0).unwrap();
        assert_eq!(metadata_of(door.decide(&frame, 1)).unwrap().generation, 0);
        set(&mut door, &to_server, 2, 0).unwrap();
        assert_eq!(set(&mut door, &udp, 2, 1), Err(ClassifierError::Tie));
        let meta = metadata_of(door.decide(&frame, 2)).unwrap();
        assert_eq!(
            (meta.spi, meta.generation),
            (2, 0),
            "chain 2 keeps its match"
        );
        door.stop_redirect(2);
        set(&mut door, &udp, 1, 1).unwrap();
        let meta = metadata_of(door.decide(&frame, 2)).unwrap();
        assert_eq!((meta.spi, meta.generation, meta.stamp_ns), (1, 1, 2));
        assert_eq!(stats.door(1).unwrap().packets, 2, "the counters continue");
        door.stop_redirect(1);
        door.stop_redirect(1);
        assert_eq!(metadata_of(door.decide(&frame, 3)), None);
        set(&mut door, &udp, 2, 0).unwrap();
        assert_eq!(metadata_of(door.decide(&frame, 4)).unwrap().spi, 2);
    }
}
