//! The state that follows the core from one process to another.
//!
//! If tasks hand the core over themselves, each process has a copy of the policy, and the copy of
//! the running process decides. The state between two decisions is a few words, which can be in
//! shared memory.

use super::{Deadline, LoadTurns, RoundRobin, SharedCore, Sharing, TOTAL_WEIGHT, Unis};

/// `None` as a word. No time and no count has this value.
const NONE: u64 = u64::MAX;

/// The state of a policy as words, in a fixed order.
trait State {
    fn save(&self, push: &mut dyn FnMut(u64));
    fn load(&mut self, next: &mut dyn FnMut() -> u64);
}

impl Sharing {
    /// The most words that [`Self::save`] writes for a core.
    pub fn state_len(core: &SharedCore) -> usize {
        2 + (2 * core.lanes.len()).max(core.capacities.len() + core.tasks)
    }

    /// Writes the state to `words`.
    pub fn save(&self, words: &mut [u64]) {
        let mut words = words.iter_mut();
        let mut push = |word| {
            if let Some(place) = words.next() {
                *place = word;
            }
        };
        match self {
            Self::Unis(policy) => policy.save(&mut push),
            Self::RoundRobin(policy) => policy.save(&mut push),
            Self::Deadline(policy) => policy.save(&mut push),
            Self::LoadTurns(policy) => policy.save(&mut push),
            // Cooperative turns depend on the view alone; weights have one writer.
            Self::Cooperative(_) | Self::LoadBased(_) => {}
        }
    }

    /// Continues from the state in `words`. Another process wrote it, so any values may occur.
    pub fn load(&mut self, words: &[u64]) {
        let mut words = words.iter().copied();
        let mut next = || words.next().unwrap_or(NONE);
        match self {
            Self::Unis(policy) => policy.load(&mut next),
            Self::RoundRobin(policy) => policy.load(&mut next),
            Self::Deadline(policy) => policy.load(&mut next),
            Self::LoadTurns(policy) => policy.load(&mut next),
            Self::Cooperative(_) | Self::LoadBased(_) => {}
        }
    }
}

impl State for Unis {
    fn save(&self, push: &mut dyn FnMut(u64)) {
        push(self.ends_ns);
        push(self.drains.into());
        for since in &self.waiting_since {
            push(since.unwrap_or(NONE));
        }
    }

    fn load(&mut self, next: &mut dyn FnMut() -> u64) {
        self.ends_ns = next();
        self.drains = next() == 1;
        for since in &mut self.waiting_since {
            *since = Some(next()).filter(|ns| *ns != NONE);
        }
    }
}

impl State for RoundRobin {
    fn save(&self, push: &mut dyn FnMut(u64)) {
        push(self.ends_ns);
    }

    fn load(&mut self, next: &mut dyn FnMut() -> u64) {
        self.ends_ns = next();
    }
}

impl State for LoadTurns {
    fn save(&self, push: &mut dyn FnMut(u64)) {
        push(self.ends_ns);
        push(self.shares.weighed_ns.unwrap_or(NONE));
        for written in &self.shares.written {
            push(*written);
        }
        for weight in &self.shares.weights {
            push((*weight).into());
        }
    }

    fn load(&mut self, next: &mut dyn FnMut() -> u64) {
        self.ends_ns = next();
        self.shares.weighed_ns = Some(next()).filter(|ns| *ns != NONE);
        for written in &mut self.shares.written {
            *written = next();
        }
        for weight in &mut self.shares.weights {
            *weight = next().clamp(1, TOTAL_WEIGHT.into()) as u32;
        }
    }
}

impl State for Deadline {
    fn save(&self, push: &mut dyn FnMut(u64)) {
        push(self.turn_start_ns);
        for seen in &self.seen {
            let (ns, written) = seen.unwrap_or((NONE, 0));
            push(ns);
            push(written);
        }
    }

    fn load(&mut self, next: &mut dyn FnMut() -> u64) {
        self.turn_start_ns = next();
        for seen in &mut self.seen {
            *seen = Some((next(), next())).filter(|(ns, _)| *ns != NONE);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::sharing::testbed::Testbed;
    use crate::sharing::{Cooperative, DeadlineParameters, UnisParameters};

    const TASKS: usize = 3;

    fn policies(core: &SharedCore) -> Vec<Sharing> {
        let unis = UnisParameters {
            longest_wait_ns: Some(40_000),
            ..UnisParameters::default()
        };
        vec![
            Sharing::Unis(Unis::new(core.clone(), unis)),
            Sharing::Cooperative(Cooperative::new(core.clone(), 2)),
            Sharing::RoundRobin(RoundRobin::new(core.clone(), 10_000)),
            Sharing::LoadTurns(LoadTurns::new(core.clone(), 200_000, 64)),
            Sharing::Deadline(Deadline::new(core.clone(), DeadlineParameters::default())),
        ]
    }

    /// What happens before a decision: time passes, and a ring gets a fill level and a deadline.
    type Change = (u64, usize, u64, Option<u64>);

    fn apply(bed: &mut Testbed, now_ns: u64, (_, ring, packets, due_in_ns): Change) {
        match due_in_ns {
            Some(ns) => bed.fill_due(ring, packets, now_ns + ns),
            None => bed.fill(ring, packets),
        }
        bed.reads += 1;
    }

    proptest! {
        /// Copies in different processes decide like one policy, if the state follows the core.
        #[test]
        fn copies_that_pass_on_their_state_decide_like_one_policy(
            changes in prop::collection::vec(
                (1_u64..30_000, 0..TASKS, 0_u64..1024, prop::option::of(0_u64..500_000)),
                1..60,
            ),
        ) {
            let core = Testbed::chain(TASKS, 1024).core;
            for mut one in policies(&core) {
                let (mut bed, mut apart) = (Testbed::chain(TASKS, 1024), Testbed::chain(TASKS, 1024));
                let mut copies = vec![one.clone(); TASKS];
                let mut words = vec![0; Sharing::state_len(&core)];
                one.save(&mut words);
                let mut now_ns = 1000;
                for change in &changes {
                    now_ns += change.0;
                    apply(&mut bed, now_ns, *change);
                    apply(&mut apart, now_ns, *change);
                    let copy = &mut copies[apart.running.unwrap_or(0)];
                    copy.load(&words);
                    prop_assert_eq!(apart.ask(copy, now_ns), bed.ask(&mut one, now_ns));
                    copy.save(&mut words);
                }
            }
        }
    }
}
