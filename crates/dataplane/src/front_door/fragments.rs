//! Fragments at the front door of a worker: same decisions as `kernel/src/bpf/fragments.h`.

use myelin_packet::fragment_table::{DATAGRAMS, FragmentTable};
use myelin_packet::fragments::{Fragment, FragmentPart, FragmentRules};
use myelin_packet::{Family, FiveTuple, FragmentHandling, Headers, Match};

use super::{DoorDecision, FrontDoor, MatchedChain};

/// The fragments of one port.
#[derive(Debug, Default)]
pub(super) struct DoorFragments {
    rules: FragmentRules,
    first: FragmentTable<[u16; 2]>,
    dropped: u64,
}

impl DoorFragments {
    /// Adds a chain's match. Allocates the table, because packets must not.
    pub(super) fn insert(&mut self, rule: &Match) {
        self.rules.insert(rule);
        if [Family::V4, Family::V6].map(|family| self.rules.is_guarded(family)) != [false; 2] {
            self.first.reserve(DATAGRAMS);
        }
    }

    pub(super) fn remove(&mut self, rule: &Match) {
        self.rules.remove(rule);
    }

    /// Returns the number of dropped fragments.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Returns the ports of the fragment's datagram. `Ok(None)`: classify it without ports.
    /// `Err`: drop it.
    fn ports(
        &mut self,
        fragment: &Fragment,
        tuple: &FiveTuple,
        now_ns: u64,
    ) -> Result<Option<[u16; 2]>, ()> {
        if !self.rules.is_guarded(Family::of(tuple.source)) {
            return Ok(None);
        }
        let known = match fragment.part {
            FragmentPart::Hidden => return Err(()),
            FragmentPart::NoPorts => return Ok(None),
            FragmentPart::First(ports) => {
                self.first.remember(fragment.datagram, ports, now_ns);
                Some(ports)
            }
            FragmentPart::FirstWithoutPorts => None,
            FragmentPart::Later => self.first.find(&fragment.datagram, now_ns),
        };
        if known.is_none() && self.rules.drops(tuple) {
            return Err(());
        }
        Ok(known)
    }
}

impl FrontDoor {
    /// Returns the chain of a fragment, or the decision if no chain takes it. `tuple` has no ports.
    #[cold]
    pub(super) fn find_chain_of_fragment(
        &mut self,
        frame: &[u8],
        headers: &Headers,
        tuple: FiveTuple,
        now_ns: u64,
    ) -> Result<MatchedChain, DoorDecision> {
        let Some(fragment) = Fragment::read(frame, headers) else {
            return Err(DoorDecision::Unmatched);
        };
        let ports = self.fragments.ports(&fragment, &tuple, now_ns);
        let chosen = ports.and_then(|ports| self.classify_fragment(tuple, ports));
        if chosen.is_err() {
            self.fragments.dropped += 1;
        }
        match chosen {
            Ok(Some(chosen)) => Ok(chosen),
            Ok(None) => Err(DoorDecision::Unmatched),
            Err(()) => Err(DoorDecision::FragmentDropped),
        }
    }

    /// Classifies a fragment. `Err`: its match drops fragments.
    fn classify_fragment(
        &self,
        tuple: FiveTuple,
        ports: Option<[u16; 2]>,
    ) -> Result<Option<MatchedChain>, ()> {
        let with_ports = FiveTuple {
            source_port: ports.map(|ports| ports[0]),
            destination_port: ports.map(|ports| ports[1]),
            ..tuple
        };
        let mut chosen = self.table.lookup(&with_ports).copied();
        let passes = |chosen: &MatchedChain| {
            chosen.names_ports && chosen.fragments == FragmentHandling::Pass
        };
        if chosen.as_ref().is_some_and(passes) {
            chosen = self.table.lookup(&tuple).copied();
        }
        match chosen {
            Some(chosen) if chosen.fragments == FragmentHandling::Drop => Err(()),
            chosen => Ok(chosen),
        }
    }
}

#[cfg(test)]
mod tests {
    use myelin_packet::fixtures::build;
    use myelin_packet::fixtures::fragments::{Expected, fragment, scenario};
    use myelin_packet::fragment_table::LIFETIME_NS;
    use myelin_packet::traffic::Profile;

    use super::*;
    use crate::chain::SocketId;
    use crate::door::ChainRedirect;
    use crate::stats::Stats;

    fn redirect(door: &mut FrontDoor, stats: &Stats, matches: &Match, spi: u32) {
        let chain = ChainRedirect {
            matches: *matches,
            ingress: SocketId::of_port(0),
            policing: Profile::default(),
            spi,
            generation: 0,
        };
        let counters = stats.door_counters(spi).unwrap();
        door.redirect(&chain, counters).unwrap();
    }

    /// Returns the decision, with the index of the rule instead of its chain.
    fn decide(door: &mut FrontDoor, frame: &[u8], now_ns: u64) -> Expected {
        let before = door.dropped_fragments();
        let (found, dropped) = match door.decide(frame, now_ns) {
            DoorDecision::Taken(meta) => (Expected::Taken(meta.spi), 0),
            DoorDecision::FragmentDropped => (Expected::Dropped, 1),
            DoorDecision::Unmatched => (Expected::Unmatched, 0),
            DoorDecision::Policed => panic!("no chain is policed"),
        };
        assert_eq!(door.dropped_fragments(), before + dropped);
        found
    }

    #[test]
    fn fragments_go_where_the_reference_says() {
        let stats = Stats::create().unwrap();
        for seed in 0..2000 {
            let mut door = FrontDoor::new();
            let scenario = scenario(seed);
            // A chain of this door has one match, so each rule is a chain.
            for ((rule, _), spi) in scenario.rules.iter().zip(100..) {
                redirect(&mut door, &stats, rule, spi);
            }
            for (i, (frame, expected)) in scenario.frames.iter().enumerate() {
                let found = match decide(&mut door, frame, 1) {
                    Expected::Taken(spi) => Expected::Taken(scenario.rules[spi as usize - 100].1),
                    other => other,
                };
                assert_eq!(found, *expected, "seed {seed}, frame {i}: {frame:x?}");
            }
            for (_, spi) in scenario.rules.iter().zip(100..) {
                door.stop_redirect(spi);
            }
            for (frame, _) in &scenario.frames {
                assert_eq!(decide(&mut door, frame, 2), Expected::Unmatched);
            }
        }
    }

    #[test]
    fn a_first_fragment_is_forgotten_after_30_s() {
        let (mut door, stats) = (FrontDoor::new(), Stats::create().unwrap());
        let rule = Match {
            destination_port: Some(build::server_v4().port()),
            ..Match::default()
        };
        redirect(&mut door, &stats, &rule, 1);
        let whole = build::udp(build::client_v4(), build::server_v4(), &[7; 64]);
        let ends = (build::client_v4().ip(), build::server_v4().ip());
        let first = fragment(ends, 17, 3, (0, true), &whole[34..74], false);
        let later = fragment(ends, 17, 3, (5, false), &whole[74..], false);
        assert_eq!(decide(&mut door, &later, 1), Expected::Dropped);
        assert_eq!(decide(&mut door, &first, 1), Expected::Taken(1));
        assert_eq!(
            decide(&mut door, &later, 1 + LIFETIME_NS),
            Expected::Taken(1)
        );
        assert_eq!(
            decide(&mut door, &later, 2 + LIFETIME_NS),
            Expected::Dropped
        );
    }
}
