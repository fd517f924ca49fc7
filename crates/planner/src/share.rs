//! Costs on a share of the machine's cores: of an agent whose control group has a quota.

use crate::Costs;

/// The whole core, millionths.
const WHOLE_PPM: u32 = 1_000_000;

/// The share of each core that a group of processes has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CoreShare {
    /// Share of the core's time, millionths; at least 1.
    pub ppm: u32,
    /// Longest time in which the group does not run although it has work, ns.
    pub pause_ns: u64,
}

impl CoreShare {
    /// Returns the share of each of `cores` cores with a quota in each period; `None` if the quota
    /// holds all cores. A group may use its quota at the beginning of one period and at the end of
    /// the next, so the pause is twice the rest of the period.
    pub fn of_quota(quota_ns: u64, period_ns: u64, cores: u32) -> Option<Self> {
        let all_ns = u128::from(period_ns.max(1)) * u128::from(cores.max(1));
        let ppm = u128::from(quota_ns) * u128::from(WHOLE_PPM) / all_ns;
        let ppm = u32::try_from(ppm).unwrap_or(WHOLE_PPM).max(1);
        let own_ns = u64::try_from(u128::from(period_ns) * u128::from(ppm) / 1_000_000);
        let pause_ns = period_ns.saturating_sub(own_ns.unwrap_or(period_ns));
        (ppm < WHOLE_PPM).then_some(Self {
            ppm,
            pause_ns: pause_ns.saturating_mul(2),
        })
    }
}

impl Costs {
    /// Returns the costs for processes with this share of each core. Work takes longer in the worst
    /// case, and waits for the pause too.
    #[must_use]
    pub fn on_share(mut self, share: CoreShare) -> Self {
        let ppm = share.ppm.clamp(1, WHOLE_PPM);
        self.worst_case *= f64::from(WHOLE_PPM) / f64::from(ppm);
        self.pause_ns = self.pause_ns.saturating_add(share.pause_ns);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_is_a_share_of_all_cores() {
        assert_eq!(CoreShare::of_quota(10_000, 10_000, 1), None);
        assert_eq!(CoreShare::of_quota(20_000, 10_000, 2), None);
        let half = CoreShare::of_quota(5_000, 10_000, 1).unwrap();
        assert_eq!((half.ppm, half.pause_ns), (500_000, 10_000));
        assert_eq!(CoreShare::of_quota(5_000, 10_000, 2).unwrap().ppm, 250_000);
        assert_eq!(CoreShare::of_quota(0, 0, 0).unwrap().ppm, 1);
    }

    #[test]
    fn costs_on_a_share_are_higher_and_have_its_pauses() {
        let whole = Costs::default();
        let share = CoreShare {
            ppm: 250_000,
            pause_ns: 15_000_000,
        };
        let part = whole.clone().on_share(share);
        assert!((part.worst_case - 4.0 * whole.worst_case).abs() < 1e-9);
        assert_eq!(part.pause_ns, 15_000_000);
    }
}
