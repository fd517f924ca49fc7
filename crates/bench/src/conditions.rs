//! Conditions of a round trip: how the end hosts wait for a packet, and whether idle cores sleep.

use std::fmt;

use myelin_measure::Mode;

/// Conditions of a round trip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Conditions {
    pub(crate) mode: Mode,
    /// Idle cores poll instead of sleeping, as with `spec.cpuLatency: 0us`.
    pub(crate) awake: bool,
}

impl From<Mode> for Conditions {
    fn from(mode: Mode) -> Self {
        Self { mode, awake: false }
    }
}

impl fmt::Display for Conditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let awake = if self.awake { ", cores awake" } else { "" };
        write!(f, "{}{awake}", self.mode)
    }
}

/// The subjects whose cores sleep, then those whose cores stay awake. They are not measured in
/// turns: the `haltpoll` governor of virtual machines continues to poll after the limit is removed,
/// until the core was idle for a while (drivers/cpuidle/governors/haltpoll.c).
pub(crate) fn phases<M: Copy + Into<Conditions>>(
    subjects: usize,
    modes: &[M],
) -> impl Iterator<Item = (bool, Vec<usize>)> {
    let is_awake = |subject: usize| modes[subject % modes.len()].into().awake;
    [false, true].into_iter().filter_map(move |awake| {
        let selected: Vec<usize> = (0..subjects)
            .filter(|subject| is_awake(*subject) == awake)
            .collect();
        (!selected.is_empty()).then_some((awake, selected))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_subject_is_in_the_phase_of_its_conditions() {
        let blocking = |awake| Conditions {
            mode: Mode::Blocking,
            awake,
        };
        let modes = [Mode::Inline.into(), blocking(true), blocking(false)];
        let phases: Vec<_> = phases(6, &modes).collect();
        assert_eq!(phases, [(false, vec![0, 2, 3, 5]), (true, vec![1, 4])]);
        assert_eq!(super::phases(2, &[Mode::Inline]).count(), 1);
    }
}
